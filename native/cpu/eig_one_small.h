// Eigenvalues, eigenvectors and the Schur form of one real matrix of middle order on one thread, for one instruction set. Included once
// for each, after simd.h.
//
// The rows of H and those of Z^T are contiguous: a reflection from the left runs along three rows of H, one of Z along three rows of
// Z^T. From the right it takes W rows of H at a time, turned on the way in and out of registers. Francis' double shift, as LAPACK's
// lahqr. Eigenvectors: each lane has one of them, all are found from the same triangle.
#include "cpu/lines.h"

namespace lapwing {
namespace {
namespace LAPWING_ISA {

template <class R>
struct OneSchur {
  static constexpr int W = LANES<R>, K = CHUNK<R>, G = 4 / K;  // G pieces of K columns hold the three of a reflection
  static constexpr R TINY = 4 * std::numeric_limits<R>::min();  // of smaller numbers one over them may be none
  int64_t n, line;  // reals from a row to the next
  R *h, *z;         // z: Z^T, or null; both have zeros behind the last ones: W columns, and W rows or B, whichever is more
  bool whole;       // all of T is wanted
  static constexpr int B = 4;  // rows that are multiplied at a time
  R *row(int64_t i) const { return h + i * line; }
  R& at(int64_t i, int64_t j) const { return h[i * line + j]; }

  // rows x0, x1, x2 <- (I - v t^T) of them from `begin` on; t = tau v, v0 = 1
  template <int D>
  static LAPWING_INLINE void reflect_rows(R* x, int64_t line, int64_t begin, int64_t end, const R* v, const R* t) {
    Vec<R> vv[D], tt[D];
#pragma GCC unroll 3
    for (int d = 0; d < D; d++) vv[d] = broadcast(v[d]), tt[d] = broadcast(t[d]);
    for (int64_t j = begin; j < end; j += W) {
      Vec<R> e[D];
#pragma GCC unroll 3
      for (int d = 0; d < D; d++) e[d] = load(x + d * line + j);
      Vec<R> sum = e[0];
#pragma GCC unroll 3
      for (int d = 1; d < D; d++) sum = fma(vv[d], e[d], sum);
#pragma GCC unroll 3
      for (int d = 0; d < D; d++) store(x + d * line + j, less(tt[d], sum, e[d]));
    }
  }

  // columns k .. k + 2 of the rows [first, last)
  template <int D>
  LAPWING_INLINE void reflect_columns(int64_t first, int64_t last, int64_t k, const R* v, const R* t) const {
    Vec<R> vv[D], tt[D];
#pragma GCC unroll 3
    for (int d = 0; d < D; d++) vv[d] = broadcast(v[d]), tt[d] = broadcast(t[d]);
    for (int64_t r = first; r < last; r += W) {
      R* p[W];
#pragma GCC unroll 16
      for (int i = 0; i < W; i++) p[i] = h + (r + i) * line;
      Vec<R> e[G][K];
      read_chunks<R, G>(e, p, k);
      Vec<R> sum = e[0][0];
#pragma GCC unroll 3
      for (int d = 1; d < D; d++) sum = fma(vv[d], e[d / K][d % K], sum);
#pragma GCC unroll 3
      for (int d = 0; d < D; d++) e[d / K][d % K] = less(tt[d], sum, e[d / K][d % K]);
      write_chunks<R, G>(e, p, k);
    }
  }

  // H <- Q^T H Q, zero below its subdiagonal; Z^T <- Q^T. w takes n + 2 lines.
  void to_hessenberg(R* w) const {
    R *sums = w, *taus = w + line, *vs = w + 2 * line;  // row k of vs: the v of column k, from element k + 1 on
    for (int64_t k = 0; k + 2 < n; k++) {
      R* v = vs + k * line;
      std::fill_n(v, line, R(0));
      R rest = 0, most = 0;
      for (int64_t i = k + 1; i < n; i++) most = std::max(most, std::abs(at(i, k)));
      const R up = most > TINY ? 1 / most : 0;
      for (int64_t i = k + 1; i < n; i++) v[i] = at(i, k) * up;
      for (int64_t i = k + 2; i < n; i++) rest += v[i] * v[i], at(i, k) = 0;
      taus[k] = 0;
      if (rest == 0) continue;
      const R alpha = v[k + 1], norm = std::sqrt(alpha * alpha + rest), beta = alpha < 0 ? norm : -norm;
      const R by = 1 / (alpha - beta);
      R squares = 1;
      for (int64_t i = k + 2; i < n; i++) v[i] *= by, squares += v[i] * v[i];
      v[k + 1] = 1;
      const R tau = taus[k] = 2 / squares;
      at(k + 1, k) = beta * most;
      // sums <- v^T H, H <- H - tau v sums
      const int64_t begin = (k + 1) / W * W;
      std::fill_n(sums + begin, line - begin, R(0));
      for (int64_t i = k + 1; i < n; i++) {
        const Vec<R> y = broadcast(v[i]);
        for (int64_t j = begin; j < n; j += W) store(sums + j, fma(y, load(row(i) + j), load(sums + j)));
      }
      // the columns up to k are done
      std::fill(sums + begin, sums + k + 1, R(0));
      for (int64_t i = k + 1; i < n; i++) {
        const Vec<R> y = broadcast(tau * v[i]);
        for (int64_t j = begin; j < n; j += W) store(row(i) + j, less(y, load(sums + j), load(row(i) + j)));
      }
      from_right(row(0), n, begin, v, tau);
    }
    if (!z) return;
    for (int64_t i = 0; i < n; i++) std::fill_n(z + i * line, line, R(0)), z[i * line + i] = 1;
    // Z^T <- Z^T P_k, whose rows and columns up to k are those of the identity
    for (int64_t k = n - 3; k >= 0; k--) from_right(z + (k + 1) * line, n - k - 1, (k + 1) / W * W, vs + k * line, taus[k]);
  }
  void from_right(R* x, int64_t rows, int64_t begin, const R* v, R tau) const {
    for (int64_t i = 0; i < rows; i += B) {
      Vec<R> sum[B] = {};  // rows behind the last one are zeros
      R* p = x + i * line;
      for (int64_t j = begin; j < n; j += W) {
        const Vec<R> y = load(v + j);
#pragma GCC unroll 4
        for (int b = 0; b < B; b++) sum[b] = fma(load(p + b * line + j), y, sum[b]);
      }
#pragma GCC unroll 4
      for (int b = 0; b < B; b++) sum[b] = sum_lanes<R>(sum[b]) * tau;
      for (int64_t j = begin; j < n; j += W) {
        const Vec<R> y = load(v + j);
#pragma GCC unroll 4
        for (int b = 0; b < B; b++) store(p + b * line + j, less(sum[b], y, load(p + b * line + j)));
      }
    }
  }

  // The row where the window that ends at `hi` begins. Ahues and Tisseur's test, as in LAPACK.
  int64_t find_start(int64_t hi, R least) const {
    constexpr R eps = std::numeric_limits<R>::epsilon();
    for (int64_t k = hi; k > 0; k--) {
      const R sub = std::abs(at(k, k - 1));
      R around = std::abs(at(k, k)) + std::abs(at(k - 1, k - 1));
      if (around == 0) around = (k > 1 ? std::abs(at(k - 1, k - 2)) : 0) + (k < hi ? std::abs(at(k + 1, k)) : 0);
      bool zero = sub <= least;
      if (!zero && sub <= eps * around) {
        const R over = std::abs(at(k - 1, k)), diagonal = std::abs(at(k, k)), apart = std::abs(at(k - 1, k - 1) - at(k, k));
        const R ab = std::max(sub, over), ba = std::min(sub, over), aa = std::max(diagonal, apart), bb = std::min(diagonal, apart);
        const R sum = aa + ab;
        zero = ba * (ab / sum) <= std::max(least, eps * (bb * (aa / sum)));
      }
      if (zero) {
        at(k, k - 1) = 0;
        return k;
      }
    }
    return 0;
  }

  // x <- a multiple of the first column of (H - s1)(H - s2)
  void first_column(int64_t lo, int64_t hi, int step, R* x) const {
    R a = at(hi - 1, hi - 1), b = at(hi - 1, hi), c = at(hi, hi - 1), d = at(hi, hi);
    const R first = at(lo, lo), over = at(lo, lo + 1), below = at(lo + 1, lo), second = at(lo + 1, lo + 1), last = at(lo + 2, lo + 1);
    if (step % 10 == 0) {  // exceptional shifts, from the top of the window and from its end in turns
      const bool top = step % 20 == 10;
      const R size = top ? std::abs(below) + std::abs(last) : std::abs(c) + std::abs(at(hi - 1, hi - 2));
      a = d = R(0.75) * size + (top ? first : d);
      b = R(-0.4375) * size, c = size;
    }
    const R size = std::abs(a) + std::abs(b) + std::abs(c) + std::abs(d);
    R re = 0, im = 0;
    if (size > 0) {
      a /= size, b /= size, c /= size, d /= size;
      const R middle = (a + d) / 2, det = (a - middle) * (d - middle) - b * c, root = std::sqrt(std::abs(det));
      re = (det >= 0 ? middle : std::abs(middle + root - d) <= std::abs(middle - root - d) ? middle + root : middle - root) * size;
      im = det >= 0 ? root * size : 0;
    }
    const R off = first - re, sum = std::abs(off) + std::abs(im) + std::abs(below), scaled = below / sum;
    x[0] = scaled * over + off * (off / sum) + im * (im / sum);
    x[1] = scaled * (first + second - 2 * re);
    x[2] = scaled * last;
  }

  template <int D>
  LAPWING_INLINE void reflect(int64_t k, int64_t lo, int64_t hi, const R* x) const {
    R rest = 0, most = std::abs(x[0]);
    for (int d = 1; d < D; d++) most = std::max(most, std::abs(x[d]));
    for (int d = 1; d < D && k > lo; d++) at(k + d, k - 1) = 0;
    if (!(most > TINY)) return;
    R y[D], v[D], t[D];
    const R up = 1 / most;
    for (int d = 0; d < D; d++) y[d] = x[d] * up;
    for (int d = 1; d < D; d++) rest += y[d] * y[d];
    if (rest == 0) return;
    const R norm = std::sqrt(y[0] * y[0] + rest), beta = y[0] < 0 ? norm : -norm, by = 1 / (y[0] - beta);
    R squares = 1;
    v[0] = 1;
    for (int d = 1; d < D; d++) v[d] = y[d] * by, squares += v[d] * v[d];
    const R tau = 2 / squares;
    for (int d = 0; d < D; d++) t[d] = tau * v[d];
    if (k > lo) at(k, k - 1) = beta * most;
    reflect_rows<D>(h + k * line, line, k, whole ? n : hi + 1, v, t);
    // rows that are taken beside the last one have zeros there
    reflect_columns<D>(whole ? 0 : lo, std::min(k + 3, hi) + 1, k, v, t);
    if (z) reflect_rows<D>(z + k * line, line, 0, n, v, t);
  }

  // false: it did not converge
  bool iterate(R least) const {
    constexpr int STEPS = 60;
    for (int64_t hi = n - 1, step = 0; hi >= 1;) {
      const int64_t lo = find_start(hi, least);
      if (lo >= hi - 1) {
        hi = lo - 1, step = 0;
        continue;
      }
      if (++step > STEPS) return false;
      R x[3];
      first_column(lo, hi, int(step), x);
      for (int64_t k = lo; k < hi; k++) {
        if (k > lo)
          for (int d = 0; d < 3; d++) x[d] = at(k + d, k - 1);
        k + 1 < hi ? reflect<3>(k, lo, hi, x) : reflect<2>(k, lo, hi, x);
      }
    }
    return true;
  }
};

// w <- the eigenvalues; with `whole` every block of two rows is brought into standard form
template <class R>
void standardise(const OneSchur<R>& s, std::complex<R>* w) {
  for (int64_t i = 0; i < s.n; i++) {
    if (i + 1 == s.n || s.at(i + 1, i) == 0) {
      w[i] = s.at(i, i);
      continue;
    }
    R cs, sn;
    R &a = s.at(i, i), &b = s.at(i, i + 1), &c = s.at(i + 1, i), &d = s.at(i + 1, i + 1);
    standard_block(a, b, c, d, cs, sn);
    const auto rotate = [&](R& x, R& y) {
      const R before = x;
      x = cs * x + sn * y;
      y = cs * y - sn * before;
    };
    if (s.whole) {
      for (int64_t j = i + 2; j < s.n; j++) rotate(s.at(i, j), s.at(i + 1, j));
      for (int64_t j = 0; j < i; j++) rotate(s.at(j, i), s.at(j, i + 1));
    }
    for (int64_t j = 0; s.z && j < s.n; j++) rotate(s.z[i * s.line + j], s.z[(i + 1) * s.line + j]);
    const R im = std::sqrt(std::abs(b)) * std::sqrt(std::abs(c));
    w[i] = {a, c == 0 ? 0 : im};
    w[i + 1] = {d, c == 0 ? 0 : -im};
    i++;
  }
}

// H <- D^-1 H D with powers of two in D, so that rows and columns have about the same length: see eig_small.h. false: D would leave its
// range.
template <class R>
bool balance_one(R* h, int64_t line, int64_t n, R* d) {
  constexpr int SWEEPS = 8;
  std::fill_n(d, n, R(1));
  for (int sweep = 0; sweep < SWEEPS; sweep++) {
    bool changed = false;
    for (int64_t i = 0; i < n; i++) {
      double column = 0, row = 0;
      for (int64_t j = 0; j < n; j++) {
        const double x = h[j * line + i], y = h[i * line + j];
        column += x * x, row += y * y;
      }
      column = std::sqrt(column), row = std::sqrt(row);
      if (column < 1e-100 || row < 1e-100) continue;
      const int half = (std::ilogb(row) - std::ilogb(column)) / 2;
      const double f = std::ldexp(1.0, half);
      if (half == 0 || !(column * f + row / f < 0.95 * (column + row))) continue;
      if (std::abs(std::ilogb(d[i]) + half) > 50) return false;
      changed = true;
      d[i] *= R(f);
      for (int64_t j = 0; j < n; j++) h[i * line + j] *= R(1 / f);
      for (int64_t j = 0; j < n; j++) h[j * line + i] *= R(f);
    }
    if (!changed) break;
  }
  return true;
}

// V <- P D Z X with columns of length one, X the eigenvectors of T; each lane has one of them. Row i goes to row order[i]. room: 4 n W
// reals
template <class R>
void vectors_of(const OneSchur<R>& s, const std::complex<R>* w, const R* d, const int64_t* order, R* room, R* out) {
  constexpr int W = LANES<R>;
  constexpr R LEAST = sizeof(R) == 4 ? R(1e-17) : R(1e-116), LARGE = sizeof(R) == 4 ? R(1e10) : R(1e100);
  const int64_t n = s.n;
  R *x = room, *v = room + 2 * n * W;  // real and imaginary parts of a row side by side
  const auto re_at = [&](R* p, int64_t i) { return p + 2 * i * W; };
  const auto im_at = [&](R* p, int64_t i) { return p + (2 * i + 1) * W; };
  for (int64_t group = 0; group < n; group += W) {
    const int64_t count = std::min<int64_t>(W, n - group);
    Vec<R> wr, wi;
    Mask<R> start;  // the first row of each one's own block
    std::fill_n(x, 2 * n * W, R(0));
    int64_t top = 0;
    for (int lane = 0; lane < W; lane++) {
      const int64_t j = group + std::min<int64_t>(lane, count - 1);
      const R im = w[j].imag();
      wr[lane] = w[j].real(), wi[lane] = im;
      const int64_t first = im < 0 ? j - 1 : j;
      start[lane] = first;
      top = std::max(top, first + (im == 0 ? 1 : 2));
      if (im == 0) {
        re_at(x, j)[lane] = 1;
      } else {
        const R b = s.at(first, first + 1), c = s.at(first + 1, first);
        const bool by_upper = std::abs(b) >= std::abs(c);
        re_at(x, first)[lane] = by_upper ? 1 : -std::abs(im) / c;
        im_at(x, first + 1)[lane] = (im < 0 ? -1 : 1) * (by_upper ? std::abs(im) / b : R(1));
      }
    }
    const Vec<R> small = larger<R>(std::numeric_limits<R>::epsilon() * (abs(wr) + abs(wi)), broadcast(LEAST));
    // (re, im) / (gr, gi), where the divisor is not smaller than `floor`
    const auto divide = [&](Vec<R>& re, Vec<R>& im, Vec<R> gr, Vec<R> gi, Vec<R> floor) {
      Vec<R> size = larger<R>(abs(gr), abs(gi));
      gr = size < floor ? floor : gr;
      gi = size < floor ? Vec<R>{} : gi;
      size = larger<R>(size, floor);
      gr /= size, gi /= size;
      const Vec<R> by = 1 / (size * fma(gr, gr, gi * gi)), before = re;
      re = fma(re, gr, im * gi) * by;
      im = less(before, gi, im * gr) * by;
    };
    const auto keep_small = [&](int64_t i, int64_t rows) {
      Vec<R> size = {};
      for (int64_t r = 2 * i; r < 2 * (i + rows); r++) size = larger<R>(size, abs(load(x + r * W)));
      const Mask<R> large = size > broadcast(LARGE);
      if (__builtin_expect(!any(large), 1)) return;
      const PowerOfTwo<R> power(size);
      const Vec<R> by = large ? power.up : broadcast(R(1));
      for (int64_t r = 2 * i; r < 2 * top; r++) store(x + r * W, load(x + r * W) * by);
    };
    for (int64_t i = top - 1; i >= 0;) {
      const bool pair = i > 0 && s.at(i, i - 1) != 0;
      const int64_t first = i - pair;
      const Mask<R> open = start > broadcast_int<R>(i);
      const R *upper = s.row(first), *lower = s.row(i);
      Vec<R> ur = {}, ui = {}, lr = {}, li = {};  // what is known, less
      if (any(open)) {
        for (int64_t k = i + 1; k < top; k++) {
          const Vec<R> xr = load(re_at(x, k)), xi = load(im_at(x, k)), l = broadcast(lower[k]);
          lr = less(l, xr, lr), li = less(l, xi, li);
          if (!pair) continue;
          const Vec<R> u = broadcast(upper[k]);
          ur = less(u, xr, ur), ui = less(u, xi, ui);
        }
        if (!pair) {
          divide(lr, li, broadcast(lower[i]) - wr, -wi, small);
        } else {
          // Cramer's rule; the imaginary part of the diagonal is -wi
          const Vec<R> a = broadcast(upper[first]) - wr, b = broadcast(upper[i]), c = broadcast(lower[first]), e = broadcast(lower[i]) - wr;
          const Vec<R> det_re = less(b, c, less(wi, wi, a * e)), det_im = -wi * (a + e);
          const Vec<R> size = larger<R>(larger<R>(abs(a), abs(e)), larger<R>(abs(wi), larger<R>(abs(b), abs(c))));
          Vec<R> pr = less(b, lr, fma(ur, e, ui * wi)), pi = less(b, li, less(ur, wi, ui * e));
          Vec<R> qr = less(c, ur, fma(lr, a, li * wi)), qi = less(c, ui, less(lr, wi, li * a));
          divide(pr, pi, det_re, det_im, small * size);
          divide(qr, qi, det_re, det_im, small * size);
          store(re_at(x, first), open ? pr : load(re_at(x, first)));
          store(im_at(x, first), open ? pi : load(im_at(x, first)));
          lr = qr, li = qi;
        }
        store(re_at(x, i), open ? lr : load(re_at(x, i)));
        store(im_at(x, i), open ? li : load(im_at(x, i)));
        keep_small(first, 1 + pair);
      }
      i = first - 1;
    }
    // V <- D Z X
    constexpr int B = 4;
    Vec<R> most = {};
    for (int64_t r = 0; r < n; r += B) {
      Vec<R> re[B] = {}, im[B] = {};
      for (int64_t k = 0; k < top; k++) {
        const Vec<R> xr = load(re_at(x, k)), xi = load(im_at(x, k));
        const R* q = s.z + k * s.line + r;
#pragma GCC unroll 4
        for (int i = 0; i < B; i++) re[i] = fma(broadcast(q[i]), xr, re[i]), im[i] = fma(broadcast(q[i]), xi, im[i]);
      }
      for (int i = 0; i < B && r + i < n; i++) {
        re[i] *= d[r + i], im[i] *= d[r + i];
        store(re_at(v, r + i), re[i]), store(im_at(v, r + i), im[i]);
        most = larger<R>(most, larger<R>(abs(re[i]), abs(im[i])));
      }
    }
    const PowerOfTwo<R> power(most);
    Vec<R> sum = {}, best = {}, br = broadcast(R(1)), bi = {};
    for (int64_t r = 0; r < n; r++) {
      const Vec<R> re = load(re_at(v, r)) * power.up, im = load(im_at(v, r)) * power.up, square = fma(re, re, im * im);
      sum += square;
      const Mask<R> more = square > best;
      best = more ? square : best, br = more ? re : br, bi = more ? im : bi;
    }
    // the largest element of a complex one becomes positive, and so has no imaginary part
    const Mask<R> is_real = wi == Vec<R>{};
    const Vec<R> by = power.up / sqrt(sum), turn = by / sqrt(best);
    const Vec<R> cr = is_real ? by : br * turn, ci = is_real ? Vec<R>{} : -bi * turn;
    for (int64_t r = 0; r < n; r++) {
      const Vec<R> re = load(re_at(v, r)), im = load(im_at(v, r));
      R parts[2][W];
      store(parts[0], less(im, ci, re * cr));
      store(parts[1], is_real ? Vec<R>{} : fma(re, ci, im * cr));
      R* to = out + 2 * (order[r] * n + group);
      for (int64_t lane = 0; lane < count; lane++) to[2 * lane] = parts[0][lane], to[2 * lane + 1] = parts[1][lane];
    }
  }
}

// See eig_one.h. t and z: the Schur form, or null. Row and column i are those of order[i] of the matrix.
template <class R>
bool solve_eig_one(int64_t n, const R* a, const int64_t* order, std::complex<R>* w, std::complex<R>* v, R* t, R* z) {
  constexpr int W = LANES<R>;
  const int64_t line = (((n + W - 1) / W + 1) | 1) * W, rows = n + std::max(W, OneSchur<R>::B), vectors = v ? 4 * n * W : 0;
  const bool whole = v || t;
  const int64_t size = rows * line, total = (whole ? 2 : 1) * size + (n + 4) * line + vectors;
  R* memory = static_cast<R*>(scratch(sizeof(R) * size_t(total)));
  std::fill_n(memory, (whole ? 2 : 1) * size, R(0));
  const OneSchur<R> s = {n, line, memory, whole ? memory + size : nullptr, whole};
  R *d = memory + (whole ? 2 : 1) * size, *work = d + line;
  for (int64_t i = 0; i < n; i++)
    for (int64_t j = 0; j < n; j++) s.at(i, j) = a[order[i] * n + order[j]];
  const auto near_one = [&] {
    constexpr R RANGE = sizeof(R) == 4 ? R(1e9) : R(1e90);
    R most = 0;
    for (int64_t i = 0; i < n; i++)
      for (int64_t j = 0; j < n; j++) most = std::max(most, std::abs(s.at(i, j)));
    return most == 0 || (most < RANGE && most * RANGE > 1);
  };
  // LAPACK scales matrices that are far from one, before or after they are balanced
  if (!near_one() || (!t && !(balance_one(s.h, line, n, d) && near_one()))) return false;
  s.to_hessenberg(work);
  if (!s.iterate(std::numeric_limits<R>::min() * (R(n) / std::numeric_limits<R>::epsilon()))) return false;
  standardise(s, w);
  if (v) vectors_of(s, w, d, order, work + (n + 2) * line, reinterpret_cast<R*>(v));
  for (int64_t i = 0; t && i < n; i++) {
    std::copy_n(s.row(i), n, t + i * n);
    for (int64_t j = 0; j < n; j++) z[order[i] * n + j] = s.z[j * line + i];
  }
  return true;
}

}  // namespace LAPWING_ISA
}  // namespace
}  // namespace lapwing
