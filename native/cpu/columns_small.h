// A triangle and a few right-hand sides, which lie across the lanes of a vector. Compiled once per instruction set; see levels.h.

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

}  // namespace LAPWING_ISA
}  // namespace
}  // namespace lapwing
