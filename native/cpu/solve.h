// Many small systems, inverses, factorisations and singular values at once, each matrix in a lane of the vector registers. See
// solve_small.h and svd_small.h.
#pragma once
#include "frame.h"

namespace lapwing {

// Largest order these kernels take.
constexpr int64_t SOLVE_LARGEST = 64;
// The largest longer and shorter side of a matrix whose singular values are asked for; up to which shorter side Jacobi's method
// finds them, and above it the QR iteration on a bidiagonal matrix.
constexpr int64_t SVD_LONGEST = 512, SVD_LARGEST = 320, SVD_JACOBI_LARGEST = 32;
// Right-hand sides held in lanes at a time.
constexpr int64_t SOLVE_COLUMNS = 32;
// Bytes of an array that are fetched ahead; more would push out what is worked on.
constexpr int64_t FETCHED = 16384;

// Frames from TRIANGULAR on.
bool solve_fits(const Frame& frame);
bool solve_pays(const Frame& frame);  // whether the batch is worth its vectors
int solve_batched(Frame& frame);

}  // namespace lapwing
