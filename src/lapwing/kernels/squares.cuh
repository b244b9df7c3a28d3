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
