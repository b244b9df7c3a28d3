// Positive definite systems with few right-hand sides: a block of threads for each, of whose matrix only the lower triangle is in
// shared memory, so that more blocks share a multiprocessor than with whole matrices.
//
// b^H is in the rows below the matrix, where the factorisation turns it into (L^-1 b)^H. A warp for each right-hand side then
// solves with L^H, 32 elements of x to a register of its lanes.
//   LW_N           n rounded up to 32
//   LW_ROW_BLOCKS  n + k divided by 32, rounded up
#include "eigh.cuh"
#include "packed.cuh"

struct Call {
  const T* a;
  const T* b;
  T* x;
  int* info;
  i64 batch;
  int n, k;
};

LW_INLINE Real from_lane(Real x, int lane) { return shuffle(x, lane); }
#if LW_DTYPE >= 2
LW_INLINE T from_lane(T x, int lane) { return T{from_lane(x.re, lane), from_lane(x.im, lane)}; }
#endif

LW_INLINE T& element(int i, int j) { return tile(i / TILE, 0)[i % TILE * pitch_of(i / TILE) + j]; }

// The triangle of conj(A) is in memory where it is read transposed: conj(A) conj(x) = conj(b)
LW_INLINE T side(T x) { return LW_UPPER ? x : conjugate(x); }

// x <- L^-H y for the y^H in row n + column
LW_INLINE void solve_adjoint(const Call& call, const Real* reciprocals, i64 which, int column, bool failed) {
  const int lane = threadIdx.x % 32, n = call.n;
  T z[BLOCKS];
#pragma unroll
  for (int t = 0; t < BLOCKS; t++) z[t] = conjugate(element(n + column, min(TILE * t + lane, n - 1)));
#pragma unroll
  for (int t = BLOCKS - 1; t >= 0; t--) {
    const Real own_reciprocal = reciprocals[min(TILE * t + lane, n - 1)];
    const T* row = tile(t, 0) + lane;
#pragma unroll 4
    for (int step = min(TILE, n - TILE * t) - 1; step >= 0; step--) {
      const T own = scale(z[t], own_reciprocal), y = from_lane(own, step);
#pragma unroll
      for (int p = 0; p <= t; p++) {
        const T l = row[step * pitch_of(t) + TILE * p];
        if (p < t)
          z[p] = subtract_product(z[p], y, l);
        else
          z[t] = select(lane == step, own, select(lane < step, subtract_product(z[t], y, l), z[t]));
      }
    }
  }
#pragma unroll
  for (int t = 0; t < BLOCKS; t++) {
    const int i = TILE * t + lane;
    const T x = LW_UPPER ? conjugate(z[t]) : z[t];
    if (i < n) store_element(call.x + (which * n + i) * call.k + column, select(failed, filled(not_a_number()), x));
  }
}

extern "C" __global__ void __launch_bounds__(LW_THREADS, LW_RESIDENT) pos_block(Call call) {
  const int n = call.n, k = call.k;
  T* room = (T*)memory + start_of(BLOCKS) + (LW_ROW_BLOCKS > BLOCKS ? 16 * pitch_of(BLOCKS) : 0);
  Real* reciprocals = (Real*)((char*)room + ROOM);
  int *first_bad = (int*)(reciprocals + LW_N), *lead = first_bad + 1;
  if (threadIdx.x == 0) *lead = WARPS == 4 ? block_slot(4) % 4 : 0;
  for (i64 which = blockIdx.x; which < call.batch; which += gridDim.x) {
    load_triangle(call.a + which * n * n, n);
    for (int at = threadIdx.x; at < n * k; at += LW_THREADS)
      element(n + at % k, at / k) = side(load_element(call.b + which * n * k + at));
    if (threadIdx.x == 0) *first_bad = 0;
    __syncthreads();
    factor_triangle<LW_ROW_BLOCKS, true>(n, n + k, (threadIdx.x / 32 + WARPS - *lead) % WARPS, room, reciprocals, first_bad);
    for (int column = threadIdx.x / 32; column < k; column += WARPS)
      solve_adjoint(call, reciprocals, which, column, *first_bad != 0);
    if (threadIdx.x == 0) call.info[which] = *first_bad;
    __syncthreads();
  }
}
