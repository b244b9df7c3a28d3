// Least squares from A = Q R, or A^H = Q R: x = R^-1 (Q^H b), or the R^-H b that Q is then applied to; and whether the rank is
// certainly full, from R alone. A block of threads for each matrix, or for each right-hand side.
#include "lstsq.cuh"

struct Call {
  const T* r;      // the upper triangle of each matrix, its rows `r_ld` elements apart
  const T* right;  // Q^H b or b
  T* x;
  Real* residuals;
  int* rank;
  int* info;
  const int* a_state;
  const int* b_state;  // of each column
  i64 batch, r_stride, right_stride;  // elements between matrices
  int r_ld, right_ld, right_rows, order, k, x_rows;
  int adjoint;  // 1: with R^H, and x is not yet multiplied by Q
};

constexpr int WARPS = LW_THREADS / 32, PITCH = TILE + 1;

// A triangle in global memory, and a vector z in shared memory that it is solved for, 32 elements at a time.
struct Triangle {
  const T* r;
  i64 ld;
  int n;
  T* z;
  T* tile;  // 32 x 33
  T* part;  // 32
  Real* sums;

  LW_INLINE void load_tile(int i0) const {
    for (int e = threadIdx.x; e < TILE * TILE; e += LW_THREADS) {
      const int i = i0 + e / TILE, j = i0 + e % TILE;
      tile[e / TILE * PITCH + e % TILE] = i < n && j < n ? r[i * ld + j] : from_real(Real(i == j));
    }
  }

  // z <- R^-H z
  LW_INLINE void solve_adjoint() const {
    const int lane = threadIdx.x % 32;
    for (int i0 = 0; i0 < n; i0 += TILE) {
      load_tile(i0);
      __syncthreads();
      if (threadIdx.x < 32) {
        T x = i0 + lane < n ? z[i0 + lane] : zero();
        const T inverse = conjugate(inverse_of(tile[lane * PITCH + lane]));
        for (int c = 0; c < TILE; c++) {
          const T own = multiply(x, inverse), y = from_lane(own, c);
          x = lane == c ? own : lane > c ? subtract_product(x, y, tile[c * PITCH + lane]) : x;
        }
        if (i0 + lane < n) z[i0 + lane] = x;
      }
      __syncthreads();
      for (int j = i0 + TILE + threadIdx.x; j < n; j += LW_THREADS) {
        T x = z[j];
#pragma unroll 8
        for (int c = 0; c < TILE; c++) x = subtract_product(x, z[i0 + c], r[(i0 + c) * ld + j]);
        z[j] = x;
      }
      __syncthreads();
    }
  }

  // z <- R^-1 z
  LW_INLINE void solve() const {
    const int lane = threadIdx.x % 32;
    for (int i0 = (n - 1) / TILE * TILE; i0 >= 0; i0 -= TILE) {
      load_tile(i0);
      for (int i = threadIdx.x / 32; i < TILE && i0 + i < n; i += WARPS) {
        T sum = zero();
#pragma unroll 8
        for (int j = i0 + TILE + lane; j < n; j += 32) sum = add_plain(sum, r[(i0 + i) * ld + j], z[j]);
        sum = sum_lanes<32>(sum);
        if (lane == 0) part[i] = sum;
      }
      __syncthreads();
      if (threadIdx.x < 32) {
        T x = i0 + lane < n ? subtract(z[i0 + lane], part[lane]) : zero();
        const T inverse = inverse_of(tile[lane * PITCH + lane]);
        for (int c = TILE - 1; c >= 0; c--) {
          const T own = multiply(x, inverse), y = from_lane(own, c);
          x = lane == c ? own : lane < c ? subtract_plain(x, tile[lane * PITCH + c], y) : x;
        }
        if (i0 + lane < n) z[i0 + lane] = x;
      }
      __syncthreads();
    }
  }

  // The sum over all threads, in each of them
  LW_INLINE Real total(Real x) const {
    x = sum_lanes<32>(x);
    __syncthreads();
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = x;
    __syncthreads();
    Real sum = 0;
    for (int w = 0; w < WARPS; w++) sum += sums[w];
    return sum;
  }

  // z <- z / |z|; |z|
  LW_INLINE Real normalise() const {
    Real sum = 0;
    for (int i = threadIdx.x; i < n; i += LW_THREADS) sum += square(z[i]);
    const Real size = sqrt(total(sum));
    for (int i = threadIdx.x; i < n; i += LW_THREADS) z[i] = scale(z[i], 1 / size);
    __syncthreads();
    return size;
  }

  LW_INLINE Real frobenius() const {
    Real sum = 0;
    for (int i = threadIdx.x / 32; i < n; i += WARPS)
      for (int j = i + threadIdx.x % 32; j < n; j += 32) sum += square(r[i * ld + j]);
    return sqrt(total(sum));
  }
};

LW_INLINE Triangle triangle_of(const Call& call, i64 which) {
  Triangle t{call.r + which * call.r_stride, call.r_ld, call.order};
  t.tile = (T*)memory;
  t.part = t.tile + TILE * PITCH;
  t.sums = (Real*)(t.part + TILE);
  t.z = (T*)(t.sums + 32);
  return t;
}

// rank <- the order where the smallest singular value of R is certainly above rcond times the largest, else -1
extern "C" __global__ void __launch_bounds__(LW_THREADS) lstsq_rank(Call call, double rcond) {
  for (i64 which = blockIdx.x; which < call.batch; which += gridDim.x) {
    const Triangle t = triangle_of(call, which);
    const bool finite = call.a_state[which] < NOT_FINITE;
    bool full = false;
    if (finite) {
      const double whole = t.frobenius();
      for (int i = threadIdx.x; i < t.n; i += LW_THREADS) t.z[i] = start_element(i);
      __syncthreads();
      for (int round = 0; round < ROUNDS && !full; round++) {
        t.solve_adjoint();
        const double before = t.normalise();
        t.solve();
        const double inverse = t.normalise();
        if (!is_proof(before, inverse)) break;
        full = is_full(round, whole, inverse, rcond);
      }
    }
    if (threadIdx.x == 0) {
      call.rank[which] = full ? call.order : finite ? -1 : 0;
      call.info[which] = !finite;
    }
    __syncthreads();
  }
}

// x and the squared norm of the residual for one right-hand side each
extern "C" __global__ void __launch_bounds__(LW_THREADS) lstsq_solve(Call call) {
  for (i64 item = blockIdx.x; item < call.batch * call.k; item += gridDim.x) {
    const i64 which = item / call.k;
    const int column = (int)(item - which * call.k);
    const Triangle t = triangle_of(call, which);
    const T* right = call.right + which * call.right_stride + column;
    for (int i = threadIdx.x; i < t.n; i += LW_THREADS) t.z[i] = right[(i64)i * call.right_ld];
    Real rest = 0;
    if (!call.adjoint)
      for (int i = t.n + threadIdx.x; i < call.right_rows; i += LW_THREADS) rest += square(right[(i64)i * call.right_ld]);
    rest = t.total(rest);
    if (call.adjoint)
      t.solve_adjoint();
    else
      t.solve();
    const bool finite = call.a_state[which] < NOT_FINITE;
    const int up = exponent_of(call.b_state[item]), down = exponent_of(call.a_state[which]);
    T* x = call.x + (which * call.x_rows) * call.k + column;
    for (int i = threadIdx.x; i < call.x_rows; i += LW_THREADS) {
      const T value = i < t.n ? shifted(t.z[i], up - down) : zero();
      store_element(x + (i64)i * call.k, finite ? value : filled(not_a_number()));
    }
    if (threadIdx.x == 0) call.residuals[item] = finite ? shifted(shifted(rest, up), up) : not_a_number();
    __syncthreads();
  }
}

// From an SVD of some matrices: the rank, and y (least x k) <- S^+ y
extern "C" __global__ void __launch_bounds__(LW_THREADS)
    lstsq_weigh(T* y, const Real* s, int* rank, int* info, const int* failed, i64 batch, int least, int k, double rcond) {
  for (i64 which = blockIdx.x; which < batch; which += gridDim.x) {
    const Real* values = s + which * least;
    const double limit = rcond * (double)values[0];
    const bool good = !failed[which];
    int above = 0;
    while (above < least && (double)values[above] > limit) above++;
    for (i64 i = threadIdx.x; i < (i64)least * k; i += LW_THREADS) {
      T* at = y + which * least * k + i;
      *at = !good ? filled(not_a_number()) : i / k < above ? scale(*at, 1 / values[i / k]) : zero();
    }
    if (threadIdx.x == 0) rank[which] = good ? above : 0, info[which] = !good;
  }
}

// residuals <- the squared norms of the columns of `left` (rows x k); x (x_rows x k) and they are scaled back
extern "C" __global__ void __launch_bounds__(LW_THREADS)
    lstsq_settle(const T* left, T* x, Real* residuals, const int* a_state, const int* b_state, i64 batch, int rows, int x_rows,
                 int k) {
  Real* sums = (Real*)memory;
  for (i64 item = blockIdx.x; item < batch * k; item += gridDim.x) {
    const i64 which = item / k;
    const int column = (int)(item - which * k), up = exponent_of(b_state[item]), down = exponent_of(a_state[which]);
    Real sum = 0;
    for (int i = threadIdx.x; i < rows; i += LW_THREADS) sum += square(left[(which * rows + i) * k + column]);
    sum = sum_lanes<32>(sum);
    __syncthreads();
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
    __syncthreads();
    Real total = 0;
    for (int w = 0; w < WARPS; w++) total += sums[w];
    if (threadIdx.x == 0) residuals[item] = shifted(shifted(total, up), up);
    for (int i = threadIdx.x; i < x_rows; i += LW_THREADS) {
      T* at = x + (which * x_rows + i) * k + column;
      store_element(at, shifted(load_element(at), up - down));
    }
  }
}
