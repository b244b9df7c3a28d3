// Kernels around an eigensolver: the whole matrix from one triangle on the way in, eigenvalues and eigenvectors on the way out.
#include "squares.cuh"

// Both tiles of a mirrored pair belong to one block, so that out may be a.
extern "C" __global__ void hermitian(const T* a, T* out, const int* finite, i64 batch, i64 n) {
  __shared__ __align__(16) char room[sizeof(Square)];
  Square& s = *(Square*)room;
  each_pair(batch, n, [&](i64 m, i64 i, i64 j) {
    T* to = out + m * n * n;
    if (finite && !finite[m]) {
      write_pair(to, n, i, j, zero());
      return;
    }
    // the tile of the named triangle: (i,j) for lower, (j,i) for upper
    i64 r0 = LW_UPPER ? j : i, c0 = LW_UPPER ? i : j;
    read_square(s, a + m * n * n, n, r0, c0);
    __syncthreads();
    if (i > j) {
      write_square(to, n, r0, c0, [&](int r, int c) { return s[r][c]; });
      write_square(to, n, c0, r0, [&](int r, int c) { return conjugate(s[c][r]); });
    } else {
      write_square(to, n, i, i, [&](int r, int c) {
        bool named = LW_UPPER ? c > r : c < r;
        return c == r ? from_real(real(s[r][c])) : named ? s[r][c] : conjugate(s[c][r]);
      });
    }
    __syncthreads();
  });
}

// The same for small matrices, `count` to a block. Only elements of the named triangle are read, and they are written as they are.
extern "C" __global__ void hermitian_small(const T* a, T* out, const int* finite, i64 batch, int n, int count) {
  for (i64 first = (i64)blockIdx.x * count; first < batch; first += (i64)gridDim.x * count) {
    int matrices = batch - first < count ? (int)(batch - first) : count, each = n * n;
    const T* from = a + first * each;
    T* to = out + first * each;
#pragma unroll 4
    for (int e = threadIdx.x; e < matrices * each; e += THREADS) {
      int m = e / each, i = (e - m * each) / n, j = e - m * each - i * n;
      bool named = LW_UPPER ? j > i : j < i;
      T x = load_element(from + m * each + (named || i == j ? i * n + j : j * n + i));
      x = i == j ? from_real(real(x)) : named ? x : conjugate(x);
      store_element(to + e, finite && !finite[first + m] ? zero() : x);
    }
  }
}

// Eight matrices to a block, or one where it has many values.
extern "C" __global__ void settle(const Real* from, Real* to, int* info, const int* finite, i64 batch, i64 n, i64 skip,
                                  i64 count) {
  int share = count >= THREADS ? THREADS : 32;  // threads for a matrix
  i64 step = THREADS / share;
  for (i64 m = blockIdx.x * step + threadIdx.x / share; m < batch; m += gridDim.x * step) {
    int status = info[m];
    bool good = finite[m] && status == 0;
    for (i64 j = threadIdx.x % share; j < count; j += share)
      to[m * count + j] = good ? from[m * n + skip + j] : not_a_number();
    if (share == 32) sync_warp();
    else __syncthreads();
    if (threadIdx.x % share == 0 && !good) info[m] = status ? status : 1;
  }
}

// to[i*count + j] <- conj(from[(skip + j)*n + i])
extern "C" __global__ void turn(const T* from, T* to, const int* info, i64 batch, i64 n, i64 skip, i64 count) {
  __shared__ __align__(16) char room[sizeof(Square)];
  Square& s = *(Square*)room;
  i64 down = (n + EDGE - 1) / EDGE, across = (count + EDGE - 1) / EDGE;
  int c = threadIdx.x % EDGE;
  for (i64 item = blockIdx.x; item < down * across * batch; item += gridDim.x) {
    i64 m = item / (down * across), tile = item - m * down * across, i = tile / across * EDGE, j = tile % across * EDGE;
    bool good = info[m] == 0;
    const T* rows = from + (m * n + skip) * n;
    for (int r = threadIdx.x / EDGE; r < EDGE && good; r += LINES)
      if (j + r < count && i + c < n) s[r][c] = load_element(rows + (j + r) * n + i + c);
    __syncthreads();
    for (int r = threadIdx.x / EDGE; r < EDGE; r += LINES)
      if (i + r < n && j + c < count)
        store_element(to + (m * n + i + r) * count + j + c, good ? conjugate(s[c][r]) : filled(not_a_number()));
    __syncthreads();
  }
}

// The same for n x n in place; skip is 0 and count is n.
extern "C" __global__ void turn_in_place(const T*, T* to, const int* info, i64 batch, i64 n, i64, i64) {
  __shared__ __align__(16) char room[2 * sizeof(Square)];
  Square &s = *(Square*)room, &t = *(Square*)(room + sizeof(Square));
  each_pair(batch, n, [&](i64 m, i64 i, i64 j) {
    T* at = to + m * n * n;
    bool good = info[m] == 0;
    if (good) {
      read_square(s, at, n, i, j);
      read_square(t, at, n, j, i);
    }
    __syncthreads();
    if (good) {
      write_square(at, n, i, j, [&](int r, int c) { return conjugate(t[c][r]); });
      if (i > j) write_square(at, n, j, i, [&](int r, int c) { return conjugate(s[c][r]); });
    } else {
      write_pair(at, n, i, j, filled(not_a_number()));
    }
    __syncthreads();
  });
}
