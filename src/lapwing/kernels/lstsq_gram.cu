// Least squares of many tall well-conditioned matrices by A^T A: a block of threads for each, A in shared memory.
//
// A^T A comes from the matrix instructions, is factored as L D L^T, and L is inverted on the way, so that the condition is known
// from above and a solve is two products. The residual b - A x then corrects x until it stays. Errors are those of a QR where the
// square of the condition is far below 1 / eps: "corrected seminormal equations". A matrix for which that is not certain, or whose
// x does not settle, gets the rank DOUBTFUL and is left to lstsq_block.cu.
//   LW_GROUPS  columns in groups of 8
#include "lstsq_block.cuh"

constexpr int GROUPS = LW_GROUPS, TILES = (GROUPS + 1) / 2, WIDTH = 8 * GROUPS, WARPS = LW_THREADS / 32;
constexpr int PARTS = (WIDTH + 31) / 32;  // of a row of L, 32 elements each
constexpr int MOST_STEPS = 4;             // of the correction
constexpr int TOGETHER = 4;               // rows of L that a warp has in flight
constexpr int STEP = LW_V == 16 ? VEC : 1;  // elements of one copy; LW_V is 16 only where all of A is a multiple of it
constexpr int NB = 4;                     // columns of a step of the elimination
constexpr Real EPS = SIZE == 4 ? Real(1.1920929e-7) : Real(2.220446049250313e-16);
constexpr Real LARGE = SIZE == 4 ? 0x1p20 : 0x1p200;  // squares and quotients of numbers up to here stay in range

struct Shared {
  T* a;        // as in global memory, with rows of zeros up to `rows`
  T* l;        // n rows of `pitch` elements: A^T A, then D, and below it L^-1
  T* b;        // one right-hand side, then what is left of it
  T* partial;  // of each warp
  T *x, *y, *z, *inverse, *norms;
  int pitch, rows;
};

// The sum over the lanes whose numbers differ in the bits from FIRST up to END
template <int FIRST, int END>
LW_INLINE T sum_over(T x) {
#pragma unroll
  for (int step = FIRST; step < END; step *= 2) x += across(x, step);
  return x;
}

// ---- products ----------------------------------------------------------------------------------------------------------

#if LW_MATRIX == 64
// l <- the lower triangle of A^T A. Every wave has other rows of A.
LW_INLINE void multiply_columns(const Shared& s, int n) {
  const int wave = threadIdx.x / 64, column = threadIdx.x % 16, deep = threadIdx.x % 64 / 16;
  T sum[TILES][TILES][4];
#pragma unroll
  for (int i = 0; i < TILES; i++)
#pragma unroll
    for (int j = 0; j < TILES; j++)
#pragma unroll
      for (int e = 0; e < 4; e++) sum[i][j][e] = 0;
#pragma unroll 2
  for (int k = 4 * wave; k < s.rows; k += 4 * (WARPS / 2)) {
    T x[TILES];
#pragma unroll
    for (int q = 0; q < TILES; q++) x[q] = 16 * q + column < WIDTH ? s.a[(k + deep) * n + 16 * q + column] : T(0);
#pragma unroll
    for (int i = 0; i < TILES; i++)
#pragma unroll
      for (int j = 0; j <= i; j++) multiply_tile(sum[i][j], x[i], x[j]);
  }
#pragma unroll 1
  for (int turn = 0; turn < WARPS / 2; turn++) {
    if (wave == turn) {
#pragma unroll
      for (int i = 0; i < TILES; i++)
#pragma unroll
        for (int j = 0; j <= i; j++)
#pragma unroll
          for (int e = 0; e < 4; e++) {
            const int row = 16 * i + (SIZE == 8 ? deep + 4 * e : 4 * deep + e);
            T* at = s.l + row * s.pitch + 16 * j + column;
            if (row < n && 16 * j + column <= row) *at = (turn > 0 ? *at : T(0)) + sum[i][j][e];
          }
    }
    __syncthreads();
  }
}
#else
#if LW_MATRIX == 16 && LW_DTYPE == 0
// A number as the sum of two of 11 bits each: three products of them are as exact as one of whole numbers.
struct Factor {
  unsigned high, low;
};
LW_INLINE Factor factor_of(T x) {
  const unsigned high = short_of(x);
  return {high, short_of(x - __uint_as_float(high))};
}
LW_INLINE void multiply(T (&c)[4], const Factor (&a)[2], const Factor (&under)[2], const Factor (&b)[2]) {
  multiply_tile(c, a[0].low, under[0].low, a[1].low, under[1].low, b[0].high, b[1].high);
  multiply_tile(c, a[0].high, under[0].high, a[1].high, under[1].high, b[0].low, b[1].low);
  multiply_tile(c, a[0].high, under[0].high, a[1].high, under[1].high, b[0].high, b[1].high);
}
#else
typedef T Factor;
LW_INLINE Factor factor_of(T x) { return x; }
// c <- c + (a over under)^T b for pieces of 8 x 8: lane 4 g + t has their elements (t, g) and (t + 4, g), and of c (g, 2 t),
// (g, 2 t + 1), (g + 8, 2 t), (g + 8, 2 t + 1)
LW_INLINE void multiply(T (&c)[4], const Factor (&a)[2], const Factor (&under)[2], const Factor (&b)[2]) {
#if LW_MATRIX == 16 && LW_DTYPE == 1
  multiply_tile(c[0], c[1], c[2], c[3], a[0], under[0], a[1], under[1], b[0], b[1]);
#else
  const int lane = threadIdx.x % 32, row = lane / 4 * 4, column = lane % 4 * 8;
#pragma unroll
  for (int k = 0; k < 8; k++) {
    const T above = from_lane(a[k / 4], row + k % 4), below = from_lane(under[k / 4], row + k % 4);
    const T left = from_lane(b[k / 4], column + k % 4), right = from_lane(b[k / 4], column + 4 + k % 4);
    c[0] += above * left, c[1] += above * right, c[2] += below * left, c[3] += below * right;
  }
#endif
}
#endif

// l <- the lower triangle of A^T A. Every warp has other rows of A.
LW_INLINE void multiply_columns(const Shared& s, int n) {
  const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  T sum[TILES][GROUPS][4];
#pragma unroll
  for (int i = 0; i < TILES; i++)
#pragma unroll
    for (int j = 0; j < GROUPS; j++)
#pragma unroll
      for (int e = 0; e < 4; e++) sum[i][j][e] = 0;
#pragma unroll 1
  for (int k = 8 * warp; k < s.rows; k += 8 * WARPS) {
    Factor x[2 * TILES][2];
#pragma unroll
    for (int q = 0; q < 2 * TILES; q++)
#pragma unroll
      for (int h = 0; h < 2; h++) x[q][h] = factor_of(q < GROUPS ? s.a[(k + t + 4 * h) * n + 8 * q + g] : T(0));
#pragma unroll
    for (int i = 0; i < TILES; i++)
#pragma unroll
      for (int j = 0; j < GROUPS; j++)
        if (j < 2 * i + 2) multiply(sum[i][j], x[2 * i], x[2 * i + 1], x[j]);
  }
#pragma unroll 1
  for (int turn = 0; turn < WARPS; turn++) {
    if (warp == turn) {
#pragma unroll
      for (int i = 0; i < TILES; i++) {
        T before[GROUPS][4];  // all are read before any is written: none waits for another
#pragma unroll
        for (int part = 0; part < 2; part++)
#pragma unroll
          for (int j = 0; j < GROUPS; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
              const int row = 16 * i + g + (e / 2) * 8, column = 8 * j + 2 * t + e % 2;
              const bool inside = j < 2 * i + 2 && row < n && column <= row;
              T* at = s.l + row * s.pitch + column;
              if (part == 0) before[j][e] = inside && turn > 0 ? *at : T(0);
              if (part == 1 && inside) *at = before[j][e] + sum[i][j][e];
            }
      }
    }
    __syncthreads();
  }
}
#endif

// ---- L D L^T = A^T A, and L^-1 -----------------------------------------------------------------------------------------

// NB pivots at a time: row i <- row i - sum of multiples of the pivot rows, right of the pivots in A^T A and left of them in L^-1,
// which begins as the identity. Every thread factors the NB x NB block of the pivots for itself.
struct Pivots {
  T l[NB][NB], inverse[NB], d[NB];

  LW_INLINE Pivots(const Shared& s, int c, int count) {
    T w[NB][NB];
#pragma unroll
    for (int q = 0; q < NB; q++)
#pragma unroll
      for (int p = 0; p <= q; p++) w[q][p] = q < count ? s.l[(c + q) * s.pitch + c + p] : T(p == q);
#pragma unroll
    for (int q = 0; q < NB; q++) {
      d[q] = w[q][q];
#pragma unroll
      for (int r = 0; r < q; r++) d[q] -= w[q][r] * l[q][r];
      const T root = reciprocal_root(d[q]);
      inverse[q] = root * root;
#pragma unroll
      for (int i = q + 1; i < NB; i++) {
#pragma unroll
        for (int r = 0; r < q; r++) w[i][q] -= w[i][r] * l[q][r];
        l[i][q] = w[i][q] * inverse[q];
      }
    }
  }

  // x <- L^-1 x
  LW_INLINE void eliminate(T (&x)[NB]) const {
#pragma unroll
    for (int q = 1; q < NB; q++)
#pragma unroll
      for (int r = 0; r < q; r++) x[q] -= l[q][r] * x[r];
  }
};

LW_INLINE void eliminate(const Shared& s, int n) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll 1
  for (int c = 0; c < n; c += NB) {
    const int count = min(NB, n - c);
    const Pivots pivots(s, c, count);
    T rows[PARTS][NB];  // the pivot rows in the columns of this lane
#pragma unroll
    for (int p = 0; p < PARTS; p++) {
      const int j = lane + 32 * p;
#pragma unroll
      for (int q = 0; q < NB; q++) {
        const bool inside = j < n && q < count && (j < c || j >= c + NB);
        rows[p][q] = inside ? s.l[j < c ? (c + q) * s.pitch + j : j * s.pitch + c + q] : T(j == c + q);
      }
      pivots.eliminate(rows[p]);
    }
    __syncthreads();
#pragma unroll 1
    for (int first = c + NB + warp; first < n; first += TOGETHER * WARPS) {
      T by[TOGETHER][NB], e[TOGETHER][PARTS];
#pragma unroll
      for (int r = 0; r < TOGETHER; r++) {
        const int i = first + r * WARPS < n ? first + r * WARPS : first;  // another warp may be writing its rows
#pragma unroll
        for (int q = 0; q < NB; q++) by[r][q] = s.l[i * s.pitch + c + q];
#pragma unroll
        for (int p = 0; p < PARTS; p++) {
          const int j = lane + 32 * p;
          e[r][p] = 32 * p <= i && j <= i && (j < c || j >= c + NB) ? s.l[i * s.pitch + j] : T(0);
        }
      }
      sync_warp();
#pragma unroll
      for (int r = 0; r < TOGETHER; r++) {
        const int i = first + r * WARPS;
        pivots.eliminate(by[r]);
#pragma unroll
        for (int q = 0; q < NB; q++) by[r][q] *= pivots.inverse[q];
#pragma unroll
        for (int p = 0; p < PARTS; p++) {
          const int j = lane + 32 * p;
          if (32 * p <= i && i < n) {
#pragma unroll
            for (int q = 0; q < NB; q++) e[r][p] -= by[r][q] * rows[p][q];
            if (j <= i) s.l[i * s.pitch + j] = e[r][p];
          }
        }
      }
    }
    if (warp == 0) {
#pragma unroll
      for (int p = 0; p < PARTS; p++) {
        const int j = lane + 32 * p;
#pragma unroll
        for (int q = 0; q < NB; q++)
          if (q < count && j <= c + q) s.l[(c + q) * s.pitch + j] = j == c + q ? pivots.d[q] : rows[p][q];
      }
    }
    __syncthreads();
  }
  // z <- the squared norms of the rows of D^-1/2 L^-1
  if (threadIdx.x < n) {
    const int i = threadIdx.x;
    const T* row = s.l + i * s.pitch;
    const T d = row[i], inverse = 1 / d;
    T sum = 1;
#pragma unroll 4
    for (int j = 0; j < i; j++) sum += row[j] * row[j];
    s.inverse[i] = inverse;
    s.z[i] = is_pivot(d) ? sum * inverse : not_a_number();
  }
  __syncthreads();
}

// The sum of n numbers in shared memory, for every warp
template <typename F>
LW_INLINE T sum_of(int n, F f) {
  T sum = 0;
  for (int j = threadIdx.x % 32; j < n; j += 32) sum += f(j);
  return sum_lanes<32>(sum);
}

// ---- x -----------------------------------------------------------------------------------------------------------------

// y <- A^T (b - A x), and the squared norm of b - A x
template <bool FIRST>
LW_INLINE T gradient(const Shared& s, int n) {
  const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  T x[GROUPS], sum[GROUPS], squares = 0;
#pragma unroll
  for (int q = 0; q < GROUPS; q++) x[q] = FIRST ? T(0) : s.x[8 * q + g], sum[q] = 0;
#pragma unroll 2
  for (int k = 4 * warp; k < s.rows; k += 4 * WARPS) {
    T e[GROUPS], product = 0, left = s.b[k + t];
#pragma unroll
    for (int q = 0; q < GROUPS; q++) {
      e[q] = s.a[(k + t) * n + 8 * q + g];
      product += e[q] * x[q];
    }
    if (!FIRST) left -= sum_over<4, 32>(product);
    squares += left * left;
#pragma unroll
    for (int q = 0; q < GROUPS; q++) sum[q] += e[q] * left;
  }
#pragma unroll
  for (int q = 0; q < GROUPS; q++) {
    sum[q] = sum_over<1, 4>(sum[q]);
    if (t == 0) s.partial[warp * WIDTH + 8 * q + g] = sum[q];
  }
  squares = sum_over<1, 4>(squares);
  if (threadIdx.x % 32 == 0) s.norms[warp] = squares;
  __syncthreads();
  if (threadIdx.x < WIDTH) {
    T whole = 0;
#pragma unroll
    for (int w = 0; w < WARPS; w++) whole += s.partial[w * WIDTH + threadIdx.x];
    s.y[threadIdx.x] = whole;
  }
  T whole = 0;
#pragma unroll
  for (int w = 0; w < WARPS; w++) whole += s.norms[w];
  __syncthreads();
  return whole;
}

// y <- L^-T D^-1 L^-1 y
LW_INLINE void solve(const Shared& s, int n) {
  const int i = threadIdx.x;
  if (i < n) {
    T sum[4] = {s.y[i], 0, 0, 0};
#pragma unroll 2
    for (int j0 = 0; j0 < i; j0 += 4)
#pragma unroll
      for (int e = 0; e < 4; e++)
        if (j0 + e < i) sum[e] += s.l[i * s.pitch + j0 + e] * s.y[j0 + e];
    s.z[i] = ((sum[0] + sum[1]) + (sum[2] + sum[3])) * s.inverse[i];
  }
  __syncthreads();
  if (i < n) {
    T sum[4] = {s.z[i], 0, 0, 0};
#pragma unroll 2
    for (int j0 = i + 1; j0 < n; j0 += 4)
#pragma unroll
      for (int e = 0; e < 4; e++)
        if (j0 + e < n) sum[e] += s.l[(j0 + e) * s.pitch + i] * s.z[j0 + e];
    s.y[i] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
  }
  __syncthreads();
}

// x of one right-hand side; whether it has settled. `condition`: the square of one, from above
LW_INLINE bool find_x(const Shared& s, int n, T condition, T& residual) {
  gradient<true>(s, n);
  solve(s, n);
  if (threadIdx.x < n) s.x[threadIdx.x] = s.y[threadIdx.x];
  __syncthreads();
  bool settled = false;
#pragma unroll 1
  for (int step = 1; step < MOST_STEPS && !settled; step++) {
    residual = gradient<false>(s, n);
    solve(s, n);
    const T change = sum_of(n, [&](int j) { return s.y[j] * s.y[j]; });
    const T size = sum_of(n, [&](int j) { return (s.x[j] + s.y[j]) * (s.x[j] + s.y[j]); });
    __syncthreads();
    if (threadIdx.x < n) s.x[threadIdx.x] += s.y[threadIdx.x];
    __syncthreads();
    // the next change would be smaller than this one by eps times the square of the condition
    const T close = 4 * T(n) * EPS;
    settled = change <= close * close * size && change * condition * condition <= size;
  }
  return settled;
}

extern "C" __global__ void __launch_bounds__(LW_THREADS, LW_RESIDENT) lstsq_gram(Call call, double rcond) {
  const int n = call.n, m = call.m, k = call.k;
  Shared s;
  s.pitch = n | 1, s.rows = (m + 7) / 8 * 8;
  s.a = (T*)memory;
  s.l = s.a + (s.rows * n + WIDTH + VEC - 1) / VEC * VEC;
  s.b = s.l + n * s.pitch;
  s.partial = s.b + s.rows;
  s.x = s.partial + WARPS * WIDTH;
  s.y = s.x + WIDTH, s.z = s.y + WIDTH, s.inverse = s.z + WIDTH, s.norms = s.inverse + WIDTH;
  for (i64 which = blockIdx.x; which < call.batch; which += gridDim.x) {
    const T* a = call.a + which * m * n;
    for (int i = threadIdx.x; i < m * n / STEP; i += LW_THREADS) {
      if (LW_V == 16)
        copy_async<16>(s.a + i * STEP, a + i * STEP);
      else
        copy_element(s.a + i, a + i);
    }
    for (int i = m * n + threadIdx.x; i < s.rows * n + WIDTH; i += LW_THREADS) s.a[i] = 0;
    if (threadIdx.x < WIDTH) s.x[threadIdx.x] = 0;
    finish_copies();
    __syncthreads();
    multiply_columns(s, n);
    const T whole = sum_of(n, [&](int j) { return s.l[j * s.pitch + j]; });
    __syncthreads();
    eliminate(s, n);
    const T condition = whole * sum_of(n, [&](int j) { return s.z[j]; });  // the square of the Frobenius norms of A and of R^-1
    bool good = whole >= 1 / (LARGE * LARGE) && whole <= LARGE * LARGE && T(m) * EPS * condition <= 1 &&
                4 * rcond * rcond * double(condition) < 1;
    for (int column = 0; column < k && good; column++) {
      T largest = 0;
      bool finite = true;
      __syncthreads();
      for (int i = threadIdx.x; i < s.rows; i += LW_THREADS) {
        const T e = i < m ? load_element(call.b + (which * m + i) * k + column) : T(0);
        s.b[i] = e;
        finite = finite && is_finite(e);
        largest = fmax(largest, fabs(e));
      }
      const bool zeros = __syncthreads_count(largest > 0) == 0, normal = __syncthreads_count(largest >= 1 / LARGE) > 0;
      const bool huge = __syncthreads_count(largest > LARGE) > 0;
      finite = __syncthreads_count(!finite) == 0;
      T residual = not_a_number();
      good = !finite || ((zeros || normal) && !huge && find_x(s, n, condition, residual));
      if (good && threadIdx.x < n)
        store_element(call.x + (which * n + threadIdx.x) * k + column, finite ? s.x[threadIdx.x] : not_a_number());
      if (good && threadIdx.x == 0) call.residuals[which * k + column] = residual;
    }
    if (threadIdx.x == 0) {
      call.rank[which] = good ? n : DOUBTFUL;
      call.info[which] = 0;
    }
    __syncthreads();
  }
}
