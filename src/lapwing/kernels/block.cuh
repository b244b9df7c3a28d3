// What kernels with a block of LW_THREADS threads per matrix in shared memory share on top of common.cuh.
//
// Rows begin on multiples of 16 bytes, an odd number of them apart, so that lanes that read one row each meet no bank conflict.
// Columns from the last one up to a multiple of NB are zeros, so that whole panels can be read.
//   LW_RT  rows of a lane where one warp has a panel: matrices have at most 32 RT rows
//   LW_NB  columns of a panel, where they are not the usual ones
#pragma once
#include "common.cuh"

#ifdef LW_NB
constexpr int NB = LW_NB;  // columns of a panel
#else
constexpr int NB = LW_DTYPE == 3 ? 4 : 8;
#endif
constexpr int HIGH = 4;                    // rows of the piece of a product that a thread computes; VEC columns
constexpr int RT = LW_RT;
constexpr int WARPS = LW_THREADS / 32;

LW_INLINE void load_line(T (&x)[NB], const T* from) { load_registers<16>(x, (const char*)from); }
LW_INLINE void store_line(T* to, const T (&x)[NB]) { store_registers<16>((char*)to, x); }
LW_INLINE int rounded_up(int n) { return (n + NB - 1) / NB * NB; }

// Steps through a grid of lines of `width` places without a division in the loop.
struct Walk {
  int line, place, lines, places, width;
  LW_INLINE Walk(int width, int start, int step)
      : line(start / width), place(start % width), lines(step / width), places(step % width), width(width) {}
  LW_INLINE void next() {
    line += lines, place += places;
    if (place >= width) place -= width, line++;
  }
};

// Pair number p -> (i, j), j <= i, counting row by row; exact up to some millions.
LW_INLINE void small_pair_of(int p, int& i, int& j) {
  i = (int)((sqrtf(8.0f * (float)p + 1.0f) - 1.0f) * 0.5f);
  if (i * (i + 1) / 2 > p) i--;
  if ((i + 1) * (i + 2) / 2 <= p) i++;
  j = p - i * (i + 1) / 2;
}

// c <- c - L U for the piece at row i0 of c; c and u begin at the piece's first column, l at the panel's. Rows from `end` on
// are not written.
LW_INLINE void subtract_piece(T* c, int pitch, const T* l, int l_pitch, const T* u, int u_pitch, int i0, int end) {
  T line[HIGH][NB];
  Vector x[HIGH];
#pragma unroll
  for (int a = 0; a < HIGH; a++) {
    const int i = min(i0 + a, end - 1);
    load_line(line[a], l + i * l_pitch);
    x[a] = *(const Vector*)(c + i * pitch);
  }
#pragma unroll
  for (int k = 0; k < NB; k++) {
    const Vector y = *(const Vector*)(u + k * u_pitch);
#pragma unroll
    for (int a = 0; a < HIGH; a++)
#pragma unroll
      for (int v = 0; v < VEC; v++) x[a].v[v] = subtract_plain(x[a].v[v], line[a][k], y.v[v]);
  }
#pragma unroll
  for (int a = 0; a < HIGH; a++)
    if (i0 + a < end) *(Vector*)(c + (i0 + a) * pitch) = x[a];
}

// m rows of n elements from global memory, with zeros behind them. LW_V divides the bytes of a row. Only this thread's own
// copies have arrived at the end.
LW_INLINE void load_rows(T* e, int pitch, const T* a, int m, int n) {
  const int units = n * SIZE / LW_V;
  for (Walk w(units, threadIdx.x, LW_THREADS); w.line < m; w.next())
    copy_async<LW_V>((char*)(e + w.line * pitch) + w.place * LW_V, (const char*)a + (w.line * units + w.place) * LW_V);
  for (int i = threadIdx.x; i < m; i += LW_THREADS)
    for (int j = n; j < rounded_up(n); j++) e[i * pitch + j] = zero();
  finish_copies();
}

// m rows of n elements to global memory: f(row, column, number) for each real number of them.
template <typename F>
LW_INLINE void store_rows(T* out, const T* e, int pitch, int m, int n, F f) {
  typedef Pack<Real, LW_V / sizeof(Real)> Access;
  const int units = n * SIZE / LW_V;
  for (Walk w(units, threadIdx.x, LW_THREADS); w.line < m; w.next()) {
    Access p = *(const Access*)((const char*)(e + w.line * pitch) + w.place * LW_V);
#pragma unroll
    for (int v = 0; v < LW_V / (int)sizeof(Real); v++) p.v[v] = f(w.line, (w.place * LW_V + v * (int)sizeof(Real)) / SIZE, p.v[v]);
    *(Access*)((char*)out + (w.line * units + w.place) * LW_V) = p;
  }
}
