// Systems, inverses, LU and determinants of many matrices up to 32 x 32: one row per lane, one or more matrices per warp.
//
// Compiled for the exact LW_N = n. With LW_K > 0 that many right-hand sides are solved for with an element per lane; with
// LW_K = 0 a lane takes a column of its own, for any number of them and for the inverse. A matrix is read whole before
// anything of it is written, and so is a column, so outputs may be inputs.
#include "solve.cuh"

constexpr int N = LW_N;
constexpr int K = LW_K;
constexpr int LANES = N <= 4 ? 4 : N <= 8 ? 8 : N <= 16 ? 16 : 32;  // of one matrix
constexpr int MATRICES = LW_THREADS / LANES;
constexpr unsigned ALL = 0xffffffff;
typedef Stage<N * SIZE, N> Rows;
typedef Stage<N * (K > 0 ? K : 1) * SIZE, 1> Sides;

extern __shared__ __align__(16) char memory[];

// ---- between the lanes of a matrix -------------------------------------------------------------------------------

LW_INLINE Real from_lane(Real x, int lane) { return __shfl_sync(ALL, x, lane, LANES); }
LW_INLINE Real across(Real x, int step) { return __shfl_xor_sync(ALL, x, step); }
#if LW_DTYPE >= 2
LW_INLINE T from_lane(T x, int lane) { return T{from_lane(x.re, lane), from_lane(x.im, lane)}; }
LW_INLINE T across(T x, int step) { return T{across(x.re, step), across(x.im, step)}; }
#endif

LW_INLINE unsigned lanes_where(bool x) {
  unsigned found = __ballot_sync(ALL, x);
  return LANES == 32 ? found : found >> (threadIdx.x % 32 / LANES * LANES) & ((1u << LANES % 32) - 1);
}

LW_INLINE unsigned largest(unsigned x) {
#if LW_N > 16 && __CUDA_ARCH__ >= 800
  return __reduce_max_sync(ALL, x);
#else
#pragma unroll
  for (int step = LANES / 2; step > 0; step /= 2) x = max(x, __shfl_xor_sync(ALL, x, step));
  return x;
#endif
}

// The first lane whose x is largest among the candidates. As integers, magnitudes have the same order, infinity and what is
// not a number above all.
LW_INLINE int pivot_lane(T x, bool candidate) {
#if LW_DTYPE % 2 == 0
  unsigned key = candidate ? (__float_as_uint(magnitude(x)) & 0x7fffffff) + 1 : 0;
  return __ffs(lanes_where(key == largest(key))) - 1;
#else
  unsigned long long bits = __double_as_longlong(magnitude(x));
  unsigned high = candidate ? ((unsigned)(bits >> 32) & 0x7fffffff) + 1 : 0;
  bool best = high == largest(high);
  unsigned found = lanes_where(best);
  if (__any_sync(ALL, found & (found - 1))) {
    unsigned low = best ? (unsigned)bits : 0, most = largest(low);
    found = lanes_where(best && low == most);
  }
  return __ffs(found) - 1;
#endif
}

// ---- factors -----------------------------------------------------------------------------------------------------

// Row r of E in lane r's registers, and what belongs to the pivot of that row.
struct Row {
  T e[N];
  T pivot, inverse;
  int place;  // of the row among the pivots
};

// E = L L^H, column by column: each is published unscaled, so that the pivot and its multipliers arrive together. What lies
// right of the diagonal is never used. `lines` holds two columns. Returns 0 or the 1-based first bad column.
LW_INLINE int factor_hermitian(Row& row, int r, T* lines) {
  int bad = 0;
  row.place = r;
#pragma unroll
  for (int j = 0; j < N; j++) {
    T* c = lines + (j & 1) * LANES;
    c[r] = row.e[j];
    __syncwarp();
    Real d = real(c[j]), q = reciprocal_root(d);
    if (!is_pivot(d) && bad == 0) bad = j + 1;
    if (r == j) row.pivot = from_real(d), row.inverse = from_real(q);
    T l = scale(row.e[j], q), w = scale(l, q);
    row.e[j] = l;
    // E(r,k) <- E(r,k) - E(r,j) conj(E(k,j)) / d
#pragma unroll
    for (int k0 = 0; k0 < N; k0 += VEC) {
      if (k0 + VEC > j + 1) {
        Vector p = *(const Vector*)(c + k0);
#pragma unroll
        for (int v = 0; v < VEC; v++)
          if (k0 + v > j && k0 + v < N) row.e[k0 + v] = subtract_product(row.e[k0 + v], w, p.v[v]);
      }
    }
  }
  return bad;
}

// P E = L U; rows stay in their lanes, and `place` says where they belong. A column without a pivot is left as it is, so that
// what is not finite elsewhere still comes to light.
LW_INLINE int factor_general(Row& row, int r, T* lines, bool& infinite) {
  int bad = 0;
  row.place = N;
#pragma unroll
  for (int j = 0; j < N; j++) {
    int p = pivot_lane(row.e[j], row.place == N && r < N);
    T* c = lines + (j & 1) * LANES;
    if (r == p) {
      row.place = j;
#pragma unroll
      for (int k0 = 0; k0 < N; k0 += VEC) {
        if (k0 + VEC > j) {
          Vector v;
#pragma unroll
          for (int i = 0; i < VEC; i++) v.v[i] = k0 + i < N ? row.e[k0 + i < N ? k0 + i : 0] : zero();
          *(Vector*)(c + k0) = v;
        }
      }
    }
    __syncwarp();
    T d = c[j];
    bool good = is_divisor(d), active = row.place == N;
    if (!good && bad == 0) bad = j + 1;
    infinite = infinite || !is_finite(d);
    T q = select(good, invert(d), zero()), l = multiply(row.e[j], q);
    if (r == p) row.pivot = d, row.inverse = q;
    row.e[j] = select(active, l, row.e[j]);
    l = select(active, l, zero());
#pragma unroll
    for (int k0 = 0; k0 < N; k0 += VEC) {
      if (k0 + VEC > j + 1) {
        Vector v = *(const Vector*)(c + k0);
#pragma unroll
        for (int i = 0; i < VEC; i++)
          if (k0 + i > j && k0 + i < N) row.e[k0 + i] = subtract_plain(row.e[k0 + i], l, v.v[i]);
      }
    }
  }
  return bad;
}

// ---- a matrix in shared memory -----------------------------------------------------------------------------------

LW_INLINE T* element(char* matrix, int i, int j) { return (T*)(matrix + i * Rows::PITCH) + j; }

// Row r of E from the memory as it is.
LW_INLINE void read_row(Row& row, char* matrix, int r) {
  constexpr bool LINE = LW_READ == 0 || LW_READ == 2 || (LW_READ == 3 && LW_FACTOR == 0);
  constexpr bool COLUMN = LW_READ == 1 || LW_READ == 3 || (LW_READ == 2 && LW_FACTOR == 0);
  if (LINE) load_registers<Rows::UNIT>(row.e, matrix + r * Rows::PITCH);
  if (COLUMN) {
#pragma unroll
    for (int k = 0; k < N; k++) {
      T x = conjugate(*element(matrix, k, r));
      row.e[k] = LINE ? select((k < r) == (LW_READ == 3), x, row.e[k]) : x;
    }
  }
}

// E into shared memory, every row in its place and both triangles of a Hermitian one.
LW_INLINE void write_rows(Row& row, char* matrix, int r) {
  __syncwarp();
  if (r < N) store_registers<Rows::UNIT>(matrix + row.place * Rows::PITCH, row.e);
  __syncwarp();
  if (LW_FACTOR == 1) {
#pragma unroll
    for (int k = 0; k < N; k++)
      if (k < r && r < N) *element(matrix, k, r) = conjugate(row.e[k]);
    __syncwarp();
  }
}

// ---- substitution with an element per lane -----------------------------------------------------------------------

LW_INLINE void solve_elements(T (&x)[K > 0 ? K : 1], const Row& row, int r) {
#pragma unroll
  for (int turn = 0; turn < 2; turn++) {
    const int kind = turn ? LW_BACKWARD : LW_FORWARD;
    if (kind) {
#pragma unroll
      for (int step = 0; step < N; step++) {
        const int j = turn ? N - 1 - step : step;
        bool later = turn ? r < j : r > j;
#pragma unroll
        for (int c = 0; c < K; c++) {
          T y = from_lane(kind == 2 ? multiply(x[c], row.inverse) : x[c], j);
          x[c] = r == j ? y : select(later, subtract_plain(x[c], row.e[j], y), x[c]);
        }
      }
    }
  }
}

// ---- substitution with a column per lane -------------------------------------------------------------------------

// x_i <- x_i - E(i, from .. to) x(from .. to)
template <int I, int FROM, int TO>
LW_INLINE void subtract_row(T (&x)[N], const char* matrix) {
  constexpr int STEP = Rows::UNIT > SIZE ? Rows::UNIT / SIZE : 1;
#pragma unroll
  for (int k0 = FROM / STEP * STEP; k0 < TO; k0 += STEP) {
    Pack<T, STEP> p = *(const Pack<T, STEP>*)(matrix + I * Rows::PITCH + k0 * SIZE);
#pragma unroll
    for (int v = 0; v < STEP; v++)
      if (k0 + v >= FROM && k0 + v < TO) x[I] = subtract_plain(x[I], p.v[v], x[k0 + v]);
  }
}

template <int I>
LW_INLINE void forward(T (&x)[N], const char* matrix, const T* inverses) {
  if constexpr (I < N) {
    subtract_row<I, 0, I>(x, matrix);
    if (LW_FORWARD == 2) x[I] = multiply(x[I], inverses[I]);
    forward<I + 1>(x, matrix, inverses);
  }
}

template <int I>
LW_INLINE void backward(T (&x)[N], const char* matrix, const T* inverses) {
  if constexpr (I >= 0) {
    subtract_row<I, I + 1, N>(x, matrix);
    if (LW_BACKWARD == 2) x[I] = multiply(x[I], inverses[I]);
    backward<I - 1>(x, matrix, inverses);
  }
}

LW_INLINE void solve_column(T (&x)[N], const char* matrix, const T* inverses) {
  if (LW_FORWARD) forward<0>(x, matrix, inverses);
  if (LW_BACKWARD) backward<N - 1>(x, matrix, inverses);
}

// Column r of Z^H Z from column r of Z = L^-1, which takes the place of E: Hermitian by its form, with as small a residual on
// either side. Only the rows from i on of a column matter for element i, so each overwrites what it needs no more.
LW_INLINE void multiply_by_adjoint(T (&x)[N], char* matrix, int r) {
  constexpr int STEP = Rows::UNIT > SIZE ? Rows::UNIT / SIZE : 1;
  __syncwarp();
  if (r < N) {
#pragma unroll
    for (int i = 0; i < N; i++) *element(matrix, i, r) = x[i];
  }
  __syncwarp();
#pragma unroll
  for (int i0 = 0; i0 < N; i0 += STEP) {
    T sum[STEP];
#pragma unroll
    for (int v = 0; v < STEP; v++) sum[v] = zero();
#pragma unroll
    for (int k = i0; k < N; k++) {
      Pack<T, STEP> p = *(const Pack<T, STEP>*)(matrix + k * Rows::PITCH + i0 * SIZE);
#pragma unroll
      for (int v = 0; v < STEP; v++) sum[v] = add_product(sum[v], x[k], p.v[v]);
    }
#pragma unroll
    for (int v = 0; v < STEP; v++) x[i0 + v] = sum[v];
  }
}

// The inverse into shared memory.
LW_INLINE void invert_matrix(char* matrix, const T* inverses, const int* order, int r, bool failed) {
  T x[N];
#pragma unroll
  for (int i = 0; i < N; i++) x[i] = from_real(Real((LW_ROWS ? order[i] : i) == r));
  if (LW_FACTOR == 1) {
    forward<0>(x, matrix, inverses);
    multiply_by_adjoint(x, matrix, r);
  } else {
    solve_column(x, matrix, inverses);
  }
  __syncwarp();
  if (r < N) {
#pragma unroll
    for (int i = 0; i < N; i++) {
      T y = select(failed, nan_element(), x[i]);
#if LW_DTYPE >= 2 && LW_FACTOR == 1
      // rounding differs between the triangles of a complex product: the lower one is taken for both
      if (i == r && !failed) y = only_real(y);
      if (i >= r) *element(matrix, i, r) = y;
      if (i > r) *element(matrix, r, i) = conjugate(y);
#else
      *element(matrix, i, r) = y;
#endif
    }
  }
}

// ---- the determinant ---------------------------------------------------------------------------------------------

LW_INLINE void determinant(const Row& row, const int* order, int r, bool inside, bool failed, T* sign_to, Real* logabs_to) {
  T sign = r < N && LW_FACTOR == 2 ? phase(row.pivot) : from_real(1);
  Real logabs = r < N ? log_magnitude(row.pivot) : Real(0);
  bool singular = lanes_where(r < N && is_zero(row.pivot));
  if (LW_FACTOR == 2 && r < N) {
    // the sign of the permutation: -1 for every earlier pivot from a later row
    int earlier = 0;
#pragma unroll
    for (int i = 0; i < N; i++) earlier += i < r && order[i] > order[r];
    if (earlier % 2) sign = negate(sign);
  }
#pragma unroll
  for (int step = LANES / 2; step > 0; step /= 2) {
    logabs += across(logabs, step);
    sign = multiply(sign, across(sign, step));
  }
  if (LW_FACTOR == 2 && singular) sign = zero(), logabs = log_of_zero();
  if (failed) sign = nan_element(), logabs = not_a_number();
  if (inside && r == 0) {
    store_element(sign_to, sign);
    *logabs_to = logabs;
  }
}

// ---- all together ------------------------------------------------------------------------------------------------

extern "C" __global__ void __launch_bounds__(LW_THREADS, LW_RESIDENT) solve_rows(Call call) {
  constexpr int LINES = 2 * LANES * SIZE + 16;  // bytes; the 16 keep the matrices of a warp in different banks
  __shared__ __align__(16) char all_lines[MATRICES * LINES];
  __shared__ T all_inverses[MATRICES][LANES];
  __shared__ int all_orders[MATRICES][LANES];
  int g = threadIdx.x / LANES, r = threadIdx.x % LANES, safe = r < N ? r : N - 1;
  char* matrix = memory + g * Rows::MATRIX;
  char* sides = memory + MATRICES * Rows::MATRIX;
  T* inverses = all_inverses[g];
  int* order = all_orders[g];
  i64 k = call.k;
  for (i64 first = (i64)blockIdx.x * MATRICES; first < call.batch; first += (i64)gridDim.x * MATRICES) {
    int count = call.batch - first < MATRICES ? (int)(call.batch - first) : MATRICES;
    bool inside = g < count;
    Rows::load(memory, call.a + first * (N * N), count * (N * N * SIZE));
    if (LW_GIVE == 0 && K > 0) Sides::load(sides, call.b + first * (N * K), count * (N * K * SIZE));
    commit_copies();
    if (LW_FACTOR == 0 && LW_ROWS && r < N) {
      unsigned from = inside ? call.rows[(first + g) * N + r] : 0;
      order[r] = from < N ? from : 0;
    }
    wait_copies<0>();
    __syncthreads();

    Row row;
    read_row(row, matrix, safe);
    row.place = r;
    int bad = 0;
    bool infinite = false;
    if (LW_FACTOR == 0) {
      T d = *element(matrix, safe, safe);
      row.inverse = invert(LW_READ == 1 ? conjugate(d) : d);
      constexpr bool DIVIDES = LW_FORWARD == 2 || LW_BACKWARD == 2;
      bad = DIVIDES && call.info ? __ffs(lanes_where(!is_divisor(d))) : 0;
      if (LW_READ != 0 && K == 0) write_rows(row, matrix, r);
    } else {
      T* lines = (T*)(all_lines + g * LINES);
      bad = LW_FACTOR == 1 ? factor_hermitian(row, r, lines) : factor_general(row, r, lines, infinite);
      if (LW_GIVE != 3) write_rows(row, matrix, r);
    }
    if (r < N) {
      inverses[row.place] = row.inverse;
      if (LW_FACTOR == 2) order[row.place] = r;
    }
    __syncwarp();

    if (LW_GIVE == 0 && K > 0) {
      if (LW_FACTOR == 1) {  // L^H beside L
        T line[N];
        load_registers<Rows::UNIT>(line, matrix + safe * Rows::PITCH);
#pragma unroll
        for (int j = 0; j < N; j++) row.e[j] = select(j > safe, line[j], row.e[j]);
      }
      if (LW_FACTOR == 2) {
        load_registers<Rows::UNIT>(row.e, matrix + safe * Rows::PITCH);
        row.inverse = inverses[safe];
      }
      T* side = (T*)(sides + g * Sides::MATRIX);
      T x[K > 0 ? K : 1];
#pragma unroll
      for (int c = 0; c < K; c++) x[c] = side[(LW_ROWS == 1 ? order[safe] : safe) * K + c];
      solve_elements(x, row, r);
      __syncwarp();
      if (r < N) {
#pragma unroll
        for (int c = 0; c < K; c++) side[(LW_ROWS == 2 ? order[r] : r) * K + c] = select(bad != 0, nan_element(), x[c]);
      }
      __syncthreads();
      Sides::store(call.out + first * (N * K), sides, count * (N * K * SIZE));
    } else if (LW_GIVE == 0) {
      const T* b = call.b + (first + g) * N * k;
      T* out = call.out + (first + g) * N * k;
      for (i64 c = r; c < k && inside; c += LANES) {
        T x[N];
#pragma unroll
        for (int i = 0; i < N; i++) x[i] = load_element(b + (LW_ROWS == 1 ? order[i] : i) * k + c);
        solve_column(x, matrix, inverses);
#pragma unroll
        for (int i = 0; i < N; i++)
          store_element(out + (LW_ROWS == 2 ? order[i] : i) * k + c, select(bad != 0, nan_element(), x[i]));
      }
    } else if (LW_GIVE == 3) {
      if (LW_FACTOR == 2) bad = infinite;
      determinant(row, order, r, inside, bad, call.out + first + g, call.logabs + first + g);
    } else {
      if (LW_GIVE == 1) invert_matrix(matrix, inverses, order, r, bad);
      if (LW_GIVE == 2 && bad && r < N) {
#pragma unroll
        for (int j = 0; j < N; j++) *element(matrix, r, j) = nan_element();
      }
      if (LW_GIVE == 2 && inside && r < N) call.rows[(first + g) * N + r] = order[r];
      __syncthreads();
      Rows::store(call.out + first * (N * N), memory, count * (N * N * SIZE));
    }
    if (call.info && inside && r == 0) call.info[first + g] = bad;
    __syncthreads();
  }
}
