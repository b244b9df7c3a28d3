// What the kernels for few columns share: types, the tensor cores, and what is done to a finished sum.
//
// Set when compiled: INPUT 0 bf16, 1 f16, 2 e4m3; OUTPUT 0 bf16, 1 f16, 3 f32; BIAS_TYPE likewise; EPILOGUE (bits as in tile.py);
// REDUCE (as in plan.py). PDL: 0; or the kernel behind may be placed when the reads of this one are done (1) or begin (2). With 3
// and 4 the kernel also reads weights before the kernel in front has ended, so nothing in front may write them; the kernel behind
// may be placed at once (3) or when the reads are done (4).

typedef unsigned int u32;
typedef unsigned short u16;

constexpr int ELEMENT = INPUT == 2 ? 1 : 2;

__device__ __forceinline__ float widen(u16 bits, int type) {
  float value;
  if (type == 0) return __uint_as_float(u32(bits) << 16);
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}

__device__ __forceinline__ u16 narrow(float value, int type) {
  u16 bits;
  if (type == 0) asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  else asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}

__device__ __forceinline__ float read(const void* p, long i, int type) {
  return type == 3 ? ((const float*)p)[i] : widen(((const u16*)p)[i], type);
}

// A kernel that starts before the one in front has ended may not use the cache for constants: what it reads was not constant
#if PDL
#define LOAD "ld.global"
#else
#define LOAD "ld.global.nc"
#endif

__device__ __forceinline__ uint4 load_once(const char* p) {
  uint4 v;
  asm volatile(LOAD ".L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
  return v;
}

__device__ __forceinline__ uint4 load_shared_input(const char* p) {
  uint4 v;
  asm volatile(LOAD ".v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
  return v;
}

__device__ __forceinline__ void wait_for_previous() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
__device__ __forceinline__ void let_next_start() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

__device__ __forceinline__ void multiply(float (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
#if INPUT == 0
#define SHAPE "m16n8k16.row.col.f32.bf16.bf16.f32"
#elif INPUT == 1
#define SHAPE "m16n8k16.row.col.f32.f16.f16.f32"
#else
#define SHAPE "m16n8k32.row.col.f32.e4m3.e4m3.f32"
#endif
  asm("mma.sync.aligned." SHAPE " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

struct Epilogue {
  const void *c, *bias;
  void* d;
  const float *scale_a, *scale_b;
  int m, n;
  long ldc, ldd;
  float alpha, beta;

  __device__ __forceinline__ void store(float value, int i, int j) const {
    if (i >= m || j >= n) return;
    if (EPILOGUE / 16 % 4) value *= scale_a[EPILOGUE / 16 % 4 == 2 ? i : 0];
    if (EPILOGUE / 64 % 4) value *= scale_b[EPILOGUE / 64 % 4 == 2 ? j : 0];
    value *= alpha;
    if (EPILOGUE % 2) value += beta * read(c, i + j * ldc, OUTPUT);
    if (EPILOGUE / 2 % 2) value += read(bias, i, BIAS_TYPE);
    const int act = EPILOGUE / 4 % 4;
    if (act == 1) value = value > 0 ? value : value == value ? 0.f : value;
    if (act == 2) value *= 1.f - 1.f / (__expf(2.f * 0.7978845608028654f * (value + 0.044715f * value * value * value)) + 1.f);
    if (act == 3) value /= 1.f + __expf(-value);
    if (OUTPUT == 3) ((float*)d)[i + j * ldd] = value;
    else ((u16*)d)[i + j * ldd] = narrow(value, OUTPUT);
  }
};
