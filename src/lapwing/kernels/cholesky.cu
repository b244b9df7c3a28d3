// Batched Cholesky for n <= 128: A = L L^H, matrices contiguous and row-major, many of them or a few.
//
//   cholesky_thread   one thread per matrix, in registers              very small n
//   cholesky_rows     one row per lane, one or more matrices per warp  n <= 32
//   cholesky_block    one block per matrix, in shared memory           n <= 128
//
// The first two are compiled for the exact LW_N = n; the third for LW_N = n rounded up to 32.
// Failed pivots: info is the first column whose pivot is not finite and positive, and the whole matrix becomes NaN.
// Every matrix is read whole before it is written, so out may be a.
#include "stage.cuh"

#if LW_KERNEL == 0
// ---- one thread per matrix ---------------------------------------------------------------------------------------

constexpr int N = LW_N;

LW_INLINE int at(int i, int j) { return LW_UPPER ? j * N + i : i * N + j; }

extern "C" __global__ void __launch_bounds__(LW_THREADS) cholesky_thread(const T* a, T* out, int* info, i64 batch) {
  typedef Stage<N * N * SIZE> Whole;
  char* mine = memory + threadIdx.x * Whole::PITCH;
  for (i64 first = (i64)blockIdx.x * LW_THREADS; first < batch; first += (i64)gridDim.x * LW_THREADS) {
    int count = batch - first < LW_THREADS ? (int)(batch - first) : LW_THREADS;
    Whole::load(memory, a + first * (N * N), count * (N * N * SIZE));
    finish_copies();
    __syncthreads();

    T s[N * N];
    load_registers<Whole::UNIT>(s, mine);
    int bad = 0;
#pragma unroll
    for (int j = 0; j < N; j++) {
      Real d = real(s[at(j, j)]);
      if (!is_pivot(d) && bad == 0) bad = j + 1;
      Real q = reciprocal_root(d);
      s[at(j, j)] = from_real(d * q);
#pragma unroll
      for (int i = j + 1; i < N; i++) s[at(i, j)] = scale(s[at(i, j)], q);
      // A22 <- A22 - l l^H
#pragma unroll
      for (int k = j + 1; k < N; k++)
#pragma unroll
        for (int i = k; i < N; i++) s[at(i, k)] = subtract_product(s[at(i, k)], s[at(i, j)], s[at(k, j)]);
    }
#pragma unroll
    for (int i = 0; i < N; i++)
#pragma unroll
      for (int j = 0; j < N; j++) {
        if (j > i) s[at(i, j)] = zero();
        if (bad) s[at(i, j)] = filled(not_a_number());
      }
    store_registers<Whole::UNIT>(mine, s);
    if (threadIdx.x < count) info[first + threadIdx.x] = bad;
    __syncthreads();
    Whole::store(out + first * (N * N), memory, count * (N * N * SIZE));
    __syncthreads();
  }
}

#elif LW_KERNEL == 1
// ---- one row per lane --------------------------------------------------------------------------------------------

constexpr int N = LW_N;
constexpr int LANES = N <= 4 ? 4 : N <= 8 ? 8 : N <= 16 ? 16 : 32;  // lanes of one matrix
constexpr int MATRICES = LW_THREADS / LANES;

// A = L L^H with row r in lane r's registers, column by column: the fewest instructions, for many warps that hide each
// other's waiting. Each column is published unscaled, so that the pivot and its multipliers arrive together. Returns 0 or
// the 1-based first bad column; what lies right of the diagonal is never used. `columns` holds two columns.
LW_INLINE int factor_by_columns(T (&a)[N], int r, T* columns) {
  int bad = 0;
#pragma unroll
  for (int j = 0; j < N; j++) {
    T* c = columns + (j & 1) * LANES;
    c[r] = a[j];
    sync_warp();
    Real d = real(c[j]), q = reciprocal_root(d);
    if (!is_pivot(d) && bad == 0) bad = j + 1;
    T l = scale(a[j], q), w = scale(l, q);
    a[j] = r == j ? from_real(d * q) : l;
    // A(r,k) <- A(r,k) - A(r,j) conj(A(k,j)) / d
    each_after<N>(c, j, [&](int k, T x) { a[k] = subtract_product(a[k], w, x); });
  }
  return bad;
}

extern "C" __global__ void __launch_bounds__(LW_THREADS) cholesky_rows(const T* a, T* out, int* info, i64 batch) {
  typedef Stage<N * SIZE> Rows;
  constexpr int ROOM_BYTES = 2 * LANES * SIZE + 16;  // the 16 bytes keep the matrices of a warp in different banks
  __shared__ __align__(16) char room[MATRICES * ROOM_BYTES];
  int g = threadIdx.x / LANES, r = threadIdx.x % LANES;
  char* matrix = memory + g * N * Rows::PITCH;
  for (i64 first = (i64)blockIdx.x * MATRICES; first < batch; first += (i64)gridDim.x * MATRICES) {
    int count = batch - first < MATRICES ? (int)(batch - first) : MATRICES;
    Rows::load(memory, a + first * (N * N), count * (N * N * SIZE));
    finish_copies();
    __syncthreads();

    T row[N];
    int safe = r < N ? r : N - 1;
    if (LW_UPPER) {
#pragma unroll
      for (int k = 0; k < N; k++) row[k] = *(const T*)(matrix + k * Rows::PITCH + safe * SIZE);
    } else {
      load_registers<Rows::UNIT>(row, matrix + safe * Rows::PITCH);
    }
    int bad = factor_by_columns(row, r, (T*)(room + g * ROOM_BYTES));
#pragma unroll
    for (int k = 0; k < N; k++) {
      if (k > r) row[k] = zero();
      if (bad) row[k] = filled(not_a_number());
    }
    sync_warp();
    if (r < N) {
      if (LW_UPPER) {
#pragma unroll
        for (int k = 0; k < N; k++) *(T*)(matrix + k * Rows::PITCH + r * SIZE) = row[k];
      } else {
        store_registers<Rows::UNIT>(matrix + r * Rows::PITCH, row);
      }
    }
    if (r == 0 && g < count) info[first + g] = bad;
    __syncthreads();
    Rows::store(out + first * (N * N), memory, count * (N * N * SIZE));
    __syncthreads();
  }
}

#else
// ---- one block per matrix ----------------------------------------------------------------------------------------

#include "packed.cuh"

// STEP elements of line i of memory from column j on: a row of L, or a column of it when transposed. Diagonal tiles have
// their zeros; the tiles right of them are not stored.
template <int STEP>
LW_INLINE Pack<T, STEP> line(int i, int j) {
  Pack<T, STEP> p;
  if (LW_UPPER) {
#pragma unroll
    for (int v = 0; v < STEP; v++) {
      int b = (j + v) / TILE;
      p.v[v] = b < i / TILE ? zero() : tile(b, 0)[(j + v) % TILE * pitch_of(b) + i];
    }
  } else {
    int b = i / TILE;
    const T* from = tile(b, 0) + i % TILE * pitch_of(b) + j;
#pragma unroll
    for (int v = 0; v < STEP; v++) p.v[v] = zero();
    if (j < TILE * (b + 1)) p = *(const Pack<T, STEP>*)from;
  }
  return p;
}

template <int STEP>
LW_INLINE void store_line(T* out, int n, int i, int j, bool failed) {
  Pack<T, STEP> p = line<STEP>(i, j);
  if (failed)
#pragma unroll
    for (int v = 0; v < STEP; v++) p.v[v] = filled(not_a_number());
  store_pack(out + i * n + j, p);
}

LW_INLINE void store_square(T* out, int n, bool failed) {
  if (LW_V <= SIZE) {
    for (int i = threadIdx.x / 32; i < n; i += WARPS)
      for (int j = threadIdx.x % 32; j < n; j += 32) store_line<1>(out, n, i, j, failed);
  } else {
    constexpr int STEP = LW_V > SIZE ? LW_V / SIZE : 1;
    constexpr int UNITS = LW_N / STEP;
#pragma unroll 4
    for (int u = threadIdx.x; u < LW_N * UNITS; u += LW_THREADS) {
      int i = u / UNITS, j = u % UNITS * STEP;
      if (i < n && j < n) store_line<STEP>(out, n, i, j, failed);
    }
  }
}

extern "C" __global__ void __launch_bounds__(LW_THREADS, LW_RESIDENT)
    cholesky_block(const T* a, T* out, int* info, i64 batch, int n) {
  __shared__ __align__(16) char room[ROOM];
  __shared__ Real reciprocals[TILE];
  __shared__ int first_bad, lead;
  if (threadIdx.x == 0) lead = WARPS == 4 ? block_slot(4) % 4 : WARPS == 2 ? block_slot(2) / 2 % 2 : 0;
  for (i64 m = blockIdx.x; m < batch; m += gridDim.x) {
    load_triangle(a + m * n * n, n);
    if (threadIdx.x == 0) first_bad = 0;
    __syncthreads();
    factor_triangle<BLOCKS, false>(n, n, (threadIdx.x / 32 + WARPS - lead) % WARPS, (T*)room, reciprocals, &first_bad);
    store_square(out + m * n * n, n, first_bad != 0);
    if (threadIdx.x == 0) info[m] = first_bad;
    __syncthreads();
  }
}
#endif
