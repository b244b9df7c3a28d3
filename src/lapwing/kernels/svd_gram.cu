// The SVD of float32 matrices by the eigenvectors of G = M^H M in float64: the copies in both precisions, and work on columns.
// T is double or complex of double, Low the same in single precision. M is A, or A^H where it is wide; all is row-major.
#include "eigh.cuh"

constexpr int THREADS = LW_THREADS;

#if LW_DTYPE < 2
typedef float Low;
LW_INLINE T load_low(const float* from) { return (double)from[0]; }
LW_INLINE void store_low(float* to, T x) { to[0] = (float)x; }
#else
typedef Complex<float> Low;
LW_INLINE T load_low(const float* from) { return T{(double)from[0], (double)from[1]}; }
LW_INLINE void store_low(float* to, T x) { to[0] = (float)x.re, to[1] = (float)x.im; }
#endif
constexpr int NUMBERS = sizeof(Low) / sizeof(float);  // an element may be aligned to one number alone

// The 32 x 32 tiles of `batch` matrices: f(matrix, first row, first column) for those of this block.
template <typename F>
LW_INLINE void each_tile(i64 batch, int rows, int columns, F f) {
  const i64 across = (columns + 31) / 32, tiles = (rows + 31) / 32 * across;
  for (i64 item = blockIdx.x; item < batch * tiles; item += gridDim.x) {
    const i64 which = item / tiles, number = item - which * tiles;
    f(which, (int)(number / across) * 32, (int)(number % across) * 32);
  }
}

// to (rows x columns) <- a, or with `turned` its adjoint; bad <- 1 where a matrix is not finite, of which zeros are read
extern "C" __global__ void __launch_bounds__(LW_THREADS)
    svd_widen(const float* a, T* to, int* bad, i64 batch, int rows, int columns, int turned) {
  T* tile = (T*)memory;  // 32 x 33
  each_tile(batch, rows, columns, [&](i64 which, int i0, int j0) {
    const float* from = a + which * rows * columns * NUMBERS;
    for (int e = threadIdx.x; e < 1024; e += THREADS) {
      const int i = i0 + (turned ? e % 32 : e / 32), j = j0 + (turned ? e / 32 : e % 32);
      T x = zero();
      if (i < rows && j < columns) {
        x = turned ? conjugate(load_low(from + ((i64)j * rows + i) * NUMBERS)) : load_low(from + ((i64)i * columns + j) * NUMBERS);
        if (!is_finite(x)) {
          bad[which] = 1;
          x = zero();
        }
      }
      tile[(i - i0) * 33 + j - j0] = x;
    }
    __syncthreads();
    for (int e = threadIdx.x; e < 1024; e += THREADS) {
      const int i = i0 + e / 32, j = j0 + e % 32;
      if (i < rows && j < columns) to[which * rows * columns + (i64)i * columns + j] = tile[e / 32 * 33 + e % 32];
    }
    __syncthreads();
  });
}

// to <- from (rows x columns), or with `turned` its adjoint, in single precision; NaN where `bad`
extern "C" __global__ void __launch_bounds__(LW_THREADS)
    svd_narrow(const T* from, float* to, const int* bad, i64 batch, int rows, int columns, int turned) {
  T* tile = (T*)memory;  // 32 x 33
  each_tile(batch, rows, columns, [&](i64 which, int i0, int j0) {
    float* out = to + which * rows * columns * NUMBERS;
    for (int e = threadIdx.x; e < 1024; e += THREADS) {
      const int i = i0 + e / 32, j = j0 + e % 32;
      if (i < rows && j < columns) tile[e / 32 * 33 + e % 32] = from[which * rows * columns + (i64)i * columns + j];
    }
    __syncthreads();
    const bool good = !bad[which];
    for (int e = threadIdx.x; e < 1024; e += THREADS) {
      const int i = i0 + (turned ? e % 32 : e / 32), j = j0 + (turned ? e / 32 : e % 32);
      if (i >= rows || j >= columns) continue;
      const T x = good ? tile[(i - i0) * 33 + j - j0] : filled(not_a_number());
      store_low(out + (turned ? (i64)j * rows + i : (i64)i * columns + j) * NUMBERS, turned ? conjugate(x) : x);
    }
    __syncthreads();
  });
}

// to <- the columns of v (n x n), the last one first
extern "C" __global__ void __launch_bounds__(LW_THREADS) svd_flip(const T* v, T* to, i64 lines, int n) {
  for (i64 line = blockIdx.x; line < lines; line += gridDim.x)
    for (int j = threadIdx.x; j < n; j += THREADS) to[line * n + j] = v[line * n + n - 1 - j];
}

// Columns of b (rows x columns) get length one; s <- what their length was. Columns of zeros stay. A block has 32 of them.
extern "C" __global__ void __launch_bounds__(LW_THREADS) svd_unit(T* b, double* s, i64 batch, int rows, int columns) {
  constexpr int LINES = THREADS / 32;
  double* sums = (double*)memory;  // THREADS
  const int lane = threadIdx.x % 32, line = threadIdx.x / 32, groups = (columns + 31) / 32;
  for (i64 item = blockIdx.x; item < batch * groups; item += gridDim.x) {
    const i64 which = item / groups;
    const int j = (int)(item - which * groups) * 32 + lane;
    T* from = b + which * rows * columns + j;
    double sum = 0;
    if (j < columns)
#pragma unroll 8
      for (int i = line; i < rows; i += LINES) sum += square(from[(i64)i * columns]);
    sums[threadIdx.x] = sum;
    __syncthreads();
    double total = 0;
    for (int l = 0; l < LINES; l++) total += sums[l * 32 + lane];
    const double by = total > 0 ? 1 / sqrt(total) : 0;
    if (j < columns) {
      if (line == 0) s[which * columns + j] = sqrt(total);
#pragma unroll 8
      for (int i = line; i < rows; i += LINES) from[(i64)i * columns] = scale(from[(i64)i * columns], by);
    }
    __syncthreads();
  }
}

// G <- (3 I - G) / 2, a step of Newton's method for the nearest orthogonal matrix of which G is the Gram matrix; most <- the bits
// of the largest element of G - I as a float
extern "C" __global__ void __launch_bounds__(LW_THREADS) svd_correct(T* g, int* most, i64 lines, int n) {
  float largest = 0;
  for (i64 line = blockIdx.x; line < lines; line += gridDim.x)
    for (int j = threadIdx.x; j < n; j += THREADS) {
      const T one = from_real(Real(line % n == j)), x = g[line * n + j];
      largest = fmax(largest, (float)magnitude(subtract(x, one)));
      g[line * n + j] = add(scale(x, Real(-0.5)), scale(one, Real(1.5)));
    }
  for (int step = 16; step > 0; step /= 2) largest = fmax(largest, shuffle_xor(largest, step));
  if (threadIdx.x % 32 == 0 && largest > 0) atomicMax(most, (int)__float_as_uint(largest));
}

// Q R = B with R nearly diagonal and its diagonal real and positive: column j of q (rows x n) times the phase of r_jj
extern "C" __global__ void __launch_bounds__(LW_THREADS) svd_phase(T* q, const T* r, i64 batch, int rows, int n) {
  for (i64 line = blockIdx.x; line < batch * rows; line += gridDim.x) {
    const T* own = r + line / rows * n * n;
    for (int j = threadIdx.x; j < n; j += THREADS) {
      const T d = own[(i64)j * n + j];
      const Real squares = square(d);
      // a square near the smallest number has few digits; such a diagonal is rounding noise, whose phase does not matter
      q[line * n + j] = squares > Real(1e-280) ? multiply(q[line * n + j], scale(d, 1 / sqrt(squares))) : q[line * n + j];
    }
  }
}

// out <- the singular values in single precision, descending: each is at least the next ones. `squares`: s holds their squares,
// ascending. NaN, and info 1, where `bad` or the eigensolver failed. A block per matrix.
extern "C" __global__ void __launch_bounds__(LW_THREADS)
    svd_values(const double* s, float* out, int* bad, const int* status, int* info, i64 batch, int n, int squares) {
  float* most = (float*)memory;  // THREADS
  for (i64 which = blockIdx.x; which < batch; which += gridDim.x) {
    const double* own = s + which * n;
    const int each = (n + THREADS - 1) / THREADS, first = threadIdx.x * each, end = min(first + each, n);
    const auto value = [&](int j) { return (float)(squares ? sqrt(fmax(own[n - 1 - j], 0.0)) : own[j]); };
    float largest = 0;
    for (int j = first; j < end; j++) largest = fmax(largest, value(j));
    const bool good = !bad[which] && !status[which];
    most[threadIdx.x] = largest;
    __syncthreads();
    largest = 0;
    for (int t = threadIdx.x + 1; t < THREADS; t++) largest = fmax(largest, most[t]);
    for (int j = end - 1; j >= first; j--) {
      largest = fmax(largest, value(j));
      out[which * n + j] = good ? largest : (float)not_a_number();
    }
    __syncthreads();
    if (threadIdx.x == 0) bad[which] = info[which] = !good;
  }
}
