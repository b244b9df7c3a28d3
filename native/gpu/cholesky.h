// Our own GPU kernels: Cholesky of many small matrices, Cholesky by tiles, and the triangle kernels around a solver library.
// All of them only queue work on the frame's stream. 0, or 1 with a message in the frame.
#pragma once
#include <cstddef>

#include "gpu/cuda.h"
#include "frame.h"

namespace lapwing::cuda {

// n <= 128: a thread, a group of lanes or a block per matrix.
int cholesky_batched(Frame& frame);
// Whether n is small enough for the shared memory of this GPU.
bool cholesky_batched_fits(const Frame& frame, const Properties& device);

// Any n: tiles of 64 x 64, spread over the GPU by their dependencies. Needs scratch memory.
int cholesky_tiled(Frame& frame);
bool cholesky_tiled_fits(const Frame& frame, const Properties& device);
size_t cholesky_tiled_scratch(const Frame& frame);

// buffer[1][m] <- 1 when every element of the named triangle of matrix m is finite, else 0.
int finite(Frame& frame);

// factor <- the named triangle of a as the lower triangle of a column-major matrix: of A, or of A^T when upper is named.
int transpose_in(Frame& frame);

// The solver's column-major lower factor and its info -> the row-major factor, the other triangle zero, info the first
// pivot that is not finite and positive, and a failed matrix all NaN.
int finish(Frame& frame);

}  // namespace lapwing::cuda
