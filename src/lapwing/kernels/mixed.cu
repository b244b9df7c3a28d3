// What a mixed-precision solve of a positive definite system needs on the GPU beside cuBLAS: the scaled copy in low precision,
// the product with a matrix of which one triangle is stored, narrow triangular solves, and work on columns of length n.
// T is double or complex of double, Low the same in single precision. Every sum has an order of its own: same bits each time.
#include "common.cuh"

constexpr int THREADS = 256;
constexpr int WARPS = THREADS / 32;
constexpr int EDGE = 32;  // of the square tiles that are copied
constexpr int LINES = THREADS / EDGE;

#if LW_DTYPE < 2
typedef float Low;
LW_INLINE double size_of(T x) { return fabs(x); }
LW_INLINE Low lowered(T x) { return (float)x; }
LW_INLINE T raised(Low x) { return (double)x; }
LW_INLINE Low conjugate(Low x) { return x; }
LW_INLINE Low low_of(float x) { return x; }
#else
typedef Complex<float> Low;
LW_INLINE double size_of(T x) { return fmax(fabs(x.re), fabs(x.im)) + 0 * (x.re + x.im); }  // NaN stays
LW_INLINE Low lowered(T x) { return Low{(float)x.re, (float)x.im}; }
LW_INLINE T raised(Low x) { return T{(double)x.re, (double)x.im}; }
LW_INLINE Low conjugate(Low x) { return Low{x.re, -x.im}; }
LW_INLINE Low low_of(float x) { return Low{x, 0.f}; }
#endif
LW_INLINE Low low_zero() { return low_of(0.f); }
LW_INLINE Low low_one() { return low_of(1.f); }

// Real numbers of either precision, and complex ones
template <typename R> LW_INLINE R square_of(R x) { return x * x; }
template <typename R> LW_INLINE R square_of(Complex<R> x) { return x.re * x.re + x.im * x.im; }
template <typename R> LW_INLINE R added(R a, R b) { return a + b; }
template <typename R> LW_INLINE Complex<R> added(Complex<R> a, Complex<R> b) { return Complex<R>{a.re + b.re, a.im + b.im}; }
template <typename R> LW_INLINE R minus(R a, R b) { return a - b; }
template <typename R> LW_INLINE Complex<R> minus(Complex<R> a, Complex<R> b) { return Complex<R>{a.re - b.re, a.im - b.im}; }
template <typename R> LW_INLINE R divided(R a, R by) { return a / by; }
template <typename R> LW_INLINE Complex<R> divided(Complex<R> a, R by) { return Complex<R>{a.re / by, a.im / by}; }
template <typename R> LW_INLINE R plus_product(R c, R a, R b) { return fma(a, b, c); }
template <typename R> LW_INLINE Complex<R> plus_product(Complex<R> c, Complex<R> a, Complex<R> b) {
  return Complex<R>{fma(a.re, b.re, fma(-a.im, b.im, c.re)), fma(a.re, b.im, fma(a.im, b.re, c.im))};
}
template <typename R> LW_INLINE R real_of(R x) { return x; }
template <typename R> LW_INLINE R real_of(Complex<R> x) { return x.re; }
template <typename R> LW_INLINE R passed(R x, int lane) { return shuffle(x, lane); }
template <typename R> LW_INLINE Complex<R> passed(Complex<R> x, int lane) {
  return Complex<R>{passed(x.re, lane), passed(x.im, lane)};
}
template <typename R> LW_INLINE R swapped(R x, int lanes) { return shuffle_xor(x, lanes); }
template <typename R> LW_INLINE Complex<R> swapped(Complex<R> x, int lanes) {
  return Complex<R>{swapped(x.re, lanes), swapped(x.im, lanes)};
}

template <typename E>
LW_INLINE E warp_sum(E x) {
#pragma unroll
  for (int lanes = 16; lanes; lanes /= 2) x = added(x, swapped(x, lanes));
  return x;
}

// The sum over the block, in thread 0.
template <typename E>
LW_INLINE E block_sum(E x) {
  __shared__ __align__(16) char room[32 * sizeof(E)];
  E* sums = (E*)room;
  x = warp_sum(x);
  __syncthreads();
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = x;
  __syncthreads();
  for (int w = 1; threadIdx.x == 0 && w < blockDim.x / 32; w++) x = added(x, sums[w]);
  return x;
}

// ---- in ----------------------------------------------------------------------------------------------------------

// d <- powers of two with a diagonal around 1 in D A D; bad <- 1 where that cannot be
extern "C" __global__ void find_scale(const T* a, i64 n, double* d, double* bad) {
  for (i64 i = (i64)blockIdx.x * THREADS + threadIdx.x; i < n; i += (i64)gridDim.x * THREADS) {
    double x = (double)real(load_element(a + i * n + i));
    bool good = x >= 0x1p-1000 && x <= 0x1p1000;
    d[i] = good ? ldexp(1.0, -(ilogb(x) / 2)) : 1.0;
    if (!good) *bad = 1;
  }
}

// C <- the lower triangle of D A D, row-major with rows `pitch` apart; sums[block] <- its part of the squared norm
extern "C" __global__ void load_lower(const T* a, i64 n, const double* d, Low* c, i64 pitch, double* sums) {
  __shared__ __align__(16) char room[EDGE * (EDGE + 1) * SIZE];
  T(*s)[EDGE + 1] = (T(*)[EDGE + 1])room;
  i64 tiles = (n + EDGE - 1) / EDGE, pairs = tiles * (tiles + 1) / 2;
  int column = threadIdx.x % EDGE;
  double sum = 0;
  for (i64 p = blockIdx.x; p < pairs; p += gridDim.x) {
    i64 high, low;
    pair_of(p, high, low);
    i64 i0 = high * EDGE, j0 = low * EDGE;
    if (LW_UPPER) {
      for (int r = threadIdx.x / EDGE; r < EDGE; r += LINES) {
        i64 j = j0 + r, i = i0 + column;
        if (i < n && j <= i) s[r][column] = conjugate(load_element(a + j * n + i));
      }
      __syncthreads();
    }
#pragma unroll
    for (int r = threadIdx.x / EDGE; r < EDGE; r += LINES) {
      i64 i = i0 + r, j = j0 + column;
      if (i < n && j <= i) {
        T x = scale(scale(LW_UPPER ? s[column][r] : load_element(a + i * n + j), d[i]), d[j]);
        if (i == j) x = from_real(real(x));
        sum += (i == j ? 1 : 2) * square_of(x);
        c[i * pitch + j] = lowered(x);
      }
    }
    if (LW_UPPER) __syncthreads();
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

LW_INLINE double total_of(const double* parts, int count) {
  double sum = 0;
  for (int i = threadIdx.x; i < count; i += THREADS) sum += parts[i];
  return block_sum(sum);
}

extern "C" __global__ void total(const double* parts, int count, double* out) {
  double sum = total_of(parts, count);
  if (threadIdx.x == 0) *out = sum;
}

// The largest element of each column of D B, B row-major, a block each; NaN is larger than anything
extern "C" __global__ void side_sizes(const T* b, i64 n, i64 k, const double* d, double* out) {
  __shared__ u64 most;
  i64 q = blockIdx.x;
  if (threadIdx.x == 0) most = 0;
  __syncthreads();
  u64 mine = 0;
  for (i64 i = threadIdx.x; i < n; i += THREADS) {
    u64 bits = (u64)__double_as_longlong(size_of(scale(load_element(b + i * k + q), d[i]))) & 0x7fffffffffffffffull;
    mine = bits > mine ? bits : mine;
  }
  atomicMax(&most, mine);
  __syncthreads();
  if (threadIdx.x == 0) out[q] = __longlong_as_double((i64)most);
}

// Columns X <- by D B, and back
extern "C" __global__ void load_sides(const T* b, i64 n, i64 k, const double* d, const double* by, T* x) {
  for (i64 e = (i64)blockIdx.x * THREADS + threadIdx.x; e < n * k; e += (i64)gridDim.x * THREADS) {
    i64 i = e / k, q = e - i * k;
    x[q * n + i] = scale(scale(load_element(b + e), d[i]), by[q]);
  }
}

extern "C" __global__ void write_sides(const T* x, i64 n, i64 k, const double* d, const int* exponents, T* out) {
  for (i64 e = (i64)blockIdx.x * THREADS + threadIdx.x; e < n * k; e += (i64)gridDim.x * THREADS) {
    i64 i = e / k, q = e - i * k;
    T value = scale(x[q * n + i], d[i]);
#if LW_DTYPE < 2
    value = ldexp(value, exponents[q]);
#else
    value = T{ldexp(value.re, exponents[q]), ldexp(value.im, exponents[q])};
#endif
    store_element(out + e, value);
  }
}

// ---- factor ------------------------------------------------------------------------------------------------------

// A diagonal block of C, `order` on a side, to a compact one with zeros above the diagonal
extern "C" __global__ void take_block(const Low* c, i64 pitch, int order, Low* out) {
  for (i64 e = (i64)blockIdx.x * THREADS + threadIdx.x; e < (i64)order * order; e += (i64)gridDim.x * THREADS) {
    i64 i = e / order, j = e - i * order;
    out[e] = j <= i ? c[i * pitch + j] : low_zero();
  }
}

// Rows of `width` elements back into C
extern "C" __global__ void put_rows(const Low* from, i64 rows, int width, Low* c, i64 pitch) {
  for (i64 i = blockIdx.x; i < rows; i += gridDim.x)
    for (int j = threadIdx.x; j < width; j += THREADS) c[i * pitch + j] = from[i * width + j];
}

// The inverses of the diagonal blocks of 32 of a lower triangle of order n, a warp each, a lane a column. X is zeroed before.
extern "C" __global__ void invert_blocks(const Low* l, int n, Low* x) {
  __shared__ __align__(16) char room[2 * EDGE * (EDGE + 1) * sizeof(Low)];
  Low(*s)[EDGE + 1] = (Low(*)[EDGE + 1])room;
  Low(*y)[EDGE + 1] = (Low(*)[EDGE + 1])(room + EDGE * (EDGE + 1) * sizeof(Low));
  int at = blockIdx.x * EDGE, order = n - at < EDGE ? n - at : EDGE, c = threadIdx.x;
  for (int i = 0; i < order; i++)
    if (c < order) s[i][c] = l[(i64)(at + i) * n + at + c];
  __syncthreads();
  if (c >= order) return;
  for (int i = c; i < order; i++) {
    Low sum = low_zero();
    for (int k = c; k < i; k++) sum = plus_product(sum, s[i][k], y[k][c]);
    y[i][c] = divided(minus(i == c ? low_one() : low_zero(), sum), real_of(s[i][i]));
    x[(i64)(at + i) * n + at + c] = y[i][c];
  }
}

// One half of X21 <- -X22 (L21 X11), for every pair of neighbouring blocks of `side` on the diagonal of order n: out21 <- p q
// with p 21 and q 11 of theirs, or, with `last`, -p q with p 22 and q 21. Grid: 32 x 32 tiles of a block, pairs.
extern "C" __global__ void merge_blocks(const Low* p, const Low* q, int n, int side, int last, Low* out) {
  __shared__ __align__(16) char room[2 * EDGE * (EDGE + 1) * sizeof(Low)];
  Low(*a)[EDGE + 1] = (Low(*)[EDGE + 1])room;
  Low(*b)[EDGE + 1] = (Low(*)[EDGE + 1])(room + EDGE * (EDGE + 1) * sizeof(Low));
  int left = blockIdx.y * 2 * side, top = left + side, tiles = side / EDGE;
  int i0 = top + (blockIdx.x / tiles) * EDGE, j0 = left + (blockIdx.x % tiles) * EDGE;
  int column = threadIdx.x % EDGE, line = threadIdx.x / EDGE, from = last ? top : left;
  if (i0 >= n) return;
  Low sums[EDGE / LINES];
#pragma unroll
  for (int r = 0; r < EDGE / LINES; r++) sums[r] = low_zero();
  for (int k = from; k < from + side && k < n; k += EDGE) {
#pragma unroll
    for (int r = line; r < EDGE; r += LINES) {
      a[r][column] = i0 + r < n && k + column < n ? p[(i64)(i0 + r) * n + k + column] : low_zero();
      b[r][column] = k + r < n ? q[(i64)(k + r) * n + j0 + column] : low_zero();
    }
    __syncthreads();
#pragma unroll 8
    for (int l = 0; l < EDGE; l++)
#pragma unroll
      for (int r = 0; r < EDGE / LINES; r++) sums[r] = plus_product(sums[r], a[line + r * LINES][l], b[l][column]);
    __syncthreads();
  }
#pragma unroll
  for (int r = 0; r < EDGE / LINES; r++) {
    int i = i0 + line + r * LINES;
    if (i < n) out[(i64)i * n + j0 + column] = last ? minus(low_zero(), sums[r]) : sums[r];
  }
}

// A whole column-major Hermitian block from its stored triangle, and blocks of one and the same order one after another.
extern "C" __global__ void take_diagonal(const T* a, i64 n, int order, T* out) {
  i64 at = (i64)blockIdx.y * order;
  T* to = out + at * order;
  for (i64 e = (i64)blockIdx.x * THREADS + threadIdx.x; e < (i64)order * order; e += (i64)gridDim.x * THREADS) {
    i64 i = e % order, j = e / order;
    if (at + i >= n || at + j >= n) continue;
    bool named = LW_UPPER ? j >= i : j <= i;
    T x = load_element(a + (at + (named ? i : j)) * n + at + (named ? j : i));
    to[e] = i == j ? from_real(real(x)) : named ? x : conjugate(x);
  }
}

// ---- the product with the matrix ----------------------------------------------------------------------------------

constexpr int SPAN = 128;             // columns of a tile, four to a lane
constexpr int HEIGHT = 16;            // rows of a tile that a warp has
constexpr int BAND = HEIGHT * WARPS;  // rows of a tile
constexpr int TILES = 8;              // that a block takes one after the other

// Block (I, c) reads the tiles c TILES ... of band I of the stored triangle once.
// u[c] <- what they give the rows of the band, v[I] <- what they give the rows that are their columns
extern "C" __global__ void __launch_bounds__(THREADS) triangle_product(const T* a, i64 n, const T* x, T* u, T* v) {
  __shared__ __align__(16) char room[WARPS * SPAN * SIZE];
  T* share = (T*)room;
  i64 band = blockIdx.x, tiles = (n + SPAN - 1) / SPAN, first = (i64)blockIdx.y * TILES, last = first + TILES;
  if (LW_UPPER) {
    if (first < band) first = band;
    if (last > tiles) last = tiles;
  } else if (last > band + 1) {
    last = band + 1;
  }
  if (first >= last) return;
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  i64 i0 = band * BAND + warp * HEIGHT, mine = i0 + lane % HEIGHT;
  T at_row = mine < n ? x[mine] : zero(), rows[HEIGHT];
#pragma unroll
  for (int r = 0; r < HEIGHT; r++) rows[r] = zero();
  for (i64 tile = first; tile < last; tile++) {
    T at_column[4], columns[4];
#pragma unroll
    for (int p = 0; p < 4; p++) {
      i64 j = tile * SPAN + p * 32 + lane;
      at_column[p] = j < n ? x[j] : zero();
      columns[p] = zero();
    }
    bool inside = tile != band && (tile + 1) * SPAN <= n && (band + 1) * BAND <= n;
#pragma unroll
    for (int r = 0; r < HEIGHT; r++) {
      i64 i = i0 + r;
      T other = passed(at_row, r);
#pragma unroll
      for (int p = 0; p < 4; p++) {
        i64 j = tile * SPAN + p * 32 + lane;
        bool named = inside || (i < n && j < n && (LW_UPPER ? j >= i : j <= i));
        T e = named ? load_element(a + i * n + j) : zero();
        rows[r] = plus_product(rows[r], i == j ? from_real(real(e)) : e, at_column[p]);
        columns[p] = plus_product(columns[p], i == j ? zero() : conjugate(e), other);
      }
    }
#pragma unroll
    for (int p = 0; p < 4; p++) share[warp * SPAN + p * 32 + lane] = columns[p];
    __syncthreads();
    i64 j = tile * SPAN + threadIdx.x;
    if (threadIdx.x < SPAN && j < n) {
      T sum = share[threadIdx.x];
#pragma unroll
      for (int w = 1; w < WARPS; w++) sum = added(sum, share[w * SPAN + threadIdx.x]);
      v[band * n + j] = sum;
    }
    __syncthreads();
  }
#pragma unroll
  for (int r = 0; r < HEIGHT; r++) {
    T sum = warp_sum(rows[r]);
    if (lane == 0 && i0 + r < n) u[(i64)blockIdx.y * n + i0 + r] = sum;
  }
}

// y <- D times the sum of the parts
extern "C" __global__ void sum_product(const T* u, const T* v, i64 n, const double* d, T* y) {
  i64 bands = (n + BAND - 1) / BAND, chunks = (bands + TILES - 1) / TILES;
  for (i64 i = (i64)blockIdx.x * THREADS + threadIdx.x; i < n; i += (i64)gridDim.x * THREADS) {
    i64 band = i / BAND;
    T sum = zero();
    for (i64 c = LW_UPPER ? band / TILES : 0; c < (LW_UPPER ? chunks : band / TILES + 1); c++) sum = added(sum, u[c * n + i]);
#pragma unroll 8
    for (i64 b = LW_UPPER ? 0 : band; b < (LW_UPPER ? band + 1 : bands); b++) sum = added(sum, v[b * n + i]);
    y[i] = scale(sum, d[i]);
  }
}

// X <- D X, and its conjugate where one is wanted
extern "C" __global__ void scale_rows(const T* x, i64 n, i64 k, const double* d, T* out, T* other) {
  for (i64 e = (i64)blockIdx.x * THREADS + threadIdx.x; e < n * k; e += (i64)gridDim.x * THREADS) {
    T value = scale(x[e], d[e % n]);
    out[e] = value;
    if (other) other[e] = conjugate(value);
  }
}

// Y <- D (Y + conj(Z))
extern "C" __global__ void join_product(T* y, const T* z, i64 n, i64 k, const double* d) {
  for (i64 e = (i64)blockIdx.x * THREADS + threadIdx.x; e < n * k; e += (i64)gridDim.x * THREADS)
    y[e] = scale(added(y[e], conjugate(z[e])), d[e % n]);
}

// ---- the product with the factor's inverse ------------------------------------------------------------------------

extern "C" __global__ void lower_vectors(const T* v, i64 count, Low* out) {
  for (i64 e = (i64)blockIdx.x * THREADS + threadIdx.x; e < count; e += (i64)gridDim.x * THREADS) out[e] = lowered(v[e]);
}

extern "C" __global__ void raise_vectors(const Low* v, i64 count, T* out) {  // conjugated
  for (i64 e = (i64)blockIdx.x * THREADS + threadIdx.x; e < count; e += (i64)gridDim.x * THREADS)
    out[e] = conjugate(raised(v[e]));
}

extern "C" __global__ void conjugate_vectors(Low* v, i64 count) {
  for (i64 e = (i64)blockIdx.x * THREADS + threadIdx.x; e < count; e += (i64)gridDim.x * THREADS) v[e] = conjugate(v[e]);
}

// y <- M x, or y - M x: a warp for a row of M
extern "C" __global__ void rows_product(const Low* m, i64 ld, const Low* x, Low* y, i64 rows, int width, int subtract) {
  i64 warps = (i64)gridDim.x * WARPS;
  int lane = threadIdx.x % 32;
  for (i64 i = (i64)blockIdx.x * WARPS + threadIdx.x / 32; i < rows; i += warps) {
    const Low* row = m + i * ld;
    Low sum = low_zero();
#pragma unroll 8
    for (int j = lane; j < width; j += 32) sum = plus_product(sum, row[j], x[j]);
    sum = warp_sum(sum);
    if (lane == 0) y[i] = subtract ? minus(y[i], sum) : sum;
  }
}

// y <- M^T x, or y - M^T x: a block for 32 columns of M
extern "C" __global__ void columns_product(const Low* m, i64 ld, const Low* x, Low* y, int rows, i64 columns, int subtract) {
  __shared__ __align__(16) char room[WARPS * 32 * sizeof(Low)];
  Low* share = (Low*)room;
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (i64 first = (i64)blockIdx.x * 32; first < columns; first += (i64)gridDim.x * 32) {
    i64 j = first + lane;
    Low sum = low_zero();
    if (j < columns) {
#pragma unroll 8
      for (int i = warp; i < rows; i += WARPS) sum = plus_product(sum, m[i * ld + j], x[i]);
    }
    share[warp * 32 + lane] = sum;
    __syncthreads();
    if (warp == 0 && j < columns) {
      for (int w = 1; w < WARPS; w++) sum = added(sum, share[w * 32 + lane]);
      y[j] = subtract ? minus(y[j], sum) : sum;
    }
    __syncthreads();
  }
}

// ---- columns -----------------------------------------------------------------------------------------------------

// c[e] <- <column e of the blocks, column e % k of w>, a block each
extern "C" __global__ void inner(const T* blocks, const T* w, i64 n, i64 k, T* c) {
  i64 e = blockIdx.x;
  const T *x = blocks + e * n, *y = w + e % k * n;
  T sum = zero();
#pragma unroll 4
  for (i64 i = threadIdx.x; i < n; i += blockDim.x) sum = plus_product(sum, conjugate(x[i]), y[i]);
  sum = block_sum(sum);
  if (threadIdx.x == 0) c[e] = sum;
}

extern "C" __global__ void add_blocks(const T* blocks, i64 count, const T* c, i64 n, i64 k, T* w) {
  for (i64 e = (i64)blockIdx.x * THREADS + threadIdx.x; e < n * k; e += (i64)gridDim.x * THREADS) {
    T sum = w[e];
    for (i64 i = 0; i < count; i++) sum = plus_product(sum, c[i * k + e / n], blocks[i * n * k + e]);
    w[e] = sum;
  }
}

extern "C" __global__ void scale_columns(const T* from, const double* by, i64 n, i64 k, T* to) {
  for (i64 e = (i64)blockIdx.x * THREADS + threadIdx.x; e < n * k; e += (i64)gridDim.x * THREADS) {
    double s = by[e / n];
    to[e] = s == 0 ? zero() : scale(from[e], s);
  }
}
