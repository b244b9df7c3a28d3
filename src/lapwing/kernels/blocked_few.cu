// x <- E^-1 b for a triangle E and up to LW_K right-hand sides, a block of threads for each matrix, which is read once.
//
// Rows are solved ROWS at a time by warp 0, while the other warps sum what the rows after these take from all x that are known
// already. Then only the ROWS unknowns just found are missing there, and warp 0 adds them. One barrier for ROWS rows.
//   LW_READ  0: E is the matrix, 1: its adjoint
//   LW_K     right-hand sides at most
#include "blocked.cuh"

constexpr int ROWS = 32, K = LW_K;
constexpr int SUMMERS = LW_THREADS / 32 - 1;  // warps that sum
constexpr int EACH = ROWS / SUMMERS;          // rows of a warp
constexpr int LOADS = SIZE == 16 || SUMMERS == 8 ? 8 : 16;  // of a thread under way at once
constexpr int AT_ONCE = LOADS / EACH;         // of them in one row
constexpr int PITCH = ROWS + 1;
constexpr bool ADJOINT = LW_READ == 1;
constexpr int PARTS = ADJOINT ? SUMMERS : 1;  // parts of each sum

struct Few {
  const T* e;
  i64 e_ld, e_stride;
  const T* b;
  i64 b_ld, b_stride;
  T* x;
  i64 x_ld, x_stride, batch;
  const int *before, *after;  // b is read in the order `before`, x written in the order `after`; may be null
  const int* bad;             // NaN for a matrix where it is not 0; may be null
  int n, k, forward, unit;
};

struct Shared {
  T* x;    // n rows of K
  T* sums; // two sets of PARTS x ROWS x K
  T* near; // two sets of two tiles: the diagonal block of the rows, and the block that meets the rows solved before
  LW_INLINE T* sum(int set, int part, int row) const { return sums + ((set * PARTS + part) * ROWS + row) * K; }
  LW_INLINE T* tile(int set, int which) const { return near + (set * 2 + which) * ROWS * PITCH; }
};

// Element (i, j) of E, of whose tile the memory is `tile`
LW_INLINE T element(const T* tile, int i, int j) { return ADJOINT ? conjugate(tile[j * PITCH + i]) : tile[i * PITCH + j]; }

// Starts to bring the tile of E at (i, j) to shared memory; zeros outside
LW_INLINE void bring(T* tile, const T* e, i64 ld, int n, int i, int j, int start) {
  if (ADJOINT) {
    const int other = i;
    i = j, j = other;
  }
  for (int at = threadIdx.x - start; at < ROWS * ROWS; at += LW_THREADS - start) {
    const int r = at / ROWS, c = at % ROWS;
    const bool inside = i + r < n && j + c < n;
    copy_element(tile + r * PITCH + c, e + (inside ? (i + r) * ld + j + c : 0), inside);
  }
}

// The share of the unknowns `begin` to `end` in the ROWS rows from i0 on. Warps from 1 on.
LW_INLINE void sum_rows(const Shared& s, int set, const T* e, i64 ld, int n, int i0, int begin, int end) {
  const int lane = threadIdx.x % 32, own = threadIdx.x / 32 - 1;
  T sum[EACH][K];
  const T* line[EACH];
#pragma unroll
  for (int r = 0; r < EACH; r++) {
    line[r] = e + min(i0 + own * EACH + r, n - 1) * ld;
#pragma unroll
    for (int k = 0; k < K; k++) sum[r][k] = zero();
  }
  for (int j0 = begin + lane; j0 < end; j0 += 32 * AT_ONCE) {
    T a[AT_ONCE][EACH];
#pragma unroll
    for (int u = 0; u < AT_ONCE; u++)
#pragma unroll
      for (int r = 0; r < EACH; r++)
        if (j0 + 32 * u < end) a[u][r] = load_element(line[r] + j0 + 32 * u);
#pragma unroll
    for (int u = 0; u < AT_ONCE; u++)
      if (j0 + 32 * u < end) {
#pragma unroll
        for (int k = 0; k < K; k++) {
          const T x = s.x[(j0 + 32 * u) * K + k];
#pragma unroll
          for (int r = 0; r < EACH; r++) sum[r][k] = subtract_plain(sum[r][k], a[u][r], x);
        }
      }
  }
#pragma unroll
  for (int r = 0; r < EACH; r++)
#pragma unroll
    for (int k = 0; k < K; k++) {
      T all = sum[r][k];
#pragma unroll
      for (int step = 16; step > 0; step /= 2) all = subtract(all, negate(across(all, step)));
      if (lane == 0) s.sum(set, 0, own * EACH + r)[k] = all;
    }
}

// The same for the adjoint: row i0 + lane of E is a column of the memory, of which each warp takes some elements.
LW_INLINE void sum_columns(const Shared& s, int set, const T* e, i64 ld, int n, int i0, int begin, int end) {
  const int lane = threadIdx.x % 32, own = threadIdx.x / 32 - 1;
  T sum[K];
#pragma unroll
  for (int k = 0; k < K; k++) sum[k] = zero();
  const T* column = e + min(i0 + lane, n - 1);
  for (int j0 = begin + own; j0 < end; j0 += SUMMERS * LOADS) {
    T a[LOADS];
#pragma unroll
    for (int u = 0; u < LOADS; u++)
      if (j0 + SUMMERS * u < end) a[u] = load_element(column + (j0 + SUMMERS * u) * ld);
#pragma unroll
    for (int u = 0; u < LOADS; u++)
      if (j0 + SUMMERS * u < end) {
#pragma unroll
        for (int k = 0; k < K; k++) sum[k] = subtract_plain(sum[k], conjugate(a[u]), s.x[(j0 + SUMMERS * u) * K + k]);
      }
  }
#pragma unroll
  for (int k = 0; k < K; k++) s.sum(set, own, lane)[k] = sum[k];
}

// Warp 0: the rows i0 + lane, after the rows from `known` on were solved (none of them: below 0).
LW_INLINE void solve_rows(const Shared& s, int set, int n, int i0, int known, bool forward, bool unit) {
  const int lane = threadIdx.x % 32, width = min(ROWS, n - i0);
  const T *corner = s.tile(set, 0), *next = s.tile(set, 1);
  T y[K];
#pragma unroll
  for (int k = 0; k < K; k++) {
    y[k] = s.x[min(i0 + lane, n - 1) * K + k];
#pragma unroll
    for (int part = 0; part < PARTS; part++) y[k] = subtract(y[k], negate(s.sum(set, part, lane)[k]));
  }
  if (known >= 0) {
    const int count = min(ROWS, n - known);
#pragma unroll 4
    for (int j = 0; j < count; j++) {
      const T a = element(next, lane, j);
#pragma unroll
      for (int k = 0; k < K; k++) y[k] = subtract_plain(y[k], a, s.x[(known + j) * K + k]);
    }
  }
  const T d = element(corner, lane, lane), inverse = invert(d);
#pragma unroll 4
  for (int step = 0; step < width; step++) {
    const int c = forward ? step : width - 1 - step;
    const T a = element(corner, lane, c);
    const bool after = forward ? lane > c : lane < c;
#pragma unroll
    for (int k = 0; k < K; k++) {
      if (!unit && lane == c) y[k] = divide(y[k], d, inverse, true);
      const T found = from_lane(y[k], c);
      y[k] = select(after, subtract_plain(y[k], a, found), y[k]);
    }
  }
  in_step();  // lanes behind the last row have read that of the last
#pragma unroll
  for (int k = 0; k < K; k++)
    if (lane < width) s.x[(i0 + lane) * K + k] = y[k];
}

extern "C" __global__ void __launch_bounds__(LW_THREADS, SUMMERS == 8 && SIZE < 16 ? 3 : 1) few_solve(Few call) {
  const int n = call.n, t = threadIdx.x, last = (n - 1) / ROWS * ROWS;
  Shared s;
  s.x = (T*)memory;
  s.sums = s.x + n * K;
  s.near = s.sums + 2 * PARTS * ROWS * K;
  for (i64 m = blockIdx.x; m < call.batch; m += gridDim.x) {
    const T* e = call.e + m * call.e_stride;
    const int* before = call.before ? call.before + m * n : nullptr;
    const int* after = call.after ? call.after + m * n : nullptr;
    for (int at = t; at < n * K; at += LW_THREADS) {
      const int i = at / K, k = at % K;
      const unsigned place = before ? before[i] : i, from = place < (unsigned)n ? place : 0;
      s.x[at] = k < call.k ? load_element(call.b + m * call.b_stride + from * call.b_ld + k) : zero();
    }
    for (int at = t; at < 2 * PARTS * ROWS * K; at += LW_THREADS) s.sums[at] = zero();
    bring(s.tile(0, 0), e, call.e_ld, n, call.forward ? 0 : last, call.forward ? 0 : last, 0);
    finish_copies();
    __syncthreads();
    for (int step = 0; step <= last; step += ROWS) {
      const int set = step / ROWS & 1, i0 = call.forward ? step : last - step;
      const int next = call.forward ? i0 + ROWS : i0 - ROWS, previous = call.forward ? i0 - ROWS : i0 + ROWS;
      if (t < 32) {
        solve_rows(s, set, n, i0, step ? previous : -1, call.forward, call.unit);
      } else if (step < last) {
        bring(s.tile(1 - set, 0), e, call.e_ld, n, next, next, 32);
        bring(s.tile(1 - set, 1), e, call.e_ld, n, next, i0, 32);
        commit_copies();
        const int begin = call.forward ? 0 : i0 + ROWS, end = call.forward ? i0 : n;
        if constexpr (ADJOINT)
          sum_columns(s, 1 - set, e, call.e_ld, n, next, begin, end);
        else
          sum_rows(s, 1 - set, e, call.e_ld, n, next, begin, end);
        wait_copies<0>();
      }
      __syncthreads();
    }
    const bool failed = call.bad && call.bad[m];
    for (int at = t; at < n * call.k; at += LW_THREADS) {
      const int i = at / call.k, k = at - i * call.k;
      const unsigned place = after ? after[i] : i, to = place < (unsigned)n ? place : 0;
      store_element(call.x + m * call.x_stride + to * call.x_ld + k, failed ? nan_element() : s.x[i * K + k]);
    }
    __syncthreads();
  }
}
