// Scaling, balancing and the reduction to Hessenberg form: the first stages of eig.cu.
#pragma once
#include "eig.cuh"

// H <- H 2^-e with the largest entry near 1. Returns e, or NOT_FINITE where an entry is Inf or NaN.
LW_INLINE int Matrix::normalise() const {
  Real largest = 0, bad = 0;
  for (int i = group; i < n; i += GROUPS)
    for (int j = lane; j < n; j += LANES) {
      const T x = H(i, j);
      if (!is_finite(x)) bad = 1;
      largest = fmax(largest, magnitude(x));
    }
  bad = largest_of_all(bad);
  largest = largest_of_all(largest);
  if (bad != 0) return NOT_FINITE;
  const int e = largest > 0 ? ilogb(largest) : 0;
  if (e == 0) return 0;
  for (int i = group; i < n; i += GROUPS)
    for (int j = lane; j < n; j += LANES) H(i, j) = shift(H(i, j), -e);
  together();
  return e;
}

// H <- D^-1 H D with D = 2^scales, so that row i and column i have about the same norm. All i are done at the same time, each
// with half of the step that it would need alone: the steps of the others bring about the rest.
LW_INLINE void Matrix::balance() const {
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
LW_INLINE void Matrix::reduce() const {
  if (MODE != VALUES)
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
    for (int i = k + 1 + t; i < n; i += P) set_u(i, i == k + 1 ? from_real(Real(1)) : multiply(H(i, k), factor));
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
    for (int i = t; i < (MODE != VALUES ? 2 * n : n); i += P) {
      const bool is_h = i < n;
      T sum = zero();
#pragma unroll 4
      for (int j = k + 1; j < n; j++) sum = add_plain(sum, is_h ? H(i, j) : Z(i - n, j), U(j));
      sum = multiply(sum, tau);
#pragma unroll 4
      for (int j = k + 1; j < n; j++) {
        T& x = is_h ? H(i, j) : Z(i - n, j);
        x = subtract_product(x, sum, U(j));
      }
    }
    together();
  }
}
