// Batched Cholesky on the CPU.
#pragma once
#include <cstdint>

#include "frame.h"

namespace lapwing {

// On one thread: factors `count` matrices of order n, row-major and one after another. T: float, double,
// std::complex<float>, std::complex<double>. a == out is allowed; they must not overlap otherwise.
// Lower: A = L L^H from the lower triangle; upper: A = U^H U from the upper one; the other triangle is
// not used, and zero in the result. info[m] is 0, or the order of the first leading minor whose pivot
// is not positive and finite; that matrix, and only that one, is then NaN.
// The same matrix gives the same bits wherever it stands in the batch.
template <class T>
void cholesky_batch(const T* a, T* out, int32_t* info, int64_t count, int64_t n, bool upper);

// Up to this order matrices are factored side by side, each in a lane of the vector registers; larger ones by themselves.
constexpr int64_t CHOLESKY_LANES = 128;

int cholesky_batched(Frame& frame);

}  // namespace lapwing
