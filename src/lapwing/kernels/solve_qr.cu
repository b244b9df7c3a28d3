// A = Q R of many small matrices by Householder reflections: one column per lane, one or more matrices per warp.
//
// Compiled for m rounded up to LW_M and LW_LANES columns at a time; n and c, the columns of Q, are free. The reflections stay
// in shared memory, as vectors u with H = I - tau u u^H; rows past m hold zeros, which change nothing.
#include "eigh.cuh"

constexpr int M = LW_M;
constexpr int LANES = LW_LANES;
constexpr int MATRICES = LW_THREADS / LANES;
constexpr int PITCH = ((M * SIZE + 15) / 16 | 1) * 16;  // bytes of a vector

struct Call {
  const T* a;
  T* q;
  T* r;
  i64 batch, n, c;
  int m, reflections;  // min(m, n)
};

LW_INLINE void load_vector(T (&u)[M], const char* from) {
#pragma unroll
  for (int k = 0; k < M; k += VEC) {
    Vector p = *(const Vector*)(from + k * SIZE);
#pragma unroll
    for (int v = 0; v < VEC; v++)
      if (k + v < M) u[k + v] = p.v[v];
  }
}

// x <- x - t u (u^H x)
LW_INLINE void reflect(T (&x)[M], const char* vector, T t) {
  T u[M], dot = zero();
  load_vector(u, vector);
#pragma unroll
  for (int i = 0; i < M; i++) dot = add_product(dot, x[i], u[i]);
  dot = negate(multiply(t, dot));
#pragma unroll
  for (int i = 0; i < M; i++) x[i] = add_plain(x[i], u[i], dot);
}

// The reflection that takes what lies below element j of x away.
LW_INLINE T make_reflection(const T (&x)[M], int j, char* vector) {
  T alpha = zero(), tau;
  Real rest = 0, beta;
#pragma unroll
  for (int i = 0; i < M; i++) {
    alpha = select(i == j, x[i], alpha);
    rest += i > j ? square(x[i]) : Real(0);
  }
  T factor = reflector(alpha, rest, tau, beta);
#pragma unroll
  for (int k = 0; k < M; k += VEC) {
    Vector p;
#pragma unroll
    for (int v = 0; v < VEC; v++) {
      T y = k + v < M ? multiply(x[k + v < M ? k + v : 0], factor) : zero();
      p.v[v] = k + v > j ? y : from_real(Real(k + v == j));
    }
    *(Vector*)(vector + k * SIZE) = p;
  }
  return tau;
}

extern "C" __global__ void __launch_bounds__(LW_THREADS) solve_qr(Call call) {
  int g = threadIdx.x / LANES, lane = threadIdx.x % LANES, m = call.m, reflections = call.reflections;
  // of each matrix the vectors, then their factors
  char* vectors = memory + g * ((reflections * (PITCH + SIZE) + 15) / 16 * 16);
  T* taus = (T*)(vectors + reflections * PITCH);
  for (i64 first = (i64)blockIdx.x * MATRICES; first < call.batch; first += (i64)gridDim.x * MATRICES) {
    i64 which = first + g, n = call.n;
    bool inside = which < call.batch;
    const T* a = call.a + (inside ? which : 0) * m * n;

    // powers of two near 1 / the largest entry keep squares in range
    Real largest = 0;
    bool good = true;
    for (i64 c = lane; c < n; c += LANES)
      for (int i = 0; i < m; i++) {
        T x = load_element(a + i * n + c);
        good = good && is_finite(x);
        largest = fmax(largest, magnitude(x));
      }
    largest = max_lanes<LANES>(largest);
    good = max_lanes<LANES>(Real(!good)) == 0;
    Real down, up;
    scaling(good ? largest : Real(1), down, up);

    for (i64 start = 0; start < n; start += LANES) {
      i64 column = start + lane;
      T x[M];
#pragma unroll
      for (int i = 0; i < M; i++)
        x[i] = i < m && column < n ? scale(load_element(a + i * n + column), down) : zero();
      int done = start < reflections ? (int)start : reflections;
      int end = start + LANES < reflections ? (int)start + LANES : reflections;
      for (int j = 0; j < end; j++) {
        if (j >= done) {
          sync_warp();
          if (column == j) taus[j] = make_reflection(x, j, vectors + j * PITCH);
          sync_warp();
        }
        if (column >= j) reflect(x, vectors + j * PITCH, conjugate(taus[j]));
      }
      if (inside && column < n) {
#pragma unroll
        for (int i = 0; i < M; i++) {
          T y = i > column ? zero() : scale(x[i], up);
          if (i < m && i < call.c) store_element(call.r + (which * call.c + i) * n + column, good ? y : filled(not_a_number()));
        }
      }
    }
    sync_warp();

    // Q = H_1 H_2 ... I
    for (i64 start = 0; start < call.c; start += LANES) {
      i64 column = start + lane;
      T x[M];
#pragma unroll
      for (int i = 0; i < M; i++) x[i] = from_real(Real(i == column));
      for (int j = reflections - 1; j >= 0; j--)
        if (column >= j) reflect(x, vectors + j * PITCH, taus[j]);
      if (inside && column < call.c) {
#pragma unroll
        for (int i = 0; i < M; i++)
          if (i < m) store_element(call.q + (which * m + i) * call.c + column, good ? x[i] : filled(not_a_number()));
      }
    }
    sync_warp();
  }
}
