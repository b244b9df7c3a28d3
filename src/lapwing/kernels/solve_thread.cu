// Systems, inverses, LU and determinants of many tiny matrices: one thread per matrix, in registers.
//
// Compiled for the exact LW_N = n. A matrix and its right-hand sides are read whole before anything of them is written, so
// outputs may be inputs.
#include "solve.cuh"

constexpr int N = LW_N;
constexpr int K = LW_K;
typedef Stage<N * N * SIZE, 1, unsigned> Whole;
typedef Stage<N * K * SIZE, 1, unsigned> Sides;

// One matrix E, the inverses of its diagonal, and the rows its pivots came from, four bits each.
struct Matrix {
  T e[N][N];
  T inverse[N];
  unsigned rows;
  int bad;
  bool tiny;  // some pivot is

  LW_INLINE void read(const char* from) {
    T m[N * N];
    load_registers<Whole::UNIT>(m, from);
#pragma unroll
    for (int i = 0; i < N; i++)
#pragma unroll
      for (int j = 0; j < N; j++) {
        T x = m[i * N + j], y = conjugate(m[j * N + i]);
        e[i][j] = LW_READ == 0 || (LW_READ == 2 && j <= i) || (LW_READ == 3 && j >= i) ? x : y;
      }
  }

  LW_INLINE T get(int i, int j) const { return LW_READ >= 2 && j > i ? conjugate(e[j][i]) : e[i][j]; }
  LW_INLINE int row(int i) const { return rows >> (4 * i) & 15; }

  // E = L L^H
  LW_INLINE void factor_hermitian() {
#pragma unroll
    for (int j = 0; j < N; j++) {
      Real d = real(e[j][j]), q = reciprocal_root(d);
      if (!is_pivot(d) && bad == 0) bad = j + 1;
      e[j][j] = from_real(d);
      inverse[j] = from_real(q);
#pragma unroll
      for (int i = j + 1; i < N; i++) e[i][j] = scale(e[i][j], q);
#pragma unroll
      for (int k = j + 1; k < N; k++)
#pragma unroll
        for (int i = k; i < N; i++) e[i][k] = subtract_product(e[i][k], e[i][j], e[k][j]);
    }
  }

  // The first of the largest elements on and below the diagonal in column j; what is not a number is larger than all.
  LW_INLINE int pivot_of(int j) const {
    int p = j;
    Real largest = magnitude(e[j][j]);
#pragma unroll
    for (int i = j + 1; i < N; i++) {
      Real size = magnitude(e[i][j]);
      bool larger = size > largest || size != size;
      largest = larger ? size : largest;
      p = larger ? i : p;
    }
    return p;
  }

  // P E = L U. A column without a pivot is left as it is, so that what is not finite elsewhere still comes to light.
  LW_INLINE void factor_general(bool& odd, bool& infinite) {
#pragma unroll
    for (int j = 0; j < N; j++) {
      int p = pivot_of(j);
      unsigned both = (rows >> (4 * p) ^ rows >> (4 * j)) & 15;
      rows ^= both << (4 * p) ^ both << (4 * j);
      odd = odd != (p != j);
#pragma unroll
      for (int i = j + 1; i < N; i++) {
#pragma unroll
        for (int k = 0; k < N; k++) {
          T x = e[j][k], y = e[i][k];
          e[j][k] = select(p == i, y, x);
          e[i][k] = select(p == i, x, y);
        }
      }
      bool good = is_divisor(e[j][j]);
      if (!good && bad == 0) bad = j + 1;
      infinite = infinite || !is_finite(e[j][j]);
      inverse[j] = select(good, invert(e[j][j]), zero());
      const bool small = is_tiny(e[j][j]);
      tiny = tiny || small;
#pragma unroll
      for (int i = j + 1; i < N; i++) {
        e[i][j] = divide(e[i][j], e[j][j], inverse[j], small);
#pragma unroll
        for (int k = j + 1; k < N; k++) e[i][k] = subtract_plain(e[i][k], e[i][j], e[j][k]);
      }
    }
  }

  LW_INLINE void invert_diagonal() {
#pragma unroll
    for (int i = 0; i < N; i++) {
      if (!is_divisor(e[i][i]) && bad == 0) bad = i + 1;
      inverse[i] = invert(e[i][i]);
      tiny = tiny || is_tiny(e[i][i]);
    }
  }

  LW_INLINE void solve(T (&x)[N]) const {
    if (LW_FORWARD) {
#pragma unroll
      for (int j = 0; j < N; j++) {
        if (LW_FORWARD == 2) x[j] = divide(x[j], e[j][j], inverse[j], tiny);
#pragma unroll
        for (int i = j + 1; i < N; i++) x[i] = subtract_plain(x[i], get(i, j), x[j]);
      }
    }
    if (LW_BACKWARD) {
#pragma unroll
      for (int j = N - 1; j >= 0; j--) {
        if (LW_BACKWARD == 2) x[j] = divide(x[j], e[j][j], inverse[j], tiny);
#pragma unroll
        for (int i = j - 1; i >= 0; i--) x[i] = subtract_plain(x[i], get(i, j), x[j]);
      }
    }
  }

  // Z = L^-1, then the lower triangle of Z^H Z: Hermitian by its form, with as small a residual on either side.
  LW_INLINE void invert_hermitian() {
#pragma unroll
    for (int j = 0; j < N; j++) {
      e[j][j] = inverse[j];
#pragma unroll
      for (int i = j + 1; i < N; i++) {
        T sum = zero();
#pragma unroll
        for (int k = j; k < i; k++) sum = subtract_plain(sum, e[i][k], e[k][j]);
        e[i][j] = scale(sum, real(inverse[i]));
      }
    }
#pragma unroll
    for (int i = 0; i < N; i++) {
#pragma unroll
      for (int j = 0; j <= i; j++) {
        T sum = zero();
#pragma unroll
        for (int k = i; k < N; k++) sum = add_product(sum, e[k][j], e[k][i]);
        e[i][j] = i == j ? only_real(sum) : sum;
      }
    }
  }

  LW_INLINE void determinant(T& sign, Real& logabs, bool odd, bool infinite) {
    sign = from_real(Real(odd ? -1 : 1));
    logabs = 0;
    bool singular = false;
#pragma unroll
    for (int i = 0; i < N; i++) {
      logabs += log_magnitude(e[i][i]);
      if (LW_FACTOR == 2) sign = multiply(sign, phase(e[i][i]));
      singular = singular || is_zero(e[i][i]);
    }
    if (LW_FACTOR == 2) {
      bad = infinite;
      sign = select(singular, zero(), sign);
      logabs = singular ? log_of_zero() : logabs;
    }
    sign = select(bad, nan_element(), sign);
    logabs = bad ? not_a_number() : logabs;
  }

  // After determinant(), which has settled whether it failed.
  LW_INLINE T value(bool odd) const {
    Product product{from_real(Real(odd ? -1 : 1)), 0};
#pragma unroll
    for (int i = 0; i < N; i++) product.multiply_by(e[i][i]);
    return select(bad, nan_element(), product.value());
  }
};

// move(place in shared memory, element) for columns `start` to `start + width` of the right-hand sides of `count` matrices
template <typename F>
LW_INLINE void each_side(i64 k, i64 start, int width, int count, F move) {
  for (int e = threadIdx.x; e < count * N * K; e += LW_THREADS) {
    int line = e / K, j = e % K;
    if (j < width) move(Sides::place(e * SIZE), line * k + start + j);
  }
}

// With all columns the memory is one piece.
LW_INLINE void load_sides(char* to, const T* b, i64 k, i64 start, int width, int count) {
  if (k == K)
    Sides::load(to, b, count * (N * K * SIZE));
  else
    each_side(k, start, width, count, [&](unsigned place, i64 e) { copy_element((T*)(to + place), b + e); });
}

LW_INLINE void store_sides(T* x, const char* from, i64 k, i64 start, int width, int count) {
  if (k == K)
    Sides::store(x, from, count * (N * K * SIZE));
  else
    each_side(k, start, width, count, [&](unsigned place, i64 e) { store_element(x + e, *(const T*)(from + place)); });
}

LW_INLINE void wait_for_block() {
  finish_copies();
  __syncthreads();
}

extern "C" __global__ void __launch_bounds__(LW_THREADS) solve_thread(Call call) {
  char* mine = memory + threadIdx.x * Whole::MATRIX;
  char* sides = memory + LW_THREADS * Whole::MATRIX;
  T* side = (T*)(sides + threadIdx.x * Sides::MATRIX);
  for (i64 first = (i64)blockIdx.x * LW_THREADS; first < call.batch; first += (i64)gridDim.x * LW_THREADS) {
    int count = call.batch - first < LW_THREADS ? (int)(call.batch - first) : LW_THREADS;
    bool inside = threadIdx.x < count;
    i64 k = call.k;
    const T* b = call.b + first * N * k;
    T* x = call.out + first * N * k;
    Whole::load(memory, call.a + first * (N * N), count * (N * N * SIZE));
    if (LW_GIVE == 0) load_sides(sides, b, k, 0, k < K ? (int)k : K, count);
    wait_for_block();

    Matrix m;
    m.read(mine);
    m.bad = 0;
    m.tiny = false;
    m.rows = 0x76543210;
    bool odd = false, infinite = false;
    if (LW_FACTOR == 1) m.factor_hermitian();
    if (LW_FACTOR == 2) m.factor_general(odd, infinite);
    if (LW_FACTOR == 0 && (LW_FORWARD == 2 || LW_BACKWARD == 2)) m.invert_diagonal();
    if (LW_FACTOR == 0 && LW_ROWS) {
      m.rows = 0;
#pragma unroll
      for (int i = 0; i < N; i++) {
        unsigned row = inside ? call.rows[(first + threadIdx.x) * N + i] : 0;
        m.rows |= (row < N ? row : 0) << (4 * i);
      }
    }

    if (LW_GIVE == 0) {
      bool failed = call.info && m.bad;
      for (i64 start = 0; start < k; start += K) {
        int width = k - start < K ? (int)(k - start) : K;
        if (start) {
          load_sides(sides, b, k, start, width, count);
          wait_for_block();
        }
#pragma unroll 1
        for (int c = 0; c < width; c++) {
          T y[N];
#pragma unroll
          for (int i = 0; i < N; i++) y[i] = side[(LW_ROWS == 1 ? m.row(i) : i) * K + c];
          m.solve(y);
#pragma unroll
          for (int i = 0; i < N; i++)
            side[(LW_ROWS == 2 ? m.row(i) : i) * K + c] = select(failed, nan_element(), y[i]);
        }
        __syncthreads();
        store_sides(x, sides, k, start, width, count);
        __syncthreads();
      }
    } else if (LW_GIVE == 3) {
      T sign;
      Real logabs;
      m.determinant(sign, logabs, odd, infinite);
      if (inside) {
        store_element(call.out + first + threadIdx.x, call.logabs ? sign : m.value(odd));
        if (call.logabs) call.logabs[first + threadIdx.x] = logabs;
      }
      __syncthreads();
    } else {
      T* result = (T*)mine;
      if (LW_GIVE == 1 && LW_FACTOR == 2) {
#pragma unroll 1
        for (int c = 0; c < N; c++) {
          T y[N];
#pragma unroll
          for (int i = 0; i < N; i++) y[i] = from_real(Real(m.row(i) == c));
          m.solve(y);
#pragma unroll
          for (int i = 0; i < N; i++) result[i * N + c] = select(m.bad, nan_element(), y[i]);
        }
      } else {
        if (LW_GIVE == 1) m.invert_hermitian();
        T flat[N * N];
#pragma unroll
        for (int i = 0; i < N; i++)
#pragma unroll
          for (int j = 0; j < N; j++) flat[i * N + j] = select(m.bad, nan_element(), m.get(i, j));
        store_registers<Whole::UNIT>(mine, flat);
      }
      __syncthreads();
      Whole::store(call.out + first * (N * N), memory, count * (N * N * SIZE));
      if (LW_GIVE == 2 && inside)
#pragma unroll
        for (int i = 0; i < N; i++) call.rows[(first + threadIdx.x) * N + i] = m.row(i);
      __syncthreads();
    }
    if (call.info && inside) call.info[first + threadIdx.x] = m.bad;
  }
}
