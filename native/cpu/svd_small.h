// Singular values and vectors of many small matrices, for one instruction set. Included once for each, after simd.h.
//
// R, P and lanes as in solve_small.h, whose reading, writing and reflections are used. One-sided Jacobi on rows: rotations J
// make the rows of B orthogonal, J B = S W, so that B = J^H S W. A lane that has nothing to do rotates by the angle zero.
#include "cpu/solve_small.h"

namespace lapwing {
namespace {
namespace LAPWING_ISA {

// Matrices are scaled until their largest element is about one. A row whose square is below this counts as zero.
template <class R>
constexpr R NO_ROW = sizeof(R) == 4 ? R(1e-33) : R(1e-290);
constexpr int ROTATING_SWEEPS = 40;  // seven or eight are usual at order 32

// k rows of `length` elements, and behind each its row of J, up to `width`.
template <class R, int P>
struct Rows {
  Vec<R>* x;
  int64_t stride, k, length, width;
  Vec<R>* squares;  // of the norms

  LAPWING_INLINE Vec<R>* row(int64_t i) const { return x + i * stride; }
  LAPWING_INLINE Element<R, P> get(int64_t i, int64_t j) const { return LAPWING_ISA::get<R, P>(row(i) + j * P); }
  LAPWING_INLINE void set(int64_t i, int64_t j, const Element<R, P>& v) const { put<R, P>(row(i) + j * P, v); }
};

// p q^H, in two sums: one waits for the other no longer than it must
template <class R, int P>
LAPWING_INLINE Element<R, P> inner(const Vec<R>* p, const Vec<R>* q, int64_t length) {
  Element<R, P> sum[2] = {};
  int64_t j = 0;
  for (; j + 2 <= length; j += 2)
#pragma GCC unroll 2
    for (int u = 0; u < 2; u++)
      add_product<R, P>(sum[u], get<R, P>(p + (j + u) * P), conj<R, P>(get<R, P>(q + (j + u) * P)));
  if (j < length) add_product<R, P>(sum[0], get<R, P>(p + j * P), conj<R, P>(get<R, P>(q + j * P)));
  sum[0].re += sum[1].re;
  if constexpr (P == 2) sum[0].im += sum[1].im;
  return sum[0];
}

template <class R, int P>
LAPWING_INLINE void add_square(Vec<R>& sum, const Element<R, P>& x) {
  sum = fma(x.re, x.re, sum);
  if constexpr (P == 2) sum = fma(x.im, x.im, sum);
}

template <class R, int P>
struct Rotation {
  Vec<R> c;
  Element<R, P> s;

  // (p, q) <- (c p + s q, c q - conj(s) p)
  LAPWING_INLINE void apply(Element<R, P>& p, Element<R, P>& q) const {
    const Element<R, P> a = p, b = q;
    p.re = fma(s.re, b.re, c * a.re);
    q.re = fma(-s.re, a.re, c * b.re);
    if constexpr (P == 2) {
      p.re = fma(-s.im, b.im, p.re);
      p.im = fma(s.im, b.re, fma(s.re, b.im, c * a.im));
      q.re = fma(-s.im, a.im, q.re);
      q.im = fma(s.im, a.re, fma(-s.re, a.im, c * b.im));
    }
  }
};

// Rotates rows p and q, and takes their squares anew, always in the same order: a lane that rotates by zero keeps its bits.
template <class R, int P>
LAPWING_INLINE void rotate_rows(const Rows<R, P>& rows, int64_t p, int64_t q, const Rotation<R, P>& rotation) {
  Vec<R>*x = rows.row(p), *y = rows.row(q);
  Vec<R> xx[2] = {}, yy[2] = {};
  const auto rotate = [&](int64_t j) {
    Element<R, P> a = get<R, P>(x + j * P), b = get<R, P>(y + j * P);
    rotation.apply(a, b);
    put<R, P>(x + j * P, a);
    put<R, P>(y + j * P, b);
    return std::pair<Element<R, P>, Element<R, P>>(a, b);
  };
  const auto count = [&](int u, int64_t j) {
    const auto [a, b] = rotate(j);
    add_square<R, P>(xx[u], a);
    add_square<R, P>(yy[u], b);
  };
  int64_t j = 0;
  for (; j + 2 <= rows.length; j += 2) count(0, j), count(1, j + 1);
  if (j < rows.length) count(0, j);
  for (j = rows.length; j < rows.width; j++) rotate(j);
  rows.squares[p] = xx[0] + xx[1];
  rows.squares[q] = yy[0] + yy[1];
}

template <class R, int P>
LAPWING_INLINE Vec<R> square_of_row(const Rows<R, P>& rows, int64_t i) {
  Vec<R> sum[2] = {};
  for (int64_t j = 0; j < rows.length; j++) add_square<R, P>(sum[j % 2], rows.get(i, j));
  return sum[0] + sum[1];
}

// The rotation that makes rows p and q orthogonal, and the lanes that need one. The larger row of a pair becomes its first:
// that brings the rows into order, and order brings convergence.
template <class R, int P>
LAPWING_INLINE Mask<R> find_rotation(const Rows<R, P>& rows, int64_t p, int64_t q, Vec<R> small, Rotation<R, P>& rotation) {
  const Vec<R> one = broadcast(R(1)), zero = {}, half = broadcast(R(0.5)), least = broadcast(NO_ROW<R>);
  const Vec<R> pp = rows.squares[p], qq = rows.squares[q];
  Element<R, P> cosine = inner<R, P>(rows.row(p), rows.row(q), rows.length);
  const Mask<R> both = (pp > least) & (qq > least);
  const Vec<R> by = rsqrt(pp > least ? pp : one) * rsqrt(qq > least ? qq : one);
  scale<R, P>(cosine, by);
  Vec<R> size, phase;
  if constexpr (P == 1) {
    size = abs(cosine.re);
  } else {
    const Vec<R> square = fma(cosine.re, cosine.re, cosine.im * cosine.im);
    phase = rsqrt(square > least ? square : one);
    size = square * phase;
  }
  const Mask<R> rotates = both & (size > small), swaps = ~rotates & (qq > pp * R(1.0625));
  // beside the product of the norms: tan(2 angle) = 2 size / gap
  const Vec<R> gap = fma(pp, by, -(qq * by));
  const Vec<R> inverse = rsqrt(rotates ? fma(gap, gap, 4 * size * size) : one);
  const Vec<R> square = fma(half * abs(gap), inverse, half), root = rsqrt(rotates ? square : one);
  const Vec<R> large = square * root, less = size * inverse * root;
  const Mask<R> forward = gap >= 0;
  rotation.c = rotates ? (forward ? large : less) : swaps ? zero : one;
  const Vec<R> s = rotates ? (forward ? less : large) : swaps ? one : zero;
  if constexpr (P == 1) {
    rotation.s = {rotates ? with_sign<R>(s, cosine.re) : s};
  } else {
    phase *= s;
    rotation.s = {rotates ? cosine.re * phase : s, rotates ? cosine.im * phase : zero};
  }
  return rotates | swaps;
}

// Returns the lanes that are done.
template <class R, int P>
__attribute__((noinline)) Mask<R> orthogonalise(const Rows<R, P>& rows) {
  const int64_t k = rows.k;
  const Vec<R> small = broadcast(std::sqrt(R(rows.length)) * std::numeric_limits<R>::epsilon());
  for (int64_t i = 0; i < k; i++) rows.squares[i] = square_of_row<R, P>(rows, i);
  Mask<R> left = {};
  for (int sweep = 0; sweep < ROTATING_SWEEPS; sweep++) {
    left = Mask<R>{};
    // Every row with all after it, but two rows at a time, p with q and p + 1 with q - 1: one pair waits for its roots while
    // the other works.
    for (int64_t p = 0; p + 1 < k; p += 2)
      for (int64_t q = p + 1; q <= k; q++) {
        const bool first = q < k, second = q >= p + 3;
        Rotation<R, P> rotation[2];
        Mask<R> moves[2] = {};
        if (first) moves[0] = find_rotation<R, P>(rows, p, q, small, rotation[0]);
        if (second) moves[1] = find_rotation<R, P>(rows, p + 1, q - 1, small, rotation[1]);
        if (any(moves[0])) rotate_rows<R, P>(rows, p, q, rotation[0]);
        if (any(moves[1])) rotate_rows<R, P>(rows, p + 1, q - 1, rotation[1]);
        left |= moves[0] | moves[1];
      }
    if (!any(left)) break;
  }
  return ~left;
}

// Rows of unit length; where a row is zero, one that is orthogonal to all others: what is left of a unit vector, of the one
// that has most left.
template <class R, int P>
__attribute__((noinline)) void complete_rows(const Rows<R, P>& rows, Mask<R>* there) {
  const Vec<R> one = broadcast(R(1)), zero = {};
  for (int64_t i = 0; i < rows.k; i++) {
    const Mask<R> missing = ~there[i];
    if (!any(missing)) continue;
    Vec<R> best = broadcast(R(2));
    Mask<R> place = {};
    for (int64_t j = 0; j < rows.length; j++) {
      Vec<R> sum = {};
      for (int64_t r = 0; r < rows.k; r++) {
        Vec<R> next = sum;
        add_square<R, P>(next, rows.get(r, j));
        sum = there[r] ? next : sum;
      }
      const Mask<R> less = sum < best;
      best = less ? sum : best;
      place = less ? broadcast_int<R>(j) : place;
    }
    const auto keep = [&](int64_t j, const Element<R, P>& x) {
      Element<R, P> y = rows.get(i, j);
      y.re = missing ? x.re : y.re;
      if constexpr (P == 2) y.im = missing ? x.im : y.im;
      rows.set(i, j, y);
    };
    for (int64_t j = 0; j < rows.length; j++) keep(j, real<R, P>(place == broadcast_int<R>(j) ? one : zero));
    for (int time = 0; time < 2; time++)
      for (int64_t r = 0; r < rows.k; r++) {
        if (r == i || !any(there[r] & missing)) continue;
        Element<R, P> dot = inner<R, P>(rows.row(i), rows.row(r), rows.length);
        scale<R, P>(dot, there[r] ? -one : zero);
        for (int64_t j = 0; j < rows.length; j++) {
          Element<R, P> x = rows.get(i, j);
          add_product<R, P>(x, dot, rows.get(r, j));
          keep(j, x);
        }
      }
    const Vec<R> by = 1 / sqrt(square_of_row<R, P>(rows, i));
    for (int64_t j = 0; j < rows.length; j++) {
      Element<R, P> x = rows.get(i, j);
      scale<R, P>(x, by);
      keep(j, x);
    }
    there[i] |= missing;
  }
}

// A rotation by zero may change the sign of a zero, and a lane may rotate because others do: zeros come out as +0.
template <class R, int P>
LAPWING_INLINE Element<R, P> settled(Element<R, P> x) {
  x.re += Vec<R>{};
  if constexpr (P == 2) x.im += Vec<R>{};
  return x;
}

// A <- A scaled; the lanes that are finite. What is not becomes zero: it must not keep the others waiting.
template <class R, int P>
__attribute__((noinline)) Mask<R> scale_all(const View<R, P>& a, int64_t rows, int64_t columns, Vec<R>& down) {
  Vec<R> largest = {};
  Mask<R> finite = largest == largest;
  const auto each = [&](const auto& body) {
    for (int64_t i = 0; i < rows; i++)
      for (int64_t j = 0; j < columns * P; j++) body(a.at(i, 0)[j]);
  };
  each([&](Vec<R>& x) {
    finite &= is_finite<R>(x);
    largest = larger<R>(largest, abs(x));
  });
  const PowerOfTwo<R> power(finite ? largest : Vec<R>{});
  each([&](Vec<R>& x) { x = finite ? x * power.up : Vec<R>{}; });
  down = power.down;
  return finite;
}

}  // namespace LAPWING_ISA
}  // namespace
}  // namespace lapwing

#include "cpu/svd_bidiagonal.h"

namespace lapwing {
namespace {
namespace LAPWING_ISA {

template <class R, int P>
void svd_by_jacobi(Group<R, P> group) {
  constexpr int64_t C = REFLECTED<P>;
  const int64_t m = group.frame.size[1], n = group.frame.size[2], k = std::min(m, n), l = std::max(m, n);
  const bool vectors = group.frame.op == SVD, tall = m >= n;
  const bool reduced = 2 * l >= 3 * k;  // M = Q R first, which leaves R of order k
  const int64_t length = reduced ? k : l, width = length + (vectors ? k : 0);
  group.begin(2 * group.vectors(m, n) + 2 * k * (width + 1) * P + k * (P + 4) + group.vectors(k, k));

  const View<R, P> a = group.matrix(m, n), taus = group.column(k);
  read<R>(a.x, group.from(0, m * n), m, n * P, n * P);
  Vec<R> down;
  const Mask<R> finite = scale_all<R, P>(a, m, n, down);
  const View<R, P> tall_a = tall ? a : a.turned();  // M, l x k
  Rows<R, P> rows = {nullptr, (width | 1) * P, k, length, width, group.memory};
  group.memory += k;
  Mask<R>*place = reinterpret_cast<Mask<R>*>(group.memory), *there = place + k;
  group.memory += 2 * k;
  rows.x = group.memory;
  group.memory += k * rows.stride;

  if (reduced) reduce<R, P>(tall_a, taus, l, k);
  // B = R, or M^T
  for (int64_t i = 0; i < k; i++) {
    for (int64_t j = 0; j < length; j++)
      rows.set(i, j, !reduced ? tall_a.get(j, i) : j >= i ? tall_a.get(i, j) : real<R, P>(Vec<R>{}));
    for (int64_t j = length; j < width; j++) rows.set(i, j, real<R, P>(broadcast(R(j - length == i))));
  }
  const Mask<R> good = orthogonalise<R, P>(rows) & finite;

  // place[i]: the row that is i-th by size
  Mask<R> moved = {};
  for (int64_t i = 0; i < k; i++) {
    Mask<R> before = {};
    for (int64_t j = 0; j < k; j++) {
      const Vec<R> x = rows.squares[j], y = rows.squares[i];
      before -= j < i ? x >= y : x > y;
    }
    moved |= before ^ broadcast_int<R>(i);
    there[i] = before;
  }
  if (any(moved)) {
    for (int64_t i = 0; i < k; i++)
      for (int lane = 0; lane < LANES<R>; lane++) place[there[i][lane]][lane] = i;
    const View<R, P> from = {rows.x, rows.stride, P}, to = {group.memory, rows.stride, P};
    permute<R, P, false>(from, place, to, k, width);
    rows.x = group.memory;
    const View<R, 1> squares = {rows.squares, 1, 1}, sorted = {group.memory + k * rows.stride, 1, 1};
    permute<R, 1, false>(squares, place, sorted, k, 1);
    rows.squares = sorted.x;
  }
  group.memory += k * (rows.stride + 1);

  R* s = static_cast<R*>(group.frame.buffer[vectors ? 2 : 1]) + group.first * k;
  int32_t* info = group.integers(vectors ? 4 : 2, 1);
  Mask<R> all = ~Mask<R>{};
  for (int64_t i = 0; i < k; i++) {
    there[i] = rows.squares[i] > NO_ROW<R>;
    all &= there[i];
    const Vec<R> norm = there[i] ? sqrt(rows.squares[i]) : Vec<R>{}, by = 1 / (there[i] ? norm : broadcast(R(1)));
    for (int64_t j = 0; j < (vectors ? length : 0) * P; j++) rows.row(i)[j] *= by;
    const Vec<R> value = norm * down;
    for (int64_t lane = 0; lane < group.count; lane++) s[lane * k + i] = value[lane];
  }
  if (vectors) {
    if (__builtin_expect(any(~all), 0)) complete_rows<R, P>(rows, there);
    // M = (Q J^H) S W, or W^T S conj(J)
    const View<R, P> w = {rows.x, rows.stride, P}, rotations = w.from(0, length);
    View<R, P> large = group.matrix(m, n), small = group.matrix(k, k);
    const View<R, P> written[2] = {tall ? large : small, tall ? small : large};
    if (!tall) large = large.turned(), small = small.turned();
    for (int64_t i = 0; i < k; i++) {
      for (int64_t j = 0; j < k; j++) small.set(i, j, settled<R, P>(reduced ? w.get(i, j) : conj<R, P>(rotations.get(i, j))));
      for (int64_t j = 0; j < l; j++)
        large.set(j, i, settled<R, P>(!reduced ? w.get(i, j) : j < k ? conj<R, P>(rotations.get(i, j)) : real<R, P>(Vec<R>{})));
    }
    if (reduced)
      for (int64_t j = 0; j < k; j += C)
        for (int64_t i = k - 1; i >= 0; i--)
          reflect<R, P>(tall_a.from(i, i), taus.get(i, 0), large.from(i, j), l - i, std::min(C, k - j));
    write<R>(written[0].x, group.to(1, m * k), m, k * P, k * P);
    write<R>(written[1].x, group.to(3, k * n), k, n * P, n * P);
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

// ---- the choice ------------------------------------------------------------------------------------------

template <class R, int P>
void solve_any(const Frame& frame, int64_t first, int64_t last) {
  const bool positive = frame.flags & POS;
  for (; first < last; first += LANES<R>) {
    const Group<R, P> group = {frame, first, std::min<int64_t>(LANES<R>, last - first)};
    switch (frame.op) {
      case TRIANGULAR: triangular(group); break;
      case SOLVE: positive ? solve_positive(group) : solve_general(group); break;
      case INVERSE: positive ? inverse_positive(group) : inverse_general(group); break;
      case LU: lu(group); break;
      case LU_SOLVE: lu_solve(group); break;
      case CHOLESKY_SOLVE: cholesky_solve(group); break;
      case QR: qr(group); break;
      case QR_R: case QR_RAW: qr_alone(group); break;
      case LSTSQ: lstsq(group); break;
      case SVD: case SVDVALS:
        std::min(frame.size[1], frame.size[2]) <= SVD_JACOBI_LARGEST ? svd_by_jacobi(group) : svd_by_bidiagonal(group);
        break;
      default: determinant(group);
    }
  }
}

}  // namespace LAPWING_ISA
}  // namespace
}  // namespace lapwing
