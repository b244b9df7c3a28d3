// Square tiles of a row-major matrix, moved through shared memory by a block of 256 threads.
#pragma once
#include "common.cuh"

constexpr int THREADS = 256;
constexpr int EDGE = SIZE == 4 ? 64 : 32;  // of the tiles
constexpr int LINES = THREADS / EDGE;

// Pair number p -> tile (i,j), j <= i, counting row by row.
LW_INLINE void pair_of(i64 p, i64& i, i64& j) {
  i = (i64)((sqrt(8.0 * (double)p + 1.0) - 1.0) * 0.5);
  while (i * (i + 1) / 2 > p) i--;
  while ((i + 1) * (i + 2) / 2 <= p) i++;
  j = p - i * (i + 1) / 2;
}

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
