// Eigenvalues, eigenvectors and the Schur form of one real matrix of middle order on one thread.
#pragma once
#include <complex>
#include <cstdint>

namespace lapwing {

// Beyond, the library's blocks and threads win in the end. Times of one thread of a busy Zen 5 (AVX-512, 2026-11-18), ms, here, by OpenBLAS
// and by MKL, eigenvectors too: float32 n = 64 0.18, 0.73 and 0.50, 128 1.05, 4.4 and 3.4, 256 14, 34 and 31; float64 64 0.27, 0.93
// and 0.88, 256 25, 66 and 65.
constexpr int64_t EIG_ONE_LARGEST = 256;

// w <- the eigenvalues of a row-major matrix; v <- its eigenvectors in columns of length one, unless it is null. false: it did not
// converge, or its numbers are far from one. The eigenvalues are the same with and without vectors.
template <class R>
bool eig_one(int64_t n, const R* a, std::complex<R>* w, std::complex<R>* v);

// A = Z T Z^T, with the blocks of T as LAPACK has them
template <class R>
bool schur_one(int64_t n, const R* a, R* t, R* z);

}  // namespace lapwing
