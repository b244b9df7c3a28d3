// Factors of one large matrix by our own code, on several threads. Matrices are column-major, as LAPACK has them. Not from inside a
// `parallel` of more than one thread.
#pragma once
#include <cstdint>

namespace lapwing {

// P A = L U in place: row i changed places with row pivots[i], for i = 0, 1, ... A zero on the diagonal of U is left there.
template <class T>
void dense_lu(T* a, int64_t n, int64_t ld, int64_t* pivots, int threads);

// A = U^H U, or L L^H, in the named triangle; the other is neither read nor written. 0, or the place of the first pivot that is not
// positive and finite.
template <class T>
int64_t dense_cholesky(T* a, int64_t n, int64_t ld, bool upper, int threads);

// x <- U^-1 L^-1 from what dense_lu() gave, n x n both. false: an element of U's diagonal is zero, or too small to have an inverse; then
// x is not written.
template <class T>
bool dense_inverse(const T* lu, T* x, int64_t n, int threads);

}  // namespace lapwing
