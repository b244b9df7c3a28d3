// Kernels around a QR with reflections panel by panel keep for each matrix an integer `state`, the exponent of its
// largest element, below -MAX_STATE where all are zero, NOT_FINITE where there is an Inf or NaN.
#pragma once
#include "eigh.cuh"

constexpr int NOT_FINITE = 1 << 20, MAX_STATE = 1 << 16;

// The exponent of the power of two that a matrix is divided by where its squares could leave the range, else 0
LW_INLINE int exponent_of(int state) {
  if (state < -MAX_STATE || state >= NOT_FINITE || (state >= -8 && state <= 8)) return 0;
  return state > MAX_EXPONENT ? MAX_EXPONENT : state < -MAX_EXPONENT ? -MAX_EXPONENT : state;
}
