// Eigenvalues, eigenvectors and Schur forms of many small general matrices, for one instruction set. Included once for each,
// after simd.h.
//
// R is the real scalar, P how many make an element: 1 real, 2 complex. A lane is a matrix: all lanes do the same operations on
// numbers of their own, so a matrix gives the same bits in every lane, whatever its neighbours are. Each lane has its own active
// window of the Hessenberg matrix; outside its window a lane is reflected by the identity.
//
// Real matrices stay real until the Schur form is reached, by Francis' double shift, so that eigenvalues come in exact conjugate
// pairs and real ones have no imaginary part. Complex matrices use a single shift.
#include "cpu/solve_small.h"

namespace lapwing {
namespace {
namespace LAPWING_ISA {

template <class R>
constexpr R EIG_EPSILON = std::numeric_limits<R>::epsilon();
// Matrices are scaled until their largest element is about one. Below this a subdiagonal element counts as zero.
template <class R>
constexpr R EIG_LEAST = sizeof(R) == 4 ? R(1e-30) : R(1e-290);
// Back substitution: the least divisor, and the size from which a vector is scaled down. A sum of n products of the largest,
// divided by the least, is still a number.
template <class R>
constexpr R EIG_DIVISOR = sizeof(R) == 4 ? R(1e-17) : R(1e-116);
template <class R>
constexpr R EIG_LARGE = sizeof(R) == 4 ? R(1e10) : R(1e100);
// LAPACK gives up after 30 steps for an eigenvalue, on average. Here it is the limit of each: LAPACK takes what is left.
constexpr int EIG_STEPS = 60;
constexpr int BALANCING_SWEEPS = 8;

// ---- reflections I - tau v v^H, v = (1, v1, v2, ...), tau real ------------------------------------------

template <class R, int P>
LAPWING_INLINE Element<R, P> masked(Mask<R> keep, const Element<R, P>& yes, const Element<R, P>& no) {
  if constexpr (P == 1)
    return {keep ? yes.re : no.re};
  else
    return {keep ? yes.re : no.re, keep ? yes.im : no.im};
}

template <class R, int P>
LAPWING_INLINE Vec<R> square_of(const Element<R, P>& x) {
  if constexpr (P == 1)
    return x.re * x.re;
  else
    return fma(x.re, x.re, x.im * x.im);
}

// Which reflection takes (x0, x1, ...) to (beta, 0, ...); v_i = x_i by. The numbers are scaled: near one. `rest` is the sum of
// the squares from x1 on; where it is zero nothing is reflected.
template <class R, int P>
struct Mirror {
  Mask<R> turns;
  Element<R, P> beta, by;

  LAPWING_INLINE Mirror(const Element<R, P>& x0, Vec<R> rest, Mask<R> wanted) {
    const Vec<R> one = broadcast(R(1)), zero = {};
    const Vec<R> square = square_of<R, P>(x0), sum = square + rest;
    turns = wanted & (rest > 0);
    const Vec<R> norm = sqrt(turns ? sum : one);
    Vec<R> size;
    Element<R, P> phase;
    if constexpr (P == 1) {
      size = abs(x0.re);
      phase.re = with_sign<R>(one, x0.re);
    } else {
      // a first element that is far smaller than the rest may have any phase
      const Mask<R> there = square > std::numeric_limits<R>::min();
      const Vec<R> over = rsqrt(there ? square : one);
      size = there ? square * over : zero;
      phase = {there ? x0.re * over : one, there ? x0.im * over : zero};
    }
    const Vec<R> scale_by = turns ? 1 / (size + norm) : zero;
    by = conj<R, P>(phase);
    scale<R, P>(by, scale_by);
    beta = phase;
    scale<R, P>(beta, -norm);
    beta = masked<R, P>(turns, beta, x0);
  }

  // From the v that was rounded: what is reflected stays orthogonal to the last bit or two.
  LAPWING_INLINE Vec<R> tau(Vec<R> squares) const { return turns ? 2 / (1 + squares) : Vec<R>{}; }
};

// X <- (I - tau v v^H) X, or for the transposed view of X and CONJ: X <- X (I - tau v v^H). v is a column without its first one.
template <class R, int P, bool CONJ, int C>
LAPWING_INLINE void reflect_columns(const View<R, P>& v, Vec<R> tau, const View<R, P>& x, int64_t rows) {
  Element<R, P> sum[C];
#pragma GCC unroll 4
  for (int c = 0; c < C; c++) sum[c] = x.get(0, c);
  for (int64_t i = 1; i < rows; i++) {
    const Element<R, P> vi = CONJ ? v.get(i, 0) : conj<R, P>(v.get(i, 0));
#pragma GCC unroll 4
    for (int c = 0; c < C; c++) add_product<R, P>(sum[c], vi, x.get(i, c));
  }
#pragma GCC unroll 4
  for (int c = 0; c < C; c++) {
    scale<R, P>(sum[c], -tau);
    Element<R, P> first = x.get(0, c);
    first.re += sum[c].re;
    if constexpr (P == 2) first.im += sum[c].im;
    x.set(0, c, first);
  }
  for (int64_t i = 1; i < rows; i++) {
    const Element<R, P> vi = CONJ ? conj<R, P>(v.get(i, 0)) : v.get(i, 0);
#pragma GCC unroll 4
    for (int c = 0; c < C; c++) {
      Element<R, P> y = x.get(i, c);
      add_product<R, P>(y, vi, sum[c]);
      x.set(i, c, y);
    }
  }
}
template <class R, int P, bool CONJ>
__attribute__((noinline)) void reflect_all(const View<R, P>& v, Vec<R> tau, const View<R, P>& x, int64_t rows, int64_t columns) {
  constexpr int C = 4;
  int64_t j = 0;
  for (; j + C <= columns; j += C) reflect_columns<R, P, CONJ, C>(v, tau, x.from(0, j), rows);
  for (; j < columns; j++) reflect_columns<R, P, CONJ, 1>(v, tau, x.from(0, j), rows);
}

// ---- scaling, balancing, Hessenberg form ----------------------------------------------------------------

// to <- the matrices scaled by a power of two; `from` may be `to`. Those that are not finite become zero: they must not keep the
// others waiting. Returns the lanes that are finite.
template <class R, int P>
__attribute__((noinline)) Mask<R> scale_square(const View<R, P>& from, const View<R, P>& to, int64_t n, Vec<R>& down) {
  Vec<R> largest = {};
  Mask<R> finite = largest == largest;
  for (int64_t i = 0; i < n; i++)
    for (int64_t j = 0; j < n * P; j++) {
      const Vec<R> x = from.at(i, 0)[j];
      finite &= is_finite<R>(x);
      largest = larger<R>(largest, abs(x));
    }
  const PowerOfTwo<R> power(finite ? largest : Vec<R>{});
  for (int64_t i = 0; i < n; i++)
    for (int64_t j = 0; j < n * P; j++) to.at(i, 0)[j] = finite ? from.at(i, 0)[j] * power.up : Vec<R>{};
  down = power.down;
  return finite;
}

// H <- P^T H P with eigenvalues at the ends of the diagonal, in the lanes that are returned: see isolate.h. Row i is row order[i] of
// the matrix. room: as large as H
template <class R, int P>
__attribute__((noinline)) Mask<R> isolate_lanes(const View<R, P>& h, const View<R, P>& room, int64_t n, Mask<R>* order) {
  Mask<R> found = {};
  for (int64_t i = 0; i < n; i++) {
    Vec<R> row = {}, column = {};
    for (int64_t j = 0; j < n; j++)
      if (j != i) row = larger<R>(row, size_of<R, P>(h.get(i, j))), column = larger<R>(column, size_of<R, P>(h.get(j, i)));
    found |= (row == 0) | (column == 0);
  }
  for (int lane = 0; any(found) && lane < LANES<R>; lane++) {
    if (!found[lane]) continue;
    int64_t own[EIG_LARGEST];
    bool placed[EIG_LARGEST];
    const auto linked = [&](int64_t i, int64_t j) { return h.at(i, j)[0][lane] != 0 || h.at(i, j)[P - 1][lane] != 0; };
    isolate(n, linked, own, placed);
    for (int64_t i = 0; i < n; i++) {
      order[i][lane] = own[i];
      for (int64_t j = 0; j < n; j++)
        for (int p = 0; p < P; p++) room.at(i, j)[p][lane] = h.at(own[i], own[j])[p][lane];
    }
    for (int64_t i = 0; i < n; i++)
      for (int64_t j = 0; j < n; j++)
        for (int p = 0; p < P; p++) h.at(i, j)[p][lane] = room.at(i, j)[p][lane];
  }
  return found;
}

// Rows back to where they come from; element i of a column is `step` vectors behind the one before. room: n
template <class R>
void put_back(Mask<R> found, const Mask<R>* order, Vec<R>* x, int64_t step, int64_t n, Vec<R>* room) {
  for (int64_t i = 0; i < n; i++) room[i] = x[i * step];
  for (int lane = 0; lane < LANES<R>; lane++)
    for (int64_t i = 0; found[lane] && i < n; i++) x[order[i][lane] * step][lane] = room[i][lane];
}

// The length of a row or a column, whose squares may be too small to be written
template <class R, int P>
LAPWING_INLINE Vec<R> length_of(const Vec<R>* x, int64_t step, int64_t n) {
  Vec<R> largest = {}, sum = {};
  for (int64_t j = 0; j < n; j++)
    for (int p = 0; p < P; p++) largest = larger<R>(largest, abs(x[j * step + p]));
  const PowerOfTwo<R> power(largest);
  for (int64_t j = 0; j < n; j++)
    for (int p = 0; p < P; p++) {
      const Vec<R> scaled = x[j * step + p] * power.up;
      sum = fma(scaled, scaled, sum);
    }
  return sqrt(sum) * power.down;
}

// H <- D^-1 H D with powers of two in D, so that rows and columns have about the same length. With sums in the place of lengths
// some matrices would become larger (James, Langou and Lowery, 2014).
template <class R, int P>
__attribute__((noinline)) void balance(const View<R, P>& h, int64_t n, Vec<R>* d) {
  constexpr int MANTISSA = std::numeric_limits<R>::digits - 1, BIAS = std::numeric_limits<R>::max_exponent - 1;
  const R most = std::ldexp(R(1), BIAS / 2 - 8);  // the square of an element of D is a number
  const Vec<R> one = broadcast(R(1));
  for (int64_t i = 0; i < n; i++) d[i] = one;
  for (int sweep = 0; sweep < BALANCING_SWEEPS; sweep++) {
    Mask<R> changed = {};
    for (int64_t i = 0; i < n; i++) {
      const Vec<R> column = length_of<R, P>(h.at(0, i), h.down, n), row = length_of<R, P>(h.at(i, 0), h.right, n);
      const Mask<R> half = (((Mask<R>)row >> MANTISSA) - ((Mask<R>)column >> MANTISSA)) >> 1;
      const Vec<R> f = (Vec<R>)((half + BIAS) << MANTISSA), g = (Vec<R>)((BIAS - half) << MANTISSA), next = d[i] * f;
      const Mask<R> better = (column > EIG_LEAST<R>) & (row > EIG_LEAST<R>) & (next < most) & (next * most > 1) &
                             (column * f + row * g < R(0.95) * (column + row));
      if (!any(better)) continue;
      changed |= better;
      const Vec<R> by = better ? f : one, over = better ? g : one;
      d[i] *= by;
      for (int64_t j = 0; j < n; j++)
        for (int p = 0; p < P; p++) {
          h.at(i, j)[p] *= over;
          h.at(j, i)[p] *= by;
        }
    }
    if (!any(changed)) break;
  }
}

// H <- Q^H H Q, zero below its subdiagonal; Z <- Q where it is wanted
template <class R, int P>
__attribute__((noinline)) void to_hessenberg(const View<R, P>& h, const View<R, P>& z, int64_t n, Vec<R>* taus, bool vectors) {
  for (int64_t k = 0; k + 2 < n; k++) {
    const View<R, P> v = h.from(k + 1, k);
    const int64_t rows = n - k - 1;
    Vec<R> largest = {}, rest = {};
    for (int64_t i = 0; i < rows; i++) largest = larger<R>(largest, size_of<R, P>(v.get(i, 0)));
    const PowerOfTwo<R> power(largest);
    for (int64_t i = 0; i < rows; i++) {
      Element<R, P> x = v.get(i, 0);
      scale<R, P>(x, power.up);
      v.set(i, 0, x);
      if (i) rest += square_of<R, P>(x);
    }
    const Mirror<R, P> mirror(v.get(0, 0), rest, ~Mask<R>{});
    Vec<R> squares = {};
    for (int64_t i = 1; i < rows; i++) {
      const Element<R, P> x = product<R, P>(v.get(i, 0), mirror.by);
      squares += square_of<R, P>(x);
      v.set(i, 0, x);
    }
    const Vec<R> tau = mirror.tau(squares);
    Element<R, P> beta = mirror.beta;
    scale<R, P>(beta, power.down);
    v.set(0, 0, beta);
    taus[k] = tau;
    reflect_all<R, P, false>(v, tau, h.from(k + 1, k + 1), rows, rows);
    reflect_all<R, P, true>(v, tau, h.from(0, k + 1).turned(), rows, n);
  }
  if (vectors) {
    for (int64_t i = 0; i < n; i++) {
      std::fill_n(z.at(i, 0), (n + 1) * P, Vec<R>{});
      z.at(i, i)[0] = broadcast(R(1));
    }
    for (int64_t k = n - 3; k >= 0; k--)
      reflect_all<R, P, false>(h.from(k + 1, k), taus[k], z.from(k + 1, k + 1), n - k - 1, n - k - 1);
  }
  for (int64_t i = 2; i < n; i++) std::fill_n(h.at(i, 0), (i - 1) * P, Vec<R>{});
}

// ---- QR iterations ----------------------------------------------------------------------------------------

template <class R, int P>
struct Schur {
  View<R, P> h, z;  // with a column of zeros behind the last one, h also with a row
  int64_t n;
  bool whole, vectors;  // all of T, and Z
};

// Element (i + down, j + right) of each lane
template <class R, int P>
LAPWING_INLINE Element<R, P> pick(const View<R, P>& h, Mask<R> i, int down, Mask<R> j, int right) {
  Element<R, P> x;
  for (int lane = 0; lane < LANES<R>; lane++) {
    const R* p = reinterpret_cast<const R*>(h.at(i[lane] + down, j[lane] + right)) + lane;
    x.re[lane] = p[0];
    if constexpr (P == 2) x.im[lane] = p[LANES<R>];
  }
  return x;
}

template <class R>
LAPWING_INLINE int64_t largest_of(Mask<R> x) {
  int64_t most = x[0];
  for (int lane = 1; lane < LANES<R>; lane++) most = std::max<int64_t>(most, x[lane]);
  return most;
}

// The first row of each lane's window, where the element to its left is zero or becomes zero. Ahues and Tisseur's test, as in
// LAPACK: it keeps small eigenvalues of graded matrices.
template <class R, int P>
__attribute__((noinline)) Mask<R> find_start(const Schur<R, P>& s, Mask<R> hi) {
  const R eps = EIG_EPSILON<R>;
  Mask<R> lo = {}, open = hi >= 1;
  for (int64_t k = largest_of<R>(hi); k > 0 && any(open); k--) {
    const Element<R, P> left = s.h.get(k, k - 1), here = s.h.get(k, k), before = s.h.get(k - 1, k - 1);
    const Vec<R> sub = size_of<R, P>(left);
    Vec<R> around = size_of<R, P>(here) + size_of<R, P>(before);
    if (__builtin_expect(any(around == 0), 0)) {
      Vec<R> more = size_of<R, P>(s.h.get(k + 1, k));
      if (k > 1) more += size_of<R, P>(s.h.get(k - 1, k - 2));
      around = around == 0 ? more : around;
    }
    const Mask<R> in = open & (broadcast_int<R>(k) <= hi);
    Mask<R> zero = in & (sub <= EIG_LEAST<R>), near = in & (sub <= eps * around);
    if (any(near)) {
      Element<R, P> gap = before;
      gap.re -= here.re;
      if constexpr (P == 2) gap.im -= here.im;
      const Vec<R> over = size_of<R, P>(s.h.get(k - 1, k)), diagonal = size_of<R, P>(here), apart = size_of<R, P>(gap);
      const Vec<R> ab = larger<R>(sub, over), ba = sub < over ? sub : over;
      const Vec<R> aa = larger<R>(diagonal, apart), bb = diagonal < apart ? diagonal : apart, sum = aa + ab;
      const Vec<R> safe = sum > 0 ? sum : broadcast(R(1));
      zero |= near & (ba * (ab / safe) <= larger<R>(broadcast(EIG_LEAST<R>), eps * (bb * (aa / safe))));
    }
    if (!any(zero)) continue;
    s.h.set(k, k - 1, masked<R, P>(zero, Element<R, P>{}, left));
    lo = zero ? broadcast_int<R>(k) : lo;
    open &= ~zero;
  }
  return lo;
}

// What the first reflection of a sweep takes to a multiple of e1: the first column of (H - s1)(H - s2), or of H - s.
template <class R>
LAPWING_INLINE void first_column(const Schur<R, 1>& s, Mask<R> lo, Mask<R> hi, Mask<R> steps, Element<R, 1> (&x)[3]) {
  Vec<R> a = pick<R, 1>(s.h, hi, -1, hi, -1).re, b = pick<R, 1>(s.h, hi, -1, hi, 0).re;
  Vec<R> c = pick<R, 1>(s.h, hi, 0, hi, -1).re, d = pick<R, 1>(s.h, hi, 0, hi, 0).re;
  const Vec<R> first = pick<R, 1>(s.h, lo, 0, lo, 0).re, over = pick<R, 1>(s.h, lo, 0, lo, 1).re;
  const Vec<R> below = pick<R, 1>(s.h, lo, 1, lo, 0).re, second = pick<R, 1>(s.h, lo, 1, lo, 1).re;
  const Vec<R> last = pick<R, 1>(s.h, lo, 2, lo, 1).re;
  // exceptional shifts, as LAPACK's: from the top of the window, then from its end
  const Mask<R> top = (steps == 10) | (steps == 30) | (steps == 50), end = (steps == 20) | (steps == 40);
  if (__builtin_expect(any(top | end), 0)) {
    const Vec<R> beyond = pick<R, 1>(s.h, hi, -1, hi, -2).re;
    const Vec<R> size = top ? abs(below) + abs(last) : abs(c) + abs(beyond);
    const Mask<R> either = top | end;
    a = either ? R(0.75) * size + (top ? first : d) : a;
    d = either ? a : d;
    b = either ? R(-0.4375) * size : b;
    c = either ? size : c;
  }
  const Vec<R> size = abs(a) + abs(b) + abs(c) + abs(d), by = 1 / (size > 0 ? size : broadcast(R(1)));
  a *= by, b *= by, c *= by, d *= by;
  const Vec<R> middle = R(0.5) * (a + d), det = fma(a - middle, d - middle, -(b * c)), root = sqrt(abs(det));
  const Vec<R> high = middle + root, low = middle - root;
  const Vec<R> re = (det >= 0 ? middle : abs(high - d) <= abs(low - d) ? high : low) * size;
  const Vec<R> im = det >= 0 ? root * size : Vec<R>{};
  const Vec<R> off = first - re, sum = abs(off) + abs(im) + abs(below), over_sum = 1 / (sum > 0 ? sum : broadcast(R(1)));
  const Vec<R> scaled = below * over_sum;
  x[0].re = fma(scaled, over, fma(off, off * over_sum, im * (im * over_sum)));
  x[1].re = scaled * (first + second - 2 * re);
  x[2].re = scaled * last;
}
template <class R>
LAPWING_INLINE void first_column(const Schur<R, 2>& s, Mask<R> lo, Mask<R> hi, Mask<R> steps, Element<R, 2> (&x)[2]) {
  const Element<R, 2> a = pick<R, 2>(s.h, hi, -1, hi, -1), b = pick<R, 2>(s.h, hi, -1, hi, 0);
  const Element<R, 2> c = pick<R, 2>(s.h, hi, 0, hi, -1), d = pick<R, 2>(s.h, hi, 0, hi, 0);
  const Element<R, 2> first = pick<R, 2>(s.h, lo, 0, lo, 0), below = pick<R, 2>(s.h, lo, 1, lo, 0);
  // the eigenvalue of the last 2 x 2 that is nearer to its last element: d - b c / (p + sqrt(p^2 + b c)), p = (a - d) / 2
  const Element<R, 2> bc = product<R, 2>(b, c), p = {R(0.5) * (a.re - d.re), R(0.5) * (a.im - d.im)};
  Element<R, 2> under = bc;
  add_product<R, 2>(under, p, p);
  const Vec<R> size = sqrt(square_of<R, 2>(under)), half = sqrt(R(0.5) * (size + abs(under.re)));
  const Vec<R> other = half > 0 ? R(0.5) * under.im / (half > 0 ? half : broadcast(R(1))) : Vec<R>{};
  Element<R, 2> root = {under.re >= 0 ? half : abs(other), under.re >= 0 ? other : with_sign<R>(half, under.im)};
  const Mask<R> turn = fma(p.re, root.re, p.im * root.im) < 0;
  const Element<R, 2> sum = {turn ? p.re - root.re : p.re + root.re, turn ? p.im - root.im : p.im + root.im};
  const Element<R, 2> part = product<R, 2>(bc, reciprocal<R, 2>(sum));
  Element<R, 2> shift = {d.re - part.re, d.im - part.im};
  const Mask<R> top = (steps == 10) | (steps == 30) | (steps == 50), end = (steps == 20) | (steps == 40);
  if (__builtin_expect(any(top | end), 0)) {
    shift = masked<R, 2>(top, {first.re + R(0.75) * size_of<R, 2>(below), first.im}, shift);
    shift = masked<R, 2>(end, {d.re + R(0.75) * size_of<R, 2>(c), d.im}, shift);
  }
  x[0] = {first.re - shift.re, first.im - shift.im};
  x[1] = below;
}

// (x0, x1, ...) of each line <- (I - tau v v^H) of it; CONJ: each line is a row, and multiplied from the right
template <class R, int P, int D, bool CONJ>
LAPWING_INLINE void reflect_lines(Vec<R>* x, int64_t across, int64_t along, int64_t lines, const Element<R, P> (&v)[3],
                                  const Element<R, P> (&t)[3]) {
  for (; lines > 0; lines--, x += along) {
    Element<R, P> e[D];
#pragma GCC unroll 3
    for (int d = 0; d < D; d++) e[d] = get<R, P>(x + d * across);
    Element<R, P> sum = e[0];
#pragma GCC unroll 3
    for (int d = 1; d < D; d++) add_product<R, P>(sum, CONJ ? v[d] : conj<R, P>(v[d]), e[d]);
    e[0].re = less(t[0].re, sum.re, e[0].re);
    if constexpr (P == 2) e[0].im = less(t[0].re, sum.im, e[0].im);
#pragma GCC unroll 3
    for (int d = 1; d < D; d++) subtract_product<R, P, false>(e[d], CONJ ? conj<R, P>(t[d]) : t[d], sum);
#pragma GCC unroll 3
    for (int d = 0; d < D; d++) put<R, P>(x + d * across, e[d]);
  }
}

// One sweep of the windows [lo, hi] of the active lanes: H <- Q^H H Q, Z <- Z Q
template <class R, int P>
LAPWING_INLINE void sweep_windows(const Schur<R, P>& s, Mask<R> lo, Mask<R> hi, Mask<R> active, Mask<R> steps, int64_t bottom,
                                  int64_t top) {
  constexpr int D = P == 1 ? 3 : 2;  // elements that a reflection touches
  Element<R, P> start[D];
  first_column(s, lo, hi, steps, start);
  const View<R, P>& h = s.h;
  const int64_t first_row = s.whole ? 0 : bottom, last_column = s.whole ? s.n - 1 : top;
  for (int64_t k = bottom; k < top; k++) {
    const Mask<R> at = broadcast_int<R>(k), in = active & (lo <= at) & (at < hi), begins = in & (lo == at), goes_on = in & ~begins;
    if (!any(in)) continue;
    Element<R, P> x[D];
#pragma GCC unroll 3
    for (int d = 0; d < D; d++)
      x[d] = masked<R, P>(begins, start[d], k ? h.get(k + d, k - 1) : Element<R, P>{});
    Vec<R> largest = size_of<R, P>(x[0]);
#pragma GCC unroll 3
    for (int d = 1; d < D; d++) largest = larger<R>(largest, size_of<R, P>(x[d]));
    const PowerOfTwo<R> power(in ? largest : Vec<R>{});
    Vec<R> rest = {};
#pragma GCC unroll 3
    for (int d = 0; d < D; d++) {
      scale<R, P>(x[d], power.up);
      if (d) rest += square_of<R, P>(x[d]);
    }
    const Mirror<R, P> mirror(x[0], rest, in);
    Element<R, P> v[3], t[3];
    Vec<R> squares = {};
#pragma GCC unroll 3
    for (int d = 1; d < D; d++) {
      v[d] = masked<R, P>(mirror.turns, product<R, P>(x[d], mirror.by), Element<R, P>{});
      squares += square_of<R, P>(v[d]);
    }
    const Vec<R> tau = mirror.tau(squares);
    t[0] = real<R, P>(tau);
#pragma GCC unroll 3
    for (int d = 1; d < D; d++) {
      t[d] = v[d];
      scale<R, P>(t[d], tau);
    }
    if (any(goes_on)) {
      Element<R, P> beta = mirror.beta;
      scale<R, P>(beta, power.down);
      h.set(k, k - 1, masked<R, P>(goes_on, beta, h.get(k, k - 1)));
#pragma GCC unroll 3
      for (int d = 1; d < D; d++) h.set(k + d, k - 1, masked<R, P>(goes_on, Element<R, P>{}, h.get(k + d, k - 1)));
    }
    reflect_lines<R, P, D, false>(h.at(k, k), h.down, h.right, last_column - k + 1, v, t);
    const int64_t last_row = std::min(k + D, top);
    reflect_lines<R, P, D, true>(h.at(first_row, k), h.right, h.down, last_row - first_row + 1, v, t);
    if (s.vectors) reflect_lines<R, P, D, true>(s.z.at(0, k), s.z.right, s.z.down, s.n, v, t);
  }
}

// H <- its Schur form; of real matrices blocks of 2 x 2 may be anything yet. Returns the lanes that got there.
template <class R, int P>
__attribute__((noinline)) Mask<R> iterate(const Schur<R, P>& s) {
  const Mask<R> none = broadcast_int<R>(-1);
  Mask<R> hi = broadcast_int<R>(s.n - 1), steps = {}, failed = {}, lo;
  while (true) {
    while (true) {
      lo = find_start<R, P>(s, hi);
      const Mask<R> done = (hi >= 0) & (lo >= (P == 1 ? hi - 1 : hi));
      if (!any(done)) break;
      hi = done ? lo - 1 : hi;
      steps = done ? Mask<R>{} : steps;
    }
    Mask<R> active = hi >= 0;
    steps -= active;
    const Mask<R> late = active & (steps > EIG_STEPS);
    failed |= late;
    active &= ~late;
    hi = late ? none : hi;
    if (!any(active)) return ~failed;
    const int64_t top = largest_of<R>(hi);
    const int64_t bottom = -largest_of<R>(active ? -lo : broadcast_int<R>(-s.n));
    // lanes that rest read some element
    const Mask<R> read_hi = active ? hi : broadcast_int<R>(s.n - 1), read_lo = active ? lo : Mask<R>{};
    sweep_windows<R, P>(s, read_lo, read_hi, active, steps, bottom, top);
  }
}

// ---- blocks of real matrices ------------------------------------------------------------------------------

// (x, y) <- (c x + s y, c y - s x)
template <class R>
LAPWING_INLINE void rotate(Vec<R>& x, Vec<R>& y, Vec<R> c, Vec<R> s) {
  const Vec<R> before = x;
  x = fma(c, x, s * y);
  y = fma(c, y, -(s * before));
}

// Every 2 x 2 block of every lane into standard form
template <class R>
__attribute__((noinline)) void standardise(const Schur<R, 1>& s) {
  const View<R, 1>& h = s.h;
  for (int64_t i = 0; i + 1 < s.n; i++) {
    Vec<R>&c = *h.at(i + 1, i), &a = *h.at(i, i), &b = *h.at(i, i + 1), &d = *h.at(i + 1, i + 1);
    const Mask<R> blocks = c != 0;
    if (!any(blocks)) continue;
    Vec<R> cs = broadcast(R(1)), sn = {};
    for (int lane = 0; lane < LANES<R>; lane++) {
      if (!blocks[lane]) continue;
      R a1 = a[lane], b1 = b[lane], c1 = c[lane], d1 = d[lane], cs1, sn1;
      standard_block(a1, b1, c1, d1, cs1, sn1);
      a[lane] = a1, b[lane] = b1, c[lane] = c1, d[lane] = d1, cs[lane] = cs1, sn[lane] = sn1;
    }
    if (!s.whole) continue;
    for (int64_t j = i + 2; j < s.n; j++) rotate<R>(*h.at(i, j), *h.at(i + 1, j), cs, sn);
    for (int64_t j = 0; j < i; j++) rotate<R>(*h.at(j, i), *h.at(j, i + 1), cs, sn);
    if (s.vectors)
      for (int64_t j = 0; j < s.n; j++) rotate<R>(*s.z.at(j, i), *s.z.at(j, i + 1), cs, sn);
  }
}

// w <- the eigenvalues, of the scaled matrix
template <class R, int P>
LAPWING_INLINE void read_values(const Schur<R, P>& s, const View<R, 2>& w) {
  for (int64_t i = 0; i < s.n; i++) {
    const Element<R, P> x = s.h.get(i, i);
    if constexpr (P == 2)
      w.set(0, i, x);
    else
      w.set(0, i, {x.re, Vec<R>{}});
  }
  if constexpr (P == 1)
    for (int64_t i = 0; i + 1 < s.n; i++) {
      const Vec<R> c = s.h.get(i + 1, i).re;
      const Mask<R> pair = c != 0;
      if (!any(pair)) continue;
      const Vec<R> im = sqrt(abs(c)) * sqrt(abs(s.h.get(i, i + 1).re));
      w.at(0, i)[1] = pair ? im : w.at(0, i)[1];
      w.at(0, i + 1)[1] = pair ? -im : w.at(0, i + 1)[1];
    }
}

// ---- eigenvectors -----------------------------------------------------------------------------------------

// T <- G^H H G, upper triangular and complex; G turns each 2 x 2 block by (c, i s; i s, c)
template <class R>
__attribute__((noinline)) void to_triangle(const Schur<R, 1>& s, const View<R, 2>& w, const View<R, 2>& t, const View<R, 2>& turns) {
  const int64_t n = s.n;
  for (int64_t i = 0; i < n; i++) {
    for (int64_t j = i; j < n; j++) t.set(i, j, {s.h.get(i, j).re, Vec<R>{}});
    turns.set(0, i, {broadcast(R(1)), Vec<R>{}});
  }
  for (int64_t i = 0; i + 1 < n; i++) {
    const Vec<R> lower = s.h.get(i + 1, i).re, upper = s.h.get(i, i + 1).re;
    const Mask<R> pair = lower != 0;
    if (!any(pair)) continue;
    const Vec<R> b = abs(upper), c = abs(lower), over = 1 / (pair ? b + c : broadcast(R(1)));
    const Vec<R> cos = pair ? sqrt(b * over) : broadcast(R(1)), sin = pair ? with_sign<R>(sqrt(c * over), upper) : Vec<R>{};
    turns.set(0, i, {cos, sin});
    for (int64_t j = i + 2; j < n; j++) {  // rows: (c, -i s; -i s, c)
      const Element<R, 2> x = t.get(i, j), y = t.get(i + 1, j);
      t.set(i, j, {fma(cos, x.re, sin * y.im), fma(cos, x.im, -(sin * y.re))});
      t.set(i + 1, j, {fma(cos, y.re, sin * x.im), fma(cos, y.im, -(sin * x.re))});
    }
    for (int64_t j = 0; j < i; j++) {  // columns: (c, i s; i s, c)
      const Element<R, 2> x = t.get(j, i), y = t.get(j, i + 1);
      t.set(j, i, {fma(cos, x.re, -(sin * y.im)), fma(cos, x.im, sin * y.re)});
      t.set(j, i + 1, {fma(cos, y.re, -(sin * x.im)), fma(cos, y.im, sin * x.re)});
    }
    t.set(i, i, w.get(0, i));
    t.set(i + 1, i + 1, w.get(0, i + 1));
    t.at(i, i + 1)[0] = pair ? upper + lower : t.at(i, i + 1)[0];
  }
}

// x <- the eigenvector of T for its eigenvalue j, x_j = 1
template <class R>
__attribute__((noinline)) void substitute(const View<R, 2>& t, Vec<R>* x, int64_t j) {
  const Element<R, 2> value = t.get(j, j);
  const Vec<R> least = larger<R>(EIG_EPSILON<R> * size_of<R, 2>(value), broadcast(EIG_DIVISOR<R>));
  put<R, 2>(x + 2 * j, real<R, 2>(broadcast(R(1))));
  for (int64_t i = j - 1; i >= 0; i--) {
    Element<R, 2> sum[2] = {};
    const Vec<R>* row = t.at(i, 0);
    int64_t k = i + 1;
    for (; k + 2 <= j + 1; k += 2)
#pragma GCC unroll 2
      for (int u = 0; u < 2; u++) add_product<R, 2>(sum[u], get<R, 2>(row + 2 * (k + u)), get<R, 2>(x + 2 * (k + u)));
    if (k <= j) add_product<R, 2>(sum[0], get<R, 2>(row + 2 * k), get<R, 2>(x + 2 * k));
    sum[0].re += sum[1].re;
    sum[0].im += sum[1].im;
    const Element<R, 2> diagonal = t.get(i, i);
    Element<R, 2> gap = {value.re - diagonal.re, value.im - diagonal.im};
    const Mask<R> tiny = size_of<R, 2>(gap) < least;
    gap = masked<R, 2>(tiny, {least, Vec<R>{}}, gap);
    const Element<R, 2> found = product<R, 2>(sum[0], reciprocal<R, 2>(gap));
    put<R, 2>(x + 2 * i, found);
    const Vec<R> size = size_of<R, 2>(found);
    const Mask<R> large = size > EIG_LARGE<R>;
    if (__builtin_expect(any(large), 0)) {
      const PowerOfTwo<R> power(size);
      const Vec<R> by = large ? power.up : broadcast(R(1));
      for (int64_t m = 2 * i; m < 2 * (j + 1); m++) x[m] *= by;
    }
  }
}

// column <- D Z x for the first `length` elements of x
template <class R, int P>
__attribute__((noinline)) void multiply_vector(const View<R, P>& z, const Vec<R>* x, const Vec<R>* d, Vec<R>* column, int64_t n,
                                               int64_t length) {
  constexpr int M = 4;
  const auto rows = [&](auto count, int64_t i) {
    constexpr int C = decltype(count)::value;
    Element<R, 2> sum[C] = {};
    for (int64_t k = 0; k < length; k++) {
      const Element<R, 2> xk = get<R, 2>(x + 2 * k);
#pragma GCC unroll 4
      for (int c = 0; c < C; c++) {
        const Element<R, P> zk = z.get(i + c, k);
        if constexpr (P == 2) {
          add_product<R, 2>(sum[c], zk, xk);
        } else {
          sum[c].re = fma(zk.re, xk.re, sum[c].re);
          sum[c].im = fma(zk.re, xk.im, sum[c].im);
        }
      }
    }
#pragma GCC unroll 4
    for (int c = 0; c < C; c++) {
      scale<R, 2>(sum[c], d[i + c]);
      put<R, 2>(column + 2 * (i + c), sum[c]);
    }
  };
  int64_t i = 0;
  for (; i + M <= n; i += M) rows(std::integral_constant<int, M>(), i);
  for (; i < n; i++) rows(std::integral_constant<int, 1>(), i);
}

// Column j of V <- the vector with length one, its largest element positive. That of a real eigenvalue is real and keeps its sign:
// where the eigenvalue is repeated, rounding errors may have given it any phase, which is taken from it before its imaginary part.
template <class R, int P>
LAPWING_INLINE void write_vector(const View<R, 2>& v, const View<R, 2>& w, Vec<R>* column, int64_t n, int64_t j) {
  const Vec<R> one = broadcast(R(1));
  Vec<R> most = {}, sum = {};
  Element<R, 2> largest = {one, Vec<R>{}};
  for (int64_t i = 0; i < 2 * n; i++) most = larger<R>(most, abs(column[i]));
  const PowerOfTwo<R> power(most);
  most = Vec<R>{};
  for (int64_t i = 0; i < n; i++) {
    Element<R, 2> x = get<R, 2>(column + 2 * i);
    scale<R, 2>(x, power.up);
    put<R, 2>(column + 2 * i, x);
    const Vec<R> square = square_of<R, 2>(x);
    sum += square;
    const Mask<R> more = square > most;
    most = more ? square : most;
    largest = masked<R, 2>(more, x, largest);
  }
  const Vec<R> im = w.get(0, j).im;
  const Vec<R> over = rsqrt(most > 0 ? most : one) * rsqrt(sum > 0 ? sum : one);
  const Element<R, 2> turned = {largest.re * over, -largest.im * over};
  const Mask<R> flips = (im == 0) & (largest.re < 0);
  Element<R, 2> by = turned;
  if constexpr (P == 1) by = masked<R, 2>(flips, {-turned.re, -turned.im}, turned);
  Vec<R> length = {};
  for (int64_t i = 0; i < n; i++) {
    Element<R, 2> x = product<R, 2>(get<R, 2>(column + 2 * i), by);
    if constexpr (P == 2) {
      v.set(i, j, x);
    } else {
      x.im = im == 0 ? Vec<R>{} : x.im;
      length = fma(x.re, x.re, length);
      put<R, 2>(column + 2 * i, x);
    }
  }
  if constexpr (P == 1) {
    const Vec<R> again = im == 0 ? rsqrt(length > 0 ? length : one) : one;
    for (int64_t i = 0; i < n; i++) {
      Element<R, 2> x = get<R, 2>(column + 2 * i);
      scale<R, 2>(x, again);
      if (j) x = masked<R, 2>(im < 0, conj<R, 2>(v.get(i, j - 1)), x);
      v.set(i, j, x);
    }
  }
}

// V <- D Z X, X the eigenvectors of the triangle T
template <class R, int P>
LAPWING_INLINE void find_vectors(const Schur<R, P>& s, const View<R, 2>& t, const View<R, 2>& w, const View<R, 2>& turns,
                                 const Vec<R>* d, Vec<R>* x, Vec<R>* column, const View<R, 2>& v) {
  const int64_t n = s.n;
  for (int64_t j = 0; j < n; j++) {
    int64_t length = j + 1;
    std::fill_n(x, 2 * (n + 1), Vec<R>{});
    substitute<R>(t, x, j);
    if constexpr (P == 1) {
      for (int64_t i = 0; i <= j && i + 1 < n; i++) {
        const Element<R, 2> turn = turns.get(0, i);
        if (!any(turn.im != 0)) continue;
        const Element<R, 2> y = get<R, 2>(x + 2 * i), z = get<R, 2>(x + 2 * i + 2);
        put<R, 2>(x + 2 * i, {fma(turn.re, y.re, -(turn.im * z.im)), fma(turn.re, y.im, turn.im * z.re)});
        put<R, 2>(x + 2 * i + 2, {fma(turn.re, z.re, -(turn.im * y.im)), fma(turn.re, z.im, turn.im * y.re)});
        length = std::max(length, i + 2);
      }
    }
    multiply_vector<R, P>(s.z, x, d, column, n, length);
    write_vector<R, P>(v, w, column, n, j);
  }
}

// ---- one group of lanes -----------------------------------------------------------------------------------

// info: 0, 1 where a matrix is not finite, 2 where its iterations did not converge; such results are NaN.
template <class R, int P>
void eig_group(Group<R, P> group) {
  const int64_t n = group.frame.size[1];
  const int32_t op = group.frame.op;
  const bool vectors = op != EIGVALS;
  const int64_t line = ((n + 1) * P) | 1, complex_line = stride_for<R>(2 * n), packed = stride_for<R>(n * P);
  group.begin((n + 1) * line + n * line + 2 * n * complex_line + 11 * n + 16);
  const auto room = [&](int64_t vectors_wanted) {
    Vec<R>* const at = group.memory;
    group.memory += vectors_wanted;
    return at;
  };
  Schur<R, P> s = {{room((n + 1) * line), line, P}, {room(n * line), line, P}, n, vectors, vectors};
  const View<R, 2> w = {room(2 * n), 2 * n, 2}, turns = {room(2 * n), 2 * n, 2};
  Vec<R>*d = room(n), *taus = room(n), *x = room(2 * (n + 1)), *column = room(2 * n);
  Mask<R>* const order = reinterpret_cast<Mask<R>*>(room(n));

  const View<R, P> input = {s.z.x, packed, P};
  read<R>(input.x, group.from(0, n * n), n, n * P, n * P);
  Vec<R> down, down_again = broadcast(R(1));
  const Mask<R> finite = scale_square<R, P>(input, s.h, n, down);
  const Mask<R> isolated = isolate_lanes<R, P>(s.h, input, n, order);
  for (int64_t i = 0; i < n; i++) std::fill_n(s.h.at(i, n), P, Vec<R>{});
  std::fill_n(s.h.at(n, 0), (n + 1) * P, Vec<R>{});
  if (op != SCHUR) {
    balance<R, P>(s.h, n, d);
    scale_square<R, P>(s.h, s.h, n, down_again);
  }
  to_hessenberg<R, P>(s.h, s.z, n, taus, vectors);
  const Mask<R> converged = iterate<R, P>(s);
  if constexpr (P == 1) standardise<R>(s);
  if (vectors && any(isolated)) {
    if (op != SCHUR) put_back<R>(isolated, order, d, 1, n, column);
    for (int64_t j = 0; j < n * P; j++) put_back<R>(isolated, order, s.z.at(0, 0) + j, s.z.down, n, column);
  }

  int32_t* info = group.integers(op == EIGVALS ? 2 : 3, 1);
  for (int64_t lane = 0; lane < group.count; lane++) info[lane] = !finite[lane] ? 1 : !converged[lane] ? 2 : 0;
  const auto spoil = [&](R* out, int64_t size) {
    for (int64_t lane = 0; lane < group.count; lane++)
      if (info[lane]) fill_nan(out + lane * size, size);
  };
  if (op == SCHUR) {
    const View<R, P> compact = {room(n * packed), packed, P};
    for (int64_t i = 0; i < n; i++)
      for (int64_t j = 0; j < n * P; j++) {
        const bool lower = j / P + (P == 1 ? 1 : 0) < i;
        compact.at(i, 0)[j] = lower ? Vec<R>{} : s.h.at(i, 0)[j] * down;
      }
    write<R>(compact.x, group.to(1, n * n), n, n * P, n * P);
    for (int64_t i = 0; i < n; i++) std::copy_n(s.z.at(i, 0), n * P, compact.at(i, 0));
    write<R>(compact.x, group.to(2, n * n), n, n * P, n * P);
    spoil(group.data(1, n * n), n * n * P);
    spoil(group.data(2, n * n), n * n * P);
    return;
  }
  read_values<R, P>(s, w);
  R* values = static_cast<R*>(group.frame.buffer[1]) + group.first * 2 * n;
  if (vectors) {
    View<R, 2> v = {room(n * complex_line), complex_line, 2}, t = {nullptr, 0, 0};
    if constexpr (P == 2) {
      t = s.h;
    } else {
      t = {room(n * complex_line), complex_line, 2};
      to_triangle<R>(s, w, t, turns);
    }
    find_vectors<R, P>(s, t, w, turns, d, x, column, v);
    R* out = static_cast<R*>(group.frame.buffer[2]) + group.first * 2 * n * n;
    write<R>(v.x, Places<R>(out, 2 * n * n, group.count), n, 2 * n, 2 * n);
    spoil(out, 2 * n * n);
  }
  for (int64_t i = 0; i < 2 * n; i++) w.x[i] = w.x[i] * down_again * down;
  write<R>(w.x, Places<R>(values, 2 * n, group.count), 1, 2 * n, 2 * n);
  spoil(values, 2 * n);
}

template <class R, int P>
void eig_any(const Frame& frame, int64_t first, int64_t last) {
  for (; first < last; first += LANES<R>) eig_group(Group<R, P>{frame, first, std::min<int64_t>(LANES<R>, last - first)});
}

}  // namespace LAPWING_ISA
}  // namespace
}  // namespace lapwing
