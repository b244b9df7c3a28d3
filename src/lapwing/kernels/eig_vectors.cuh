// Eigenvalues and eigenvectors from the Schur form.
#pragma once
#include "eig.cuh"

// Whether rows i and i + 1 of T are the block of a conjugate pair
LW_INLINE bool Matrix::is_pair(int i) const { return LW_DTYPE < 2 && i + 1 < n && !(size(H(i + 1, i)) == 0); }

LW_INLINE C Matrix::value(int i) const {
  C w = wide(H(i, i));
#if LW_DTYPE < 2
  if (is_pair(i)) w.im = sqrt(fabs(H(i, i + 1))) * sqrt(fabs(H(i + 1, i)));
  if (i > 0 && is_pair(i - 1)) w.im = -sqrt(fabs(H(i - 1, i))) * sqrt(fabs(H(i, i - 1)));
#endif
  return w;
}

LW_INLINE void Matrix::store_values(Real* w, int exponent, bool failed) const {
  for (int i = t; i < n; i += P) {
    const C x = failed ? complex_nan() : c_shift(value(i), exponent);
    w[2 * i] = x.re;
    w[2 * i + 1] = x.im;
  }
}

LW_INLINE C no_smaller(C d, Real least) { return size(d) < least ? C{least, 0} : d; }

// x of (T - lambda) x = 0 for eigenvalue j, by the lanes of a warp: x_j = 1, or the vector of the 2 x 2 block of a pair. The
// place of x_k holds the right-hand side of row k until x_k is known.
LW_INLINE void Matrix::substitute(int j, C lambda) const {
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
    set_x(i, x);
  }
  lanes_together();
  for (int k = start - 1; k >= 0; k--) {
    C x = X(k), d = c_subtract(wide(H(k, k)), lambda);
#if LW_DTYPE < 2
    if (k > 0 && is_pair(k - 1)) {  // solve [a b; c d] (y, x) = right-hand sides of rows k - 1 and k
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
      const int down = shrink(most, j);
      x = c_shift(x, down), y = c_shift(y, down);
      lanes_together();
      if (lane == 0) set_x(k, x), set_x(k - 1, y);
      for (int i = lane; i < k - 1; i += LANES) set_x(i, c_subtract(c_subtract(X(i), times(H(i, k), x)), times(H(i, k - 1), y)));
      lanes_together();
      k--;
      continue;
    }
#endif
    x = c_divide(x, no_smaller(d, least));
    x = c_shift(x, shrink(largest_part(x), j));
    lanes_together();
    if (lane == 0) set_x(k, x);
    for (int i = lane; i < k; i += LANES) set_x(i, c_subtract(X(i), times(H(i, k), x)));
    lanes_together();
  }
}

// Divides all of x by a power of two where x_k has grown, and returns its exponent, negated. A step multiplies x by 2^60
// (float) or 2^120 at most, since entries of T are about 1 and divisors no smaller than eps^2.
LW_INLINE int Matrix::shrink(Real most, int j) const {
  if (!(most > (LW_DTYPE % 2 == 0 ? Real(0x1p30f) : Real(0x1p300)))) return 0;
  const int down = -ilogb(most);
  lanes_together();
  for (int i = lane; i <= j; i += LANES) set_x(i, c_shift(X(i), down));
  lanes_together();
  return down;
}

// Z <- eigenvectors of unit length. For a conjugate pair, column j - 1 is the real part and column j the imaginary part.
LW_INLINE void Matrix::vectors() const {
  for (int top = n - 1; top >= 0; top -= GROUPS) {
    const int j = top - group;
    const bool second = j > 0 && is_pair(j - 1), busy = j >= 0 && !is_pair(j);
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
    together();  // other warps have read the columns that are written below
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
LW_INLINE C Matrix::vector(int i, int j) const {
#if LW_DTYPE < 2
  if (is_pair(j)) return C{Z(i, j), Z(i, j + 1)};
  if (j > 0 && is_pair(j - 1)) return C{Z(i, j - 1), -Z(i, j)};
#endif
  return wide(Z(i, j));
}

// Element (i, j) of T, with exact zeros below its blocks
LW_INLINE T Matrix::schur(int i, int j, int exponent) const {
  return j < i - 1 || (j < i && !is_pair(j)) ? zero() : shift(H(i, j), exponent);
}
