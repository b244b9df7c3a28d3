// LU of one small matrix, across the lanes of a vector. Compiled once per instruction set; see levels.h.

namespace lapwing {
namespace {
namespace LAPWING_ISA {

// the place of the first entry of largest size among x[first..n); x is padded with zeros to whole vectors
template <class R>
LAPWING_INLINE int64_t largest_from(const R* x, int64_t first, int64_t n, R* size) {
  constexpr int64_t W = LANES<R>;
  Vec<R> best{};
  const int64_t begin = first / W * W;
  for (int64_t i = begin; i < n; i += W) {
    Vec<R> v = abs(load(x + i));
    if (i < first) {
      for (int64_t t = 0; t < first - i; t++) v[t] = 0;
    }
    best = v > best ? v : best;
  }
  R top = 0;
  for (int64_t t = 0; t < W; t++) top = best[t] > top ? best[t] : top;
  *size = top;
  int64_t place = first;
  while (place < n && !(__builtin_fabs(x[place]) == top)) place++;
  return place < n ? place : first;
}

// A (n x n, column-major, columns `ld` apart and padded with zeros to whole vectors) <- L U of P A, L below the diagonal with
// ones on it. pivots[k] is the row exchanged with row k. A column of zeros is passed over, as in LAPACK.
template <class R>
void lu_one(R* a, int64_t n, int64_t ld, int32_t* pivots, R* l) {
  constexpr int64_t W = LANES<R>;
  for (int64_t i = 0; i < ld; i++) l[i] = 0;
  for (int64_t k = 0; k < n; k++) {
    R* column = a + k * ld;
    R top;
    const int64_t p = largest_from(column, k, n, &top);
    pivots[k] = int32_t(p);
    if (!(top > 0)) continue;
    if (p != k)
      for (int64_t j = 0; j < n; j++) {
        const R kept = a[k + j * ld];
        a[k + j * ld] = a[p + j * ld];
        a[p + j * ld] = kept;
      }
    // the column of L, zero down to its diagonal, so that whole vectors may be taken off
    const R pivot = column[k];
    const bool tiny = top < std::numeric_limits<R>::min();  // its reciprocal would be infinite
    const Vec<R> over = broadcast(tiny ? pivot : 1 / pivot);
    const int64_t begin = (k + 1) / W * W;
    for (int64_t i = begin; i < n; i += W) {
      const Vec<R> x = load(column + i);
      store(l + i, tiny ? x / over : x * over);
    }
    for (int64_t i = begin; i <= k; i++) l[i] = 0;
    for (int64_t i = k + 1; i < n; i++) column[i] = l[i];
    // A22 <- A22 - l u
    int64_t j = k + 1;
    for (; j + 4 <= n; j += 4) {
      R* to = a + j * ld;
      const Vec<R> u0 = broadcast(-to[k]), u1 = broadcast(-to[k + ld]), u2 = broadcast(-to[k + 2 * ld]),
                   u3 = broadcast(-to[k + 3 * ld]);
      for (int64_t i = begin; i < n; i += W) {
        const Vec<R> x = load(l + i);
        store(to + i, fma(x, u0, load(to + i)));
        store(to + i + ld, fma(x, u1, load(to + i + ld)));
        store(to + i + 2 * ld, fma(x, u2, load(to + i + 2 * ld)));
        store(to + i + 3 * ld, fma(x, u3, load(to + i + 3 * ld)));
      }
    }
    for (; j < n; j++) {
      R* to = a + j * ld;
      const Vec<R> u = broadcast(-to[k]);
      for (int64_t i = begin; i < n; i += W) store(to + i, fma(load(l + i), u, load(to + i)));
    }
  }
}

}  // namespace LAPWING_ISA
}  // namespace
}  // namespace lapwing
