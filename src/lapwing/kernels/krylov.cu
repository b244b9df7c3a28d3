// What the Krylov engine needs on the GPU beside the matrix products: the way in and out, random numbers, the small Cholesky
// factor that makes a block orthonormal, and residuals. Vectors are contiguous: blocks are column-major with n rows.
#include "common.cuh"

#ifndef LW_WIDTH
#define LW_WIDTH 64
#endif

constexpr int THREADS = 256;
constexpr int EDGE = 32;  // of the square tiles that are mirrored
constexpr int LINES = THREADS / EDGE;

#if LW_DTYPE < 2
constexpr int PARTS = 1;
LW_INLINE double size_of(T x) { return fabs((double)x); }
LW_INLINE double square_of(T x) { return (double)x * (double)x; }
LW_INLINE T multiply(T a, T b) { return a * b; }
#else
constexpr int PARTS = 2;
LW_INLINE double size_of(T x) { return fabs((double)x.re) + fabs((double)x.im); }
LW_INLINE double square_of(T x) { return (double)x.re * (double)x.re + (double)x.im * (double)x.im; }
LW_INLINE T multiply(T a, T b) { return T{a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re}; }
#endif

// The bits of a number that is not negative order like the number, with Inf and NaN on top.
LW_INLINE u64 ordered(double x) { return (u64)__double_as_longlong(x) & 0x7fffffffffffffffull; }

LW_INLINE void keep_largest(u64 mine, u64* out) {
#pragma unroll
  for (int lane = 16; lane; lane /= 2) {
    u64 other = shuffle_xor(mine, lane);
    mine = other > mine ? other : mine;
  }
  if (threadIdx.x % 32 == 0) atomicMax(out, mine);
}

// The largest |element| of the named triangle, a warp for a row at a time.
extern "C" __global__ void largest(const T* a, i64 n, u64* out) {
  i64 warps = (i64)gridDim.x * (THREADS / 32);
  u64 most = 0;
  for (i64 i = (i64)blockIdx.x * (THREADS / 32) + threadIdx.x / 32; i < n; i += warps) {
    i64 end = LW_UPPER ? n : i + 1;
#pragma unroll 4
    for (i64 j = (LW_UPPER ? i : 0) + threadIdx.x % 32; j < end; j += 32) {
      T x = load_element(a + i * n + j);
      u64 bits = ordered(i == j ? fabs((double)real(x)) : size_of(x));
      most = bits > most ? bits : most;
    }
  }
  keep_largest(most, out);
}

extern "C" __global__ void largest_of(const T* x, i64 count, u64* out) {
  u64 most = 0;
  for (i64 k = (i64)blockIdx.x * THREADS + threadIdx.x; k < count; k += (i64)gridDim.x * THREADS) {
    u64 bits = ordered(size_of(x[k]));
    most = bits > most ? bits : most;
  }
  keep_largest(most, out);
}

// Column-major C <- by A in full from the named triangle: an element a[i*n + j] goes to [j*n + i], its conjugate to [i*n + j].
// A block takes a tile of the triangle at a time.
extern "C" __global__ void mirror(const T* a, T* c, i64 n, Real by) {
  __shared__ __align__(16) char room[EDGE * (EDGE + 1) * SIZE];
  T(*s)[EDGE + 1] = (T(*)[EDGE + 1])room;
  i64 tiles = (n + EDGE - 1) / EDGE, pairs = tiles * (tiles + 1) / 2;
  int column = threadIdx.x % EDGE;
  for (i64 p = blockIdx.x; p < pairs; p += gridDim.x) {
    i64 high, low;
    pair_of(p, high, low);
    i64 i0 = (LW_UPPER ? low : high) * EDGE, j0 = (LW_UPPER ? high : low) * EDGE;
    for (int r = threadIdx.x / EDGE; r < EDGE; r += LINES) {
      i64 i = i0 + r, j = j0 + column;
      bool named = LW_UPPER ? j >= i : j <= i;
      if (i < n && j < n && named) {
        T x = scale(load_element(a + i * n + j), by);
        s[r][column] = i == j ? from_real(real(x)) : x;
      }
    }
    __syncthreads();
    for (int r = threadIdx.x / EDGE; r < EDGE; r += LINES) {
      i64 i = i0 + r, j = j0 + column;
      bool named = LW_UPPER ? j >= i : j <= i;
      if (i < n && j < n && named) c[i * n + j] = conjugate(s[r][column]);
      // the transposed tile: row j0 + r, column i0 + column
      i64 row = j0 + r, other = i0 + column;
      bool mirrored = LW_UPPER ? row > other : row < other;
      if (row < n && other < n && mirrored) c[row * n + other] = s[column][r];
    }
    __syncthreads();
  }
}

// The numbers of random_number in native/methods/random.h.
LW_INLINE double random_number(u64 seed, u64 index) {
  u64 z = (seed << 40) + index + 0x9e3779b97f4a7c15ull * (seed + 1);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  z ^= z >> 31;
  return (double)((i64)(z & 0xffff) + (i64)(z >> 16 & 0xffff) + (i64)(z >> 32 & 0xffff) + (i64)(z >> 48) - 131070);
}

extern "C" __global__ void fill_random(T* x, i64 count, u64 seed, double by) {
  Real* part = (Real*)x;
  for (i64 k = (i64)blockIdx.x * THREADS + threadIdx.x; k < count * PARTS; k += (i64)gridDim.x * THREADS)
    part[k] = (Real)(random_number(seed, (u64)k) * by);
}

extern "C" __global__ void rescale(T* x, i64 count, Real by) {
  for (i64 k = (i64)blockIdx.x * THREADS + threadIdx.x; k < count; k += (i64)gridDim.x * THREADS) x[k] = scale(x[k], by);
}

// G <- R with R^H R = G in the upper triangle of a column-major matrix of order n <= 64, by one block. A column whose pivot
// counts as zero becomes that of the identity, with bad set.
extern "C" __global__ void cholesky_gram(T* g, int n, Real floor, Real relative, int* bad) {
  extern __shared__ __align__(16) char room[];
  T* s = (T*)room;  // s[i*n + j], j >= i
  __shared__ Real diagonal[64];
  for (int e = threadIdx.x; e < n * n; e += THREADS) {
    int i = e % n, j = e / n;
    if (i <= j) s[i * n + j] = g[e];
    if (i == j) diagonal[i] = real(g[e]);
  }
  __syncthreads();
  for (int k = 0; k < n; k++) {
    Real pivot = real(s[k * n + k]);
    bool zero_pivot = !(pivot > floor && pivot > relative * diagonal[k]);
    __syncthreads();
    if (threadIdx.x == 0) bad[k] = zero_pivot;
    Real root = sqrt(pivot);
    for (int j = k + threadIdx.x; j < n; j += THREADS)
      s[k * n + j] = j == k       ? from_real(zero_pivot ? Real(1) : root)
                     : zero_pivot ? zero()
                                  : scale(s[k * n + j], Real(1) / root);
    if (zero_pivot)
      for (int i = threadIdx.x; i < k; i += THREADS) s[i * n + k] = zero();
    __syncthreads();
    if (!zero_pivot) {
      int rest = n - k - 1;
      for (int e = threadIdx.x; e < rest * rest; e += THREADS) {
        int i = k + 1 + e / rest, j = k + 1 + e % rest;
        if (i <= j) s[i * n + j] = subtract(s[i * n + j], multiply(conjugate(s[k * n + i]), s[k * n + j]));
      }
    }
    __syncthreads();
  }
  for (int e = threadIdx.x; e < n * n; e += THREADS) {
    int i = e % n, j = e / n;
    if (i <= j) g[e] = s[i * n + j];
  }
}

// X <- X R^-1, a thread for a row of X; a bad column becomes random, or zero with its flag in dead.
extern "C" __global__ void solve_rows(T* x, i64 n, int columns, const T* r, const int* bad, int* dead, u64 replacement,
                                      double by) {
  extern __shared__ __align__(16) char room[];
  T* s = (T*)room;  // R(i,k) at [k*LW_WIDTH + i], the identity beyond its order; the diagonal inverted
  for (int e = threadIdx.x; e < LW_WIDTH * LW_WIDTH; e += blockDim.x) {
    int i = e % LW_WIDTH, k = e / LW_WIDTH;
    T value = i < k && k < columns ? r[k * columns + i] : zero();
    if (i == k) value = from_real(k < columns ? Real(1) / real(r[k * columns + k]) : Real(1));
    s[e] = value;
  }
  __syncthreads();
  if (dead && blockIdx.x == 0)
    for (int k = threadIdx.x; k < columns; k += blockDim.x) dead[k] = bad[k];
  for (i64 row = (i64)blockIdx.x * blockDim.x + threadIdx.x; row < n; row += (i64)gridDim.x * blockDim.x) {
    T v[LW_WIDTH];
#pragma unroll
    for (int k = 0; k < LW_WIDTH; k++) v[k] = k < columns ? x[k * n + row] : zero();
#pragma unroll
    for (int k = 0; k < LW_WIDTH; k++) {
      T sum = v[k];
#pragma unroll
      for (int i = 0; i < k; i++) sum = subtract(sum, multiply(v[i], s[k * LW_WIDTH + i]));
      v[k] = scale(sum, real(s[k * LW_WIDTH + k]));
    }
#pragma unroll
    for (int k = 0; k < LW_WIDTH; k++)
      if (k < columns) x[k * n + row] = v[k];
    for (int k = 0; k < columns; k++) {
      if (!bad[k]) continue;
      T value = zero();
      if (!dead) {
        Real* part = (Real*)&value;
        for (int p = 0; p < PARTS; p++)
          part[p] = (Real)(random_number(replacement * 64 + k, (u64)(row * PARTS + p)) * by);
      }
      x[k * n + row] = value;
    }
  }
}

// AY <- AY - Y diag(theta), and the norms of its columns: a block for a column.
extern "C" __global__ void residual(const T* y, T* ay, const double* theta, i64 n, i64 columns, double* norms) {
  __shared__ double sums[THREADS / 32];
  for (i64 column = blockIdx.x; column < columns; column += gridDim.x) {
    Real t = (Real)theta[column];
    double sum = 0;
    for (i64 i = threadIdx.x; i < n; i += THREADS) {
      T r = subtract(ay[column * n + i], scale(y[column * n + i], t));
      ay[column * n + i] = r;
      sum += square_of(r);
    }
#pragma unroll
    for (int lane = 16; lane; lane /= 2) sum += shuffle_xor(sum, lane);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
      for (int k = 1; k < THREADS / 32; k++) sum += sums[k];
      norms[column] = sqrt(sum);
    }
    __syncthreads();
  }
}

// Z <- alpha AX + beta X + gamma Z; with gamma = 0 Z is not read.
extern "C" __global__ void recur(T* z, const T* ax, const T* x, i64 count, Real alpha, Real beta, Real gamma) {
  const Real *first = (const Real*)ax, *second = (const Real*)x;
  Real* out = (Real*)z;
  for (i64 k = (i64)blockIdx.x * THREADS + threadIdx.x; k < count * PARTS; k += (i64)gridDim.x * THREADS) {
    Real sum = alpha * first[k] + beta * second[k];
    out[k] = gamma == 0 ? sum : sum + gamma * out[k];
  }
}

// Row-major out (n, count) <- the columns of Y, in reversed order where asked.
extern "C" __global__ void write_rows(const T* y, T* out, i64 n, i64 count, int reversed) {
  for (i64 e = (i64)blockIdx.x * THREADS + threadIdx.x; e < n * count; e += (i64)gridDim.x * THREADS) {
    i64 i = e / count, j = e - i * count;
    store_element(out + e, y[(reversed ? count - 1 - j : j) * n + i]);
  }
}

// Lines of `length` elements, `stride` apart, to contiguous ones in double precision.
extern "C" __global__ void widen(const T* from, i64 lines, i64 length, i64 stride, double* to) {
  for (i64 e = (i64)blockIdx.x * THREADS + threadIdx.x; e < lines * length; e += (i64)gridDim.x * THREADS) {
    i64 line = e / length;
    T x = load_element(from + line * stride + (e - line * length));
    const Real* part = (const Real*)&x;
    for (int p = 0; p < PARTS; p++) to[e * PARTS + p] = (double)part[p];
  }
}

extern "C" __global__ void narrow(const double* from, i64 count, T* to) {
  Real* part = (Real*)to;
  for (i64 k = (i64)blockIdx.x * THREADS + threadIdx.x; k < count * PARTS; k += (i64)gridDim.x * THREADS)
    part[k] = (Real)from[k];
}

// The first `length` elements of each line of `from_length`.
extern "C" __global__ void take_lines(const T* from, i64 from_length, T* to, i64 length, i64 lines) {
  for (i64 e = (i64)blockIdx.x * THREADS + threadIdx.x; e < lines * length; e += (i64)gridDim.x * THREADS) {
    i64 line = e / length;
    store_element(to + e, from[line * from_length + (e - line * length)]);
  }
}
