// The squares of tall_square.h for one instruction set: loops along rows, which the compiler makes vectors of.

namespace lapwing {
namespace {
namespace LAPWING_ISA {

// to <- to + sign times the sum of by[k * step] times row k of `rows`, columns [first, last)
LAPWING_INLINE void add_rows(double* __restrict to, const double* rows, int64_t ld, const double* by, int64_t step,
                             int64_t count, double sign, int64_t first, int64_t last) {
  int64_t k = 0;
  for (; k + 4 <= count; k += 4) {
    const double b0 = sign * by[k * step], b1 = sign * by[(k + 1) * step];
    const double b2 = sign * by[(k + 2) * step], b3 = sign * by[(k + 3) * step];
    const double *r0 = rows + k * ld, *r1 = r0 + ld, *r2 = r1 + ld, *r3 = r2 + ld;
    for (int64_t j = first; j < last; j++) to[j] += (b0 * r0[j] + b1 * r1[j]) + (b2 * r2[j] + b3 * r3[j]);
  }
  for (; k < count; k++) {
    const double b = sign * by[k * step];
    const double* row = rows + k * ld;
    for (int64_t j = first; j < last; j++) to[j] += b * row[j];
  }
}

inline bool factor_square(double* g, int64_t n, int64_t parts) {
  for (int64_t i = 0; i < n; i += parts) {
    double* row = g + i * n;
    // row i <- row i - the rows above it, each times its column i
    add_rows(row, g, n, g + i, n, i, -1, i, n);
    const double pivot = row[i];
    if (!(pivot > 0 && pivot < std::numeric_limits<double>::infinity())) return false;
    const double root = std::sqrt(pivot), by = 1 / root;
    for (int64_t j = i + 1; j < n; j++) row[j] *= by;
    row[i] = root;
    std::fill_n(row, i, 0.0);
    if (parts == 1) continue;
    row[i + 1] = 0;
    double* pair = row + n;
    std::fill_n(pair, i, 0.0);
    for (int64_t j = i; j < n; j += 2) pair[j] = -row[j + 1], pair[j + 1] = row[j];
  }
  return true;
}

// Four rows of Y at a time, as R is too large for the nearest cache.
inline void invert_square(const double* r, double* y, int64_t n) {
  std::fill_n(y, n * n, 0.0);
  for (int64_t i = 0; i < n; i++) y[i * n + i] = 1;
  int64_t i = 0;
  for (; i + 4 <= n; i += 4) {
    double *__restrict y0 = y + i * n, *__restrict y1 = y0 + n, *__restrict y2 = y1 + n, *__restrict y3 = y2 + n;
    for (int64_t k = i; k < n; k++) {
      const double* line = r + k * n;
      const double by = 1 / line[k], x0 = y0[k] *= by, x1 = y1[k] *= by, x2 = y2[k] *= by, x3 = y3[k] *= by;
      for (int64_t j = k + 1; j < n; j++) {
        y0[j] -= x0 * line[j];
        y1[j] -= x1 * line[j];
        y2[j] -= x2 * line[j];
        y3[j] -= x3 * line[j];
      }
    }
  }
  for (; i < n; i++)
    for (int64_t k = i; k < n; k++) {
      double* __restrict row = y + i * n;
      const double* line = r + k * n;
      const double x = row[k] /= line[k];
      for (int64_t j = k + 1; j < n; j++) row[j] -= x * line[j];
    }
}

inline void multiply_square(const double* a, const double* b, double* c, int64_t n, bool upper) {
  for (int64_t i = 0; i < n; i++) {
    std::fill_n(c + i * n, n, 0.0);
    add_rows(c + i * n, b + i * n, n, a + i * n + i, 1, n - i, 1, upper ? i : 0, n);
  }
}

}  // namespace LAPWING_ISA
}  // namespace
}  // namespace lapwing
