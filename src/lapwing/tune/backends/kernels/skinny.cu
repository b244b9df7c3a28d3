// A product with few columns: D (m x n) = act(alpha A^T B + beta C + bias), A and B with the summed index contiguous, n small.
//
// The weights A are read once, and by one warp only, so they go straight from memory into the registers that the tensor cores
// take them from: no shared memory, no barrier in the loop, DEPTH loads of 64 bytes a row on their way at any time. The order
// in which k is summed is free, so each thread's 16 contiguous bytes serve as two fragments. GROUPS of warps have rows of their
// own, and find B in the first-level cache; the other warps of a block share the sum; so do PARTS blocks, as one cluster
// through distributed shared memory (REDUCE 4) or through memory, where the last block adds the parts in order (REDUCE 3). The
// same bits every time.
//
// Set when compiled: INPUT 0 bf16, 1 f16, 2 e4m3; OUTPUT 0 bf16, 1 f16, 3 f32; BIAS_TYPE likewise; ROWS (16 rows of D each, of
// one warp), GROUPS, TOKENS (8 columns each), WARPS, DEPTH (even), REDUCE, EPILOGUE (bits as in tile.py); PDL as in space.py,
// with AHEAD pieces of 128 bytes a row that go to the second-level cache before the kernel in front has ended.

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

__device__ __forceinline__ void fetch(const char* p) { asm volatile("prefetch.global.L2 [%0];" :: "l"(p)); }
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

constexpr int WARP_ROWS = 16 * ROWS, ROW_COUNT = WARP_ROWS * GROUPS, SLICES = WARPS / GROUPS;
constexpr int TOKEN_COUNT = 8 * TOKENS, PITCH = ROW_COUNT + 4, CELLS = TOKEN_COUNT * PITCH;

struct Chunk {  // 64 bytes of the summed index: 16 for each of the four threads that share a row
  uint4 a[ROWS][2], b[TOKENS];
};

extern "C" __global__ void __launch_bounds__(32 * WARPS, BLOCKS) skinny(const char* __restrict__ a, const char* __restrict__ b,
    const void* c, void* d, const void* bias, const float* scale_a, const float* scale_b, float* work, u32* locks, int m, int n, int k,
    long lda, long ldb, long ldc, long ldd, int parts, int column_tiles, float alpha, float beta) {
  extern __shared__ float cells[];  // SLICES x CELLS; the first CELLS then hold the block's sum
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const int slice = warp / GROUPS, base = warp % GROUPS * WARP_ROWS;
  const int part = blockIdx.x % parts, place = blockIdx.x / parts;
  const int i0 = place / column_tiles * ROW_COUNT, j0 = place % column_tiles * TOKEN_COUNT;

  const int units = k * ELEMENT / 128;  // of 128 bytes a row, dealt to the slices in turn
  const int low = (int)((long)part * units / parts), high = (int)((long)(part + 1) * units / parts);
  const int own = high - low > slice ? (high - low - slice + SLICES - 1) / SLICES : 0, count = 2 * own;
  const char* pa = a + (long)(low + slice) * 128 + 16 * t + i0 * lda * ELEMENT;
  const char* pb = b + (long)(low + slice) * 128 + 16 * t;
  u32 row[ROWS][2], column[TOKENS];  // rows and columns outside read the last one; what they give is not stored
#pragma unroll
  for (int r = 0; r < ROWS; ++r)
#pragma unroll
    for (int h = 0; h < 2; ++h) row[r][h] = u32(min(base + 16 * r + 8 * h + g, m - 1 - i0) * lda * ELEMENT);
#pragma unroll
  for (int s = 0; s < TOKENS; ++s) column[s] = u32(min(j0 + 8 * s + g, n - 1) * ldb * ELEMENT);

  float sum[ROWS][TOKENS][4] = {};
  Chunk ring[DEPTH];
  auto load_a = [&](Chunk& x, int at) {
    const long offset = (long)(at / 2) * (128 * SLICES) + at % 2 * 64;
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
#pragma unroll
      for (int h = 0; h < 2; ++h) x.a[r][h] = load_once(pa + offset + row[r][h]);
  };
  auto load_b = [&](Chunk& x, int at) {
    const long offset = (long)(at / 2) * (128 * SLICES) + at % 2 * 64;
#pragma unroll
    for (int s = 0; s < TOKENS; ++s) x.b[s] = load_shared_input(pb + offset + column[s]);
  };
  auto load = [&](Chunk& x, int at) {
    load_a(x, at);
    load_b(x, at);
  };
  auto add = [&](const Chunk& x) {
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
#pragma unroll
      for (int s = 0; s < TOKENS; ++s) {
        multiply(sum[r][s], x.a[r][0].x, x.a[r][1].x, x.a[r][0].y, x.a[r][1].y, x.b[s].x, x.b[s].y);
        multiply(sum[r][s], x.a[r][0].z, x.a[r][1].z, x.a[r][0].w, x.a[r][1].w, x.b[s].z, x.b[s].w);
      }
  };

  constexpr bool preload = PDL >= 5;  // weights into registers, while the kernel in front runs: it must not write them
  if (PDL == 3 || PDL == 5) let_next_start();
  if (PDL == 3 || PDL == 4) {  // into the cache only: what the kernel in front may still write is read after it
    const int lines = min(high - low, AHEAD);
    for (int e = threadIdx.x; e < ROW_COUNT * lines; e += 32 * WARPS)
      fetch(a + (min(i0 + e / lines, m - 1) * lda) * ELEMENT + (long)(low + e % lines) * 128);
  }
  if (preload) {
#pragma unroll
    for (int s = 0; s < DEPTH; ++s)
      if (s < count) load_a(ring[s], s);
  }
  if (PDL) wait_for_previous();
  if (PDL == 2) let_next_start();
#pragma unroll
  for (int s = 0; s < DEPTH; ++s)
    if (s < count) {
      if (!preload) load_a(ring[s], s);
      load_b(ring[s], s);
    }
  int at = 0;
  for (; at + 2 * DEPTH <= count; at += DEPTH)
#pragma unroll
    for (int s = 0; s < DEPTH; ++s) {
      add(ring[s]);
      load(ring[s], at + s + DEPTH);
    }
  for (; at < count; at += DEPTH)
#pragma unroll
    for (int s = 0; s < DEPTH; ++s)
      if (at + s < count) {
        add(ring[s]);
        if (at + s + DEPTH < count) load(ring[s], at + s + DEPTH);
      }

  if (PDL == 1 || PDL == 4 || PDL == 6) let_next_start();
  // the block's sum: over its warps, always in the same order
  float* mine = cells + slice * CELLS + base;
#pragma unroll
  for (int r = 0; r < ROWS; ++r)
#pragma unroll
    for (int s = 0; s < TOKENS; ++s)
#pragma unroll
      for (int v = 0; v < 4; ++v) mine[(8 * s + 2 * t + v % 2) * PITCH + 16 * r + g + v / 2 * 8] = sum[r][s][v];
  __syncthreads();
  const Epilogue out{c, bias, d, scale_a, scale_b, m, n, ldc, ldd, alpha, beta};
  for (int e = threadIdx.x; e < TOKEN_COUNT * ROW_COUNT; e += 32 * WARPS) {
    const int i = e % ROW_COUNT, j = e / ROW_COUNT, cell = j * PITCH + i;
    float value = 0;
#pragma unroll
    for (int w = 0; w < SLICES; ++w) value += cells[w * CELLS + cell];
    if (REDUCE == 0) out.store(value, i0 + i, j0 + j);
    if (REDUCE == 4) cells[cell] = value;
    if (REDUCE == 3) work[((long)place * parts + part) * (TOKEN_COUNT * ROW_COUNT) + e] = value;
  }

#if REDUCE == 4  // the blocks of a cluster: each finishes a share of the cells
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
  for (int e = part * 32 * WARPS + threadIdx.x; e < TOKEN_COUNT * ROW_COUNT; e += parts * 32 * WARPS) {
    const int i = e % ROW_COUNT, j = e / ROW_COUNT;
    const u32 address = (u32)__cvta_generic_to_shared(cells + j * PITCH + i);
    float value = 0;
    for (int q = 0; q < parts; ++q) {
      u32 remote;
      float x;
      asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(q));
      asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(x) : "r"(remote) : "memory");
      value += x;
    }
    out.store(value, i0 + i, j0 + j);
  }
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
#elif REDUCE == 3  // through memory: the block that comes last adds the parts in order
  __shared__ u32 ticket;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) ticket = atomicAdd(locks + place, 1u);
  __syncthreads();
  if (ticket != parts - 1) return;
  __threadfence();
  for (int e = threadIdx.x; e < TOKEN_COUNT * ROW_COUNT; e += 32 * WARPS) {
    float value = 0;
    for (int q = 0; q < parts; ++q) value += __ldcg(work + ((long)place * parts + q) * (TOKEN_COUNT * ROW_COUNT) + e);
    out.store(value, i0 + e % ROW_COUNT, j0 + e / ROW_COUNT);
  }
  if (threadIdx.x == 0) locks[place] = 0;
#endif
}
