// Eigenvectors of a tridiagonal matrix back to those of the band matrix that two_stage_chase.cu reduced.
//
// The reflections of SWEEPS neighbouring sweeps at the same step are together I - Y V^T, where V has BAND + SWEEPS rows, each column one
// row further down. Groups of sweeps are taken from the last to the first and in each group the steps in their order, from the top down:
// whatever is exchanged by that has no rows in common. Two groups go down together, the earlier one behind the later one, so that
// a vector is read and written once for both.
//
// A warp has 16 vectors for itself, of which a window of rows is in shared memory: a ring of segments of 32 rows, two of them on their way
// while the products run. V and Y are the block's, the next pair of them on its way as well.
#include "eigh.cuh"

constexpr int BAND = LW_BAND, SWEEPS = 32, HIGH = BAND + SWEEPS, SEGMENT = 32, VECTORS = 16;
constexpr int PACKED = 2 * HIGH * SWEEPS;  // elements of V, column by column, and Y, row by row
constexpr int V_LINE = HIGH + 4, Y_LINE = SWEEPS + 4;
static_assert(BAND == 2 * SWEEPS, "two groups go down together");

// Pair number q of groups has `steps - q` steps; the place of its first step
LW_INLINE i64 place_of(int q, int steps) { return (i64)q * steps - (i64)q * (q - 1) / 2; }

// V and Y of step x of group y, if there are that many steps: 2 x (place of the pair's step), the later group first
extern "C" __global__ void __launch_bounds__(128)
    two_stage_blocks(const T* vectors, const T* factors, T* packed, int n, int pitch, int steps) {
  constexpr int GRAM = SWEEPS + 1;
  const int t = blockIdx.x, group = blockIdx.y, lane = threadIdx.x % 32;
  if (t >= steps - group / 2) return;
  T* v = (T*)memory;               // SWEEPS x V_LINE
  T* gram = v + SWEEPS * V_LINE;   // SWEEPS x GRAM, V^T V
  T* rows = gram + SWEEPS * GRAM;  // SWEEPS x GRAM, T of I - V T V^T
  const int first = group * SWEEPS, top = first + 1 + t * BAND;
  for (int k = threadIdx.x; k < SWEEPS * HIGH; k += 128) {
    const int i = k / HIGH, r = k % HIGH, s = first + i;
    const bool has = r >= i && r < i + BAND && top + r < n && s < n - 2;
    v[i * V_LINE + r] = has ? vectors[(i64)s * pitch + top + r] : zero();
  }
  __syncthreads();
  for (int k = threadIdx.x; k < SWEEPS * SWEEPS; k += 128) {
    const int i = k / SWEEPS, j = k % SWEEPS;
    T sum = zero();
    for (int r = j; r < HIGH; r++) sum = add_plain(sum, v[i * V_LINE + r], v[j * V_LINE + r]);
    gram[i * GRAM + j] = sum;
  }
  __syncthreads();
  if (threadIdx.x < 32) {
    for (int j = 0; j < SWEEPS; j++) {
      const int s = first + j;
      const T tau = s < n - 2 && top + j < n ? factors[(i64)s * steps + t] : zero();
      T sum = zero();
      for (int k = lane; k < j; k++) sum = add_plain(sum, rows[lane * GRAM + k], gram[k * GRAM + j]);
      rows[lane * GRAM + j] = lane == j ? tau : select(lane < j, negate(multiply(tau, sum)), zero());
    }
  }
  __syncthreads();
  T *to = packed + (2 * (place_of(group / 2, steps) + t) + (group % 2 == 0)) * PACKED, *y = to + HIGH * SWEEPS;
  for (int k = threadIdx.x; k < SWEEPS * HIGH; k += 128) {
    to[k] = v[k / HIGH * V_LINE + k % HIGH];
    const int r = k / SWEEPS, j = k % SWEEPS;
    T sum = zero();
    for (int i = 0; i <= j; i++) sum = add_plain(sum, v[i * V_LINE + r], rows[i * GRAM + j]);
    y[k] = sum;
  }
}

struct Back {
  const T* packed;
  T* z;  // vector j at z + j n
  int n, count, pairs, steps;
};

// Products by waves of 64 lanes read what both warps of the wave have.
LW_INLINE void sync_readers() {
#if LW_MATRIX == 64
  __syncthreads();
#else
  sync_warp();
#endif
}

extern "C" __global__ void __launch_bounds__(LW_THREADS, 1) two_stage_back(Back at) {
  constexpr int WARPS = LW_THREADS / 32, RING = HIGH / SEGMENT + 3, LINE = RING * SEGMENT + 4;
  constexpr int BUFFER = SWEEPS * V_LINE + HIGH * Y_LINE;
  const int n = at.n, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  T* window = (T*)memory + warp * VECTORS * LINE;                  // of the warp's vectors
  T* buffers = (T*)memory + WARPS * VECTORS * LINE;                // 2 x BUFFER
  T* product = buffers + 2 * BUFFER + warp * VECTORS * Y_LINE;     // V^T Z, vector by vector

  for (i64 first = (i64)blockIdx.x * WARPS * VECTORS; first < at.count; first += (i64)gridDim.x * WARPS * VECTORS) {
    const i64 own = first + warp * VECTORS;
    for (int q = at.pairs - 1; q >= 0; q--) {
      const int steps = at.steps - q;
      const T* blocks = at.packed + 2 * place_of(q, at.steps) * PACKED;
      // segments are counted from row 1 + BAND q on
      const auto row_of = [&](int segment) { return 1 + BAND * q + SEGMENT * segment + lane; };
      const auto fetch = [&](int segment) {
        const int row = row_of(segment);
#pragma unroll
        for (int c = 0; c < VECTORS; c++) {
          const bool inside = row < n && own + c < at.count;
          copy_async<SIZE>(window + c * LINE + segment % RING * SEGMENT + lane, inside ? at.z + (own + c) * n + row : at.z, inside);
        }
      };
      const auto store = [&](int segment) {
        const int row = row_of(segment);
#pragma unroll
        for (int c = 0; c < VECTORS; c++)
          if (row < n && own + c < at.count) at.z[(own + c) * n + row] = window[c * LINE + segment % RING * SEGMENT + lane];
      };
      const auto fetch_block = [&](int which) {
        const T* from = blocks + (i64)which * PACKED;
        T *v = buffers + which % 2 * BUFFER, *y = v + SWEEPS * V_LINE;
        for (int k = threadIdx.x * VEC; k < SWEEPS * HIGH; k += LW_THREADS * VEC) {
          copy_async<16>(v + k / HIGH * V_LINE + k % HIGH, from + k);
          copy_async<16>(y + k / SWEEPS * Y_LINE + k % SWEEPS, from + SWEEPS * HIGH + k);
        }
      };
      for (int segment = 0; segment < RING - 2; segment++) fetch(segment);
      fetch_block(0);
      for (int which = 0; which < 2 * steps; which++) {  // the later group's block of a step, then the earlier one's
        const int t = which / 2, begin = 2 * t + (which % 2 == 0);
        finish_copies();
        __syncthreads();
        if (which + 1 < 2 * steps) fetch_block(which + 1);
        if (which % 2 == 0 && t + 1 < steps) {
          fetch(2 * t + RING - 2);
          fetch(2 * t + RING - 1);
        }
        commit_copies();
        const T *v = buffers + which % 2 * BUFFER, *y = v + SWEEPS * V_LINE;
        // V^T Z
        Piece<VECTORS / 8, SWEEPS / 8, true> sum;
        sum.clear();
#pragma unroll
        for (int k = 0; k < HIGH / SEGMENT; k++)
          sum.template add<SEGMENT>(window + (begin + k) % RING * SEGMENT, LINE, v + k * SEGMENT, V_LINE);
        sum.each([&](int j, int i, T* pair) { *(Pack<T, 2>*)(product + j * Y_LINE + i) = Pack<T, 2>{{pair[0], pair[1]}}; });
        sync_readers();
        // Z <- Z - Y (V^T Z)
#pragma unroll
        for (int k = 0; k < HIGH / SEGMENT; k++) {
          T* part = window + (begin + k) % RING * SEGMENT;
          Piece<VECTORS / 8, SEGMENT / 8, true> change;
          change.clear();
          change.template add<SWEEPS>(product, Y_LINE, y + k * SEGMENT * Y_LINE, Y_LINE);
          change.each([&](int j, int i, T* pair) {
            Pack<T, 2>* two = (Pack<T, 2>*)(part + j * LINE + i);
            *two = Pack<T, 2>{{subtract(two->v[0], pair[0]), subtract(two->v[1], pair[1])}};
          });
        }
        sync_readers();
        if (which % 2 == 1)
          for (int segment = 2 * t; segment < 2 * t + (t + 1 < steps ? 2 : RING - 2); segment++) store(segment);
      }
    }
    __syncthreads();
  }
}
