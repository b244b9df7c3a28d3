// What the vendor's solver finds for a general matrix, in the form of our answers: eigenvalues, and rows of complex vectors from
// columns of real ones. There a pair of conjugate eigenvalues has the real part of its first vector in one column and the imaginary
// part in the next. Where info is not zero, all is NaN.
#include "common.cuh"

constexpr int THREADS = 256;

// to <- n numbers of two parts, the second one times `sign`
extern "C" __global__ void __launch_bounds__(THREADS) eig_values(const Real* from, Real* to, const int* info, int n, int sign) {
  for (int i = blockIdx.x * THREADS + threadIdx.x; i < 2 * n; i += gridDim.x * THREADS)
    to[i] = *info ? not_a_number() : i % 2 ? from[i] * Real(sign) : from[i];
}

#if LW_DTYPE < 2
constexpr int EDGE = 32, PITCH = EDGE + 3;

extern "C" __global__ void __launch_bounds__(THREADS) eig_pairs(const Real* columns, const Real* values, Real* to, const int* info, int n) {
  Real* tile = (Real*)memory;  // EDGE rows of EDGE columns, and of the ones before and behind
  const int across = (n + EDGE - 1) / EDGE;
  const bool failed = *info != 0;
  for (i64 item = blockIdx.x; item < (i64)across * across; item += gridDim.x) {
    const int i0 = (int)(item / across) * EDGE, j0 = (int)(item % across) * EDGE;
    for (int e = threadIdx.x; e < EDGE * (EDGE + 2); e += THREADS) {
      const int i = e % EDGE, j = e / EDGE, column = j0 + j - 1;
      tile[i * PITCH + j] = i0 + i < n && column >= 0 && column < n ? columns[(i64)column * n + i0 + i] : Real(0);
    }
    __syncthreads();
    for (int e = threadIdx.x; e < EDGE * EDGE; e += THREADS) {
      const int i = e / EDGE, j = e % EDGE;
      if (i0 + i >= n || j0 + j >= n) continue;
      const Real *own = tile + i * PITCH + j + 1, part = values[2 * (j0 + j) + 1];
      Real* out = to + 2 * ((i64)(i0 + i) * n + j0 + j);
      out[0] = failed ? not_a_number() : part < 0 ? own[-1] : own[0];
      out[1] = failed ? not_a_number() : part > 0 ? own[1] : part < 0 ? -own[0] : Real(0);
    }
    __syncthreads();
  }
}
#endif
