// Batched eigenvalues and eigenvectors of small symmetric and Hermitian matrices on one CPU thread.
#pragma once
#include <cstdint>

#include "cpu.h"

namespace lapwing {

// Largest order these kernels take: above it, two threads that share three vectors of matrices can be slower than LAPACK.
constexpr int64_t EIGH_LARGEST = 192;

// Fewer matrices than this are as fast one by one in LAPACK, for a vector of matrices takes the same time full or nearly
// empty. From times of one thread on Sapphire Rapids (AVX-512, 2026-11), LAPACK counted as twice as fast on two.
constexpr int64_t eigh_fewest(int64_t n) { return n <= 16 ? 1 : n <= 32 ? 4 : n <= 64 ? 8 : 16; }

// Eigenpairs first .. first + count - 1, in ascending order, of `matrices` matrices of order n, row-major
// and one after another; of each only the triangle named by `upper` is used, and of its diagonal the real
// part. T: float, double, std::complex<float>, std::complex<double>.
// w: count values to a matrix. v: n x count to a matrix, its columns orthonormal; nullptr: values only.
// a == v is allowed when count == n; they must not overlap otherwise.
// info[m] is 0, or 1 when matrix m is not finite or did not converge; w and v of that matrix, and of no
// other, are then NaN. The same matrix gives the same bits wherever it stands in the batch, and the same
// values with and without vectors.
template <class T>
void eigh_batch(const T* a, RealOf<T>* w, T* v, int32_t* info, int64_t matrices, int64_t n, int64_t first, int64_t count,
                bool upper);

// Matrices worked on together. A batch that is cut up, between threads say, is best cut at multiples.
template <class T>
int64_t eigh_group(int64_t n);

}  // namespace lapwing
