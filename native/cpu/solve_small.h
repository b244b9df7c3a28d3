// Systems, inverses and factors of many small matrices, for one instruction set. Included once for each, after simd.h.
//
// R is the real scalar, P how many make an element: 1 real, 2 complex. A lane is a matrix: all lanes do the same
// operations on numbers of their own, so a matrix gives the same bits in every lane, whatever its neighbours are.

#include "cpu/sweep.h"

namespace lapwing {
namespace {
namespace LAPWING_ISA {

// ---- memory to lanes and back ------------------------------------------------------------------------

// Where the matrices of the lanes are. An idle lane repeats the last one.
template <class R>
struct Places {
  R* p[LANES<R>];

  Places(R* first, int64_t size, int64_t count) {
    for (int64_t m = 0; m < LANES<R>; m++) p[m] = first + std::min(m, count - 1) * size;
  }
  LAPWING_INLINE R* operator[](int64_t m) const { return p[m]; }
};

// Vectors to a row of `width`. Rows that fill whole vectors of memory are read one by one anyway, so they may be spread over
// all sets of the cache; others are read in one run.
template <class R>
LAPWING_INLINE int64_t stride_for(int64_t width) {
  return width % LANES<R> ? width : width + 1;
}

template <class R, int G>
LAPWING_INLINE void read_run(Vec<R>* to, const Places<const R>& from, int64_t offset, int64_t first, int64_t last,
                             int64_t end) {
  constexpr int STEP = G * CHUNK<R>;
  for (; first < last; first += STEP) {
    const int64_t at = std::min(first, end - STEP);  // the last piece overlaps the one before
    Vec<R> v[G][CHUNK<R>];
    read_chunks<R, G>(v, from, offset + at);
#pragma GCC unroll 16
    for (int c = 0; c < STEP; c++) to[at + c] = v[c / CHUNK<R>][c % CHUNK<R>];
  }
}
template <class R, int G>
LAPWING_INLINE void write_run(const Vec<R>* from, const Places<R>& to, int64_t offset, int64_t end) {
  constexpr int STEP = G * CHUNK<R>;
  for (int64_t first = 0; first < end; first += STEP) {
    const int64_t at = std::min(first, end - STEP);
    Vec<R> v[G][CHUNK<R>];
#pragma GCC unroll 16
    for (int c = 0; c < STEP; c++) v[c / CHUNK<R>][c % CHUNK<R>] = from[at + c];
    write_chunks<R, G>(v, to, offset + at);
  }
}

enum class Part { ALL, LOWER, UPPER };

// rows x width scalars, `pitch` apart from row to row in memory, into rows of stride_for(width) vectors. Of a part that is
// not all, more may be read.
template <class R>
__attribute__((noinline)) void read(Vec<R>* to, const Places<const R>& from, int64_t rows, int64_t width, int64_t pitch,
                                    Part part = Part::ALL) {
  constexpr int LINE = LAPWING_VECTOR / 16, W = LANES<R>;
  const int64_t stride = stride_for<R>(width);
  if (width == pitch && width == stride) {
    width *= rows, rows = 1;
    part = Part::ALL;
  }
  const int64_t element = rows ? width / rows : 0;  // scalars of a square matrix
  for (int64_t i = 0; i < rows; i++, to += stride) {
    const int64_t first = part == Part::UPPER ? i * element / W * W : 0;
    const int64_t last = part == Part::LOWER ? (i + 1) * element : width;
    if (width >= W)
      read_run<R, LINE>(to, from, i * pitch, first, last, width);
    else if (width >= CHUNK<R>)
      read_run<R, 1>(to, from, i * pitch, 0, width, width);
    else
      for (int64_t c = 0; c < width; c++)
        for (int64_t m = 0; m < W; m++) to[c][m] = from[m][i * pitch + c];
  }
}
template <class R>
__attribute__((noinline)) void write(const Vec<R>* from, const Places<R>& to, int64_t rows, int64_t width, int64_t pitch) {
  constexpr int LINE = LAPWING_VECTOR / 16, W = LANES<R>;
  const int64_t stride = stride_for<R>(width);
  if (width == pitch && width == stride) width *= rows, rows = 1;
  for (int64_t i = 0; i < rows; i++, from += stride)
    if (width >= W)
      write_run<R, LINE>(from, to, i * pitch, width);
    else if (width >= CHUNK<R>)
      write_run<R, 1>(from, to, i * pitch, width);
    else
      for (int64_t c = 0; c < width; c++)
        for (int64_t m = 0; m < W; m++) to[m][i * pitch + c] = from[c][m];
}

// ---- pivots ---------------------------------------------------------------------------------------

template <class R, int P>
LAPWING_INLINE Vec<R> size_of(const Element<R, P>& x) {
  if constexpr (P == 1)
    return abs(x.re);
  else
    return abs(x.re) + abs(x.im);
}

// 1 / x, and 0 for 0. Squares of a complex number are taken near one.
template <class R, int P>
LAPWING_INLINE Element<R, P> reciprocal(const Element<R, P>& x) {
  if constexpr (P == 1) {
    return {x.re == 0 ? Vec<R>{} : 1 / x.re};
  } else {
    const Vec<R> size = size_of<R, P>(x);
    const PowerOfTwo<R> power(size);
    const Vec<R> re = x.re * power.up, im = x.im * power.up;
    const Vec<R> by = size == 0 ? Vec<R>{} : power.up / fma(re, re, im * im);
    return {re * by, -im * by};
  }
}

// Whether all pivots are neither zero nor infinite nor NaN, or their inverses, for which it is the same.
template <class R, int P>
LAPWING_INLINE Mask<R> good_pivots(const View<R, P>& pivots, int64_t n) {
  Mask<R> good = ~Mask<R>{};
  for (int64_t i = 0; i < n; i++) {
    const Vec<R> size = size_of<R, P>(pivots.get(i, 0));
    good &= (size > 0) & (size <= std::numeric_limits<R>::max());
  }
  return good;
}
template <class R, int P>
__attribute__((noinline)) int32_t first_bad_pivot(const View<R, P>& pivots, int64_t n, int64_t lane) {
  for (int64_t i = 0; i < n; i++) {
    const R size = size_of<R, P>(pivots.get(i, 0))[lane];
    if (!(size > 0 && size <= std::numeric_limits<R>::max())) return int32_t(i + 1);
  }
  return 0;
}

// info <- 0, or the place of the first bad pivot; then fail(lane)
template <class R, int P, class Fail>
LAPWING_INLINE void judge(const View<R, P>& pivots, int64_t n, int32_t* info, int64_t count, const Fail& fail) {
  if (info) std::fill_n(info, count, 0);
  if (__builtin_expect(!any(~good_pivots<R, P>(pivots, n)), 1)) return;
  for (int64_t m = 0; m < count; m++) {
    const int32_t place = first_bad_pivot<R, P>(pivots, n, m);
    if (!place) continue;
    if (info) info[m] = place;
    fail(m);
  }
}

// ---- A = L L^H --------------------------------------------------------------------------------------

// L L^H <- A for a tile on the diagonal
template <class R, int P>
LAPWING_INLINE void factor_tile(const View<R, P>& a, int64_t n, const View<R, P>& inverse) {
  for (int64_t j = 0; j < n; j++) {
    const Vec<R> pivot = a.get(j, j).re, by = rsqrt(pivot);
    a.set(j, j, real<R, P>(pivot * by));
    inverse.set(j, 0, real<R, P>(by));
    for (int64_t i = j + 1; i < n; i++) {
      Element<R, P> l = a.get(i, j);
      scale<R, P>(l, by);
      a.set(i, j, l);
      for (int64_t k = j + 1; k <= i; k++) {
        Element<R, P> x = a.get(i, k);
        subtract_product<R, P, true>(x, a.get(k, j), l);
        a.set(i, k, x);
      }
    }
  }
}

// In the lower triangle of A, row by row: row r of L is conj(L)^-1 times row r of A, as columns.
template <class R, int P>
__attribute__((noinline)) void factor_positive(const View<R, P>& a, const View<R, P>& inverse, int64_t n) {
  constexpr int C = TILE_COLUMNS<P>;
  const View<R, P> none = {};
  for (int64_t r = 0; r < n; r += C) {
    const int64_t rows = std::min<int64_t>(C, n - r);
    const View<R, P> x = a.from(r, 0).turned();
    if (r) {
      sweep<R, P, P == 2>(a, x, x, inverse, r, rows, SOLVE_ROWS);
      sweep<R, P, P == 2>(a.from(r, 0), x, x.from(r, 0), none, rows, rows, r);
    }
    factor_tile<R, P>(a.from(r, r), rows, inverse.from(r, 0));
  }
}

// ---- P A = L U ----------------------------------------------------------------------------------------

// The row of the largest element in column j, from row j on; rows in turn, for a comparison waits for the one before
template <class R, int P>
LAPWING_INLINE Mask<R> find_pivot(const View<R, P>& a, int64_t j, int64_t n) {
  Vec<R> best[2] = {size_of<R, P>(a.get(j, j)), broadcast(R(-1))};
  Mask<R> place[2] = {broadcast_int<R>(j), broadcast_int<R>(j)};
  const auto look = [&](int u, int64_t i) {
    const Vec<R> size = size_of<R, P>(a.get(i, j));
    const Mask<R> more = size > best[u];
    best[u] = more ? size : best[u];
    place[u] = more ? broadcast_int<R>(i) : place[u];
  };
  int64_t i = j + 1;
  for (; i + 2 <= n; i += 2) look(1, i), look(0, i + 1);
  if (i < n) look(1, i);
  return best[1] > best[0] ? place[1] : place[0];
}

// Row j <-> row `place` of each lane; rows are `width` vectors long, and `down` apart.
template <class R>
LAPWING_INLINE void exchange_rows(Vec<R>* x, int64_t down, int64_t width, int64_t j, Mask<R> place) {
  constexpr int V = 4;
  uint64_t rows = 0;
  for (int m = 0; m < LANES<R>; m++) rows |= uint64_t(1) << place[m];
  rows &= ~(uint64_t(1) << j);
  if (!rows) return;
  Vec<R>* top = x + j * down;
  const auto exchange = [&](int64_t v, auto size) {
    constexpr int N = decltype(size)::value;
    Vec<R> old[N], now[N];
#pragma GCC unroll 4
    for (int e = 0; e < N; e++) old[e] = now[e] = top[v + e];
    for (uint64_t left = rows; left; left &= left - 1) {
      const int64_t i = __builtin_ctzll(left);
      const Mask<R> here = place == broadcast_int<R>(i);
      Vec<R>* row = x + i * down + v;
#pragma GCC unroll 4
      for (int e = 0; e < N; e++) {
        const Vec<R> other = row[e];
        row[e] = here ? old[e] : other;
        now[e] = here ? other : now[e];
      }
    }
#pragma GCC unroll 4
    for (int e = 0; e < N; e++) top[v + e] = now[e];
  };
  int64_t v = 0;
  for (; v + V <= width; v += V) exchange(v, std::integral_constant<int, V>());
  for (; v < width; v++) exchange(v, std::integral_constant<int, 1>());
}

// Column j of L <- column j / pivot, and C columns after it lose L(:, j) U(j, :)
template <class R, int P, int C>
LAPWING_INLINE void eliminate(const View<R, P>& a, int64_t rows, const Element<R, P>& by) {
  Element<R, P> u[C + 1];
#pragma GCC unroll 4
  for (int c = 1; c <= C; c++) u[c] = a.get(0, c);
  for (int64_t i = 1; i < rows; i++) {
    const Element<R, P> l = product<R, P>(a.get(i, 0), by);
    a.set(i, 0, l);
#pragma GCC unroll 4
    for (int c = 1; c <= C; c++) {
      Element<R, P> x = a.get(i, c);
      subtract_product<R, P, false>(x, l, u[c]);
      a.set(i, c, x);
    }
  }
}

// rows[i]: which row of A became row i. odd: lanes with an odd number of exchanges.
template <class R, int P>
__attribute__((noinline)) void factor_panel(const View<R, P>& a, const View<R, P>& inverse, Mask<R>* rows, Mask<R>& odd,
                                            int64_t n, int64_t first, int64_t last) {
  for (int64_t j = first; j < last; j++) {
    const Mask<R> place = find_pivot<R, P>(a, j, n);
    exchange_rows<R>(a.x, a.down, n * P, j, place);
    odd ^= place != broadcast_int<R>(j);
    for (int m = 0; m < LANES<R>; m++) {
      const auto row = rows[j][m];
      rows[j][m] = rows[place[m]][m];
      rows[place[m]][m] = row;
    }

    Element<R, P> pivot = a.get(j, j);
    const Mask<R> tiny = size_of<R, P>(pivot) < 16 * std::numeric_limits<R>::min();
    Vec<R> up = broadcast(R(1));
    if (__builtin_expect(any(tiny), 0)) {  // its reciprocal may be too large
      up = tiny ? broadcast(1 / std::numeric_limits<R>::epsilon()) : up;
      for (int64_t i = j + 1; i < n; i++) {
        Element<R, P> x = a.get(i, j);
        scale<R, P>(x, up);
        a.set(i, j, x);
      }
      scale<R, P>(pivot, up);
    }
    Element<R, P> by = reciprocal<R, P>(pivot);
    switch (last - j - 1) {
      case 0: eliminate<R, P, 0>(a.from(j, j), n - j, by); break;
      case 1: eliminate<R, P, 1>(a.from(j, j), n - j, by); break;
      case 2: eliminate<R, P, 2>(a.from(j, j), n - j, by); break;
      default: eliminate<R, P, 3>(a.from(j, j), n - j, by);
    }
    scale<R, P>(by, up);
    inverse.set(j, 0, by);
  }
}

template <class R, int P>
__attribute__((noinline)) Mask<R> factor_general(const View<R, P>& a, const View<R, P>& inverse, Mask<R>* rows, int64_t n) {
  constexpr int C = TILE_COLUMNS<P>;
  const View<R, P> none = {};
  Mask<R> odd = {};
  for (int64_t i = 0; i < n; i++) rows[i] = broadcast_int<R>(i);
  for (int64_t j = 0; j < n; j += C) {
    const int64_t columns = std::min<int64_t>(C, n - j);
    const View<R, P> x = a.from(0, j);
    if (j) {
      sweep<R, P, false>(a, x, x, none, j, columns, SOLVE_ROWS);
      sweep<R, P, false>(a.from(j, 0), x, x.from(j, 0), none, n - j, columns, j);
    }
    factor_panel<R, P>(a, inverse, rows, odd, n, j, j + columns);
  }
  return odd;
}

// ---- A = Q R ------------------------------------------------------------------------------------------

// Columns reflected at a time.
template <int P>
constexpr int REFLECTED = LAPWING_REGISTERS / 4 / P;

// X <- (I - tau v v^H) X for C columns; v's first element counts as one
template <class R, int P, int C>
LAPWING_INLINE void reflect_columns(const View<R, P>& v, const Element<R, P>& tau, const View<R, P>& x, int64_t rows) {
  Element<R, P> sum[C];
#pragma GCC unroll 8
  for (int c = 0; c < C; c++) sum[c] = x.get(0, c);
  for (int64_t i = 1; i < rows; i++) {
    const Element<R, P> a = conj<R, P>(v.get(i, 0));
#pragma GCC unroll 8
    for (int c = 0; c < C; c++) add_product<R, P>(sum[c], a, x.get(i, c));
  }
#pragma GCC unroll 8
  for (int c = 0; c < C; c++) {
    sum[c] = product<R, P>(tau, sum[c]);
    Element<R, P> top = x.get(0, c);
    top.re -= sum[c].re;
    if constexpr (P == 2) top.im -= sum[c].im;
    x.set(0, c, top);
  }
  for (int64_t i = 1; i < rows; i++) {
    const Element<R, P> a = v.get(i, 0);
#pragma GCC unroll 8
    for (int c = 0; c < C; c++) {
      Element<R, P> y = x.get(i, c);
      subtract_product<R, P, false>(y, a, sum[c]);
      x.set(i, c, y);
    }
  }
}
template <class R, int P>
__attribute__((noinline)) void reflect(const View<R, P>& v, const Element<R, P>& tau, const View<R, P>& x, int64_t rows,
                                       int64_t columns) {
  constexpr int C = REFLECTED<P>;
  int64_t c = 0;
  for (; c + C <= columns; c += C) reflect_columns<R, P, C>(v, tau, x.from(0, c), rows);
  if (C == 8 && c + 4 <= columns) {
    reflect_columns<R, P, 4>(v, tau, x.from(0, c), rows);
    c += 4;
  }
  if (C >= 4 && c + 2 <= columns) {
    reflect_columns<R, P, 2>(v, tau, x.from(0, c), rows);
    c += 2;
  }
  for (; c < columns; c++) reflect_columns<R, P, 1>(v, tau, x.from(0, c), rows);
}

// H^H x = beta e1 for the column x, H = I - tau v v^H: x <- beta and the rest of v; result <- tau. Squares are taken of
// numbers up to about one; the rest of a column whose squares then vanish counts as zero.
template <class R, int P>
__attribute__((noinline)) void make_reflection(const View<R, P>& x, int64_t rows, const View<R, P>& result) {
  constexpr R TINY = sizeof(R) == 4 ? R(1e-33) : R(1e-290);
  Vec<R> largest = {};
  for (int64_t i = 0; i < rows; i++) {
    const Element<R, P> y = x.get(i, 0);
    largest = larger<R>(abs(y.re), largest);
    if constexpr (P == 2) largest = larger<R>(abs(y.im), largest);
  }
  const PowerOfTwo<R> power(largest);
  Element<R, P> alpha = x.get(0, 0);
  scale<R, P>(alpha, power.up);
  Vec<R> rest = {};
  if constexpr (P == 2) rest = alpha.im * alpha.im;
  for (int64_t i = 1; i < rows; i++) {
    Element<R, P> y = x.get(i, 0);
    scale<R, P>(y, power.up);
    rest = fma(y.re, y.re, rest);
    if constexpr (P == 2) rest = fma(y.im, y.im, rest);
  }
  const Mask<R> turns = ~(rest <= TINY);  // NaN too
  const Vec<R> norm = sqrt(turns ? fma(alpha.re, alpha.re, rest) : broadcast(R(1)));
  const Vec<R> beta = with_sign<R>(norm, -alpha.re), inverse = 1 / beta;
  const Vec<R> pivot = alpha.re - beta;
  Element<R, P> tau, by;
  if constexpr (P == 1) {
    tau = {turns ? -pivot * inverse : Vec<R>{}};
    by = {turns ? 1 / pivot : Vec<R>{}};
    x.set(0, 0, {(turns ? beta : alpha.re) * power.down});
  } else {
    const Vec<R> square = 1 / fma(pivot, pivot, alpha.im * alpha.im);
    tau = {turns ? -pivot * inverse : Vec<R>{}, turns ? -alpha.im * inverse : Vec<R>{}};
    by = {turns ? pivot * square : Vec<R>{}, turns ? -alpha.im * square : Vec<R>{}};
    x.set(0, 0, {(turns ? beta : alpha.re) * power.down, (turns ? Vec<R>{} : alpha.im) * power.down});
  }
  for (int64_t i = 1; i < rows; i++) {
    Element<R, P> y = x.get(i, 0);
    scale<R, P>(y, power.up);
    x.set(i, 0, product<R, P>(y, by));
  }
  result.set(0, 0, tau);
}

// ---- real matrices whose order the compiler knows -------------------------------------------------------

// L L^T <- A without the diagonal of L; by and inverse <- one over it
template <class R, int N>
LAPWING_INLINE void factor_fixed(const View<R, 1>& a, const View<R, 1>& inverse, Vec<R> (&l)[N][N], Vec<R> (&by)[N]) {
#pragma GCC unroll 8
  for (int i = 0; i < N; i++)
#pragma GCC unroll 8
    for (int j = 0; j <= i; j++) l[i][j] = *a.at(i, j);
#pragma GCC unroll 8
  for (int j = 0; j < N; j++) {
    by[j] = rsqrt(l[j][j]);
    *inverse.at(j, 0) = by[j];
#pragma GCC unroll 8
    for (int i = j + 1; i < N; i++) {
      l[i][j] *= by[j];
#pragma GCC unroll 8
      for (int k = j + 1; k <= i; k++) l[i][k] = fma(-l[i][j], l[k][j], l[i][k]);
    }
  }
}

// x <- U^-1 y, or L^-T y if u holds L; by is one over the diagonal
template <class R, int N, bool TURNED>
LAPWING_INLINE void solve_upper_fixed(const Vec<R> (&u)[N][N], const Vec<R> (&by)[N], Vec<R> (&y)[N], const View<R, 1>& x) {
#pragma GCC unroll 8
  for (int i = N - 1; i >= 0; i--) {
#pragma GCC unroll 8
    for (int k = N - 1; k > i; k--) y[i] = fma(-(TURNED ? u[k][i] : u[i][k]), y[k], y[i]);
    y[i] *= by[i];
    *x.at(i, 0) = y[i];
  }
}

// X <- A^-1 X for a positive definite A, of which the lower triangle is read. inverse <- one over the pivots' roots.
template <class R, int N>
__attribute__((noinline)) void solve_positive_fixed(const View<R, 1>& a, const View<R, 1>& inverse, const View<R, 1>& x,
                                                    int64_t columns) {
  Vec<R> l[N][N], by[N];
  factor_fixed<R, N>(a, inverse, l, by);
  for (int64_t c = 0; c < columns; c++) {
    Vec<R> y[N];
#pragma GCC unroll 8
    for (int i = 0; i < N; i++) {
      y[i] = *x.at(i, c);
#pragma GCC unroll 8
      for (int k = 0; k < i; k++) y[i] = fma(-l[i][k], y[k], y[i]);
      y[i] *= by[i];
    }
    solve_upper_fixed<R, N, true>(l, by, y, x.from(0, c));
  }
}

// A <- A^-1 = W^T W, W = L^-1
template <class R, int N>
__attribute__((noinline)) void inverse_positive_fixed(const View<R, 1>& a, const View<R, 1>& inverse) {
  Vec<R> l[N][N], by[N];
  factor_fixed<R, N>(a, inverse, l, by);
#pragma GCC unroll 8
  for (int j = 0; j < N; j++) {
    l[j][j] = by[j];
#pragma GCC unroll 8
    for (int i = j + 1; i < N; i++) {
      Vec<R> sum = l[i][j] * by[j];
#pragma GCC unroll 8
      for (int k = j + 1; k < i; k++) sum = fma(l[i][k], l[k][j], sum);
      l[i][j] = -sum * by[i];
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < N; i++)
#pragma GCC unroll 8
    for (int j = 0; j <= i; j++) {
      Vec<R> sum = l[i][i] * l[i][j];
#pragma GCC unroll 8
      for (int k = i + 1; k < N; k++) sum = fma(l[k][i], l[k][j], sum);
      *a.at(i, j) = *a.at(j, i) = sum;
    }
}

// X <- A^-1 X by elimination with exchanges: row i goes before row j where its element is larger, one row after the other,
// which leaves the largest on top.
template <class R, int N>
__attribute__((noinline)) void solve_general_fixed(const View<R, 1>& a, const View<R, 1>& inverse, const View<R, 1>& x,
                                                   int64_t columns) {
  const auto exchange = [](Mask<R> wanted, Vec<R>& p, Vec<R>& q) {
    const Vec<R> old = p;
    p = wanted ? q : p;
    q = wanted ? old : q;
  };
  Vec<R> u[N][N], by[N];
  Mask<R> up[N][N];
#pragma GCC unroll 8
  for (int i = 0; i < N; i++)
#pragma GCC unroll 8
    for (int j = 0; j < N; j++) u[i][j] = *a.at(i, j);
#pragma GCC unroll 8
  for (int j = 0; j < N; j++) {
#pragma GCC unroll 8
    for (int i = j + 1; i < N; i++) {
      up[i][j] = abs(u[i][j]) > abs(u[j][j]);
#pragma GCC unroll 8
      for (int c = j; c < N; c++) exchange(up[i][j], u[j][c], u[i][c]);
    }
    by[j] = reciprocal<R, 1>({u[j][j]}).re;
    *inverse.at(j, 0) = by[j];
#pragma GCC unroll 8
    for (int i = j + 1; i < N; i++) {
      u[i][j] *= by[j];
#pragma GCC unroll 8
      for (int c = j + 1; c < N; c++) u[i][c] = fma(-u[i][j], u[j][c], u[i][c]);
    }
  }
  for (int64_t c = 0; c < columns; c++) {
    Vec<R> y[N];
#pragma GCC unroll 8
    for (int i = 0; i < N; i++) y[i] = *x.at(i, c);
#pragma GCC unroll 8
    for (int j = 0; j < N; j++) {
#pragma GCC unroll 8
      for (int i = j + 1; i < N; i++) exchange(up[i][j], y[j], y[i]);
#pragma GCC unroll 8
      for (int i = j + 1; i < N; i++) y[i] = fma(-u[i][j], y[j], y[i]);
    }
    solve_upper_fixed<R, N, false>(u, by, y, x.from(0, c));
  }
}

// body(constant n) if there is code for n; whether there was
template <int P, class Body>
LAPWING_INLINE bool by_order(int64_t n, const Body& body) {
  if constexpr (LAPWING_FIXED >= 8 && P == 1) {
    switch (n) {
      case 2: return body(std::integral_constant<int, 2>()), true;
      case 3: return body(std::integral_constant<int, 3>()), true;
      case 4: return body(std::integral_constant<int, 4>()), true;
      case 5: return body(std::integral_constant<int, 5>()), true;
      case 6: return body(std::integral_constant<int, 6>()), true;
      case 7: return body(std::integral_constant<int, 7>()), true;
      case 8: return body(std::integral_constant<int, 8>()), true;
    }
  }
  return false;
}

// ---- one vector of matrices -----------------------------------------------------------------------------

// The frame from matrix `first` on, `count` matrices of it, and memory for them.
template <class R, int P>
struct Group {
  const Frame& frame;
  int64_t first, count;
  Vec<R>* memory = nullptr;

  bool has(Flag flag) const { return frame.flags & flag; }
  R* data(int place, int64_t size) const { return static_cast<R*>(frame.buffer[place]) + first * size * P; }
  int32_t* integers(int place, int64_t size) const { return static_cast<int32_t*>(frame.buffer[place]) + first * size; }

  Places<const R> from(int place, int64_t size) const { return {data(place, size), size * P, count}; }
  // Lines that the next group will write are on their way meanwhile: lanes side by side are no stream that the processor
  // would see by itself. For what is read it gains nothing.
  Places<R> to(int place, int64_t size) const {
    const int64_t bytes = LANES<R> * size * P * int64_t(sizeof(R));
    const char* next = reinterpret_cast<const char*>(data(place, size)) + bytes;
    for (int64_t i = 0; i < bytes && bytes <= FETCHED; i += 64) __builtin_prefetch(next + i, 1);
    return {data(place, size), size * P, count};
  }

  static int64_t vectors(int64_t rows, int64_t columns) { return rows * stride_for<R>(columns * P); }
  View<R, P> matrix(int64_t rows, int64_t columns) {
    const View<R, P> view = {memory, stride_for<R>(columns * P), P};
    memory += vectors(rows, columns);
    return view;
  }
  View<R, P> column(int64_t n) {
    const View<R, P> view = {memory, P, P};
    memory += n * P;
    return view;
  }
  void begin(int64_t size) { memory = static_cast<Vec<R>*>(scratch(size * sizeof(Vec<R>))); }
};

// The most right-hand sides in lanes at a time: all, or nearly equal pieces that begin where a vector of memory may.
inline int64_t widest(int64_t k) { return k <= SOLVE_COLUMNS ? k : SOLVE_COLUMNS + LAPWING_VECTOR / 4; }

// x at place `out` <- what body(b, columns, first) makes of columns `first` on of b at place `in`, by pieces; body returns
// where it is.
template <class R, int P, class Body>
LAPWING_INLINE void solve_columns(Group<R, P>& group, int in, int out, const Body& body) {
  const int64_t n = group.frame.size[1], k = group.frame.size[2], pieces = (k + SOLVE_COLUMNS - 1) / SOLVE_COLUMNS;
  const auto begin = [&](int64_t i) { return i == pieces ? k : k * i / pieces / LANES<R> * LANES<R>; };
  Vec<R>* const memory = group.memory;
  for (int64_t i = 0; i < pieces; i++) {
    const int64_t first = begin(i), columns = begin(i + 1) - first;
    group.memory = memory;
    const View<R, P> b = group.matrix(n, columns);
    Places<const R> from = group.from(in, n * k);
    Places<R> to = group.to(out, n * k);
    for (int m = 0; m < LANES<R>; m++) from.p[m] += first * P, to.p[m] += first * P;
    read<R>(b.x, from, n, columns * P, k * P);
    const View<R, P> x = body(b, columns, first);
    write<R>(x.x, to, n, columns * P, k * P);
  }
}

// Row rows[i] of x becomes row i of the result, lane by lane; BACK: the other way round.
template <class R, int P, bool BACK>
__attribute__((noinline)) View<R, P> permute(const View<R, P>& x, const Mask<R>* rows, const View<R, P>& to, int64_t n,
                                             int64_t columns) {
  constexpr int W = LANES<R>;
  for (int64_t i = 0; i < n; i++)
    for (int m = 0; m < W; m++) {
      const int64_t other = rows[i][m];
      const R* read = reinterpret_cast<const R*>(x.at(BACK ? i : other, 0)) + m;
      R* written = reinterpret_cast<R*>(to.at(BACK ? other : i, 0)) + m;
      for (int64_t c = 0; c < columns * P; c++) written[c * W] = read[c * W];
    }
  return to;
}

template <class R, int P>
void fill_nan_at(const Group<R, P>& group, int place, int64_t size, int64_t m) {
  fill_nan(group.data(place, size) + m * size * P, size * P);
}

// Lanes whose answer is made once more by division, since one over a pivot is too large a number.
template <class R, int P>
struct Mending {
  int32_t place[LANES<R>];  // of a pivot that is none, 0 if all are; -1: not mended
  bool found = false;

  LAPWING_INLINE void look(const Group<R, P>& group, const View<R, P>& inverse, const View<R, P>& x, int64_t columns,
                           int64_t first) {
    if (__builtin_expect(any(~good_pivots<R, P>(inverse, group.frame.size[1])), 0)) mend(group, inverse, x, columns, first);
  }
  // Idle lanes too: they write where the last matrix does.
  __attribute__((noinline)) void mend(const Group<R, P>& group, const View<R, P>& inverse, const View<R, P>& x,
                                      int64_t columns, int64_t first) {
    constexpr R LARGEST = std::numeric_limits<R>::max();
    constexpr int64_t W = LANES<R>;
    for (int64_t m = 0; m < W; m++) {
      const int32_t bad = first_bad_pivot<R, P>(inverse, group.frame.size[1], m);
      const Vec<R>* by = bad ? inverse.at(bad - 1, 0) : nullptr;
      place[m] = -1;
      if (!bad || !(by[0][m] > LARGEST || by[0][m] < -LARGEST || by[P - 1][m] > LARGEST || by[P - 1][m] < -LARGEST)) continue;
      const Spread<R> to = {reinterpret_cast<R*>(x.x) + m, x.down * W, x.right * W, W};
      place[m] = solve_carefully<R>(group.frame, group.first + std::min(m, group.count - 1), first, columns, to);
      found = true;
    }
  }
  // What judge() is to see.
  LAPWING_INLINE void settle(const View<R, P>& inverse, int64_t n) const {
    if (__builtin_expect(!found, 1)) return;
    for (int64_t m = 0; m < LANES<R>; m++)
      for (int64_t i = 0; i < n && place[m] >= 0; i++) {
        inverse.at(i, 0)[0][m] = R(place[m] != i + 1);
        if (P == 2) inverse.at(i, 0)[P - 1][m] = 0;
      }
  }
};

// solve_columns() with `inverse` mended, and then judged; info may be null. body(b, columns) returns where x is.
template <class R, int P, class Body>
LAPWING_INLINE void solve_mended(Group<R, P>& group, int in, int out, const View<R, P>& inverse, int32_t* info,
                                 const Body& body) {
  const int64_t n = group.frame.size[1], k = group.frame.size[2];
  Mending<R, P> mending;
  solve_columns<R, P>(group, in, out, [&](const View<R, P>& b, int64_t columns, int64_t first) {
    const View<R, P> x = body(b, columns);
    mending.look(group, inverse, x, columns, first);
    return x;
  });
  mending.settle(inverse, n);
  judge<R, P>(inverse, n, info, group.count, [&](int64_t m) { fill_nan_at(group, out, n * k, m); });
}

// The triangle of a at place 0 as a lower one; U = L'^T, L' being read
template <class R, int P>
LAPWING_INLINE Triangle<R, P> read_triangle(const Group<R, P>& group, int place, const View<R, P>& a, const View<R, P>& inverse,
                                            int64_t n) {
  read<R>(a.x, group.from(place, n * n), n, n * P, n * P, group.has(UPPER) ? Part::UPPER : Part::LOWER);
  return {a, inverse, n, !group.has(UPPER), false};
}

template <class R, int P>
LAPWING_INLINE void invert_diagonal(const View<R, P>& a, const View<R, P>& inverse, int64_t n) {
  for (int64_t i = 0; i < n; i++) inverse.set(i, 0, reciprocal<R, P>(a.get(i, i)));
}

// The positive definite matrix at place 0, where its Cholesky factor is to be. The upper triangle is the lower one of
// conj(A).
template <class R, int P>
LAPWING_INLINE Triangle<R, P> read_positive(const Group<R, P>& group, const View<R, P>& a, const View<R, P>& inverse,
                                            int64_t n) {
  const Triangle<R, P> named = read_triangle<R, P>(group, 0, a, inverse, n);
  return {named.lower ? a : a.turned(), inverse, n, true, !named.lower};
}

template <class R, int P>
void solve_positive(Group<R, P> group) {
  const int64_t n = group.frame.size[1], k = group.frame.size[2];
  group.begin(group.vectors(n, n) + n * P + n * (widest(k) + 1) * P);
  const View<R, P> a = group.matrix(n, n), inverse = group.column(n);
  const Triangle<R, P> l = read_positive<R, P>(group, a, inverse, n), adjoint = l.adjoint();
  bool factored = false;
  solve_columns<R, P>(group, 1, 2, [&](const View<R, P>& x, int64_t columns, int64_t) {
    if constexpr (P == 1)
      if (by_order<P>(n, [&](auto order) { solve_positive_fixed<R, decltype(order)::value>(l.t, inverse, x, columns); }))
        return x;
    if (!factored) factor_positive<R, P>(l.t, inverse, n);
    factored = true;
    l.solve(x, columns);
    adjoint.solve(x, columns);
    return x;
  });
  judge<R, P>(inverse, n, group.integers(3, 1), group.count, [&](int64_t m) { fill_nan_at(group, 2, n * k, m); });
}

template <class R, int P>
void solve_general(Group<R, P> group) {
  const int64_t n = group.frame.size[1], k = group.frame.size[2];
  group.begin(group.vectors(n, n) + n * P + n + 2 * n * (widest(k) + 1) * P);
  const View<R, P> a = group.matrix(n, n), inverse = group.column(n), none = {};
  Mask<R>* rows = reinterpret_cast<Mask<R>*>(group.memory);
  group.memory += n;
  read<R>(a.x, group.from(0, n * n), n, n * P, n * P);
  const Triangle<R, P> l = {a, none, n}, u = {a, inverse, n, false};
  bool factored = false;
  solve_mended<R, P>(group, 1, 2, inverse, group.integers(3, 1), [&](const View<R, P>& b, int64_t columns) {
    if constexpr (P == 1)
      if (by_order<P>(n, [&](auto order) { solve_general_fixed<R, decltype(order)::value>(a, inverse, b, columns); })) return b;
    if (!factored) factor_general<R, P>(a, inverse, rows, n);
    factored = true;
    const View<R, P> x = permute<R, P, false>(b, rows, group.matrix(n, columns), n, columns);
    l.solve(x, columns);
    u.solve(x, columns);
    return x;
  });
}

// A^-1 = W^H W, W = L^-1. Solving with L^H instead would not be as accurate: only one triangle of the solution is kept.
template <class R, int P>
__attribute__((noinline)) void invert_positive(const Triangle<R, P>& l, const View<R, P>& w, int64_t n) {
  constexpr int C = TILE_COLUMNS<P>;
  const View<R, P> none = {};
  factor_positive<R, P>(l.t, l.inverse, n);
  for (int64_t i = 0; i < n; i++)
    for (int64_t j = 0; j < n; j++) w.set(i, j, real<R, P>(broadcast(R(i == j))));
  for (int64_t c = 0; c < n; c += C)
    sweep<R, P, false>(l.t.from(c, c), w.from(c, c), w.from(c, c), l.inverse.from(c, 0), n - c, std::min<int64_t>(C, n - c),
                       SOLVE_ROWS);
  // -W^H W, by rows
  for (int64_t r = 0; r < n; r += C) {
    const int64_t rows = std::min<int64_t>(C, n - r);
    for (int64_t i = r; i < r + rows; i++)
      for (int64_t j = 0; j < r + rows; j++) l.t.set(i, j, real<R, P>(Vec<R>{}));
    sweep<R, P, P == 2>(w.from(r, r).turned(), w.from(r, 0), l.t.from(r, 0), none, rows, r + rows, n - r);
  }
  for (int64_t i = 0; i < n; i++) {
    for (int64_t j = 0; j < i; j++) {
      const Element<R, P> x = negative<R, P>(l.t.get(i, j));
      l.t.set(i, j, x);
      l.t.set(j, i, conj<R, P>(x));
    }
    l.t.set(i, i, real<R, P>(-l.t.get(i, i).re));
  }
}

template <class R, int P>
void inverse_positive(Group<R, P> group) {
  const int64_t n = group.frame.size[1];
  group.begin(2 * group.vectors(n, n) + n * P);
  const View<R, P> a = group.matrix(n, n), w = group.matrix(n, n), inverse = group.column(n);
  const Triangle<R, P> l = read_positive<R, P>(group, a, inverse, n);
  bool done = false;
  if constexpr (P == 1)
    done = by_order<P>(n, [&](auto order) { inverse_positive_fixed<R, decltype(order)::value>(l.t, inverse); });
  if (!done) invert_positive<R, P>(l, w, n);
  write<R>(a.x, group.to(1, n * n), n, n * P, n * P);
  judge<R, P>(inverse, n, group.integers(2, 1), group.count, [&](int64_t m) { fill_nan_at(group, 1, n * n, m); });
}

template <class R, int P>
void inverse_general(Group<R, P> group) {
  const int64_t n = group.frame.size[1];
  group.begin(2 * group.vectors(n, n) + n * P + n);
  const View<R, P> a = group.matrix(n, n), x = group.matrix(n, n), inverse = group.column(n), none = {};
  Mask<R>* rows = reinterpret_cast<Mask<R>*>(group.memory);
  read<R>(a.x, group.from(0, n * n), n, n * P, n * P);
  bool done = false;
  if constexpr (P == 1) {
    for (int64_t i = 0; i < n; i++)
      for (int64_t j = 0; j < n; j++) *x.at(i, j) = broadcast(R(i == j));
    done = by_order<P>(n, [&](auto order) { solve_general_fixed<R, decltype(order)::value>(a, inverse, x, n); });
  }
  if (!done) {
    factor_general<R, P>(a, inverse, rows, n);
    for (int64_t i = 0; i < n; i++)
      for (int64_t j = 0; j < n; j++) x.set(i, j, real<R, P>(rows[i] == broadcast_int<R>(j) ? broadcast(R(1)) : Vec<R>{}));
    Triangle<R, P>{a, none, n}.solve(x, n);
    Triangle<R, P>{a, inverse, n, false}.solve(x, n);
  }
  Mending<R, P> mending;
  mending.look(group, inverse, x, n, 0);
  mending.settle(inverse, n);
  write<R>(x.x, group.to(1, n * n), n, n * P, n * P);
  judge<R, P>(inverse, n, group.integers(2, 1), group.count, [&](int64_t m) { fill_nan_at(group, 1, n * n, m); });
}

template <class R, int P>
void lu(Group<R, P> group) {
  const int64_t n = group.frame.size[1];
  group.begin(group.vectors(n, n) + n * P + n);
  const View<R, P> a = group.matrix(n, n), inverse = group.column(n);
  Mask<R>* rows = reinterpret_cast<Mask<R>*>(group.memory);
  read<R>(a.x, group.from(0, n * n), n, n * P, n * P);
  factor_general<R, P>(a, inverse, rows, n);
  write<R>(a.x, group.to(1, n * n), n, n * P, n * P);
  int32_t* out = group.integers(2, n);
  for (int64_t m = 0; m < group.count; m++)
    for (int64_t i = 0; i < n; i++) out[m * n + i] = int32_t(rows[i][m]);
  const View<R, P> pivots = {a.x, a.down + a.right, 0};
  judge<R, P>(pivots, n, group.integers(3, 1), group.count, [&](int64_t m) {
    fill_nan_at(group, 1, n * n, m);
    for (int64_t i = 0; i < n; i++) out[m * n + i] = int32_t(i);
  });
}

template <class R, int P>
void lu_solve(Group<R, P> group) {
  const int64_t n = group.frame.size[1], k = group.frame.size[2];
  group.begin(group.vectors(n, n) + n * P + n + 2 * n * (widest(k) + 1) * P);
  const View<R, P> a = group.matrix(n, n), inverse = group.column(n), none = {};
  Mask<R>* rows = reinterpret_cast<Mask<R>*>(group.memory);
  group.memory += n;
  read<R>(a.x, group.from(1, n * n), n, n * P, n * P);
  invert_diagonal<R, P>(a, inverse, n);
  const int32_t* order = group.integers(2, n);
  for (int64_t i = 0; i < n; i++)
    for (int64_t m = 0; m < LANES<R>; m++) {
      const int64_t row = order[std::min(m, group.count - 1) * n + i];
      const bool inside = row >= 0 && row < n;
      rows[i][m] = inside ? row : 0;
      if (!inside) inverse.x[0][m] = std::numeric_limits<R>::quiet_NaN();  // no permutation: no answer
    }
  const Triangle<R, P> l = {a, none, n}, u = {a, inverse, n, false}, l_adjoint = l.adjoint(), u_adjoint = u.adjoint();
  solve_mended<R, P>(group, 3, 4, inverse, nullptr, [&](const View<R, P>& b, int64_t columns) {
    const View<R, P> x = group.matrix(n, columns);
    if (group.has(ADJOINT)) {  // A^H = U^H L^H P
      u_adjoint.solve(b, columns);
      l_adjoint.solve(b, columns);
      permute<R, P, true>(b, rows, x, n, columns);
    } else {
      permute<R, P, false>(b, rows, x, n, columns);
      l.solve(x, columns);
      u.solve(x, columns);
    }
    return x;
  });
}

template <class R, int P>
void cholesky_solve(Group<R, P> group) {
  const int64_t n = group.frame.size[1], k = group.frame.size[2];
  group.begin(group.vectors(n, n) + n * P + n * (widest(k) + 1) * P);
  const View<R, P> a = group.matrix(n, n), inverse = group.column(n);
  const Triangle<R, P> named = read_triangle<R, P>(group, 1, a, inverse, n);
  invert_diagonal<R, P>(a, inverse, n);
  const Triangle<R, P> first = named.lower ? named : named.adjoint(), second = first.adjoint();
  solve_mended<R, P>(group, 2, 3, inverse, nullptr, [&](const View<R, P>& x, int64_t columns) {
    first.solve(x, columns);
    second.solve(x, columns);
    return x;
  });
}

// NaN or Inf in row i of a lower triangle, left of the diagonal, counts as a bad pivot there.
template <class R, int P>
__attribute__((noinline)) void mark_not_finite(const View<R, P>& lower, const View<R, P>& inverse, int64_t n) {
  for (int64_t i = 0; i < n; i++)
    for (int64_t j = 0; j < i; j++) *inverse.at(i, 0) += size_of<R, P>(lower.get(i, j)) * R(0);
}

template <class R, int P>
void triangular(Group<R, P> group) {
  const int64_t n = group.frame.size[1], k = group.frame.size[2];
  group.begin(group.vectors(n, n) + n * P + n * (widest(k) + 1) * P);
  const View<R, P> a = group.matrix(n, n), inverse = group.column(n), none = {};
  Triangle<R, P> t = read_triangle<R, P>(group, 0, a, inverse, n);
  if (group.has(UNIT)) {
    for (int64_t i = 0; i < n; i++) inverse.set(i, 0, real<R, P>(broadcast(R(1))));
    t.inverse = none;
  } else {
    invert_diagonal<R, P>(a, inverse, n);
  }
  const Triangle<R, P> solved = group.has(ADJOINT) ? t.adjoint() : t;
  Vec<R> sum = {};
  Mending<R, P> mending;
  solve_columns<R, P>(group, 1, 2, [&](const View<R, P>& x, int64_t columns, int64_t first) {
    solved.solve(x, columns);
    mending.look(group, inverse, x, columns, first);
    for (int64_t i = 0; i < n; i++) sum += size_of<R, P>(x.get(i, 0)) * R(0);
    return x;
  });
  mending.settle(inverse, n);
  // What is not finite in T makes x not finite, so that T need not be searched as long as x is.
  if (__builtin_expect(any(sum != Vec<R>{}), 0)) mark_not_finite<R, P>(t.lower ? a : a.turned(), inverse, n);
  judge<R, P>(inverse, n, group.integers(3, 1), group.count, [&](int64_t m) { fill_nan_at(group, 2, n * k, m); });
}

// The product of the pivots as mantissa times a power of two: no product of any length is too large or too small.
template <class R, int P>
struct Product {
  Element<R, P> mantissa;
  Mask<R> exponent;

  LAPWING_INLINE void normalise(Element<R, P>& x) {
    const PowerOfTwo<R> power(size_of<R, P>(x));
    scale<R, P>(x, power.up);
    exponent += power.exponent - PowerOfTwo<R>::TOP / 2;
  }
  LAPWING_INLINE void multiply(Element<R, P> x) {
    normalise(x);
    mantissa = product<R, P>(mantissa, x);
    normalise(mantissa);
  }
};

template <class R, int P>
void determinant(Group<R, P> group) {
  const int64_t n = group.frame.size[1];
  group.begin(group.vectors(n, n) + n * P + n);
  const View<R, P> a = group.matrix(n, n), inverse = group.column(n), pivots = {a.x, a.down + a.right, 0};
  const bool positive = group.has(POS);
  Mask<R> odd = {};
  if (positive) {
    factor_positive<R, P>(read_positive<R, P>(group, a, inverse, n).t, inverse, n);
  } else {
    read<R>(a.x, group.from(0, n * n), n, n * P, n * P);
    odd = factor_general<R, P>(a, inverse, reinterpret_cast<Mask<R>*>(group.memory), n);
  }
  Product<R, P> det = {real<R, P>(broadcast(R(1))), {}};
  for (int64_t i = 0; i < n; i++) det.multiply(pivots.get(i, 0));

  const Determinants<std::conditional_t<P == 2, std::complex<R>, R>> results(group.frame);
  for (int64_t m = 0; m < group.count; m++) {
    Pivots product;
    product.mantissa = double(det.mantissa.re[m]);
    if constexpr (P == 2) product.mantissa.imag(double(det.mantissa.im[m]));
    if (odd[m]) product.mantissa = -product.mantissa;
    product.exponent = int64_t(det.exponent[m]);
    if (positive) product.square();
    results.put(group.first + m, product);
  }
  int32_t* info = &results.info(group.first);
  judge<R, P>(positive ? inverse : pivots, n, info, group.count, [&](int64_t m) {
    const bool singular = size_of<R, P>(det.mantissa)[m] == 0;  // and no NaN in it
    if (singular && !positive) return (void)(info[m] = 0);
    results.fail(group.first + m);
  });
}

// A <- R, and below it the vectors of the reflections whose product is Q. A tile of columns takes all reflections before it
// while it is in the first-level cache.
template <class R, int P>
LAPWING_INLINE void reduce(const View<R, P>& a, const View<R, P>& taus, int64_t m, int64_t n) {
  constexpr int64_t C = REFLECTED<P>;
  const int64_t steps = std::min(m, n);
  for (int64_t j = 0; j < n; j += C) {
    const int64_t end = std::min(j + C, n);
    for (int64_t k = 0; k < std::min(end, steps); k++) {
      if (k >= j) make_reflection<R, P>(a.from(k, k), m - k, taus.from(k, 0));
      const int64_t first = std::max(j, k + 1);
      reflect<R, P>(a.from(k, k), conj<R, P>(taus.get(k, 0)), a.from(k, first), m - k, end - first);
    }
  }
}

template <class R, int P>
LAPWING_INLINE void clear_below(const View<R, P>& a, int64_t rows, int64_t n) {
  for (int64_t i = 0; i < rows; i++)
    for (int64_t j = 0; j < std::min(i, n); j++) a.set(i, j, real<R, P>(Vec<R>{}));
}

// QR_R and QR_RAW
template <class R, int P>
void qr_alone(Group<R, P> group) {
  const int64_t m = group.frame.size[1], n = group.frame.size[2], steps = std::min(m, n);
  const bool raw = group.frame.op == QR_RAW;
  group.begin(group.vectors(m, n) + (raw ? group.vectors(n, m) + group.vectors(1, steps) : 0) + steps * P);
  const View<R, P> a = group.matrix(m, n), taus = group.column(steps);
  read<R>(a.x, group.from(0, m * n), m, n * P, n * P);
  reduce<R, P>(a, taus, m, n);
  if (!raw) {
    clear_below<R, P>(a, steps, n);
    return write<R>(a.x, group.to(1, steps * n), steps, n * P, n * P);
  }
  const View<R, P> h = group.matrix(n, m), row = group.matrix(1, steps);
  for (int64_t i = 0; i < m; i++)
    for (int64_t j = 0; j < n; j++) h.set(j, i, a.get(i, j));
  for (int64_t j = 0; j < steps; j++) row.set(0, j, taus.get(j, 0));
  write<R>(h.x, group.to(1, n * m), n, m * P, m * P);
  write<R>(row.x, group.to(2, steps), 1, steps * P, steps * P);
}

// Whether the smallest singular value of R is certainly above rcond times the largest: see methods/lstsq.h. Squares that leave
// the range prove nothing.
template <class R, int P>
__attribute__((noinline)) Mask<R> full_rank(const Triangle<R, P>& r, const View<R, P>& z, double rcond) {
  Vec<R> norm = {}, first = {}, second = {};
  const auto add = [](Vec<R>& sum, const Element<R, P>& x) {
    sum = fma(x.re, x.re, sum);
    if constexpr (P == 2) sum = fma(x.im, x.im, sum);
  };
  for (int64_t i = 0; i < r.n; i++) {
    for (int64_t j = i; j < r.n; j++) add(norm, r.t.get(i, j));
    z.set(i, 0, real<R, P>(broadcast(R(rank_vector(i)))));
  }
  r.adjoint().solve(z, 1);
  for (int64_t i = 0; i < r.n; i++) add(first, z.get(i, 0));
  r.solve(z, 1);
  for (int64_t i = 0; i < r.n; i++) add(second, z.get(i, 0));
  const R limit = R(RANK_MARGIN * rcond);
  return sqrt(norm) * limit * sqrt(second) < sqrt(first);
}

// x <- R^-1 Q^H b, or for a wide matrix Q R^-H b with A^H = Q R
template <class R, int P>
void lstsq(Group<R, P> group) {
  const int64_t m = group.frame.size[1], n = group.frame.size[2], k = group.frame.size[3], steps = std::min(m, n);
  const bool tall = m >= n;
  group.begin(group.vectors(m, n) + group.vectors(m, k) + group.vectors(n, k) + 3 * steps * P);
  View<R, P> a = group.matrix(m, n), b = group.matrix(m, k), x = group.matrix(n, k);
  const View<R, P> taus = group.column(steps), inverse = group.column(steps), z = group.column(steps);
  read<R>(a.x, group.from(0, m * n), m, n * P, n * P);
  read<R>(b.x, group.from(1, m * k), m, k * P, k * P);
  if (!tall) {  // A^H in the memory of A
    if constexpr (P == 2)
      for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) a.set(i, j, conj<R, P>(a.get(i, j)));
    a = a.turned();
  }
  reduce<R, P>(a, taus, std::max(m, n), steps);
  invert_diagonal<R, P>(a, inverse, steps);
  const Triangle<R, P> r = {a, inverse, steps, false};
  // the inverse of a zero on the diagonal is zero too
  const Mask<R> proven = full_rank<R, P>(r, z, rcond_of(group.frame)) & good_pivots<R, P>(inverse, steps);

  if (tall) {
    for (int64_t i = 0; i < steps; i++)
      reflect<R, P>(a.from(i, i), conj<R, P>(taus.get(i, 0)), b.from(i, 0), m - i, k);
    r.solve(b, k);
    write<R>(b.x, group.to(2, n * k), n, k * P, k * P);
  } else {
    r.adjoint().solve(b, k);
    for (int64_t i = 0; i < n; i++)
      for (int64_t j = 0; j < k; j++) x.set(i, j, i < m ? b.get(i, j) : real<R, P>(Vec<R>{}));
    for (int64_t i = steps - 1; i >= 0; i--) reflect<R, P>(a.from(i, i), taus.get(i, 0), x.from(i, 0), n - i, k);
    write<R>(x.x, group.to(2, n * k), n, k * P, k * P);
  }
  R* residuals = static_cast<R*>(group.frame.buffer[3]) + group.first * k;
  for (int64_t j = 0; j < k; j++) {
    Vec<R> sum = {};
    for (int64_t i = n; i < m; i++) {
      const Element<R, P> left = b.get(i, j);
      sum = fma(left.re, left.re, sum);
      if constexpr (P == 2) sum = fma(left.im, left.im, sum);
    }
    for (int64_t lane = 0; lane < group.count; lane++) residuals[lane * k + j] = sum[lane];
  }
  int32_t *rank = group.integers(4, 1), *info = group.integers(5, 1);
  for (int64_t lane = 0; lane < group.count; lane++) rank[lane] = proven[lane] ? int32_t(steps) : UNPROVEN, info[lane] = 0;
}

template <class R, int P>
void qr(Group<R, P> group) {
  constexpr int64_t C = REFLECTED<P>;
  const int64_t m = group.frame.size[1], n = group.frame.size[2], c = group.frame.size[3], steps = std::min(m, n);
  group.begin(group.vectors(m, n) + group.vectors(m, c) + steps * P);
  const View<R, P> a = group.matrix(m, n), q = group.matrix(m, c), taus = group.column(steps);
  read<R>(a.x, group.from(0, m * n), m, n * P, n * P);
  reduce<R, P>(a, taus, m, n);
  // Q <- H(0) H(1) ... I, of whose first k columns H(k) changes nothing
  for (int64_t i = 0; i < m; i++)
    for (int64_t j = 0; j < c; j++) q.set(i, j, real<R, P>(broadcast(R(i == j))));
  for (int64_t j = 0; j < c; j += C) {
    const int64_t end = std::min(j + C, c);
    for (int64_t k = std::min(end, steps) - 1; k >= 0; k--) {
      const int64_t first = std::max(j, k);
      reflect<R, P>(a.from(k, k), taus.get(k, 0), q.from(k, first), m - k, end - first);
    }
  }
  write<R>(q.x, group.to(1, m * c), m, c * P, c * P);
  clear_below<R, P>(a, c, n);
  write<R>(a.x, group.to(2, c * n), c, n * P, n * P);
}

}  // namespace LAPWING_ISA
}  // namespace
}  // namespace lapwing
