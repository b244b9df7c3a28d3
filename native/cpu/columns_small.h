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

// x <- L^-1 x, or L^-T x, for a row-major triangle and K columns, in blocks of unknowns. Several threads may take the blocks, in
// their order: each subtracts what is known so far and waits for the rest. What is known is taken in the order in which it was found,
// however much of it there is at a time: the same bits for any number of threads.
template <class R, int K>
struct Columns {
  static constexpr int W = LANES<R>, ROWS = K == 1 ? 8 : 4;
  static constexpr int TILE = K == 1 ? 8 : 4;  // vectors of columns of L^T at a time
  static constexpr int64_t BLOCK = 512 / sizeof(R);
  const R* l;
  int64_t n;
  R* x;
  int64_t apart;  // from a column of x to the next
  bool upper, turned, unit;
  std::atomic<int64_t> solved{0};  // blocks whose unknowns are known

  Columns(const R* l, int64_t n, R* x, int64_t apart, bool upper, bool turned, bool unit)
      : l(l), n(n), x(x), apart(apart), upper(upper), turned(turned), unit(unit) {}
  int64_t blocks() const { return (n + BLOCK - 1) / BLOCK; }
  bool downwards() const { return upper == turned; }
  LAPWING_INLINE R* column(int k) const { return x + k * apart; }

  // Rows [i, i + ROWS) of L; those that are missing at the end repeat the last one, and what comes of them is not used.
  struct Some {
    const R* line[ROWS];
    int64_t count;
    Some(const Columns& job, int64_t i, int64_t last) : count(std::min<int64_t>(ROWS, last - i)) {
#pragma GCC unroll 8
      for (int r = 0; r < ROWS; r++) line[r] = job.l + (i + std::min<int64_t>(r, count - 1)) * job.n;
    }
  };

  // sum[r][k] <- sum[r][k] + L[r][c] x[c][k] for one vector of columns
  LAPWING_INLINE void add_products(const Some& rows, int64_t c, Vec<R> (&sum)[ROWS][K]) const {
    Vec<R> y[K];
#pragma GCC unroll 4
    for (int k = 0; k < K; k++) y[k] = load(column(k) + c);
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++) {
      const Vec<R> element = load(rows.line[r] + c);
#pragma GCC unroll 4
      for (int k = 0; k < K; k++) sum[r][k] = fma(element, y[k], sum[r][k]);
    }
  }

  // The same for the rows [first, last) and whole vectors of columns [begin, end), to sums that are kept
  void add_rows(int64_t first, int64_t last, int64_t begin, int64_t end, R* sums) const {
    const int64_t step = downwards() ? W : -W, start = downwards() ? begin : end - W;
    for (int64_t i = first; i < last; i += ROWS) {
      const Some rows(*this, i, last);
      R* kept = sums + (i - first) * K * W;
      Vec<R> sum[ROWS][K];
#pragma GCC unroll 8
      for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
        for (int k = 0; k < K; k++) sum[r][k] = load(kept + (r * K + k) * W);
      for (int64_t c = start; c >= begin && c < end; c += step) add_products(rows, c, sum);
#pragma GCC unroll 8
      for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
        for (int k = 0; k < K; k++) store(kept + (r * K + k) * W, sum[r][k]);
    }
  }
  static R lane_sum(Vec<R> x) { return sum_lanes<R>(x)[0]; }

  // x[r] <- x[r] - sum of L[r][c] x[c], for rows [first, last) and columns [begin, end) of one block
  void subtract_rows(int64_t first, int64_t last, int64_t begin, int64_t end) const {
    for (int64_t i = first; i < last; i += ROWS) {
      const Some rows(*this, i, last);
      Vec<R> sum[ROWS][K] = {};
      int64_t c = begin;
      for (; c + W <= end; c += W) add_products(rows, c, sum);
      for (int r = 0; r < rows.count; r++)
        for (int k = 0; k < K; k++) {
          R total = lane_sum(sum[r][k]);
          for (int64_t q = c; q < end; q++) total += rows.line[r][q] * column(k)[q];
          column(k)[i + r] -= total;
        }
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
      for (int v = 0; v < V; v++) sum[k][v] = load(column(k) + j + v * W);
    for (int64_t s = 0; s < count; s++, row += step) {
      const R* line = l + row * n + j;
      Vec<R> y[K];
#pragma GCC unroll 4
      for (int k = 0; k < K; k++) y[k] = broadcast(column(k)[row]);
#pragma GCC unroll 8
      for (int v = 0; v < V; v++) {
        __builtin_prefetch(line + AHEAD * step * n + v * W);
        const Vec<R> element = load(line + v * W);
#pragma GCC unroll 4
        for (int k = 0; k < K; k++) sum[k][v] = less(element, y[k], sum[k][v]);
      }
    }
#pragma GCC unroll 4
    for (int k = 0; k < K; k++)
#pragma GCC unroll 8
      for (int v = 0; v < V; v++) store(column(k) + j + v * W, sum[k][v]);
  }
  void subtract_columns(int64_t first, int64_t last, int64_t begin, int64_t end) const {
    const int64_t count = last - first, step = downwards() ? 1 : -1, row = downwards() ? first : last - 1;
    int64_t j = begin;
    for (; j + TILE * W <= end; j += TILE * W) subtract_tile<TILE>(row, count, step, j);
    for (; j + W <= end; j += W) subtract_tile<1>(row, count, step, j);
    for (int k = 0; k < K && j < end; k++) subtract_part(column(k), row, count, step, j, end);
  }
  // for fewer columns than a vector has: lanes beside them may read anything, and are not kept
  void subtract_part(R* x, int64_t row, int64_t count, int64_t step, int64_t j, int64_t end) const {
    const int64_t window = std::max<int64_t>(0, end - W);
    R part[W] = {};
    std::copy(x + j, x + end, part + j - window);
    if (n >= W) {
      Vec<R> sum = load(part);
      for (int64_t k = 0; k < count; k++, row += step) sum = less(load(l + row * n + window), broadcast(x[row]), sum);
      store(part, sum);
    } else {
      for (int64_t k = 0; k < count; k++, row += step)
        for (int64_t c = j; c < end; c++) part[c - window] -= l[row * n + c] * x[row];
    }
    std::copy_n(part + j - window, end - j, x + j);
  }

  // ROWS unknowns or fewer, with nothing left to subtract but each other
  void solve_few(int64_t first, int64_t last) const {
    for (int k = 0; k < K; k++) solve_few(column(k), first, last);
  }
  LAPWING_INLINE void solve_few(R* x, int64_t first, int64_t last) const {
    const int64_t count = last - first, start = downwards() ? first : last - 1, step = downwards() ? 1 : -1;
    for (int64_t s = 0; s < count; s++) {
      const int64_t i = start + s * step;
      R sum = x[i];
      for (int64_t q = 0; q < s; q++) {
        const int64_t k = start + q * step;
        sum -= (turned ? l[k * n + i] : l[i * n + k]) * x[k];
      }
      x[i] = unit ? sum : sum / l[i * (n + 1)];
    }
  }

  // A vector of unknowns of L^-T x, likewise: each is subtracted from all the others at once
  template <bool DOWN>
  void solve_vector(int64_t first) const {
    Vec<R> y[K];
#pragma GCC unroll 4
    for (int k = 0; k < K; k++) y[k] = load(column(k) + first);
#pragma GCC unroll 16
    for (int step = 0; step < W; step++) {
      const int i = DOWN ? step : W - 1 - step;
      const R* line = l + (first + i) * n + first;
      const Mask<R> open = DOWN ? lane_numbers<R>() > broadcast_int<R>(i) : lane_numbers<R>() < broadcast_int<R>(i);
      // what is not part of the triangle may be anything
      const Vec<R> others = (Vec<R>)((Mask<R>)load(line) & open);
      const Mask<R> here = lane_numbers<R>() == broadcast_int<R>(i);
#pragma GCC unroll 4
      for (int k = 0; k < K; k++) {
        Vec<R> found = __builtin_shuffle(y[k], broadcast_int<R>(i));
        if (!unit) found /= broadcast(line[i]);
        y[k] = (Vec<R>)(((Mask<R>)found & here) | ((Mask<R>)less(others, found, y[k]) & ~here));
      }
    }
#pragma GCC unroll 4
    for (int k = 0; k < K; k++) store(column(k) + first, y[k]);
  }
  void solve_turned(int64_t first, int64_t last) const {
    const bool down = downwards();
    for (int64_t s = 0; s < last - first; s += W) {
      const int64_t begin = down ? first + s : std::max(first, last - s - W), end = down ? std::min(last, begin + W) : last - s;
      if (end - begin < W) solve_few(begin, end);
      else down ? solve_vector<true>(begin) : solve_vector<false>(begin);
      down ? subtract_columns(begin, end, end, last) : subtract_columns(begin, end, first, begin);
    }
  }

  void solve_block(int64_t number) {
    const bool down = downwards();
    const int64_t from = number * BLOCK, to = std::min(n, from + BLOCK);  // counted in the order of the unknowns
    const int64_t first = down ? from : n - to, last = down ? to : n - from;
    R sums[BLOCK * K * W];
    if (!turned) std::fill_n(sums, BLOCK * K * W, R(0));
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
    for (int64_t i = first; !turned && i < last; i++)
      for (int k = 0; k < K; k++) column(k)[i] -= lane_sum(load(sums + ((i - first) * K + k) * W));
    if (turned) solve_turned(first, last);
    for (int64_t s = 0; !turned && s < last - first; s += ROWS) {
      const int64_t begin = down ? first + s : std::max(first, last - s - ROWS), end = down ? std::min(last, begin + ROWS) : last - s;
      down ? subtract_rows(begin, end, first, begin) : subtract_rows(begin, end, end, last);
      solve_few(begin, end);
    }
    solved.store(number + 1, std::memory_order_release);
  }
};

// team: none for one thread
template <class R, int K>
void solve_columns(const R* l, int64_t n, R* x, int64_t apart, bool upper, bool turned, bool unit, Team* team) {
  Columns<R, K> job(l, n, x, apart, upper, turned, unit);
  if (team) return team->run(job.blocks(), [&](int64_t number) { job.solve_block(number); });
  for (int64_t number = 0; number < job.blocks(); number++) job.solve_block(number);
}

// x: n x k, row-major; room takes n COLUMNS of them
constexpr int64_t COLUMNS = 4;
template <class R>
void solve_few_by_columns(const R* l, int64_t n, R* x, int64_t k, bool upper, bool turned, bool unit, R* room, Team* team) {
  if (k == 1) return solve_columns<R, 1>(l, n, x, n, upper, turned, unit, team);
  constexpr decltype(&solve_columns<R, 1>) solve[COLUMNS] = {solve_columns<R, 1>, solve_columns<R, 2>, solve_columns<R, 3>, solve_columns<R, 4>};
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
