// Singular values and vectors of many small matrices: one-sided Jacobi, a column per lane, one or more matrices per warp.
//
// M is the matrix or its transpose, whichever has no more columns than rows: l x k. Rotations V make its columns orthogonal,
// M V = L S. In a sweep lane i meets lane i ^ 1, i ^ 2, ...: each pair once. Lanes past k hold zeros, which never turn.
// Compiled for l rounded up to LW_M, k to LW_K, LW_LANES columns, and LW_VECTORS or values alone.
#include "svd.cuh"

constexpr int M = LW_M;
constexpr int K = LW_K;
constexpr int LANES = LW_LANES;
constexpr int MATRICES = LW_THREADS / LANES;
constexpr int SWEEPS = 40;  // seven or eight are usual at order 32
constexpr int PART = 4;     // elements of V in registers at a time

struct Call {
  const T* a;
  T* u;
  Real* s;
  T* vh;
  int* info;
  i64 batch;
  int m, n;
};

LW_INLINE Real square_of(const T (&x)[M]) {
  Real sum[2] = {0, 0};
#pragma unroll
  for (int i = 0; i < M; i++) sum[i % 2] += square(x[i]);
  return sum[0] + sum[1];
}

// A column of zeros becomes a unit vector orthogonal to all others: what is left of that row of the identity of which most is
// left. `there`: the lane's column has length one.
LW_INLINE void complete(T (&x)[M], bool there, int lane, int l, int k) {
  for (int j = 0; j < k; j++) {
    bool missing = !shuffle((int)there, j, LANES);
    if (!any_lane(missing)) continue;
    Real best = 2;
    int place = 0;
    T e = zero(), y[M];
#pragma unroll
    for (int i = 0; i < M; i++) {
      Real used = sum_lanes<LANES>(there ? square(x[i]) : Real(0));
      bool less = i < l && used < best;
      best = less ? used : best;
      place = less ? i : place;
      e = select(less, x[i], e);
    }
    e = select(there, negate(conjugate(e)), zero());
#pragma unroll
    for (int i = 0; i < M; i++) y[i] = add(from_real(Real(i == place)), sum_lanes<LANES>(multiply(x[i], e)));
    T dot = zero();
#pragma unroll
    for (int i = 0; i < M; i++) dot = add_product(dot, y[i], x[i]);
    dot = select(there, negate(dot), zero());
#pragma unroll
    for (int i = 0; i < M; i++) y[i] = add(y[i], sum_lanes<LANES>(multiply(x[i], dot)));
    Real by = fine_root(square_of(y));
    if (missing && lane == j) {
#pragma unroll
      for (int i = 0; i < M; i++) x[i] = scale(y[i], by);
      there = true;
    }
  }
}

extern "C" __global__ void __launch_bounds__(LW_THREADS) svd_lanes(Call call) {
  const int g = threadIdx.x / LANES, lane = threadIdx.x % LANES, m = call.m, n = call.n;
  const bool tall = m >= n;
  const int k = tall ? n : m, l = tall ? m : n, down_step = tall ? n : 1, right_step = tall ? 1 : n;
  T* v = (T*)memory + threadIdx.x;  // element i of the lane's column of V is v[i * LW_THREADS]
  const Real small = LW_EPS * sqrt(Real(l));
  for (i64 start = (i64)blockIdx.x * MATRICES; start < call.batch; start += (i64)gridDim.x * MATRICES) {
    i64 which = start + g;
    bool inside = which < call.batch;
    const T* a = call.a + (inside ? which : 0) * m * n;

    T x[M];
    Real largest = 0;
    bool good = true;
#pragma unroll
    for (int i = 0; i < M; i++) {
      x[i] = i < l && lane < k ? load_element(a + i * down_step + lane * right_step) : zero();
      good = good && is_finite(x[i]);
      largest = fmax(largest, magnitude(x[i]));
    }
    largest = max_lanes<LANES>(largest);
    good = max_lanes<LANES>(Real(!good)) == 0;
    Real down, up;
    scaling(good ? largest : Real(1), down, up);
#pragma unroll
    for (int i = 0; i < M; i++) x[i] = good ? scale(x[i], down) : zero();
    if (LW_VECTORS)
#pragma unroll
      for (int i = 0; i < K; i++) v[i * LW_THREADS] = from_real(Real(i == lane));
    sync_warp();

    Real mine = square_of(x);
    bool left = true;
    for (int sweep = 0; sweep < SWEEPS && any_lane(left); sweep++) {
      left = false;
#pragma unroll 1
      for (int step = 1; step < LANES; step++) {
        T y[M], product = zero();
#pragma unroll
        for (int i = 0; i < M; i++) {
          y[i] = across(x[i], step);
          product = add_product(product, x[i], y[i]);
        }
        const bool first = lane < (lane ^ step);
#if LW_DTYPE >= 2  // both lanes must turn by the same angle, to the last bit
        T theirs = across(product, step);
        product = select(first, product, theirs);
#endif
        const Turn turn(product, mine, shuffle_xor(mine, step), first, small);
        if (!any_lane(turn.moves)) continue;
        left = left || turn.moves;
#pragma unroll
        for (int i = 0; i < M; i++) x[i] = turn.apply(x[i], y[i]);
        mine = square_of(x);
        if (LW_VECTORS) {
          const T* other = (const T*)memory + (threadIdx.x ^ step);
#pragma unroll
          for (int i = 0; i < K; i += PART) {
            T own[PART];
#pragma unroll
            for (int e = 0; e < PART; e++)
              own[e] = turn.apply(v[(i + e) * LW_THREADS], other[(i + e) * LW_THREADS]);
            sync_warp();
#pragma unroll
            for (int e = 0; e < PART; e++) v[(i + e) * LW_THREADS] = own[e];
          }
          sync_warp();
        }
      }
    }
    good = max_lanes<LANES>(Real(left || !good)) == 0;

    int place = 0;
    for (int j = 0; j < LANES; j++) {
      Real other = shuffle(mine, j, LANES);
      place += other > mine || (other == mine && j < lane);
    }
    const bool there = mine > LW_NO_COLUMN;
    const Real root = fine_root(there ? mine : Real(1));
    const bool written = inside && lane < k;
    if (written) call.s[which * k + place] = !good ? not_a_number() : there ? sqrt(mine) * up : Real(0);
    if (inside && lane == 0) call.info[which] = !good;
    if (LW_VECTORS) {
#pragma unroll
      for (int i = 0; i < M; i++) x[i] = scale(x[i], root);
      if (any_lane(!there && lane < k)) complete(x, there, lane, l, k);
      if (written) {
        // A = L S V^H, or A^T, A = conj(V) S L^T
        T* longer = tall ? call.u + which * m * k + place : call.vh + (which * k + place) * n;
        T* shorter = tall ? call.vh + (which * k + place) * n : call.u + which * m * k + place;
        const int long_step = tall ? k : 1, short_step = tall ? 1 : k;
#pragma unroll
        for (int i = 0; i < M; i++)
          if (i < l) store_element(longer + i * long_step, good ? add(x[i], zero()) : filled(not_a_number()));
#pragma unroll
        for (int i = 0; i < K; i++)
          if (i < k)
            store_element(shorter + i * short_step, good ? add(conjugate(v[i * LW_THREADS]), zero()) : filled(not_a_number()));
      }
    }
    sync_warp();
  }
}
