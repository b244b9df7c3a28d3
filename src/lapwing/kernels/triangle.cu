// Kernels on one triangle of row-major matrices: the finite check, and the way in and out of a column-major solver.
//
// A column-major solver that works on the lower triangle sees element (i,j) at memory [j*n + i].
//   lower: the named triangle lies at [i*n + j], j <= i. It is transposed into [j*n + i] and the result back.
//   upper: the named triangle lies at [i*n + j], j >= i: that already is the column-major lower triangle of A^T, whose
//          factor L gives U = L^T at the same place. Nothing moves; only the other triangle is cleared.
// In place is safe: on the way in the triangle read and the one written share only the diagonal; on the way out one block
// owns both tiles of a mirrored pair.
#include "squares.cuh"

// ---- finite ------------------------------------------------------------------------------------------------------

extern "C" __global__ void finite_start(int* flags, i64 batch) {
  for (i64 m = (i64)blockIdx.x * THREADS + threadIdx.x; m < batch; m += (i64)gridDim.x * THREADS) flags[m] = 1;
}

// n <= 64: a block takes `count` whole matrices at a time.
extern "C" __global__ void finite_small(const T* a, int* flags, i64 batch, int n, int count) {
  int size = n * n;
  for (i64 first = (i64)blockIdx.x * count; first < batch; first += (i64)gridDim.x * count) {
    int matrices = batch - first < count ? (int)(batch - first) : count;
    const T* from = a + first * size;
#pragma unroll 4
    for (int e = threadIdx.x; e < matrices * size; e += THREADS) {
      int m = e / size, i = (e - m * size) / n, j = e - m * size - i * n;
      bool named = LW_UPPER ? j >= i : j <= i;
      if (named && !is_finite(load_element(from + e))) flags[first + m] = 0;
    }
  }
}

// Larger n: a warp takes a row at a time.
extern "C" __global__ void finite_large(const T* a, int* flags, i64 batch, i64 n) {
  i64 warps = (i64)gridDim.x * (THREADS / 32);
  for (i64 row = (i64)blockIdx.x * (THREADS / 32) + threadIdx.x / 32; row < batch * n; row += warps) {
    i64 m = row / n, i = row - m * n;
    const T* from = a + row * n;
    i64 end = LW_UPPER ? n : i + 1;
    bool good = true;
#pragma unroll 4
    for (i64 j = (LW_UPPER ? i : 0) + threadIdx.x % 32; j < end; j += 32) good &= is_finite(load_element(from + j));
    if (!good) flags[m] = 0;
  }
}

// ---- in and out of the solver --------------------------------------------------------------------------------------

// out[j*n + i] <- a[i*n + j], j <= i. For upper a copy of the named triangle, not launched when out is a.
extern "C" __global__ void transpose_in(const T* a, T* out, i64 batch, i64 n) {
  __shared__ __align__(16) char room[sizeof(Square)];
  Square& s = *(Square*)room;
  each_pair(batch, n, [&](i64 m, i64 i, i64 j) {
    const T* from = a + m * n * n;
    T* to = out + m * n * n;
    if (LW_UPPER) {
      read_square(s, from, n, j, i);
      __syncthreads();
      write_square(to, n, j, i, [&](int r, int c) { return s[r][c]; });
    } else {
      read_square(s, from, n, i, j);
      __syncthreads();
      int c = threadIdx.x % EDGE;
      for (int r = threadIdx.x / EDGE; r < EDGE; r += LINES)
        if (j * EDGE + r < n && i * EDGE + c < n && (i > j || c >= r))
          store_element(to + (j * EDGE + r) * n + i * EDGE + c, s[c][r]);
    }
    __syncthreads();
  });
}

// One block per matrix: info <- the first column whose pivot the solver let pass although it is not finite and positive,
// if that comes before the one it reported.
extern "C" __global__ void check_diagonal(const T* out, int* info, i64 batch, i64 n) {
  __shared__ int first;
  for (i64 m = blockIdx.x; m < batch; m += gridDim.x) {
    int reported = info[m];
    i64 end = reported > 0 ? reported - 1 : n;
    if (threadIdx.x == 0) first = reported > 0 ? reported : 0x7fffffff;
    __syncthreads();
    for (i64 j = threadIdx.x; j < end; j += blockDim.x)
      if (!is_pivot(real(load_element(out + m * n * n + j * (n + 1))))) atomicMin(&first, (int)(j + 1));
    __syncthreads();
    if (threadIdx.x == 0) info[m] = first == 0x7fffffff ? 0 : first;
    __syncthreads();
  }
}

// Column-major lower factor -> row-major result with zeros in the other triangle, or NaN everywhere.
extern "C" __global__ void finish(T* out, const int* info, i64 batch, i64 n) {
  __shared__ __align__(16) char room[sizeof(Square)];
  Square& s = *(Square*)room;
  each_pair(batch, n, [&](i64 m, i64 i, i64 j) {
    T* at = out + m * n * n;
    if (info[m]) {
        write_pair(at, n, i, j, filled(not_a_number()));
    } else if (LW_UPPER) {
      // U is in place; the lower tile of the pair is cleared
      int c = threadIdx.x % EDGE;
      for (int r = threadIdx.x / EDGE; r < EDGE; r += LINES)
        if (i * EDGE + r < n && (i > j || c < r)) store_element(at + (i * EDGE + r) * n + j * EDGE + c, zero());
    } else {
      read_square(s, at, n, j, i);
      __syncthreads();
      // L(i,j) <- (tile (j,i))^T
      write_square(at, n, i, j, [&](int r, int c) { return i > j || c <= r ? s[c][r] : zero(); });
      if (i > j) write_square(at, n, j, i, [](int, int) { return zero(); });
      __syncthreads();
    }
  });
}
