// Real symmetric matrices to band form, and what the host's products leave to do there.
//
// The band has LW_BAND diagonals below the main one. A panel is LW_BAND columns below the band: V and R of its QR factorisation, in one
// launch. Each block of threads keeps LW_ROWS rows of the panel in shared memory, and a column takes one barrier of all blocks: before it
// each block has its part of the dot products of the column with all that follow, which give the length of the column as well as
// what the reflection takes from the others. Sums are added up in the same order always.
#include "eigh.cuh"

constexpr int BAND = LW_BAND, ROWS = LW_ROWS, WARPS = 16, THREADS = 32 * WARPS, HELD = ROWS / 32;
static_assert(ROWS >= BAND, "the heads of all reflections are in the first block");

struct Panel {
  T *a, *v;         // the first row below the band of the panel's first column; column by column
  T* tau;           // BAND
  T *sums, *heads;  // 2 x BAND x blocks partial dot products, and 2 x BAND elements of the row where a reflection begins
  int* gate;
  int gate_from;  // what the gate counted before this launch
  int m, pitch;   // rows of the panel; of a column
};

LW_INLINE void wait_for_all(int* gate, int& goal) {
  goal += gridDim.x;
  finish_writes();
  __syncthreads();
  if (threadIdx.x == 0) {
    arrive(gate);
    while (arrived(gate) - goal < 0) pause();
    see_all();
  }
  __syncthreads();
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) two_stage_panel(Panel at) {
  T* panel = (T*)memory;  // BAND columns of ROWS
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, block = blockIdx.x, blocks = gridDim.x;
  const int first = block * ROWS, rows = min(ROWS, at.m - first);
  for (int c = warp; c < BAND; c += WARPS)
#pragma unroll
    for (int h = 0; h < HELD; h++) {
      const int r = lane + 32 * h;
      panel[c * ROWS + r] = r < rows ? at.a[(i64)c * at.pitch + first + r] : zero();
    }
  if (block == 0 && threadIdx.x < BAND && threadIdx.x >= at.m) at.tau[threadIdx.x] = zero();
  __syncthreads();

  int goal = at.gate_from;
  for (int j = 0; j < min(BAND, at.m); j++) {
    // x: the column below its head. A block may be one barrier ahead of others, so the sums are in two places by turns
    T *sums = at.sums + j % 2 * BAND * blocks, *heads = at.heads + j % 2 * BAND;
    T x[HELD];
#pragma unroll
    for (int h = 0; h < HELD; h++) x[h] = first + lane + 32 * h > j ? panel[j * ROWS + lane + 32 * h] : zero();
    for (int c = warp; c < BAND; c += WARPS) {
      if (c < j) continue;
      T sum = zero();
#pragma unroll
      for (int h = 0; h < HELD; h++) sum = add_plain(sum, x[h], panel[c * ROWS + lane + 32 * h]);
      sum = sum_lanes<32>(sum);
      if (lane == 0) sums[c * blocks + block] = sum;
    }
    if (block == 0 && threadIdx.x < BAND) heads[threadIdx.x] = panel[threadIdx.x * ROWS + j];
    wait_for_all(at.gate, goal);

    const auto whole = [&](int c) {
      T sum = zero();
      for (int b = lane; b < blocks; b += 32) sum = add(sum, sums[c * blocks + b]);
      return sum_lanes<32>(sum);
    };
    T tau;
    Real beta;
    const T factor = reflector(heads[j], whole(j), tau, beta);
#pragma unroll
    for (int h = 0; h < HELD; h++) x[h] = block == 0 && lane + 32 * h == j ? from_real(Real(1)) : multiply(x[h], factor);
    for (int c = warp; c < BAND; c += WARPS) {
      if (c < j) continue;
      T* column = panel + c * ROWS + lane;
      if (c == j) {  // beta, and the vector below it
#pragma unroll
        for (int h = 0; h < HELD; h++) {
          const int i = first + lane + 32 * h;
          if (i >= j) column[32 * h] = i == j ? from_real(beta) : x[h];
        }
        if (block == 0 && lane == 0) at.tau[j] = tau;
      } else {
        const T by = multiply(tau, add(heads[c], multiply(factor, whole(c))));
#pragma unroll
        for (int h = 0; h < HELD; h++) column[32 * h] = subtract_plain(column[32 * h], x[h], by);
      }
    }
    __syncthreads();
  }

  // R to the band, V below the diagonal of ones
  for (int c = warp; c < BAND; c += WARPS)
#pragma unroll
    for (int h = 0; h < HELD; h++) {
      const int r = lane + 32 * h, i = first + r;
      if (r >= rows) continue;
      const T x = panel[c * ROWS + r];
      const i64 place = (i64)c * at.pitch + i;
      at.v[place] = i > c ? x : from_real(Real(i == c));
      if (i <= c) at.a[place] = x;
    }
}

// The upper triangle from row and column `first` on <- the lower one, 32 x 32 elements at a time
extern "C" __global__ void __launch_bounds__(256) two_stage_mirror(T* a, int n, int pitch, int first) {
  constexpr int LINE = 33;
  T* tile = (T*)memory;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, tiles = (n - first + 31) / 32;
  for (i64 job = blockIdx.x; job < (i64)tiles * (tiles + 1) / 2; job += gridDim.x) {
    i64 down, right;
    pair_of(job, down, right);
    const int i0 = first + 32 * (int)down, j0 = first + 32 * (int)right;
    for (int j = warp; j < 32; j += 8)
      if (i0 + lane < n && j0 + j < n) tile[j * LINE + lane] = a[(i64)(j0 + j) * pitch + i0 + lane];
    __syncthreads();
    for (int i = warp; i < 32; i += 8)
      if (i0 + i < n && j0 + lane < i0 + i) a[(i64)(i0 + i) * pitch + j0 + lane] = tile[lane * LINE + i];
    __syncthreads();
  }
}

// band <- the main diagonal of a and BAND below it, with zeros in as many places again: column j is at band + 2 BAND j, from the main
// diagonal on. reduced <- 1 where the matrix is not finite.
extern "C" __global__ void __launch_bounds__(256)
    two_stage_band(const T* a, T* band, const int* scaled, int* reduced, int n, int pitch) {
  if (blockIdx.x == 0 && threadIdx.x == 0) *reduced = *scaled >= (1 << 20);
  for (i64 place = (i64)blockIdx.x * 256 + threadIdx.x; place < (i64)n * 2 * BAND; place += (i64)gridDim.x * 256) {
    const int j = (int)(place / (2 * BAND)), below = (int)(place % (2 * BAND));
    band[place] = below <= BAND && j + below < n ? a[(i64)j * pitch + j + below] : zero();
  }
}
