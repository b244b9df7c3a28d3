// What the eigenvalue kernels share on top of common.cuh.
#pragma once
#include "common.cuh"

// LW_EPS: the distance from 1 to the next number. LW_TINY: squares below it are zero beside a matrix whose largest entry is 1.
#if LW_DTYPE == 0 || LW_DTYPE == 2
#define LW_EPS 1.1920929e-7f
#define LW_TINY 1e-34f
constexpr int MAX_EXPONENT = 120;
#else
#define LW_EPS 2.220446049250313e-16
#define LW_TINY 1e-280
constexpr int MAX_EXPONENT = 1000;
#endif

#if LW_DTYPE < 2
LW_INLINE Real square(T x) { return x * x; }
LW_INLINE Real magnitude(T x) { return x < 0 ? -x : x; }
LW_INLINE T add(T a, T b) { return a + b; }
LW_INLINE T add_plain(T c, T a, T b) { return a * b + c; }
#else
LW_INLINE Real square(T x) { return x.re * x.re + x.im * x.im; }
LW_INLINE Real magnitude(T x) { return fmax(x.re < 0 ? -x.re : x.re, x.im < 0 ? -x.im : x.im); }
LW_INLINE T add(T a, T b) { return T{a.re + b.re, a.im + b.im}; }
// c + a b
LW_INLINE T add_plain(T c, T a, T b) {
  return T{(a.re * b.re + c.re) - a.im * b.im, a.im * b.re + (a.re * b.im + c.im)};
}
#endif

LW_INLINE T multiply(T a, T b) { return add_plain(zero(), a, b); }

// Sums of C elements over a warp. They are added up while they are spread over the lanes, in as many exchanges as there are
// elements and not five times as many. Lane l with l % (32 / C) == 0 has the sum of element `index`, which is returned, in x[0].
template <int C>
LW_INLINE int sum_columns(T (&x)[C]) {
  const int lane = threadIdx.x % 32;
  int index = 0;
#pragma unroll
  for (int count = C / 2, step = 16; step > 0; count /= 2, step /= 2) {
    if (count > 0) {
      const bool high = lane & step;
      if (high) index += count;
#pragma unroll
      for (int k = 0; k < C / 2; k++) {
        if (k < count) {
          const T keep = select(high, x[k + count], x[k]), send = select(high, x[k], x[k + count]);
          x[k] = add(keep, across(send, step));
        }
      }
    } else {
      x[0] = add(x[0], across(x[0], step));
    }
  }
  return index;
}

// room <- the sums of C elements over a warp
template <int C>
LW_INLINE void sum_warp(T (&x)[C], T* room) {
  const int lane = threadIdx.x % 32, index = sum_columns(x);
  if (lane % (32 / C) == 0) room[index] = x[0];
}

// Powers of two that bring a matrix whose largest entry is `largest` near 1 (`down`) and back (`up`).
LW_INLINE void scaling(Real largest, Real& down, Real& up) {
  int exponent = largest > 0 ? ilogb(largest) : 0;
  exponent = exponent > MAX_EXPONENT ? MAX_EXPONENT : exponent < -MAX_EXPONENT ? -MAX_EXPONENT : exponent;
  down = ldexp(Real(1), -exponent);
  up = ldexp(Real(1), exponent);
}

// 1 / sqrt(x) of a normal number to the last bit or so: rotations built from it stay orthogonal over thousands of them.
LW_INLINE float fine_root(float x) {
  float y = estimated_root(x);
  return fmaf(0.5f * y, fmaf(-x * y, y, 1.0f), y);
}
LW_INLINE double fine_root(double x) {
  double y = estimated_root(x), e = fma(-x * y, y, 1.0);
  return fma(y * e, fma(e, 0.375, 0.5), y);
}

// H^H x = beta e_1 with H = I - tau u u^H, u_1 = 1, from x_1 = alpha and the sum of squares of the rest. Returns the factor
// that takes the rest of x to u.
LW_INLINE T reflector(T alpha, Real rest, T& tau, Real& beta) {
  Real re = real(alpha), im = imaginary(alpha), more = rest + im * im;
  if (!(more > LW_TINY)) {
    tau = zero();
    beta = re;
    return zero();
  }
  Real squares = re * re + more, root = fine_root(squares), size = squares * root;
  beta = re > 0 ? -size : size;
  Real x = fabs(re) + size;
#if LW_DTYPE < 2
  tau = Real(1) + fabs(re) * root;
  Real inverse = fine_root(x);
  inverse *= inverse;
  return re > 0 ? inverse : -inverse;
#else
  tau = T{Real(1) + fabs(re) * root, re > 0 ? im * root : -im * root};
  Real inverse = fine_root(x * x + im * im);
  inverse *= inverse;
  return T{(re > 0 ? x : -x) * inverse, -im * inverse};
#endif
}

template <int LANES>
LW_INLINE Real sum_lanes(Real x) {
#pragma unroll
  for (int step = LANES / 2; step > 0; step /= 2) x += shuffle_xor(x, step);
  return x;
}
template <int LANES>
LW_INLINE Real max_lanes(Real x) {
#pragma unroll
  for (int step = LANES / 2; step > 0; step /= 2) x = fmax(x, shuffle_xor(x, step));
  return x;
}

#if LW_DTYPE >= 2
template <int LANES>
LW_INLINE T sum_lanes(T x) {
  return T{sum_lanes<LANES>(x.re), sum_lanes<LANES>(x.im)};
}
#endif

// ---- what eigh_values writes down for eigh_vectors ---------------------------------------------------------------

typedef Pack<Real, 2> Rotation;  // c, s
struct alignas(8) Sweep {
  int start;  // rotations start, start + 1, ... are in the planes (high-1, high), ..., (low, low+1)
  short low, high;
};
