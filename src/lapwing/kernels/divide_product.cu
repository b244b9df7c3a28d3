// The eigenvectors of the pairs (divide.cuh): U^T times those of the parts, with rows gathered and scattered, and copies of the
// deflated ones.
//   LW_THREADS  threads of a block
//   LW_TILE     rows and columns of the product that a block computes
#include "divide.cuh"

constexpr int SIDE = LW_TILE, DEPTH = 64 / SIZE, STAGES = 3;
constexpr int ACROSS = 16, DOWN = LW_THREADS / ACROSS;            // threads along the columns and the rows of a tile
constexpr int ROWS = SIDE / DOWN / VEC, COLUMNS = SIDE / ACROSS / VEC;  // groups of VEC rows and columns of a thread
constexpr int STAGE = 2 * DEPTH * SIDE;                           // elements of a stage: a piece of u, and of the rows

// DEPTH rows of u and of the parts' eigenvectors, from place p on, into shared memory.
struct Source {
  const Real *u, *from;
  const int* rows;  // of the parts' eigenvectors, in shared memory
  i64 pitch, n;
  int end, i_end, c_end;  // what is there: places, and rows and columns of the tile

  LW_INLINE void load(Real* stage, int p0) const {
#pragma unroll
    for (int v = threadIdx.x; v < DEPTH * SIDE / VEC; v += LW_THREADS) {
      const int p = v / (SIDE / VEC), i = v % (SIDE / VEC) * VEC;
      const bool inside = p0 + p < end && i < i_end;
      copy_async<16>(stage + p * SIDE + i, inside ? u + (p0 + p) * pitch + i : u, inside);
    }
    constexpr int WIDTH = LW_V > SIZE ? LW_V : SIZE, STEP = WIDTH / SIZE;
#pragma unroll
    for (int v = threadIdx.x; v < DEPTH * SIDE / STEP; v += LW_THREADS) {
      const int p = v / (SIDE / STEP), c = v % (SIDE / STEP) * STEP;
      const bool inside = p0 + p < end && c < c_end;
      copy_async<WIDTH>(stage + (DEPTH + p) * SIDE + c, inside ? from + rows[p0 + p] * n + c : from, inside);
    }
  }
};

struct Product {
  Real v[ROWS * VEC][COLUMNS * VEC];

  LW_INLINE void clear() {
#pragma unroll
    for (int x = 0; x < ROWS * VEC; x++)
#pragma unroll
      for (int y = 0; y < COLUMNS * VEC; y++) v[x][y] = 0;
  }

  LW_INLINE void add(const Real* stage, int across, int down) {
#pragma unroll
    for (int p = 0; p < DEPTH; p++) {
      const Real *left = stage + p * SIDE, *right = left + DEPTH * SIDE;
      Real a[ROWS * VEC], b[COLUMNS * VEC];
#pragma unroll
      for (int g = 0; g < ROWS; g++) {
        const Vector x = *(const Vector*)(left + (g * DOWN + down) * VEC);
#pragma unroll
        for (int e = 0; e < VEC; e++) a[g * VEC + e] = x.v[e];
      }
#pragma unroll
      for (int g = 0; g < COLUMNS; g++) {
        const Vector x = *(const Vector*)(right + (g * ACROSS + across) * VEC);
#pragma unroll
        for (int e = 0; e < VEC; e++) b[g * VEC + e] = x.v[e];
      }
#pragma unroll
      for (int x = 0; x < ROWS * VEC; x++)
#pragma unroll
        for (int y = 0; y < COLUMNS * VEC; y++) v[x][y] = fma(a[x], b[y], v[x][y]);
    }
  }
};

// `row_tiles` x 2 `half_tiles` blocks for each pair.
extern "C" __global__ void __launch_bounds__(LW_THREADS) divide_product(Divide at, int row_tiles, int half_tiles) {
  Real* stages = (Real*)memory;
  int* rows = (int*)(stages + STAGES * STAGE);
  const int across = threadIdx.x % ACROSS, down = threadIdx.x / ACROSS, tiles = row_tiles * 2 * half_tiles;
  for (i64 index = blockIdx.x; index < at.batch * at.pairs * tiles; index += gridDim.x) {
    const Pair pair = Pair::of(at, index / tiles, true);
    const int tile = (int)(index % tiles), i0 = tile / (2 * half_tiles) * SIDE, right = tile / half_tiles % 2;
    const int c0 = (right ? pair.middle : pair.begin) + tile % half_tiles * SIDE, c_end = right ? pair.end : pair.middle;
    if (i0 >= pair.size() || c0 >= c_end) continue;
    const int first = right ? pair.left : 0, depth = (right ? pair.k : pair.not_right) - first, steps = (depth + DEPTH - 1) / DEPTH;
    const bool failed = at.w && at.info[pair.matrix];
    Real* to = at.to + pair.row(0);
    const int* rank = at.rank + pair.first;
    if (i0 < pair.k) {
      for (int p = threadIdx.x; p < depth; p += LW_THREADS) rows[p] = at.row[pair.first + first + p];
      __syncthreads();
      const Source source{at.u + (pair.matrix * at.n + pair.begin + first) * at.pitch + pair.begin + i0, at.from + pair.row(0) + c0,
                          rows, at.pitch, at.n, depth, pair.k - i0, c_end - c0};
      Product product;
      product.clear();
#pragma unroll
      for (int s = 0; s < STAGES - 1; s++) {
        if (s < steps) source.load(stages + s * STAGE, s * DEPTH);
        commit_copies();
      }
      for (int s = 0; s < steps; s++) {
        wait_copies<STAGES - 2>();
        __syncthreads();
        const int next = s + STAGES - 1;
        if (next < steps) source.load(stages + next % STAGES * STAGE, next * DEPTH);
        commit_copies();
        product.add(stages + s % STAGES * STAGE, across, down);
      }
#pragma unroll
      for (int x = 0; x < ROWS * VEC; x++) {
        const int i = i0 + (x / VEC * DOWN + down) * VEC + x % VEC;
        if (i < pair.k) {
          Real* line = to + (i64)rank[i] * at.n;
#pragma unroll
          for (int g = 0; g < COLUMNS; g++) {
            const int c = c0 + (g * ACROSS + across) * VEC;
            Vector p;
#pragma unroll
            for (int e = 0; e < VEC; e++) p.v[e] = failed ? not_a_number() : product.v[x][g * VEC + e];
            if (LW_V == 16) {
              if (c < c_end) *(Vector*)(line + c) = p;
            } else {
#pragma unroll
              for (int e = 0; e < VEC; e++)
                if (c + e < c_end) line[c + e] = p.v[e];
            }
          }
        }
      }
      wait_copies<0>();
      __syncthreads();
    }
    // deflated eigenvectors; they have no entries in a half that they do not come from
    const int i_end = min(i0 + SIDE, pair.size());
    for (int i = max(i0, pair.k) + threadIdx.x / 32; i < i_end; i += LW_THREADS / 32) {
      const int code = at.row[pair.first + i];
      const Real* line = at.from + pair.row(code & ROW);
      Real* out = to + (i64)rank[i] * at.n;
      for (int c = c0 + threadIdx.x % 32; c < min(c0 + SIDE, c_end); c += 32)
        out[c] = failed ? not_a_number() : code & (right ? RIGHT : LEFT) ? line[c] : Real(0);
    }
  }
}
