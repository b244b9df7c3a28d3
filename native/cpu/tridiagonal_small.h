// One symmetric matrix on its way to tridiagonal form and back, for one instruction set. Included once for each, after simd.h.
//
// The matrix lies by its columns, of which only what is from the diagonal on is used. Reflections are found column by column, each with
// one product of the matrix as it was before the panel; the columns behind a panel are updated once for all of it. Products read a
// triangle once: an element serves its row and its column.
#include "cpu/qr_small.h"

namespace lapwing {
namespace {
namespace LAPWING_ISA {

template <class R>
struct Tridiagonalisation {
  static constexpr int W = LANES<R>;
  // Columns that are multiplied, or updated, together.
  static constexpr int TOGETHER_BY = LAPWING_REGISTERS == 32 ? 8 : 4;
  // A sum of squares below this, where the largest element is about one, is far below the rounding errors.
  static constexpr R LEAST = sizeof(R) == 4 ? R(1e-33) : R(1e-290);

  Lines<R, 1> a;
  int64_t n, vectors, width;  // width: columns of a panel
  R *d, *e, *tau;
  Lines<R, 1> pairs;     // lines 2 p and 2 p + 1: v and w of a panel's column p, by which A <- A - v w^T - w v^T
  Lines<R, 1> products;  // a line for each part of a product
  Team* team;

  static int64_t panel_columns(int64_t n) { return n < 768 ? 16 : 32; }
  // A product is summed in as many parts, whatever the number of threads: the same bits for any.
  static int64_t parts(int64_t order) { return order < 256 ? 1 : 4; }
  static int64_t room(int64_t n) { return (2 * panel_columns(n) + parts(n)) * line_of<R, 1>(n + W) + W; }

  // task(i) for i in [0, count)
  template <class Task>
  void each(int64_t count, const Task& task) const {
    if (team && count > 1) return team->run(count, task);
    for (int64_t i = 0; i < count; i++) task(i);
  }

  // Rows behind `row`, of vector i
  static LAPWING_INLINE Mask<R> behind(int64_t row, int64_t i) { return lane_numbers<R>() + broadcast_int<R>(i * W) > broadcast_int<R>(row); }
  static LAPWING_INLINE Vec<R> masked(Vec<R> x, Mask<R> wanted) { return (Vec<R>)((Mask<R>)x & wanted); }

  // to <- to - the sum of `count` lines of `pairs`, each times its coefficient, from vector `first` on
  void subtract_pairs(R* to, int64_t count, const R* by, int64_t first) const {
    constexpr int V = 4;
    int64_t i = first;
    for (; i + V <= vectors; i += V) {
      Vec<R> x[V];
#pragma GCC unroll 4
      for (int v = 0; v < V; v++) x[v] = load(to + (i + v) * W);
      for (int64_t s = 0; s < count; s++) {
        const Vec<R> c = broadcast(by[s]);
#pragma GCC unroll 4
        for (int v = 0; v < V; v++) x[v] = less(load(pairs.at(s, i + v)), c, x[v]);
      }
#pragma GCC unroll 4
      for (int v = 0; v < V; v++) store(to + (i + v) * W, x[v]);
    }
    for (; i < vectors; i++) {
      Vec<R> x = load(to + i * W);
      for (int64_t s = 0; s < count; s++) x = less(load(pairs.at(s, i)), broadcast(by[s]), x);
      store(to + i * W, x);
    }
  }

  // by[s ^ 1] <- line s of `pairs` times x, for an even number of them
  void multiply_pairs(const R* x, int64_t count, R* by, int64_t first) const {
    for (int64_t s = 0; s < count; s += 2) {
      Vec<R> sum[2] = {}, other[2] = {};
      int64_t i = first;
      for (; i + 2 <= vectors; i += 2) {
        const Vec<R> y = load(x + i * W), z = load(x + (i + 1) * W);
#pragma GCC unroll 2
        for (int r = 0; r < 2; r++) {
          sum[r] = fma(load(pairs.at(s + r, i)), y, sum[r]);
          other[r] = fma(load(pairs.at(s + r, i + 1)), z, other[r]);
        }
      }
      if (i < vectors)
#pragma GCC unroll 2
        for (int r = 0; r < 2; r++) sum[r] = fma(load(pairs.at(s + r, i)), load(x + i * W), sum[r]);
      for (int r = 0; r < 2; r++) by[(s + r) ^ 1] = sum_lanes<R>(sum[r] + other[r])[0];
    }
  }

  // y <- y + the part of A x that C columns from k on have in it, theirs and that of their rows
  template <int C>
  LAPWING_INLINE void multiply_columns(int64_t k, const R* x, R* y) const {
    const R* line[C];
    Vec<R> by[C], sum[C] = {};
#pragma GCC unroll 8
    for (int c = 0; c < C; c++) line[c] = a.at(k + c, 0), by[c] = broadcast(x[k + c]);
    int64_t i = k / W;
    for (; i < vectors && i * W < k + C; i++) {
      const Vec<R> z = load(x + i * W);
      Vec<R> t = load(y + i * W);
#pragma GCC unroll 8
      for (int c = 0; c < C; c++) {
        const Vec<R> element = masked(load(line[c] + i * W), behind(k + c, i));
        t = fma(element, by[c], t);
        sum[c] = fma(element, z, sum[c]);
      }
      store(y + i * W, t);
    }
    for (; i < vectors; i++) {
      const Vec<R> z = load(x + i * W);
      Vec<R> t = load(y + i * W);
#pragma GCC unroll 8
      for (int c = 0; c < C; c++) {
        const Vec<R> element = load(line[c] + i * W);
        t = fma(element, by[c], t);
        sum[c] = fma(element, z, sum[c]);
      }
      store(y + i * W, t);
    }
#pragma GCC unroll 8
    for (int c = 0; c < C; c++) y[k + c] += sum_lanes<R>(sum[c])[0] + line[c][k + c] * x[k + c];
  }
  __attribute__((noinline)) void multiply_range(int64_t k, int64_t end, const R* x, R* y) const {
    for (; k + TOGETHER_BY <= end; k += TOGETHER_BY) multiply_columns<TOGETHER_BY>(k, x, y);
    for (; k < end; k++) multiply_columns<1>(k, x, y);
  }

  // y <- A x for the rows and columns from `first` on; by <- the products of x with the pairs that there are
  void multiply(int64_t first, const R* x, R* y, int64_t count, R* by) const {
    const int64_t order = n - first, from = first / W, some = parts(order);
    // equal areas of the triangle
    const auto begin = [&](int64_t p) { return p == some ? n : n - int64_t(double(order) * std::sqrt(1 - double(p) / double(some))); };
    each(some, [&](int64_t part) {
      R* to = part ? products.at(part, 0) : y;
      std::fill_n(to + from * W, (vectors - from) * W, R(0));
      if (part == 0) multiply_pairs(x, count, by, from);
      multiply_range(begin(part), begin(part + 1), x, to);
    });
    for (int64_t i = from; some > 1 && i < vectors; i++) {
      Vec<R> sum = load(y + i * W);
      for (int64_t part = 1; part < some; part++) sum += load(products.at(part, i));
      store(y + i * W, sum);
    }
  }

  // Columns [k, end) <- less the pairs of a panel
  template <int C>
  LAPWING_INLINE void update_columns(int64_t k, int64_t count) const {
    constexpr int V = 2;
    for (int64_t i = k / W; i < vectors; i += V) {
      const bool both = i + 1 < vectors;  // the vector behind the last one is there, and is not used
      Vec<R> x[C][V];
#pragma GCC unroll 8
      for (int c = 0; c < C; c++) x[c][0] = load(a.at(k + c, i)), x[c][1] = load(a.at(k + c, i + 1));
      for (int64_t s = 0; s < count; s++) {
        const Vec<R> y = load(pairs.at(s, i)), z = load(pairs.at(s, i + 1));
        const R* by = pairs.at(s ^ 1, 0) + k;
#pragma GCC unroll 8
        for (int c = 0; c < C; c++) {
          x[c][0] = less(y, broadcast(by[c]), x[c][0]);
          x[c][1] = less(z, broadcast(by[c]), x[c][1]);
        }
      }
#pragma GCC unroll 8
      for (int c = 0; c < C; c++) {
        store(a.at(k + c, i), x[c][0]);
        if (both) store(a.at(k + c, i + 1), x[c][1]);
      }
    }
  }
  __attribute__((noinline)) void update_range(int64_t k, int64_t end, int64_t count) const {
    for (; k + TOGETHER_BY <= end; k += TOGETHER_BY) update_columns<TOGETHER_BY>(k, count);
    for (; k < end; k++) update_columns<1>(k, count);
  }
  void update(int64_t first, int64_t count) const {
    constexpr int64_t TASK = 4 * TOGETHER_BY, TOGETHER_ORDER = 128;
    if (!team || n - first < TOGETHER_ORDER) return update_range(first, n, count);
    team->run((n - first + TASK - 1) / TASK, [&](int64_t task) {
      update_range(first + task * TASK, std::min(n, first + (task + 1) * TASK), count);
    });
  }

  // Column j <- d, e and the vector of a reflection H with H A H of the wanted form in it; v <- that vector. false: H is one.
  bool reflect(int64_t j, R* v, int64_t first) const {
    R* column = a.at(j, 0);
    d[j] = column[j];
    for (int64_t i = first; i < (j + 1) / W; i++) store(v + i * W, Vec<R>{});
    Vec<R> sum = {};
    for (int64_t i = (j + 1) / W; i < vectors; i++) {
      const Vec<R> x = masked(load(column + i * W), behind(j + 1, i));
      sum = fma(x, x, sum);
      store(v + i * W, x);
    }
    const R alpha = column[j + 1], rest = sum_lanes<R>(sum)[0];
    e[j] = alpha, tau[j] = 0;
    if (!(rest > LEAST)) return false;
    const R size = std::sqrt(alpha * alpha + rest), beta = alpha > 0 ? -size : size;
    const Vec<R> by = broadcast(1 / (alpha - beta));
    for (int64_t i = (j + 1) / W; i < vectors; i++) {
      const Vec<R> x = load(v + i * W) * by;
      store(v + i * W, x);
      store(column + i * W, x);
    }
    v[j + 1] = 1;
    e[j] = beta, tau[j] = (beta - alpha) / beta;
    return true;
  }

  void reduce() const {
    R by[64], more[64];
    for (int64_t first = 0; first < n; first += width) {
      const int64_t last = std::min(n, first + width), from = first / W;
      for (int64_t j = first; j < last; j++) {
        const int64_t count = 2 * (j - first);
        R *column = a.at(j, 0), *v = pairs.at(count, 0), *w = pairs.at(count + 1, 0);
        for (int64_t s = 0; s < count; s++) by[s] = pairs.at(s ^ 1, 0)[j];
        subtract_pairs(column, count, by, j / W);
        if (j == n - 1) {
          d[j] = column[j];
          return;
        }
        std::fill_n(w + from * W, (vectors - from) * W, R(0));
        if (!reflect(j, v, from)) {
          std::fill_n(v + from * W, (vectors - from) * W, R(0));
          continue;
        }
        // w <- tau (A v - (tau / 2) (v^T A v) v), where A is what the pairs have made of it
        multiply(j + 1, v, w, count, more);
        subtract_pairs(w, count, more, (j + 1) / W);
        std::fill(w + (j + 1) / W * W, w + j + 1, R(0));
        Vec<R> sum = {};
        for (int64_t i = (j + 1) / W; i < vectors; i++) sum = fma(load(v + i * W), load(w + i * W), sum);
        const Vec<R> scale = broadcast(tau[j]), part = broadcast(tau[j] * sum_lanes<R>(sum)[0] / 2);
        for (int64_t i = (j + 1) / W; i < vectors; i++) store(w + i * W, scale * less(part, load(v + i * W), load(w + i * W)));
      }
      if (last < n) update(last, 2 * (last - first));
    }
  }
};

// The largest element of a triangle of a row-major matrix, NaN or Inf where one is not finite
template <class R>
R largest_of_triangle(const R* a, int64_t n, bool upper) {
  Vec<R> largest = {};
  Mask<R> finite = largest == largest;
  R rest = 0;
  for (int64_t i = 0; i < n; i++) {
    int64_t j = upper ? i : 0;
    const int64_t end = upper ? n : i + 1;
    for (; j + LANES<R> <= end; j += LANES<R>) {
      const Vec<R> x = load(a + i * n + j);
      finite &= is_finite<R>(x);
      largest = larger<R>(largest, abs(x));
    }
    for (; j < end; j++) {
      const R x = std::abs(a[i * n + j]);
      if (!(x <= std::numeric_limits<R>::max())) return x;
      rest = std::max(rest, x);
    }
  }
  if (any(~finite)) return std::numeric_limits<R>::infinity();
  return std::max(rest, largest_lane<R>(largest)[0]);
}

// A = Q T Q^T, then what `solve` makes of T, then the vectors of A.
template <class R>
int64_t solve_by_tridiagonal(const R* a, int64_t n, bool upper, R* values, R* vectors, int threads, const TridiagonalSolver<R>& solve) {
  constexpr int W = LANES<R>;
  typedef Tridiagonalisation<R> Job;
  const R largest = largest_of_triangle(a, n, upper);
  if (!(largest <= std::numeric_limits<R>::max())) return 1;
  const int64_t ld = line_of<R, 1>(n + W), size = vectors ? n * ld : 0;
  QrRoom<R, 1> room(nullptr, n + W, n, n, n, 2 * n + Job::room(n) + size);
  Householder<R, 1>& h = room.h;
  R *d = room.rest, *e = d + n, *memory = e + n;
  const Lines<R, 1> pairs = take<R, 1>(memory, 2 * Job::panel_columns(n), n + W);
  const Lines<R, 1> products = take<R, 1>(memory, Job::parts(n), n + W);
  R* z = vectors ? memory : nullptr;
  const int power = largest > 0 ? std::max(std::ilogb(largest), std::numeric_limits<R>::min_exponent + 2) : 0;
  const R up = std::ldexp(R(1), -power);

  with_team(threads, [&](Team* team) {
    h.team = team;
    // Lines <- the columns from the diagonal on, their largest element about one
    if (upper)
      for (int64_t i = 0; i < n; i++) std::copy(a + i * (n + 1), a + (i + 1) * n, h.a.at(i, 0) + i);
    else
      room.read_columns(h.a, 0, a, n, n);
    for (int64_t i = 0; i < n; i++) {
      R* line = h.a.at(i, 0);
      std::fill(line + n, line + ld, R(0));
      if (power)
        for (int64_t k = i / W; k * W < n; k++) store(line + k * W, load(line + k * W) * broadcast(up));
    }
    for (int64_t s = 0; s < 2 * Job::panel_columns(n); s++) std::fill_n(pairs.at(s, 0), ld, R(0));
    const Job job = {h.a, n, (n + W - 1) / W, Job::panel_columns(n), d, e, h.tau, pairs, products, team};
    job.reduce();
  });

  // T = Z diag(d) Z^T
  if (int64_t status = solve(n, d, e, z, ld)) return status;
  for (int64_t i = 0; i < n; i++) values[i] = std::ldexp(d[i], power);
  if (!vectors) return 0;

  with_team(threads, [&](Team* team) {
    h.team = team;
    for (int64_t i = 0; i < n; i++) std::fill(z + i * ld + n, z + (i + 1) * ld, R(0));
    // Z <- Q Z. Q leaves the first row alone: seen from the second, reflection j begins at row j
    if (n > 2) {
      h.a = {h.a.x + 1, h.a.down, h.a.imag}, h.m = n - 1, h.vectors = (n - 1 + W - 1) / W;
      h.multiply(n - 2, {z + 1, ld, 0}, 0, n, false, true);
    }
    room.write_rows({z, ld, 0}, vectors, n, n, [](R*, int64_t) {});
  });
  return 0;
}

}  // namespace LAPWING_ISA
}  // namespace
}  // namespace lapwing
