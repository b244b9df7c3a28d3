// Square tiles of a row-major matrix, moved through shared memory by a block of 256 threads.
#pragma once
#include "common.cuh"

constexpr int THREADS = 256;
constexpr int EDGE = SIZE == 4 ? 64 : 32;  // of the tiles
constexpr int LINES = THREADS / EDGE;

typedef T Square[EDGE][EDGE + 1];

LW_INLINE void read_square(Square& s, const T* from, i64 n, i64 i, i64 j) {
  int c = threadIdx.x % EDGE;
#pragma unroll
  for (int r = threadIdx.x / EDGE; r < EDGE; r += LINES)
    if (i * EDGE + r < n && j * EDGE + c < n) s[r][c] = load_element(from + (i * EDGE + r) * n + j * EDGE + c);
}

// f(r, c) goes to row r, column c of tile (i,j).
template <typename F>
LW_INLINE void write_square(T* to, i64 n, i64 i, i64 j, F f) {
  int c = threadIdx.x % EDGE;
#pragma unroll
  for (int r = threadIdx.x / EDGE; r < EDGE; r += LINES)
    if (i * EDGE + r < n && j * EDGE + c < n) store_element(to + (i * EDGE + r) * n + j * EDGE + c, f(r, c));
}

// f(matrix, i, j) for every pair of mirrored tiles, j <= i, of `batch` matrices of order n, shared out over the blocks.
template <typename F>
LW_INLINE void each_pair(i64 batch, i64 n, F f) {
  i64 tiles = (n + EDGE - 1) / EDGE, pairs = tiles * (tiles + 1) / 2;
  for (i64 item = blockIdx.x; item < pairs * batch; item += gridDim.x) {
    i64 m = item / pairs, i, j;
    pair_of(item - m * pairs, i, j);
    f(m, i, j);
  }
}

// Both tiles of a pair <- x everywhere
LW_INLINE void write_pair(T* to, i64 n, i64 i, i64 j, T x) {
  write_square(to, n, i, j, [=](int, int) { return x; });
  if (i > j) write_square(to, n, j, i, [=](int, int) { return x; });
}
