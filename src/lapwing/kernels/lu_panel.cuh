// LU with partial pivoting of a panel of W columns by a block of threads.
//
// Thread t keeps the rows t, t + threads, ... of the panel in registers, RT of them. For each column every warp puts its best
// row into shared memory; after one barrier all threads choose the best of these and subtract multiples of it. The multipliers
// go to shared memory, and the other columns move one register down, so that p[0] is the current one and the loop is not
// unrolled. Rows take their places on the way out.
// Options: LW_RT, LW_W (at most 32; a row of the panel has 32 to 256 bytes).
#pragma once
#include "blocked.cuh"

constexpr int RT = LW_RT, W = LW_W, UNITS = W / VEC;
constexpr int PART = W / 4 >= VEC ? W / 4 : W / 2 >= VEC ? W / 2 : W;  // columns after which fewer registers are updated
constexpr int MOST_WARPS = 16;
constexpr int PITCH = W * SIZE + 16;  // bytes from row to row in shared memory: an odd number of 16-byte units
constexpr int INFINITE = 2;

struct Shared {
  char* rows;   // the panel, and in it the multipliers
  T* top;       // W x W: pivot rows from their column on
  char* best;   // two sets of one row from each warp
  Key* keys;    // its magnitude
  int* index;   // its place in the panel
  int* source;  // for each column: the row chosen, counted from the panel's first
  int* vacant;  // rows below the first ones that were chosen
  int* count;
  int* row_of;  // the row that comes to each place
  LW_INLINE T* row(int i) const { return (T*)(rows + i * PITCH); }
  LW_INLINE T* candidate(int set, int warp) const { return (T*)best + (set * MOST_WARPS + warp) * W; }
};

struct State {
  int bad, flags;
  unsigned open;  // bit r: row r of the thread is no pivot row yet
};

// Column c of the panel: its pivot row, and the update of the columns after it, which are among the ACTIVE first registers.
template <int ACTIVE>
LW_INLINE void eliminate(const Shared& s, T (&p)[RT][W], State& state, int c, int threads) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, set = c & 1;
  Key best = 0;
  int which = 0;
#pragma unroll
  for (int r = 0; r < RT; r++) {
    const Key key = state.open >> r & 1 ? key_of(p[r][0]) : 0;
    which = key > best ? r : which;
    best = key > best ? key : best;
  }
  if (lane == lane_of_largest(best)) {
#pragma unroll
    for (int r = 0; r < RT; r++) {
      if (which == r) {
        T line[ACTIVE];
#pragma unroll
        for (int k = 0; k < ACTIVE; k++) line[k] = p[r][k];
        store_registers<16>((char*)s.candidate(set, warp), line);
      }
    }
    s.keys[set * MOST_WARPS + warp] = best;
    s.index[set * MOST_WARPS + warp] = threadIdx.x + which * threads;
  }
  __syncthreads();
  const int from = lane_of_largest(lane < threads / 32 ? s.keys[set * MOST_WARPS + lane] : 0);
  const T* u = s.candidate(set, from);
  const int chosen = s.index[set * MOST_WARPS + from];
  const T d = u[0];
  const bool good = is_divisor(d), small = is_tiny(d);
  if (!good && state.bad == 0) state.bad = c + 1;
  if (!is_finite(d)) state.flags |= INFINITE;
  const T q = select(good, invert(d), zero());
  T l[RT];
#pragma unroll
  for (int r = 0; r < RT; r++) {
    if (threadIdx.x + r * threads == chosen) state.open &= ~(1u << r);
    l[r] = divide(p[r][0], d, q, small);  // rows that are pivot rows are not used any more
  }
#pragma unroll
  for (int k = 0; k < ACTIVE; k += VEC) {
    const Vector x = *(const Vector*)(u + k);
#pragma unroll
    for (int v = 0; v < VEC; v++)
#pragma unroll
      for (int r = 0; r < RT; r++)
        if (k + v > 0) p[r][k + v - 1] = subtract_plain(p[r][k + v], l[r], x.v[v]);
  }
  // last, so that nothing waits for these
#pragma unroll
  for (int r = 0; r < RT; r++)
    if (state.open >> r & 1) s.row(threadIdx.x + r * threads)[c] = l[r];
  if (warp == 0 && lane < W - c) s.top[c * W + c + lane] = u[lane];
  if (threadIdx.x == 0) s.source[c] = chosen;
}

template <int ACTIVE>
LW_INLINE void eliminate_all(const Shared& s, T (&p)[RT][W], State& state, int width, int threads) {
#pragma unroll 1
  for (int c = W - ACTIVE; c < W - ACTIVE + PART && c < width; c++) eliminate<ACTIVE>(s, p, state, c, threads);
  if constexpr (ACTIVE > PART) eliminate_all<ACTIVE - PART>(s, p, state, width, threads);
}

// row_of, and the exchanges where they are wanted: pivot rows move to the top; the rows that were there move where pivot rows have left. Warp 0 has all of these.
LW_INLINE void place_rows(const Shared& s, const State& state, Moves* moves, int column, int left, int width, int threads) {
  const int t = threadIdx.x;
  int displaced = 0;
  if (t < 32) {
    sync_warp();
    const int source = t < width ? s.source[t] : 0;
    const bool moved = t < width && state.open & 1, leaves = t < width && source >= width;
    const unsigned before = (1u << t) - 1;
    const unsigned movers = ballot(moved), leavers = ballot(leaves);
    if (leaves) s.vacant[__popc(leavers & before)] = source;
    sync_warp();
    const int k = __popc(movers & before);
    if (t < width) s.row_of[t] = source;
    if (moves && t < width) moves->source[t] = column + source;
    if (moved) {
      displaced = s.vacant[k];
      if (moves) moves->target[k] = column + displaced, moves->old[k] = column + t;
    }
    if (t == 0) *s.count = 0;
    if (moves && t == 0) moves->count = __popc(movers);
  }
#pragma unroll
  for (int r = 0; r < RT; r++) {
    const int i = t + r * threads;
    if (i < left && state.open >> r & 1) s.row_of[i < width ? displaced : i] = i;
  }
}
