// Eigenvectors of a tridiagonal matrix back to those of the matrix that tridiagonal.cu reduced: what batched products leave to do.
#include "eigh.cuh"

// T of I - V T V^H, which is the product of LW_WIDTH reflections, from V^H V and their factors. Both are stored column by column.
// LW_SHARE lanes have a row of T.
constexpr int WIDTH = LW_WIDTH, SHARE = 4, LINE = WIDTH + 1;

extern "C" __global__ void __launch_bounds__(SHARE* WIDTH)
    tridiagonal_factor(const T* gram, const T* tau, T* factor, i64 count) {
  T* rows = (T*)memory;  // WIDTH lines of LINE elements
  T* column = rows + WIDTH * LINE;
  const int t = threadIdx.x, i = t / SHARE, part = t % SHARE;
  for (i64 which = blockIdx.x; which < count; which += gridDim.x) {
    const T* g = gram + which * WIDTH * WIDTH;
    for (int k = t; k < WIDTH * LINE; k += SHARE * WIDTH) rows[k] = zero();
    T next = t < WIDTH ? g[t] : zero();
    for (int j = 0; j < WIDTH; j++) {
      if (t < WIDTH) {
        column[t] = next;
        if (j + 1 < WIDTH) next = g[(j + 1) * WIDTH + t];
      }
      __syncthreads();
      const T by = tau[which * WIDTH + j];
      T sum = zero();
      for (int k = part; k < j; k += SHARE) sum = add_plain(sum, rows[i * LINE + k], column[k]);
#pragma unroll
      for (int step = SHARE / 2; step > 0; step /= 2) sum = add(sum, across(sum, step));
      if (part == 0) rows[i * LINE + j] = i == j ? by : select(i < j, negate(multiply(by, sum)), zero());
      __syncthreads();
    }
    T* to = factor + which * WIDTH * WIDTH;
    for (int k = t; k < WIDTH * WIDTH; k += SHARE * WIDTH) to[k] = rows[k % WIDTH * LINE + k / WIDTH];
    __syncthreads();
  }
}

// v and tau <- the vectors and factors that eigh.cu or eigh_panel.cu left right of the diagonal of h, with the zeros around them
extern "C" __global__ void __launch_bounds__(256)
    tridiagonal_take(const T* h, const T* from, T* v, T* tau, i64 batch, int n, int pitch, int rows) {
  for (i64 row = blockIdx.x; row < batch * rows; row += gridDim.x) {
    const i64 m = row / rows;
    const int k = (int)(row - m * rows);
    const bool has = k < n - 1;
    for (int i = threadIdx.x; i < pitch; i += 256)
      v[row * pitch + i] = has && i > k && i < n ? h[(m * n + k) * pitch + i] : zero();
    if (threadIdx.x == 0) tau[row] = has ? from[m * n + k] : zero();
  }
}

// Real vectors as complex ones
extern "C" __global__ void __launch_bounds__(256) tridiagonal_widen(const Real* from, T* to, i64 count) {
  for (i64 k = (i64)blockIdx.x * 256 + threadIdx.x; k < count; k += (i64)gridDim.x * 256) to[k] = from_real(from[k]);
}

struct Answer {
  const Real *w, *up;
  const T* z;                    // row j: the vector of value j
  const int *reduced, *divided;  // what went wrong before
  Real* values;
  T* vectors;
  int* info;
  i64 batch;
  int n, first, count;
};

// The values and vectors that were asked for, 32 x 32 elements at a time: column j of `vectors` is that of value first + j
extern "C" __global__ void __launch_bounds__(256) tridiagonal_give(Answer at) {
  constexpr int ROW = 33;
  T* tile = (T*)memory;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, down = (at.n + 31) / 32, right = (at.count + 31) / 32;
  for (i64 job = blockIdx.x; job < at.batch * down * right; job += gridDim.x) {
    const i64 m = job / (down * right);
    const int rest = (int)(job - m * down * right), i0 = rest / right * 32, j0 = rest % right * 32;
    const bool bad = at.reduced[m] || at.divided[m];
    for (int j = warp; j < 32 && j0 + j < at.count; j += 8)
      if (i0 + lane < at.n) tile[j * ROW + lane] = at.z[(m * at.n + at.first + j0 + j) * at.n + i0 + lane];
    __syncthreads();
    for (int i = warp; i < 32 && i0 + i < at.n; i += 8)
      if (j0 + lane < at.count)
        store_element(at.vectors + (m * at.n + i0 + i) * at.count + j0 + lane,
                      bad ? filled(not_a_number()) : tile[lane * ROW + i]);
    if (i0 == 0 && warp == 0 && j0 + lane < at.count)
      at.values[m * at.count + j0 + lane] = bad ? not_a_number() : at.w[m * at.n + at.first + j0 + lane] * at.up[m];
    if (rest == 0 && threadIdx.x == 0) at.info[m] = bad;
    __syncthreads();
  }
}
