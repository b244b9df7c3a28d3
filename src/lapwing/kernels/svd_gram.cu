// The SVD by the eigenvectors of G = M^H M in double precision: copies on the way in and out, and work on columns.
// T is double or complex of double; the matrix itself is in single precision, or with LW_LOW 0 as T. M is A, or A^H where it is wide;
// all is row-major.
#include "qr_state.cuh"

constexpr int THREADS = LW_THREADS;

#if LW_LOW
typedef float Low;
#else
typedef double Low;
#endif
#if LW_DTYPE < 2
LW_INLINE T load_low(const Low* from) { return (double)from[0]; }
LW_INLINE void store_low(Low* to, T x) { to[0] = (Low)x; }
constexpr int NUMBERS = 1;
#else
LW_INLINE T load_low(const Low* from) { return T{(double)from[0], (double)from[1]}; }
LW_INLINE void store_low(Low* to, T x) { to[0] = (Low)x.re, to[1] = (Low)x.im; }
constexpr int NUMBERS = 2;  // an element may be aligned to one number alone
#endif

// What a matrix is divided by, and its values are multiplied by
LW_INLINE Real size_of_matrix(const int* state, i64 which) { return LW_LOW ? Real(1) : ldexp(Real(1), exponent_of(state[which])); }

// The 32 x 32 tiles of `batch` matrices: f(matrix, first row, first column) for those of this block.
template <typename F>
LW_INLINE void each_tile(i64 batch, int rows, int columns, F f) {
  const i64 across = (columns + 31) / 32, tiles = (rows + 31) / 32 * across;
  for (i64 item = blockIdx.x; item < batch * tiles; item += gridDim.x) {
    const i64 which = item / tiles, number = item - which * tiles;
    f(which, (int)(number / across) * 32, (int)(number % across) * 32);
  }
}

// to (rows x columns) <- a near 1, or with `turned` its adjoint; bad <- 1 where a matrix is not finite, of which zeros are read.
// Matrices in single precision need no scaling, and have no state.
extern "C" __global__ void __launch_bounds__(LW_THREADS)
    svd_widen(const Low* a, T* to, const int* state, int* bad, i64 batch, int rows, int columns, int turned) {
  T* tile = (T*)memory;  // 32 x 33
  each_tile(batch, rows, columns, [&](i64 which, int i0, int j0) {
    const Real by = 1 / size_of_matrix(state, which);
    const Low* from = a + which * rows * columns * NUMBERS;
    for (int e = threadIdx.x; e < 1024; e += THREADS) {
      const int i = i0 + (turned ? e % 32 : e / 32), j = j0 + (turned ? e / 32 : e % 32);
      T x = zero();
      if (i < rows && j < columns) {
        x = turned ? conjugate(load_low(from + ((i64)j * rows + i) * NUMBERS)) : load_low(from + ((i64)i * columns + j) * NUMBERS);
        if (!is_finite(x)) {
          bad[which] = 1;
          x = zero();
        }
        x = scale(x, by);
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

// to <- from (rows x columns), or with `turned` its adjoint, in the precision of the answer; NaN where `bad`
extern "C" __global__ void __launch_bounds__(LW_THREADS)
    svd_narrow(const T* from, Low* to, const int* bad, i64 batch, int rows, int columns, int turned) {
  T* tile = (T*)memory;  // 32 x 33
  each_tile(batch, rows, columns, [&](i64 which, int i0, int j0) {
    Low* out = to + which * rows * columns * NUMBERS;
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

// sigma_j <- the singular value by u_j^H M v_j, with the lengths that u_j and v_j have got; r = U^H U, s = V^H V, t = U^H M V
extern "C" __global__ void __launch_bounds__(LW_THREADS)
    svd_quotients(const T* r, const T* s, const T* t, double* sigma, i64 lines, int n) {
  for (i64 line = (i64)blockIdx.x * THREADS + threadIdx.x; line < lines; line += (i64)gridDim.x * THREADS) {
    const i64 at = line * n + line % n;
    const double both = real(r[at]) + real(s[at]);
    sigma[line] = both > 0 ? 2 * real(t[at]) / both : 0;
  }
}

// One step towards orthogonal U and V with U^H M V diagonal, of first order in what is missing (Ogita and Aishima): r <- I + F,
// s <- I + G, of which U F and V G are the corrections. Two vectors are not turned, but made orthogonal, each by half of what is missing,
// where that leaves no more than rounding noise in U^H M V. most <- the bits of the largest element of F and G as a float, for each
// matrix.
extern "C" __global__ void __launch_bounds__(LW_THREADS)
    svd_refine(T* r, T* s, const T* t, const double* sigma, const int* bad, const int* status, int* most, i64 lines, int n) {
  for (i64 line = blockIdx.x; line < lines; line += gridDim.x) {
    const i64 which = line / n;
    const int i = (int)(line - which * n);
    const double *own = sigma + which * n, mine = own[i], noise = fmax(4.0, sqrt((double)n)) * LW_EPS * own[0];
    double largest = status[which] ? 1 : 0;
    for (int j = threadIdx.x; j <= i; j += THREADS) {
      const i64 at = line * n + j, across = (which * n + j) * n + i;
      // what is missing: F + F^H = -r and G + G^H = -s, but for the ones on the diagonal
      const T one = from_real(Real(i == j)), of_u = subtract(one, r[at]), of_v = subtract(one, s[at]);
      T f = scale(of_u, Real(0.5)), g = scale(of_v, Real(0.5));
      if (i != j) {
        const double other = own[j], gap = (other - mine) * (other + mine);
        const T alpha = add(t[at], scale(of_u, other)), beta = add(conjugate(t[across]), scale(of_v, other));
        // (U^H M V)_ij and the conjugate of (U^H M V)_ji with the halves that f and g are by now
        const T rest = add(t[at], add(scale(f, other), scale(g, mine)));
        const T rest_across = add(conjugate(t[across]), add(scale(f, mine), scale(g, other)));
        if (fmax(magnitude(rest), magnitude(rest_across)) > noise) {
          f = scale(add(scale(alpha, other), scale(beta, mine)), 1 / gap);
          g = scale(add(scale(alpha, mine), scale(beta, other)), 1 / gap);
        }
      }
      if (!is_finite(f) || !is_finite(g)) {
        f = g = zero();
        largest = 1;
      }
      const T f_across = conjugate(subtract(of_u, f)), g_across = conjugate(subtract(of_v, g));
      largest = fmax(largest, fmax(fmax(magnitude(f), magnitude(g)), fmax(magnitude(f_across), magnitude(g_across))));
      r[across] = add(one, f_across);
      s[across] = add(one, g_across);
      r[at] = add(one, f);
      s[at] = add(one, g);
    }
    float bound = bad[which] ? 0 : (float)fmin(largest, 1.0);
    for (int step = 16; step > 0; step /= 2) bound = fmax(bound, shuffle_xor(bound, step));
    if (threadIdx.x % 32 == 0 && bound > 0) atomicMax(most + which, (int)__float_as_uint(bound));
  }
}

// out <- the singular values in the precision of the answer, descending: each is at least the next ones. `squares`: s holds their
// squares, ascending. NaN, and info 1, where `bad` or the eigensolver failed. A block per matrix.
extern "C" __global__ void __launch_bounds__(LW_THREADS)
    svd_values(const double* s, Low* out, const int* state, int* bad, const int* status, int* info, i64 batch, int n, int squares) {
  Low* most = (Low*)memory;  // THREADS
  for (i64 which = blockIdx.x; which < batch; which += gridDim.x) {
    const double* own = s + which * n;
    const int each = (n + THREADS - 1) / THREADS, first = threadIdx.x * each, end = min(first + each, n);
    const double up = size_of_matrix(state, which);
    const auto value = [&](int j) { return (Low)((squares ? sqrt(fmax(own[n - 1 - j], 0.0)) : own[j]) * up); };
    Low largest = 0;
    for (int j = first; j < end; j++) largest = fmax(largest, value(j));
    const bool good = !bad[which] && !status[which];
    most[threadIdx.x] = largest;
    __syncthreads();
    largest = 0;
    for (int t = threadIdx.x + 1; t < THREADS; t++) largest = fmax(largest, most[t]);
    for (int j = end - 1; j >= first; j--) {
      largest = fmax(largest, value(j));
      out[which * n + j] = good ? largest : (Low)not_a_number();
    }
    __syncthreads();
    if (threadIdx.x == 0) bad[which] = info[which] = !good;
  }
}
