// Systems, inverses, determinants and factors of one matrix of middle order, for one instruction set. Included once for each, after
// simd.h.
//
// R is the real scalar, P how many make an element: 1 real, 2 complex. The lanes are columns of one matrix. Nearly all the work is
// the product of sweep.h, whose sums stay in registers over the whole depth: blocks are updated by all blocks before them at once.
#include "cpu/lu_panel.h"

namespace lapwing {
namespace {
namespace LAPWING_ISA {

// x <- a, n x n, and rows of zeros up to a whole vector of them; false when it holds NaN or Inf
template <class R, int P>
LAPWING_INLINE bool read_matrix(const Lines<R, P>& x, const R* a, int64_t n) {
  constexpr int W = LANES<R>;
  const int64_t vectors = (n + W - 1) / W;
  Vec<R> sum = {};
  for (int64_t i = 0; i < n; i++) {
    read_line<R, P>(x, i, a + i * n * P, n);
    for (int64_t c = 0; c < vectors; c++) {
      const Element<R, P> y = x.get(i, c);
      sum = fma(y.re, Vec<R>{}, sum);
      if constexpr (P == 2) sum = fma(y.im, Vec<R>{}, sum);
    }
  }
  for (int64_t i = n; i < vectors * W; i++) clear_line<R, P>(x, i, vectors);
  return !any(sum != Vec<R>{});
}

// ---- P A = L U ---------------------------------------------------------------------------------------------------------

template <class R>
void exchange_lines(R* x, R* y, int64_t count) {
  for (int64_t i = 0; i < count; i += LANES<R>) {
    const Vec<R> kept = load(x + i);
    store(x + i, load(y + i));
    store(y + i, kept);
  }
}

// A, with rows of zeros up to a whole vector of them, <- L and U. order[i]: which row of A became row i. Returns whether the
// number of exchanges was odd. `memory` takes panel_room() reals.
template <class R, int P>
bool factor_lines(const Lines<R, P>& a, int64_t n, int32_t* order, R* memory) {
  constexpr int W = LANES<R>;
  const Scalars<R, P> none = {};
  const int64_t padded = (n + W - 1) / W * W;
  const Lines<R, P> p = take<R, P>(memory, PANEL<R>, n), l = take<R, P>(memory, STRIP, n);
  Mask<R>* open = reinterpret_cast<Mask<R>*>(memory);
  int32_t *row_at = reinterpret_cast<int32_t*>(memory + padded), *place_of = row_at + padded;
  bool odd = false;
  for (int64_t i = 0; i < n; i++) order[i] = int32_t(i);
  for (int64_t j = 0; j < n; j += PANEL<R>) {
    const int64_t width = std::min<int64_t>(PANEL<R>, n - j), whole = std::min<int64_t>(PANEL<R>, padded - j), rows = n - j;
    const Lines<R, P> x = a.from(0, j / W);
    if (j) {
      sweep<R, P, false>(a.scalars(), x, x, none, j, whole / W, SOLVE_ROWS);                 // U12 <- L11^-1 A12
      sweep<R, P, false>(a.scalars().from(j, 0), x, x.from(j, 0), none, rows, whole / W, j);  // A22 <- A22 - L21 U12
    }
    transpose_lines<R, P>(x.from(j, 0), p, padded - j, whole);
    int64_t pivots[PANEL<R>];
    const Panel<R, P> panel = {p, l, open, rows};
    panel.factor(width, pivots);
    transpose_lines<R, P>(p, x.from(j, 0), whole, padded - j);
    // The rows trade places, as in LAPACK: a pivot with the one that is where it belongs.
    for (int64_t i = 0; i < rows; i++) row_at[i] = place_of[i] = int32_t(i);
    for (int64_t c = 0; c < width; c++) {
      const int32_t place = place_of[pivots[c]], other = row_at[c];
      if (place == c) continue;
      odd = !odd;
      row_at[place] = other, place_of[other] = place;
      std::swap(order[j + c], order[j + place]);
      exchange_lines<R>(a.at(j + c, 0), a.at(j + place, 0), a.down);
    }
  }
  return odd;
}

// ---- one right-hand side -----------------------------------------------------------------------------------------------------

// x <- T^-1 x for a triangle whose rows, or columns, are contiguous: the lanes run along them. `T` is a Scalars whose elements are
// side by side (STEP reals apart), x has its imaginary parts `imag` behind.
template <class R, int P, int STEP>
struct Column {
  static constexpr int W = LANES<R>, G = LAPWING_VECTOR / 16, K = CHUNK<R>;
  static constexpr int AT_ONCE = std::min(W, LAPWING_REGISTERS / 4 / P);  // sums in registers
  typedef Scalar<R, P> T;

  Scalars<R, P> t;
  const R* inverse;  // of the diagonal, P reals for each; null: ones
  int64_t n, line;   // line: from a row, or column, to the next
  bool conjugate;
  R* x;
  int64_t imag;

  // W elements side by side
  template <int APART>
  static LAPWING_INLINE Element<R, P> load_elements(const R* p, int64_t to_imag, bool conjugate) {
    if constexpr (P == 1) {
      return {load(p)};
    } else {
      Element<R, P> e;
      if constexpr (APART == 2) {
        const Vec<R> low = load(p), high = load(p + W);
        const Mask<R> even = lane_numbers<R>() * 2;
        e = {__builtin_shuffle(low, high, even), __builtin_shuffle(low, high, even + 1)};
      } else {
        e = {load(p), load(p + to_imag)};
      }
      return conjugate ? conj<R, P>(e) : e;
    }
  }
  LAPWING_INLINE Element<R, P> row(const R* p) const { return load_elements<STEP>(p, t.imag, conjugate); }
  LAPWING_INLINE Element<R, P> at(int64_t i) const {
    if constexpr (P == 1)
      return {load(x + i)};
    else
      return {load(x + i), load(x + imag + i)};
  }
  LAPWING_INLINE void put_at(int64_t i, const Element<R, P>& e) const {
    store(x + i, e.re);
    if constexpr (P == 2) store(x + imag + i, e.im);
  }
  LAPWING_INLINE T scalar(int64_t i) const {
    if constexpr (P == 1)
      return x[i];
    else
      return {x[i], x[imag + i]};
  }

  // W vectors, and their way to the transpose
  struct Square {
    R part[P][W * W];
    LAPWING_INLINE void set(int64_t i, const Element<R, P>& e) {
      store(part[0] + i * W, e.re);
      if constexpr (P == 2) store(part[P - 1] + i * W, e.im);
    }
    LAPWING_INLINE Element<R, P> get(int64_t i) const {
      if constexpr (P == 1)
        return {load(part[0] + i * W)};
      else
        return {load(part[0] + i * W), load(part[P - 1] + i * W)};
    }
    LAPWING_INLINE void turn() {
      for (R* numbers : part) {
        const R* p[W];
        for (int i = 0; i < W; i++) p[i] = numbers + i * W;
        Vec<R> v[G][K];
        read_chunks<R, G>(v, p, 0);
#pragma GCC unroll 16
        for (int i = 0; i < W; i++) store(numbers + i * W, v[i / K][i % K]);
      }
    }
  };

  // The unknowns first .. first + W, given the columns of the triangle among them
  template <bool FORWARD>
  LAPWING_INLINE void solve_block(const Square& columns, int64_t first) const {
    Element<R, P> y = at(first), by = {};
    if (inverse) by = load_elements<P>(inverse + first * P, 0, conjugate), y = product<R, P>(y, by);
#pragma GCC unroll 16
    for (int step = 0; step < W; step++) {
      const int j = FORWARD ? step : W - 1 - step;
      const Mask<R> open = FORWARD ? lane_numbers<R>() > broadcast_int<R>(j) : lane_numbers<R>() < broadcast_int<R>(j);
      Element<R, P> column = columns.get(j), known = y;
      // what is not part of the triangle may be anything
      column.re = (Vec<R>)((Mask<R>)column.re & open);
      if constexpr (P == 2) column.im = (Vec<R>)((Mask<R>)column.im & open);
      if (inverse) column = product<R, P>(column, by);
      known.re = __builtin_shuffle(y.re, broadcast_int<R>(j));
      if constexpr (P == 2) known.im = __builtin_shuffle(y.im, broadcast_int<R>(j));
      subtract_product<R, P, false>(y, column, known);
    }
    put_at(first, y);
  }

  // Unknowns [first, last), fewer than a vector
  void solve_few(bool forward, int64_t first, int64_t last) const {
    for (int64_t step = first; step < last; step++) {
      const int64_t i = forward ? step : first + last - 1 - step;
      T sum = scalar(i);
      for (int64_t j = forward ? first : i + 1; j < (forward ? i : last); j++) sum -= times<R, P>(element(i, j), scalar(j));
      if (inverse) {
        const T by = P == 2 ? make_scalar(inverse[i * P], inverse[i * P + P - 1]) : make_scalar(inverse[i * P], 0);
        sum = times<R, P>(sum, conjugate ? conjugated(by) : by);
      }
      x[i] = std::real(sum);
      if constexpr (P == 2) x[imag + i] = std::imag(sum);
    }
  }
  static T make_scalar(R re, R im) {
    if constexpr (P == 2) return {re, im};
    else return (void)im, re;
  }
  T element(int64_t i, int64_t j) const {
    const T e = P == 2 ? make_scalar(*t.at(i, j), t.at(i, j)[t.imag]) : make_scalar(*t.at(i, j), 0);
    return conjugate ? conjugated(e) : e;
  }

  // sums(i) <- T(row + i, [begin, begin + length)) x, lane by lane; length is whole vectors
  template <int ROWS>
  LAPWING_INLINE void add_rows(const R* from, int64_t begin, int64_t length, Element<R, P> (&sum)[ROWS]) const {
#pragma GCC unroll 16
    for (int i = 0; i < ROWS; i++) sum[i] = real<R, P>(Vec<R>{});
    for (int64_t q = 0; q < length; q += W) {
      const Element<R, P> z = at(begin + q);
#pragma GCC unroll 16
      for (int i = 0; i < ROWS; i++) add_product<R, P>(sum[i], row(from + i * line + q * STEP), z);
    }
  }

  template <bool FORWARD>
  __attribute__((noinline)) void by_rows() const {
    const int64_t few = n % W;
    for (int64_t step = 0; step < n - few; step += W) {
      const int64_t r = FORWARD ? step : n - W - step, begin = FORWARD ? 0 : r + W;
      Square square;
      for (int i = 0; i < W; i += AT_ONCE) {
        Element<R, P> sum[AT_ONCE];
        add_rows<AT_ONCE>(t.at(r + i, begin), begin, step, sum);
#pragma GCC unroll 16
        for (int e = 0; e < AT_ONCE; e++) square.set(i + e, sum[e]);
      }
      square.turn();
      Element<R, P> y = at(r);
#pragma GCC unroll 16
      for (int i = 0; i < W; i++) {
        const Element<R, P> less = square.get(i);
        y.re -= less.re;
        if constexpr (P == 2) y.im -= less.im;
      }
      put_at(r, y);
      for (int i = 0; i < W; i++) square.set(i, row(t.at(r + i, r)));
      square.turn();
      solve_block<FORWARD>(square, r);
    }
    const int64_t first = FORWARD ? n - few : 0, begin = FORWARD ? 0 : few;
    for (int64_t i = first; i < first + few; i++) {
      Element<R, P> sum[1];
      add_rows<1>(t.at(i, begin), begin, n - few, sum);
      x[i] -= sum_lanes<R>(sum[0].re)[0];
      if constexpr (P == 2) x[imag + i] -= sum_lanes<R>(sum[0].im)[0];
    }
    solve_few(FORWARD, first, first + few);
  }

  // x[to .. to + length) loses COUNT columns, from `from` on, times the unknowns from number `first` on
  template <int COUNT>
  LAPWING_INLINE void subtract_columns(const R* from, int64_t first, int64_t to, int64_t length) const {
    Element<R, P> by[COUNT];
#pragma GCC unroll 16
    for (int j = 0; j < COUNT; j++) by[j] = spread<R, P>(-scalar(first + j));
    for (int64_t q = 0; q < length; q += W) {
      Element<R, P> sums[2] = {at(to + q), real<R, P>(Vec<R>{})};
#pragma GCC unroll 16
      for (int j = 0; j < COUNT; j++) add_product<R, P>(sums[j % 2], row(from + j * line + q * STEP), by[j]);
      sums[0].re += sums[1].re;
      if constexpr (P == 2) sums[0].im += sums[1].im;
      put_at(to + q, sums[0]);
    }
  }

  template <bool FORWARD>
  __attribute__((noinline)) void by_columns() const {
    const int64_t few = n % W, whole = n - few, first = FORWARD ? 0 : whole, rest = FORWARD ? few : 0;
    solve_few(FORWARD, first, first + few);
    for (int64_t j = first; j < first + few; j++) subtract_columns<1>(t.at(rest, j), j, rest, whole);
    for (int64_t step = 0; step < whole; step += W) {
      const int64_t r = FORWARD ? few + step : whole - W - step;
      Square square;
      for (int j = 0; j < W; j++) square.set(j, row(t.at(r, r + j)));
      solve_block<FORWARD>(square, r);
      const int64_t to = FORWARD ? r + W : 0;
      for (int j = 0; j < W; j += AT_ONCE) subtract_columns<AT_ONCE>(t.at(to, r + j), r + j, to, whole - W - step);
    }
  }

  void solve(bool lower, bool rows) const {
    if (rows)
      lower ? by_rows<true>() : by_rows<false>();
    else
      lower ? by_columns<true>() : by_columns<false>();
  }
};

// The numbers of one right-hand side
template <class R, int P>
struct Vector {
  R* x;
  int64_t imag;

  void solve(const Triangle<R, P, Scalars<R, P>>& factor) const {
    const Scalars<R, P>& t = factor.t;
    const int64_t step = std::min(std::abs(t.down), std::abs(t.right)), line = std::max(std::abs(t.down), std::abs(t.right));
    if (step == 1)
      Column<R, P, 1>{t, factor.inverse.x, factor.n, line, factor.conjugate, x, imag}.solve(factor.lower, t.right == step);
    else if constexpr (P == 2)
      Column<R, P, P>{t, factor.inverse.x, factor.n, line, factor.conjugate, x, imag}.solve(factor.lower, t.right == step);
  }
};

// ---- many triangles with one right-hand side each ------------------------------------------------------------------------

// x <- T^-1 x for M real triangles whose rows are contiguous, row by row: x[i] <- (x[i] - T[i][known] x[known]) / T[i][i]. One
// triangle alone waits for the sum of every row; of M, the sums are added up together and divided in one vector. A lane of it
// belongs to each triangle (`place`). The additions of a triangle do not depend on the others, nor on M.
//
// The unknowns come in blocks of W, the last in registers; the first block has the n % W that do not fill a vector, so that no row
// is read past its end.
template <class R, int M, bool FORWARD>
struct Together {
  static constexpr int W = LANES<R>;
  const R* t[M];
  const R* b[M];
  R* x[M];  // may be b
  int64_t n;
  bool unit;
  Vec<R>*right, *diagonal;  // n of each, by place

  static constexpr int place(int m) { return m * (W / M); }

  // a and b hold sums of several triangles, WIDE lanes for each: all of them, with half the lanes for each
  template <int WIDE>
  static LAPWING_INLINE Vec<R> merge(Vec<R> a, Vec<R> b) {
    constexpr int HALF = WIDE / 2, GROUPS = W / WIDE;
    Mask<R> low;
    for (int lane = 0; lane < W; lane++) low[lane] = lane / HALF % GROUPS * WIDE + lane % HALF + (lane / HALF < GROUPS ? 0 : W);
    return __builtin_shuffle(a, b, low) + __builtin_shuffle(a, b, low + HALF);
  }
  // the sum of the lanes of each, at its place
  template <int WIDE = W>
  static LAPWING_INLINE Vec<R> totals(Vec<R>* sum) {
    constexpr int COUNT = M * WIDE / W;  // vectors that are left
    if constexpr (WIDE == 1) {
      return sum[0];
    } else if constexpr (COUNT > 1) {
      for (int m = 0; m < COUNT / 2; m++) sum[m] = merge<WIDE>(sum[2 * m], sum[2 * m + 1]);
      return totals<WIDE / 2>(sum);
    } else {  // to every lane of a triangle
      const Mask<R> other = lane_numbers<R>() ^ broadcast_int<R>(WIDE / 2);
      sum[0] += __builtin_shuffle(sum[0], other);
      return totals<WIDE / 2>(sum);
    }
  }
  static LAPWING_INLINE Vec<R> only(Mask<R> lanes, Vec<R> v) { return (Vec<R>)((Mask<R>)v & lanes); }

  // Returns the lanes of the triangles that need another look: a pivot of zero, or something that is not finite.
  __attribute__((noinline)) Mask<R> solve() const {
    const int few = int(n % W);
    const Mask<R> lanes = lane_numbers<R>();
    const Mask<R> short_block = FORWARD ? lanes < broadcast_int<R>(few) : lanes >= broadcast_int<R>(W - few);
    for (int64_t i = 0; i < n; i++) {
      Vec<R> sides = {}, pivots = broadcast(R(1));
#pragma GCC unroll 8
      for (int m = 0; m < M; m++) {
        sides[place(m)] = b[m][i];
        if (!unit) pivots[place(m)] = t[m][i * (n + 1)];
      }
      right[i] = sides, diagonal[i] = pivots;
    }
    Vec<R> first[M] = {}, open[M] = {}, not_finite = {};  // the unknowns of the first block and of this one
    Mask<R> zero = {};
    const int64_t start = FORWARD ? few : n - few;  // where the whole blocks begin
    for (int64_t s = few ? -1 : 0; s < n / W; s++) {
      const int64_t column = s < 0 ? (FORWARD ? 0 : n - W) : (FORWARD ? start + s * W : start - (s + 1) * W);
      const int count = s < 0 ? few : W;
      for (int step = 0; step < count; step++) {
        const int lane = FORWARD ? step : W - 1 - step;
        const int64_t row = column + lane;
        const Mask<R> known = FORWARD ? lanes < broadcast_int<R>(lane) : lanes > broadcast_int<R>(lane);
        Vec<R> sum[M];
#pragma GCC unroll 8
        for (int m = 0; m < M; m++) sum[m] = only(known, load(t[m] + row * n + column)) * open[m];
        if (s >= 0 && few) {
          const int64_t at = row * n + (FORWARD ? 0 : n - W);
#pragma GCC unroll 8
          for (int m = 0; m < M; m++) sum[m] = fma(only(short_block, load(t[m] + at)), first[m], sum[m]);
        }
        for (int64_t c = 0; c < s; c++) {
          const int64_t at = FORWARD ? start + c * W : start - (c + 1) * W;
#pragma GCC unroll 8
          for (int m = 0; m < M; m++) sum[m] = fma(load(t[m] + row * n + at), load(x[m] + at), sum[m]);
        }
        const Vec<R> y = (right[row] - totals(sum)) / diagonal[row];
        zero |= diagonal[row] == Vec<R>{};
        not_finite = fma(y, Vec<R>{}, fma(diagonal[row], Vec<R>{}, not_finite));
        const Mask<R> here = lanes == broadcast_int<R>(lane);
#pragma GCC unroll 8
        for (int m = 0; m < M; m++) open[m] = here ? __builtin_shuffle(y, broadcast_int<R>(place(m))) : open[m];
      }
      for (int m = 0; m < M; m++) {
        if (s >= 0) {
          store(x[m] + column, open[m]);
        } else {
          first[m] = open[m];
          for (int i = 0; i < few; i++) x[m][start - (FORWARD ? few : 0) + i] = open[m][FORWARD ? i : W - few + i];
        }
        open[m] = Vec<R>{};
      }
    }
    return zero | (not_finite != Vec<R>{});
  }
};

// ---- one matrix of a frame -----------------------------------------------------------------------------------------------

template <class R, int P>
struct Middle {
  static constexpr int W = LANES<R>, PIECE = TILE_COLUMNS<P> * W;  // right-hand sides at a time
  typedef Scalar<R, P> T;
  typedef Triangle<R, P, Scalars<R, P>> Factor;

  const Frame& frame;
  int64_t m, n = frame.size[1], k = frame.size[2];

  bool has(uint32_t flag) const { return frame.flags & flag; }
  R* data(int place, int64_t size) const { return static_cast<R*>(frame.buffer[place]) + m * size * P; }
  T* elements(int place, int64_t size) const { return reinterpret_cast<T*>(data(place, size)); }
  int32_t* integers(int place, int64_t size) const { return static_cast<int32_t*>(frame.buffer[place]) + m * size; }
  static Scalars<R, P> in_memory(const R* a, int64_t n) { return {a, n * P, P, 1}; }

  // to <- one over the elements of the diagonal; 0, or the place of the first that is zero or not finite. *tiny: one of them is too
  // large a number.
  static int64_t invert_diagonal(const Scalars<R, P>& a, int64_t n, R* to, bool* tiny) {
    int64_t bad = 0;
    *tiny = false;
    for (int64_t i = 0; i < n; i++) {
      const R* p = a.at(i, i);
      const T pivot = P == 2 ? make(p[0], p[a.imag]) : make(p[0], 0), by = inverse_of<R, P>(pivot);
      to[i * P] = std::real(by);
      if constexpr (P == 2) to[i * P + 1] = std::imag(by);
      if (!bad && (pivot == T(0) || !all_finite(&pivot, 1))) bad = i + 1;
      if (!all_finite(&by, 1)) *tiny = true;
    }
    return bad;
  }
  static T make(R re, R im) {
    if constexpr (P == 2) return {re, im};
    else return (void)im, re;
  }

  static void apply(const Factor& factor, const Lines<R, P>& x, int64_t vectors) { factor.solve(x, vectors); }
  static void apply(const Factor& factor, const Vector<R, P>& x, int64_t) { x.solve(factor); }

  // x <- body's work on b, piece by piece; row order[i] of b is row i there. careful: by division instead, which reads the frame.
  template <class Body>
  void solve_columns(const R* b, R* out, const int32_t* order, R* memory, bool careful, const Body& body) const {
    // a few columns would leave most lanes empty; but with a small triangle each of them waits for its sums
    if (!careful && (k == 1 || (k <= W / 4 / P && n >= 64))) {
      const Vector<R, P> x = {memory, n};
      for (int64_t c = 0; c < k; c++) {
        for (int64_t i = 0; i < n; i++)
          for (int part = 0; part < P; part++) x.x[part * n + i] = b[((order ? order[i] : i) * k + c) * P + part];
        body(x, 1);
        for (int64_t i = 0; i < n; i++)
          for (int part = 0; part < P; part++) out[(i * k + c) * P + part] = x.x[part * n + i];
      }
      return;
    }
    for (int64_t first = 0; first < k; first += PIECE) {
      const int64_t columns = std::min<int64_t>(PIECE, k - first);
      R* room = memory;
      const Lines<R, P> x = take<R, P>(room, n, columns);
      if (careful) {
        solve_carefully<R>(frame, m, first, columns, {x.x, x.down, 1, x.imag});
      } else {
        for (int64_t i = 0; i < n; i++) read_line<R, P>(x, i, b + ((order ? order[i] : i) * k + first) * P, columns);
        body(x, (columns + W - 1) / W);
      }
      for (int64_t i = 0; i < n; i++) write_line<R, P>(x, i, out + (i * k + first) * P, columns);
    }
  }
  int64_t columns_room() const { return n * line_of<R, P>(std::min<int64_t>(k, PIECE)); }

  // The LU of the matrix at place 0, in memory of this thread; `extra` reals come behind.
  struct General {
    Lines<R, P> a;
    R *inverse, *rest;
    int32_t* order;
    bool odd = false, tiny = false;
    int64_t status = 0;  // the place of the first pivot that is zero or not finite
    bool finite = true;
  };
  General factor_general(int64_t extra) const {
    const int64_t padded = (n + W - 1) / W * W, line = line_of<R, P>(n);
    const int64_t integers = (n * int64_t(sizeof(int32_t)) + LAPWING_VECTOR - 1) / LAPWING_VECTOR * W;
    General general;
    R* memory = static_cast<R*>(scratch(sizeof(R) * size_t(padded * line + padded * P + integers + std::max(extra, panel_room<R, P>(n)))));
    general.a = take<R, P>(memory, padded, n);
    general.inverse = memory;
    general.order = reinterpret_cast<int32_t*>(memory + padded * P);
    general.rest = memory + padded * P + integers;
    if (!read_matrix<R, P>(general.a, data(0, n * n), n)) {
      general.finite = false;
      general.status = first_not_finite(elements(0, n * n), n, [](int64_t, int64_t) { return true; });
      return general;
    }
    general.odd = factor_lines<R, P>(general.a, n, general.order, general.rest);
    general.status = invert_diagonal(general.a.scalars(), n, general.inverse, &general.tiny);
    return general;
  }
  Factor lower_of(const General& general) const { return {general.a.scalars(), {}, n}; }
  Factor upper_of(const General& general) const {
    return {general.a.scalars(), {general.inverse, P, 0, 1}, n, false};
  }

  // The Cholesky factor of the matrix at place 0, as the operation of that name gives it
  struct Positive {
    R *l, *inverse, *rest;
    int32_t status = 0;
  };
  Positive factor_positive(int64_t extra) const {
    const int64_t size = n * n * P + 2 * W * P;
    R* memory = static_cast<R*>(scratch<1>(sizeof(R) * size_t(size / W * W + (n * P + W) / W * W + extra)));
    Positive positive = {memory, memory + size / W * W, memory + size / W * W + (n * P + W) / W * W, 0};
    cholesky_batch(elements(0, n * n), reinterpret_cast<T*>(positive.l), &positive.status, 1, n, has(UPPER));
    bool tiny;
    if (!positive.status) invert_diagonal(in_memory(positive.l, n), n, positive.inverse, &tiny);
    return positive;
  }
  Factor lower_of(const Positive& positive) const {
    const Factor named = {in_memory(positive.l, n), {positive.inverse, P, 0, 1}, n, !has(UPPER)};
    return named.lower ? named : named.adjoint();
  }

  void finish(int place, int64_t status, int out, int64_t size) const {
    *integers(place, 1) = int32_t(status);
    if (status) fill_nan(elements(out, size), size);
  }

  void solve() const {
    if (has(POS)) {
      const Positive positive = factor_positive(columns_room());
      finish(3, positive.status, 2, n * k);
      if (positive.status) return;
      const Factor l = lower_of(positive), adjoint = l.adjoint();
      return solve_columns(data(1, n * k), data(2, n * k), nullptr, positive.rest, false, [&](const auto& x, int64_t vectors) {
        apply(l, x, vectors);
        apply(adjoint, x, vectors);
      });
    }
    const General general = factor_general(columns_room());
    finish(3, general.status, 2, n * k);
    if (general.status) return;
    const Factor l = lower_of(general), u = upper_of(general);
    solve_columns(data(1, n * k), data(2, n * k), general.order, general.rest, general.tiny, [&](const auto& x, int64_t vectors) {
      apply(l, x, vectors);
      apply(u, x, vectors);
    });
  }

  // X <- T^-1 for a lower triangle, nothing above the diagonal being touched
  static void invert_lower(const Factor& t, const Lines<R, P>& x, int64_t n) {
    const int64_t vectors = (n + W - 1) / W;
    for (int64_t i = 0; i < n; i++) {
      clear_line<R, P>(x, i, vectors);
      x.x[i * x.down + i] = 1;
    }
    constexpr int C = TILE_COLUMNS<P>;
    for (int64_t c = 0; c < vectors; c += C) {
      const int64_t first = c * W, columns = std::min<int64_t>(C, vectors - c);
      const Lines<R, P> from = x.from(first, c);
      const Scalars<R, P> inverse = t.inverse.x ? t.inverse.from(first, 0) : t.inverse;
      if (P == 2 && t.conjugate)
        sweep<R, P, P == 2>(t.t.from(first, first), from, from, inverse, n - first, columns, SOLVE_ROWS);
      else
        sweep<R, P, false>(t.t.from(first, first), from, from, inverse, n - first, columns, SOLVE_ROWS);
    }
  }

  void invert() const {
    const int64_t vectors = (n + W - 1) / W;
    R* out = data(1, n * n);
    if (!has(POS)) {
      const General general = factor_general(n * line_of<R, P>(n));
      finish(2, general.status, 1, n * n);
      if (general.status) return;
      R* room = general.rest;
      const Lines<R, P> x = take<R, P>(room, n, n);
      if (general.tiny) {
        solve_carefully<R>(frame, m, 0, n, {x.x, x.down, 1, x.imag});
        for (int64_t i = 0; i < n; i++) write_line<R, P>(x, i, out + i * n * P, n);
        return;
      }
      invert_lower(lower_of(general), x, n);
      upper_of(general).solve(x, vectors);
      for (int64_t i = 0; i < n; i++) {  // A^-1 = U^-1 L^-1 P
        const R* row = x.at(i, 0);
        for (int64_t j = 0; j < n; j++) {
          R* to = out + (i * n + general.order[j]) * P;
          to[0] = row[j];
          if constexpr (P == 2) to[1] = row[x.imag + j];
        }
      }
      return;
    }
    // A^-1 = W^H W, W = L^-1. Solving with L^H instead would not be as accurate: only one triangle of the solution is kept.
    const Positive positive = factor_positive(2 * n * line_of<R, P>(n));
    finish(2, positive.status, 1, n * n);
    if (positive.status) return;
    R* room = positive.rest;
    const Lines<R, P> w = take<R, P>(room, n, n), x = take<R, P>(room, n, n);
    invert_lower(lower_of(positive), w, n);
    constexpr int BLOCK = PANEL<R>;
    for (int64_t r = 0; r < n; r += BLOCK) {  // rows r on of -W^H W, up to their diagonal
      const int64_t rows = std::min<int64_t>(BLOCK, n - r), columns = (r + rows + W - 1) / W;
      for (int64_t i = r; i < r + rows; i++) clear_line<R, P>(x, i, columns);
      sweep<R, P, P == 2>(w.scalars().from(r, r).turned(), w.from(r, 0), x.from(r, 0), {}, rows, columns, n - r);
    }
    T* to = reinterpret_cast<T*>(out);
    for (int64_t i = 0; i < n; i++) {
      for (int64_t j = 0; j < i; j++) {
        to[i * n + j] = -scalar_at<R, P>(x, i, j);
        to[j * n + i] = conjugated(to[i * n + j]);
      }
      to[i * n + i] = -x.x[i * x.down + i];
    }
  }

  void lu() const {
    const General general = factor_general(0);
    int32_t* rows = integers(2, n);
    finish(3, general.status, 1, n * n);
    if (general.status) {
      for (int64_t i = 0; i < n; i++) rows[i] = int32_t(i);
      return;
    }
    for (int64_t i = 0; i < n; i++) write_line<R, P>(general.a, i, data(1, n * n) + i * n * P, n);
    std::copy_n(general.order, n, rows);
  }

  void determinant() const {
    const Determinants<T> results(frame);
    const General general = has(POS) ? General{} : factor_general(0);
    const Positive positive = has(POS) ? factor_positive(0) : Positive{};
    const Scalars<R, P> pivots = has(POS) ? in_memory(positive.l, n) : general.a.scalars();
    int64_t status = has(POS) ? positive.status : general.status;
    if (status && !has(POS) && general.finite) {  // the determinant may be zero
      status = 0;
      for (int64_t i = 0; i < n && !status; i++) {
        const T pivot = scalar_at<R, P>(general.a, i, i);
        if (!all_finite(&pivot, 1)) status = i + 1;
      }
    }
    results.info(m) = int32_t(status);
    if (status) return results.fail(m);
    Pivots product;
    for (int64_t i = 0; i < n; i++) {
      const R* p = pivots.at(i, i);
      product.multiply({double(p[0]), P == 2 ? double(p[pivots.imag]) : 0.0});
    }
    if (general.odd) product.mantissa = -product.mantissa;
    if (has(POS)) product.square();
    results.put(m, product);
  }

  // Solves with a triangle in the caller's memory
  Factor triangle_at(const R* a, R* inverse, bool upper, bool unit) const {
    return {in_memory(a, n), {unit ? nullptr : inverse, P, 0, 1}, n, !upper};
  }
  R* room_for_columns(R** inverse) const {
    *inverse = static_cast<R*>(scratch(sizeof(R) * size_t((n * P + W) / W * W + columns_room())));
    return *inverse + (n * P + W) / W * W;
  }

  void triangular() const {
    const bool upper = has(UPPER), unit = has(UNIT);
    const R* a = data(0, n * n);
    R *inverse, *room = room_for_columns(&inverse), *x = data(2, n * k);
    bool tiny = false;
    int64_t status = unit ? 0 : invert_diagonal(in_memory(a, n), n, inverse, &tiny);
    if (!status) {
      const Factor named = triangle_at(a, inverse, upper, unit), factor = has(ADJOINT) ? named.adjoint() : named;
      solve_columns(data(1, n * k), x, nullptr, room, tiny, [&](const auto& y, int64_t vectors) { apply(factor, y, vectors); });
      // what is not finite in T makes x not finite, so that T need not be searched as long as x is
      const T* whole = elements(0, n * n);
      if (!all_finite(elements(2, n * k), n * k)) {
        const auto reads = [&](int64_t i, int64_t j) { return (upper ? j >= i : j <= i) && !(unit && i == j); };
        bool finite = true;
        for (int64_t i = 0; i < n && finite; i++)
          for (int64_t j = 0; j < n && finite; j++) finite = !reads(i, j) || all_finite(whole + i * n + j, 1);
        if (!finite) status = first_not_finite(whole, n, reads);
      }
    }
    finish(3, status, 2, n * k);
  }

  void solve_by_lu() const {
    const R* a = data(1, n * n);
    const int32_t* rows = integers(2, n);
    R *inverse, *room = room_for_columns(&inverse), *x = data(4, n * k);
    bool tiny = false;
    if (invert_diagonal(in_memory(a, n), n, inverse, &tiny) ||
        !std::all_of(rows, rows + n, [&](int32_t row) { return row >= 0 && row < n; }))
      return fill_nan(x, n * k * P);
    const Factor l = triangle_at(a, nullptr, false, true), u = triangle_at(a, inverse, true, false);
    if (!has(ADJOINT))
      return solve_columns(data(3, n * k), x, rows, room, tiny, [&](const auto& y, int64_t vectors) {
        apply(l, y, vectors);
        apply(u, y, vectors);
      });
    // A^H = U^H L^H P: the rows are exchanged behind the solution
    const Factor first = u.adjoint(), second = l.adjoint();
    const int64_t pieces = (k + PIECE - 1) / PIECE;
    for (int64_t piece = 0; piece < pieces; piece++) {
      const int64_t begin = piece * PIECE, columns = std::min<int64_t>(PIECE, k - begin);
      R* memory = room;
      const Lines<R, P> y = take<R, P>(memory, n, columns);
      if (tiny) {
        solve_carefully<R>(frame, m, begin, columns, {y.x, y.down, 1, y.imag});
      } else {
        for (int64_t i = 0; i < n; i++) read_line<R, P>(y, i, data(3, n * k) + (i * k + begin) * P, columns);
        first.solve(y, (columns + W - 1) / W);
        second.solve(y, (columns + W - 1) / W);
      }
      for (int64_t i = 0; i < n; i++) write_line<R, P>(y, i, x + ((tiny ? i : rows[i]) * k + begin) * P, columns);
    }
  }

  void solve_by_cholesky() const {
    const R* a = data(1, n * n);
    R *inverse, *room = room_for_columns(&inverse), *x = data(3, n * k);
    bool tiny = false;
    if (invert_diagonal(in_memory(a, n), n, inverse, &tiny)) return fill_nan(x, n * k * P);
    const Factor named = triangle_at(a, inverse, has(UPPER), false), l = named.lower ? named : named.adjoint(), adjoint = l.adjoint();
    solve_columns(data(2, n * k), x, nullptr, room, tiny, [&](const auto& y, int64_t vectors) {
      apply(l, y, vectors);
      apply(adjoint, y, vectors);
    });
  }
};

// Triangles with one right-hand side, [first, last) of them, M at a time
template <class R, int M, bool FORWARD>
void solve_together(const Frame& frame, int64_t first, int64_t last) {
  typedef Together<R, M, FORWARD> Group;
  const int64_t n = frame.size[1];
  Vec<R>* memory = static_cast<Vec<R>*>(scratch<1>(sizeof(Vec<R>) * size_t(2 * n)));
  for (; first < last; first += M) {
    Group group;
    group.n = n, group.unit = frame.flags & UNIT, group.right = memory, group.diagonal = memory + n;
    for (int m = 0; m < M; m++) {  // those that are missing repeat the last one
      const Middle<R, 1> one = {frame, std::min(first + m, last - 1)};
      group.t[m] = one.data(0, n * n), group.b[m] = one.data(1, n), group.x[m] = one.data(2, n);
    }
    const Mask<R> doubtful = group.solve();
    for (int64_t m = 0; m < std::min<int64_t>(M, last - first); m++) {
      const Middle<R, 1> one = {frame, first + m};
      *one.integers(3, 1) = 0;
      if (__builtin_expect(!doubtful[Group::place(int(m))], 1)) continue;
      if (group.x[m] == group.b[m])
        for (int64_t i = 0; i < n; i++) group.x[m][i] = memory[i][Group::place(int(m))];
      one.triangular();
    }
  }
}

template <class R, int P>
void solve_middle(const Frame& frame, int64_t first, int64_t last) {
  if constexpr (P == 1)
    if (triangles_together(frame) && frame.size[1] >= LANES<R>) {
      constexpr int M = std::min(LANES<R>, LAPWING_REGISTERS / 4);
      return frame.flags & UPPER ? solve_together<R, M, false>(frame, first, last) : solve_together<R, M, true>(frame, first, last);
    }
  for (; first < last; first++) {
    const Middle<R, P> one = {frame, first};
    switch (frame.op) {
      case TRIANGULAR: one.triangular(); break;
      case SOLVE: one.solve(); break;
      case INVERSE: one.invert(); break;
      case LU: one.lu(); break;
      case LU_SOLVE: one.solve_by_lu(); break;
      case CHOLESKY_SOLVE: one.solve_by_cholesky(); break;
      default: one.determinant();
    }
  }
}

}  // namespace LAPWING_ISA
}  // namespace
}  // namespace lapwing
