// Factors of one large matrix by our own code, on several threads. Matrices are column-major, as LAPACK has them. Not from inside a
// `parallel` of more than one thread.
#pragma once
#include <cstdint>

namespace lapwing {

// out (columns x rows) <- the transpose of a (rows x columns), on the calling thread, for real numbers and sides of at least
// TURN_LEAST. ld and to_ld: from a row to the next. false: it holds NaN or Inf.
constexpr int64_t TURN_LEAST = 16;
template <class R>
bool turn_wide(const R* a, int64_t ld, int64_t rows, int64_t columns, R* out, int64_t to_ld);

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

// x <- the named triangle of (U^H U)^-1, or (L L^H)^-1, in place of the factor, n x n. The other triangle is not kept.
template <class T>
void dense_positive_inverse(T* x, int64_t n, bool upper, int threads);

}  // namespace lapwing
