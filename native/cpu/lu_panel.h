// A panel of an LU with row exchanges, for one instruction set. Included after simd.h.
#include "cpu/sweep.h"

namespace lapwing {
namespace {
namespace LAPWING_ISA {

// Columns of a panel of the LU, whole vectors. Measured on Zen 4 at n = 100 and 256: 16 is up to 10 % faster than 32 and 8.
template <class R>
constexpr int PANEL = std::max(16, LANES<R>);
// Columns of the panel that are eliminated before the others are updated by all of them at once.
constexpr int STRIP = 4;  // as factor() spells out

template <class R, int P>
LAPWING_INLINE Vec<R> pivot_size(const Element<R, P>& x) {
  if constexpr (P == 1)
    return abs(x.re);
  else
    return abs(x.re) + abs(x.im);
}

// A panel lies by its columns: column c is line c of p, so that the lanes run along a column. Its rows stay where they are until all
// pivots are known: a row that was a pivot is done, and takes no further part.
template <class R, int P>
struct Panel {
  static constexpr int W = LANES<R>;
  Lines<R, P> p_, l_;  // l: a strip of columns of L, zero in rows that are done
  Mask<R>* open_;      // all bits set for rows that are not done
  int64_t rows, vectors_ = (rows + W - 1) / W;

  static LAPWING_INLINE Vec<R> only(Mask<R> where, Vec<R> x) { return (Vec<R>)((Mask<R>)x & where); }

  // The first row with an element of largest size in column c, among those that are not done
  // copies of what is in the object: stores through vectors might change it, as far as the compiler knows
  LAPWING_INLINE int64_t find_pivot(int64_t c, R* size) const {
    const Lines<R, P> p = p_;
    Mask<R>* const open = open_;
    const int64_t vectors = vectors_;
    Mask<R> row = lane_numbers<R>(), place = row;
    Vec<R> best = {};
    for (int64_t v = 0; v < vectors; v++) {
      const Vec<R> y = only(open[v], pivot_size<R, P>(p.get(c, v)));
      const Mask<R> more = y > best;
      best = more ? y : best;
      place = more ? row : place;
      row += broadcast_int<R>(W);
    }
    return first_of(best, place, size);
  }
  LAPWING_INLINE int64_t first_of(Vec<R> best, Mask<R> place, R* size) const {
    const Vec<R> top = largest_lane<R>(best);
    *size = top[0];
    const Mask<R> least = best == top ? place : broadcast_int<R>(rows);
    return int64_t(least_lane<R>(least)[0]);
  }

  // Row `pivot` is done. Column c <- column c / its element there, in rows that are not; line `s` of l the same. The next REST columns
  // lose what that takes off. Returns the pivot of the first of them, and its size, as find_pivot() does.
  template <int REST>
  LAPWING_INLINE int64_t eliminate(int64_t c, int s, int64_t pivot, R* size) const {
    const Lines<R, P> p = p_, l = l_;
    Mask<R>* const open = open_;
    const int64_t vectors = vectors_;
    const R up = *size < 16 * std::numeric_limits<R>::min() ? 1 / std::numeric_limits<R>::epsilon() : 1;  // 1 / pivot may be too large
    Element<R, P> by = {}, u[REST + 1];
    if (*size > 0) by = spread<R, P>(inverse_of<R, P>(scalar_at<R, P>(p, c, pivot) * up));
#pragma GCC unroll 4
    for (int j = 0; j < REST; j++) u[j] = spread<R, P>(scalar_at<R, P>(p, c + 1 + j, pivot));
    Mask<R> row = lane_numbers<R>() - broadcast_int<R>(pivot), place = row;
    Vec<R> best = {};
    for (int64_t v = 0; v < vectors; v++) {
      const Mask<R> here = open[v] & (row != Mask<R>{});
      open[v] = here;
      const Element<R, P> old = p.get(c, v);
      Element<R, P> x = old;
      scale<R, P>(x, broadcast(up));
      x = product<R, P>(x, by);
      x.re = only(here, x.re);
      if constexpr (P == 2) x.im = only(here, x.im);
      Element<R, P> both = x;
      both.re += only(~here, old.re);
      if constexpr (P == 2) both.im += only(~here, old.im);
      p.set(c, v, both);
      l.set(s, v, x);
#pragma GCC unroll 4
      for (int j = 0; j < REST; j++) {
        Element<R, P> y = p.get(c + 1 + j, v);
        subtract_product<R, P, false>(y, u[j], x);
        p.set(c + 1 + j, v, y);
        if (j) continue;
        const Vec<R> large = only(here, pivot_size<R, P>(y));
        const Mask<R> more = large > best;
        best = more ? large : best;
        place = more ? row : place;
      }
      row += broadcast_int<R>(W);
    }
    return REST ? pivot + first_of(best, place, size) : 0;
  }

  // COUNT columns from c on lose what N lines of l, from number s on, take off; their rows were `pivots`
  template <int N, int COUNT>
  LAPWING_INLINE void update(int s, const int64_t* pivots, int64_t c) const {
    const Lines<R, P> p = p_, l = l_;
    const int64_t vectors = vectors_;
    Element<R, P> u[COUNT][N];
#pragma GCC unroll 4
    for (int j = 0; j < COUNT; j++) {
      Scalar<R, P> element[N];
#pragma GCC unroll 4
      for (int k = 0; k < N; k++) {
        element[k] = scalar_at<R, P>(p, c + j, pivots[k]);
#pragma GCC unroll 4
        for (int q = 0; q < k; q++) element[k] -= times<R, P>(scalar_at<R, P>(l, s + q, pivots[k]), element[q]);
        u[j][k] = spread<R, P>(element[k]);
      }
    }
    for (int64_t v = 0; v < vectors; v++) {
      Element<R, P> x[COUNT];
#pragma GCC unroll 4
      for (int j = 0; j < COUNT; j++) x[j] = p.get(c + j, v);
#pragma GCC unroll 4
      for (int k = 0; k < N; k++) {
        const Element<R, P> y = l.get(s + k, v);
#pragma GCC unroll 4
        for (int j = 0; j < COUNT; j++) subtract_product<R, P, false>(x[j], u[j][k], y);
      }
#pragma GCC unroll 4
      for (int j = 0; j < COUNT; j++) p.set(c + j, v, x[j]);
    }
  }

  // pivots[c]: the row of column c
  void factor(int64_t width, int64_t* pivots) const {
    constexpr int COUNT = LAPWING_REGISTERS == 32 ? 4 / P : 2 / P;
    for (int64_t v = 0; v < vectors_; v++) open_[v] = lane_numbers<R>() < broadcast_int<R>(rows - v * W);
    R size = 0;
    for (int64_t c = 0, found = 0; c < width; c++) {
      const int s = int(c % STRIP);
      pivots[c] = s ? found : find_pivot(c, &size);
      if (!(size > 0))  // a column of zeros: any row will do
        for (pivots[c] = 0; std::find(pivots, pivots + c, pivots[c]) != pivots + c;) pivots[c]++;
      // the rest of the strip by this column, the rest of the panel by the whole strip
      switch (std::min<int64_t>(STRIP - 1 - s, width - 1 - c)) {
        case 3: found = eliminate<3>(c, s, pivots[c], &size); break;
        case 2: found = eliminate<2>(c, s, pivots[c], &size); break;
        case 1: found = eliminate<1>(c, s, pivots[c], &size); break;
        default: eliminate<0>(c, s, pivots[c], &size);
      }
      if (s != STRIP - 1) continue;
      int64_t j = c + 1;
      for (; j + COUNT <= width; j += COUNT) update<STRIP, COUNT>(0, pivots + c - s, j);
      for (; j < width; j++) update<STRIP, 1>(0, pivots + c - s, j);
    }
  }
};

template <class R, int P>
int64_t panel_room(int64_t n) {
  return (PANEL<R> + STRIP) * line_of<R, P>(n) + 3 * line_of<R, 1>(n);
}

}  // namespace LAPWING_ISA
}  // namespace
}  // namespace lapwing
