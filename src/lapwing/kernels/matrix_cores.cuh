// Products of small matrices by the GPU's own instructions, one function for each shape. LW_MATRIX says which there are; a kernel
// that uses one has a plain path beside it.
//   16  NVIDIA, compute capability 9.0 and later: 16 x 8 x 8 of double and of float rounded to 11 bits (tf32)
//   8   NVIDIA before that: 8 x 8 x 4 of double
//   64  AMD, gfx90a, gfx942 and gfx950: 16 x 16 x 4 of double and of float, by all 64 lanes of a wave at once
//   0   none, on AMD also for complex numbers and where the last wave of a block is half empty
#pragma once
#include "lanes.cuh"

#ifndef LW_MATRIX
#if defined(__gfx90a__) || defined(__gfx940__) || defined(__gfx941__) || defined(__gfx942__) || defined(__gfx950__)
#define LW_MATRIX 64
#elif LW_AMD
#define LW_MATRIX 0
#elif __CUDA_ARCH__ >= 900
#define LW_MATRIX 16
#else
#define LW_MATRIX 8
#endif
#endif
#if LW_MATRIX == 64 && defined(LW_THREADS)
#define LW_HALF_EMPTY (LW_THREADS % 64 != 0)
#else
#define LW_HALF_EMPTY 0
#endif
#if LW_MATRIX == 64 && (LW_DTYPE >= 2 || LW_HALF_EMPTY)
#undef LW_MATRIX
#define LW_MATRIX 0
#endif

// How 32 threads hold a product of 8X x 8Y: each has X x Y pairs of neighbours in a row, and these are where pair (x, y) begins. The
// layout of NVIDIA's instruction for double precision serves every type; products by waves of 64 have their own.
template <bool BY_WAVES>
LW_INLINE int pair_row(int x) {
  const int i = threadIdx.x % 16, g = threadIdx.x % 32 / 4;
  return BY_WAVES ? i + 16 * (x / 2) : g + 8 * x;
}
template <bool BY_WAVES>
LW_INLINE int pair_column(int x, int y) {
  const int half = threadIdx.x % 32 / 16, t = threadIdx.x % 4;
  return BY_WAVES ? 16 * (y / 2) + 8 * half + 4 * (x % 2) + 2 * (y % 2) : 8 * y + 2 * t;
}

#if LW_MATRIX == 16
// C <- C + A B for 16 x 8 times 8 x 8. With g = lane / 4 and t = lane % 4, a lane has A(g, t), A(g + 8, t), A(g, t + 4),
// A(g + 8, t + 4), then B(t, g), B(t + 4, g), and of C (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1).
LW_INLINE void multiply_tile(double& c0, double& c1, double& c2, double& c3, double a0, double a1, double a2, double a3, double b0,
                             double b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+d"(c0), "+d"(c1), "+d"(c2), "+d"(c3)
      : "d"(a0), "d"(a1), "d"(a2), "d"(a3), "d"(b0), "d"(b1));
}
// The same for the bits of floats, of which the instruction reads the first 11 of the fraction and the leading one.
LW_INLINE void multiply_tile(float (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
// x = high + low, each rounded to 11 bits
LW_INLINE void split_bits(float x, unsigned& high, unsigned& low) {
  high = (__float_as_uint(x) + 0x1000u) & 0xffffe000u;
  low = __float_as_uint(x - __uint_as_float(high)) + 0x1000u;
}
// V <- V + A B, 8 deep, for X x Y pairs as pair_row and pair_column hold them: three of the four products of the parts, which is as
// accurate as float. The instruction cuts off what it sums up, so that only eight terms are left to it.
template <int X, int Y>
LW_INLINE void multiply_in_parts(float (&v)[X][Y][2], const float (&a)[X][2], const float (&b)[Y][2]) {
  unsigned b_high[Y][2], b_low[Y][2];
#pragma unroll
  for (int y = 0; y < Y; y++)
#pragma unroll
    for (int e = 0; e < 2; e++) split_bits(b[y][e], b_high[y][e], b_low[y][e]);
#pragma unroll
  for (int x = 0; x < X; x += 2) {
    unsigned high[2][2], low[2][2];
#pragma unroll
    for (int q = 0; q < 2; q++)
#pragma unroll
      for (int e = 0; e < 2; e++) split_bits(a[x + q][e], high[q][e], low[q][e]);
#pragma unroll
    for (int y = 0; y < Y; y++) {
      float c[4] = {0, 0, 0, 0};
      multiply_tile(c, low[0][0], low[1][0], low[0][1], low[1][1], b_high[y][0], b_high[y][1]);
      multiply_tile(c, high[0][0], high[1][0], high[0][1], high[1][1], b_low[y][0], b_low[y][1]);
      multiply_tile(c, high[0][0], high[1][0], high[0][1], high[1][1], b_high[y][0], b_high[y][1]);
      v[x][y][0] += c[0];
      v[x][y][1] += c[1];
      v[x + 1][y][0] += c[2];
      v[x + 1][y][1] += c[3];
    }
  }
}
// The nearest number of 11 bits
LW_INLINE unsigned short_of(float x) {
  unsigned y;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(x));
  return y;
}
#elif LW_MATRIX == 8
// C <- C + A B for 8 x 4 times 4 x 8: a lane has A(g, t), B(t, g), and of C (g, 2t), (g, 2t + 1).
LW_INLINE void multiply_tile(double& c0, double& c1, double a, double b) {
  asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
               : "+d"(c0), "+d"(c1)
               : "d"(a), "d"(b));
}
#elif LW_MATRIX == 64
// C <- C + A B for 16 x 4 times 4 x 16 by a whole wave: lane l has A(l % 16, l / 16), B(l / 16, l % 16), and four elements of column
// l % 16 of C: rows l / 16 + 4v in double precision, rows 4 (l / 16) + v in single. The instruction writes to lanes that are
// elsewhere too, so all 64 must be here.
LW_INLINE void multiply_tile(double (&c)[4], double a, double b) {
  typedef double Four __attribute__((vector_size(32)));
  Four sum = {c[0], c[1], c[2], c[3]};
  sum = __builtin_amdgcn_mfma_f64_16x16x4f64(a, b, sum, 0, 0, 0);
  c[0] = sum[0], c[1] = sum[1], c[2] = sum[2], c[3] = sum[3];
}
LW_INLINE void multiply_tile(float (&c)[4], float a, float b) {
  typedef float Four __attribute__((vector_size(16)));
  Four sum = {c[0], c[1], c[2], c[3]};
  sum = __builtin_amdgcn_mfma_f32_16x16x4f32(a, b, sum, 0, 0, 0);
  c[0] = sum[0], c[1] = sum[1], c[2] = sum[2], c[3] = sum[3];
}

// ---- two products at once ----------------------------------------------------------------------------------------
//
// The kernels give each warp a product of its own. Both warps of a wave call multiply_halves at one place, and the wave computes one
// product after the other; what a lane has of its neighbour's product is exchanged for the own at the end.

// x as the warp `half` of the wave has it
LW_INLINE int of_half(int x, int half) { return __builtin_amdgcn_readlane(x, 32 * half); }
// The same for a place in shared memory. The compiler sees that it is one.
template <typename E>
LW_INLINE const E* of_half(const E* at, int half) {
  const int place = (int)(unsigned long long)at;
  return (const E*)((const char*)at + (of_half(place, half) - place));
}

// x of the lane with the same number in the other warp of the wave
template <typename V>
LW_INLINE V of_other_half(V x) {
  union {
    V whole;
    int words[sizeof(V) / 4];
  } u;
  u.whole = x;
#pragma unroll
  for (int w = 0; w < (int)sizeof(V) / 4; w++) u.words[w] = __builtin_amdgcn_ds_bpermute(4 * (threadIdx.x % 64 ^ 32), u.words[w]);
  return u.whole;
}

// A matrix in shared memory, the same way along in each row: element (i, k) is at[i * across + k * along].
template <typename E>
struct Lines {
  const E* at;
  int across, along;

  LW_INLINE E operator()(int i, int k) const { return at[i * across + k * along]; }
  LW_INLINE Lines of(int half) const { return {of_half(at, half), of_half(across, half), of_half(along, half)}; }
};

// Row i of a tile of the instruction is the column of C that this says: so a lane has eight neighbours of a row of C.
LW_INLINE int turned(int i, double) { return 8 * (i % 2) + 4 * (i / 2 % 2) + i / 4; }
LW_INLINE int turned(int i, float) { return 8 * (i / 4 % 2) + 4 * (i / 8) + i % 4; }

// V <- V + A B^T for the product of each warp, 8X rows of A and 8Y of B, as pair_row and pair_column hold it. `depth` is the same for
// the whole wave and a multiple of 4. A warp that is not `active` only helps the other.
template <int X, int Y, typename R, typename A, typename B>
LW_INLINE void multiply_halves(R (&v)[X][Y][2], const A& a, const B& b, int depth, bool active = true) {
  static_assert(X % 2 == 0 && Y % 2 == 0, "tiles of 16 x 16");
  const int i = threadIdx.x % 16, deep = threadIdx.x % 64 / 16;
  R sum[2][X / 2][Y / 2][4];
#pragma unroll
  for (int half = 0; half < 2; half++) {
#pragma unroll
    for (int x = 0; x < X / 2; x++)
#pragma unroll
      for (int y = 0; y < Y / 2; y++)
#pragma unroll
        for (int e = 0; e < 4; e++) sum[half][x][y][e] = 0;
    if (!of_half(active, half)) continue;
    const A left = a.of(half);
    const B right = b.of(half);
#pragma unroll 4
    for (int k = 0; k < depth; k += 4) {
      R p[X / 2], q[Y / 2];
#pragma unroll
      for (int x = 0; x < X / 2; x++) p[x] = left(16 * x + i, k + deep);
#pragma unroll
      for (int y = 0; y < Y / 2; y++) q[y] = right(16 * y + turned(i, R()), k + deep);
#pragma unroll
      for (int x = 0; x < X / 2; x++)
#pragma unroll
        for (int y = 0; y < Y / 2; y++) multiply_tile(sum[half][x][y], q[y], p[x]);
    }
  }
  const bool second = threadIdx.x % 64 >= 32;
#pragma unroll
  for (int x = 0; x < X / 2; x++)
#pragma unroll
    for (int y = 0; y < Y / 2; y++)
#pragma unroll
      for (int e = 0; e < 4; e++) {
        const R own = second ? sum[1][x][y][e] : sum[0][x][y][e];
        const R other = of_other_half(second ? sum[0][x][y][e] : sum[1][x][y][e]);
        v[2 * x][2 * y + e / 2][e % 2] += second ? other : own;
        v[2 * x + 1][2 * y + e / 2][e % 2] += second ? own : other;
      }
}
#endif
