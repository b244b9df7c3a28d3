// Products with a matrix and solutions with a triangle, tile by tile, for one instruction set. Included after simd.h.
//
// The code does not know where the numbers are: it asks a view of T for an element, and a view of X for a vector. Either T is in
// lanes like X, one matrix in each (View), or T is one matrix anywhere in memory (Scalars) and the lanes are columns of X (Lines).
#include "cpu/lines.h"

namespace lapwing {
namespace {
namespace LAPWING_ISA {

// A matrix in each lane. Its transpose, or the same from its last element to its first, is another view of it.
template <class R, int P>
struct View {
  Vec<R>* x;
  int64_t down, right;  // vectors from a row to the next, from a column to the next

  LAPWING_INLINE Vec<R>* at(int64_t i, int64_t j) const { return x + i * down + j * right; }
  LAPWING_INLINE Element<R, P> get(int64_t i, int64_t j) const { return LAPWING_ISA::get<R, P>(at(i, j)); }
  LAPWING_INLINE void set(int64_t i, int64_t j, const Element<R, P>& value) const { put<R, P>(at(i, j), value); }
  LAPWING_INLINE View from(int64_t i, int64_t j) const { return {at(i, j), down, right}; }
  LAPWING_INLINE View turned() const { return {x, right, down}; }
  LAPWING_INLINE View backwards(int64_t rows, int64_t columns) const { return {at(rows - 1, columns - 1), -down, -right}; }
  LAPWING_INLINE View upside_down(int64_t rows) const { return {at(rows - 1, 0), -down, right}; }
};

// ---- X <- X - T Y, X <- T^-1 X ---------------------------------------------------------------------

// c <- c - a b, or c - conj(a) b
template <class R, int P, bool CONJ>
LAPWING_INLINE void subtract_product(Element<R, P>& c, const Element<R, P>& a, const Element<R, P>& b) {
  c.re = less(a.re, b.re, c.re);
  if constexpr (P == 2) {
    c.im = less(a.re, b.im, c.im);
    c.re = CONJ ? less(a.im, b.im, c.re) : fma(a.im, b.im, c.re);
    c.im = CONJ ? fma(a.im, b.re, c.im) : less(a.im, b.re, c.im);
  }
}

template <int P>
constexpr int TILE_ROWS = LAPWING_REGISTERS == 32 || P == 1 ? 4 : 2;
template <int P>
constexpr int TILE_COLUMNS = LAPWING_REGISTERS == 32 && P == 1 ? 4 : 2;
constexpr int64_t SOLVE_ROWS = -1;  // as a depth: each row of T reaches to its diagonal

// M x C of X. inverse: of T's diagonal, nullptr if that is ones.
template <class R, int P, bool CONJ, int M, int C, class T, class X>
LAPWING_INLINE void tile(const T& t, const X& y, const X& x, const T& inverse, int64_t depth, bool solve) {
  Element<R, P> sum[M][C];
#pragma GCC unroll 8
  for (int i = 0; i < M; i++)
#pragma GCC unroll 4
    for (int j = 0; j < C; j++) sum[i][j] = x.get(i, j);
  for (int64_t k = 0; k < depth; k++) {
    Element<R, P> b[C];
#pragma GCC unroll 4
    for (int j = 0; j < C; j++) b[j] = y.get(k, j);
#pragma GCC unroll 8
    for (int i = 0; i < M; i++) {
      const Element<R, P> a = t.get(i, k);
#pragma GCC unroll 4
      for (int j = 0; j < C; j++) subtract_product<R, P, CONJ>(sum[i][j], a, b[j]);
    }
  }
  if (solve)
#pragma GCC unroll 8
    for (int i = 0; i < M; i++) {
#pragma GCC unroll 8
      for (int k = 0; k < i; k++) {
        const Element<R, P> a = t.get(i, depth + k);
#pragma GCC unroll 4
        for (int j = 0; j < C; j++) subtract_product<R, P, CONJ>(sum[i][j], a, sum[k][j]);
      }
      if (!inverse.x) continue;
      const Element<R, P> d = CONJ ? conj<R, P>(inverse.get(i, 0)) : inverse.get(i, 0);
#pragma GCC unroll 4
      for (int j = 0; j < C; j++) sum[i][j] = product<R, P>(d, sum[i][j]);
    }
#pragma GCC unroll 8
  for (int i = 0; i < M; i++)
#pragma GCC unroll 4
    for (int j = 0; j < C; j++) x.set(i, j, sum[i][j]);
}

template <class R, int P, bool CONJ, int C, class T, class X>
LAPWING_INLINE void sweep_columns(const T& t, const X& y, const X& x, const T& inverse, int64_t rows, int64_t depth) {
  constexpr int M = TILE_ROWS<P>;
  const bool solve = depth == SOLVE_ROWS;
  int64_t r = 0;
  const auto next = [&](auto size) {
    constexpr int N = decltype(size)::value;
    const T d = inverse.x ? inverse.from(r, 0) : inverse;
    tile<R, P, CONJ, N, C>(t.from(r, 0), y, x.from(r, 0), d, solve ? r : depth, solve);
    r += N;
  };
  while (r + M <= rows) next(std::integral_constant<int, M>());
  if (M == 4 && r + 2 <= rows) next(std::integral_constant<int, 2>());
  if (r < rows) next(std::integral_constant<int, 1>());
}

// depth: X <- X - T Y, T having so many columns; SOLVE_ROWS: X <- T^-1 X, T being lower triangular, and Y = X.
template <class R, int P, bool CONJ, class T, class X>
__attribute__((noinline)) void sweep(const T& t, const X& y, const X& x, const T& inverse, int64_t rows, int64_t columns,
                                     int64_t depth) {
  constexpr int C = TILE_COLUMNS<P>;
  int64_t c = 0;
  for (; c + C <= columns; c += C) sweep_columns<R, P, CONJ, C>(t, y.from(0, c), x.from(0, c), inverse, rows, depth);
  if (C == 4 && c + 2 <= columns) {
    sweep_columns<R, P, CONJ, 2>(t, y.from(0, c), x.from(0, c), inverse, rows, depth);
    c += 2;
  }
  if (c < columns) sweep_columns<R, P, CONJ, 1>(t, y.from(0, c), x.from(0, c), inverse, rows, depth);
}

// A triangular matrix with the inverse of its diagonal, as a lower one that may have to be conjugated.
template <class R, int P, class T = View<R, P>>
struct Triangle {
  T t, inverse;  // no inverse: a diagonal of ones
  int64_t n;
  bool lower = true, conjugate = false;

  Triangle adjoint() const { return {t.turned(), inverse, n, !lower, !conjugate}; }

  // X <- T^-1 X
  template <class X>
  void solve(const X& x, int64_t columns) const {
    const T from = lower ? t : t.backwards(n, n);
    const X to = lower ? x : x.upside_down(n);
    const T diagonal = lower || !inverse.x ? inverse : inverse.upside_down(n);
    if (P == 2 && conjugate)
      sweep<R, P, P == 2>(from, to, to, diagonal, n, columns, SOLVE_ROWS);
    else
      sweep<R, P, false>(from, to, to, diagonal, n, columns, SOLVE_ROWS);
  }
};

}  // namespace LAPWING_ISA
}  // namespace
}  // namespace lapwing
