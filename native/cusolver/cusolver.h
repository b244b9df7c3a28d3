// cuSOLVER's 64-bit interface.
#pragma once
#include "frame.h"

namespace lapwing::cusolver {

// One large matrix after the other; AMD's library takes several at once.
int cholesky(Frame& frame);
int64_t cholesky_scratch(Frame& frame);   // -1 leaves a message in the frame

// EIGH and EIGVALSH: many small matrices together, larger ones one after the other.
int eigh(Frame& frame);
int64_t eigh_scratch(Frame& frame);       // -1 leaves a message in the frame
int64_t eigh_host_bytes(Frame& frame);

// EIG and EIGVALS, one matrix after the other; waits for the GPU.
int eig(Frame& frame);
int64_t eig_scratch(Frame& frame);        // -1 leaves a message in the frame
int64_t eig_host_bytes(Frame& frame);

// Column-major A of order n, upper triangle read, <- its eigenvectors, w ascending, all on the device; the result of the
// solver itself is in info. 1 with a message in the frame also when its workspace is larger than `bytes`.
int eigh_small(Frame& frame, int64_t n, void* a, void* w, void* work, size_t bytes, int32_t* info);

// TRIANGULAR to SVDVALS
int solve(Frame& frame);
int64_t solve_scratch(Frame& frame);      // -1 leaves a message in the frame

}  // namespace lapwing::cusolver
