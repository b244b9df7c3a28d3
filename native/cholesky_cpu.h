// Batched Cholesky on one CPU thread.
#pragma once
#include <cstdint>

namespace lapwing {

// Factors `count` matrices of order n, row-major and one after another. T: float, double,
// std::complex<float>, std::complex<double>. a == out is allowed; they must not overlap otherwise.
// Lower: A = L L^H from the lower triangle; upper: A = U^H U from the upper one; the other triangle is
// not used, and zero in the result. info[m] is 0, or the order of the first leading minor whose pivot
// is not positive and finite; that matrix, and only that one, is then NaN.
// The same matrix gives the same bits wherever it stands in the batch.
template <class T>
void cholesky_batch(const T* a, T* out, int32_t* info, int64_t count, int64_t n, bool upper);

// Matrices factored together. A batch that is cut up, between threads say, is best cut at multiples.
template <class T>
int64_t cholesky_group(int64_t n);


}  // namespace lapwing
