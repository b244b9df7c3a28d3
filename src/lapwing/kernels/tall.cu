// The passes over a tall matrix of real numbers, row-major: X <- (A + noise) F^-1 and G <- X^T X. See native/methods/tall_pass.h.
// LW_DTYPE is 0 or 1, LW_WIDTH (32 or 64) the columns a block takes at a time. G is in double precision for either.
#include "common.cuh"

constexpr int W = LW_WIDTH;
constexpr int THREADS = 128, WARPS = THREADS / 32;
constexpr int ROWS = THREADS;                       // of a panel: a thread solves for one
constexpr int LD = W + 32 / (int)sizeof(Real);      // the four lines that a matrix instruction reads lie in different banks
constexpr int DEPTH = 32, STAGES = 3;               // rows on their way to the product of a panel with itself
constexpr int SOLVED = 32;                          // columns that are solved in registers
constexpr int ACCESS = LW_V / (int)sizeof(Real);
typedef Pack<Real, ACCESS> Part;

#if LW_MATRIX == 64
// Columns of a panel in double precision, each times its scale
struct Scaled {
  Lines<Real> lines;
  const double* scale;

  LW_INLINE double operator()(int i, int k) const { return scale ? lines(i, k) * scale[i] : lines(i, k); }
  LW_INLINE Scaled of(int half) const { return {lines.of(half), scale ? of_half(scale, half) : 0}; }
};
#endif

// A warp's piece of G, 32 x 32, as pair_row and pair_column say. With 32 columns in all each warp has the whole of it
// for some of the rows, with 64 a quarter for all of them; the quarter below the diagonal is left out.
struct Gram {
  static constexpr bool BY_WAVES = LW_MATRIX == 64;
  double v[4][4][2];

  LW_INLINE void clear() {
#pragma unroll
    for (int x = 0; x < 4; x++)
#pragma unroll
      for (int y = 0; y < 4; y++) v[x][y][0] = v[x][y][1] = 0;
  }

  LW_INLINE static int top() { return W == 32 ? 0 : threadIdx.x / 64 * 32; }
  LW_INLINE static int left() { return W == 32 ? 0 : threadIdx.x / 32 % 2 * 32; }

  // V <- V + the product of columns from rows [first, first + count) of two panels, for warps that are `used`
  LW_INLINE void add(bool used, const Real* a, const Real* b, int first, int count, const double* a_scale, const double* b_scale) {
#if LW_MATRIX == 64
    const Scaled left = {{a + first * LD + top(), 1, LD}, a_scale ? a_scale + top() : 0};
    const Scaled right = {{b + first * LD + this->left(), 1, LD}, a_scale ? b_scale + this->left() : 0};
    multiply_halves(v, left, right, count, used);
#else
    if (!used) return;
    int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#if LW_MATRIX == 16 || LW_MATRIX == 8
    a += top() + g;
    b += left() + g;
#pragma unroll 2
    for (int k = first; k < first + count; k += 8) {
      double p[4][2], q[4][2];
#pragma unroll
      for (int x = 0; x < 4; x++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
          p[x][e] = a[(k + 4 * e + t) * LD + 8 * x];
          q[x][e] = b[(k + 4 * e + t) * LD + 8 * x];
        }
      if (a_scale)
#pragma unroll
        for (int x = 0; x < 4; x++)
#pragma unroll
          for (int e = 0; e < 2; e++) p[x][e] *= a_scale[top() + g + 8 * x], q[x][e] *= b_scale[left() + g + 8 * x];
#pragma unroll
      for (int y = 0; y < 4; y++) {
#if LW_MATRIX == 16
#pragma unroll
        for (int x = 0; x < 4; x += 2)
          multiply_tile(v[x][y][0], v[x][y][1], v[x + 1][y][0], v[x + 1][y][1], p[x][0], p[x + 1][0], p[x][1], p[x + 1][1], q[y][0],
                        q[y][1]);
#else
#pragma unroll
        for (int e = 0; e < 2; e++)
#pragma unroll
          for (int x = 0; x < 4; x++)
            multiply_tile(v[x][y][0], v[x][y][1], p[x][e], q[y][e]);
#endif
      }
    }
#else
    double p_scale[4], q_scale[4][2];
#pragma unroll
    for (int x = 0; x < 4; x++) {
      p_scale[x] = a_scale ? a_scale[top() + g + 8 * x] : 1;
#pragma unroll
      for (int e = 0; e < 2; e++) q_scale[x][e] = a_scale ? b_scale[left() + 8 * x + 2 * t + e] : 1;
    }
    for (int k = first; k < first + count; k++) {
      double p[4], q[4][2];
#pragma unroll
      for (int x = 0; x < 4; x++) {
        p[x] = a[k * LD + top() + g + 8 * x] * p_scale[x];
#pragma unroll
        for (int e = 0; e < 2; e++) q[x][e] = b[k * LD + left() + 8 * x + 2 * t + e] * q_scale[x][e];
      }
#pragma unroll
      for (int x = 0; x < 4; x++)
#pragma unroll
        for (int y = 0; y < 4; y++)
#pragma unroll
          for (int e = 0; e < 2; e++) v[x][y][e] = fma(p[x], q[y][e], v[x][y][e]);
    }
#endif
#endif
  }

  // to: W x W
  LW_INLINE void write(double* to) {
#pragma unroll
    for (int x = 0; x < 4; x++)
#pragma unroll
      for (int y = 0; y < 4; y++)
#pragma unroll
        for (int e = 0; e < 2; e++)
          to[(top() + pair_row<BY_WAVES>(x)) * W + left() + pair_column<BY_WAVES>(x, y) + e] = v[x][y][e];
  }
};

// Sums are one for each block, or for each warp where a warp has all of G.
constexpr int SUMS = W == 32 ? WARPS : 1;
LW_INLINE double* sum_of(double* parts, i64 block, i64 pairs, i64 pair) {
  i64 slot = SUMS == 1 ? block : block * WARPS + threadIdx.x / 32;
  return parts + (slot * pairs + pair) * W * W;
}

// parts <- X^T X for the tile pair blockIdx.y of W columns each, over the rows of this block
extern "C" __global__ void __launch_bounds__(THREADS)
    gram_tiles(const Real* x, i64 rows, i64 columns, i64 block_rows, const double* scale, double* parts) {
  extern __shared__ __align__(16) char room[];
  Real* s = (Real*)room;
  int right = 0;
  while ((right + 1) * (right + 2) / 2 <= (int)blockIdx.y) right++;
  const int left = blockIdx.y - right * (right + 1) / 2, tiles = left == right ? 1 : 2;
  const i64 first = blockIdx.x * block_rows, last = min(rows, first + block_rows);
  const int steps = first < last ? (int)((last - first + DEPTH - 1) / DEPTH) : 0;
  // the scales of both tiles, if any, lie behind the stages
  double* scales = (double*)(room + sizeof(Real) * STAGES * tiles * DEPTH * LD);
  if (scale)
    for (int j = threadIdx.x; j < tiles * W; j += THREADS) {
      i64 column = (j < W ? left : right) * W + j % W;
      scales[j] = column < columns ? scale[column] : 0;
    }
  auto fetch = [&](int step) {
    if (step < steps) {
      Real* to = s + step % STAGES * tiles * DEPTH * LD;
      constexpr int LINE = W / ACCESS;
#pragma unroll 4
      for (int e = threadIdx.x; e < tiles * DEPTH * LINE; e += THREADS) {
        int tile = e / (DEPTH * LINE), r = e / LINE % DEPTH, c = e % LINE * ACCESS;
        i64 row = first + step * DEPTH + r, column = (tile ? right : left) * W + c;
        bool inside = row < last && column < columns;
        copy_async<LW_V>(to + (tile * DEPTH + r) * LD + c, inside ? x + row * columns + column : x, inside);
      }
    }
    commit_copies();
  };
  Gram gram;
  gram.clear();
  for (int step = 0; step < STAGES - 1; step++) fetch(step);
  const int warp = threadIdx.x / 32;
  const bool used = tiles == 2 || W == 32 || warp != 2;
  for (int step = 0; step < steps; step++) {
    wait_copies<STAGES - 2>();
    __syncthreads();
    fetch(step + STAGES - 1);
    const Real* panel = s + step % STAGES * tiles * DEPTH * LD;
    const Real* other = panel + (tiles - 1) * DEPTH * LD;
    gram.add(used, panel, other, W == 32 ? warp * 8 : 0, W == 32 ? 8 : DEPTH, scale ? scales : 0, scales + (tiles - 1) * W);
  }
  gram.write(sum_of(parts, blockIdx.x, gridDim.y, blockIdx.y));
}

// G, the upper triangle of columns x columns <- the sum of its parts, always in the same order: 32 elements for a block
extern "C" __global__ void __launch_bounds__(256) sum_parts(const double* parts, i64 blocks, i64 columns, double* gram) {
  __shared__ double sums[8][32];
  const i64 i = blockIdx.y, j = (i64)blockIdx.x * 32 + threadIdx.x % 32, left = i / W, right = j / W;
  const i64 tiles = (columns + W - 1) / W, pairs = tiles * (tiles + 1) / 2;
  const bool inside = j < columns && j / 32 >= i / 32;
  double sum = 0;
  if (inside) {
    const double* from = parts + (right * (right + 1) / 2 + left) * W * W + i % W * W + j % W;
#pragma unroll 8
    for (i64 slot = threadIdx.x / 32; slot < blocks * SUMS; slot += 8) sum += from[slot * pairs * W * W];
  }
  sums[threadIdx.x / 32][threadIdx.x % 32] = sum;
  __syncthreads();
  if (threadIdx.x < 32 && inside && j >= i) {
    for (int k = 1; k < 8; k++) sum += sums[k][threadIdx.x];
    gram[i * columns + j] = sum;
  }
}

// The signs of tall_signs in native/cpu/tall.cc.
LW_INLINE u64 signs(i64 row, i64 column) {
  u64 z = ((u64)row << 16) + (u64)(column / 64) + 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

// Columns [first, first + width) of X <- (A + more + noise) F^-1 with that diagonal block of F, whose diagonal is inverted, a
// panel of rows after the other, and with parts their X^T X.
extern "C" __global__ void __launch_bounds__(THREADS, 2)
    solve_panels(const Real* from, const Real* more, Real* to, i64 rows, i64 columns, i64 first, int width, const Real* factor,
                 const Real* noise, double* parts) {
  extern __shared__ __align__(16) char room[];
  Real* s = (Real*)room;     // a panel
  Real* f = s + ROWS * LD;   // F(k, j) at [k*W + j], zeros beyond
  for (int e = threadIdx.x; e < W * W; e += THREADS) {
    int k = e / W, j = e % W;
    f[e] = k <= j && j < width ? factor[(first + k) * columns + first + j] : Real(0);
  }
  Real* size = f + W * W;  // of the noise
  if (noise)
    for (int j = threadIdx.x; j < W; j += THREADS) size[j] = j < width ? noise[first + j] : Real(0);
  Gram gram;
  gram.clear();
  const int warp = threadIdx.x / 32;
  constexpr int LINE = W / ACCESS;
  for (i64 start = (i64)blockIdx.x * ROWS; start < rows; start += (i64)gridDim.x * ROWS) {
    __syncthreads();
#pragma unroll 8
    for (int e = threadIdx.x; e < ROWS * LINE; e += THREADS) {
      int r = e / LINE, c = e % LINE * ACCESS;
      i64 row = start + r, at = row * columns + first + c;
      bool inside = row < rows && c < width;
      copy_async<LW_V>(s + r * LD + c, inside ? from + at : from, inside);
    }
    finish_copies();
    if (more)  // each thread to what it fetched
#pragma unroll 8
      for (int e = threadIdx.x; e < ROWS * LINE; e += THREADS) {
        int r = e / LINE, c = e % LINE * ACCESS;
        i64 row = start + r;
        if (row >= rows || c >= width) continue;
        Part add = *(const Part*)(more + row * columns + first + c);
#pragma unroll
        for (int k = 0; k < ACCESS; k++) s[r * LD + c + k] += add.v[k];
      }
    __syncthreads();
    // a row for a thread, SOLVED columns at a time
    Real* mine = s + threadIdx.x * LD;
    const bool noisy = noise && start + threadIdx.x < rows;
    const u64 sign = noisy ? signs(start + threadIdx.x, first) : 0;  // blocks of columns do not cross a multiple of 64
    typedef Pack<Real, 16 / sizeof(Real)> Four;
    constexpr int STEP = 16 / sizeof(Real);
#pragma unroll 1
    for (int j0 = 0; j0 < W; j0 += SOLVED) {
      Real v[SOLVED];
#pragma unroll
      for (int j = 0; j < SOLVED; j += STEP) {
        Four p = *(const Four*)(mine + j0 + j);
#pragma unroll
        for (int e = 0; e < STEP; e++) v[j + e] = p.v[e];
      }
      if (noisy)
#pragma unroll
        for (int j = 0; j < SOLVED; j++) v[j] += sign >> (j0 + j) & 1 ? size[j0 + j] : -size[j0 + j];
#pragma unroll 2
      for (int k = 0; k < j0; k++) {
        Real x = mine[k];
#pragma unroll
        for (int j = 0; j < SOLVED; j += STEP) {
          Four p = *(const Four*)(f + k * W + j0 + j);
#pragma unroll
          for (int e = 0; e < STEP; e++) v[j + e] -= x * p.v[e];
        }
      }
#pragma unroll
      for (int k = 0; k < SOLVED; k++) {
        const Real* line = f + (j0 + k) * W + j0;
        v[k] *= line[k];
#pragma unroll
        for (int j = k / STEP * STEP; j < SOLVED; j += STEP) {
          Four p = *(const Four*)(line + j);
#pragma unroll
          for (int e = 0; e < STEP; e++)
            if (j + e > k) v[j + e] -= v[k] * p.v[e];
        }
      }
#pragma unroll
      for (int j = 0; j < SOLVED; j += STEP) {
        Four p;
#pragma unroll
        for (int e = 0; e < STEP; e++) p.v[e] = v[j + e];
        *(Four*)(mine + j0 + j) = p;
      }
    }
    __syncthreads();
#pragma unroll 4
    for (int e = threadIdx.x; e < ROWS * LINE; e += THREADS) {
      int r = e / LINE, c = e % LINE * ACCESS;
      i64 row = start + r;
      if (to && row < rows && c < width) *(Part*)(to + row * columns + first + c) = *(const Part*)(s + r * LD + c);
    }
    if (parts) gram.add(W == 32 || warp != 2, s, s, W == 32 ? warp * 32 : 0, W == 32 ? 32 : ROWS, 0, 0);
  }
  if (parts) gram.write(sum_of(parts, blockIdx.x, 1, 0));
}

// The largest |element| of each column as the bits of a double, which order like it, with Inf and NaN on top. out begins as
// zeros.
extern "C" __global__ void __launch_bounds__(THREADS) largest_of_columns(const Real* x, i64 rows, i64 columns, u64* out) {
  for (i64 j = threadIdx.x; j < columns; j += THREADS) {
    u64 most = 0;
    for (i64 i = blockIdx.x; i < rows; i += gridDim.x) {
      u64 bits = (u64)__double_as_longlong((double)x[i * columns + j]) & 0x7fffffffffffffffull;
      most = bits > most ? bits : most;
    }
    atomicMax(out + j, most);
  }
}
