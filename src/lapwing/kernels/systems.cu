// Kernels around a library that solves, inverts or decomposes one column-major matrix: the way in and out, what failed, NaN.
// info is one number of one matrix: 0, or the smallest place that was reported.
#include "squares.cuh"

LW_INLINE bool is_zero(T x) { return real(x) == Real(0) && imaginary(x) == Real(0); }

LW_INLINE void report(int* info, i64 place) {
  int old = *(volatile int*)info;
  while (old == 0 || place < old) {
    int seen = atomicCAS(info, old, (int)place);
    if (seen == old) return;
    old = seen;
  }
}

// to (count x rows) <- the first `count` rows of from^H, from being rows x columns. What else:
//   CHECK     report an element that is not finite to info: max(its row, its column) + 1
//   SPOIL     NaN instead where info is not 0
//   TRIANGLE  zeros below the diagonal of `to`
constexpr int CHECK = 1, SPOIL = 2, TRIANGLE = 4;
extern "C" __global__ void adjoint(const T* from, T* to, int* info, i64 rows, i64 columns, i64 count, int what) {
  __shared__ __align__(16) char room[sizeof(Square)];
  Square& s = *(Square*)room;
  i64 down = (count + EDGE - 1) / EDGE, across = (rows + EDGE - 1) / EDGE;
  int c = threadIdx.x % EDGE;
  bool spoilt = (what & SPOIL) && *info;
  for (i64 item = blockIdx.x; item < down * across; item += gridDim.x) {
    i64 j = item / across * EDGE, i = item % across * EDGE;
#pragma unroll
    for (int r = threadIdx.x / EDGE; r < EDGE; r += LINES)
      if (i + r < rows && j + c < count) {
        T x = load_element(from + (i + r) * columns + j + c);
        if ((what & CHECK) && !is_finite(x)) report(info, (i + r > j + c ? i + r : j + c) + 1);
        s[r][c] = x;
      }
    __syncthreads();
#pragma unroll
    for (int r = threadIdx.x / EDGE; r < EDGE; r += LINES)
      if (j + r < count && i + c < rows) {
        bool below = (what & TRIANGLE) && i + c < j + r;
        store_element(to + (j + r) * rows + i + c, spoilt ? filled(not_a_number()) : below ? zero() : conjugate(s[c][r]));
      }
    __syncthreads();
  }
}

// to <- from, with the same report
extern "C" __global__ void copy_checked(const T* from, T* to, int* info, i64 rows, i64 columns) {
  for (i64 e = (i64)blockIdx.x * THREADS + threadIdx.x; e < rows * columns; e += (i64)gridDim.x * THREADS) {
    T x = load_element(from + e);
    i64 i = e / columns, j = e - i * columns;
    if (!is_finite(x)) report(info, (i > j ? i : j) + 1);
    store_element(to + e, x);
  }
}

// Ones on the diagonal of a (rows x columns), or in row i at column order[i], zeros elsewhere; where info is given, only if
// it is not 0: a library may fault on NaN.
extern "C" __global__ void identity(T* a, const int* info, const int* order, i64 rows, i64 columns) {
  if (info && *info == 0) return;
  for (i64 e = (i64)blockIdx.x * THREADS + threadIdx.x; e < rows * columns; e += (i64)gridDim.x * THREADS) {
    i64 i = e / columns, j = e - i * columns;
    store_element(a + e, j == (order ? order[i] : i) ? from_real(Real(1)) : zero());
  }
}

// Real numbers, so that it serves for singular values too
extern "C" __global__ void spoil(Real* x, const int* info, i64 count) {
  if (*info == 0) return;
  for (i64 e = (i64)blockIdx.x * THREADS + threadIdx.x; e < count; e += (i64)gridDim.x * THREADS) x[e] = not_a_number();
}

// What the library itself said: a place from `offset` on to report, or for a negative one a failure without: info becomes 1.
extern "C" __global__ void merge(int* info, const int* other, i64 offset) {
  if (threadIdx.x != 0 || blockIdx.x != 0) return;
  if (offset < 0) *info = *info || *other;
  else if (*other > 0) report(info, offset + *other);
}

// Reports the first pivot that is not finite or is zero; FINITE: a zero is allowed; POSITIVE: it must be above zero
constexpr int POSITIVE = 1, FINITE = 2;
extern "C" __global__ void check_pivots(const T* a, i64 ld, int* info, i64 n, i64 offset, int kind) {
  for (i64 j = (i64)blockIdx.x * THREADS + threadIdx.x; j < n; j += (i64)gridDim.x * THREADS) {
    T x = load_element(a + j * (ld + 1));
    bool good = kind == POSITIVE ? is_pivot(real(x)) : is_finite(x) && (kind == FINITE || !is_zero(x));
    if (!good) report(info, offset + j + 1);
  }
}

// The same over a row-major triangle: no element may be NaN or Inf, none on the diagonal zero.
LW_INLINE void scan_triangle(const T* a, int* info, i64 n, int upper, int unit) {
  i64 warps = (i64)gridDim.x * (THREADS / 32);
  for (i64 i = (i64)blockIdx.x * (THREADS / 32) + threadIdx.x / 32; i < n; i += warps) {
    i64 first = upper ? i + (unit ? 1 : 0) : 0, last = upper ? n : unit ? i : i + 1;
#pragma unroll 4
    for (i64 j = first + threadIdx.x % 32; j < last; j += 32) {
      T x = load_element(a + i * n + j);
      if (!is_finite(x) || (i == j && is_zero(x))) report(info, (i > j ? i : j) + 1);
    }
  }
}

extern "C" __global__ void check_triangle(const T* a, int* info, i64 n, int upper, int unit) { scan_triangle(a, info, n, upper, unit); }

// The same after a solve, with info set: x (`count` elements) <- NaN where the triangle is bad. It is only read where x or its diagonal
// is suspect, for whatever else is wrong with it spoils x. One block.
extern "C" __global__ void check_solution(const T* a, T* x, i64 count, int* info, i64 n, int upper, int unit) {
  bool good = true;
#pragma unroll 4
  for (i64 e = threadIdx.x; e < count; e += THREADS) good = good && is_finite(load_element(x + e));
#pragma unroll 4
  for (i64 j = threadIdx.x; j < (unit ? 0 : n); j += THREADS) {
    T pivot = load_element(a + j * (n + 1));
    good = good && is_finite(pivot) && !is_zero(pivot);
  }
  good = __syncthreads_and(good);
  if (threadIdx.x == 0) *info = 0;
  if (good) return;
  __syncthreads();
  scan_triangle(a, info, n, upper, unit);
  __syncthreads();
  if (*(volatile int*)info == 0) return;
  for (i64 e = threadIdx.x; e < count; e += THREADS) store_element(x + e, filled(not_a_number()));
}

// rows <- 0 .. n-1 after the exchanges: row i with row pivots[i] - 1, one after the other. One block; `room` takes n integers
// unless `far` is set: then they stay where they are.
extern "C" __global__ void pivot_rows(const i64* pivots, int* rows, const int* info, i64 n, int far) {
  extern __shared__ int near_rows[];
  __shared__ int chunk[THREADS];
  int* at = far ? rows : near_rows;
  bool good = *info == 0;
  for (i64 i = threadIdx.x; i < n; i += THREADS) at[i] = (int)i;
  for (i64 first = 0; good && first < n; first += THREADS) {
    int count = n - first < THREADS ? (int)(n - first) : THREADS;
    __syncthreads();
    if ((int)threadIdx.x < count) chunk[threadIdx.x] = (int)pivots[first + threadIdx.x] - 1;
    __syncthreads();
    if (threadIdx.x == 0)
      for (int i = 0; i < count; i++) {
        int p = chunk[i], x = at[first + i];
        at[first + i] = at[p];
        at[p] = x;
      }
  }
  __syncthreads();
  if (!far)
    for (i64 i = threadIdx.x; i < n; i += THREADS) rows[i] = at[i];
}

// to[i] <- from[rows[i]], or to[rows[i]] <- from[i]: rows of k elements
extern "C" __global__ void permute(const T* from, T* to, const int* rows, int* info, i64 n, i64 k, int back) {
  for (i64 e = (i64)blockIdx.x * THREADS + threadIdx.x; e < n * k; e += (i64)gridDim.x * THREADS) {
    i64 i = e / k, j = e - i * k, other = rows[i];
    if (other < 0 || other >= n) {
      report(info, i + 1);
      continue;
    }
    T x = load_element(from + (back ? i : other) * k + j);
    store_element(to + (back ? other : i) * k + j, x);
  }
}

// A product as mantissa times a power of two.
struct Scaled {
  double re, im;
  long long exponent;

  LW_INLINE Scaled times(Scaled by) const {
    return Scaled{re * by.re - im * by.im, re * by.im + im * by.re, exponent + by.exponent}.normalised();
  }
  LW_INLINE Scaled normalised() const {
    double size = fmax(fabs(re), fabs(im));
    int e = size > 0 && size <= 1.7976931348623157e308 ? ilogb(size) : 0;
    return Scaled{scalbn(re, -e), scalbn(im, -e), exponent + e};
  }
};

// The determinant of A from the factors of conj(A): the library's pivots and its diagonal (of the Cholesky factor: squared,
// and no pivots). Without logabs the number itself, else its sign and logarithm. One block.
extern "C" __global__ void determinant(const T* a, const i64* pivots, T* value, Real* logabs, const int* info, i64 n) {
  __shared__ Scaled part[THREADS];
  int t = threadIdx.x;
  Scaled product{1, 0, 0};
  for (i64 i = t; i < n; i += THREADS) {
    T pivot = load_element(a + i * (n + 1));
    double x = real(pivot), y = -imaginary(pivot);
    if (pivots && pivots[i] != i + 1) x = -x, y = -y;
    if (!pivots) x = hypot(x, y), y = 0;
    Scaled factor = Scaled{x, y, 0}.normalised();
    product = product.times(pivots ? factor : factor.times(factor));
  }
  part[t] = product;
  for (int half = THREADS / 2; half > 0; half /= 2) {
    __syncthreads();
    if (t < half) part[t] = part[t].times(part[t + half]);
  }
  if (t != 0) return;
  product = part[0];
  bool good = *info == 0;
  double size = hypot(product.re, product.im), by = size == 0 ? 0 : 1 / size;
  if (!logabs) {
    int e = product.exponent < -4000 ? -4000 : product.exponent > 4000 ? 4000 : int(product.exponent);
    product = Scaled{scalbn(product.re, e), scalbn(product.im, e), 0}, by = 1;
  }
#if LW_DTYPE < 2
  T found = Real(product.re * by);
#else
  T found{Real(product.re * by), Real(product.im * by)};
#endif
  store_element(value, good ? found : filled(not_a_number()));
  if (!logabs) return;
  if (size > 1.5) size /= 2, product.exponent++;  // a determinant near one has a logarithm near zero
  *logabs = good ? Real(log(size) + double(product.exponent) * 0.69314718055994530942) : not_a_number();
}

// ---- leaves: the diagonal blocks of a column-major lower triangle, LEAF x LEAF each, one behind the other --------------

constexpr int LEAF = 512;  // in native/cusolver/positive.cc too

// leaves <- the blocks of a, zeros above the diagonal, ones on it past the end of a
extern "C" __global__ void lift(const T* a, i64 ld, T* leaves, i64 n) {
  i64 count = (n + LEAF - 1) / LEAF;
  for (i64 e = (i64)blockIdx.x * THREADS + threadIdx.x; e < count * LEAF * LEAF; e += (i64)gridDim.x * THREADS) {
    i64 first = e / (LEAF * LEAF) * LEAF, j = e / LEAF % LEAF, i = e % LEAF;
    bool inside = first + i < n;
    T x = i >= j && inside ? load_element(a + (first + j) * ld + first + i) : i == j ? from_real(Real(1)) : zero();
    store_element(leaves + e, x);
  }
}

// Tiles of 32 x 32 on the diagonals of the leaves <- their inverses. A block each; a lane takes a column.
extern "C" __global__ void invert_tiles(T* leaves, i64 tiles) {
  __shared__ __align__(16) char room[2 * TILE * (TILE + 1) * sizeof(T)];
  typedef T Columns[TILE][TILE + 1];
  Columns &l = *(Columns*)room, &x = *(Columns*)(room + sizeof(Columns));
  constexpr int EACH = LEAF / TILE;
  for (i64 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    T* at = leaves + tile / EACH * LEAF * LEAF + tile % EACH * TILE * (LEAF + 1);
    for (int e = threadIdx.x; e < TILE * TILE; e += THREADS)
      l[e / TILE][e % TILE] = load_element(at + e / TILE * LEAF + e % TILE);
    __syncthreads();
    if (threadIdx.x < TILE) {
      int j = threadIdx.x;
      for (int i = 0; i < TILE; i++) {
        T sum = i == j ? from_real(Real(1)) : zero();
        for (int k = 0; k < i; k++) {
          if (k < j) continue;
          sum = subtract_product(sum, l[k][i], conjugate(x[j][k]));
        }
        x[j][i] = i < j ? zero() : scale(sum, Real(1) / real(l[i][i]));
      }
    }
    __syncthreads();
    for (int e = threadIdx.x; e < TILE * TILE; e += THREADS)
      store_element(at + e / TILE * LEAF + e % TILE, x[e / TILE][e % TILE]);
    __syncthreads();
  }
}

// to (columns `to_ld` apart) <- from, both column-major
extern "C" __global__ void copy_block(const T* from, i64 from_ld, T* to, i64 to_ld, i64 rows, i64 columns) {
  for (i64 e = (i64)blockIdx.x * THREADS + threadIdx.x; e < rows * columns; e += (i64)gridDim.x * THREADS) {
    i64 j = e / rows, i = e - j * rows;
    store_element(to + j * to_ld + i, load_element(from + j * from_ld + i));
  }
}

#if LW_DTYPE == 0
// A float's first 11 bits, rounded: what tensor cores multiply exactly
LW_INLINE float eleven_bits(float x) {
  unsigned int bits = __float_as_uint(x), rounded = (bits + 0x1000u) & 0xffffe000u;
  bool overflows = (rounded & 0x7f800000u) == 0x7f800000u;  // also of NaN and Inf, which stay what they are
  return __uint_as_float(overflows ? bits & 0xffffe000u : rounded);
}

// Three blocks `step` apart <- the high, low, high parts of from, or for `second` high, high, low; all column-major, and for
// `turned` the transposes. Along the summed index of a product the sums of the three are high high + low high + high low: all
// but the product of the low parts.
extern "C" __global__ void split(const float* from, i64 from_ld, float* to, i64 to_ld, i64 step, i64 rows, i64 columns, int second,
                                 int turned) {
  __shared__ __align__(16) char room[sizeof(Square)];
  Square& s = *(Square*)room;
  i64 down = (rows + EDGE - 1) / EDGE, across = (columns + EDGE - 1) / EDGE;
  int c = threadIdx.x % EDGE;
  auto put = [&](float* at, float x) {
    float high = eleven_bits(x), low = eleven_bits(x - high);
    store_element(at, high);
    store_element(at + step, second ? high : low);
    store_element(at + 2 * step, second ? low : high);
  };
  for (i64 item = blockIdx.x; item < down * across; item += gridDim.x) {
    i64 i = item % down * EDGE, j = item / down * EDGE;
#pragma unroll
    for (int r = threadIdx.x / EDGE; r < EDGE; r += LINES)
      if (i + c < rows && j + r < columns) {
        float x = load_element(from + (j + r) * from_ld + i + c);
        if (turned) s[r][c] = x;
        else put(to + (j + r) * to_ld + i + c, x);
      }
    __syncthreads();
#pragma unroll
    for (int r = threadIdx.x / EDGE; r < EDGE; r += LINES)
      if (turned && i + r < rows && j + c < columns) put(to + (i + r) * to_ld + j + c, s[c][r]);
    __syncthreads();
  }
}
#endif
