// Products of small matrices by the GPU's own instructions, one function for each shape. LW_MATRIX says which there are; a kernel
// that uses one has a plain path beside it.
//   16  NVIDIA, compute capability 9.0 and later: 16 x 8 x 8 of double and of float rounded to 11 bits (tf32)
//   8   NVIDIA before that: 8 x 8 x 4 of double
//   64  AMD, gfx90a and gfx942: 16 x 16 x 4 of double and of float, by all 64 lanes of a wave at once
//   0   none
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
LW_INLINE void multiply_wave(double (&c)[4], double a, double b) {
  typedef double Four __attribute__((vector_size(32)));
  Four sum = {c[0], c[1], c[2], c[3]};
  sum = __builtin_amdgcn_mfma_f64_16x16x4f64(a, b, sum, 0, 0, 0);
  c[0] = sum[0], c[1] = sum[1], c[2] = sum[2], c[3] = sum[3];
}
LW_INLINE void multiply_wave(float (&c)[4], float a, float b) {
  typedef float Four __attribute__((vector_size(16)));
  Four sum = {c[0], c[1], c[2], c[3]};
  sum = __builtin_amdgcn_mfma_f32_16x16x4f32(a, b, sum, 0, 0, 0);
  c[0] = sum[0], c[1] = sum[1], c[2] = sum[2], c[3] = sum[3];
}
#endif
