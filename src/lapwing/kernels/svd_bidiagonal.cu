// Square matrices L to real bidiagonal form B = U^H L V, for their singular values alone. With signs those are the eigenvalues of the
// symmetric tridiagonal matrix with zeros on its diagonal and the elements of B in turns beside it (Golub and Kahan).
//
// Step j takes column j to the diagonal by a reflection I - conj(tau) u u^H from the left, and row j to the element beside it by one
// from the right, I - sigma v v^H. Both together are L <- L - u t - w v^H with the row t = conj(tau) u^H L and the column
// w = sigma (L - u t) v. A block of threads has a matrix, its warps have columns, their lanes rows. They go over L twice in a step:
// once to subtract what the step before left behind and to multiply by u^H, once to multiply by v.
#include "qr_state.cuh"

constexpr int WARPS = LW_THREADS / 32;
constexpr int COLUMNS = 4;  // of a warp, at the same time

struct Bidiagonal {
  T* work;           // L: column c at work + c pitch, n of them
  const int* state;  // qr_state.cuh
  Real *d, *e, *up;  // of the tridiagonal matrices: 2 n numbers each, and minus what their values are multiplied by
  int* failed;
  i64 batch;
  int n, pitch;
};

extern "C" __global__ void __launch_bounds__(LW_THREADS) svd_bidiagonal(Bidiagonal call) {
  const int n = call.n, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  T *left = (T*)memory, *w = left + 2 * n, *t = w + n, *v = t + n;  // left: u of this step and of the one before
  T *parts = v + n, *factors = parts + WARPS * n;                   // sums of each warp; sigma and t v
#if LW_ON_CHIP
  T* const a = factors + 2;
  const int pitch = n | 1;
#else
  const int pitch = call.pitch;
#endif
  for (i64 which = blockIdx.x; which < call.batch; which += gridDim.x) {
    T* whole = call.work + which * n * call.pitch;
#if LW_ON_CHIP
    for (int c = warp; c < n; c += WARPS)
      for (int i = lane; i < n; i += 32) a[c * pitch + i] = whole[(i64)c * call.pitch + i];
#else
    T* const a = whole;
#endif
    Real *d = call.d + which * 2 * n, *e = call.e + which * 2 * n;
    for (int i = threadIdx.x; i < 2 * n; i += LW_THREADS) d[i] = 0;
    for (int i = threadIdx.x; i < 5 * n; i += LW_THREADS) left[i] = zero();
    if (threadIdx.x == 0) {
      const int state = call.state[which];
      call.failed[which] = state >= NOT_FINITE;
      call.up[which] = -ldexp(Real(1), exponent_of(state));
    }
    __syncthreads();
    for (int j = 0; j < n; j++) {
      T *u = left + j % 2 * n, *last = left + (j + 1) % 2 * n, tau = zero();
      if (warp == 0) {  // column j
        const T of_t = t[j], of_v = conjugate(v[j]);
        T first = zero();
        Real rest = 0, beta;
        for (int i = j + lane; i < n; i += 32) {
          const T x = subtract_plain(subtract_plain(a[(i64)j * pitch + i], last[i], of_t), w[i], of_v);
          u[i] = x;
          if (i == j) first = x;
          rest += i > j ? square(x) : Real(0);
        }
        const T by = reflector(sum_lanes<32>(first), sum_lanes<32>(rest), tau, beta);
        for (int i = j + lane; i < n; i += 32) u[i] = i == j ? from_real(Real(1)) : multiply(u[i], by);
        if (lane == 0) factors[0] = tau, e[2 * j] = beta;
      }
      __syncthreads();
      if (j + 1 == n) break;
      tau = conjugate(factors[0]);
      for (int c0 = j + 1 + warp; c0 < n; c0 += COLUMNS * WARPS) {
        T sums[COLUMNS], of_t[COLUMNS], of_v[COLUMNS];
#pragma unroll
        for (int q = 0; q < COLUMNS; q++) {
          const int c = c0 + q * WARPS;
          sums[q] = zero();
          of_t[q] = c < n ? t[c] : zero();
          of_v[q] = c < n ? conjugate(v[c]) : zero();
        }
        for (int i = j + lane; i < n; i += 32) {
          const T of_last = last[i], of_w = w[i], across_u = conjugate(u[i]);
#pragma unroll
          for (int q = 0; q < COLUMNS; q++) {
            const int c = c0 + q * WARPS;
            if (c < n) {
              const T x = subtract_plain(subtract_plain(a[(i64)c * pitch + i], of_last, of_t[q]), of_w, of_v[q]);
              a[(i64)c * pitch + i] = x;
              sums[q] = add_plain(sums[q], across_u, x);
            }
          }
        }
        const int own = c0 + sum_columns(sums) * WARPS;
        sync_warp();  // all lanes have read t
        if (lane % (32 / COLUMNS) == 0 && own < n) t[own] = multiply(tau, sums[0]);
      }
      __syncthreads();
      if (warp == 0) {  // row j, as it is after the reflection from the left, where u is 1
        T first = zero(), sigma, sum = zero();
        Real rest = 0, beta;
        for (int c = j + 1 + lane; c < n; c += 32) {
          const T x = conjugate(subtract(a[(i64)c * pitch + j], t[c]));
          v[c] = x;
          if (c == j + 1) first = x;
          rest += c > j + 1 ? square(x) : Real(0);
        }
        const T by = reflector(sum_lanes<32>(first), sum_lanes<32>(rest), sigma, beta);
        for (int c = j + 1 + lane; c < n; c += 32) {
          const T x = c == j + 1 ? from_real(Real(1)) : multiply(v[c], by);
          v[c] = x;
          sum = add_plain(sum, t[c], x);
        }
        sum = sum_lanes<32>(sum);
        if (lane == 0) factors[0] = sigma, factors[1] = sum, e[2 * j + 1] = beta;
      }
      __syncthreads();
      for (int i = j + 1 + lane; i < n; i += 32) {
        T sum = zero();
        for (int c = j + 1 + warp; c < n; c += WARPS) sum = add_plain(sum, a[(i64)c * pitch + i], v[c]);
        parts[warp * n + i] = sum;
      }
      __syncthreads();
      for (int i = j + 1 + threadIdx.x; i < n; i += LW_THREADS) {
        T sum = multiply(negate(u[i]), factors[1]);
#pragma unroll
        for (int k = 0; k < WARPS; k++) sum = add(sum, parts[k * n + i]);
        w[i] = multiply(factors[0], sum);
      }
      __syncthreads();
    }
    if (threadIdx.x == 0) e[2 * n - 1] = 0;
    __syncthreads();
  }
}
