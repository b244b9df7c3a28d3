// Eigenvalues, eigenvectors and Schur forms of many general matrices in one launch.
//
// Stages: scaling and balancing by powers of two, Householder reduction to Hessenberg form H, implicit QR sweeps (Francis's
// double shift for real matrices, a single shift for complex ones) to the Schur form T, back substitution for the vectors.
//
// A sweep is chased by one warp inside the active window of H. What it does to the rest, the rows of H above the window, the
// columns right of it and Z, is put off: the other warps catch up with it while the next sweep is under way.
//
//   LW_MODE    0: eigenvalues, 1: and eigenvectors, 2: T and Z of A = Z T Z^H
//   LW_P       threads of a matrix: 1, or all LW_THREADS of the block
//   LW_ROWS    rows of a lane where a warp has a column: at least n / 32; n where a thread has a matrix
//   LW_GLOBAL  bit 0: Z is in global memory, transposed; bit 1: H is, too
//   LW_N       the order, where a thread has a matrix
#include "eigh.cuh"

constexpr int P = LW_P, MODE = LW_MODE, WARP = 32;
constexpr int LANES = P < WARP ? P : WARP, GROUPS = P / LANES;
constexpr int STRIDE = P == 1 ? LW_THREADS + 1 : 1;  // between the elements of a matrix: odd, against bank conflicts
constexpr int LISTS = P > WARP ? 2 : 1;              // sweeps that are kept
constexpr int PER_ROW = 3 * LISTS > 2 * GROUPS || MODE != 1 ? 3 * LISTS : 2 * GROUPS;  // real numbers of `room` per row
constexpr int COLUMNS = LW_ROWS;
constexpr unsigned ALL = 0xffffffff;
constexpr bool Z_GLOBAL = (LW_GLOBAL & 1) != 0, H_GLOBAL = (LW_GLOBAL & 2) != 0;

// LW_SAFE: 1 / LW_SAFE is finite. Squares below LW_FAINT have lost digits: their roots are multiplied by LW_LIFT first.
#if LW_DTYPE % 2 == 0
#define LW_SAFE 1.17549435e-38f
#define LW_FAINT 1e-30f
#define LW_LIFT 0x1p90f
constexpr int MOST_BALANCE = 50;
#else
#define LW_SAFE 2.2250738585072014e-308
#define LW_FAINT 1e-280
#define LW_LIFT 0x1p600
constexpr int MOST_BALANCE = 400;
#endif

typedef Complex<Real> C;
struct Rotation3 {
  Real v[3];  // tau, v2, v3 of I - tau (1, v2, v3) (1, v2, v3)^T, or c and s of a rotation
};

struct Eig {
  const T* a;
  Real* w;
  T* t;
  T* z;     // LW_MODE 2
  Real* v;  // LW_MODE 1
  int* info;
  T* scratch;
  i64 batch;
  int n;
};

// ---- scalars -----------------------------------------------------------------------------------------------------

LW_INLINE Real size(Real x) { return fabs(x); }
LW_INLINE Real size(C x) { return fabs(x.re) + fabs(x.im); }
LW_INLINE Real largest_part(C x) { return fmax(fabs(x.re), fabs(x.im)); }
LW_INLINE Real copy_sign(Real x, Real of) { return of < 0 ? -fabs(x) : fabs(x); }
LW_INLINE C c_subtract(C a, C b) { return C{a.re - b.re, a.im - b.im}; }
LW_INLINE C c_multiply(C a, C b) { return C{a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re}; }
LW_INLINE C c_scale(C a, Real by) { return C{a.re * by, a.im * by}; }
LW_INLINE C c_shift(C a, int by) { return C{scalbn(a.re, by), scalbn(a.im, by)}; }
LW_INLINE C c_divide(C a, C b) {
  Real by = Real(1) / largest_part(b), p = b.re * by, q = b.im * by, d = by / (p * p + q * q);
  return C{(a.re * p + a.im * q) * d, (a.im * p - a.re * q) * d};
}
#if LW_DTYPE < 2
LW_INLINE T shift(T x, int by) { return scalbn(x, by); }
LW_INLINE C wide(T x) { return C{x, Real(0)}; }
LW_INLINE C times(T a, C x) { return C{a * x.re, a * x.im}; }
#else
LW_INLINE T shift(T x, int by) { return c_shift(x, by); }
LW_INLINE C wide(T x) { return x; }
LW_INLINE C times(T a, C x) { return c_multiply(a, x); }

LW_INLINE C c_root(C x) {
  Real m = largest_part(x);
  if (!(m > 0)) return C{0, 0};
  Real p = x.re / m, q = x.im / m, r = sqrt(p * p + q * q), half = sqrt(Real(0.5) * (r + fabs(p))), root = sqrt(m);
  Real other = Real(0.5) * q / half;
  return p >= 0 ? C{half * root, other * root} : C{fabs(other) * root, copy_sign(half, q) * root};
}
#endif

LW_INLINE void together() {
  if (P > WARP)
    __syncthreads();
  else if (P == WARP)
    __syncwarp();
}
LW_INLINE void lanes_together() {
  if (LANES == WARP) __syncwarp();
}
LW_INLINE Real from_lane(Real x, int lane) { return __shfl_sync(ALL, x, lane); }
#if LW_DTYPE >= 2
LW_INLINE T from_lane(T x, int lane) { return T{from_lane(x.re, lane), from_lane(x.im, lane)}; }
#endif
LW_INLINE unsigned votes(bool x) { return LANES == WARP ? __ballot_sync(ALL, x) : unsigned(x); }

// ---- one matrix --------------------------------------------------------------------------------------------------

enum Kind { SWEEP, ROTATION, END, FAILED };

// What is to be done outside the window: the rotations first .. last - 1 of the planes (k, k+1), or the reflections of
// (k, k+1, k+2), to rows above `low` and columns after `last`.
struct Job {
  int kind, first, last, low;
};

struct Matrix {
  T *h, *z;
  Real* room;   // u of a reflection, then the sweeps, then x of the vectors
  int *scales, *steps;  // of balancing
  Real* sums;
  int* jobs;
  int n, pitch, t, lane, group;
  int slot;  // of this matrix among those that are interleaved

  LW_INLINE T& H(int i, int j) const { return h[(i * pitch + j) * STRIDE]; }
  LW_INLINE T& Z(int i, int j) const { return Z_GLOBAL ? z[j * n + i] : z[(i * pitch + j) * STRIDE]; }
  LW_INLINE T& U(int i) const { return ((T*)room)[i * STRIDE + slot]; }
  LW_INLINE C& X(int i) const { return ((C*)room)[(group * n + i) * STRIDE + slot]; }
  LW_INLINE Real& entry(int list, int k, int place) const { return room[((list * n + k) * 3 + place) * STRIDE + slot]; }

  LW_INLINE Real most(Real x) const {
    x = max_lanes<LANES>(x);
    if (P > WARP) {
      __syncthreads();
      if (lane == 0) sums[group] = x;
      __syncthreads();
      for (int g = 0; g < GROUPS; g++) x = fmax(x, sums[g]);
    }
    return x;
  }

  // H <- H 2^-e with the largest entry near 1. Returns e, or -10000 where an entry is not finite.
  LW_INLINE int normalise() const {
    Real largest = 0, bad = 0;
    for (int i = group; i < n; i += GROUPS)
      for (int j = lane; j < n; j += LANES) {
        const T x = H(i, j);
        if (!is_finite(x)) bad = 1;
        largest = fmax(largest, magnitude(x));
      }
    bad = most(bad);
    largest = most(largest);
    if (bad != 0) return -10000;
    const int e = largest > 0 ? ilogb(largest) : 0;
    if (e == 0) return 0;
    for (int i = group; i < n; i += GROUPS)
      for (int j = lane; j < n; j += LANES) H(i, j) = shift(H(i, j), -e);
    together();
    return e;
  }

  // H <- D^-1 H D with D = 2^scales, so that row i and column i have about the same norm. All rows are done at once, each half
  // the way, since its partners come to meet it.
  LW_INLINE void balance() const {
    for (int i = t; i < n; i += P) scales[i * STRIDE] = 0;
    for (int turn = 0; turn < 16; turn++) {
      for (int i = t; i < n; i += P) {
        Real row = 0, column = 0;
        for (int j = 0; j < n; j++) {
          row += size(H(i, j));
          column += size(H(j, i));
        }
        const int old = scales[i * STRIDE];
        int step = row > 0 && column > 0 ? (ilogb(row) - ilogb(column)) / 4 : 0;
        step = min(max(step, -MOST_BALANCE - old), MOST_BALANCE - old);
        steps[i * STRIDE] = step;
        scales[i * STRIDE] = old + step;
      }
      together();
      bool moves = false;
      for (int i = lane; i < n; i += LANES) moves = moves || steps[i * STRIDE] != 0;
      if (!votes(moves)) break;
      for (int i = group; i < n; i += GROUPS)
        for (int j = lane; j < n; j += LANES) H(i, j) = shift(H(i, j), steps[j * STRIDE] - steps[i * STRIDE]);
      together();
    }
  }

  // H <- Q^H H Q in Hessenberg form, Z <- Q
  LW_INLINE void reduce() const {
    if (MODE > 0)
      for (int i = group; i < n; i += GROUPS)
        for (int j = lane; j < n; j += LANES) Z(i, j) = from_real(Real(i == j));
    together();
    for (int k = 0; k + 2 < n; k++) {
      Real rest = 0;
      for (int i = k + 2 + lane; i < n; i += LANES) rest += square(H(i, k));
      rest = sum_lanes<LANES>(rest);
      T tau;
      Real beta;
      const T factor = reflector(H(k + 1, k), rest, tau, beta);
      for (int i = k + 1 + t; i < n; i += P) U(i) = i == k + 1 ? from_real(Real(1)) : multiply(H(i, k), factor);
      together();
      for (int i = k + 1 + t; i < n; i += P) H(i, k) = i == k + 1 ? from_real(beta) : zero();
      // H <- H - conj(tau) u (u^H H)
      for (int j = k + 1 + t; j < n; j += P) {
        T sum = zero();
#pragma unroll 4
        for (int i = k + 1; i < n; i++) sum = add_product(sum, H(i, j), U(i));
        sum = multiply(sum, conjugate(tau));
#pragma unroll 4
        for (int i = k + 1; i < n; i++) H(i, j) = subtract_plain(H(i, j), U(i), sum);
      }
      together();
      // H <- H - tau (H u) u^H, Z likewise
      for (int i = t; i < (MODE > 0 ? 2 * n : n); i += P) {
        const bool of_h = i < n;
        T sum = zero();
#pragma unroll 4
        for (int j = k + 1; j < n; j++) sum = add_plain(sum, of_h ? H(i, j) : Z(i - n, j), U(j));
        sum = multiply(sum, tau);
#pragma unroll 4
        for (int j = k + 1; j < n; j++) {
          T& x = of_h ? H(i, j) : Z(i - n, j);
          x = subtract_product(x, sum, U(j));
        }
      }
      together();
    }
  }

  // ---- QR sweeps, one warp -------------------------------------------------------------------------------------------

  // The largest k in (low, high] with f(k), or low
  template <typename F>
  LW_INLINE int last_where(int low, int high, F f) const {
    for (int top = high; top > low; top -= LANES) {
      const int k = top - lane;
      const unsigned hits = votes(k > low && f(k));
      if (hits) return top - (__ffs(hits) - 1);
    }
    return low;
  }

  // Column j's number of an array over the columns: lane l has columns l, l + LANES, ...
  LW_INLINE static T from_owner(const T (&x)[COLUMNS], int j) {
    T mine = x[0];
#pragma unroll
    for (int c = 1; c < COLUMNS; c++) mine = select(j / LANES == c, x[c], mine);
    return LANES == WARP ? from_lane(mine, j % LANES) : mine;
  }

  // Whether H(k, k-1) is as good as zero: Ahues and Tisseur's test
  LW_INLINE bool negligible(int k) const {
    const Real tiny = LW_SAFE * (Real(n) / LW_EPS), below = size(H(k, k - 1));
    if (below <= tiny) return true;
    const T last = H(k, k), before = H(k - 1, k - 1);
    Real sum = size(before) + size(last);
    if (sum == 0) {
      if (k > 1) sum += size(H(k - 1, k - 2));
      if (k + 1 < n) sum += size(H(k + 1, k));
    }
    if (!(below <= Real(LW_EPS) * sum)) return false;
    const Real above = size(H(k - 1, k)), gap = size(subtract(before, last)), corner = size(last);
    const Real ab = fmax(below, above), ba = below < above ? below : above;
    const Real aa = fmax(corner, gap), bb = corner < gap ? corner : gap, s = aa + ab;
    return ba * (ab / s) <= fmax(tiny, Real(LW_EPS) * (bb * (aa / s)));
  }

#if LW_DTYPE < 2
  // tau, v2, v3 of I - tau v v^T with v = (1, v2, v3), which takes (x, y, z) to (x, 0, 0)
  LW_INLINE static Rotation3 reflection(Real& x, Real y, Real z) {
    Real squares = x * x + y * y + z * z;
    const bool faint = squares < LW_FAINT;
    if (faint) {
      x *= LW_LIFT, y *= LW_LIFT, z *= LW_LIFT;
      squares = x * x + y * y + z * z;
    }
    Rotation3 r{{0, 0, 0}};
    if (y != 0 || z != 0) {  // even where their squares vanish beside x: a window may hang on what they do
      const Real root = fine_root(squares), length = squares * root, by = copy_sign(Real(1) / (fabs(x) + length), x);
      r.v[0] = 1 + fabs(x) * root;
      r.v[1] = y * by;
      r.v[2] = z * by;
      x = -copy_sign(length, x);
    }
    if (faint) x *= Real(1) / LW_LIFT;
    return r;
  }

  // The Schur form of the 2 x 2 block at (k, k), and the rotation to it: equal diagonal elements where the eigenvalues are
  // complex, else a triangle. LAPACK's lanv2.
  LW_INLINE static void standardise(Real& a, Real& b, Real& c, Real& d, Real& cs, Real& sn) {
    cs = 1, sn = 0;
    if (c == 0) return;
    if (b == 0) {
      const Real swap = d;
      cs = 0, sn = 1;
      d = a, a = swap, b = -c, c = 0;
      return;
    }
    Real gap = a - d;
    if (gap == 0 && (b < 0) != (c < 0)) return;
    Real p = Real(0.5) * gap;
    const Real most = fmax(fabs(b), fabs(c)), least = (fabs(b) < fabs(c) ? fabs(b) : fabs(c)) * ((b < 0) != (c < 0) ? -1 : 1);
    const Real by = fmax(fabs(p), most);
    Real z = (p / by) * p + (most / by) * least;
    if (z >= 4 * Real(LW_EPS)) {
      z = p + copy_sign(sqrt(by) * sqrt(z), p);
      a = d + z;
      d -= (most / z) * least;
      const Real tau = length(c, z);
      cs = z / tau, sn = c / tau;
      b -= c;
      c = 0;
      return;
    }
    const Real sigma = b + c, tau = length(sigma, gap);
    cs = sqrt(Real(0.5) * (1 + fabs(sigma) / tau));
    sn = -(p / (tau * cs)) * (sigma < 0 ? -1 : 1);
    const Real aa = a * cs + b * sn, bb = b * cs - a * sn, cc = c * cs + d * sn, dd = d * cs - c * sn;
    a = aa * cs + cc * sn, b = bb * cs + dd * sn, c = cc * cs - aa * sn, d = dd * cs - bb * sn;
    const Real middle = Real(0.5) * (a + d);
    a = d = middle;
    if (c == 0) return;
    if (b == 0) {
      b = -c, c = 0;
      const Real swap = cs;
      cs = -sn, sn = swap;
    } else if ((b < 0) == (c < 0)) {
      const Real sab = sqrt(fabs(b)), sac = sqrt(fabs(c)), root = Real(1) / sqrt(fabs(b + c));
      p = copy_sign(sab * sac, c);
      a = middle + p, d = middle - p;
      b -= c;
      c = 0;
      const Real c1 = sab * root, s1 = sac * root, both = cs * c1 - sn * s1;
      sn = cs * s1 + sn * c1;
      cs = both;
    }
  }
  LW_INLINE static Real length(Real x, Real y) {
    const Real most = fmax(fabs(x), fabs(y)), least = fabs(x) < fabs(y) ? fabs(x) : fabs(y);
    if (!(most > 0)) return 0;
    const Real ratio = least / most;
    return most * sqrt(1 + ratio * ratio);
  }

  // The two shifts: re1 + i im and re2 - i im
  LW_INLINE void shifts(int low, int high, int turns, Real& re1, Real& re2, Real& im) const {
    Real a = H(high - 1, high - 1), b = H(high - 1, high), c = H(high, high - 1), d = H(high, high);
    if (turns % 10 == 0) {
      const bool from_end = turns % 20 == 0;
      const Real off = from_end ? fabs(H(high, high - 1)) + fabs(H(high - 1, high - 2)) : fabs(H(low + 1, low)) + fabs(H(low + 2, low + 1));
      a = d = Real(0.75) * off + (from_end ? d : H(low, low));
      b = Real(-0.4375) * off;
      c = off;
    }
    const Real s = fabs(a) + fabs(b) + fabs(c) + fabs(d);
    re1 = re2 = im = 0;
    if (s == 0) return;
    a /= s, b /= s, c /= s, d /= s;
    const Real middle = Real(0.5) * (a + d), det = (a - middle) * (d - middle) - b * c, root = sqrt(fabs(det));
    if (det >= 0) {
      re1 = re2 = middle * s;
      im = root * s;
    } else {
      const Real one = middle + root, two = middle - root;
      re1 = re2 = (fabs(one - d) <= fabs(two - d) ? one : two) * s;
    }
  }

  // The first column of (H - s1) (H - s2) of the window from m on, up to a factor
  LW_INLINE void first_column(int m, Real re1, Real re2, Real im, Real (&v)[3]) const {
    const Real a = H(m, m), s = fabs(a - re2) + fabs(im) + fabs(H(m + 1, m)), below = H(m + 1, m) / s;
    v[0] = below * H(m, m + 1) + (a - re1) * ((a - re2) / s) + im * (im / s);
    v[1] = below * (a + H(m + 1, m + 1) - re1 - re2);
    v[2] = below * H(m + 2, m + 1);
    const Real sum = fabs(v[0]) + fabs(v[1]) + fabs(v[2]);
#pragma unroll
    for (int i = 0; i < 3; i++) v[i] /= sum;
  }

  LW_INLINE void keep(int list, int k, const Rotation3& r) const {
    if (lane != 0) return;
#pragma unroll
    for (int i = 0; i < 3; i++) entry(list, k, i) = r.v[i];
  }

  // One double-shift sweep over rows and columns low .. high. Returns where it began.
  LW_INLINE int sweep(int low, int high, int turns, int list) const {
    Real re1, re2, im, v[3];
    shifts(low, high, turns, re1, re2, im);
    // two small subdiagonal elements in a row are a place to begin
    const int m = last_where(low, high - 2, [&](int k) {
      Real c[3];
      first_column(k, re1, re2, im, c);
      return fabs(H(k, k - 1)) * (fabs(c[1]) + fabs(c[2])) <=
             Real(LW_EPS) * fabs(c[0]) * (fabs(H(k - 1, k - 1)) + fabs(H(k, k)) + fabs(H(k + 1, k + 1)));
    });
    first_column(m, re1, re2, im, v);
    // What is near the diagonal every lane computes for itself. Before step k: v, rows k .. k+2 of column k-1; d, the same of
    // columns k and k+1; p and q, rows k and k+1 of the columns that this lane has, r their row k+2.
    Real d[3][2], p[COLUMNS], q[COLUMNS], r[COLUMNS], above, beside, corner = H(m + 2, m + 2);
    d[0][0] = H(m, m), d[0][1] = H(m, m + 1);
    d[1][0] = H(m + 1, m), d[1][1] = H(m + 1, m + 1);
    d[2][0] = 0, d[2][1] = H(m + 2, m + 1);
#pragma unroll
    for (int c = 0; c < COLUMNS; c++) {
      const int j = min(lane + c * LANES, high);
      p[c] = H(m, j), q[c] = H(m + 1, j), r[c] = H(m + 2, j);
    }
    above = from_owner(p, m + 2), beside = from_owner(q, m + 2);
    lanes_together();
    for (int k = m; k + 1 < high; k++) {
      // the next row, fetched early
      const bool more = k + 3 <= high;
      Real next[COLUMNS];
      const Real below = more ? H(k + 3, k + 2) : Real(0), next_corner = more ? H(k + 3, k + 3) : Real(0);
#pragma unroll
      for (int c = 0; c < COLUMNS; c++) next[c] = H(min(k + 3, high), min(lane + c * LANES, high));
      const Rotation3 turn = reflection(v[0], v[1], v[2]);
      const Real t1 = turn.v[0], v2 = turn.v[1], v3 = turn.v[2];
      // from the left: rows k .. k+2 of columns k, k+1 and k+2
      Real b[3][3] = {{d[0][0], d[0][1], above}, {d[1][0], d[1][1], beside}, {d[2][0], d[2][1], corner}};
#pragma unroll
      for (int c = 0; c < 3; c++) {
        const Real s = t1 * (b[0][c] + v2 * b[1][c] + v3 * b[2][c]);
        b[0][c] -= s, b[1][c] -= v2 * s, b[2][c] -= v3 * s;
      }
      if (lane == 0) {
        if (k > m)
          H(k, k - 1) = v[0];
        else if (m > low)
          H(k, k - 1) *= 1 - t1;
        H(k, k) = b[0][0], H(k, k + 1) = b[0][1];
      }
      keep(list, k, turn);
      // from the right: rows k+1 .. k+3
#pragma unroll
      for (int i = 1; i < 3; i++) {
        const Real s = t1 * (b[i][0] + v2 * b[i][1] + v3 * b[i][2]);
        v[i - 1] = b[i][0] - s, d[i - 1][0] = b[i][1] - v2 * s, d[i - 1][1] = b[i][2] - v3 * s;
      }
      const Real s = t1 * v3 * below;
      v[2] = -s, d[2][0] = -v2 * s, d[2][1] = below - v3 * s;
#pragma unroll
      for (int c = 0; c < COLUMNS; c++) {
        const int j = lane + c * LANES;
        const Real s = t1 * (p[c] + v2 * q[c] + v3 * r[c]);
        if (j >= k + 2 && j <= high) H(k, j) = p[c] - s;
        p[c] = q[c] - v2 * s, q[c] = r[c] - v3 * s, r[c] = next[c];
      }
      corner = next_corner;
      above = from_owner(p, k + 3), beside = from_owner(q, k + 3);
    }
    const int k = high - 1;
    const Rotation3 turn = reflection(v[0], v[1], 0);
    const Real t1 = turn.v[0], v2 = turn.v[1];
#pragma unroll
    for (int c = 0; c < 2; c++) {
      const Real s = t1 * (d[0][c] + v2 * d[1][c]);
      d[0][c] -= s, d[1][c] -= v2 * s;
    }
    const Real s = t1 * (d[1][0] + v2 * d[1][1]);
    if (lane == 0) {
      H(k, k - 1) = v[0];
      H(k, k) = d[0][0], H(k, k + 1) = d[0][1];
      H(k + 1, k) = d[1][0] - s, H(k + 1, k + 1) = d[1][1] - v2 * s;
    }
    keep(list, k, turn);
    lanes_together();
    return m;
  }

  LW_INLINE Job split_pair(int high, int list) const {
    Real a = H(high - 1, high - 1), b = H(high - 1, high), c = H(high, high - 1), d = H(high, high), cs, sn;
    standardise(a, b, c, d, cs, sn);
    lanes_together();
    if (lane == 0) {
      H(high - 1, high - 1) = a;
      H(high - 1, high) = b;
      H(high, high - 1) = c;
      H(high, high) = d;
    }
    keep(list, high - 1, Rotation3{{cs, sn, 0}});
    lanes_together();
    return Job{ROTATION, high - 1, high, high - 1};
  }
  static constexpr int SINGLE = 2;  // rows at the end of a window that need no sweep
#else
  // c and s with [c s; -conj(s) c] (x, y) = (x, 0)
  LW_INLINE static Rotation3 rotation(T& x, T y) {
    Real xx = square(x), yy = square(y);
    const bool faint = xx + yy < LW_FAINT;
    if (faint) {
      x = scale(x, LW_LIFT), y = scale(y, LW_LIFT);
      xx = square(x), yy = square(y);
    }
    Rotation3 r{{1, 0, 0}};
    if (y.re != 0 || y.im != 0) {
      const Real both = xx + yy, root = fine_root(both);
      // x / |x|, or 1 where x is nothing beside y
      const bool none = !(xx > LW_SAFE);
      const Real inverse = fine_root(none ? Real(1) : xx);
      const T phase = none ? from_real(Real(1)) : scale(x, inverse);
      const T s = scale(multiply(phase, conjugate(y)), root);
      r.v[0] = none ? Real(0) : xx * inverse * root;
      r.v[1] = s.re;
      r.v[2] = s.im;
      x = scale(phase, both * root);
    }
    if (faint) x = scale(x, Real(1) / LW_LIFT);
    return r;
  }

  LW_INLINE T single_shift(int low, int high, int turns) const {
    if (turns % 20 == 0) return add(H(high, high), from_real(Real(0.75) * size(H(high, high - 1))));
    if (turns % 10 == 0) return add(H(low, low), from_real(Real(0.75) * size(H(low + 1, low))));
    T t = H(high, high);
    const T u = multiply(c_root(H(high - 1, high)), c_root(H(high, high - 1)));
    Real s = size(u);
    if (s == 0) return t;
    const T x = scale(subtract(H(high - 1, high - 1), t), Real(0.5));
    const Real sx = size(x);
    s = fmax(s, sx);
    const T p = scale(x, Real(1) / s), q = scale(u, Real(1) / s);
    T y = scale(c_root(add_plain(multiply(p, p), q, q)), s);
    if (sx > 0 && x.re / sx * y.re + x.im / sx * y.im < 0) y = negate(y);
    return subtract(t, multiply(u, c_divide(u, add(x, y))));
  }

  LW_INLINE void keep(int list, int k, const Rotation3& r) const {
    if (lane != 0) return;
#pragma unroll
    for (int i = 0; i < 3; i++) entry(list, k, i) = r.v[i];
  }

  LW_INLINE int sweep(int low, int high, int turns, int list) const {
    const T t = single_shift(low, high, turns);
    const int m = last_where(low, high - 1, [&](int k) {
      const T d = subtract(H(k, k), t);
      const Real below = size(H(k + 1, k)), s = size(d) + below;
      return size(H(k, k - 1)) * (below / s) <= Real(LW_EPS) * (size(d) / s * (size(H(k, k)) + size(H(k + 1, k + 1))));
    });
    T x = subtract(H(m, m), t), y = H(m + 1, m);
    const Real s = size(x) + size(y);
    if (s > 0) x = scale(x, Real(1) / s), y = scale(y, Real(1) / s);
    // What is near the diagonal every lane computes for itself. Before step k: x and y, rows k and k+1 of column k-1; d, the
    // same of column k; p, row k of the columns that this lane has, r their row k+1.
    T d[2] = {H(m, m), H(m + 1, m)}, above = H(m, m + 1), corner = H(m + 1, m + 1), p[COLUMNS], r[COLUMNS];
#pragma unroll
    for (int c = 0; c < COLUMNS; c++) {
      const int j = min(lane + c * LANES, high);
      p[c] = H(m, j), r[c] = H(m + 1, j);
    }
    lanes_together();
    for (int k = m; k < high; k++) {
      // the next row, fetched early
      const bool more = k + 2 <= high;
      T next[COLUMNS];
      const T below = more ? H(k + 2, k + 1) : zero(), next_corner = more ? H(k + 2, k + 2) : zero();
#pragma unroll
      for (int c = 0; c < COLUMNS; c++) next[c] = H(min(k + 2, high), min(lane + c * LANES, high));
      const Rotation3 turn = rotation(x, y);
      const Real c = turn.v[0];
      const T s = T{turn.v[1], turn.v[2]};
      // from the left: rows k and k+1 of columns k and k+1
      const T first = add_plain(scale(d[0], c), s, d[1]);
      const T left = subtract_product(scale(d[1], c), d[0], s), right = subtract_product(scale(corner, c), above, s);
      if (lane == 0) {
        if (k > m)
          H(k, k - 1) = x;
        else if (m > low)
          H(k, k - 1) = scale(H(k, k - 1), c);
        H(k, k) = first;
      }
      keep(list, k, turn);
      // from the right: rows k+1 and k+2
      x = add_product(scale(left, c), right, s);
      y = multiply(conjugate(s), below);
      d[0] = subtract_plain(scale(right, c), left, s);
      d[1] = scale(below, c);
#pragma unroll
      for (int i = 0; i < COLUMNS; i++) {
        const int j = lane + i * LANES;
        if (j > k && j <= high) H(k, j) = add_plain(scale(p[i], c), s, r[i]);
        p[i] = subtract_product(scale(r[i], c), p[i], s);
        r[i] = next[i];
      }
      corner = next_corner;
      above = from_owner(p, k + 2);
    }
    if (lane == 0) H(high, high - 1) = x, H(high, high) = d[0];
    lanes_together();
    return m;
  }

  LW_INLINE Job split_pair(int, int) const { return Job{}; }
  static constexpr int SINGLE = 1;
#endif

  // Sweeps and splits until there is something to do outside the window. `high` is the end of the window, `turns` counts its
  // sweeps and `total` those of the matrix.
  LW_INLINE Job advance(int& high, int& turns, int& total, int list) const {
    while (high >= 0) {
      const int low = last_where(0, high, [&](int k) { return negligible(k); });
      lanes_together();
      if (low > 0 && lane == 0) H(low, low - 1) = zero();
      const int rows = high - low + 1;
      if (rows <= SINGLE) {
        const int end = high;
        high -= rows;
        turns = 0;
        if (rows == 2) {
          const Job job = split_pair(end, list);
          if (MODE > 0) return job;
        }
        continue;
      }
      if (++total > 30 * max(n, 10)) return Job{FAILED, 0, 0, 0};
      const Job job{SWEEP, sweep(low, high, ++turns, list), high, low};
      // inside the window row i lacks the rotations from its own on, on the right
      for (int i = low + lane; i < high; i += LANES)
        apply<true>(Job{SWEEP, max(i, job.first), high, low}, list, [&](int k) -> T& { return H(i, k); });
      lanes_together();
      if (MODE > 0) return job;
    }
    return Job{END, 0, 0, 0};
  }

  // The elements at(k) of a row (from_right) or column times the rotations or reflections of a job
  template <bool FROM_RIGHT, typename F>
  LW_INLINE void apply(const Job& job, int list, F at) const {
#if LW_DTYPE < 2
    if (job.kind == SWEEP) {
      Real x = at(job.first), y = at(job.first + 1);
#pragma unroll 4
      for (int k = job.first; k + 1 < job.last; k++) {
        const Real z = at(k + 2), v2 = entry(list, k, 1), v3 = entry(list, k, 2), s = entry(list, k, 0) * (x + v2 * y + v3 * z);
        at(k) = x - s;
        x = y - v2 * s;
        y = z - v3 * s;
      }
      const Real v2 = entry(list, job.last - 1, 1), s = entry(list, job.last - 1, 0) * (x + v2 * y);
      at(job.last - 1) = x - s;
      at(job.last) = y - v2 * s;
      return;
    }
#endif
    T x = at(job.first);
#pragma unroll 4
    for (int k = job.first; k < job.last; k++) {
      const T y = at(k + 1);
      const Real c = entry(list, k, 0);
#if LW_DTYPE < 2
      const T s = entry(list, k, 1);
#else
      const T s = FROM_RIGHT ? T{entry(list, k, 1), -entry(list, k, 2)} : T{entry(list, k, 1), entry(list, k, 2)};
#endif
      at(k) = add_plain(scale(x, c), s, y);
      x = subtract_product(scale(y, c), x, s);
    }
    at(job.last) = x;
  }

  // Thread `worker` of `workers`
  LW_INLINE void catch_up(const Job& job, int list, int worker, int workers) const {
    const int right = n - 1 - job.last, above = job.low;
    for (int i = worker; i < n; i += workers) apply<true>(job, list, [&](int k) -> T& { return Z(i, k); });
    for (int i = worker; i < above + right; i += workers) {
      if (i < right)
        apply<false>(job, list, [&](int k) -> T& { return H(k, n - 1 - i); });
      else
        apply<true>(job, list, [&](int k) -> T& { return H(i - right, k); });
    }
  }

  // H <- T, Z <- Z Q. False where the sweeps do not converge.
  LW_INLINE bool iterate() const {
    int high = n - 1, turns = 0, total = 0;
    Job job{};
    if (P <= WARP) {
      for (;;) {
        job = advance(high, turns, total, 0);
        if (job.kind >= END) return job.kind == END;
        together();
        catch_up(job, 0, t, P);
        together();
      }
    }
    for (int turn = 0;; turn ^= 1) {
      if (group == 0) {
        const Job next = advance(high, turns, total, turn);
        if (lane == 0) {
          int* to = jobs + 4 * turn;
          to[0] = next.kind, to[1] = next.first, to[2] = next.last, to[3] = next.low;
        }
      } else if (total == 1) {
        catch_up(job, turn ^ 1, t - WARP, P - WARP);
      }
      __syncthreads();
      const int* from = jobs + 4 * turn;
      job = Job{from[0], from[1], from[2], from[3]};
      if (job.kind >= END) return job.kind == END;
      if (group > 0) total = 1;  // there is a job to catch up with
    }
  }

  // ---- results -------------------------------------------------------------------------------------------------------

  LW_INLINE bool is_pair(int i) const { return LW_DTYPE < 2 && i + 1 < n && !(size(H(i + 1, i)) == 0); }

  LW_INLINE C value(int i) const {
    C w = wide(H(i, i));
#if LW_DTYPE < 2
    if (is_pair(i)) w.im = sqrt(fabs(H(i, i + 1))) * sqrt(fabs(H(i + 1, i)));
    if (i > 0 && is_pair(i - 1)) w.im = -sqrt(fabs(H(i - 1, i))) * sqrt(fabs(H(i, i - 1)));
#endif
    return w;
  }

  LW_INLINE void store_values(Real* w, int exponent, bool failed) const {
    for (int i = t; i < n; i += P) {
      const C x = failed ? C{not_a_number(), not_a_number()} : c_shift(value(i), exponent);
      w[2 * i] = x.re;
      w[2 * i + 1] = x.im;
    }
  }

  LW_INLINE static C no_smaller(C d, Real least) { return size(d) < least ? C{least, 0} : d; }

  // x of (T - lambda) x = 0 with x_j = 1 or the like, by the lanes of a warp. x_k is what is left of the right-hand side until
  // its turn comes.
  LW_INLINE void substitute(int j, C lambda) const {
    const Real least = fmax(Real(LW_EPS) * size(lambda), Real(LW_EPS) * Real(LW_EPS));
    int start = j;
    C last = C{1, 0}, before = C{0, 0};
#if LW_DTYPE < 2
    if (j > 0 && is_pair(j - 1)) {
      const Real b = H(j - 1, j), c = H(j, j - 1);
      start = j - 1;
      if (fabs(b) >= fabs(c))
        before = C{1, 0}, last = C{0, lambda.im / b};
      else
        before = C{-lambda.im / c, 0}, last = C{0, 1};
    }
#endif
    for (int i = lane; i <= j; i += LANES) {
      C x = i == j ? last : before;
      if (i < start) {
        x = c_subtract(C{0, 0}, times(H(i, j), last));
        if (start < j) x = c_subtract(x, times(H(i, j - 1), before));
      }
      X(i) = x;
    }
    lanes_together();
    for (int k = start - 1; k >= 0; k--) {
      C x = X(k), d = c_subtract(wide(H(k, k)), lambda);
#if LW_DTYPE < 2
      if (k > 0 && is_pair(k - 1)) {  // rows k - 1 and k: (a b; c d) (y, x) = what is left
        C y = X(k - 1), a = c_subtract(wide(H(k - 1, k - 1)), lambda);
        const Real b = H(k - 1, k), c = H(k, k - 1);
        if (size(a) >= fabs(c)) {
          a = no_smaller(a, least);
          const C ratio = c_divide(C{c, 0}, a);
          x = c_divide(c_subtract(x, c_multiply(ratio, y)), no_smaller(c_subtract(d, c_scale(ratio, b)), least));
          y = c_divide(c_subtract(y, c_scale(x, b)), a);
        } else {
          const Real by = 1 / (fabs(c) < least ? least : c);
          const C ratio = c_scale(a, by);
          const C right = x;
          x = c_divide(c_subtract(y, c_multiply(ratio, right)), no_smaller(c_subtract(C{b, 0}, c_multiply(ratio, d)), least));
          y = c_scale(c_subtract(right, c_multiply(d, x)), by);
        }
        const Real most = fmax(largest_part(x), largest_part(y));
        const int down = shrink(most, k - 1, j);
        x = c_shift(x, down), y = c_shift(y, down);
        lanes_together();
        if (lane == 0) X(k) = x, X(k - 1) = y;
        for (int i = lane; i < k - 1; i += LANES) X(i) = c_subtract(c_subtract(X(i), times(H(i, k), x)), times(H(i, k - 1), y));
        lanes_together();
        k--;
        continue;
      }
#endif
      x = c_divide(x, no_smaller(d, least));
      x = c_shift(x, shrink(largest_part(x), k, j));
      lanes_together();
      if (lane == 0) X(k) = x;
      for (int i = lane; i < k; i += LANES) X(i) = c_subtract(X(i), times(H(i, k), x));
      lanes_together();
    }
  }

  // Where x_k has grown, all of x is brought down. Returns by which power of two. A step multiplies x by 2^60 (float) or 2^120
  // at most, for the divisors are no smaller than eps^2 beside entries of about 1.
  LW_INLINE int shrink(Real most, int k, int j) const {
    if (!(most > (LW_DTYPE % 2 == 0 ? Real(0x1p30f) : Real(0x1p300)))) return 0;
    const int down = -ilogb(most);
    lanes_together();
    for (int i = lane; i <= j; i += LANES) X(i) = c_shift(X(i), down);
    lanes_together();
    return down;
  }

  // Z <- the eigenvectors of unit length; those of a conjugate pair are its columns j - 1 +- i j
  LW_INLINE void vectors() const {
    for (int top = n - 1; top >= 0; top -= GROUPS) {
      const int j = top - group;
      const bool second = j > 0 && is_pair(j - 1), busy = j >= 0 && !(j >= 0 && is_pair(j));
      C v[LW_ROWS];
      if (busy) {
        substitute(j, second ? value(j - 1) : value(j));
        int most = -100000;
#pragma unroll
        for (int q = 0; q < LW_ROWS; q++) {
          const int i = lane + q * LANES;
          C sum = C{0, 0};
          if (i < n) {
#pragma unroll 4
            for (int k = 0; k <= j; k++) {
              const C more = times(Z(i, k), X(k));
              sum.re += more.re, sum.im += more.im;
            }
            if (largest_part(sum) > 0) most = max(most, ilogb(largest_part(sum)) + scales[i * STRIDE]);
          }
          v[q] = sum;
        }
        most = int(max_lanes<LANES>(Real(most)));
        Real squares = 0;
#pragma unroll
        for (int q = 0; q < LW_ROWS; q++) {
          const int i = lane + q * LANES;
          if (i < n) v[q] = c_shift(v[q], scales[i * STRIDE] - most);
          squares += v[q].re * v[q].re + v[q].im * v[q].im;
        }
        const Real by = fine_root(sum_lanes<LANES>(squares));
#pragma unroll
        for (int q = 0; q < LW_ROWS; q++) v[q] = c_scale(v[q], by);
      }
      together();  // the columns that others of this turn read are written from here on
      if (busy) {
#pragma unroll
        for (int q = 0; q < LW_ROWS; q++) {
          const int i = lane + q * LANES;
          if (i >= n) continue;
#if LW_DTYPE < 2
          Z(i, second ? j - 1 : j) = v[q].re;
          if (second) Z(i, j) = v[q].im;
#else
          Z(i, j) = v[q];
#endif
        }
      }
      together();
    }
  }

  // Element (i, j) of the eigenvectors
  LW_INLINE C vector(int i, int j) const {
#if LW_DTYPE < 2
    if (is_pair(j)) return C{Z(i, j), Z(i, j + 1)};
    if (j > 0 && is_pair(j - 1)) return C{Z(i, j - 1), -Z(i, j)};
#endif
    return wide(Z(i, j));
  }

  LW_INLINE T schur(int i, int j, int exponent) const {
    return j < i - 1 || (j < i && !is_pair(j)) ? zero() : shift(H(i, j), exponent);
  }

  // From what was loaded to what can be stored. False where it failed.
  LW_INLINE bool solve(int& exponent) const {
    exponent = normalise();
    if (exponent == -10000) return false;
    if (MODE < 2) {
      balance();
      together();
      exponent += normalise();
    }
    reduce();
    if (!iterate()) return false;
    if (MODE == 1) vectors();
    return true;
  }
};

// Hands out shared memory.
struct Pool {
  char* at;
  template <typename E>
  LW_INLINE E* take(int count) {
    E* first = (E*)at;
    at += (count * (int)sizeof(E) + 15) / 16 * 16;
    return first;
  }
};

#if LW_P == 1
// A thread per matrix. The elements of the matrices of a block are interleaved.
extern "C" __global__ void __launch_bounds__(LW_THREADS) eig(Eig call) {
  constexpr int N = LW_N, NN = N * N;
  Pool pool{memory};
  T* h = pool.take<T>(NN * STRIDE);
  T* z = MODE > 0 ? pool.take<T>(NN * STRIDE) : nullptr;
  Real* room = pool.take<Real>(N * PER_ROW * STRIDE);
  int* scales = pool.take<int>(2 * N * STRIDE);
  const int t = threadIdx.x;
  auto matrix = [&](int slot) {
    return Matrix{h + slot, z + slot, room, scales + slot, scales + N * STRIDE + slot, nullptr, nullptr, N, N, 0, 0, 0, slot};
  };
  const i64 first = (i64)blockIdx.x * LW_THREADS;
  const int count = call.batch - first < LW_THREADS ? (int)(call.batch - first) : LW_THREADS;
  for (int e = t; e < count * NN; e += LW_THREADS) h[e % NN * STRIDE + e / NN] = load_element(call.a + first * NN + e);
  __syncthreads();
  if (t < count) {
    const Matrix m = matrix(t);
    int exponent;
    const bool failed = !m.solve(exponent);
    call.info[first + t] = failed;
    if (MODE < 2) m.store_values(call.w + (first + t) * 2 * N, exponent, failed);
    m.scales[0] = exponent;
    m.steps[0] = failed;
  }
  __syncthreads();
  if (MODE == 1) {
    for (int e = t; e < count * NN; e += LW_THREADS) {
      const Matrix m = matrix(e / NN);
      const C x = m.steps[0] ? C{not_a_number(), not_a_number()} : m.vector(e % NN / N, e % N);
      Real* to = call.v + (first * NN + e) * 2;
      to[0] = x.re;
      to[1] = x.im;
    }
  }
  if (MODE == 2) {
    for (int e = t; e < count * NN; e += LW_THREADS) {
      const Matrix m = matrix(e / NN);
      const int i = e % NN / N, j = e % N;
      const bool failed = m.steps[0];
      store_element(call.t + first * NN + e, failed ? filled(not_a_number()) : m.schur(i, j, m.scales[0]));
      store_element(call.z + first * NN + e, failed ? filled(not_a_number()) : m.Z(i, j));
    }
  }
}
#else
// A warp or a block per matrix
extern "C" __global__ void __launch_bounds__(LW_THREADS) eig(Eig call) {
  const int n = call.n, pitch = H_GLOBAL ? n : n | 1;
  Pool pool{memory};
  Matrix m;
  m.h = H_GLOBAL ? call.scratch + (2 * (i64)blockIdx.x + 1) * n * n : pool.take<T>(n * pitch);
  m.z = Z_GLOBAL ? call.scratch + (H_GLOBAL ? 2 : 1) * (i64)blockIdx.x * n * n : MODE > 0 ? pool.take<T>(n * pitch) : nullptr;
  m.room = pool.take<Real>(n * PER_ROW);
  m.scales = pool.take<int>(2 * n);
  m.jobs = pool.take<int>(P > WARP ? 8 : 0);
  m.sums = pool.take<Real>(P > WARP ? GROUPS : 0);
  m.steps = m.scales + n;
  m.n = n;
  m.pitch = pitch;
  m.t = threadIdx.x;
  m.lane = threadIdx.x % LANES;
  m.group = m.t / LANES;
  m.slot = 0;
  for (i64 b = blockIdx.x; b < call.batch; b += gridDim.x) {
    const i64 start = b * n * n;
    for (int i = m.group; i < n; i += GROUPS)
      for (int j = m.lane; j < n; j += LANES) m.H(i, j) = load_element(call.a + start + i * n + j);
    together();
    int exponent;
    const bool failed = !m.solve(exponent);
    together();
    if (m.t == 0) call.info[b] = failed;
    if (MODE < 2) m.store_values(call.w + b * 2 * n, exponent, failed);
    for (int i = m.group; MODE > 0 && i < n; i += GROUPS)
      for (int j = m.lane; j < n; j += LANES) {
        if (MODE == 1) {
          const C x = failed ? C{not_a_number(), not_a_number()} : m.vector(i, j);
          Real* to = call.v + (start + i * n + j) * 2;
          to[0] = x.re;
          to[1] = x.im;
        } else {
          store_element(call.t + start + i * n + j, failed ? filled(not_a_number()) : m.schur(i, j, exponent));
          store_element(call.z + start + i * n + j, failed ? filled(not_a_number()) : m.Z(i, j));
        }
      }
    together();
  }
}
#endif
