// Least squares by G = A^H A and its inverse (native/gpu/lstsq_gram.cc): which answers are as good as those of a QR.
#include "lstsq_block.cuh"

constexpr int WARPS = LW_THREADS / 32;
constexpr Real EPS = sizeof(Real) == 4 ? Real(1.1920929e-7) : Real(2.220446049250313e-16);
constexpr Real LARGE = sizeof(Real) == 4 ? 0x1p20 : 0x1p200;  // squares and quotients of numbers up to here stay in range

LW_INLINE Real size_of(T x) { return fabs(real(x)) + fabs(imaginary(x)); }

// sums <- the sums of the magnitudes of the rows of G, and of those of its inverse: a warp has a row
extern "C" __global__ void __launch_bounds__(LW_THREADS)
    lstsq_row_sums(const T* gram, const T* inverse, Real* sums, i64 rows, int n) {
  const int lane = threadIdx.x % 32;
  for (i64 row = (i64)blockIdx.x * WARPS + threadIdx.x / 32; row < 2 * rows; row += (i64)gridDim.x * WARPS) {
    const T* from = row < rows ? gram + row * n : inverse + (row - rows) * n;
    Real sum = 0;
#pragma unroll 4
    for (int j = lane; j < n; j += 32) sum += size_of(from[j]);
    sum = sum_lanes<32>(sum);
    if (lane == 0) sums[row] = sum;
  }
}

// f(i) of all i < n, summed, in every thread
template <typename F>
LW_INLINE Real sum_of(int n, F f) {
  Real *sums = (Real*)memory, sum = 0, whole = 0;
  for (int i = threadIdx.x; i < n; i += LW_THREADS) sum += f(i);
  sum = sum_lanes<32>(sum);
  __syncthreads();
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
  __syncthreads();
  for (int w = 0; w < WARPS; w++) whole += sums[w];
  return whole;
}

// The largest f(i), or NaN where there is one
template <typename F>
LW_INLINE Real largest_of(int n, F f) {
  Real *sums = (Real*)memory, largest = 0, whole = 0;
  bool good = true;
  for (int i = threadIdx.x; i < n; i += LW_THREADS) {
    const Real e = f(i);
    good = good && e <= Real(LW_LARGEST);
    largest = fmax(largest, e);
  }
  largest = max_lanes<32>(largest);
  __syncthreads();
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = largest;
  const bool bad = __syncthreads_count(!good) > 0;
  for (int w = 0; w < WARPS; w++) whole = fmax(whole, sums[w]);
  return bad ? not_a_number() : whole;
}

// x <- x + change, the residuals and the rank of the matrices whose x has settled; the rank DOUBTFUL for the others. `left` is b - A x.
extern "C" __global__ void __launch_bounds__(LW_THREADS)
    lstsq_judge(const T* b, const T* left, const T* change, const Real* sums, const int* failed, T* x, Real* residuals, int* rank,
                int* info, i64 batch, int m, int n, int k, double rcond) {
  for (i64 which = blockIdx.x; which < batch; which += gridDim.x) {
    const Real* of_inverse = sums + batch * n;
    const Real whole = largest_of(n, [&](int i) { return sums[which * n + i]; });
    const Real condition = whole * largest_of(n, [&](int i) { return of_inverse[which * n + i]; });  // the square of that of A, from above
    bool good = failed[which] == 0 && whole >= 1 / (LARGE * LARGE) && whole <= LARGE * LARGE &&
                16 * sqrt(Real(m)) * EPS * condition <= 1 && 4 * rcond * rcond * (double)condition < 1;
    for (int column = 0; column < k && good; column++) {
      const i64 of_b = which * m * k + column, of_x = which * n * k + column;
      const Real largest = largest_of(m, [&](int i) { return size_of(load_element(b + of_b + (i64)i * k)); });
      const bool finite = largest <= Real(LW_LARGEST);
      const Real residual = sum_of(m, [&](int i) { return square(left[of_b + (i64)i * k]); });
      const Real moved = sum_of(n, [&](int i) { return square(change[of_x + (i64)i * k]); });
      const Real size = sum_of(n, [&](int i) { return square(load_element(x + of_x + (i64)i * k)); });
      const Real close = 4 * (n + sqrt(Real(m))) * EPS;
      const bool settled = moved <= close * close * size && moved * condition * condition <= size;
      good = !finite || (settled && (largest == 0 || (largest >= 1 / LARGE && largest <= LARGE)));
      if (good) {
        for (int i = threadIdx.x; i < n; i += LW_THREADS) {
          T* at = x + of_x + (i64)i * k;
          store_element(at, finite ? add(load_element(at), change[of_x + (i64)i * k]) : filled(not_a_number()));
        }
        if (threadIdx.x == 0) residuals[which * k + column] = finite ? residual : not_a_number();
      }
    }
    if (threadIdx.x == 0) {
      rank[which] = good ? n : DOUBTFUL;
      info[which] = 0;
    }
    __syncthreads();
  }
}
