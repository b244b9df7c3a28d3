// What the kernels of least squares share: when R proves that the rank is full.
#pragma once
#include "qr_state.cuh"

LW_INLINE Real from_lane(Real x, int lane) { return shuffle(x, lane); }
LW_INLINE Real shifted(Real x, int exponent) { return ldexp(x, exponent); }
#if LW_DTYPE < 2
LW_INLINE T inverse_of(T x) { return 1 / x; }
#else
// The larger part is divided out, so that the square does not leave the range.
LW_INLINE T inverse_of(T x) {
  const Real size = magnitude(x);
  const T y = scale(x, 1 / size);
  return scale(conjugate(y), 1 / (square(y) * size));
}
LW_INLINE T from_lane(T x, int lane) { return T{from_lane(x.re, lane), from_lane(x.im, lane)}; }
LW_INLINE T shifted(T x, int exponent) { return T{shifted(x.re, exponent), shifted(x.im, exponent)}; }
#endif

// The smallest singular value of R is estimated from solves with R^H and R that begin with a vector that has no pattern; they
// may miss it by a small factor. has_full_rank in native/methods/lstsq.cc has the reasons and the same margins.
constexpr int ROUNDS = 4;

LW_INLINE T start_element(int i) {
  const unsigned mixed = (unsigned)(i + 1) * 2654435761u;
  return from_real(Real((mixed >> 16) % 61) - Real(30.3));
}

// Squares that overflow prove nothing.
LW_INLINE bool is_proof(double before, double inverse) { return before <= LW_LARGEST && inverse <= LW_LARGEST; }

// Whether the smallest singular value is certainly above rcond times the largest, from the Frobenius norm of R and the norm of
// R^-1 that a round of solves has found.
LW_INLINE bool is_full(int round, double whole, double inverse, double rcond) {
  constexpr double MARGIN = 16, CLOSE_MARGIN = 4;
  return (round == 0 || round == ROUNDS - 1) && whole * inverse * (round == 0 ? MARGIN : CLOSE_MARGIN) * rcond < 1;
}
