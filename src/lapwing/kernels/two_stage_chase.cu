// Symmetric band matrices to tridiagonal form. Sweep s takes column s to its two diagonals and chases the bulge that this makes down
// the band, LW_BAND rows at each step; the bulge never reaches further than 2 LW_BAND - 1 diagonals below the main one.
//
// A block of threads has a sweep, and takes the next one when it is done. Step t of a sweep uses nothing that steps after t + 1 of the
// sweep before write, so sweeps follow each other two steps apart, and `progress` says how far each one is. All blocks are there at the
// same time. The matrix stays in the L2 cache; a thread holds its elements of two blocks of it in registers.
#include "eigh.cuh"

constexpr int BAND = LW_BAND, LD = 2 * BAND, THREADS = 256, WARPS = THREADS / 32;
constexpr int H = BAND / 32, C = BAND / WARPS;  // a thread has rows lane + 32 h and the warp's columns
constexpr int DONE = 1 << 30;

struct Chase {
  T* band;       // column j at band + LD j, from the main diagonal on
  T *v, *tau;    // column s of v has the vectors of sweep s one behind the other, from row s + 1 on; may be null
  int* progress; // steps of each sweep; zeros at first
  int n, pitch, steps;  // steps: factors of a sweep, at most
};

extern "C" __global__ void __launch_bounds__(THREADS) two_stage_chase(Chase at) {
  T* u = (T*)memory;       // the vector of the step before
  T* next = u + BAND;      // and of this one
  T* right = next + BAND;  // sums over columns
  T* parts = right + BAND;  // WARPS x BAND, sums over the columns of each warp
  T* factor = parts + WARPS * BAND;
  const int n = at.n, lane = threadIdx.x % 32, warp = threadIdx.x / 32, own = warp * C;

  for (int s = blockIdx.x; s < n - 2; s += gridDim.x) {
    T tau = zero();
    for (int t = 0, top = s + 1; top < n; t++, top += BAND) {
      const int rows = min(BAND, n - top);
      if (threadIdx.x == 0 && s > 0)
        while (acquire(at.progress + s - 1) < t + 2) pause();
      __syncthreads();

      // D: the lower triangle of the block on the diagonal. E: the block left of it, of which only a column is left at first
      T d[H][C], e[H][C];
      T* diagonal = at.band + (i64)(top + own) * LD + lane - own;
      T* side = at.band + (i64)(top - BAND + own) * LD + BAND + lane - own;
      T* column = at.band + (i64)s * LD + 1 + lane;
#pragma unroll
      for (int h = 0; h < H; h++)
#pragma unroll
        for (int c = 0; c < C; c++) {
          const int i = lane + 32 * h;
          d[h][c] = i < rows && i >= own + c ? diagonal[c * (LD - 1) + 32 * h] : zero();
          e[h][c] = i < rows && t > 0 ? side[c * (LD - 1) + 32 * h] : zero();
        }
      if (t == 0 && warp == 0) {
#pragma unroll
        for (int h = 0; h < H; h++) e[h][0] = lane + 32 * h < rows ? column[32 * h] : zero();
      }

      if (t > 0) {  // E <- E (I - tau u u^T)
        T across_u[C];
#pragma unroll
        for (int c = 0; c < C; c++) across_u[c] = u[own + c];
#pragma unroll
        for (int h = 0; h < H; h++) {
          T sum = zero();
#pragma unroll
          for (int c = 0; c < C; c++) sum = add_plain(sum, e[h][c], across_u[c]);
          parts[warp * BAND + lane + 32 * h] = sum;
        }
        __syncthreads();
#pragma unroll
        for (int h = 0; h < H; h++) {
          T sum = zero();
#pragma unroll
          for (int w = 0; w < WARPS; w++) sum = add(sum, parts[w * BAND + lane + 32 * h]);
          sum = multiply(tau, sum);
#pragma unroll
          for (int c = 0; c < C; c++) e[h][c] = subtract_plain(e[h][c], sum, across_u[c]);
        }
      }

      // the first column of E <- beta e_1 by I - tau v v^T
      if (warp == 0) {
        Real rest = 0, beta;
#pragma unroll
        for (int h = 0; h < H; h++) rest += lane + 32 * h > 0 ? square(e[h][0]) : Real(0);
        const T by = reflector(shuffle(e[0][0], 0), sum_lanes<32>(rest), tau, beta);
#pragma unroll
        for (int h = 0; h < H; h++) {
          const int i = lane + 32 * h;
          const T v = i == 0 ? from_real(Real(1)) : multiply(e[h][0], by);
          next[i] = v;
          if (at.v && i < rows) at.v[(i64)s * at.pitch + top + i] = v;
          e[h][0] = i == 0 ? from_real(beta) : zero();
          if (t == 0 && i < rows) column[32 * h] = e[h][0];
        }
        if (lane == 0) *factor = tau;
        if (lane == 0 && at.v) at.tau[(i64)s * at.steps + t] = tau;
      }
      __syncthreads();
      tau = *factor;
      T v[H], across_v[C];
#pragma unroll
      for (int h = 0; h < H; h++) v[h] = next[lane + 32 * h];
#pragma unroll
      for (int c = 0; c < C; c++) across_v[c] = next[own + c];

      if (t > 0) {  // E <- (I - tau v v^T) E
#pragma unroll
        for (int c = 0; c < C; c++) {
          T sum = zero();
#pragma unroll
          for (int h = 0; h < H; h++) sum = add_plain(sum, v[h], e[h][c]);
          sum = multiply(tau, sum_lanes<32>(sum));
          if (own + c == 0) sum = zero();  // done
#pragma unroll
          for (int h = 0; h < H; h++) {
            e[h][c] = subtract_plain(e[h][c], v[h], sum);
            if (lane + 32 * h < rows) side[c * (LD - 1) + 32 * h] = e[h][c];
          }
        }
      }

      // D <- D - v w^T - w v^T with w = p - tau / 2 (p^T v) v, p = tau D v
#pragma unroll
      for (int h = 0; h < H; h++) {
        T sum = zero();
#pragma unroll
        for (int c = 0; c < C; c++) sum = add_plain(sum, d[h][c], across_v[c]);
        parts[warp * BAND + lane + 32 * h] = sum;
      }
#pragma unroll
      for (int c = 0; c < C; c++) {
        T sum = zero();
#pragma unroll
        for (int h = 0; h < H; h++) sum = add_plain(sum, lane + 32 * h > own + c ? d[h][c] : zero(), v[h]);
        sum = sum_lanes<32>(sum);
        if (lane == 0) right[own + c] = sum;
      }
      __syncthreads();
      T w[H], form = zero();
#pragma unroll
      for (int h = 0; h < H; h++) {
        T sum = right[lane + 32 * h];
#pragma unroll
        for (int k = 0; k < WARPS; k++) sum = add(sum, parts[k * BAND + lane + 32 * h]);
        w[h] = multiply(tau, sum);
        form = add_plain(form, w[h], v[h]);
      }
      form = scale(multiply(tau, sum_lanes<32>(form)), Real(0.5));
#pragma unroll
      for (int h = 0; h < H; h++) w[h] = subtract_plain(w[h], form, v[h]);
#pragma unroll
      for (int c = 0; c < C; c++) {
        T across_w = zero();
#pragma unroll
        for (int h = 0; h < H; h++) across_w = select((own + c) / 32 == h, shuffle(w[h], (own + c) % 32), across_w);
#pragma unroll
        for (int h = 0; h < H; h++) {
          const int i = lane + 32 * h;
          const T x = subtract_plain(subtract_plain(d[h][c], v[h], across_w), w[h], across_v[c]);
          if (i < rows && i >= own + c) diagonal[c * (LD - 1) + 32 * h] = x;
        }
      }
      finish_writes();
      __syncthreads();
      if (threadIdx.x == 0) release(at.progress + s, top + BAND < n ? t + 1 : DONE);
      T* before = u;
      u = next, next = before;
    }
  }
}

// d and e <- the two diagonals that are left
extern "C" __global__ void __launch_bounds__(256) two_stage_diagonals(const T* band, Real* d, Real* e, int n) {
  for (int i = blockIdx.x * 256 + threadIdx.x; i < n; i += gridDim.x * 256) {
    d[i] = real(band[(i64)i * LD]);
    e[i] = i + 1 < n ? real(band[(i64)i * LD + 1]) : Real(0);
  }
}
