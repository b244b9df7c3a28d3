// A = Q R of many matrices by Householder reflections: a block of threads for each, the matrix E in shared memory.
//
// One warp makes the NB reflections of a panel in registers, RT rows to a lane, and the T of I - V T V^H, which all of them
// together are; all threads apply that to the columns right of the panel. The vectors stay in E below R. R is stored, and Q
// takes its place, from the last panel to the first. A matrix is read whole before anything of it is written.
#include "block.cuh"
#include "eigh.cuh"

struct Call {
  const T* a;
  T* q;
  T* r;
  i64 batch, n, c;
  int m, reflections;  // min(m, n)
};

struct Shared {
  T* e;     // m rows of `pitch` elements
  T* v;     // m rows of NB elements: the vectors of a panel with their ones and zeros
  T* w;     // NB rows of `pitch` elements: T V^H E
  T* t;     // NB x NB for each panel
  T* line;  // two pairs of lines of a panel
  int m, pitch, reflections;
  LW_INLINE T& at(int i, int j) const { return e[i * pitch + j]; }
};

// The threads of a block agree on it in shared memory.
struct State {
  int infinite;  // something is not finite
  int exponent;  // of the largest entry
};

// x <- the sums of the lines of all lanes, in every lane. Earlier writes to shared memory are then visible to the warp.
LW_INLINE void sum_lines(T (&x)[NB], T* room) {
  sum_warp(x, room);
  sync_warp();
  load_line(x, room);
}

// One warp: the reflections of the panel from column j0 on. Lane l has the rows j0 + l, j0 + l + 32, ...
LW_INLINE void reflect_panel(Shared& s, int j0) {
  const int lane = threadIdx.x % 32, left = s.m - j0, width = min(NB, s.reflections - j0);
  T p[RT][NB], t[NB];
#pragma unroll
  for (int r = 0; r < RT; r++) {
    if (32 * r < left) load_line(p[r], &s.at(min(j0 + lane + 32 * r, s.m - 1), j0));
    if (lane + 32 * r >= left)
#pragma unroll
      for (int c = 0; c < NB; c++) p[r][c] = zero();
  }
#pragma unroll
  for (int c = 0; c < NB; c++) t[c] = zero();
#pragma unroll
  for (int c = 0; c < NB; c++) {
    if (c < width) {
      // x^H P below row c, for what lies left of column c too: those vectors meet this one in T
      T sum[NB], top[NB];
#pragma unroll
      for (int k = 0; k < NB; k++) {
        sum[k] = zero();
#pragma unroll
        for (int r = 0; r < RT; r++)
          if (32 * r < left) sum[k] = add_product(sum[k], p[r][k], r == 0 ? select(lane > c, p[0][c], zero()) : p[r][c]);
      }
      T* room = s.line + c % 2 * 2 * NB;
      if (lane == c) store_line(room + NB, p[0]);
      sum_lines(sum, room);
      load_line(top, room + NB);
      T tau;
      Real beta;
      const T factor = reflector(top[c], real(sum[c]), tau, beta);
      T by[NB];  // conj(tau) u^H P
#pragma unroll
      for (int k = c + 1; k < NB; k++) by[k] = add_product(zero(), add_product(top[k], sum[k], factor), tau);
      // T(0 .. c, c) = -tau T V^H u, row l in lane l
      T meet = zero();
#pragma unroll
      for (int k = 0; k < c; k++) meet = add_plain(meet, t[k], add_product(conjugate(top[k]), factor, sum[k]));
      t[c] = lane == c ? tau : select(lane < c, negate(multiply(tau, meet)), zero());
#pragma unroll
      for (int r = 0; r < RT; r++) {
        if (32 * r < left) {
          T u = multiply(p[r][c], factor);
          if (r == 0) u = lane == c ? from_real(1) : select(lane > c, u, zero());
#pragma unroll
          for (int k = c + 1; k < NB; k++) p[r][k] = subtract_plain(p[r][k], u, by[k]);
          p[r][c] = r > 0 || lane > c ? u : lane == c ? from_real(beta) : p[r][c];
        }
      }
    }
  }
#pragma unroll
  for (int r = 0; r < RT; r++) {
    const int i = j0 + lane + 32 * r;
    if (i < s.m) {
      store_line(&s.at(i, j0), p[r]);
#pragma unroll
      for (int c = 0; c < NB; c++) {
        if (r == 0 && lane <= c) p[r][c] = from_real(Real(lane == c));
        if (c >= width) p[r][c] = zero();
      }
      store_line(s.v + i * NB, p[r]);
    }
  }
  if (lane < NB) store_line(s.t + (j0 + lane) * NB, t);
}

// C <- (I - V T V^H) C for the rows from j0 on and the columns `begin` to `end`; with ADJOINT T^H instead of T.
template <bool ADJOINT>
LW_INLINE void apply_panel(Shared& s, int j0, int begin, int end) {
  const int lane = threadIdx.x % 32, group = lane / 8, columns = (end - begin + VEC - 1) / VEC;
  if (columns <= 0) return;
  // W = T V^H C: eight pieces of VEC columns for a warp, every fourth row for a lane
  for (int first = threadIdx.x / 32 * 8; first < columns; first += WARPS * 8) {
    const int j = begin + min(first + lane % 8, columns - 1) * VEC;
    T sum[NB][VEC];
#pragma unroll
    for (int k = 0; k < NB; k++)
#pragma unroll
      for (int v = 0; v < VEC; v++) sum[k][v] = zero();
    for (int i = j0 + group; i < s.m; i += 4) {
      T u[NB];
      load_line(u, s.v + i * NB);
      const Vector x = *(const Vector*)&s.at(i, j);
#pragma unroll
      for (int k = 0; k < NB; k++)
#pragma unroll
        for (int v = 0; v < VEC; v++) sum[k][v] = add_product(sum[k][v], x.v[v], u[k]);
    }
#pragma unroll
    for (int v = 0; v < VEC; v++) {
      T y[NB], z[NB];
#pragma unroll
      for (int k = 0; k < NB; k++) {
        y[k] = add(sum[k][v], across(sum[k][v], 8));
        y[k] = add(y[k], across(y[k], 16));
        z[k] = zero();
      }
      if (group == v) {
#pragma unroll
        for (int q = 0; q < NB; q++) {
          T t[NB];
          load_line(t, s.t + (j0 + q) * NB);
#pragma unroll
          for (int k = q; k < NB; k++) {
            if (ADJOINT)
              z[k] = add_product(z[k], y[q], t[k]);
            else
              z[q] = add_plain(z[q], t[k], y[k]);
          }
        }
        if (first + lane % 8 < columns)
#pragma unroll
          for (int k = 0; k < NB; k++) s.w[k * s.pitch + j + v] = z[k];
      }
    }
  }
  __syncthreads();
  const int rows = (s.m - j0 + HIGH - 1) / HIGH;
  for (Walk w(columns, threadIdx.x, LW_THREADS); w.line < rows; w.next()) {
    const int j = begin + w.place * VEC;
    subtract_piece(s.e + j, s.pitch, s.v, NB, s.w + j, s.pitch, j0 + w.line * HIGH, s.m);
  }
  __syncthreads();
}

// Q = (I - V1 T1 V1^H) (I - V2 T2 V2^H) ... I in place of the vectors.
LW_INLINE void form_q(Shared& s, int c) {
  const int last = (s.reflections - 1) / NB * NB;
  for (int i = threadIdx.x; i < s.m; i += LW_THREADS)
    for (int j = s.reflections; j < rounded_up(c); j++) s.at(i, j) = from_real(Real(i == j));
  for (int j0 = last; j0 >= 0; j0 -= NB) {
    const int width = min(NB, s.reflections - j0);
    for (int i = threadIdx.x; i < s.m; i += LW_THREADS) {
      T v[NB], e[NB];
      load_line(v, &s.at(i, j0));
#pragma unroll
      for (int q = 0; q < NB; q++) {
        e[q] = q < width ? from_real(Real(i == j0 + q)) : v[q];
        if (q >= width || i <= j0 + q) v[q] = from_real(Real(q < width && i == j0 + q));
      }
      store_line(s.v + i * NB, v);
      store_line(&s.at(i, j0), e);
    }
    __syncthreads();
    apply_panel<false>(s, j0, j0, c);
  }
}

extern "C" __global__ void __launch_bounds__(LW_THREADS, LW_RESIDENT) qr_block(Call call, int pitch) {
  Shared s;
  const int m = call.m, n = (int)call.n, c = (int)call.c, k = call.reflections;
  s.m = m, s.pitch = pitch, s.reflections = k;
  s.e = (T*)memory;  // the pitch is a multiple of 16 bytes
  s.v = s.e + m * pitch;
  s.w = s.v + m * NB;
  s.t = s.w + NB * pitch;
  s.line = s.t + rounded_up(k) * NB;
  State* state = (State*)(s.line + 4 * NB);
  for (i64 which = blockIdx.x; which < call.batch; which += gridDim.x) {
    if (threadIdx.x == 0) state->infinite = 0, state->exponent = -MAX_EXPONENT;
    load_rows(s.e, pitch, call.a + which * m * n, m, n);
    __syncthreads();

    // powers of two near 1 / the largest entry keep squares in range
    Real largest = 0;
    bool good = true;
    for (Walk w(n, threadIdx.x, LW_THREADS); w.line < m; w.next()) {
      const T x = s.at(w.line, w.place);
      good = good && is_finite(x);
      largest = fmax(largest, magnitude(x));
    }
    if (!good) atomicOr(&state->infinite, 1);
    if (good && largest > 0) atomicMax(&state->exponent, ilogb(largest));
    __syncthreads();
    good = !state->infinite;
    const int exponent = min(max(state->exponent, -MAX_EXPONENT), MAX_EXPONENT);
    Real up = 1;
    if (exponent < -8 || exponent > 8) {
      const Real down = ldexp(Real(1), -exponent);
      up = ldexp(Real(1), exponent);
      for (Walk w(n, threadIdx.x, LW_THREADS); w.line < m; w.next()) s.at(w.line, w.place) = scale(s.at(w.line, w.place), down);
    }
    __syncthreads();

    for (int j0 = 0; j0 < k && good; j0 += NB) {
      if (threadIdx.x < 32) reflect_panel(s, j0);
      __syncthreads();
      apply_panel<true>(s, j0, j0 + NB, n);
    }
    store_rows(call.r + which * c * n, s.e, pitch, c, n, [&](int i, int j, Real x) {
      return !good ? not_a_number() : i > j ? Real(0) : x * up;
    });
    __syncthreads();
    if (good) form_q(s, c);
    for (Walk w(c, threadIdx.x, LW_THREADS); w.line < m; w.next())
      store_element(call.q + (which * m + w.line) * c + w.place, good ? s.at(w.line, w.place) : filled(not_a_number()));
    __syncthreads();
  }
}
