// Singular values and vectors of one matrix by way of its bidiagonal form, for one instruction set. Included once for each, after simd.h.
//
// M = U B V^H by reflections from the left, H = I - tau v v^H, and from the right, G = I - tau w w^H; each changes M by a product of two
// vectors: M <- H^H M = M - v y^H and M <- M G = M - x w^H. The matrix lies by its columns. One pass over it finds y and, while a column
// is in the first cache, adds its part of x. A matrix that stays in the second cache is also updated in that pass, by the pairs of the
// step before; a larger one is updated once for a panel of steps.
#include "cpu/qr_small.h"

namespace lapwing {
namespace {
namespace LAPWING_ISA {

template <class R, int P>
struct Bidiagonalisation {
  typedef Scalar<R, P> T;
  typedef Element<R, P> E;
  static constexpr int W = LANES<R>;
  // Columns that are multiplied, or updated, together.
  static constexpr int TOGETHER_BY = (LAPWING_REGISTERS == 32 ? 8 : 4) / (2 * P - 1) / P * P;
  // A sum of squares below this, where the largest element is about one, is far below the rounding errors.
  static constexpr R LEAST = sizeof(R) == 4 ? R(1e-33) : R(1e-290);
  static constexpr int64_t WIDEST = 32;

  int64_t m, n;
  Lines<R, P> a;     // column c in line c; from step c on the vector v of that step
  Lines<R, P> w;     // the vectors w, a line for each step
  Lines<R, P> x, y;  // lines of the panel's steps
  Lines<R, P> sums;  // a line for each part of the columns
  T *left_tau, *right_tau;
  R *d, *e;
  Team* team;

  // Whether the matrix is updated in each step, and how many steps make a panel otherwise.
  static bool is_eager(int64_t m, int64_t n) { return m * n * int64_t(sizeof(T)) <= (768 << 10); }
  static int64_t panel_columns(int64_t m, int64_t n) { return is_eager(m, n) ? 2 : 32; }
  // The columns are summed in as many parts, whatever the number of threads: the same bits for any.
  static int64_t parts(int64_t n) { return n < 256 ? 1 : n < 1024 ? 4 : 8; }
  static int64_t room(int64_t m, int64_t n) {
    return panel_columns(m, n) * (line_of<R, P>(m) + line_of<R, P>(n + W)) + parts(n) * line_of<R, P>(m) + n * line_of<R, P>(n + W);
  }

  // task(i) for i in [0, count)
  template <class Task>
  void each(int64_t count, const Task& task) const {
    if (team && count > 1) return team->run(count, task);
    for (int64_t i = 0; i < count; i++) task(i);
  }

  static int64_t vectors(int64_t rows) { return (rows + W - 1) / W; }
  static LAPWING_INLINE T conjugate(T x) { return conjugated(x); }
  // x, which is vector i of a column, with zeros in the rows up to `row`
  static LAPWING_INLINE E behind(const E& x, int64_t row, int64_t i) {
    const Mask<R> wanted = lane_numbers<R>() + broadcast_int<R>(i * W) > broadcast_int<R>(row);
    E result = x;
    result.re = (Vec<R>)((Mask<R>)x.re & wanted);
    if constexpr (P == 2) result.im = (Vec<R>)((Mask<R>)x.im & wanted);
    return result;
  }

  // to <- to - sum over s < count of (by_p[s] p_s + by_q[s] q_s), the vectors [first, last) of the lines
  static __attribute__((noinline)) void subtract(const Lines<R, P>& to, const Lines<R, P>& p, const T* by_p, const Lines<R, P>& q,
                                                 const T* by_q, int64_t count, int64_t first, int64_t last) {
    constexpr int V = 4 / P;
    int64_t i = first;
    const auto add = [&](auto whole) {
      constexpr int N = decltype(whole)::value;
      E t[N];
#pragma GCC unroll 4
      for (int v = 0; v < N; v++) t[v] = to.get(0, i + v);
      for (int64_t s = 0; s < count; s++) {
        const E c = spread<R, P>(-by_p[s]), f = spread<R, P>(-by_q[s]);
#pragma GCC unroll 4
        for (int v = 0; v < N; v++) {
          add_product<R, P>(t[v], p.get(s, i + v), c);
          add_product<R, P>(t[v], q.get(s, i + v), f);
        }
      }
#pragma GCC unroll 4
      for (int v = 0; v < N; v++) to.set(0, i + v, t[v]);
      i += N;
    };
    while (i + V <= last) add(std::integral_constant<int, V>());
    while (i < last) add(std::integral_constant<int, 1>());
  }
  // by_p[s] <- p_s^H v and by_q[s] <- q_s^H v for s < count
  static __attribute__((noinline)) void multiply(const Lines<R, P>& v, const Lines<R, P>& p, T* by_p, const Lines<R, P>& q, T* by_q,
                                                 int64_t count, int64_t first, int64_t last) {
    for (int64_t s = 0; s < count; s++) {
      E sum[2] = {}, other[2] = {};
      int64_t i = first;
      for (; i + 2 <= last; i += 2) {
        const E t = v.get(0, i), u = v.get(0, i + 1);
        add_product<R, P>(sum[0], conj<R, P>(p.get(s, i)), t);
        add_product<R, P>(sum[1], conj<R, P>(q.get(s, i)), t);
        add_product<R, P>(other[0], conj<R, P>(p.get(s, i + 1)), u);
        add_product<R, P>(other[1], conj<R, P>(q.get(s, i + 1)), u);
      }
      if (i < last) {
        add_product<R, P>(sum[0], conj<R, P>(p.get(s, i)), v.get(0, i));
        add_product<R, P>(sum[1], conj<R, P>(q.get(s, i)), v.get(0, i));
      }
      by_p[s] = first_lane<R, P>(sum_lanes_of<R, P>(sum[0])) + first_lane<R, P>(sum_lanes_of<R, P>(other[0]));
      by_q[s] = first_lane<R, P>(sum_lanes_of<R, P>(sum[1])) + first_lane<R, P>(sum_lanes_of<R, P>(other[1]));
    }
  }

  struct Reflection {
    T alpha, tau;
    R beta;
  };
  // H^H x = beta e1, H = I - tau v v^H, where x is the line from element j on. The line <- v, with a one at j and zeros before it in the
  // same vector. tau = 0 means H = I.
  static Reflection reflect(const Lines<R, P>& line, int64_t j, int64_t last) {
    const T alpha = scalar_at<R, P>(line, 0, j);
    Vec<R> sum = {};
    for (int64_t i = j / W; i < last; i++) {
      const E t = i == j / W ? behind(line.get(0, i), j, i) : line.get(0, i);
      sum = fma(t.re, t.re, sum);
      if constexpr (P == 2) sum = fma(t.im, t.im, sum);
    }
    const R rest = sum_lanes<R>(sum)[0] + std::imag(alpha) * std::imag(alpha);
    Reflection h = {alpha, T(0), std::real(alpha)};
    E by = {};
    if (rest > LEAST) {
      const R size = std::sqrt(std::real(alpha) * std::real(alpha) + rest);
      h.beta = std::real(alpha) > 0 ? -size : size;
      h.tau = (h.beta - alpha) / h.beta;
      by = spread<R, P>(R(1) / (alpha - h.beta));
    }
    line.set(0, j / W, product<R, P>(behind(line.get(0, j / W), j, j / W), by));
    for (int64_t i = j / W + 1; i < last; i++) line.set(0, i, product<R, P>(line.get(0, i), by));
    set_scalar<R, P>(line, 0, j, T(1));
    return h;
  }

  // For C columns of M from c on, where y and u begin with what the pairs of earlier steps add to them:
  //   y <- y + tau M^H v,  u <- u + conj(row j of M) - y,  z <- z + M u
  // u is kept in the line of w. EAGER: first M <- M - v y^H - x w^H with the vectors of step `before`.
  template <int C, bool EAGER>
  LAPWING_INLINE void pass_columns(int64_t j, int64_t c, int64_t before, const Lines<R, P>& y_now, const Lines<R, P>& u, R* z) const {
    const int64_t first = j / W, last = vectors(m);
    const Lines<R, P> column = a.from(c, 0), v = a.from(j, 0), sum_line = {z, 0, sums.imag};
    E sum[C] = {};
    if constexpr (EAGER) {
      const Lines<R, P> v_before = a.from(before, 0), x_before = x.from(before % 2, 0);
      E by_y[C], by_w[C];
#pragma GCC unroll 8
      for (int q = 0; q < C; q++) {
        by_y[q] = spread<R, P>(-conjugate(scalar_at<R, P>(y, before % 2, c + q)));
        by_w[q] = spread<R, P>(-conjugate(scalar_at<R, P>(w, before, c + q)));
      }
      for (int64_t i = first; i < last; i++) {
        const E p = v_before.get(0, i), r = x_before.get(0, i), t = v.get(0, i);
#pragma GCC unroll 8
        for (int q = 0; q < C; q++) {
          E s = column.get(q, i);
          add_product<R, P>(s, p, by_y[q]);
          add_product<R, P>(s, r, by_w[q]);
          column.set(q, i, s);
          add_product<R, P>(sum[q], conj<R, P>(s), t);
        }
      }
    } else {
      for (int64_t i = first; i < last; i++) {
        const E t = v.get(0, i);
#pragma GCC unroll 8
        for (int q = 0; q < C; q++) add_product<R, P>(sum[q], conj<R, P>(column.get(q, i)), t);
      }
    }
    E by[C];
#pragma GCC unroll 8
    for (int q = 0; q < C; q++) {
      const T product = first_lane<R, P>(sum_lanes_of<R, P>(sum[q]));
      const T now = times<R, P>(left_tau[j], product) + scalar_at<R, P>(y_now, 0, c + q);
      const T row = conjugate(scalar_at<R, P>(column, q, j)) - now + scalar_at<R, P>(u, 0, c + q);
      set_scalar<R, P>(y_now, 0, c + q, now);
      set_scalar<R, P>(u, 0, c + q, row);
      by[q] = spread<R, P>(row);
    }
    for (int64_t i = first; i < last; i++) {
      E t = sum_line.get(0, i);
#pragma GCC unroll 8
      for (int q = 0; q < C; q++) add_product<R, P>(t, column.get(q, i), by[q]);
      sum_line.set(0, i, t);
    }
  }
  template <bool EAGER>
  __attribute__((noinline)) void pass_range(int64_t j, int64_t c, int64_t end, const Lines<R, P>& y_now, const Lines<R, P>& u, R* z) const {
    for (; c + TOGETHER_BY <= end; c += TOGETHER_BY) pass_columns<TOGETHER_BY, EAGER>(j, c, j - 1, y_now, u, z);
    for (; c < end; c++) pass_columns<1, EAGER>(j, c, j - 1, y_now, u, z);
  }
  void pass(int64_t j, bool update, const Lines<R, P>& y_now, const Lines<R, P>& u) const {
    const int64_t first = j / W * W, count = n - j - 1, some = parts(count);
    each(some, [&](int64_t part) {
      R* z = sums.at(part, 0);
      std::fill(z + first, z + vectors(m) * W, R(0));
      if constexpr (P == 2) std::fill(z + sums.imag + first, z + sums.imag + vectors(m) * W, R(0));
      const auto begin = [&](int64_t p) { return j + 1 + p * count / some; };
      if (update)
        pass_range<true>(j, begin(part), begin(part + 1), y_now, u, z);
      else
        pass_range<false>(j, begin(part), begin(part + 1), y_now, u, z);
    });
  }

  // C columns of M from c on <- M - V Y^H - X W^H with the vectors of the steps [first, last), from row `last` on
  template <int C>
  LAPWING_INLINE void update_columns(int64_t c, int64_t first, int64_t last) const {
    constexpr int V = 2;
    const int64_t count = last - first, end = vectors(m);
    const Lines<R, P> column = a.from(c, 0), v = a.from(first, 0), right = w.from(first, 0);
    const auto update = [&](auto whole, int64_t i) {
      constexpr int N = decltype(whole)::value;
      E t[C][N];
#pragma GCC unroll 8
      for (int q = 0; q < C; q++)
#pragma GCC unroll 2
        for (int k = 0; k < N; k++) t[q][k] = column.get(q, i + k);
      for (int64_t s = 0; s < count; s++) {
        E p[N], r[N];
#pragma GCC unroll 2
        for (int k = 0; k < N; k++) p[k] = v.get(s, i + k), r[k] = x.get(s, i + k);
#pragma GCC unroll 8
        for (int q = 0; q < C; q++) {
          const E by_y = negative<R, P>(conj<R, P>(spread<R, P>(scalar_at<R, P>(y, s, c + q))));
          const E by_w = negative<R, P>(conj<R, P>(spread<R, P>(scalar_at<R, P>(right, s, c + q))));
#pragma GCC unroll 2
          for (int k = 0; k < N; k++) {
            add_product<R, P>(t[q][k], p[k], by_y);
            add_product<R, P>(t[q][k], r[k], by_w);
          }
        }
      }
#pragma GCC unroll 8
      for (int q = 0; q < C; q++)
#pragma GCC unroll 2
        for (int k = 0; k < N; k++) column.set(q, i + k, t[q][k]);
    };
    int64_t i = last / W;
    for (; i + V <= end; i += V) update(std::integral_constant<int, V>(), i);
    for (; i < end; i++) update(std::integral_constant<int, 1>(), i);
  }
  void update(int64_t first, int64_t last) const {
    constexpr int64_t TASK = 4 * TOGETHER_BY;
    each((n - last + TASK - 1) / TASK, [&](int64_t task) {
      int64_t c = last + task * TASK;
      const int64_t end = std::min(n, c + TASK);
      for (; c + TOGETHER_BY <= end; c += TOGETHER_BY) update_columns<TOGETHER_BY>(c, first, last);
      for (; c < end; c++) update_columns<1>(c, first, last);
    });
  }

  // d and e <- the bidiagonal matrix
  void reduce() const {
    const bool eager = is_eager(m, n);
    const int64_t width = panel_columns(m, n), rows = vectors(m), columns = vectors(n);
    T by_v[WIDEST], by_x[WIDEST], by_y[WIDEST], by_w[WIDEST];
    for (int64_t j = 0; j < n; j++) {
      // the pairs that columns behind this one have not seen: of the steps from `first` on
      const int64_t first = eager ? std::max<int64_t>(0, j - 1) : j / width * width, count = j - first, slot = j % width;
      const Lines<R, P> v_before = a.from(first, 0), w_before = w.from(first, 0);
      const Lines<R, P> x_before = x.from(first % width, 0), y_before = y.from(first % width, 0);
      const Lines<R, P> v = a.from(j, 0), u = w.from(j, 0), x_now = x.from(slot, 0), y_now = y.from(slot, 0);
      for (int64_t s = 0; s < count; s++) {
        by_y[s] = conjugate(scalar_at<R, P>(y_before, s, j));
        by_w[s] = conjugate(scalar_at<R, P>(w_before, s, j));
      }
      subtract(v, v_before, by_y, x_before, by_w, count, j / W, rows);
      const Reflection h = reflect(v, j, rows);
      d[j] = h.beta, left_tau[j] = h.tau;
      e[j] = 0, right_tau[j] = 0;
      if (j == n - 1) return;

      clear_line<R, P>(u, 0, columns + 1);  // the vectors are also read from the second element on
      clear_line<R, P>(y_now, 0, columns);
      if (!eager && count) {
        multiply(v, v_before, by_v, x_before, by_x, count, j / W, rows);
        for (int64_t s = 0; s < count; s++) by_v[s] = times<R, P>(h.tau, by_v[s]), by_x[s] = times<R, P>(h.tau, by_x[s]);
        subtract(y_now, y_before, by_v, w_before, by_x, count, j / W, columns);
        for (int64_t s = 0; s < count; s++) {
          by_v[s] = conjugate(scalar_at<R, P>(v_before, s, j));
          by_x[s] = conjugate(scalar_at<R, P>(x_before, s, j));
        }
        subtract(u, y_before, by_v, w_before, by_x, count, j / W, columns);
      }
      pass(j, eager && count, y_now, u);
      const Reflection g = reflect(u, j + 1, columns);
      e[j] = g.beta, right_tau[j] = g.tau;

      // x <- tau M w, where w = (u - beta e1) / (alpha - beta) and M u is the sum of the parts
      const int64_t from = (j + 1) / W, some = parts(n - j - 1);
      if (g.tau == T(0)) {
        clear_line<R, P>(x_now, 0, rows);
      } else {
        const E scale = spread<R, P>(times<R, P>(g.tau, R(1) / (g.alpha - g.beta))), less = spread<R, P>(T(-g.beta));
        for (int64_t i = from; i < rows; i++) {
          E t = sums.get(0, i);
          for (int64_t part = 1; part < some; part++) {
            const E other = sums.get(part, i);
            t.re += other.re;
            if constexpr (P == 2) t.im += other.im;
          }
          add_product<R, P>(t, a.get(j + 1, i), less);
          x_now.set(0, i, product<R, P>(t, scale));
        }
        // M is what the pairs, and v and y of this step, have made of it
        const int64_t begin = eager ? j : first, now = j + 1 - begin;
        multiply(u, y.from(begin % width, 0), by_v, w.from(begin, 0), by_x, now, from, columns);
        by_x[now - 1] = 0;  // x of this step is what is being found
        for (int64_t s = 0; s < now; s++) by_v[s] = times<R, P>(g.tau, by_v[s]), by_x[s] = times<R, P>(g.tau, by_x[s]);
        subtract(x_now, a.from(begin, 0), by_v, x.from(begin % width, 0), by_x, now, from, rows);
      }
      for (int64_t i = from * W; i <= j; i++) set_scalar<R, P>(x_now, 0, i, T(0));
      if (!eager && slot == width - 1) update(first, j + 1);
    }
  }
};

// The largest part of an element, NaN or Inf where one is not finite
template <class R>
R largest_of(const R* a, int64_t count) {
  Vec<R> largest = {};
  Mask<R> finite = largest == largest;
  int64_t i = 0;
  for (; i + LANES<R> <= count; i += LANES<R>) {
    const Vec<R> x = load(a + i);
    finite &= is_finite<R>(x);
    largest = larger<R>(largest, abs(x));
  }
  R rest = largest_lane<R>(largest)[0];
  for (; i < count; i++) {
    if (!(std::abs(a[i]) <= std::numeric_limits<R>::max())) return std::numeric_limits<R>::infinity();
    rest = std::max(rest, std::abs(a[i]));
  }
  return any(~finite) ? std::numeric_limits<R>::infinity() : rest;
}

// A = U S V^H: M = A or A^H, whichever is not wide; M = Q R first where it is tall; then B = U^H M V, what `solve` makes of B, and back.
template <class R, int P>
int64_t solve_by_bidiagonal(const SvdOfOne<Scalar<R, P>>& call, int threads, const BidiagonalSolver<R>& solve) {
  typedef Scalar<R, P> T;
  typedef Bidiagonalisation<R, P> Job;
  constexpr int W = LANES<R>;
  const bool tall = call.m > call.n, vectors = call.u;
  const int64_t m = std::max(call.m, call.n), n = std::min(call.m, call.n), left_columns = vectors ? (call.full ? m : n) : 0;
  const R* from = reinterpret_cast<const R*>(call.a);
  const R largest = largest_of(from, m * n * P);
  if (!(largest <= std::numeric_limits<R>::max())) return 1;
  const bool reduced = svd_reduces_first(m, n);
  const int64_t rows = reduced ? n : m, right_line = line_of<R, P>(n + W), left_line = line_of<R, P>(m);

  const int64_t found = vectors ? left_columns * left_line + n * right_line + n * line_of<R, 1>(n) : 0;
  QrRoom<R, P> room(nullptr, m, n, n, std::max(n, left_columns),
                    Job::room(rows, n) + (reduced ? n * line_of<R, P>(n) : 0) + found + 2 * n * P + 2 * n + 4 * W);
  R* memory = room.rest;
  Job job = {};
  job.m = rows, job.n = n;
  job.a = reduced ? take<R, P>(memory, n, n) : room.h.a;
  job.w = take<R, P>(memory, n, n + W);
  job.x = take<R, P>(memory, Job::panel_columns(rows, n), rows);
  job.y = take<R, P>(memory, Job::panel_columns(rows, n), n + W);
  job.sums = take<R, P>(memory, Job::parts(n), rows);
  const Lines<R, P> left = take<R, P>(memory, left_columns, m), right = take<R, P>(memory, vectors ? n : 0, n + W);
  const Lines<R, 1> turned = take<R, 1>(memory, vectors ? n : 0, n);
  const int64_t taus = (n * P + W - 1) / W * W;
  job.right_tau = reinterpret_cast<T*>(memory), memory += taus;
  job.left_tau = reduced ? reinterpret_cast<T*>(memory) : room.h.tau, memory += taus;
  job.d = memory, job.e = memory + n;

  const int power = largest > 0 ? std::max(std::ilogb(largest), std::numeric_limits<R>::min_exponent + 2) : 0;
  with_team(threads, [&](Team* team) {
    room.h.team = job.team = team;
    const Lines<R, P>& lines = room.h.a;
    if (tall) {
      room.read_columns(lines, 0, from, m, n);
    } else {
      for (int64_t i = 0; i < n; i++) {
        read_line<R, P>(lines, i, from + i * m * P, m);
        if constexpr (P == 2)
          for (int64_t k = 0; k < m; k++) lines.at(i, 0)[lines.imag + k] *= -1;
      }
    }
    if (power) {
      const Vec<R> up = broadcast(std::ldexp(R(1), -power));
      for (int64_t i = 0; i < n; i++)
        for (int64_t k = 0; k < Job::vectors(m); k++) {
          Element<R, P> t = lines.get(i, k);
          scale<R, P>(t, up);
          lines.set(i, k, t);
        }
    }
    if (reduced) {
      room.h.reduce(n, n);
      for (int64_t j = 0; j < n; j++) {
        clear_line<R, P>(job.a, j, Job::vectors(n));
        for (int part = 0; part < P; part++)
          std::copy_n(lines.at(j, 0) + part * lines.imag, j + 1, job.a.at(j, 0) + part * job.a.imag);
      }
    }
    job.reduce();
  });

  // B = X S Y^T
  for (int64_t k = 0; k < left_columns; k++) clear_line<R, P>(left, k, Job::vectors(m));
  if (int64_t status = solve(n, job.d, job.e, vectors ? left.x : nullptr, left.down, turned.x, turned.down)) return status;
  for (int64_t i = 0; i < n; i++) call.s[i] = std::ldexp(std::abs(job.d[i]), power);  // never -0, which some LAPACKs leave
  if (!vectors) return 0;

  with_team(threads, [&](Team* team) {
    room.h.team = team;
    for (int64_t k = n; k < left_columns; k++) set_scalar<R, P>(left, k, k, T(1));
    for (int64_t k = 0; k < n; k++) clear_line<R, P>(right, k, Job::vectors(n) + 1);
    const int64_t whole = n / W * W;
    transpose_block<R>(turned.x, turned.down, right.x, right.down, whole, whole);
    for (int64_t k = 0; k < n; k++)
      for (int64_t i = k < whole ? whole : 0; i < n; i++) right.at(k, 0)[i] = turned.at(i, 0)[k];

    const Householder<R, P>& q = room.h;
    const Householder<R, P> h = {job.a, q.v, job.left_tau, q.t, rows, team, q.wide};
    h.multiply(n, left, 0, reduced ? n : left_columns, false, true);
    if (reduced) q.multiply(n, left, 0, left_columns, false, true);
    if (n > 1) {  // G leaves the first row alone: seen from the second, reflection j begins at row j
      const Householder<R, P> g = {{job.w.x + 1, job.w.down, job.w.imag}, q.v, job.right_tau, q.t, n - 1, team, q.wide};
      g.multiply(n - 1, {right.x + 1, right.down, right.imag}, 0, n, false, true);
    }
    const auto keep = [](R*, int64_t) {};
    const auto write_adjoint = [&](const Lines<R, P>& columns, R* out, int64_t count, int64_t length) {
      for (int64_t k = 0; k < count; k++) {
        write_line<R, P>(columns, k, out + k * length * P, length);
        if constexpr (P == 2)
          for (int64_t i = 0; i < length; i++) out[(k * length + i) * 2 + 1] *= -1;
      }
    };
    R *u = reinterpret_cast<R*>(call.u), *vh = reinterpret_cast<R*>(call.vh);
    room.write_rows(tall ? left : right, u, call.m, tall ? left_columns : n, keep);
    write_adjoint(tall ? right : left, vh, tall ? n : left_columns, call.n);
  });
  return 0;
}

}  // namespace LAPWING_ISA
}  // namespace
}  // namespace lapwing
