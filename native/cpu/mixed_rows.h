// Rows of a matrix times a few columns, for one instruction set: included after simd.h, as often as that.

namespace lapwing {
namespace {
namespace LAPWING_ISA {

// sums[q] <- the row times each of COUNT columns, `stride` apart
template <class R, int COUNT>
void row_dots(const R* row, const R* x, int64_t stride, int64_t length, R* sums) {
  constexpr int L = LANES<R>, DEEP = COUNT == 1 ? 4 : 2;  // partial sums that hide the latency
  Vec<R> partial[COUNT][DEEP] = {};
  int64_t j = 0;
  for (; j + DEEP * L <= length; j += DEEP * L) {
#pragma GCC unroll 4
    for (int d = 0; d < DEEP; d++) {
      const Vec<R> r = load(row + j + d * L);
#pragma GCC unroll 4
      for (int q = 0; q < COUNT; q++) partial[q][d] += r * load(x + q * stride + j + d * L);
    }
  }
  for (int q = 0; q < COUNT; q++) {
    Vec<R> all = partial[q][0];
    for (int d = 1; d < DEEP; d++) all += partial[q][d];
    R sum = 0;
    for (int64_t l = j; l < length; l++) sum += row[l] * x[q * stride + l];
    for (int t = 0; t < L; t++) sum += all[t];
    sums[q] = sum;
  }
}

// y <- y - by[0] row 0 - ... - by[COUNT - 1] row COUNT - 1, rows `ld` apart
template <class R, int COUNT>
void subtract_rows(const R* rows, int64_t ld, const R* by, int64_t length, R* y) {
  constexpr int L = LANES<R>;
  int64_t j = 0;
  for (; j + L <= length; j += L) {
    Vec<R> sum = load(y + j);
#pragma GCC unroll 8
    for (int r = 0; r < COUNT; r++) sum -= broadcast(by[r]) * load(rows + r * ld + j);
    store(y + j, sum);
  }
  for (; j < length; j++)
    for (int r = 0; r < COUNT; r++) y[j] -= by[r] * rows[r * ld + j];
}

}  // namespace LAPWING_ISA
}  // namespace
}  // namespace lapwing
