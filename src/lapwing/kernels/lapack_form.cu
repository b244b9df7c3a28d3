// Transposes of square matrices, and the exchanges of rows of their factors as LAPACK has them: lapack_form.h.
#include "pivots.cuh"
#include "squares.cuh"

constexpr int TO_PIVOTS = 1, TO_ROWS = 2;

// One thread: the order of the rows after the exchanges
LW_INLINE void order_of(const int* pivots, int* order, int n) {
  for (int i = 0; i < n; i++) order[i] = i;
  for (int i = 0; i < n; i++) {
    int other = min(max(pivots[i], 1), n) - 1, row = order[i];
    order[i] = order[other];
    order[other] = row;
  }
}

// Small matrices, `count` to a block. All of them are read before one is written. A gap behind every 32 elements spreads columns
// over the banks of shared memory.
extern "C" __global__ void form_small(const T* from, T* to, int* integers, i64 batch, int n, int count, int kind) {
  T* s = (T*)memory;
  int size = n * n, all = count * size;
  int *now = (int*)(s + all + all / 32 + 1), *order = now + count * n;
  for (i64 first = (i64)blockIdx.x * count; first < batch; first += (i64)gridDim.x * count) {
    int matrices = batch - first < count ? (int)(batch - first) : count;
    for (int e = threadIdx.x; e < matrices * size; e += THREADS) s[e + e / 32] = load_element(from + first * size + e);
    if (kind)
      for (int e = threadIdx.x; e < matrices * n; e += THREADS) now[e] = integers[first * n + e];
    __syncthreads();
    for (int e = threadIdx.x; e < matrices * size; e += THREADS) {
      int m = e / size, i = (e - m * size) / n, j = e - m * size - i * n, f = m * size + j * n + i;
      store_element(to + first * size + e, s[f + f / 32]);
    }
    if (kind == TO_ROWS) {
      for (int m = threadIdx.x; m < matrices; m += THREADS) order_of(now + m * n, order + m * n, n);
      __syncthreads();
    }
    if (kind)
      for (int e = threadIdx.x; e < matrices * n; e += THREADS)
        integers[first * n + e] = kind == TO_PIVOTS ? pivot_of(now + e / n * n, n, e % n) : order[e];
    __syncthreads();
  }
}

// Both tiles of a mirrored pair belong to one block, so that `to` may be `from`.
extern "C" __global__ void form(const T* from, T* to, i64 batch, i64 n) {
  Square &s = *(Square*)memory, &t = *(Square*)(memory + sizeof(Square));
  each_pair(batch, n, [&](i64 m, i64 i, i64 j) {
    read_square(s, from + m * n * n, n, i, j);
    read_square(t, from + m * n * n, n, j, i);
    __syncthreads();
    write_square(to + m * n * n, n, i, j, [&](int r, int c) { return t[c][r]; });
    if (i > j) write_square(to + m * n * n, n, j, i, [&](int r, int c) { return s[c][r]; });
    __syncthreads();
  });
}

// The integers of one matrix after the other. Only what is read at random is in shared memory: the order of the rows.
extern "C" __global__ void exchanges(int* integers, i64 batch, int n, int kind) {
  int* order = (int*)memory;
  for (i64 m = blockIdx.x; m < batch; m += gridDim.x) {
    int* own = integers + m * n;
    if (kind == TO_PIVOTS)
      for (int i = threadIdx.x; i < n; i += THREADS) order[i] = own[i];
    else if (threadIdx.x == 0)
      order_of(own, order, n);
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += THREADS) own[i] = kind == TO_PIVOTS ? pivot_of(order, n, i) : order[i];
    __syncthreads();
  }
}
