// Singular values and vectors of one matrix on several threads: A = U B V^H with B bidiagonal, B = X S Y^T by a solver that the caller
// supplies, then U X and Y^T V^H.
#pragma once
#include <cstdint>
#include <functional>

#include "dtypes.h"

namespace lapwing {

// B = X S Y^T for the upper bidiagonal B of order n with the diagonals d and e: d <- S, descending. Unless x is null, x <- X and y <- Y^T,
// both column-major, their columns `ld_x` and `ld_y` apart. Returns 0, or another number where it failed.
template <class R>
using BidiagonalSolver = std::function<int64_t(int64_t n, R* d, R* e, R* x, int64_t ld_x, R* y, int64_t ld_y)>;

// A = U S V^H, all matrices row-major. u and vh are null where only S is wanted; full: they are square.
template <class T>
struct SvdOfOne {
  const T* a;
  int64_t m, n;
  bool full;
  T* u;
  RealOf<T>* s;
  T* vh;
};

// Returns 0; 1 where an element is not finite; or what `solve` returned where that failed. Inside a `parallel` of several threads it must
// be called with threads = 1.
template <class T>
int64_t svd_by_bidiagonal(const SvdOfOne<T>& call, int threads, const BidiagonalSolver<RealOf<T>>& solve);

// Whether M (m x n, m >= n) is first factored as Q R, so that only R is made bidiagonal: from this shape on that takes fewer operations.
inline bool svd_reduces_first(int64_t m, int64_t n) { return 3 * m >= 5 * n; }

// Workspace in bytes, without that of `solve`
template <class T>
int64_t bidiagonal_bytes(int64_t m, int64_t n, bool vectors, bool full) {
  const int64_t longer = m > n ? m : n, lesser = m > n ? n : m;
  const int64_t found = vectors ? (full ? longer : lesser) * (longer + 16) + 2 * lesser * (lesser + 16) : 0;
  return int64_t(sizeof(T)) * ((longer + 16) * (lesser + 136) + (lesser + 16) * (2 * lesser + 136) + found);
}

}  // namespace lapwing
