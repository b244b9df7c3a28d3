// Eigenvalues and eigenvectors of many tiny Hermitian matrices: one thread per matrix, cyclic Jacobi in registers.
//
// Compiled for the exact LW_N = n, with LW_VECTORS 0 for eigenvalues alone. Every matrix is read whole before anything of it
// is written, so v may be a.
#include "eigh.cuh"
#include "stage.cuh"

constexpr int N = LW_N;
typedef Stage<N * N * SIZE> Whole;
constexpr int SWEEPS = 16;  // about 5 are taken, 8 by the most stubborn matrices

// One matrix: the diagonal, what lies above it, and the vectors as columns.
struct Matrix {
  Real d[N];
  T a[N][N];  // i < j
  T v[N][N];

  LW_INLINE T get(int i, int j) const { return i < j ? a[i][j] : conjugate(a[j][i]); }
  LW_INLINE void set(int i, int j, T x) {
    if (i < j)
      a[i][j] = x;
    else
      a[j][i] = conjugate(x);
  }

  // A <- J^H A J and V <- V J with J = [c s; -conj(s) c] in the plane (p,q), which makes A(p,q) zero. With d = A(q,q) - A(p,p)
  // and r = sqrt(d^2 + 4 |A(p,q)|^2): c^2 = (1 + |d| / r) / 2 and s = sign(d) A(p,q) / (r c); no division is needed.
  LW_INLINE void rotate(int p, int q) {
    T x = a[p][q];
    Real gap = d[q] - d[p], size = square(x), h = gap * gap + Real(4) * size;
    bool skip = h < LW_TINY;
    Real root = fine_root(skip ? Real(1) : h);
    Real cc = skip ? Real(1) : Real(0.5) + Real(0.5) * (gap < 0 ? -gap : gap) * root;
    Real inverse = fine_root(cc), c = cc * inverse;
    Real k = skip ? Real(0) : (gap < 0 ? -root : root) * inverse;
    T s = scale(x, k);
    Real shift = size * k * inverse;
    d[p] -= shift;
    d[q] += shift;
    a[p][q] = zero();
#pragma unroll
    for (int i = 0; i < N; i++) {
      if (i == p || i == q) continue;
      T y = get(i, p), z = get(i, q);
      set(i, p, subtract_product(scale(y, c), z, s));
      set(i, q, add_plain(scale(z, c), y, s));
    }
    if (LW_VECTORS) {
#pragma unroll
      for (int i = 0; i < N; i++) {
        T y = v[i][p], z = v[i][q];
        v[i][p] = subtract_product(scale(y, c), z, s);
        v[i][q] = add_plain(scale(z, c), y, s);
      }
    }
  }

  LW_INLINE Real off() const {
    Real sum = 0;
#pragma unroll
    for (int i = 0; i < N; i++)
#pragma unroll
      for (int j = i + 1; j < N; j++) sum += square(a[i][j]);
    return sum;
  }

  LW_INLINE void exchange(int p, bool swap) {
    Real lower = d[p];
    d[p] = swap ? d[p + 1] : lower;
    d[p + 1] = swap ? lower : d[p + 1];
    if (LW_VECTORS) {
#pragma unroll
      for (int i = 0; i < N; i++) {
        T x = v[i][p], y = v[i][p + 1];
        v[i][p] = select(swap, y, x);
        v[i][p + 1] = select(swap, x, y);
      }
    }
  }
};

extern "C" __global__ void __launch_bounds__(LW_THREADS)
    eigh_small(const T* a, Real* w, T* v, int* info, i64 batch, int first, int count) {
  T* mine = (T*)(memory + threadIdx.x * Whole::PITCH);
  Real* values = (Real*)(memory + LW_THREADS * Whole::PITCH);
  for (i64 start = (i64)blockIdx.x * LW_THREADS; start < batch; start += (i64)gridDim.x * LW_THREADS) {
    int matrices = batch - start < LW_THREADS ? (int)(batch - start) : LW_THREADS;
    Whole::load(memory, a + start * (N * N), matrices * (N * N * SIZE));
    finish_copies();
    __syncthreads();

    Matrix m;
    Real largest = 0;
    bool good = true;
#pragma unroll
    for (int i = 0; i < N; i++) {
#pragma unroll
      for (int j = i; j < N; j++) {
        T x = LW_UPPER ? mine[i * N + j] : conjugate(mine[j * N + i]);
        if (i == j) x = from_real(real(x));
        good = good && is_finite(x);
        largest = fmax(largest, magnitude(x));
        if (i == j)
          m.d[i] = real(x);
        else
          m.a[i][j] = x;
      }
#pragma unroll
      for (int j = 0; j < N; j++) m.v[i][j] = from_real(Real(i == j));
    }
    good = good || threadIdx.x >= matrices;
    bool work = good && threadIdx.x < matrices;
    Real down, up;
    scaling(work ? largest : Real(1), down, up);
    Real total = 0;
#pragma unroll
    for (int i = 0; i < N; i++) {
      m.d[i] = work ? m.d[i] * down : Real(1);
      total += m.d[i] * m.d[i];
#pragma unroll
      for (int j = i + 1; j < N; j++) m.a[i][j] = work ? scale(m.a[i][j], down) : zero();
    }
    Real off = m.off(), limit = (total + 2 * off) * Real(0.0625 * LW_EPS * LW_EPS);
    int turn = 0;
    for (; off > limit && turn < SWEEPS; turn++) {
#pragma unroll
      for (int p = 0; p < N; p++)
#pragma unroll
        for (int q = p + 1; q < N; q++) m.rotate(p, q);
      off = m.off();
    }
    bool failed = !good || !(off <= limit);
#pragma unroll
    for (int end = N - 1; end > 0; end--)
#pragma unroll
      for (int p = 0; p < end; p++) m.exchange(p, m.d[p] > m.d[p + 1]);

    __syncthreads();
#pragma unroll
    for (int j = 0; j < N; j++) {
      if (j >= first && j < first + count)
        values[threadIdx.x * count + j - first] = failed ? not_a_number() : m.d[j] * up;
      if (LW_VECTORS) {
#pragma unroll
        for (int i = 0; i < N; i++) mine[i * N + j] = failed ? filled(not_a_number()) : m.v[i][j];
      }
    }
    if (threadIdx.x < matrices) info[start + threadIdx.x] = failed;
    __syncthreads();
    for (int e = threadIdx.x; e < matrices * count; e += LW_THREADS) w[start * count + e] = values[e];
    if (LW_VECTORS && count == N) {
      Whole::store(v + start * (N * N), memory, matrices * (N * N * SIZE));
    } else if (LW_VECTORS) {
      int size = N * count;
      for (int e = threadIdx.x; e < matrices * size; e += LW_THREADS) {
        int who = e / size, i = (e - who * size) / count, j = e - who * size - i * count;
        store_element(v + start * size + e, ((const T*)(memory + who * Whole::PITCH))[i * N + first + j]);
      }
    }
    __syncthreads();
  }
}
