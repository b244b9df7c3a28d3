// The eigenvectors of the pairs that are not deflated (divide.cuh): U^T times those of the parts, with rows gathered and
// scattered.
//   LW_THREADS  threads of a block
//   LW_TILE     rows and columns of the product that a block computes
//   LW_RESIDENT blocks on a multiprocessor, at least
#include "divide.cuh"

constexpr int SIDE = LW_TILE, DEPTH = 16, STAGES = 3;
constexpr int PITCH = SIDE + (SIZE == 8 ? 4 : 8);  // of rows in shared memory: no bank conflicts in the matrix instructions
constexpr int STAGE = 2 * DEPTH * PITCH;           // elements of a stage: a piece of u, and of the rows

// DEPTH rows of u and of the parts' eigenvectors, from place p on, into shared memory.
struct Source {
  const Real *u, *from;
  const int* rows;  // of the parts' eigenvectors, in shared memory
  int pitch, n;
  int end, i_end, c_end;  // what is there: places, and rows and columns of the tile

  LW_INLINE void load(Real* stage, int p0) const {
    copy<16>(stage, p0, i_end, [&](int p) { return u + (unsigned)(p * pitch); });
    copy<(LW_V > SIZE ? LW_V : SIZE)>(stage + DEPTH * PITCH, p0, c_end, [&](int p) { return from + (unsigned)(rows[p] * n); });
  }

  // Lines p0 to p0 + DEPTH - 1, in accesses of WIDTH bytes. Each thread keeps to its columns.
  template <int WIDTH, typename F>
  LW_INLINE void copy(Real* stage, int p0, int columns, F line) const {
    constexpr int STEP = WIDTH / SIZE, THREADS = SIDE / STEP < LW_THREADS ? SIDE / STEP : LW_THREADS, LINES = LW_THREADS / THREADS;
    const int first = threadIdx.x / THREADS;
#pragma unroll
    for (int p = 0; p < DEPTH; p += LINES)
#pragma unroll
      for (int c = 0; c < SIDE; c += THREADS * STEP) {
        const int column = c + threadIdx.x % THREADS * STEP;
        const bool inside = p0 + p + first < end && column < columns;
        copy_async<WIDTH>(stage + (p + first) * PITCH + column, inside ? line(p0 + p + first) + column : u, inside);
      }
  }
};

#if LW_DTYPE == 1 || LW_MATRIX == 16 || LW_MATRIX == 64
// Each warp computes a piece of 8X x 8Y, in the layout of the matrix instructions: see pair_row.
struct Product {
  static constexpr int WARPS = LW_THREADS / 32, ACROSS = SIDE / 32, DOWN = WARPS / ACROSS, X = SIDE / DOWN / 8, Y = 4;
  Real v[X][Y][2];

  LW_INLINE void clear() {
#pragma unroll
    for (int x = 0; x < X; x++)
#pragma unroll
      for (int y = 0; y < Y; y++) v[x][y][0] = v[x][y][1] = 0;
  }

  LW_INLINE static int row0() { return threadIdx.x / 32 / ACROSS * 8 * X; }
  LW_INLINE static int column0() { return threadIdx.x / 32 % ACROSS * 8 * Y; }

  LW_INLINE void add(const Real* stage) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const Real *left = stage + row0(), *right = stage + DEPTH * PITCH + column0();
#if LW_MATRIX == 64
    multiply_halves(v, Lines<Real>{left, 1, PITCH}, Lines<Real>{right, 1, PITCH}, DEPTH);
#else
#pragma unroll(SIZE == 8 ? 2 : 1)
    for (int k = 0; k < DEPTH; k += 8) {
#if LW_MATRIX == 16
      Real a[X][2], b[Y][2];
#pragma unroll
      for (int e = 0; e < 2; e++) {
#pragma unroll
        for (int x = 0; x < X; x++) a[x][e] = left[(k + 4 * e + t) * PITCH + g + 8 * x];
#pragma unroll
        for (int y = 0; y < Y; y++) b[y][e] = right[(k + 4 * e + t) * PITCH + g + 8 * y];
      }
      multiply_add(a, b);
#else
      for (int p = k; p < k + 8; p++)
#pragma unroll
        for (int x = 0; x < X; x++)
#pragma unroll
          for (int y = 0; y < Y; y++)
#pragma unroll
            for (int e = 0; e < 2; e++)
              v[x][y][e] = fma(left[p * PITCH + g + 8 * x], right[p * PITCH + 8 * y + 2 * t + e], v[x][y][e]);
#endif
    }
#endif
  }

#if LW_MATRIX == 16 && LW_DTYPE == 1
  LW_INLINE void multiply_add(const Real (&a)[X][2], const Real (&b)[Y][2]) {
#pragma unroll
    for (int x = 0; x < X; x += 2)
#pragma unroll
      for (int y = 0; y < Y; y++)
        multiply_tile(v[x][y][0], v[x][y][1], v[x + 1][y][0], v[x + 1][y][1], a[x][0], a[x + 1][0], a[x][1], a[x + 1][1], b[y][0],
                      b[y][1]);
  }
#elif LW_MATRIX == 16
  LW_INLINE void multiply_add(const Real (&a)[X][2], const Real (&b)[Y][2]) { multiply_in_parts(v, a, b); }
#endif

  // f(row of the tile, column, two neighbours)
  template <typename F>
  LW_INLINE void each(F f) const {
    constexpr bool BY_WAVES = LW_MATRIX == 64;
#pragma unroll
    for (int x = 0; x < X; x++)
#pragma unroll
      for (int y = 0; y < Y; y++) f(row0() + pair_row<BY_WAVES>(x), column0() + pair_column<BY_WAVES>(x, y), v[x][y]);
  }
  static constexpr int TOGETHER = 2;
};
#else
// Each thread computes X groups of 4 rows times Y groups of 4 columns.
struct Product {
  static constexpr int ACROSS = 16, DOWN = LW_THREADS / ACROSS, X = SIDE / DOWN / VEC, Y = SIDE / ACROSS / VEC;
  Real v[X * VEC][Y * VEC];

  LW_INLINE void clear() {
#pragma unroll
    for (int x = 0; x < X * VEC; x++)
#pragma unroll
      for (int y = 0; y < Y * VEC; y++) v[x][y] = 0;
  }

  LW_INLINE static int row_of(int x) { return (x * DOWN + threadIdx.x / ACROSS) * VEC; }
  LW_INLINE static int column_of(int y) { return (y * ACROSS + threadIdx.x % ACROSS) * VEC; }

  LW_INLINE void add(const Real* stage) {
#pragma unroll
    for (int p = 0; p < DEPTH; p++) {
      Real a[X * VEC], b[Y * VEC];
#pragma unroll
      for (int x = 0; x < X; x++) {
        const Vector four = *(const Vector*)(stage + p * PITCH + row_of(x));
#pragma unroll
        for (int e = 0; e < VEC; e++) a[x * VEC + e] = four.v[e];
      }
#pragma unroll
      for (int y = 0; y < Y; y++) {
        const Vector four = *(const Vector*)(stage + (DEPTH + p) * PITCH + column_of(y));
#pragma unroll
        for (int e = 0; e < VEC; e++) b[y * VEC + e] = four.v[e];
      }
#pragma unroll
      for (int x = 0; x < X * VEC; x++)
#pragma unroll
        for (int y = 0; y < Y * VEC; y++) v[x][y] = fma(a[x], b[y], v[x][y]);
    }
  }

  // f(row of the tile, column, four neighbours)
  template <typename F>
  LW_INLINE void each(F f) const {
#pragma unroll
    for (int x = 0; x < X * VEC; x++)
#pragma unroll
      for (int y = 0; y < Y; y++) f(row_of(x / VEC) + x % VEC, column_of(y), v[x] + y * VEC);
  }
  static constexpr int TOGETHER = VEC;
};
#endif

// `row_tiles` x 2 `half_tiles` blocks for each pair.
extern "C" __global__ void __launch_bounds__(LW_THREADS, LW_RESIDENT) divide_product(Divide at, int row_tiles, int half_tiles) {
  Real* stages = (Real*)memory;
  Real* factors = stages + STAGES * STAGE;
  int* rows = (int*)(factors + SIDE);
  const int tiles = row_tiles * 2 * half_tiles;
  for (i64 index = blockIdx.x; index < at.batch * at.pairs * tiles; index += gridDim.x) {
    const Pair pair = Pair::of(at, index / tiles, true);
    const int tile = (int)(index % tiles), i0 = tile / (2 * half_tiles) * SIDE, right = tile / half_tiles % 2;
    const int c0 = (right ? pair.middle : pair.begin) + tile % half_tiles * SIDE, c_end = right ? pair.end : pair.middle;
    if (i0 >= pair.k || c0 >= c_end) continue;
    const int first = right ? pair.left : 0, depth = (right ? pair.k : pair.not_right) - first, steps = (depth + DEPTH - 1) / DEPTH;
    const bool failed = at.w && at.info[pair.matrix];
    Real* to = at.to + pair.row(0);
    const int* rank = at.rank + pair.first;
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
      product.add(stages + s % STAGES * STAGE);
    }
    for (int i = threadIdx.x; i < min(SIDE, pair.k - i0); i += LW_THREADS) {
      double squares = 0;
      for (int part = 0; part < at.parts; part++) squares += at.squares[part * at.batch * at.n + pair.first + i0 + i];
      factors[i] = failed ? not_a_number() : (Real)(1 / sqrt(squares));
    }
    __syncthreads();
    product.each([&](int row, int column, const Real* x) {
      const int i = i0 + row, c = c0 + column;
      if (i >= pair.k || c >= c_end) return;
      const Real factor = factors[row];
      Real* line = to + (i64)rank[i] * at.n + c;
      typedef Pack<Real, Product::TOGETHER> Group;
      Group p;
#pragma unroll
      for (int e = 0; e < Product::TOGETHER; e++) p.v[e] = factor * x[e];
      if (LW_V >= (int)sizeof(Group)) {
        *(Group*)line = p;
      } else {
#pragma unroll
        for (int e = 0; e < Product::TOGETHER; e++)
          if (c + e < c_end) line[e] = p.v[e];
      }
    });
    wait_copies<0>();
    __syncthreads();
  }
}
