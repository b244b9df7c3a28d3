// LU with partial pivoting of a panel of W columns of each matrix, a block of threads for each.
//
// Thread t keeps the rows t, t + threads, ... of the panel in registers, RT of them. For each column every warp puts its best
// row into shared memory; after one barrier all threads choose the best of these and subtract multiples of it. The multipliers
// go to shared memory, and the other columns move one register down, so that p[0] is the current one and the loop is not
// unrolled. Rows take their places on the way out.
// Options: LW_RT, LW_W (at most 32; a row of the panel has 32 to 256 bytes).
#include "blocked.cuh"

constexpr int RT = LW_RT, W = LW_W, UNITS = W / VEC;
constexpr int PART = W / 4 >= VEC ? W / 4 : W / 2 >= VEC ? W / 2 : W;  // columns after which fewer registers are updated
constexpr int MOST_WARPS = 16;
constexpr int PITCH = W * SIZE + 16;  // bytes from row to row in shared memory: an odd number of 16-byte units
constexpr int INFINITE = 2;

struct Panel {
  T* a;                  // the matrices
  i64 ld, stride, batch;
  int* order;            // row i of L U is row order[i] of the matrix
  int* from;             // row i was row from[i] before this block of columns
  int *bad, *flags;      // of each matrix: the first pivot that cannot be divided by, from 1 on; INFINITE or 0. flags may be null
  Moves *inner, *outer;  // exchanges of this panel, and of all panels of the block of columns where this is the last one
  int n, first, column, width, last, threads;  // the block of columns begins at `first`, the panel at `column`
};

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

// Pivot rows move to the top; the rows that were there move where pivot rows have left. Warp 0 has all of these.
LW_INLINE void place_rows(const Shared& s, const State& state, Moves& moves, int column, int left, int width, int threads) {
  const int t = threadIdx.x;
  int displaced = 0;
  if (t < 32) {
    __syncwarp();
    const int source = t < width ? s.source[t] : 0;
    const bool moved = t < width && state.open & 1, leaves = t < width && source >= width;
    const unsigned before = (1u << t) - 1;
    const unsigned movers = __ballot_sync(ALL, moved), leavers = __ballot_sync(ALL, leaves);
    if (leaves) s.vacant[__popc(leavers & before)] = source;
    __syncwarp();
    const int k = __popc(movers & before);
    if (t < width) s.row_of[t] = source, moves.source[t] = column + source;
    if (moved) {
      displaced = s.vacant[k];
      moves.target[k] = column + displaced, moves.old[k] = column + t;
    }
    if (t == 0) moves.count = __popc(movers), *s.count = 0;
  }
#pragma unroll
  for (int r = 0; r < RT; r++) {
    const int i = t + r * threads;
    if (i < left && state.open >> r & 1) s.row_of[i < width ? displaced : i] = i;
  }
}

LW_INLINE void factor_panel(const Panel& call, const Shared& s, i64 m) {
  const int t = threadIdx.x, threads = call.threads, column = call.column, left = call.n - column, width = call.width;
  T* a = call.a + m * call.stride + column * call.ld + column;
  // columns past the width may come along, and are never stored
  constexpr int STEP = LW_V == 16 ? VEC : 1;
  for (int at = t; at < left * (W / STEP); at += threads) {
    const int i = at / (W / STEP), c = at % (W / STEP) * STEP;
    const T* source = a + i * call.ld + (c < width ? c : 0);
    if (LW_V == 16)
      copy_async<16>(s.row(i) + c, source, c < width);
    else
      copy_element(s.row(i) + c, source, c < width);
  }
  finish_copies();
  __syncthreads();
  T p[RT][W];
  State state{0, 0, 0};
#pragma unroll
  for (int r = 0; r < RT; r++) {
    const int i = t + r * threads;
    load_registers<16>(p[r], (const char*)s.row(min(i, left - 1)));
    if (i < left) state.open |= 1u << r;
  }
  eliminate_all<W>(s, p, state, width, threads);
  place_rows(s, state, call.inner[m], column, left, width, threads);
  __syncthreads();

  for (int at = t; at < left * UNITS; at += threads) {
    const int i = at / UNITS, c = at % UNITS * VEC;
    Vector x = *(const Vector*)(s.row(s.row_of[i]) + c);
#pragma unroll
    for (int v = 0; v < VEC; v++)
      if (i < width && c + v >= i) x.v[v] = s.top[i * W + c + v];
    T* to = a + i * call.ld + c;
    if (LW_V == 16 && width == W) {
      *(Vector*)to = x;
    } else {
#pragma unroll
      for (int v = 0; v < VEC; v++)
        if (c + v < width) store_element(to + v, x.v[v]);
    }
  }
  int* order = call.order + m * call.n + column;
  int* from = call.from + m * call.n + column;
  int new_order[RT], new_from[RT];
#pragma unroll
  for (int r = 0; r < RT; r++) {
    const int i = t + r * threads, was = i < left ? s.row_of[i] : 0;
    new_order[r] = column ? order[was] : was;
    new_from[r] = column > call.first ? from[was] : column + was;
  }
  __syncthreads();
#pragma unroll
  for (int r = 0; r < RT; r++) {
    const int i = t + r * threads;
    if (i < left) order[i] = new_order[r], from[i] = new_from[r];
  }
  if (t == 0) {
    const int bad = column ? call.bad[m] : 0;
    call.bad[m] = bad ? bad : state.bad ? column + state.bad : 0;
    if (call.flags) call.flags[m] = (column ? call.flags[m] : 0) | state.flags;
  }
  if (!call.last) return;
  // all exchanges of the block of columns: a row from below stays at the top once it is there
  __syncthreads();
  Moves& outer = call.outer[m];
  for (int i = call.first + t; i < call.n; i += threads) {
    const int old = from[i - column];
    if (i < column + width) {
      outer.source[i - call.first] = old;
    } else if (old != i) {
      const int k = atomicAdd(s.count, 1);
      outer.target[k] = i, outer.old[k] = old;
    }
  }
  __syncthreads();
  if (t == 0) outer.count = *s.count;
}

extern "C" __global__ void __launch_bounds__(32 * MOST_WARPS, LW_RESIDENT) lu_panel(Panel call) {
  const int left = call.n - call.column;
  Shared s;
  s.rows = memory;
  s.top = (T*)(memory + left * PITCH);
  s.best = (char*)(s.top + W * W);
  s.keys = (Key*)(s.best + 2 * MOST_WARPS * W * SIZE);
  s.index = (int*)(s.keys + 2 * MOST_WARPS);
  s.source = s.index + 2 * MOST_WARPS;
  s.vacant = s.source + W;
  s.count = s.vacant + W;
  s.row_of = s.count + 4;
  for (i64 m = blockIdx.x; m < call.batch; m += gridDim.x) {
    factor_panel(call, s, m);
    __syncthreads();
  }
}
