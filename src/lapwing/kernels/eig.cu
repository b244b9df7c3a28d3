// Eigenvalues, eigenvectors and Schur forms of many general matrices in one launch.
//
// Stages: scaling and balancing by powers of two, Householder reduction to Hessenberg form H, implicit QR sweeps (Francis's
// double shift for real matrices, a single shift for complex ones) to the Schur form T, back substitution for the vectors.
//
// Where a block has a matrix, its first warp sweeps inside the active window of H alone. The other warps apply that sweep to Z,
// to the rows of H above the window and to the columns on its right while the first warp is already busy with the next sweep.
#include "eig_hessenberg.cuh"
#include "eig_qr.cuh"
#include "eig_vectors.cuh"

// All stages, from A in H to T, or to the vectors in Z, both of A / 2^exponent. False where they failed.
LW_INLINE bool Matrix::solve(int& exponent) const {
  exponent = normalise();
  if (exponent == NOT_FINITE) return false;
  if (MODE != SCHUR) {
    balance();
    together();
    exponent += normalise();
  }
  reduce();
  if (!iterate()) return false;
  if (MODE == VECTORS) vectors();
  return true;
}

// Shared memory, taken piece by piece. The launcher adds up the same pieces (shared_bytes in native/gpu/eig.cc).
struct Pool {
  char* at;
  template <typename E>
  LW_INLINE E* take(int count) {
    E* first = (E*)at;
    at += (count * (int)sizeof(E) + 15) / 16 * 16;
    return first;
  }
};

#if LW_P == 1
// A thread per matrix. Element e of all matrices of a block, then element e + 1 of all: threads read different banks.
extern "C" __global__ void __launch_bounds__(LW_THREADS) eig(Eig call) {
  constexpr int N = LW_N, NN = N * N;
  Pool pool{memory};
  T* h = pool.take<T>(NN * STRIDE);
  T* z = MODE != VALUES ? pool.take<T>(NN * STRIDE) : nullptr;
  Real* room = pool.take<Real>(N * PER_ROW * STRIDE);
  int* scales = pool.take<int>(2 * N * STRIDE);
  const int t = threadIdx.x;
  auto matrix = [&](int slot) {
    int* const first = scales + slot;
    return Matrix{h + slot, z + slot, room, first, first + N * STRIDE, nullptr, nullptr, N, N, 0, 0, 0, slot};
  };
  const i64 first = (i64)blockIdx.x * LW_THREADS;
  const int count = call.batch - first < LW_THREADS ? (int)(call.batch - first) : LW_THREADS;
  for (int e = t; e < count * NN; e += LW_THREADS) h[e % NN * STRIDE + e / NN] = load_element(call.a + first * NN + e);
  __syncthreads();
  if (t < count) {
    const Matrix m = matrix(t);
    int exponent;
    const bool failed = !m.solve(exponent);
    call.info[first + t] = failed;
    if (MODE != SCHUR) m.store_values(call.w + (first + t) * 2 * N, exponent, failed);
    m.scales[0] = exponent;
    m.steps[0] = failed;
  }
  __syncthreads();
  if (MODE == VECTORS) {
    for (int e = t; e < count * NN; e += LW_THREADS) {
      const Matrix m = matrix(e / NN);
      const C x = m.steps[0] ? complex_nan() : m.vector(e % NN / N, e % N);
      Real* to = call.v + (first * NN + e) * 2;
      to[0] = x.re;
      to[1] = x.im;
    }
  }
  if (MODE == SCHUR) {
    for (int e = t; e < count * NN; e += LW_THREADS) {
      const Matrix m = matrix(e / NN);
      const int i = e % NN / N, j = e % N;
      const bool failed = m.steps[0];
      store_element(call.t + first * NN + e, failed ? element_nan() : m.schur(i, j, m.scales[0]));
      store_element(call.z + first * NN + e, failed ? element_nan() : m.Z(i, j));
    }
  }
}
#else
// A warp or a block per matrix. Where part of it is in global memory, a block does several matrices one after the other.
extern "C" __global__ void __launch_bounds__(LW_THREADS) eig(Eig call) {
  constexpr bool H_GLOBAL = (LW_GLOBAL & 2) != 0;
  const int n = call.n, pitch = H_GLOBAL ? n : n | 1;
  Pool pool{memory};
  Matrix m;
  m.h = H_GLOBAL ? call.scratch + (2 * (i64)blockIdx.x + 1) * n * n : pool.take<T>(n * pitch);
  m.z = Z_GLOBAL         ? call.scratch + (H_GLOBAL ? 2 : 1) * (i64)blockIdx.x * n * n
        : MODE != VALUES ? pool.take<T>(n * pitch)
                         : nullptr;
  m.room = pool.take<Real>(n * PER_ROW);
  m.scales = pool.take<int>(2 * n);
  m.jobs = pool.take<Job>(P > WARP ? 2 : 0);
  m.sums = pool.take<Real>(P > WARP ? GROUPS : 0);
  m.steps = m.scales + n;
  m.n = n;
  m.pitch = pitch;
  m.t = threadIdx.x;
  m.lane = threadIdx.x % LANES;
  m.group = m.t / LANES;
  m.slot = 0;
  for (i64 b = blockIdx.x; b < call.batch; b += gridDim.x) {
    const i64 start = b * n * n;
    for (int i = m.group; i < n; i += GROUPS)
      for (int j = m.lane; j < n; j += LANES) m.H(i, j) = load_element(call.a + start + i * n + j);
    together();
    int exponent;
    const bool failed = !m.solve(exponent);
    together();
    if (m.t == 0) call.info[b] = failed;
    if (MODE != SCHUR) m.store_values(call.w + b * 2 * n, exponent, failed);
    for (int i = m.group; MODE != VALUES && i < n; i += GROUPS)
      for (int j = m.lane; j < n; j += LANES) {
        if (MODE == VECTORS) {
          const C x = failed ? complex_nan() : m.vector(i, j);
          Real* to = call.v + (start + i * n + j) * 2;
          to[0] = x.re;
          to[1] = x.im;
        } else {
          store_element(call.t + start + i * n + j, failed ? element_nan() : m.schur(i, j, exponent));
          store_element(call.z + start + i * n + j, failed ? element_nan() : m.Z(i, j));
        }
      }
    together();
  }
}
#endif
