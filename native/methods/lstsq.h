// Least squares on the CPU: matrix by matrix by QR if that proves the rank to be full, else by the SVD.
#pragma once
#include <cstdint>
#include <cstring>

#include "frame.h"

namespace lapwing {

constexpr int32_t UNPROVEN = -1;  // as a rank: the QR does not tell

// The limit for singular values, relative to the largest.
double rcond_of(const Frame& frame);

// Whether the smallest singular value of the column-major upper triangle is certainly above rcond times the largest. From
// random vectors and a few solves, which may miss the extreme values by a small factor: a wide margin is left for that.
template <class T>
bool has_full_rank(const T* r, int64_t n, int64_t ld, double rcond);

// z <- R^-1 z, or R^-H z
template <class T>
void solve_upper(const T* r, int64_t n, int64_t ld, T* z, bool adjoint);

// How far the estimate from one vector may be off; the norm of R it is multiplied by is never too small. The vector would have to
// miss the direction of the smallest singular value by this factor times its relative size.
constexpr double RANK_MARGIN = 16;

// A start for the estimate, the same in every call.
double rank_vector(int64_t i);

// An LSTSQ frame: `by_qr` does the matrices whose rank it proves, `svd` decomposes the others.
int lstsq(Frame& frame, int (*by_qr)(Frame&), int (*svd)(Frame&));

// `by_qr` for tall and narrow matrices: Q and R by `qr`, which gets a QR frame
int lstsq_by_factors(Frame& frame, int (*qr)(Frame&));

}  // namespace lapwing
