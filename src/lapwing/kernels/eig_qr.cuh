// QR sweeps from the Hessenberg form H to the Schur form T.
#pragma once
#include "eig.cuh"

// The largest k in (low, high] with f(k), or low
template <typename F>
LW_INLINE int Matrix::last_where(int low, int high, F f) const {
  for (int top = high; top > low; top -= LANES) {
    const int k = top - lane;
    const unsigned hits = votes(k > low && f(k));
    if (hits) return top - (__ffs(hits) - 1);
  }
  return low;
}

// Whether H(k, k-1) may be set to zero: Ahues and Tisseur's test
LW_INLINE bool Matrix::negligible(int k) const {
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

LW_INLINE void Matrix::record(int list, int k, const Turn& turn) const {
  if (lane != 0) return;
#pragma unroll
  for (int i = 0; i < 3; i++) entry(list, k, i) = turn.v[i];
}

#if LW_DTYPE < 2
// ---- real matrices: Francis's double-shift sweep ------------------------------------------------------------------

// tau, v2, v3 of I - tau v v^T with v = (1, v2, v3), which takes (x, y, z) to (x, 0, 0)
LW_INLINE Turn reflection(Real& x, Real y, Real z) {
  Real squares = x * x + y * y + z * z;
  const bool faint = squares < LW_FAINT;
  if (faint) {
    x *= LW_LIFT, y *= LW_LIFT, z *= LW_LIFT;
    squares = x * x + y * y + z * z;
  }
  Turn r{{0, 0, 0}};
  if (y != 0 || z != 0) {  // even where their squares are lost in x^2: without the reflection a window may never split
    const Real root = fine_root(squares), length = squares * root, by = copy_sign(Real(1) / (fabs(x) + length), x);
    r.v[0] = 1 + fabs(x) * root;
    r.v[1] = y * by;
    r.v[2] = z * by;
    x = -copy_sign(length, x);
  }
  if (faint) x *= Real(1) / LW_LIFT;
  return r;
}

LW_INLINE Real length(Real x, Real y) {
  const Real most = fmax(fabs(x), fabs(y)), least = fabs(x) < fabs(y) ? fabs(x) : fabs(y);
  if (!(most > 0)) return 0;
  const Real ratio = least / most;
  return most * sqrt(1 + ratio * ratio);
}

// The Schur form of [a b; c d], and the rotation to it: equal diagonal elements where the eigenvalues are complex, else a
// triangle. LAPACK's lanv2.
LW_INLINE void standardise(Real& a, Real& b, Real& c, Real& d, Real& cs, Real& sn) {
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

// The two shifts: re1 + i im and re2 - i im. Every tenth sweep has an exceptional shift, as in LAPACK.
LW_INLINE void Matrix::shifts(int low, int high, int turns, Real& re1, Real& re2, Real& im) const {
  Real a = H(high - 1, high - 1), b = H(high - 1, high), c = H(high, high - 1), d = H(high, high);
  if (turns % 10 == 0) {
    const bool from_end = turns % 20 == 0;
    const Real off = from_end ? fabs(H(high, high - 1)) + fabs(H(high - 1, high - 2))
                              : fabs(H(low + 1, low)) + fabs(H(low + 2, low + 1));
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
LW_INLINE void Matrix::first_column(int m, Real re1, Real re2, Real im, Real (&v)[3]) const {
  const Real a = H(m, m), s = fabs(a - re2) + fabs(im) + fabs(H(m + 1, m)), below = H(m + 1, m) / s;
  v[0] = below * H(m, m + 1) + (a - re1) * ((a - re2) / s) + im * (im / s);
  v[1] = below * (a + H(m + 1, m + 1) - re1 - re2);
  v[2] = below * H(m + 2, m + 1);
  const Real sum = fabs(v[0]) + fabs(v[1]) + fabs(v[2]);
#pragma unroll
  for (int i = 0; i < 3; i++) v[i] /= sum;
}

// One double-shift sweep over rows and columns low .. high. Returns where it began.
LW_INLINE int Matrix::sweep(int low, int high, int turns, int list) const {
  Real re1, re2, im, v[3];
  shifts(low, high, turns, re1, re2, im);
  // the sweep may begin where two subdiagonal elements, one after the other, are small
  const int m = last_where(low, high - 2, [&](int k) {
    Real c[3];
    first_column(k, re1, re2, im, c);
    return fabs(H(k, k - 1)) * (fabs(c[1]) + fabs(c[2])) <=
           Real(LW_EPS) * fabs(c[0]) * (fabs(H(k - 1, k - 1)) + fabs(H(k, k)) + fabs(H(k + 1, k + 1)));
  });
  first_column(m, re1, re2, im, v);
  // Every lane computes the elements near the diagonal for itself, so that no barrier is needed between steps. Before step k
  // v has rows k .. k+2 of column k-1, d the same rows of columns k and k+1; p, q and r have rows k, k+1 and k+2 of this lane's
  // columns.
  Real d[3][2], p[COLUMNS], q[COLUMNS], r[COLUMNS], above, middle, corner = H(m + 2, m + 2);
  d[0][0] = H(m, m), d[0][1] = H(m, m + 1);
  d[1][0] = H(m + 1, m), d[1][1] = H(m + 1, m + 1);
  d[2][0] = 0, d[2][1] = H(m + 2, m + 1);
#pragma unroll
  for (int c = 0; c < COLUMNS; c++) {
    const int j = min(lane + c * LANES, high);
    p[c] = H(m, j), q[c] = H(m + 1, j), r[c] = H(m + 2, j);
  }
  above = from_owner(p, m + 2), middle = from_owner(q, m + 2);
  lanes_together();
  for (int k = m; k + 1 < high; k++) {
    // the next row, fetched early
    const bool more = k + 3 <= high;
    Real next[COLUMNS];
    const Real below = more ? H(k + 3, k + 2) : Real(0), next_corner = more ? H(k + 3, k + 3) : Real(0);
#pragma unroll
    for (int c = 0; c < COLUMNS; c++) next[c] = H(min(k + 3, high), min(lane + c * LANES, high));
    const Turn turn = reflection(v[0], v[1], v[2]);
    const Real t1 = turn.v[0], v2 = turn.v[1], v3 = turn.v[2];
    // from the left: rows k .. k+2 of columns k, k+1 and k+2
    Real b[3][3] = {{d[0][0], d[0][1], above}, {d[1][0], d[1][1], middle}, {d[2][0], d[2][1], corner}};
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
    record(list, k, turn);
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
    above = from_owner(p, k + 3), middle = from_owner(q, k + 3);
    lanes_in_step();  // lane 0 overwrites row k + 1 next
  }
  const int k = high - 1;
  const Turn turn = reflection(v[0], v[1], 0);
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
  record(list, k, turn);
  lanes_together();
  return m;
}

// Brings the block of rows and columns k and k+1 to its Schur form
LW_INLINE void Matrix::split_pair(int k, int list) const {
  Real a = H(k, k), b = H(k, k + 1), c = H(k + 1, k), d = H(k + 1, k + 1), cs, sn;
  standardise(a, b, c, d, cs, sn);
  lanes_together();
  if (lane == 0) {
    H(k, k) = a, H(k, k + 1) = b;
    H(k + 1, k) = c, H(k + 1, k + 1) = d;
  }
  record(list, k, Turn{{cs, sn, 0}});
  lanes_together();
}

#else
// ---- complex matrices: the single-shift sweep ---------------------------------------------------------------------

// c and s with [c s; -conj(s) c] (x, y) = (x, 0)
LW_INLINE Turn rotation(T& x, T y) {
  Real xx = square(x), yy = square(y);
  const bool faint = xx + yy < LW_FAINT;
  if (faint) {
    x = scale(x, LW_LIFT), y = scale(y, LW_LIFT);
    xx = square(x), yy = square(y);
  }
  Turn r{{1, 0, 0}};
  if (y.re != 0 || y.im != 0) {
    const Real both = xx + yy, root = fine_root(both);
    // x / |x|, or 1 where x is negligible
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

// Wilkinson's shift: the eigenvalue of the last 2 x 2 block that is nearer to the last element. Every tenth sweep has an
// exceptional shift, as in LAPACK.
LW_INLINE T Matrix::single_shift(int low, int high, int turns) const {
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

// One single-shift sweep over rows and columns low .. high. Returns where it began.
LW_INLINE int Matrix::sweep(int low, int high, int turns, int list) const {
  const T t = single_shift(low, high, turns);
  const int m = last_where(low, high - 1, [&](int k) {
    const T d = subtract(H(k, k), t);
    const Real below = size(H(k + 1, k)), s = size(d) + below;
    return size(H(k, k - 1)) * (below / s) <= Real(LW_EPS) * (size(d) / s * (size(H(k, k)) + size(H(k + 1, k + 1))));
  });
  T x = subtract(H(m, m), t), y = H(m + 1, m);
  const Real s = size(x) + size(y);
  if (s > 0) x = scale(x, Real(1) / s), y = scale(y, Real(1) / s);
  // Every lane computes the elements near the diagonal for itself, so that no barrier is needed between steps. Before step k
  // x and y are rows k and k+1 of column k-1, d has the same rows of column k; p and r have rows k and k+1 of this lane's
  // columns.
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
    const Turn turn = rotation(x, y);
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
    record(list, k, turn);
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
    lanes_in_step();  // lane 0 overwrites row k + 1 next
  }
  if (lane == 0) H(high, high - 1) = x, H(high, high) = d[0];
  lanes_together();
  return m;
}

#endif
// ---- the iteration ------------------------------------------------------------------------------------------------

// Sweeps and splits off eigenvalues until there is work outside the window. `high` is the end of the window, `turns` counts its
// sweeps and `total` those of the matrix.
LW_INLINE Job Matrix::advance(int& high, int& turns, int& total, int list) const {
  while (high >= 0) {
    const int low = last_where(0, high, [&](int k) { return negligible(k); });
    lanes_together();
    if (low > 0 && lane == 0) H(low, low - 1) = zero();
    Job job{SWEEP, 0, high, low};
    if (low == high) {
      high--;
      turns = 0;
      continue;
    }
#if LW_DTYPE < 2
    if (low == high - 1) {
      high -= 2;
      turns = 0;
      split_pair(low, list);
      job.kind = ROTATION;
      job.first = low;
      if (MODE != VALUES) return job;
      continue;
    }
#endif
    if (++total > 30 * max(n, 10)) return Job{FAILED, 0, 0, 0};
    job.first = sweep(low, high, ++turns, list);
    // the sweep left out, from the right, all steps from i on in row i of the window
    for (int i = low + lane; i < high; i += LANES)
      apply<true>(Job{SWEEP, max(i, job.first), high, low}, list, [&](int k) -> T& { return H(i, k); });
    lanes_together();
    if (MODE != VALUES) return job;
  }
  return Job{END, 0, 0, 0};
}

// Applies the rotations or reflections of a job to the elements at(k) of a row (FROM_RIGHT) or a column
template <bool FROM_RIGHT, typename F>
LW_INLINE void Matrix::apply(const Job& job, int list, F at) const {
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

// A job's work on Z and on H outside the window: the part of thread `worker` of `workers`
LW_INLINE void Matrix::catch_up(const Job& job, int list, int worker, int workers) const {
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
LW_INLINE bool Matrix::iterate() const {
  int high = n - 1, turns = 0, total = 0;
  Job job{NOTHING, 0, 0, 0};
  if constexpr (P <= WARP) {
    for (;;) {
      job = advance(high, turns, total, 0);
      if (job.kind >= END) return job.kind == END;
      together();
      catch_up(job, 0, t, P);
      together();
    }
  } else {
    for (int turn = 0;; turn ^= 1) {
      if (group == 0) {
        const Job next = advance(high, turns, total, turn);
        if (lane == 0) jobs[turn] = next;
      } else if (job.kind != NOTHING) {
        catch_up(job, turn ^ 1, t - WARP, P - WARP);
      }
      together();
      job = jobs[turn];
      if (job.kind >= END) return job.kind == END;
    }
  }
}
