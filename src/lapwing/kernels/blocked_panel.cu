// LU with partial pivoting of a panel of W columns of each matrix, a block of threads for each.
//
// Thread t keeps the rows t, t + threads, ... of the panel in registers, RT of them. For each column every warp puts its best
// row into shared memory; after one barrier all threads choose the best of these and subtract multiples of it. The columns
// rotate through the registers: p[0] is the current one, and a finished one goes to the end, so that the loop is not unrolled.
// Rows move to their places at the end. The matrices and their rows are aligned to 16 bytes.
// Options: LW_RT, LW_W (a row of the panel has 32, 64 or 128 bytes).
#include "blocked.cuh"

constexpr int RT = LW_RT, W = LW_W, HALF = W / 2;
constexpr int MOST_WARPS = 16;
constexpr int PITCH = W * SIZE + 16;  // bytes from row to row in shared memory: an odd number of 16-byte units

struct Panel {
  T* a;                // the matrices
  i64 ld, stride, batch;
  int* order;          // row i of L U is row order[i] of the matrix
  int* from;           // row i was row from[i] before this block of columns
  int *bad, *flags;    // of each matrix: the first pivot that cannot be divided by, from 1 on; INFINITE or 0. flags may be null
  Moves *inner, *outer;  // exchanges of this panel, and of all panels of the block of columns where this is the last one
  int n, first, column, width, last, threads;  // the block of columns begins at `first`, the panel at `column`
};
constexpr int INFINITE = 2;

struct Shared {
  char* rows;      // the panel
  char* best;      // two sets of one row from each warp
  Key* keys;       // its magnitude
  int* index;      // its place in the panel
  int* source;     // for each column: the row chosen
  int* vacant;     // rows below the first W that were chosen
  int* count;
  LW_INLINE T* row(int i) const { return (T*)(rows + i * PITCH); }
  LW_INLINE T* candidate(int set, int warp) const { return (T*)best + (set * MOST_WARPS + warp) * W; }
};

struct Progress {
  int bad, flags;
  unsigned open;   // bit r: row r of the thread is no pivot row yet
  int place[RT];   // the column whose pivot row it is
};

// Column c of the panel: its pivot row, and the update of the ACTIVE columns in front. `done` of these are finished.
template <int ACTIVE>
LW_INLINE void eliminate(const Shared& s, T (&p)[RT][W], Progress& state, int c, int done, int column, int threads) {
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
    T* to = s.candidate(set, warp);
#pragma unroll
    for (int r = 0; r < RT; r++) {
      if (which == r) {
        T line[ACTIVE];
#pragma unroll
        for (int k = 0; k < ACTIVE; k++) line[k] = select(k < ACTIVE - done, p[r][k], zero());  // finished columns stay as they are
        store_registers<16>((char*)to, line);
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
  if (!good && state.bad == 0) state.bad = column + c + 1;
  if (!is_finite(d)) state.flags |= INFINITE;
  if (threadIdx.x == 0) s.source[c] = column + chosen;
  const T q = select(good, invert(d), zero());
  T by[RT], finished[RT];
#pragma unroll
  for (int r = 0; r < RT; r++) {
    if (threadIdx.x + r * threads == chosen) state.open &= ~(1u << r), state.place[r] = c;
    const bool active = state.open >> r & 1;
    const T l = divide(p[r][0], d, q, small);
    by[r] = select(active, l, zero());
    finished[r] = select(active, l, p[r][0]);
  }
#pragma unroll
  for (int k = 0; k < ACTIVE; k += VEC) {
    const Vector x = *(const Vector*)(u + k);
#pragma unroll
    for (int v = 0; v < VEC; v++)
#pragma unroll
      for (int r = 0; r < RT; r++)
        if (k + v > 0) p[r][k + v - 1] = subtract_plain(p[r][k + v], by[r], x.v[v]);
  }
#pragma unroll
  for (int r = 0; r < RT; r++) p[r][ACTIVE - 1] = finished[r];
}

// Behind the last column: only the rotation.
template <int ACTIVE>
LW_INLINE void rotate(T (&p)[RT][W]) {
#pragma unroll
  for (int r = 0; r < RT; r++) {
    const T first = p[r][0];
#pragma unroll
    for (int k = 1; k < ACTIVE; k++) p[r][k - 1] = p[r][k];
    p[r][ACTIVE - 1] = first;
  }
}

// The rows of the panel from global memory, in accesses of 16 bytes: columns past the width may come along, and are never stored.
LW_INLINE void load_panel(const Shared& s, const T* a, i64 ld, int left, int width, int threads) {
  constexpr int UNITS = W / VEC;
  for (int at = threadIdx.x; at < left * UNITS; at += threads) {
    const int i = at / UNITS, c = at % UNITS * VEC;
    copy_async<16>(s.row(i) + c, a + i * ld + (c < width ? c : 0), c < width);
  }
  finish_copies();
}

LW_INLINE void store_panel(const Shared& s, T* a, i64 ld, int left, int width, int threads) {
  constexpr int UNITS = W / VEC;
  if (width == W) {
    for (int at = threadIdx.x; at < left * UNITS; at += threads) {
      const int i = at / UNITS, c = at % UNITS * VEC;
      *(Vector*)(a + i * ld + c) = *(const Vector*)(s.row(i) + c);
    }
  } else {
    for (int at = threadIdx.x; at < left * W; at += threads) {
      const int i = at / W, c = at % W;
      if (c < width) store_element(a + i * ld + c, s.row(i)[c]);
    }
  }
}

LW_INLINE void factor_panel(const Panel& call, const Shared& s, i64 m) {
  const int t = threadIdx.x, threads = call.threads, lane = t % 32, left = call.n - call.column, width = call.width;
  T* a = call.a + m * call.stride + call.column * call.ld + call.column;
  int* order = call.order + m * call.n;
  int* from = call.from + m * call.n;
  load_panel(s, a, call.ld, left, width, threads);
  __syncthreads();

  T p[RT][W];
  int was_order[RT], was_from[RT];
  Progress state{0, 0, 0, {}};
#pragma unroll
  for (int r = 0; r < RT; r++) {
    const int i = t + r * threads, row = call.column + i;
    load_registers<16>(p[r], (const char*)s.row(min(i, left - 1)));
    if (i < left) {
      state.open |= 1u << r;
      was_order[r] = call.column ? order[row] : row;
      was_from[r] = call.column > call.first ? from[row] : row;
    }
  }
  for (int c = 0; c < HALF; c++) {
    if (c < width)
      eliminate<W>(s, p, state, c, c, call.column, threads);
    else
      rotate<W>(p);
  }
  for (int c = HALF; c < W; c++) {
    if (c < width)
      eliminate<HALF>(s, p, state, c, c - HALF, call.column, threads);
    else
      rotate<HALF>(p);
  }

  // pivot rows move to the top; the rows that were there move where pivot rows have left. Warp 0 has all of these.
  int displaced = 0;
  if (t < 32) {
    __syncwarp();
    const int source = lane < width ? s.source[lane] : 0;
    const bool moves = lane < width && state.open & 1, leaves = lane < width && source >= call.column + width;
    const unsigned before = (1u << lane) - 1;
    const unsigned movers = __ballot_sync(ALL, moves), leavers = __ballot_sync(ALL, leaves);
    if (leaves) s.vacant[__popc(leavers & before)] = source;
    __syncwarp();
    const int k = __popc(movers & before);
    displaced = moves ? s.vacant[k] - call.column : 0;
    if (lane < width) call.inner[m].source[lane] = source;
    if (moves) call.inner[m].target[k] = s.vacant[k], call.inner[m].old[k] = call.column + lane;
    if (lane == 0) call.inner[m].count = __popc(movers), *s.count = 0;
  }
#pragma unroll
  for (int r = 0; r < RT; r++) {
    const int i = t + r * threads;
    if (i < left) {
      const int to = !(state.open >> r & 1) ? state.place[r] : i < width ? displaced : i;
      T line[W];
#pragma unroll
      for (int k = 0; k < W; k++) line[k] = p[r][k < HALF ? k + HALF : k - HALF];
      store_registers<16>((char*)s.row(to), line);
      order[call.column + to] = was_order[r];
      from[call.column + to] = was_from[r];
    }
  }
  __syncthreads();
  store_panel(s, a, call.ld, left, width, threads);
  if (t == 0) {
    const int bad = call.column ? call.bad[m] : 0;
    call.bad[m] = bad ? bad : state.bad;
    if (call.flags) call.flags[m] = (call.column ? call.flags[m] : 0) | state.flags;
  }
  if (!call.last) return;
  // all exchanges of the block of columns: a row from below stays at the top once it is there
  Moves& outer = call.outer[m];
  const int end = call.column + width;
  for (int i = call.first + t; i < end; i += threads) outer.source[i - call.first] = from[i];
  for (int i = end + t; i < call.n; i += threads) {
    const int old = from[i];
    if (old != i) {
      const int k = atomicAdd(s.count, 1);
      outer.target[k] = i, outer.old[k] = old;
    }
  }
  __syncthreads();
  if (t == 0) outer.count = *s.count;
}

extern "C" __global__ void __launch_bounds__(32 * MOST_WARPS, LW_RESIDENT) lu_panel(Panel call) {
  Shared s;
  s.rows = memory;
  s.best = memory + (call.n - call.column) * PITCH;
  s.keys = (Key*)(s.best + 2 * MOST_WARPS * W * SIZE);
  s.index = (int*)(s.keys + 2 * MOST_WARPS);
  s.source = s.index + 2 * MOST_WARPS;
  s.vacant = s.source + W;
  s.count = s.vacant + W;
  for (i64 m = blockIdx.x; m < call.batch; m += gridDim.x) {
    factor_panel(call, s, m);
    __syncthreads();
  }
}
