// Batched eigenproblems by three stages, the first two here (the first for larger n in eigh_panel.cu):
//
//   eigh_reduce   A = Q T Q^H with T real and tridiagonal, Q = H_0 H_1 ... of Householder reflectors, LW_P threads per matrix
//   eigh_values   T = Z W Z^T by implicit QL, a lane per matrix; the rotations that make Z are written down
//   eigh_vectors  V = Q Z, every row by itself (eigh_vectors.cu)
//
// Nothing but the number of threads depends on n, so a few variants serve every size.
#include "eigh.cuh"

#if LW_KERNEL == 0
// ---- reduction to tridiagonal form -------------------------------------------------------------------------------

constexpr int P = LW_P;  // threads of one matrix, at least n and a power of two
constexpr int MATRICES = LW_THREADS / P;
constexpr int WARPS = P > 32 ? P / 32 : 1;  // of one matrix
constexpr int LOG_P = P == 8 ? 3 : P == 16 ? 4 : P == 32 ? 5 : P == 64 ? 6 : P == 128 ? 7 : P == 256 ? 8 : 9;

LW_INLINE void together() {
  if (P > 32)
    __syncthreads();
  else
    sync_warp();
}

// Sums over the threads of a matrix; whatever they wrote before is visible after. There is another barrier before `room` is
// used again.
LW_INLINE Real sum_all(Real x, Real* room, int t) {
  x = sum_lanes<(P < 32 ? P : 32)>(x);
  if (P > 32) {
    if (t % 32 == 0) room[t / 32] = x;
    __syncthreads();
    x = 0;
    for (int w = 0; w < WARPS; w++) x += room[w];
  } else {
    sync_warp();
  }
  return x;
}

#if LW_DTYPE < 2
LW_INLINE T sum_pairs(T x, Real* room, int t) { return sum_all(x, room, t); }
#else
LW_INLINE T sum_pairs(T x, Real* room, int t) {
  Real re = sum_lanes<(P < 32 ? P : 32)>(x.re), im = sum_lanes<(P < 32 ? P : 32)>(x.im);
  if (P > 32) {
    if (t % 32 == 0) {
      room[t / 32] = re;
      room[WARPS + t / 32] = im;
    }
    __syncthreads();
    re = im = 0;
    for (int w = 0; w < WARPS; w++) {
      re += room[w];
      im += room[WARPS + w];
    }
  } else {
    sync_warp();
  }
  return T{re, im};
}
#endif

// What one matrix has in shared memory beside itself.
struct Room {
  T* v;        // the reflector and the vector of the update that is still to be done, A <- A - v w^H - w v^H
  T* w;
  T* u;        // the new reflector
  T* partial;  // LW_P vectors
  T* head;     // the first element of the column, and of p
  Real* sums;  // 4 for each warp
};

// S <- the whole matrix from its named triangle, near 1 in size. Returns false when it holds NaN or Inf; then S is zero.
LW_INLINE bool load_matrix(T* s, int pitch, const T* a, int n, bool inside, int t, Real* room, Real& up) {
  Real largest = 0, bad = 0;
  constexpr int WIDE = P < 32 ? P : 32;
  if (inside) {
    for (int i = t / WIDE; i < n; i += P / WIDE)
      for (int j = t % WIDE; j < n; j += WIDE) {
        if (LW_UPPER ? j < i : j > i) continue;
        T x = load_element(a + i * n + j);
        if (i == j) x = from_real(real(x));
        if (!is_finite(x)) bad = 1;
        largest = fmax(largest, magnitude(x));
        s[i * pitch + j] = x;
        if (i != j) s[j * pitch + i] = conjugate(x);
      }
  }
  largest = max_lanes<(P < 32 ? P : 32)>(largest);
  bad = max_lanes<(P < 32 ? P : 32)>(bad);
  if (P > 32) {
    if (t % 32 == 0) {
      room[t / 32] = largest;
      room[WARPS + t / 32] = bad;
    }
    __syncthreads();
    for (int w = 0; w < WARPS; w++) {
      largest = fmax(largest, room[w]);
      bad = fmax(bad, room[WARPS + w]);
    }
  } else {
    sync_warp();
  }
  Real down;
  scaling(largest, down, up);
  bool drop = bad != 0 || !inside;
  for (int i = t / WIDE; i < n; i += P / WIDE)
    for (int j = t % WIDE; j < pitch; j += WIDE) {
      T x = s[i * pitch + j];
      s[i * pitch + j] = drop || j >= n ? zero() : scale(x, down);
    }
  together();
  return bad == 0;
}

// Rows k+1 .. of S <- S - v w^H - w v^H, and partial <- S u of the new S, split into shares of rows. A thread has VEC columns
// of a share: 2^wide threads cover the columns, from the one of k + 1 on.
LW_INLINE void update_and_multiply(T* s, int pitch, int n, int k, int wide, const Room& room, int t) {
  int column = (k + 1) / VEC * VEC + (t & ((1 << wide) - 1)) * VEC, share = t >> wide, shares = P >> wide;
  Vector y;
#pragma unroll
  for (int e = 0; e < VEC; e++) y.v[e] = zero();
  if (column < n) {
    Vector v = *(const Vector*)(room.v + column), w = *(const Vector*)(room.w + column);
    T* at = s + (k + 1 + share) * pitch + column;
    int j = k + 1 + share, rows = (n - j + shares - 1) >> (LOG_P - wide);
#pragma unroll 2
    for (int row = 0; row < rows; row++) {
      Vector x = *(const Vector*)at;
      T vj = room.v[j], wj = room.w[j], uj = room.u[j];
#pragma unroll
      for (int e = 0; e < VEC; e++) {
        x.v[e] = subtract_product(subtract_product(x.v[e], vj, w.v[e]), wj, v.v[e]);
        y.v[e] = add_product(y.v[e], uj, x.v[e]);
      }
      *(Vector*)at = x;
      at += shares * pitch;
      j += shares;
    }
  }
  *(Vector*)(room.partial + t * VEC) = y;
}

LW_INLINE T add_shares(const T* partial, int wide) {
  int step = VEC << wide, shares = P >> wide;
  T sum = zero();
  if (shares % 4 == 0) {
#pragma unroll 1
    for (; shares > 0; shares -= 4, partial += 4 * step) {
      T four = add(add(partial[0], partial[step]), add(partial[2 * step], partial[3 * step]));
      sum = add(sum, four);
    }
  } else {
#pragma unroll 1
    for (; shares > 0; shares--, partial += step) sum = add(sum, *partial);
  }
  return sum;
}

// h: row k holds reflector k (its element k + 1 is 1), n rows of h_pitch elements. d, e, tau: n each.
extern "C" __global__ void __launch_bounds__(LW_THREADS)
    eigh_reduce(const T* a, T* h, Real* d, Real* e, T* tau, Real* up, int* info, i64 batch, int n, int h_pitch, int keep) {
  int t = threadIdx.x % P, group = threadIdx.x / P;
  int columns = (n + VEC - 1) / VEC;
  int pitch = (columns | 1) * VEC;
  int vectors = columns * VEC;
  int each = n * pitch + 3 * vectors + (P + 2) * VEC;
  T* s = (T*)memory + group * each;
  Room room;
  room.v = s + n * pitch;
  room.w = room.v + vectors;
  room.u = room.w + vectors;
  room.partial = room.u + vectors;
  room.head = room.partial + P * VEC;
  room.sums = (Real*)((T*)memory + MATRICES * each);

  for (i64 base = (i64)blockIdx.x * MATRICES; base < batch; base += (i64)gridDim.x * MATRICES) {
    i64 m = base + group;
    bool inside = m < batch;
    if (!inside) m = batch - 1;
    T* reflectors = h + m * n * h_pitch;
    if (t < vectors) room.v[t] = room.w[t] = room.u[t] = zero();
    Real back;
    bool good = load_matrix(s, pitch, a + m * n * n, n, inside, t, room.sums, back);
    if (inside && t == 0) {
      up[m] = back;
      info[m] = !good;
    }
    T vt = zero(), wt = zero(), vk = zero(), wk = zero();  // elements t and k of v and w
    Real *dm = d + m * n, *em = e + m * n;
    T* taum = tau + m * n;
    int wide = 0;
    while ((VEC << wide) < n) wide++;
    for (int k = 0; k < n; k++) {
      // column k of A below the diagonal, with the update that S still lacks
      T x = zero();
      if (t >= k && t < n) {
        x = conjugate(s[k * pitch + t]);
        x = subtract_product(subtract_product(x, vt, wk), wt, vk);
      }
      if (t == k && inside) dm[k] = real(x);
      if (k == n - 1) break;
      if (t == k + 1) *room.head = x;
      Real rest = sum_all(t > k + 1 ? square(x) : Real(0), room.sums, t);
      T step;
      Real beta;
      T factor = reflector(*room.head, rest, step, beta);
      T ut = t == k + 1 ? from_real(Real(1)) : t > k ? multiply(x, factor) : zero();
      if (t < vectors) room.u[t] = ut;
      if (t == 0 && inside) {
        em[k] = beta;
        taum[k] = step;
      }
      together();
      if (keep && inside && t > k && t < n) reflectors[k * h_pitch + t] = ut;
      // half the threads cover the columns that are left: more shares, as long as adding them up is the lesser part
      int shares = P >> wide;
      if (wide > 0 && 2 * shares * shares < n - k && (k + 1) / VEC * VEC + (VEC << wide) / 2 >= n) wide--;
      update_and_multiply(s, pitch, n, k, wide, room, t);
      together();
      // w = p - tau/2 (p^H u) u with p = tau A u
      int from = (k + 1) / VEC * VEC;
      T p = t > k && t < n ? multiply(step, add_shares(room.partial + t - from, wide)) : zero();
      if (t == k + 1) room.head[VEC] = p;
      T dot = sum_pairs(multiply(conjugate(p), ut), room.sums + 2 * WARPS, t);
      T half = scale(multiply(step, dot), Real(0.5));
      wt = subtract(p, multiply(half, ut));
      vt = ut;
      wk = subtract(room.head[VEC], half);
      vk = from_real(Real(1));
      if (t < vectors) {
        room.v[t] = vt;
        room.w[t] = wt;
      }
    }
    together();
  }
}

#else
// ---- implicit QL -------------------------------------------------------------------------------------------------

#include "eigh_ql.cuh"

constexpr int WARPS = LW_THREADS / 32;

// M matrices per warp, a lane for each.
extern "C" __global__ void __launch_bounds__(LW_THREADS) eigh_values(Values values, i64 batch) {
  Real* room = (Real*)memory + threadIdx.x / 32 * values_room(values.n);
  for (i64 base = ((i64)blockIdx.x * WARPS + threadIdx.x / 32) * M; base < batch; base += (i64)gridDim.x * WARPS * M)
    solve(values, base, batch - base < M ? (int)(batch - base) : M, room);
}
#endif
