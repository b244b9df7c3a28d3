// Many small systems, inverses, factorisations and singular values at once, each matrix in a lane of the vector registers. See
// solve_small.h and svd_small.h.
#pragma once
#include "frame.h"

namespace lapwing {

// Largest order these kernels take.
constexpr int64_t SOLVE_LARGEST = 64;
// The largest shorter and longer side of a matrix whose singular values Jacobi's method finds.
constexpr int64_t SVD_LARGEST = 32, SVD_LONGEST = 128;
// The same for the QR iteration on a bidiagonal matrix.
constexpr int64_t SVD_LANES_LARGEST = 192, SVD_LANES_LONGEST = 512;
// Right-hand sides held in lanes at a time.
constexpr int64_t SOLVE_COLUMNS = 32;
// Bytes of an array that are fetched ahead; more would push out what is worked on.
constexpr int64_t FETCHED = 16384;

// Frames from TRIANGULAR on.
bool solve_fits(const Frame& frame);
bool solve_pays(const Frame& frame);  // whether the batch is worth its vectors
int solve_batched(Frame& frame);

}  // namespace lapwing
