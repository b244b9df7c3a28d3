// A panel of each matrix of a batch: lu_panel.cuh, a block of threads for each.
#include "lu_panel.cuh"

struct Panel {
  T* a;                  // the matrices
  i64 ld, stride, batch;
  int* order;            // row i of L U is row order[i] of the matrix
  int* from;             // row i was row from[i] before this block of columns
  int *bad, *flags;      // of each matrix: the first pivot that cannot be divided by, from 1 on; INFINITE or 0. flags may be null
  Moves *inner, *outer;  // exchanges of this panel, and of all panels of the block of columns where this is the last one
  int n, first, column, width, last, threads;  // the block of columns begins at `first`, the panel at `column`
};

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
  place_rows(s, state, call.inner + m, column, left, width, threads);
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
