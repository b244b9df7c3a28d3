// A product with few columns: D (m x n) = act(alpha A^T B + beta C + bias), A and B with the summed index contiguous, n small.
//
// PRODUCERS warps let the copy engine bring pieces of rows into a ring of STAGES in shared memory, as far ahead as the ring goes
// (several, since each thread's start of a copy takes a turn of its own): far more bytes are on their way than registers could hold, also while the sums of a block are put together. The other
// warps multiply: GROUPS of them have rows of their own, the others share the sum. With REDUCE 3 a fixed number of blocks share
// all of the work evenly, pieces of (rows, k) laid end to end, and the block that comes last to some rows adds their parts in
// order; with 4 PARTS blocks of a cluster share one sum; with 0 a block does all of its rows. The same bits every time.
//
// Set when compiled: see common.cuh; ROWS (16 rows of D each, of one warp), GROUPS, TOKENS (8 columns each), WARPS that
// multiply, STAGES, PIECE (bytes of a row in one stage).

constexpr int PRODUCERS = 4;  // as plan.py has it
constexpr int WARP_ROWS = 16 * ROWS, ROW_COUNT = WARP_ROWS * GROUPS, SLICES = WARPS / GROUPS;
constexpr int TOKEN_COUNT = 8 * TOKENS, PITCH = ROW_COUNT + 4, CELLS = TOKEN_COUNT * PITCH, BLOCK = TOKEN_COUNT * ROW_COUNT;
constexpr int STEP = PIECE + 64;  // between rows in the ring: two rows that are read together lie in different banks
constexpr int STAGE = (ROW_COUNT + TOKEN_COUNT) * STEP, CHUNKS = PIECE / 64 / SLICES;

__device__ __forceinline__ u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

__device__ __forceinline__ void copy_piece(u32 to, const char* from, u32 barrier, unsigned long policy) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;"
               :: "r"(to), "l"(from), "n"(PIECE), "r"(barrier), "l"(policy) : "memory");
}

__device__ __forceinline__ void wait_for(u32 barrier, u32 parity) {
  asm volatile("{\n.reg .pred done;\nagain: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra again;\n}"
               :: "r"(barrier), "r"(parity) : "memory");
}

__device__ __forceinline__ void together() { asm volatile("bar.sync 1, %0;" :: "n"(32 * WARPS) : "memory"); }

extern "C" __global__ void __launch_bounds__(32 * (WARPS + PRODUCERS), 1) ring(const char* __restrict__ a, const char* __restrict__ b,
    const void* c, void* d, const void* bias, const float* scale_a, const float* scale_b, float* work, u32* locks, int m, int n, int k,
    long lda, long ldb, long ldc, long ldd, int parts, int column_tiles, float alpha, float beta) {
  extern __shared__ __align__(128) char memory[];  // STAGES x STAGE bytes, then SLICES x CELLS sums
  __shared__ __align__(8) unsigned long full[STAGES], empty[STAGES];
  __shared__ u32 ticket;
  float* cells = (float*)(memory + STAGES * STAGE);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int units = k * ELEMENT / PIECE, row_tiles = (m + ROW_COUNT - 1) / ROW_COUNT;
  const long total = (long)row_tiles * column_tiles * units;
  const long programs = gridDim.x;
  // work is numbered tile by tile; this block does begin ... end - 1
  const int part = REDUCE == 4 ? blockIdx.x % parts : 0;
  const long begin = REDUCE == 4 ? (long)(blockIdx.x / parts) * units + (long)part * units / parts : blockIdx.x * total / programs;
  const long end =
      REDUCE == 4 ? (long)(blockIdx.x / parts) * units + (long)(part + 1) * units / parts : (blockIdx.x + 1) * total / programs;
  const int count = (int)(end - begin);

  if (threadIdx.x == 0) {
    for (int s = 0; s < STAGES; ++s) {
      asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(shared_address(full + s)), "n"(PRODUCERS));
      asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(shared_address(empty + s)), "n"(WARPS));
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  if (PDL == 3) let_next_start();

  if (warp >= WARPS) {
    const int own = warp - WARPS + PRODUCERS * lane;  // its first row; the next ones are 32 PRODUCERS further
    unsigned long once, kept;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(once));
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(kept));
    auto weights = [&](int at) {
      const int stage = at % STAGES;
      const u32 to = shared_address(memory) + stage * STAGE, barrier = shared_address(full + stage);
      if (lane == 0)
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                     :: "r"(barrier), "n"((ROW_COUNT + TOKEN_COUNT) / PRODUCERS * PIECE) : "memory");
      __syncwarp();
      const int tile = (int)((begin + at) / units), piece = (int)((begin + at) % units);
      const int i0 = tile / column_tiles * ROW_COUNT;
      for (int i = own; i < ROW_COUNT; i += 32 * PRODUCERS)  // rows outside read the last one; what they give is not stored
        copy_piece(to + i * STEP, a + (long)min(i0 + i, m - 1) * lda * ELEMENT + (long)piece * PIECE, barrier, once);
    };
    auto inputs = [&](int at) {
      const int stage = at % STAGES;
      const u32 to = shared_address(memory) + stage * STAGE + ROW_COUNT * STEP, barrier = shared_address(full + stage);
      const int tile = (int)((begin + at) / units), piece = (int)((begin + at) % units);
      const int j0 = tile % column_tiles * TOKEN_COUNT;
      for (int j = own; j < TOKEN_COUNT; j += 32 * PRODUCERS)
        copy_piece(to + j * STEP, b + (long)min(j0 + j, n - 1) * ldb * ELEMENT + (long)piece * PIECE, barrier, kept);
    };
    const int ahead = PDL >= 3 ? min(STAGES, count) : 0;
    for (int at = 0; at < ahead; ++at) weights(at);
    if (PDL) wait_for_previous();
    if (PDL == 2) let_next_start();
    for (int at = 0; at < ahead; ++at) inputs(at);
    for (int at = ahead; at < count; ++at) {
      if (at >= STAGES) wait_for(shared_address(empty + at % STAGES), (at / STAGES - 1) & 1);
      weights(at);
      inputs(at);
    }
    if (PDL == 1 || PDL == 4) let_next_start();
    __syncwarp();
  } else {
    if (PDL) wait_for_previous();
    const int g = lane / 4, t = lane % 4, slice = warp / GROUPS, base = warp % GROUPS * WARP_ROWS;
    const Epilogue out{c, bias, d, scale_a, scale_b, m, n, ldc, ldd, alpha, beta};
    const char* mine = memory + (base + g) * STEP + slice * 64 + 16 * t;
    const char* theirs = memory + (ROW_COUNT + g) * STEP + slice * 64 + 16 * t;
    int at = 0;
    while (at < count) {
      const int tile = (int)((begin + at) / units), first = (int)((begin + at) % units), pieces = min(units - first, count - at);
      const int i0 = tile / column_tiles * ROW_COUNT, j0 = tile % column_tiles * TOKEN_COUNT;
      float sum[ROWS][TOKENS][4] = {};
      for (const int stop = at + pieces; at < stop; ++at) {
        const int stage = at % STAGES;
        wait_for(shared_address(full + stage), (at / STAGES) & 1);
#pragma unroll
        for (int x = 0; x < CHUNKS; ++x) {
          const int offset = stage * STAGE + x * SLICES * 64;
          uint4 left[ROWS][2];
#pragma unroll
          for (int r = 0; r < ROWS; ++r)
#pragma unroll
            for (int h = 0; h < 2; ++h) left[r][h] = *(const uint4*)(mine + offset + (16 * r + 8 * h) * STEP);
#pragma unroll
          for (int s = 0; s < TOKENS; ++s) {
            const uint4 right = *(const uint4*)(theirs + offset + 8 * s * STEP);
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
              multiply(sum[r][s], left[r][0].x, left[r][1].x, left[r][0].y, left[r][1].y, right.x, right.y);
              multiply(sum[r][s], left[r][0].z, left[r][1].z, left[r][0].w, left[r][1].w, right.z, right.w);
            }
          }
        }
        __syncwarp();
        if (lane == 0)
          asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(shared_address(empty + stage)) : "memory");
      }
      // the block's sum: over its warps, always in the same order
      float* place = cells + slice * CELLS + base;
#pragma unroll
      for (int r = 0; r < ROWS; ++r)
#pragma unroll
        for (int s = 0; s < TOKENS; ++s)
#pragma unroll
          for (int v = 0; v < 4; ++v) place[(8 * s + 2 * t + v % 2) * PITCH + 16 * r + g + v / 2 * 8] = sum[r][s][v];
      together();
      const bool whole = pieces == units;
      const long slot = 2L * blockIdx.x + (first == 0);
      for (int e = threadIdx.x; e < BLOCK; e += 32 * WARPS) {
        const int i = e % ROW_COUNT, j = e / ROW_COUNT, cell = j * PITCH + i;
        float value = 0;
#pragma unroll
        for (int w = 0; w < SLICES; ++w) value += cells[w * CELLS + cell];
        if (REDUCE == 4) cells[cell] = value;
        else if (REDUCE == 0 || whole) out.store(value, i0 + i, j0 + j);
        else __stcg(work + slot * BLOCK + e, value);
      }
      if (REDUCE == 3 && !whole) {
        __threadfence();
        together();
        if (threadIdx.x == 0) ticket = atomicAdd(locks + tile, (u32)pieces) + pieces;
        together();
        if (ticket == units) {
          __threadfence();
          const long start = (long)tile * units;
          const int q0 = (int)(((start + 1) * programs - 1) / total), q1 = (int)(((start + units) * programs - 1) / total);
          for (int e = threadIdx.x; e < BLOCK; e += 32 * WARPS) {
            float value = 0;
            for (int q = q0; q <= q1; ++q) value += __ldcg(work + (2L * q + (q * total / programs <= start)) * BLOCK + e);
            out.store(value, i0 + e % ROW_COUNT, j0 + e / ROW_COUNT);
          }
          if (threadIdx.x == 0) locks[tile] = 0;
        }
      }
      if (REDUCE != 4) together();  // the sums are read: their place is free
    }
  }

#if REDUCE == 4  // the blocks of a cluster: each finishes a share of the cells
  const int tile = blockIdx.x / parts, i0 = tile / column_tiles * ROW_COUNT, j0 = tile % column_tiles * TOKEN_COUNT;
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
  if (warp < WARPS) {
    const Epilogue out{c, bias, d, scale_a, scale_b, m, n, ldc, ldd, alpha, beta};
    for (int e = part * 32 * WARPS + threadIdx.x; e < BLOCK; e += parts * 32 * WARPS) {
      const int i = e % ROW_COUNT, j = e / ROW_COUNT;
      const u32 address = shared_address(cells + j * PITCH + i);
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
  }
  __syncwarp();
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}
