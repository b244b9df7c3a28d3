// One right-hand side and a triangle, for one instruction set. Included after sweep.h.

namespace lapwing {
namespace {
namespace LAPWING_ISA {

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
      for (int lane = 0; lane < W; lane++) {
        x[i] -= sum[0].re[lane];
        if constexpr (P == 2) x[imag + i] -= sum[0].im[lane];
      }
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

}  // namespace LAPWING_ISA
}  // namespace
}  // namespace lapwing
