// What the kernels of solve, inverse, LU, QR and slogdet share on top of common.cuh.
//
// Every one of them is a matrix E, of whose lower triangle a forward substitution is made and of whose upper triangle a
// backward one, so the operations differ by these choices alone, set by the launcher:
//   LW_READ      E from the memory M: 0 M, 1 M^H, 2 Hermitian by its lower triangle, 3 Hermitian by its upper triangle
//   LW_FACTOR    0: M is a factor, 1: E <- L and L^H of E = L L^H, 2: E <- L (its unit diagonal left out) and U of P E = L U
//   LW_FORWARD, LW_BACKWARD  0: none, 1: the diagonal counts as ones, 2: it is divided by
//   LW_ROWS      0: no pivoting, 1: the right-hand side is permuted before, 2: the solution is, after
//   LW_GIVE      0: x for right-hand sides b, 1: the inverse, 2: E and the pivots' rows, 3: the determinant
//   LW_K         right-hand sides at a time
//   LW_LANES     lanes of a warp that share a matrix
#pragma once
#include "pivots.cuh"
#include "stage.cuh"

#ifndef LW_KEEP  // whether a solution also leaves its factors behind, as LAPACK has them
#define LW_KEEP 0
#endif

struct Call {
  const T* a;
  const T* b;
  T* out;        // x, the inverse or the factors; the determinant or its sign
  Real* logabs;  // of the determinant; null: out takes the determinant itself
  int* rows;
  int* info;  // may be null
  i64 batch, k;
};

// ---- scalars -----------------------------------------------------------------------------------------------------

// Without a branch, so that other work can be scheduled around it.
LW_INLINE float reciprocal(float x) { return quick_inverse(x); }
// The hardware's 20 bits and one step of third order. It flushes what is subnormal, which is scaled first.
LW_INLINE double reciprocal(double x) {
  double size = fabs(x), by = size < 0x1p-1000 ? 0x1p200 : size > 0x1p1000 ? 0x1p-200 : 1.0, s = x * by, y = estimated_inverse(s);
  double e = fma(-s, y, 1.0);
  return fma(y, fma(e, e, e), y) * by;
}

// One over a number below LW_SMALL may be too large; LW_LIFT brings it up.
#if LW_DTYPE % 2 == 0
#define LW_SMALL 0x1p-125f
#define LW_LIFT 0x1p24f
#else
#define LW_SMALL 0x1p-1021
#define LW_LIFT 0x1p54
#endif

#if LW_DTYPE < 2
LW_INLINE T multiply(T a, T b) { return a * b; }
LW_INLINE T invert_lifted(T x) { return reciprocal(x); }
LW_INLINE Real magnitude(T x) { return fabs(x); }
LW_INLINE bool is_zero(T x) { return x == 0; }
LW_INLINE Real log_magnitude(T x) { return log(fabs(x)); }
LW_INLINE T phase(T x) { return x < 0 ? Real(-1) : Real(1); }
#else
LW_INLINE T multiply(T a, T b) { return T{a.re * b.re - a.im * b.im, a.im * b.re + a.re * b.im}; }
// The larger part is divided out, so that no square leaves the range.
LW_INLINE T invert_lifted(T x) {
  Real by = reciprocal(fmax(fabs(x.re), fabs(x.im))), p = x.re * by, q = x.im * by, y = reciprocal(p * p + q * q) * by;
  return T{p * y, -q * y};
}
LW_INLINE Real magnitude(T x) { return fabs(x.re) + fabs(x.im); }
LW_INLINE bool is_zero(T x) { return x.re == 0 && x.im == 0; }
LW_INLINE Real log_magnitude(T x) {
  Real size = fmax(fabs(x.re), fabs(x.im)), p = x.re / size, q = x.im / size;
  return log(size) + Real(0.5) * log(p * p + q * q);
}
LW_INLINE T phase(T x) {
  Real size = fmax(fabs(x.re), fabs(x.im)), p = x.re / size, q = x.im / size, y = reciprocal_root(p * p + q * q);
  return T{p * y, q * y};
}
#endif

// A product of pivots, mantissa times a power of two, so that none is too large or too small on the way.
struct Product {
  T mantissa;
  int exponent;

  LW_INLINE void multiply_by(T x, int more = 0) {
    int e = exponent_of(x);
    mantissa = multiply(mantissa, shifted(x, -e));
    exponent += e + more;
    e = exponent_of(mantissa);
    mantissa = shifted(mantissa, -e);
    exponent += e;
  }
  LW_INLINE T value() const { return shifted(mantissa, exponent); }

 private:
  static LW_INLINE int exponent_of(T x) {
    Real size = magnitude(x);
    return size > 0 && size - size == 0 ? ilogb(size) : 0;  // of infinity and NaN the difference is NaN
  }
#if LW_DTYPE < 2
  static LW_INLINE T shifted(T x, int e) { return scalbn(x, e); }
#else
  static LW_INLINE T shifted(T x, int e) { return T{scalbn(x.re, e), scalbn(x.im, e)}; }
#endif
};

LW_INLINE bool is_tiny(T x) { return magnitude(x) < LW_SMALL; }
LW_INLINE T lift(T x) { return scale(x, LW_LIFT); }
// 1 / x; for a tiny x, 1 / lift(x), by which lift(y) must be multiplied
LW_INLINE T invert(T x) { return invert_lifted(is_tiny(x) ? lift(x) : x); }
// y / x from the inverse of x. tiny: some pivot of the matrix is.
LW_INLINE T divide(T y, T x, T inverse, bool tiny) {
  if (LW_FACTOR != 1 && tiny && is_tiny(x)) y = lift(y);
  return multiply(y, inverse);
}

LW_INLINE T only_real(T x) { return from_real(real(x)); }
#if LW_DTYPE == 0
LW_INLINE bool is_divisor(T x) { return (__float_as_uint(x) & 0x7fffffff) - 1 < 0x7f7fffff; }
#else
LW_INLINE bool is_divisor(T x) { return is_finite(x) && !is_zero(x); }
#endif
LW_INLINE T nan_element() { return filled(not_a_number()); }
LW_INLINE Real log_of_zero() { return Real(__int_as_float(0xff800000)); }

// ---- between the lanes of a matrix -------------------------------------------------------------------------------

constexpr int LANES = LW_LANES;

LW_INLINE Real from_lane(Real x, int lane) { return shuffle(x, lane, LANES); }
#if LW_DTYPE >= 2
LW_INLINE T from_lane(T x, int lane) { return T{from_lane(x.re, lane), from_lane(x.im, lane)}; }
#endif

LW_INLINE unsigned lanes_where(bool x) {
  unsigned found = ballot(x);
  return LANES == 32 ? found : found >> (threadIdx.x % 32 / LANES * LANES) & ((1u << LANES % 32) - 1);
}

LW_INLINE unsigned largest(unsigned x) {
#if LW_LANES == 32 && LW_WAVE == 32
  return most_of_lanes(x);
#else
#pragma unroll
  for (int step = LANES / 2; step > 0; step /= 2) x = max(x, shuffle_xor(x, step));
  return x;
#endif
}

// Magnitudes as integers have the same order, with infinity and what is not a number above all; 0 stands for no candidate.
#if LW_DTYPE % 2 == 0
typedef unsigned Key;
LW_INLINE Key key_of(T x) { return (__float_as_uint(magnitude(x)) & 0x7fffffff) + 1; }
LW_INLINE int lane_of_largest(Key key) { return __ffs(lanes_where(key == largest(key))) - 1; }
#else
typedef unsigned long long Key;
LW_INLINE Key key_of(T x) { return ((Key)__double_as_longlong(magnitude(x)) & 0x7fffffffffffffff) + 1; }
LW_INLINE int lane_of_largest(Key key) {
  unsigned high = key >> 32, low = (unsigned)key;
  bool best = high == largest(high);
  unsigned found = lanes_where(best);
  if (any_lane(found & (found - 1))) {
    unsigned most = largest(best ? low : 0);
    found = lanes_where(best && low == most);
  }
  return __ffs(found) - 1;
}
#endif

// ---- determinants ------------------------------------------------------------------------------------------------

#if LW_LANES == 32
// Whether the permutation of n is odd: by every earlier place with a later row. All threads of the block, order in shared memory.
LW_INLINE bool is_odd(const int* order, int n) {
  int earlier = 0;
  for (int place = threadIdx.x; place < n; place += LW_THREADS) {
    const int own = order[place];
    for (int i = 0; i < place; i++) earlier += order[i] > own;
  }
  return __syncthreads_count(earlier % 2) % 2;
}

// One warp: the determinant from the diagonal of a factor, diagonal(i), whose square counts where `positive`; with logabs its
// sign and logarithm.
template <typename F>
LW_INLINE void store_diagonal_product(T* value, Real* logabs, int n, bool positive, bool odd, bool failed, F diagonal) {
  T sign = from_real(1);
  Product product{from_real(1), 0};
  Real sum = 0;
  bool zeros = false;
  for (int i = threadIdx.x; i < n; i += 32) {
    const T d = diagonal(i);
    product.multiply_by(d);
    if (positive) product.multiply_by(d);
    if (!positive) sign = multiply(sign, phase(d));
    sum += (positive ? 2 : 1) * log_magnitude(d);
    zeros = zeros || is_zero(d);
  }
  const bool singular = any_lane(zeros);
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    sum += across(sum, step);
    sign = multiply(sign, across(sign, step));
    product.multiply_by(across(product.mantissa, step), int(across(Real(product.exponent), step)));
  }
  if (odd) sign = negate(sign), product.mantissa = negate(product.mantissa);
  if (!positive && singular) sign = zero(), sum = log_of_zero();
  if (failed) sign = nan_element(), sum = not_a_number();
  if (threadIdx.x != 0) return;
  store_element(value, logabs ? sign : failed ? nan_element() : product.value());
  if (logabs) *logabs = sum;
}
#endif
