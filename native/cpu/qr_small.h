// QR of one matrix of middle size, and what is made of it, for one instruction set. Included once for each, after simd.h.
//
// R is the real scalar, P how many make an element: 1 real, 2 complex. The matrix lies by its columns: column j is line j, so that the
// lanes run along a column. Reflections are applied BLOCK at a time, to a few columns whose sums stay in registers. Panels of several
// blocks are applied to the same few columns one block after the other, while these are in the first cache.
#include "cpu/lines.h"

namespace lapwing {
namespace {
namespace LAPWING_ISA {

constexpr int BLOCK = 4;
// Columns that are reflected together.
template <int P>
constexpr int TOGETHER = LAPWING_REGISTERS == 32 ? 4 / P : 2 / P;

template <class R, int P>
LAPWING_INLINE Element<R, P> sum_lanes_of(const Element<R, P>& x) {
  if constexpr (P == 1)
    return {sum_lanes<R>(x.re)};
  else
    return {sum_lanes<R>(x.re), sum_lanes<R>(x.im)};
}
template <class R, int P>
LAPWING_INLINE Scalar<R, P> first_lane(const Element<R, P>& x) {
  if constexpr (P == 1)
    return x.re[0];
  else
    return {x.re[0], x.im[0]};
}
template <class R, int P>
LAPWING_INLINE void set_scalar(const Lines<R, P>& x, int64_t i, int64_t j, Scalar<R, P> value) {
  R* p = x.x + i * x.down + j;
  *p = std::real(value);
  if constexpr (P == 2) p[x.imag] = std::imag(value);
}

// Reflections whose product is I - V T V^H; V's lines begin at vector `begin` of the columns, with zeros and ones in place.
template <class R, int P>
struct Reflections {
  Lines<R, P> v;
  int64_t begin, vectors;  // vectors: the end of a column
  const Scalar<R, P>* triangle;  // T, BLOCK x BLOCK

  // C columns from line c on <- (I - V T V^H) times them, or with T^H
  template <int C, bool ADJOINT>
  LAPWING_INLINE void apply_to(const Lines<R, P>& x, int64_t c) const {
    const Lines<R, P> from = v, to = x.from(c, 0);
    const int64_t first = begin, last = vectors;
    const auto t = [&](int p, int q) { return triangle[p * BLOCK + q]; };
    Element<R, P> sum[BLOCK][C] = {};
    for (int64_t i = first; i < last; i++) {
      Element<R, P> y[C];
#pragma GCC unroll 4
      for (int j = 0; j < C; j++) y[j] = to.get(j, i);
#pragma GCC unroll 4
      for (int p = 0; p < BLOCK; p++) {
        const Element<R, P> w = conj<R, P>(from.get(p, i));
#pragma GCC unroll 4
        for (int j = 0; j < C; j++) add_product<R, P>(sum[p][j], w, y[j]);
      }
    }
    Element<R, P> by[BLOCK][C];
#pragma GCC unroll 4
    for (int j = 0; j < C; j++) {
#pragma GCC unroll 4
      for (int p = 0; p < BLOCK; p++) sum[p][j] = sum_lanes_of<R, P>(sum[p][j]);
#pragma GCC unroll 4
      for (int p = 0; p < BLOCK; p++) {
        by[p][j] = real<R, P>(Vec<R>{});
#pragma GCC unroll 4
        for (int q = ADJOINT ? 0 : p; q < (ADJOINT ? p + 1 : BLOCK); q++)
          add_product<R, P>(by[p][j], ADJOINT ? conj<R, P>(spread<R, P>(-t(q, p))) : spread<R, P>(-t(p, q)), sum[q][j]);
      }
    }
    for (int64_t i = first; i < last; i++) {
      Element<R, P> y[C];
#pragma GCC unroll 4
      for (int j = 0; j < C; j++) y[j] = to.get(j, i);
#pragma GCC unroll 4
      for (int p = 0; p < BLOCK; p++) {
        const Element<R, P> w = from.get(p, i);
#pragma GCC unroll 4
        for (int j = 0; j < C; j++) add_product<R, P>(y[j], w, by[p][j]);
      }
#pragma GCC unroll 4
      for (int j = 0; j < C; j++) to.set(j, i, y[j]);
    }
  }
};

template <class R, int P>
struct Householder {
  typedef Scalar<R, P> T;
  static constexpr int W = LANES<R>;
  Lines<R, P> a, v;  // the columns, padded with zeros; room for two panels
  T *tau, *t;        // t: the triangles of all blocks
  int64_t m = 0;
  Team* team = nullptr;  // null: one thread works on this matrix
  int64_t wide = BLOCK;  // columns of a panel
  int64_t vectors = (m + W - 1) / W;

  // A panel should stay in the second cache. Where all of the matrix does, one thread gains nothing by panels of several blocks.
  static int64_t panel_width(int64_t m, int64_t columns, const Team* team) {
    constexpr int64_t BYTES = 512 << 10, MOST = 32;
    if (!team && m * columns * int64_t(sizeof(T)) <= BYTES) return BLOCK;
    return std::clamp<int64_t>(BYTES / int64_t(sizeof(T)) / std::max<int64_t>(m, 1) / BLOCK * BLOCK, 2 * BLOCK, MOST);
  }
  // task(i) for i in [0, count)
  template <class Task>
  void each(int64_t count, const Task& task) const {
    if (team) return team->run(count, task);
    for (int64_t i = 0; i < count; i++) task(i);
  }

  // x^H y from vector `first` on
  LAPWING_INLINE T dot(const Lines<R, P>& x, int64_t i, const Lines<R, P>& y, int64_t j, int64_t first) const {
    Element<R, P> even = {}, odd = {};
    int64_t k = first;
    for (; k + 2 <= vectors; k += 2) {
      add_product<R, P>(even, conj<R, P>(x.get(i, k)), y.get(j, k));
      add_product<R, P>(odd, conj<R, P>(x.get(i, k + 1)), y.get(j, k + 1));
    }
    if (k < vectors) add_product<R, P>(even, conj<R, P>(x.get(i, k)), y.get(j, k));
    even.re += odd.re;
    if constexpr (P == 2) even.im += odd.im;
    return first_lane<R, P>(sum_lanes_of<R, P>(even));
  }

  // Line p of v <- what is behind row j of column j, with zeros before it and a one there
  LAPWING_INLINE void put_vector(int64_t j, int64_t p) const {
    for (int64_t k = j / BLOCK * BLOCK / W; k < j / W; k++) v.set(p, k, real<R, P>(Vec<R>{}));
    const Mask<R> below = lane_numbers<R>() > broadcast_int<R>(j % W), here = lane_numbers<R>() == broadcast_int<R>(j % W);
    Element<R, P> x = a.get(j, j / W);
    x.re = (Vec<R>)(((Mask<R>)x.re & below) | ((Mask<R>)broadcast(R(1)) & here));
    if constexpr (P == 2) x.im = (Vec<R>)((Mask<R>)x.im & below);
    v.set(p, j / W, x);
    for (int64_t k = j / W + 1; k < vectors; k++) v.set(p, k, a.get(j, k));
  }

  // The sum of squares behind row j of column j, each times by^2
  LAPWING_INLINE R squares(int64_t j, R by) const {
    const Mask<R> below = lane_numbers<R>() > broadcast_int<R>(j % W);
    Vec<R> sum = {};
    for (int64_t k = j / W; k < vectors; k++) {
      Element<R, P> x = a.get(j, k);
      scale<R, P>(x, broadcast(by));
      if (k == j / W) {
        x.re = (Vec<R>)((Mask<R>)x.re & below);
        if constexpr (P == 2) x.im = (Vec<R>)((Mask<R>)x.im & below);
      }
      sum = fma(x.re, x.re, sum);
      if constexpr (P == 2) sum = fma(x.im, x.im, sum);
    }
    return sum_lanes<R>(sum)[0];
  }

  // H^H x = beta e1 for what is from row j on of column j, H = I - tau v v^H
  LAPWING_INLINE void reflect_column(int64_t j) const {
    constexpr R LEAST = std::numeric_limits<R>::min() / (std::numeric_limits<R>::epsilon() * std::numeric_limits<R>::epsilon());
    const T alpha = scalar_at<R, P>(a, j, j);
    R by = 1, rest = squares(j, by), square = rest + std::norm(alpha);
    if (!(square > LEAST && square < std::numeric_limits<R>::max())) {  // squares that left the range, or lost digits
      R largest = 0;
      for (int64_t i = j; i < m; i++)
        largest = std::max({largest, std::abs(std::real(scalar_at<R, P>(a, j, i))), std::abs(std::imag(scalar_at<R, P>(a, j, i)))});
      if (largest > 0 && largest <= std::numeric_limits<R>::max()) {
        by = std::ldexp(R(1), -std::max(std::ilogb(largest), std::numeric_limits<R>::min_exponent));
        rest = squares(j, by), square = rest + std::norm(alpha * by);
      }
    }
    if (rest == 0 && std::imag(alpha) == 0) return (void)(tau[j] = 0);
    const R size = std::sqrt(square), beta = (std::real(alpha) > 0 ? -size : size);
    tau[j] = (beta - alpha * by) / beta;
    const Element<R, P> inverse = spread<R, P>(R(1) / (alpha * by - beta));
    for (int64_t k = j / W; k < vectors; k++) {
      Element<R, P> x = a.get(j, k);
      scale<R, P>(x, broadcast(by));
      x = product<R, P>(x, inverse);
      if (k > j / W) {
        a.set(j, k, x);
      } else {  // rows above stay
        const Mask<R> below = lane_numbers<R>() > broadcast_int<R>(j % W);
        Element<R, P> both = a.get(j, k);
        both.re = below ? x.re : both.re;
        if constexpr (P == 2) both.im = below ? x.im : both.im;
        a.set(j, k, both);
      }
    }
    set_scalar<R, P>(a, j, j, T(beta / by));
  }

  // The columns [first, last) <- R and the vectors of the reflections, which are also in the lines of v from `line` on
  __attribute__((noinline)) void reduce_panel(int64_t first, int64_t last, int64_t line) const {
    for (int64_t begin = first; begin < last; begin += BLOCK) {
      const int64_t here = line + begin - first;
      const int width = int(std::min<int64_t>(BLOCK, last - begin));
      clear_vectors(begin, width, here);
      for (int p = 0; p < width; p++) {
        const int64_t j = begin + p;
        reflect_column(j);
        put_vector(j, here + p);
        for (int q = p + 1; q < width; q++) {
          const T by = times<R, P>(conjugated(tau[j]), dot(v, here + p, a, begin + q, j / W));
          const Element<R, P> less = spread<R, P>(-by);
          for (int64_t k = j / W; k < vectors; k++) {
            Element<R, P> x = a.get(begin + q, k);
            add_product<R, P>(x, v.get(here + p, k), less);
            a.set(begin + q, k, x);
          }
        }
      }
      find_triangle(begin, width, here);
      apply<true>(begin, begin + width, here, a, begin + width, last);
    }
  }
  // T of the block of `width` reflections from `begin` on, whose vectors are in v from `line` on
  LAPWING_INLINE void find_triangle(int64_t begin, int width, int64_t line) const {
    T* block = t + begin * BLOCK;
    std::fill_n(block, BLOCK * BLOCK, T(0));
    for (int p = 0; p < width; p++) {
      // T(:, p) <- -tau T V^H v
      const int64_t j = begin + p;
      T product[BLOCK];
      for (int q = 0; q < p; q++) product[q] = dot(v, line + q, v, line + p, j / W);
      for (int q = 0; q < p; q++) {
        T sum = 0;
        for (int k = q; k < p; k++) sum += times<R, P>(block[q * BLOCK + k], product[k]);
        block[q * BLOCK + p] = -times<R, P>(tau[j], sum);
      }
      block[p * BLOCK + p] = tau[j];
    }
  }
  // Lines of a block behind its `width` vectors have no part in it
  LAPWING_INLINE void clear_vectors(int64_t begin, int width, int64_t line) const {
    for (int p = width; p < BLOCK; p++)
      for (int64_t k = begin / W; k < vectors; k++) v.set(line + p, k, real<R, P>(Vec<R>{}));
  }

  // Columns [c, end) of x <- the reflections [first, last), whose vectors are in v from `line` on, or their adjoint, times them.
  // triangular: a column is zero from the row behind its number on, and reflections of those rows do not change it.
  template <bool ADJOINT>
  __attribute__((noinline)) void apply(int64_t first, int64_t last, int64_t line, const Lines<R, P>& x, int64_t c, int64_t end,
                                       bool triangular = false) const {
    constexpr int C = TOGETHER<P>;
    while (c < end) {
      const bool whole = c + C <= end;
      const int64_t reached = triangular ? std::min(last, c + C) : last, blocks = (reached - first + BLOCK - 1) / BLOCK;
      for (int64_t i = 0; i < blocks; i++) {
        const int64_t at = (ADJOINT ? i : blocks - 1 - i) * BLOCK;
        const Reflections<R, P> block = {v.from(line + at, 0), (first + at) / W, vectors, t + (first + at) * BLOCK};
        if (whole)
          block.template apply_to<C, ADJOINT>(x, c);
        else
          block.template apply_to<1, ADJOINT>(x, c);
      }
      c += whole ? C : 1;
    }
  }

  // Columns of a task
  int64_t share(int64_t columns) const {
    if (!team) return std::max<int64_t>(1, columns);
    return std::clamp<int64_t>(columns / (4 * team->threads()) / TOGETHER<P> * TOGETHER<P>, TOGETHER<P>, 32);
  }

  // `steps` columns <- R and the vectors of the reflections, those behind up to `columns` <- Q^H times them. While a panel is applied
  // one thread already reduces the next.
  void reduce(int64_t steps, int64_t columns) const {
    reduce_panel(0, std::min(wide, steps), 0);
    for (int64_t first = 0, line = 0; first < steps; first += wide, line = wide - line) {
      const int64_t last = std::min(first + wide, steps), next = std::min(last + wide, steps), width = share(columns - next);
      each(1 + (columns - next + width - 1) / width, [&](int64_t task) {
        const int64_t c = next + (task - 1) * width;
        if (task) return apply<true>(first, last, line, a, c, std::min(columns, c + width));
        if (next == last) return;
        apply<true>(first, last, line, a, last, next);
        reduce_panel(last, next, wide - line);
      });
    }
  }

  // Columns [begin, end) of x <- Q times them. triangular: column j has nothing from row j on but a one in its diagonal. fresh: only
  // the vectors and tau are known of the reflections.
  void multiply(int64_t steps, const Lines<R, P>& x, int64_t begin, int64_t end, bool triangular, bool fresh = false) const {
    const auto put_panel = [&](int64_t first, int64_t line) {
      const int64_t last = std::min(first + wide, steps);
      for (int64_t j = first; j < last; j++) put_vector(j, line + j - first);
      clear_vectors((last - 1) / BLOCK * BLOCK, int((last - 1) % BLOCK + 1), line + (last - 1) / BLOCK * BLOCK - first);
      for (int64_t block = first; fresh && block < last; block += BLOCK)
        find_triangle(block, int(std::min<int64_t>(BLOCK, last - block)), line + block - first);
    };
    const int64_t top = (steps - 1) / wide * wide;
    put_panel(top, 0);
    for (int64_t first = top, line = 0; first >= 0; first -= wide, line = wide - line) {
      const int64_t last = std::min(first + wide, steps), from = triangular ? std::max(begin, first) : begin, width = share(end - from);
      each(1 + (end - from + width - 1) / width, [&](int64_t task) {
        const int64_t c = from + (task - 1) * width;
        if (task) return apply<false>(first, last, line, x, c, std::min(end, c + width), triangular);
        if (first) put_panel(first - wide, wide - line);
      });
    }
  }
};

// ---- one matrix of a frame -------------------------------------------------------------------------------------------------

// The memory of a matrix of `rows` rows and up to `columns` columns.
template <class R, int P>
struct QrRoom {
  static constexpr int W = LANES<R>;
  static constexpr size_t KEPT = 16 << 20;  // more than this is given back after the call
  Householder<R, P> h;
  int64_t widest;
  R* rest;
  Pages held{nullptr, std::free};

  QrRoom(Team* team, int64_t rows, int64_t columns, int64_t steps, int64_t widest, int64_t extra) : widest(widest) {
    const int64_t scalars = (steps + BLOCK) * (BLOCK + 1) * P / W * W + W, wide = Householder<R, P>::panel_width(rows, columns, team);
    const size_t bytes = sizeof(R) * size_t((columns + 2 * wide) * line_of<R, P>(rows) + scalars + extra);
    if (bytes > KEPT) held = huge_pages_of(bytes);
    R* memory = bytes > KEPT ? reinterpret_cast<R*>(held.get()) : static_cast<R*>(scratch<1>(bytes));
    const Lines<R, P> a = take<R, P>(memory, columns, rows), v = take<R, P>(memory, 2 * wide, rows);
    Scalar<R, P>* tau = reinterpret_cast<Scalar<R, P>*>(memory);
    h = {a, v, tau, tau + steps, rows, team, wide};
    rest = memory + scalars;
  }

  // body(strip, i) for every W-th row i; the strip has room for W rows
  template <class Body>
  void each_strip(int64_t rows, const Body& body) const {
    const int64_t height = h.team ? std::max<int64_t>(W, 65536 / std::max<int64_t>(1, widest) / W * W) : rows;
    if (!rows) return;
    h.each((rows + height - 1) / height, [&](int64_t task) {
      R* memory = static_cast<R*>(scratch<2>(sizeof(R) * size_t(W * line_of<R, P>(widest))));
      const Lines<R, P> strip = take<R, P>(memory, W, widest);
      for (int64_t i = task * height; i < std::min(rows, (task + 1) * height); i += W) body(strip, i);
    });
  }

  // Lines from `first` on <- the columns of a, which is row-major
  void read_columns(const Lines<R, P>& to, int64_t first, const R* a, int64_t rows, int64_t columns) const {
    const int64_t whole = (columns + W - 1) / W * W;
    each_strip(rows, [&](const Lines<R, P>& strip, int64_t i) {
      for (int64_t r = 0; r < W; r++)
        if (i + r < rows)
          read_line<R, P>(strip, r, a + (i + r) * columns * P, columns);
        else
          clear_line<R, P>(strip, r, whole / W);
      move(strip, to.from(first, i / W), columns);
    });
  }
  // The transpose of W rows; lines that are only there to fill a vector are not written
  void move(const Lines<R, P>& from, const Lines<R, P>& to, int64_t columns) const {
    const int64_t full = columns / W * W;
    transpose_lines<R, P>(from, to, W, full);
    for (int64_t j = full; j < columns; j++)
      for (int64_t r = 0; r < W; r++) set_scalar<R, P>(to, j, r, scalar_at<R, P>(from, r, j));
  }
  // out, row-major, <- the first `rows` rows of the columns
  template <class Change>
  void write_rows(const Lines<R, P>& from, R* out, int64_t rows, int64_t columns, const Change& change) const {
    const int64_t full = columns / W * W;
    each_strip(rows, [&](const Lines<R, P>& strip, int64_t i) {
      transpose_lines<R, P>(from.from(0, i / W), strip, full, W);
      for (int64_t j = full; j < columns; j++)
        for (int64_t r = 0; r < W; r++) set_scalar<R, P>(strip, r, j, scalar_at<R, P>(from, j, i + r));
      for (int64_t r = 0; r < std::min<int64_t>(W, rows - i); r++) {
        write_line<R, P>(strip, r, out + (i + r) * columns * P, columns);
        change(out + (i + r) * columns * P, i + r);
      }
    });
  }
};

// QR, QR_R and QR_RAW
template <class R, int P>
void qr_one(const Frame& frame, Team* team, int64_t at) {
  typedef Scalar<R, P> T;
  constexpr int W = LANES<R>;
  const int64_t m = frame.size[1], n = frame.size[2], k = std::min(m, n), c = frame.op == QR ? frame.size[3] : k;
  const bool raw = frame.op == QR_RAW, forms_q = frame.op == QR;
  const R* a = static_cast<const R*>(frame.buffer[0]) + at * m * n * P;
  R* first = static_cast<R*>(frame.buffer[1]) + at * (forms_q ? m * c : raw ? n * m : k * n) * P;
  R* second = forms_q ? static_cast<R*>(frame.buffer[2]) + at * c * n * P : raw ? static_cast<R*>(frame.buffer[2]) + at * k * P : nullptr;
  // the first k columns decide Q; what is not finite behind them spoils its own column of R alone
  bool finite = true;
  const int64_t checked = forms_q ? n : k;
  for (int64_t i = 0; i < m; i++) finite = all_finite(reinterpret_cast<const T*>(a) + i * n, checked) && finite;
  if (!finite) {
    fill_nan(first, (forms_q ? m * c : raw ? m * n : k * n) * P);
    if (second) fill_nan(second, (forms_q ? c * n : k) * P);
    return;
  }
  const QrRoom<R, P> room(team, m, n, k, std::max(n, c), forms_q ? c * line_of<R, P>(m) : 0);
  const Householder<R, P>& h = room.h;
  room.read_columns(h.a, 0, a, m, n);
  h.reduce(k, n);
  const auto keep = [](R*, int64_t) {};
  if (raw) {
    for (int64_t j = 0; j < n; j++) write_line<R, P>(h.a, j, first + j * m * P, m);
    std::copy_n(h.tau, k, reinterpret_cast<T*>(second));
    return;
  }
  room.write_rows(h.a, forms_q ? second : first, c, n, [&](R* row, int64_t i) { std::fill_n(row, std::min(i, n) * P, R(0)); });
  if (!forms_q) return;
  R* memory = room.rest;
  const Lines<R, P> q = take<R, P>(memory, c, m);
  for (int64_t j = 0; j < c; j++) {
    clear_line<R, P>(q, j, (m + W - 1) / W);
    set_scalar<R, P>(q, j, j, T(1));
  }
  h.multiply(k, q, 0, c, true);
  room.write_rows(q, first, m, c, keep);
}

// x <- R^-1 Q^H b, or for a wide matrix Q R^-H b with A^H = Q R, if the rank is certainly full
template <class R, int P>
void lstsq_one(const Frame& frame, Team* team, int64_t at) {
  typedef Scalar<R, P> T;
  const int64_t m = frame.size[1], n = frame.size[2], k = frame.size[3], longer = std::max(m, n), least = std::min(m, n);
  const R* a = static_cast<const R*>(frame.buffer[0]) + at * m * n * P;
  const R* b = static_cast<const R*>(frame.buffer[1]) + at * m * k * P;
  T* x = static_cast<T*>(frame.buffer[2]) + at * n * k;
  R* residuals = static_cast<R*>(frame.buffer[3]) + at * k;
  int32_t& rank = static_cast<int32_t*>(frame.buffer[4])[at];
  rank = UNPROVEN, static_cast<int32_t*>(frame.buffer[5])[at] = 0;
  const bool tall = m >= n;
  const QrRoom<R, P> room(team, longer, least + k, least, std::max(n, k), (least * least + longer) * P);
  const Householder<R, P>& h = room.h;
  if (tall) {
    room.read_columns(h.a, 0, a, m, n);
  } else {
    for (int64_t i = 0; i < m; i++) {
      read_line<R, P>(h.a, i, a + i * n * P, n);
      if constexpr (P == 2)
        for (int64_t j = 0; j < n; j++) h.a.at(i, 0)[h.a.imag + j] *= -1;
    }
    for (int64_t j = 0; j < k; j++) clear_line<R, P>(h.a, least + j, h.vectors);
  }
  room.read_columns(h.a, least, b, m, k);
  h.reduce(least, tall ? n + k : least);
  T *r = reinterpret_cast<T*>(room.rest), *column = r + least * least;
  for (int64_t j = 0; j < least; j++)
    for (int64_t i = 0; i <= j; i++) r[j * least + i] = scalar_at<R, P>(h.a, j, i);
  for (int64_t j = 0; j < least; j++)
    if (!all_finite(r + j * least, j + 1)) return;
  if (!has_full_rank<T>(r, least, least, rcond_of(frame))) return;
  for (int64_t j = 0; j < k; j++) {
    for (int64_t i = 0; i < least; i++) column[i] = scalar_at<R, P>(h.a, least + j, i);
    R sum = 0;
    for (int64_t i = n; i < m; i++) sum += std::norm(scalar_at<R, P>(h.a, least + j, i));
    residuals[j] = sum;
    solve_upper<T>(r, least, least, column, !tall);
    for (int64_t i = 0; i < least; i++) set_scalar<R, P>(h.a, least + j, i, column[i]);
  }
  if (!tall) h.multiply(least, h.a, least, least + k, false);
  for (int64_t j = 0; j < k; j++)
    for (int64_t i = 0; i < n; i++) x[i * k + j] = scalar_at<R, P>(h.a, least + j, i);
  rank = int32_t(least);
}

// team: all of its threads work on each matrix
template <class R, int P>
void factor_orthogonal(const Frame& frame, Team* team, int64_t first, int64_t last) {
  for (; first < last; first++) frame.op == LSTSQ ? lstsq_one<R, P>(frame, team, first) : qr_one<R, P>(frame, team, first);
}

}  // namespace LAPWING_ISA
}  // namespace
}  // namespace lapwing
