// Householder reflections of one panel of each matrix of a batch, a block of threads for each: the panel E in shared memory.
//
// NB columns at a time are taken into registers, RT rows to a thread; the other columns of the panel follow by products in
// shared memory. R (and what the reflections make of columns to the right that have none of their own) goes back to the matrix.
// All reflections of the panel together are I - V T V^H = I - Y V^H: V, with its ones and zeros, and Y = V T are written out,
// so that whatever else they are applied to takes two products of matrices and no T.
//   LW_RT  rows of a thread
#include "block.cuh"
#include "eigh.cuh"

struct Call {
  T* a;    // the panel: `rows` rows of `columns` elements, the first `reflections` columns with reflections
  T* v;    // null: neither V nor Y is wanted
  T* y;
  T* tau;  // may be null
  i64 batch, stride, v_stride, tau_stride;  // elements between matrices
  int ld, v_ld, rows, columns, reflections;
  int above;  // rows of V and Y above the panel that are zero
  int whole;  // 1: the vectors are stored below R too
};

struct Shared {
  T* e;     // rows of `pitch` elements: R above the vectors
  T* head;  // NB x NB: the first lines of the vectors that are being applied, with their ones and zeros
  T* block; // NB x NB: T of those vectors
  T* w;     // NB rows of `pitch` elements: V^H E
  T* part;  // as many for each warp: its share of w; then T^H V^H E
  T* t;     // T of the panel, rows of `pitch` elements
  T* line;  // two times a line of a panel for each warp, and one
  int m, pitch, columns, reflections;
  LW_INLINE T& at(int i, int j) const { return e[i * pitch + j]; }
  LW_INLINE const T* vectors(int i, int j0) const { return i - j0 < NB ? head + (i - j0) * NB : e + i * pitch + j0; }
};

// The reflections of the NB columns from j0 on. Thread t has the rows j0 + t, j0 + t + LW_THREADS, ...
LW_INLINE void reflect(const Shared& s, int j0, T* tau_out, bool keeps_t) {
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32, left = s.m - j0, width = min(NB, s.reflections - j0);
  T p[RT][NB], t[NB];
#pragma unroll
  for (int r = 0; r < RT; r++) {
    if (thread + LW_THREADS * r < left) {
      load_line(p[r], &s.at(j0 + thread + LW_THREADS * r, j0));
    } else {
#pragma unroll
      for (int c = 0; c < NB; c++) p[r][c] = zero();
    }
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
          if (LW_THREADS * r < left)
            sum[k] = add_product(sum[k], p[r][k], r == 0 ? select(thread > c, p[0][c], zero()) : p[r][c]);
      }
      T* room = s.line + c % 2 * (WARPS + 1) * NB;
      if (thread == c) store_line(room + WARPS * NB, p[0]);
      sum_warp(sum, room + warp * NB);
      __syncthreads();
      load_line(sum, room);
#pragma unroll
      for (int w = 1; w < WARPS; w++) {
        T more[NB];
        load_line(more, room + w * NB);
#pragma unroll
        for (int k = 0; k < NB; k++) sum[k] = add(sum[k], more[k]);
      }
      load_line(top, room + WARPS * NB);
      T tau;
      Real beta;
      const T factor = reflector(top[c], real(sum[c]), tau, beta);
      if (!(real(sum[c]) <= LW_LARGEST)) tau = filled(not_a_number());
      T by[NB];  // conj(tau) u^H P
#pragma unroll
      for (int k = c + 1; k < NB; k++) by[k] = add_product(zero(), add_product(top[k], sum[k], factor), tau);
      // T(0 .. c, c) = -tau T V^H u, row l in lane l
      T meet = zero();
#pragma unroll
      for (int k = 0; k < c; k++) meet = add_plain(meet, t[k], add_product(conjugate(top[k]), factor, sum[k]));
      t[c] = lane == c ? tau : select(lane < c, negate(multiply(tau, meet)), zero());
      if (thread == c && tau_out) tau_out[j0 + c] = tau;
#pragma unroll
      for (int r = 0; r < RT; r++) {
        if (LW_THREADS * r < left) {
          T u = multiply(p[r][c], factor);
          if (r == 0) u = thread == c ? from_real(1) : select(thread > c, u, zero());
#pragma unroll
          for (int k = c + 1; k < NB; k++) p[r][k] = subtract_plain(p[r][k], u, by[k]);
          p[r][c] = r > 0 || thread > c ? u : thread == c ? from_real(beta) : p[r][c];
        }
      }
    }
  }
#pragma unroll
  for (int r = 0; r < RT; r++) {
    if (thread + LW_THREADS * r < left) {
      store_line(&s.at(j0 + thread + LW_THREADS * r, j0), p[r]);
      if (r == 0 && thread < NB) {
#pragma unroll
        for (int c = 0; c < NB; c++)
          if (thread <= c || c >= width) p[r][c] = from_real(Real(thread == c && c < width));
        store_line(s.head + thread * NB, p[r]);
      }
    }
  }
  if (thread < NB) {
    store_line(s.block + thread * NB, t);
    if (keeps_t) store_line(s.t + (j0 + thread) * s.pitch + j0, t);
  }
  __syncthreads();
}

// part <- T^H V^H E for the columns from `begin` on; w is V^H E
LW_INLINE void project(const Shared& s, int j0, int begin) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = lane / 8, pieces = (rounded_up(s.columns) - begin) / VEC;
  // eight pieces of VEC columns for a warp at a time, the rows shared out over the warps and over four groups of lanes
  for (int first = 0; first < pieces; first += 8) {
    const int j = begin + min(first + lane % 8, pieces - 1) * VEC;
    T sum[NB * VEC];
#pragma unroll
    for (int k = 0; k < NB * VEC; k++) sum[k] = zero();
    for (int i = j0 + warp * 4 + group; i < s.m; i += WARPS * 4) {
      T u[NB];
      load_line(u, s.vectors(i, j0));
      const Vector x = *(const Vector*)&s.at(i, j);
#pragma unroll
      for (int k = 0; k < NB; k++)
#pragma unroll
        for (int v = 0; v < VEC; v++) sum[k * VEC + v] = add_product(sum[k * VEC + v], x.v[v], u[k]);
    }
    // a quarter of the sums for each group
#pragma unroll
    for (int count = NB * VEC / 2, step = 16; step >= 8; count /= 2, step /= 2) {
      const bool high = lane & step;
#pragma unroll
      for (int k = 0; k < NB * VEC / 2; k++) {
        if (k < count) {
          const T keep = select(high, sum[k + count], sum[k]), send = select(high, sum[k], sum[k + count]);
          sum[k] = add(keep, across(send, step));
        }
      }
    }
    if (first + lane % 8 < pieces) {
#pragma unroll
      for (int k = 0; k < NB / 4; k++) {
        Vector x;
#pragma unroll
        for (int v = 0; v < VEC; v++) x.v[v] = sum[k * VEC + v];
        *(Vector*)(s.part + (warp * NB + group * (NB / 4) + k) * s.pitch + j) = x;
      }
    }
  }
  __syncthreads();
  for (Walk w(pieces, threadIdx.x, LW_THREADS); w.line < NB; w.next()) {
    const int place = w.line * s.pitch + begin + w.place * VEC;
    Vector x = *(const Vector*)(s.part + place);
#pragma unroll
    for (int other = 1; other < WARPS; other++) {
      const Vector more = *(const Vector*)(s.part + other * NB * s.pitch + place);
#pragma unroll
      for (int v = 0; v < VEC; v++) x.v[v] = add(x.v[v], more.v[v]);
    }
    *(Vector*)(s.w + place) = x;
  }
  __syncthreads();
  for (Walk w(pieces, threadIdx.x, LW_THREADS); w.line < NB; w.next()) {
    const int j = begin + w.place * VEC;
    Vector x;
#pragma unroll
    for (int v = 0; v < VEC; v++) x.v[v] = zero();
#pragma unroll
    for (int q = 0; q < NB; q++) {
      if (q <= w.line) {
        const T by = s.block[q * NB + w.line];
        const Vector y = *(const Vector*)(s.w + q * s.pitch + j);
#pragma unroll
        for (int v = 0; v < VEC; v++) x.v[v] = add_product(x.v[v], y.v[v], by);
      }
    }
    *(Vector*)(s.part + w.line * s.pitch + j) = x;
  }
  __syncthreads();
}

// E <- E - V part, right of the NB columns from j0 on
LW_INLINE void update(const Shared& s, int j0) {
  const int begin = j0 + NB, pieces = (rounded_up(s.columns) - begin) / VEC, groups = (s.m - j0 + HIGH - 1) / HIGH;
  if (pieces <= 0) return;
  for (Walk w(pieces, threadIdx.x, LW_THREADS); w.line < groups; w.next()) {
    const int j = begin + w.place * VEC, i0 = j0 + w.line * HIGH;
    T line[HIGH][NB];
    Vector x[HIGH];
#pragma unroll
    for (int a = 0; a < HIGH; a++) {
      const int i = min(i0 + a, s.m - 1);
      load_line(line[a], s.vectors(i, j0));
      x[a] = *(const Vector*)&s.at(i, j);
    }
#pragma unroll
    for (int k = 0; k < NB; k++) {
      const Vector y = *(const Vector*)(s.part + k * s.pitch + j);
#pragma unroll
      for (int a = 0; a < HIGH; a++)
#pragma unroll
        for (int v = 0; v < VEC; v++) x[a].v[v] = subtract_plain(x[a].v[v], line[a][k], y.v[v]);
    }
#pragma unroll
    for (int a = 0; a < HIGH; a++)
      if (i0 + a < s.m) *(Vector*)&s.at(i0 + a, j) = x[a];
  }
}

// T(0 .. j0, j0 ..) = -T V^H V_j0 T_j0, of which project() has left the adjoint without T
LW_INLINE void extend_t(const Shared& s, int j0) {
  for (int task = threadIdx.x; task < j0 * NB; task += LW_THREADS) {
    const int i = task / NB, k = task % NB;
    T sum = zero();
    for (int b = i; b < j0; b++) sum = add_product(sum, s.t[i * s.pitch + b], s.part[k * s.pitch + b]);
    s.t[i * s.pitch + j0 + k] = negate(sum);
  }
}

// V and Y = V T to global memory
LW_INLINE void write_vectors(const Shared& s, const Call& call, i64 which) {
  const int k = s.reflections, pieces = (k + VEC - 1) / VEC, groups = (s.m + HIGH - 1) / HIGH;
  for (Walk w(rounded_up(k), threadIdx.x, LW_THREADS); w.line < k; w.next())
    if (w.place >= w.line) s.at(w.line, w.place) = from_real(Real(w.line == w.place));
  __syncthreads();
  T *v = call.v + which * call.v_stride, *y = call.y + which * call.v_stride;
  for (Walk w(pieces, threadIdx.x, LW_THREADS); w.line < groups; w.next()) {
    const int j = w.place * VEC, i0 = w.line * HIGH;
    Vector x[HIGH];
#pragma unroll
    for (int a = 0; a < HIGH; a++)
#pragma unroll
      for (int e = 0; e < VEC; e++) x[a].v[e] = zero();
    for (int k0 = 0; k0 <= j / NB * NB; k0 += NB) {
      T line[HIGH][NB];
#pragma unroll
      for (int a = 0; a < HIGH; a++) load_line(line[a], &s.at(min(i0 + a, s.m - 1), k0));
#pragma unroll
      for (int q = 0; q < NB; q++) {
        const Vector t = *(const Vector*)(s.t + (k0 + q) * s.pitch + j);
#pragma unroll
        for (int a = 0; a < HIGH; a++)
#pragma unroll
          for (int e = 0; e < VEC; e++) x[a].v[e] = add_plain(x[a].v[e], line[a][q], t.v[e]);
      }
    }
#pragma unroll
    for (int a = 0; a < HIGH; a++) {
      if (i0 + a < s.m) {
        Vector own = *(const Vector*)&s.at(i0 + a, j);
#pragma unroll
        for (int e = 0; e < VEC; e++)
          if (j + e >= k) own.v[e] = zero();
        *(Vector*)(v + (i64)(i0 + a) * call.v_ld + j) = own;
        *(Vector*)(y + (i64)(i0 + a) * call.v_ld + j) = x[a];
      }
    }
  }
  Vector nothing;
#pragma unroll
  for (int e = 0; e < VEC; e++) nothing.v[e] = zero();
  for (Walk w(pieces, threadIdx.x, LW_THREADS); w.line < call.above; w.next()) {
    const i64 place = (i64)(w.line - call.above) * call.v_ld + w.place * VEC;
    *(Vector*)(v + place) = nothing;
    *(Vector*)(y + place) = nothing;
  }
}

extern "C" __global__ void __launch_bounds__(LW_THREADS) qr_panel(Call call, int pitch) {
  Shared s;
  s.m = call.rows, s.pitch = pitch, s.columns = call.columns, s.reflections = call.reflections;
  s.e = (T*)memory;  // the pitch is a multiple of 16 bytes
  s.head = s.e + s.m * pitch;
  s.block = s.head + NB * NB;
  s.w = s.block + NB * NB;
  s.part = s.w + NB * pitch;
  s.line = s.part + WARPS * NB * pitch;
  s.t = s.line + 2 * (WARPS + 1) * NB;
  const bool vectors = call.v;
  const int units = (s.columns + VEC - 1) / VEC;
  for (i64 which = blockIdx.x; which < call.batch; which += gridDim.x) {
    T* a = call.a + which * call.stride;
    T* tau = call.tau ? call.tau + which * call.tau_stride : call.tau;
    for (Walk w(units, threadIdx.x, LW_THREADS); w.line < s.m; w.next())
      copy_async<16>(&s.at(w.line, w.place * VEC), a + (i64)w.line * call.ld + w.place * VEC);
    finish_copies();
    __syncthreads();
    for (int i = threadIdx.x; i < s.m; i += LW_THREADS)
      for (int j = s.columns; j < rounded_up(s.columns); j++) s.at(i, j) = zero();
    __syncthreads();
    for (int j0 = 0; j0 < s.reflections; j0 += NB) {
      reflect(s, j0, tau, vectors);
      const int begin = vectors && j0 > 0 ? 0 : j0 + NB;
      if (begin < rounded_up(s.columns)) {
        project(s, j0, begin);
        update(s, j0);
        if (vectors) extend_t(s, j0);
        __syncthreads();
      }
    }
    const int stored = call.whole || s.columns > s.reflections ? s.m : s.reflections;
    for (Walk w(units, threadIdx.x, LW_THREADS); w.line < stored; w.next()) {
      const int j = w.place * VEC;
      T* to = a + (i64)w.line * call.ld + j;
      if (j + VEC <= s.columns) {
        *(Vector*)to = *(const Vector*)&s.at(w.line, j);
      } else {
        for (int e = 0; j + e < s.columns; e++) to[e] = s.at(w.line, j + e);
      }
    }
    __syncthreads();
    if (vectors) write_vectors(s, call, which);
    __syncthreads();
  }
}
