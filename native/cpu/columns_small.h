// A triangle and a few right-hand sides: very few one behind the other, more across the lanes of a vector. Compiled once per instruction
// set; see levels.h.
#include "cpu/lines.h"

namespace lapwing {
namespace {
namespace LAPWING_ISA {

// x (n rows of C vectors) <- L^-1 x, or L^-T x, for the row-major triangle. In the order in which the unknowns are found, number s
// is row `first` + s `step`; B of them at a time, so that one addition need not wait for the other.
template <class R, int C>
void solve_rows(const R* l, int64_t n, R* x, bool upper, bool turned, bool unit) {
  constexpr int W = LANES<R>, B = 8 / C;
  const bool downwards = upper == turned;
  const int64_t first = downwards ? 0 : n - 1, step = downwards ? 1 : -1;
  const auto row = [&](int64_t s) { return first + s * step; };
  const auto at = [&](int64_t s) { return x + row(s) * C * W; };
  for (int64_t s = 0; s < n; s += B) {
    const int64_t count = std::min<int64_t>(B, n - s);
    // rows that are missing at the end repeat the last one, and are not stored
    const R* line[B];
    R* to[B];
    for (int r = 0; r < B; r++) line[r] = l + row(s + std::min<int64_t>(r, count - 1)) * n;
    for (int r = 0; r < B; r++) to[r] = at(s + std::min<int64_t>(r, count - 1));
    if (!turned) {  // less what was found before
      Vec<R> sum[B][C];
#pragma GCC unroll 8
      for (int r = 0; r < B; r++)
#pragma GCC unroll 2
        for (int c = 0; c < C; c++) sum[r][c] = load(to[r] + c * W);
      for (int64_t q = 0; q < s; q++) {
        const R* known = at(q);
        Vec<R> y[C];
#pragma GCC unroll 2
        for (int c = 0; c < C; c++) y[c] = load(known + c * W);
#pragma GCC unroll 8
        for (int r = 0; r < B; r++) {
          const Vec<R> by = broadcast(line[r][row(q)]);
#pragma GCC unroll 2
          for (int c = 0; c < C; c++) sum[r][c] = fma(-by, y[c], sum[r][c]);
        }
      }
#pragma GCC unroll 8
      for (int r = 0; r < B; r++)
#pragma GCC unroll 2
        for (int c = 0; c < C; c++)
          if (r < count) store(to[r] + c * W, sum[r][c]);
    }
    for (int64_t r = 0; r < count; r++)
      for (int c = 0; c < C; c++) {
        Vec<R> y = load(to[r] + c * W);
        for (int64_t q = 0; q < r; q++) {
          const R element = turned ? line[q][row(s + r)] : line[r][row(s + q)];
          y = fma(broadcast(-element), load(to[q] + c * W), y);
        }
        store(to[r] + c * W, unit ? y : y / broadcast(line[r][row(s + r)]));
      }
    if (!turned || count < B) continue;
    Vec<R> known[B][C];
#pragma GCC unroll 8
    for (int r = 0; r < B; r++)
#pragma GCC unroll 2
      for (int c = 0; c < C; c++) known[r][c] = load(to[r] + c * W);
    for (int64_t q = s + B; q < n; q++) {  // what is to be found yet
      R* left = at(q);
      Vec<R> y[C];
#pragma GCC unroll 2
      for (int c = 0; c < C; c++) y[c] = load(left + c * W);
#pragma GCC unroll 8
      for (int r = 0; r < B; r++) {
        const Vec<R> by = broadcast(line[r][row(q)]);
#pragma GCC unroll 2
        for (int c = 0; c < C; c++) y[c] = fma(-by, known[r][c], y[c]);
      }
#pragma GCC unroll 2
      for (int c = 0; c < C; c++) store(left + c * W, y[c]);
    }
  }
}

// x (n x k, row-major), k up to two vectors
template <class R>
void solve_few(const R* l, int64_t n, R* x, int64_t k, bool upper, bool turned, bool unit, R* room) {
  constexpr int64_t W = LANES<R>;
  const int64_t width = k <= W ? W : 2 * W;
  for (int64_t i = 0; i < n; i++) {
    std::copy_n(x + i * k, k, room + i * width);
    std::fill_n(room + i * width + k, width - k, R(0));
  }
  width == W ? solve_rows<R, 1>(l, n, room, upper, turned, unit) : solve_rows<R, 2>(l, n, room, upper, turned, unit);
  for (int64_t i = 0; i < n; i++) std::copy_n(room + i * width, k, x + i * k);
}

// ---- one to four right-hand sides, one behind the other ------------------------------------------------------------------

// Complex numbers lie in a vector as in memory, real and imaginary parts in turn. One factor (c, d) for all of them, its parts in each
// lane, is multiplied by the numbers (a, b) and by these exchanged, where one side gets the signs of i: (a, b) c + (b, a) (-d, d).
template <class R, int P>
LAPWING_INLINE Element<R, P> both_ways(Vec<R> x) {
  if constexpr (P == 1)
    return {x};
  else
    return {x, __builtin_shuffle(x, lane_numbers<R>() ^ 1)};
}
template <class R>
LAPWING_INLINE Vec<R> with_signs(Vec<R> x) {
  Vec<R> signs;
#pragma GCC unroll 16
  for (int lane = 0; lane < LANES<R>; lane++) signs[lane] = lane % 2 ? R(1) : R(-1);
  return x * signs;
}
template <class R, int P>
LAPWING_INLINE Element<R, P> with_signs(Element<R, P> x) {
  if constexpr (P == 2) x.im = with_signs<R>(x.im);
  return x;
}
// z - x y, one of x and y being numbers both ways, the other a factor, and either of them with signs
template <class R, int P>
LAPWING_INLINE Vec<R> less_product(const Element<R, P>& x, const Element<R, P>& y, Vec<R> z) {
  z = less(x.re, y.re, z);
  if constexpr (P == 2) z = less(x.im, y.im, z);
  return z;
}
// Number i of a vector as a factor, and the numbers of a vector from a factor
template <class R, int P>
LAPWING_INLINE Element<R, P> spread_lane(Vec<R> x, int i) {
  if constexpr (P == 1)
    return {__builtin_shuffle(x, broadcast_int<R>(i))};
  else
    return {__builtin_shuffle(x, broadcast_int<R>(2 * i)), __builtin_shuffle(x, broadcast_int<R>(2 * i + 1))};
}
template <class R, int P>
LAPWING_INLINE Vec<R> in_turn(const Element<R, P>& x) {
  if constexpr (P == 1)
    return x.re;
  else
    return (lane_numbers<R>() & 1) == 0 ? x.re : x.im;
}

// x <- L^-1 x, or L^-T x, for a row-major triangle and K columns, in blocks of unknowns. Several threads may take the blocks, in
// their order: each subtracts what is known so far and waits for the rest. What is known is taken in the order in which it was found,
// however much of it there is at a time: the same bits for any number of threads.
template <class R, int P, int K>
struct Columns {
  using T = Scalar<R, P>;
  static constexpr int W = LANES<R> / P;  // numbers in a vector
  static constexpr int ROWS = P * K == 1 ? 8 : P * K <= (LAPWING_REGISTERS == 32 ? 6 : 4) ? 4 : 2;
  static constexpr int TILE = K <= P ? 8 : 4;  // vectors of columns of L^T at a time
  static constexpr int64_t BLOCK = 512 / sizeof(T);
  using Sums = Element<R, P>;  // of the products of the numbers as they are, and of those of L with x exchanged
  const T* l;
  int64_t n;
  T* x;
  int64_t apart;  // from a column of x to the next
  bool upper, turned, unit;
  std::atomic<int64_t> solved{0};  // blocks whose unknowns are known

  Columns(const T* l, int64_t n, T* x, int64_t apart, bool upper, bool turned, bool unit)
      : l(l), n(n), x(x), apart(apart), upper(upper), turned(turned), unit(unit) {}
  int64_t blocks() const { return (n + BLOCK - 1) / BLOCK; }
  bool downwards() const { return upper == turned; }
  LAPWING_INLINE T* column(int k) const { return x + k * apart; }
  static LAPWING_INLINE Vec<R> numbers(const T* from) { return load(reinterpret_cast<const R*>(from)); }
  static LAPWING_INLINE void put_numbers(T* to, Vec<R> x) { store(reinterpret_cast<R*>(to), x); }

  // Rows [i, i + ROWS) of L; those that are missing at the end repeat the last one, and what comes of them is not used.
  struct Some {
    const T* line[ROWS];
    int64_t count;
    Some(const Columns& job, int64_t i, int64_t last) : count(std::min<int64_t>(ROWS, last - i)) {
#pragma GCC unroll 8
      for (int r = 0; r < ROWS; r++) line[r] = job.l + (i + std::min<int64_t>(r, count - 1)) * job.n;
    }
  };

  // sum[r][k] <- sum[r][k] + L[r][c] x[c][k] for one vector of columns
  LAPWING_INLINE void add_products(const Some& rows, int64_t c, Sums (&sum)[ROWS][K]) const {
    Element<R, P> y[K];
#pragma GCC unroll 4
    for (int k = 0; k < K; k++) y[k] = both_ways<R, P>(numbers(column(k) + c));
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++) {
      const Vec<R> element = numbers(rows.line[r] + c);
#pragma GCC unroll 4
      for (int k = 0; k < K; k++) {
        sum[r][k].re = fma(element, y[k].re, sum[r][k].re);
        if constexpr (P == 2) sum[r][k].im = fma(element, y[k].im, sum[r][k].im);
      }
    }
  }
  static LAPWING_INLINE void load_sums(const Sums* kept, Sums (&sum)[ROWS][K]) {
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
      for (int k = 0; k < K; k++) sum[r][k] = kept[r * K + k];
  }

  // The same for the rows [first, last) and whole vectors of columns [begin, end), to sums that are kept
  void add_rows(int64_t first, int64_t last, int64_t begin, int64_t end, Sums* sums) const {
    const int64_t step = downwards() ? W : -W, start = downwards() ? begin : end - W;
    for (int64_t i = first; i < last; i += ROWS) {
      const Some rows(*this, i, last);
      Sums *kept = sums + (i - first) * K, sum[ROWS][K];
      load_sums(kept, sum);
      for (int64_t c = start; c >= begin && c < end; c += step) add_products(rows, c, sum);
#pragma GCC unroll 8
      for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
        for (int k = 0; k < K; k++) kept[r * K + k] = sum[r][k];
    }
  }
  static T total_of(const Sums& sum) {
    if constexpr (P == 1)
      return sum_lanes<R>(sum.re)[0];
    else
      return {-sum_lanes<R>(with_signs<R>(sum.re))[0], sum_lanes<R>(sum.im)[0]};
  }

  // x[r] <- x[r] - sum of L[r][c] x[c], for ROWS rows from `first` on or fewer, columns [begin, end) of one block, and sums so far
  void subtract_rows(int64_t first, int64_t last, int64_t begin, int64_t end, const Sums* sums) const {
    const Some rows(*this, first, last);
    Sums sum[ROWS][K];
    load_sums(sums, sum);
    int64_t c = begin;
    for (; c + W <= end; c += W) add_products(rows, c, sum);
    for (int r = 0; r < rows.count; r++)
      for (int k = 0; k < K; k++) {
        T total = total_of(sum[r][k]);
        for (int64_t q = c; q < end; q++) total += times<R, P>(rows.line[r][q], column(k)[q]);
        column(k)[first + r] -= total;
      }
  }

  // x[j] <- x[j] - sum of L[r][j] x[r], for `count` rows from `row` on and V vectors of columns from j on
  template <int V>
  void subtract_tile(int64_t row, int64_t count, int64_t step, int64_t j) const {
    constexpr int64_t AHEAD = 16;  // rows: each of them is in a page of its own, which no hardware foresees
    Vec<R> sum[K][V];
#pragma GCC unroll 4
    for (int k = 0; k < K; k++)
#pragma GCC unroll 8
      for (int v = 0; v < V; v++) sum[k][v] = numbers(column(k) + j + v * W);
    for (int64_t s = 0; s < count; s++, row += step) {
      const T* line = l + row * n + j;
      Element<R, P> y[K];
#pragma GCC unroll 4
      for (int k = 0; k < K; k++) y[k] = with_signs<R, P>(spread<R, P>(column(k)[row]));
#pragma GCC unroll 8
      for (int v = 0; v < V; v++) {
        __builtin_prefetch(line + AHEAD * step * n + v * W);
        const Element<R, P> element = both_ways<R, P>(numbers(line + v * W));
#pragma GCC unroll 4
        for (int k = 0; k < K; k++) sum[k][v] = less_product<R, P>(element, y[k], sum[k][v]);
      }
    }
#pragma GCC unroll 4
    for (int k = 0; k < K; k++)
#pragma GCC unroll 8
      for (int v = 0; v < V; v++) put_numbers(column(k) + j + v * W, sum[k][v]);
  }
  void subtract_columns(int64_t first, int64_t last, int64_t begin, int64_t end) const {
    const int64_t count = last - first, step = downwards() ? 1 : -1, row = downwards() ? first : last - 1;
    int64_t j = begin;
    for (; j + TILE * W <= end; j += TILE * W) subtract_tile<TILE>(row, count, step, j);
    for (; j + 4 * W <= end; j += 4 * W) subtract_tile<4>(row, count, step, j);
    for (; j + W <= end; j += W) subtract_tile<1>(row, count, step, j);
    for (int k = 0; k < K && j < end; k++) subtract_part(column(k), row, count, step, j, end);
  }
  // for fewer columns than a vector has: lanes beside them may read anything, and are not kept
  void subtract_part(T* x, int64_t row, int64_t count, int64_t step, int64_t j, int64_t end) const {
    const int64_t window = std::max<int64_t>(0, end - W);
    T part[W] = {};
    std::copy(x + j, x + end, part + j - window);
    if (n >= W) {
      Vec<R> sum = numbers(part);
      for (int64_t s = 0; s < count; s++, row += step)
        sum = less_product<R, P>(both_ways<R, P>(numbers(l + row * n + window)), with_signs<R, P>(spread<R, P>(x[row])), sum);
      put_numbers(part, sum);
    } else {
      for (int64_t s = 0; s < count; s++, row += step)
        for (int64_t c = j; c < end; c++) part[c - window] -= times<R, P>(l[row * n + c], x[row]);
    }
    std::copy_n(part + j - window, end - j, x + j);
  }

  // Division by pivot i. A complex division takes long: the inverses of a block are found before their turn comes.
  void find_inverses(int64_t first, int64_t last, T* inverses) const {
    if constexpr (P == 2)
      for (int64_t i = first; i < last && !unit; i++) inverses[i - first] = inverse_of<R, P>(l[i * (n + 1)]);
  }
  LAPWING_INLINE T divided(T x, int64_t i, const T* inverse) const {
    if constexpr (P == 1) return x / l[i * (n + 1)];
    else return times<R, P>(x, *inverse);
  }
  LAPWING_INLINE Element<R, P> divided(const Element<R, P>& x, int64_t i, const T* inverse) const {
    if constexpr (P == 1) return {x.re / broadcast(l[i * (n + 1)])};
    else return product<R, P>(x, spread<R, P>(*inverse));
  }

  // ROWS unknowns or fewer, or less than a vector, with nothing left to subtract but each other
  void solve_few(int64_t first, int64_t last, const T* inverses) const {
    for (int k = 0; k < K; k++) solve_few(column(k), first, last, inverses);
  }
  LAPWING_INLINE void solve_few(T* x, int64_t first, int64_t last, const T* inverses) const {
    const int64_t count = last - first, start = downwards() ? first : last - 1, step = downwards() ? 1 : -1;
    for (int64_t s = 0; s < count; s++) {
      const int64_t i = start + s * step;
      T sum = x[i];
      for (int64_t q = 0; q < s; q++) {
        const int64_t k = start + q * step;
        sum -= times<R, P>(turned ? l[k * n + i] : l[i * n + k], x[k]);
      }
      x[i] = unit ? sum : divided(sum, i, inverses + (i - first));
    }
  }

  // A vector of unknowns of L^-T x, likewise: each is subtracted from all the others at once
  template <bool DOWN>
  void solve_vector(int64_t first, const T* inverses) const {
    const Mask<R> lanes = lane_numbers<R>() / P;
    Vec<R> y[K];
#pragma GCC unroll 4
    for (int k = 0; k < K; k++) y[k] = numbers(column(k) + first);
#pragma GCC unroll 16
    for (int step = 0; step < W; step++) {
      const int i = DOWN ? step : W - 1 - step;
      const Mask<R> open = DOWN ? lanes > broadcast_int<R>(i) : lanes < broadcast_int<R>(i), here = lanes == broadcast_int<R>(i);
      // what is not part of the triangle may be anything
      const Vec<R> line = (Vec<R>)((Mask<R>)numbers(l + (first + i) * n + first) & open);
      const Element<R, P> others = with_signs<R, P>(both_ways<R, P>(line));
#pragma GCC unroll 4
      for (int k = 0; k < K; k++) {
        Element<R, P> found = spread_lane<R, P>(y[k], i);
        if (!unit) found = divided(found, first + i, inverses + i);
        y[k] = here ? in_turn<R, P>(found) : less_product<R, P>(others, found, y[k]);
      }
    }
#pragma GCC unroll 4
    for (int k = 0; k < K; k++) put_numbers(column(k) + first, y[k]);
  }
  void solve_turned(int64_t first, int64_t last, const T* inverses) const {
    const bool down = downwards();
    for (int64_t s = 0; s < last - first; s += W) {
      const int64_t begin = down ? first + s : std::max(first, last - s - W), end = down ? std::min(last, begin + W) : last - s;
      if (end - begin < W) solve_few(begin, end, inverses + (begin - first));
      else down ? solve_vector<true>(begin, inverses + (begin - first)) : solve_vector<false>(begin, inverses + (begin - first));
      down ? subtract_columns(begin, end, end, last) : subtract_columns(begin, end, first, begin);
    }
  }

  void solve_block(int64_t number) {
    const bool down = downwards();
    const int64_t from = number * BLOCK, to = std::min(n, from + BLOCK);  // counted in the order of the unknowns
    const int64_t first = down ? from : n - to, last = down ? to : n - from;
    T inverses[BLOCK];
    find_inverses(first, last, inverses);
    Sums sums[(BLOCK + ROWS) * K];  // and what is read for rows that are missing
    if (!turned) std::fill_n(sums, (last - first + ROWS) * K, Sums{});
    int turns = 0;
    for (int64_t known = 0; known < number;) {
      const int64_t ready = std::min(number, solved.load(std::memory_order_acquire));
      if (ready == known) {
        wait_a_moment(turns);
        continue;
      }
      const int64_t begin = down ? known * BLOCK : n - ready * BLOCK, end = down ? ready * BLOCK : n - known * BLOCK;
      turned ? subtract_columns(begin, end, first, last) : add_rows(first, last, begin, end, sums);
      known = ready;
    }
    if (turned) solve_turned(first, last, inverses);
    for (int64_t s = 0; !turned && s < last - first; s += ROWS) {
      const int64_t begin = down ? first + s : std::max(first, last - s - ROWS), end = down ? std::min(last, begin + ROWS) : last - s;
      down ? subtract_rows(begin, end, first, begin, sums + s * K) : subtract_rows(begin, end, end, last, sums + (begin - first) * K);
      solve_few(begin, end, inverses + (begin - first));
    }
    solved.store(number + 1, std::memory_order_release);
  }
};

// team: none for one thread
template <class R, int P, int K>
void solve_columns(const Scalar<R, P>* l, int64_t n, Scalar<R, P>* x, int64_t apart, bool upper, bool turned, bool unit, Team* team) {
  Columns<R, P, K> job(l, n, x, apart, upper, turned, unit);
  if (team) return team->run(job.blocks(), [&](int64_t number) { job.solve_block(number); });
  for (int64_t number = 0; number < job.blocks(); number++) job.solve_block(number);
}

// x: n x k, row-major; room takes n COLUMNS of them
constexpr int64_t COLUMNS = 4;
template <class R, int P>
void solve_few_by_columns(const Scalar<R, P>* l, int64_t n, Scalar<R, P>* x, int64_t k, bool upper, bool turned, bool unit,
                          Scalar<R, P>* room, Team* team) {
  if (k == 1) return solve_columns<R, P, 1>(l, n, x, n, upper, turned, unit, team);
  constexpr decltype(&solve_columns<R, P, 1>) solve[COLUMNS] = {solve_columns<R, P, 1>, solve_columns<R, P, 2>, solve_columns<R, P, 3>,
                                                                solve_columns<R, P, 4>};
  for (int64_t first = 0; first < k; first += COLUMNS) {
    const int64_t count = std::min(COLUMNS, k - first);
    for (int64_t i = 0; i < n; i++)
      for (int64_t c = 0; c < count; c++) room[c * n + i] = x[i * k + first + c];
    solve[count - 1](l, n, room, n, upper, turned, unit, team);
    for (int64_t i = 0; i < n; i++)
      for (int64_t c = 0; c < count; c++) x[i * k + first + c] = room[c * n + i];
  }
}

}  // namespace LAPWING_ISA
}  // namespace
}  // namespace lapwing
