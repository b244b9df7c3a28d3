// Least squares of many tiny tall matrices: LW_LANES lanes of a warp for each, with A and b in their registers.
//
// Row i is in lane i % LANES, register i / LANES. A reflection needs sums over the lanes, and its own row from one of them; every
// lane then knows the next row of R, with which it carries its rows of R^-1 on: so |R^-1| costs no exchanges and R is kept only
// where it arises, for the substitution. Compiled for the exact n and k; rows past m are zeros.
//   LW_N, LW_K, LW_LANES  n, k, and lanes of a warp that share a matrix
//   LW_RT                 rows of a lane
#include "lstsq_block.cuh"

constexpr int N = LW_N, K = LW_K, LANES = LW_LANES, RT = LW_RT, COLUMNS = N + K;
constexpr int NT = (N + LANES - 1) / LANES;  // rows of R of a lane
constexpr int MATRICES = LW_THREADS / LANES;

#if LW_DTYPE < 2
LW_INLINE T from_group(T x, int l) { return shuffle(x, l, LANES); }
#else
LW_INLINE T from_group(T x, int l) { return T{shuffle(x.re, l, LANES), shuffle(x.im, l, LANES)}; }
#endif

// x <- the sums of each element over the lanes of a matrix; steps outside, so that no sum waits for another
template <typename E, int COUNT>
LW_INLINE void sum_group(E (&x)[COUNT], int first = 0) {
#pragma unroll
  for (int step = LANES / 2; step > 0; step /= 2)
#pragma unroll
    for (int q = 0; q < COUNT; q++)
      if (q >= first) x[q] = x[q] + across(x[q], step);
}
#if LW_DTYPE >= 2
LW_INLINE T operator+(T a, T b) { return add(a, b); }
#endif

// COUNT neighbouring elements, which are a row, in accesses as wide as rows allow
template <int COUNT>
LW_INLINE void load_line(T* to, const T* from) {
  constexpr int BYTES = COUNT * SIZE % LW_V == 0 ? LW_V : COUNT * SIZE % 8 == 0 && LW_V >= 8 ? 8 : 4;
  constexpr int STEP = BYTES > SIZE ? BYTES / SIZE : 1;
#pragma unroll
  for (int j = 0; j < COUNT; j += STEP) {
    if constexpr (STEP == 1) {
      to[j] = load_element(from + j);
    } else {
      const Pack<T, STEP> p = *(const Pack<T, STEP>*)(from + j);
#pragma unroll
      for (int v = 0; v < STEP; v++) to[j + v] = p.v[v];
    }
  }
}

// The rows of one lane.
struct Rows {
  T e[RT][COLUMNS];   // of A and b, then of R and Q^H b, then x in place of the latter
  Real diagonal[NT];  // 1 / that of R
  int state[1 + K];   // of A, and of each column of b: qr_state.cuh
  const int l;        // lane of the matrix

  LW_INLINE Rows() : l(threadIdx.x % LANES) {}

  LW_INLINE void load(const Call& call, i64 which) {
    const T *a = call.a + which * call.m * N, *b = call.b + which * call.m * K;
#pragma unroll
    for (int i = 0; i < RT; i++) {
      const int row = min(LANES * i + l, call.m - 1);
      load_line<N>(e[i], a + row * N);
      load_line<K>(e[i] + N, b + row * K);
    }
#pragma unroll
    for (int i = 0; i < RT; i++)
#pragma unroll
      for (int q = 0; q < COLUMNS; q++) e[i][q] = select(LANES * i + l < call.m, e[i][q], zero());
  }

  // A and each column of b by a power of two of its own to where squares stay in range
  LW_INLINE void rescale() {
    Real largest[1 + K];
#pragma unroll
    for (int s = 0; s <= K; s++) {
      bool good = true;
      largest[s] = 0;
#pragma unroll
      for (int q = first_of(s); q < first_of(s + 1); q++)
#pragma unroll
        for (int i = 0; i < RT; i++) {
          good = good && is_finite(e[i][q]);
          largest[s] = fmax(largest[s], magnitude(e[i][q]));
        }
      if (!good) largest[s] = Real(__int_as_float(0x7f800000));
    }
#pragma unroll
    for (int step = LANES / 2; step > 0; step /= 2)
#pragma unroll
      for (int s = 0; s <= K; s++) largest[s] = fmax(largest[s], across(largest[s], step));
#pragma unroll
    for (int s = 0; s <= K; s++) {
      state[s] = !(largest[s] <= Real(LW_LARGEST)) ? NOT_FINITE : largest[s] > 0 ? ilogb(largest[s]) : -2 * MAX_STATE;
      const int exponent = exponent_of(state[s]);
      if (exponent != 0) {
        const Real by = ldexp(Real(1), -exponent);
#pragma unroll
        for (int q = first_of(s); q < first_of(s + 1); q++)
#pragma unroll
          for (int i = 0; i < RT; i++) e[i][q] = scale(e[i][q], by);
      }
    }
  }
  LW_INLINE static constexpr int first_of(int s) { return s == 0 ? 0 : N + s - 1; }

  // A <- R and b <- Q^H b; sizes <- the squared norms of R and of R^-1
  LW_INLINE void factor(Real (&sizes)[2]) {
    T w[NT][N];  // rows of the matrix that rows of R, from the first one on, turn from I into R^-1
#pragma unroll
    for (int t = 0; t < NT; t++)
#pragma unroll
      for (int q = 0; q < N; q++) w[t][q] = from_real(Real(LANES * t + l == q));
    sizes[0] = sizes[1] = 0;
#pragma unroll
    for (int c = 0; c < N; c++) {
      const int i0 = c / LANES, l0 = c % LANES;
      T u[RT], dot[COLUMNS], top[COLUMNS], tau;
      Real beta;
#pragma unroll
      for (int i = i0; i < RT; i++) u[i] = select(i > i0 || l > l0, e[i][c], zero());
#pragma unroll
      for (int q = c; q < COLUMNS; q++) {
        dot[q] = zero();
#pragma unroll
        for (int i = i0; i < RT; i++) dot[q] = add_product(dot[q], e[i][q], u[i]);
      }
      sum_group(dot, c);
#pragma unroll
      for (int q = c; q < COLUMNS; q++) top[q] = from_group(e[i0][q], l0);
      const T factor = reflector(top[c], real(dot[c]), tau, beta);
      const Real inverse = 1 / beta;
#pragma unroll
      for (int i = i0; i < RT; i++) u[i] = multiply(u[i], factor);
      u[i0] = select(l == l0, from_real(1), u[i0]);
      if (l == l0) e[i0][c] = from_real(beta), diagonal[i0] = inverse;
#pragma unroll
      for (int t = 0; t <= i0; t++) {
        w[t][c] = scale(w[t][c], inverse);
        sizes[1] += square(w[t][c]);
        if (t < i0 || l <= l0) sizes[0] += square(e[t][c]);
      }
#pragma unroll
      for (int q = c + 1; q < COLUMNS; q++) {
        const T own = add_product(zero(), add_product(top[q], dot[q], factor), tau);  // conj(tau) u^H a
#pragma unroll
        for (int i = i0; i < RT; i++) e[i][q] = subtract_plain(e[i][q], u[i], own);
        if (q < N)
#pragma unroll
          for (int t = 0; t <= i0; t++) w[t][q] = subtract_plain(w[t][q], w[t][c], subtract(top[q], own));
      }
    }
    sum_group(sizes);
  }

  // The squared norms of the columns of b below the n rows of R
  LW_INLINE void rest(Real (&sum)[K]) const {
#pragma unroll
    for (int j = 0; j < K; j++) {
      sum[j] = 0;
#pragma unroll
      for (int i = N / LANES; i < RT; i++)
        if (i > N / LANES || l >= N % LANES) sum[j] += square(e[i][N + j]);
    }
    sum_group(sum);
  }

  // b <- x
  LW_INLINE void solve() {
#pragma unroll
    for (int c = N - 1; c >= 0; c--) {
      const int i0 = c / LANES, l0 = c % LANES;
#pragma unroll
      for (int j = N; j < COLUMNS; j++) {
        const T own = scale(e[i0][j], diagonal[i0]), x = from_group(own, l0);
#pragma unroll
        for (int t = 0; t < i0; t++) e[t][j] = subtract_plain(e[t][j], e[t][c], x);
        e[i0][j] = l == l0 ? own : select(l < l0, subtract_plain(e[i0][j], e[i0][c], x), e[i0][j]);
      }
    }
  }
};

extern "C" __global__ void __launch_bounds__(LW_THREADS) lstsq_small(Call call, double rcond) {
  for (i64 first = (i64)blockIdx.x * MATRICES; first < call.batch; first += (i64)gridDim.x * MATRICES) {
    const i64 which = first + threadIdx.x / LANES;
    const bool inside = which < call.batch;
    Rows own;
    own.load(call, inside ? which : call.batch - 1);
    own.rescale();
    Real sizes[2], rest[K];
    own.factor(sizes);
    own.rest(rest);
    own.solve();
    if (!inside) continue;
    const bool finite = own.state[0] < NOT_FINITE;
    const int down = exponent_of(own.state[0]);
#pragma unroll
    for (int j = 0; j < K; j++) {
      const int up = exponent_of(own.state[1 + j]);
#pragma unroll
      for (int t = 0; t < NT; t++) {
        const int row = LANES * t + own.l;
        const T x = select(finite, shifted(own.e[t][N + j], up - down), filled(not_a_number()));
        if (row < N) store_element(call.x + (which * N + row) * K + j, x);
      }
      if (own.l == 0) call.residuals[which * K + j] = finite ? shifted(shifted(rest[j], up), up) : not_a_number();
    }
    if (own.l == 0) {
      const double whole = sqrt(sizes[0]), inverse = sqrt(sizes[1]);
      const bool full = is_proof(whole, inverse) && is_full(ROUNDS - 1, whole, inverse, rcond);
      call.rank[which] = !finite ? 0 : full ? N : -1;
      call.info[which] = !finite;
      if (finite && !full) count_doubtful(call);
    }
  }
}
