// Singular values and vectors of many matrices that are too large for Jacobi's method, for one instruction set. Included once for
// each, by svd_small.h.
//
// M = U B V^H by reflections, B real and bidiagonal; B = X S Y^T by the QR iteration with implicit shifts. R, P and lanes as in
// solve_small.h. A lane that has nothing to do rotates by the angle zero.

namespace lapwing {
namespace {
namespace LAPWING_ISA {

// Rotations of columns i and i + 1, i = first .. last - 1, of one side.
template <class R>
struct SideSweep {
  int64_t first, last;
  const Vec<R>* rotations;  // cosine and sine, by i
};

// Sweeps whose rotations are kept until the vectors are rotated by all of them.
constexpr int SVD_SWEEPS_KEPT = 8;
// LAPACK's limit for each singular value; about two sweeps are usual.
constexpr int64_t SVD_SWEEPS_LIMIT = 30;

// One sweep on B: each lane works on a block of its own, rows low .. high, within the range that is swept for all.
template <class R>
struct BidiagonalSweep {
  static constexpr R EPS = std::numeric_limits<R>::epsilon();
  static constexpr R LEAST_SQUARE = sizeof(R) == 4 ? R(1e-33) : R(1e-290);

  Vec<R>*d, *e;
  Mask<R> low, high;
  Vec<R> start;        // where the block begins: the first column of B^T B - shift^2 is (start, e) times a number
  Vec<R> f, g, diagonal, above;
  Vec<R> right_c, right_s, left_c, left_s;

  // The last block of each lane that has not fallen apart yet, and the shift for it. first and last narrow the search. Returns
  // whether there is a block.
  LAPWING_INLINE bool find(Vec<R> small, int64_t& first, int64_t& last, int64_t n) {
    low = high = broadcast_int<R>(n + 1);
    while (last > 0 && !any(abs(e[last - 1]) > small)) e[--last] = Vec<R>{};
    if (last == 0) return false;
    while (!any(abs(e[first]) > small)) e[first++] = Vec<R>{};
    const Vec<R> one = broadcast(R(1)), zero = {};
    Mask<R> begun = {}, done = {};
    Vec<R> top = one, top_e = zero, d0 = one, d1 = one, e0 = zero, largest = zero, smallest = one;
    for (int64_t i = last - 1; i >= first; i--) {
      const Mask<R> couples = abs(e[i]) > small, ends = couples & ~begun, inside = couples & ~done;
      e[i] = couples ? e[i] : zero;
      const Vec<R> here = abs(d[i]), next = abs(d[i + 1]), off = abs(e[i]);
      high = ends ? broadcast_int<R>(i + 1) : high;
      low = inside ? broadcast_int<R>(i) : low;
      d0 = ends ? here : d0, d1 = ends ? next : d1, e0 = ends ? off : e0;
      largest = ends ? next : largest, smallest = ends ? next : smallest;
      largest = inside ? larger<R>(larger<R>(largest, here), off) : largest;
      smallest = inside & (here < smallest) ? here : smallest;
      top = inside ? d[i] : top, top_e = inside ? e[i] : top_e;
      done |= begun & ~couples;
      begun |= couples;
    }
    // The shift is the smaller singular value of the last two rows, without squares that would lose its digits. No shift where a
    // singular value of the block is zero: that sweep brings it to the end of the block, others would not move it.
    const Vec<R> sum = d0 + d1, gap = d0 - d1, square = e0 * e0;
    const Vec<R> twice = sqrt(fma(sum, sum, square)) + sqrt(fma(gap, gap, square));
    const Vec<R> size = abs(top), shift = 2 * d0 * (d1 / (twice > 0 ? twice : one));
    const Mask<R> shifted = (smallest > 4 * EPS * largest) & (shift * shift > EPS * size * size);
    const Vec<R> safe = shifted ? top : one;
    start = shifted ? (size - shift) * (with_sign<R>(one, top) + shift / safe) : top;
    return true;
  }
  LAPWING_INLINE void begin(int64_t first) {
    diagonal = d[first], above = e[first];
    f = g = Vec<R>{};
  }
  static LAPWING_INLINE Vec<R> rotation(Vec<R> f, Vec<R> g, Mask<R> inside, Vec<R>& c, Vec<R>& s) {
    const Vec<R> square = fma(f, f, g * g);
    const Mask<R> rotates = inside & (square > LEAST_SQUARE);
    const Vec<R> inverse = rsqrt(rotates ? square : broadcast(R(1)));
    c = rotates ? f * inverse : broadcast(R(1));
    s = rotates ? g * inverse : Vec<R>{};
    return rotates ? square * inverse : f;
  }
  // f is e[i - 1] as far as it is known.
  LAPWING_INLINE void step(int64_t i, int64_t first) {
    const Mask<R> at = broadcast_int<R>(i), starts = low == at, inside = (low <= at) & (high > at);
    // columns i and i + 1: what stood right of e[i - 1] vanishes
    const Vec<R> next = d[i + 1], next_above = e[i + 1];
    const Vec<R> waiting = f;
    f = starts ? start : f, g = starts ? above : g;
    const Vec<R> before = rotation(f, g, inside, right_c, right_s);
    if (i > first) e[i - 1] = starts ? waiting : before;
    f = fma(right_c, diagonal, right_s * above);
    const Vec<R> off = fma(-right_s, diagonal, right_c * above), below = right_s * next, corner = right_c * next;
    // rows i and i + 1: what stood below d[i] vanishes
    d[i] = rotation(f, below, inside, left_c, left_s);
    f = fma(left_c, off, left_s * corner);
    diagonal = fma(-left_s, off, left_c * corner);
    g = left_s * next_above;
    above = left_c * next_above;
  }
  LAPWING_INLINE void end(int64_t last) {
    d[last] = diagonal;
    e[last - 1] = f;
  }
};

// X <- X G for ROWS rows, all sweeps in turn: the rows stay in the first-level cache, an element in a register from one rotation to
// the next.
template <class R, int P, int ROWS>
__attribute__((noinline)) void rotate_columns(Vec<R>* x, int64_t stride, const SideSweep<R>* sweeps, int64_t count) {
  for (int64_t k = 0; k < count; k++) {
    const int64_t first = sweeps[k].first, last = sweeps[k].last;
    const Vec<R>* rotations = sweeps[k].rotations;
    Vec<R> carry[ROWS][P];
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 2
      for (int p = 0; p < P; p++) carry[r][p] = x[r * stride + first * P + p];
    for (int64_t i = first; i < last; i++) {
      const Vec<R> c = rotations[2 * i], s = rotations[2 * i + 1];
#pragma GCC unroll 8
      for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 2
        for (int p = 0; p < P; p++) {
          Vec<R>* at = x + r * stride + i * P + p;
          const Vec<R> next = at[P];
          at[0] = fma(s, next, c * carry[r][p]);
          carry[r][p] = fma(-s, carry[r][p], c * next);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 2
      for (int p = 0; p < P; p++) x[r * stride + last * P + p] = carry[r][p];
  }
}
template <class R, int P>
LAPWING_INLINE void rotate_all(const View<R, P>& x, int64_t rows, const SideSweep<R>* sweeps, int64_t count) {
  constexpr int ROWS = 4 / P;
  int64_t i = 0;
  for (; i + ROWS <= rows; i += ROWS) rotate_columns<R, P, ROWS>(x.at(i, 0), x.down, sweeps, count);
  for (; i < rows; i++) rotate_columns<R, P, 1>(x.at(i, 0), x.down, sweeps, count);
}

// B <- diagonal, U <- U X and V <- V Y with `u_rows` and `v_rows` rows, none where vectors are not wanted. Returns the lanes that
// are done. rotations: room for 4 n SVD_SWEEPS_KEPT vectors.
template <class R, int P>
__attribute__((noinline)) Mask<R> diagonalize_bidiagonal(Vec<R>* d, Vec<R>* e, int64_t n, Vec<R>* rotations, const View<R, P>& u,
                                                         int64_t u_rows, const View<R, P>& v, int64_t v_rows) {
  Vec<R> largest = {};
  for (int64_t i = 0; i < n; i++) largest = larger<R>(largest, larger<R>(abs(d[i]), abs(e[i])));
  const Vec<R> small = largest * std::numeric_limits<R>::epsilon();
  BidiagonalSweep<R> sweep;
  sweep.d = d, sweep.e = e;
  SideSweep<R> left[SVD_SWEEPS_KEPT], right[SVD_SWEEPS_KEPT];
  int64_t first = 0, last = n - 1, kept = 0;
  const auto rotate = [&] {
    rotate_all<R, P>(u, u_rows, left, kept);
    rotate_all<R, P>(v, v_rows, right, kept);
    kept = 0;
  };
  for (int64_t done = 0; done < SVD_SWEEPS_LIMIT * n && sweep.find(small, first, last, n); done++) {
    Vec<R>*left_rotations = rotations + 4 * n * kept, *right_rotations = left_rotations + 2 * n;
    left[kept] = {first, last, left_rotations};
    right[kept] = {first, last, right_rotations};
    sweep.begin(first);
    for (int64_t i = first; i < last; i++) {
      sweep.step(i, first);
      left_rotations[2 * i] = sweep.left_c, left_rotations[2 * i + 1] = sweep.left_s;
      right_rotations[2 * i] = sweep.right_c, right_rotations[2 * i + 1] = sweep.right_s;
    }
    sweep.end(last);
    if (++kept == SVD_SWEEPS_KEPT) rotate();
  }
  rotate();
  Mask<R> good = ~Mask<R>{};
  for (int64_t i = 0; i < n; i++) good &= (abs(e[i]) <= small) & is_finite<R>(d[i]);
  return good;
}

// A <- B with the vectors of the reflections below and right of it: A = U B V^H, U = H(0) H(1) ..., H(r) = I - tau v v^H with v in
// column r from the diagonal on, V = G(0) G(1) ..., G(r) = I - tau w w^H with conj(w) in row r behind the diagonal.
template <class R, int P>
__attribute__((noinline)) void bidiagonalize(const View<R, P>& a, int64_t rows, int64_t columns, Vec<R>* d, Vec<R>* e,
                                             const View<R, P>& taus, const View<R, P>& row_taus) {
  for (int64_t r = 0; r < columns; r++) {
    make_reflection<R, P>(a.from(r, r), rows - r, taus.from(r, 0));
    d[r] = a.get(r, r).re;
    e[r] = Vec<R>{};
    const int64_t rest = columns - r - 1;
    if (rest == 0) break;
    // A <- H^H A
    reflect<R, P>(a.from(r, r), conj<R, P>(taus.get(r, 0)), a.from(r, r + 1), rows - r, rest);
    const View<R, P> row = a.from(r, r + 1).turned();
    const auto conjugate = [&] {
      if constexpr (P == 2)
        for (int64_t j = 0; j < rest; j++) row.set(j, 0, conj<R, P>(row.get(j, 0)));
    };
    conjugate();
    make_reflection<R, P>(row, rest, row_taus.from(r, 0));
    conjugate();
    e[r] = row.get(0, 0).re;
    // A <- A G, that is A^T <- (I - tau conj(w) w^T) A^T
    reflect<R, P>(row, row_taus.get(r, 0), a.from(r + 1, r + 1).turned(), rest, rows - r - 1);
  }
}

// X <- the product of `count` reflections, `columns` of its columns; reflection r has the vector vector(r)
// and begins at row r + below. A tile of columns takes all reflections while it is in the first-level cache.
template <class R, int P, class Vector, class Tau>
LAPWING_INLINE void form_product(const View<R, P>& x, int64_t rows, int64_t columns, int64_t count, int64_t below,
                                 const Vector& vector, const Tau& tau) {
  constexpr int64_t C = REFLECTED<P>;
  const Element<R, P> zero = real<R, P>(Vec<R>{}), one = real<R, P>(broadcast(R(1)));
  for (int64_t j = 0; j < columns; j += C) {
    const int64_t width = std::min(C, columns - j);
    for (int64_t i = 0; i < rows; i++)
      for (int64_t c = 0; c < width; c++) x.set(i, j + c, i == j + c ? one : zero);
    for (int64_t r = std::min(count, j + width - below) - 1; r >= 0; r--)
      reflect<R, P>(vector(r), tau(r), x.from(r + below, j), rows - r - below, width);
  }
}

// order[j]: the place of the j-th largest of |d|
template <class R>
LAPWING_INLINE void order_values(const Vec<R>* d, int64_t n, Mask<R>* order) {
  for (int64_t j = 0; j < n; j++) {
    Mask<R> before = {};
    for (int64_t i = 0; i < n; i++) before -= i < j ? abs(d[i]) >= abs(d[j]) : abs(d[i]) > abs(d[j]);
    for (int lane = 0; lane < LANES<R>; lane++) order[before[lane]][lane] = j;
  }
}

// Element (i, j) of matrix m at out + i down + j right <- column order[j] of x, with the sign of its d where `sign` says so
template <class R, int P>
__attribute__((noinline)) void write_ordered(const View<R, P>& x, int64_t rows, int64_t columns, const Mask<R>* order,
                                             const Vec<R>* d, bool sign, const Places<R>& out, int64_t count, int64_t down,
                                             int64_t right) {
  constexpr int W = LANES<R>;
  int32_t from[W][SVD_LARGEST];
  R by[W][SVD_LARGEST];
  for (int64_t m = 0; m < count; m++)
    for (int64_t j = 0; j < columns; j++) {
      const int64_t place = order[j][m];
      from[m][j] = int32_t(place * P * W + m);
      by[m][j] = sign && d[place][m] < 0 ? R(-1) : R(1);
    }
  for (int64_t i = 0; i < rows; i++) {
    const R* row = reinterpret_cast<const R*>(x.at(i, 0));
    for (int64_t m = 0; m < count; m++) {
      R* to = out[m] + i * down * P;
      for (int64_t j = 0; j < columns; j++)
        for (int p = 0; p < P; p++) to[j * right * P + p] = row[from[m][j] + p * W] * by[m][j] + R(0);
    }
  }
}

template <class R, int P>
void svd_by_bidiagonal(Group<R, P> group) {
  constexpr int64_t C = REFLECTED<P>;
  const int64_t m = group.frame.size[1], n = group.frame.size[2], k = std::min(m, n), l = std::max(m, n);
  const bool vectors = group.frame.op == SVD, tall = m >= n;
  const bool reduced = 2 * l >= 3 * k;  // M = Q R first, which leaves R of order k
  const int64_t rows = reduced ? k : l;
  group.begin(group.vectors(m, n) + group.vectors(rows, k) * (vectors + reduced) + vectors * group.vectors(k, k) +
              vectors * reduced * group.vectors(l, k) + k * (3 + 3 * P + 4 * SVD_SWEEPS_KEPT));

  View<R, P> a = group.matrix(m, n);
  const View<R, P> taus = group.column(k), row_taus = group.column(k), q_taus = group.column(k);
  const auto take = [&](int64_t count) { return std::exchange(group.memory, group.memory + count); };
  Vec<R>*d = take(k), *e = take(k), *rotations = take(4 * k * SVD_SWEEPS_KEPT);
  Mask<R>* order = reinterpret_cast<Mask<R>*>(take(k));
  read<R>(a.x, group.from(0, m * n), m, n * P, n * P);
  Vec<R> down;
  const Mask<R> finite = scale_all<R, P>(a, m, n, down);
  if (!tall) a = a.turned();  // M, l x k
  View<R, P> b = a;           // what is made bidiagonal, rows x k
  if (reduced) {
    reduce<R, P>(a, q_taus, l, k);
    b = group.matrix(k, k);
    for (int64_t i = 0; i < k; i++)
      for (int64_t j = 0; j < k; j++) b.set(i, j, j >= i ? a.get(i, j) : real<R, P>(Vec<R>{}));
  }
  bidiagonalize<R, P>(b, rows, k, d, e, taus, row_taus);
  // U, and conj(V), whose reflections have the vectors that are stored
  View<R, P> u = {}, v = {};
  if (vectors) {
    u = group.matrix(rows, k), v = group.matrix(k, k);
    form_product<R, P>(u, rows, k, k, 0, [&](int64_t r) { return b.from(r, r); }, [&](int64_t r) { return taus.get(r, 0); });
    form_product<R, P>(v, k, k, k - 1, 1, [&](int64_t r) { return b.from(r, r + 1).turned(); },
                       [&](int64_t r) { return conj<R, P>(row_taus.get(r, 0)); });
  }
  const Mask<R> good = finite & diagonalize_bidiagonal<R, P>(d, e, k, rotations, u, vectors ? rows : 0, v, vectors ? k : 0);
  order_values<R>(d, k, order);

  R* s = static_cast<R*>(group.frame.buffer[vectors ? 2 : 1]) + group.first * k;
  int32_t* info = group.integers(vectors ? 4 : 2, 1);
  for (int64_t lane = 0; lane < group.count; lane++)
    for (int64_t i = 0; i < k; i++) s[lane * k + i] = std::abs(d[order[i][lane]][lane]) * down[lane];
  if (vectors) {
    View<R, P> large = u;
    if (reduced) {  // Q U
      large = group.matrix(l, k);
      for (int64_t i = 0; i < l; i++)
        for (int64_t j = 0; j < k; j++) large.set(i, j, i < k ? u.get(i, j) : real<R, P>(Vec<R>{}));
      for (int64_t j = 0; j < k; j += C)
        for (int64_t i = k - 1; i >= 0; i--)
          reflect<R, P>(a.from(i, i), q_taus.get(i, 0), large.from(i, j), l - i, std::min(C, k - j));
    }
    // M = U S V^H, or its transpose conj(V) S U^T
    const Places<R> to_u = group.to(1, m * k), to_vh = group.to(3, k * n);
    write_ordered<R, P>(large, l, k, order, d, false, tall ? to_u : to_vh, group.count, tall ? k : 1, tall ? 1 : n);
    write_ordered<R, P>(v, k, k, order, d, true, tall ? to_vh : to_u, group.count, tall ? 1 : k, tall ? n : 1);
  }
  for (int64_t lane = 0; lane < group.count; lane++) {
    info[lane] = !good[lane];
    if (!info[lane]) continue;
    fill_nan(s + lane * k, k);
    if (!vectors) continue;
    fill_nan_at(group, 1, m * k, lane);
    fill_nan_at(group, 3, k * n, lane);
  }
}

}  // namespace LAPWING_ISA
}  // namespace
}  // namespace lapwing
