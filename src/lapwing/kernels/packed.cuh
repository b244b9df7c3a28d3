// Cholesky of one matrix by a block of LW_THREADS threads, a warp for each 32 of LW_N rows: only the lower triangle is in shared
// memory.
#pragma once
#include "common.cuh"

// By blocks of 32 rows: block b holds columns 0 .. 32 (b + 1), in rows an odd number of 16-byte units apart.
constexpr int BLOCKS = LW_N / TILE;
constexpr int WARPS = LW_THREADS / 32;

LW_INLINE constexpr int pitch_of(int b) { return TILE * (b + 1) + VEC; }
LW_INLINE constexpr int start_of(int b) { return TILE * (TILE * b * (b + 1) / 2 + VEC * b); }

LW_INLINE T* tile(int b, int c) { return (T*)memory + start_of(b) + TILE * c; }

// Elements of a line of memory, a row of L or a column of it when transposed, go through one warp; 16-byte pieces of a
// row through any thread. Only the triangle inside the n x n matrix is loaded: garbage beside it stays there.
LW_INLINE void load_triangle(const T* a, int n) {
  if (LW_UPPER || LW_V <= SIZE) {
    for (int l = threadIdx.x / 32; l < n; l += WARPS) {
      int end = LW_UPPER ? n : l + 1;
      for (int k = (LW_UPPER ? l : 0) + threadIdx.x % 32; k < end; k += 32) {
        int i = LW_UPPER ? k : l, j = LW_UPPER ? l : k, b = i / TILE;
        copy_element(tile(b, 0) + i % TILE * pitch_of(b) + j, a + l * n + k);
      }
    }
  } else {
    constexpr int STEP = LW_V > SIZE ? LW_V / SIZE : 1;
#pragma unroll
    for (int b = 0; b < BLOCKS; b++) {
      const int units = TILE * (b + 1) / STEP;
#pragma unroll 4
      for (int u = threadIdx.x; u < TILE * units; u += LW_THREADS) {
        int i = u / units, j = u % units * STEP, row = TILE * b + i;
        if (row < n && j <= row) copy_async<STEP * SIZE>(tile(b, 0) + i * pitch_of(b) + j, a + row * n + j);
      }
    }
  }
  finish_copies();
}

// Rows `first` on of A(b,c) <- A(b,c) - L(b,p) L(c,p)^H by one warp, 8 X of them.
template <int X>
LW_INLINE void update_tile(int b, int c, int p, int first, bool active = true) {
  int skip = first * pitch_of(b);
  update_piece<X, 4>(tile(b, c) + skip, pitch_of(b), tile(b, p) + skip, pitch_of(b), tile(c, p), pitch_of(c), active);
}

#if LW_MATRIX == 64
// The tiles below the diagonal tile p + 1 <- A - L(.,p) L(.,p)^H, by the waves but the first, which has the long chain. Tiles are dealt
// out to warps, and both warps of a wave come to their products together.
template <int ROW_BLOCKS>
LW_INLINE void update_by_waves(int p, int rows, int warp) {
  constexpr int FIRST = WARPS > 2 ? 2 : 0;
  const int q = p + 1;
  int tiles = 0;
  for (int b = q + 1; b < ROW_BLOCKS; b++) tiles += min(b, BLOCKS - 1) - p;
  for (int at = warp - FIRST; warp >= FIRST && at - warp % 2 < tiles; at += WARPS - FIRST) {
    int b = q + 1, c = q + at;
    for (; b < ROW_BLOCKS && c > min(b, BLOCKS - 1); b++) c -= min(b, BLOCKS - 1) - p;
    update_tile<2>(b, c, p, 0, at < tiles);
    update_tile<2>(b, c, p, 16, at < tiles && rows - TILE * b > 16);
  }
}
#endif

// The first n rows of the triangle <- L. The rows from there up to `rows`, of ROW_BLOCKS blocks in all, are multiplied by L^-H:
// with b^H in them they become (L^-1 b)^H.
//
// Stage p: A(p+1..,p) <- A(p+1..,p) L(p,p)^-H, then the trailing tiles <- A - L(.,p) L(.,p)^H. Two warps update the next
// diagonal tile, and the first one factors it while the others update the rest. `warp` counts from the warp that has the long
// chains. With KEEP the reciprocals of all of the diagonal are kept, else those of one tile.
template <int ROW_BLOCKS, bool KEEP>
LW_INLINE void factor_triangle(int n, int rows, int warp, T* room, Real* reciprocals, int* first_bad) {
  const int lane = threadIdx.x % 32;
  for (int p = -1; p < ROW_BLOCKS - 1; p++) {
    const int q = p + 1;
    if (p >= 0) {
      const int b = q + warp;
      if (TILE * b + lane < rows)
        solve_row(tile(b, p) + lane * pitch_of(b), tile(p, p), pitch_of(p), reciprocals + (KEEP ? TILE * p : 0));
      __syncthreads();
#if LW_MATRIX == 64
      if (q < BLOCKS && warp < 2) update_tile<2>(q, q, p, 16 * warp, TILE * q + 16 * warp < rows);
#else
      if (q < BLOCKS && warp < 2 && TILE * q + 16 * warp < rows) update_tile<2>(q, q, p, 16 * warp);
#endif
      __syncthreads();
    }
    if (q < BLOCKS && warp == 0) {
      const int bad = factor_tile(tile(q, q), pitch_of(q), n - TILE * q, room, reciprocals + (KEEP ? TILE * q : 0));
      if (lane == 0 && bad && *first_bad == 0) *first_bad = TILE * q + bad;
    }
#if LW_MATRIX == 64
    if (q < BLOCKS && p >= 0) update_by_waves<ROW_BLOCKS>(p, rows, warp);
#else
    else if (q < BLOCKS && p >= 0) {
      int turn = 1;
      for (int b = q + 1; b < ROW_BLOCKS; b++)
        for (int c = q; c <= b && c < BLOCKS; c++) {
          if (turn == warp && rows - TILE * b > 16)
            update_tile<4>(b, c, p, 0);
          else if (turn == warp)
            update_tile<2>(b, c, p, 0);
          turn = turn + 1 < WARPS ? turn + 1 : 1;
        }
    }
#endif
    __syncthreads();
  }
}
