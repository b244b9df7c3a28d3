// How large the elements of Hermitian matrices are, and copies that are scaled by it, for the reduction to tridiagonal form.
#include "eigh.cuh"

// state <- 2048 + the exponent of the largest element of each matrix, or 1 << 20 where one is not finite; zeros at first
extern "C" __global__ void __launch_bounds__(256) tridiagonal_measure(const T* a, int* state, i64 batch, int n, int rows) {
  const int parts = (n + rows - 1) / rows, lane = threadIdx.x % 32;
  for (i64 job = blockIdx.x; job < batch * parts; job += gridDim.x) {
    const i64 m = job / parts;
    const int first = (int)(job - m * parts) * rows, end = min(first + rows, n);
    int most = 0;
    for (int i = first + threadIdx.x / 32; i < end; i += 8)
      for (int j = LW_UPPER ? i + lane : lane; LW_UPPER ? j < n : j <= i; j += 32) {
        T x = load_element(a + (m * n + i) * n + j);
        if (i == j) x = from_real(real(x));
        const Real size = magnitude(x);
        most = max(most, !is_finite(x) ? 1 << 20 : size > 0 ? 2048 + ilogb(size) : 0);
      }
    most = most_of_lanes((unsigned)most);
    if (lane == 0 && most > 0) atomicMax(state + m, most);
  }
}

// a <- the lower triangle, scaled and column by column with zeros behind each; `scaled` is its state then. 32 x 32 elements at a time
extern "C" __global__ void __launch_bounds__(256)
    tridiagonal_copy(const T* from, const int* state, T* a, Real* up, int* scaled, int n, int pitch) {
  constexpr int LINE = 33;
  T* tile = (T*)memory;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, across_tiles = (pitch + 31) / 32, down_tiles = (n + 31) / 32;
  const bool good = *state < (1 << 20);
  Real down, back;
  scaling(*state > 0 && good ? ldexp(Real(1), *state - 2048) : Real(0), down, back);
  if (!good) down = 0;
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    *up = back;
    *scaled = good ? 2048 : 1 << 20;
  }
  for (int job = blockIdx.x; job < across_tiles * down_tiles; job += gridDim.x) {
    const int i0 = job % across_tiles * 32, j0 = job / across_tiles * 32;  // rows and columns of a
    if (i0 + 31 < j0) continue;
    if (!LW_UPPER) {
      for (int i = warp; i < 32; i += 8)
        if (i0 + i < n && j0 + lane < n) tile[i * LINE + lane] = load_element(from + (i64)(i0 + i) * n + j0 + lane);
      __syncthreads();
    }
    for (int j = warp; j < 32; j += 8) {
      const int row = i0 + lane, column = j0 + j;
      if (row >= pitch || column >= n) continue;
      T x = zero();
      if (row < n && row >= column && good) {
        x = LW_UPPER ? conjugate(load_element(from + (i64)column * n + row)) : tile[lane * LINE + j];
        x = scale(row == column ? from_real(real(x)) : x, down);
      }
      a[(i64)column * pitch + row] = x;
    }
    if (!LW_UPPER) __syncthreads();
  }
}
