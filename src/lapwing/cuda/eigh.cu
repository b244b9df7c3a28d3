// Batched eigenproblems by three stages, the first two here:
//
//   eigh_reduce   A = Q T Q^H with T real and tridiagonal, Q = H_0 H_1 ... of Householder reflectors, LW_P threads per matrix
//   eigh_values   T = Z W Z^T by implicit QL, a lane per matrix; the rotations that make Z are written down
//   eigh_vectors  V = Q Z, every row by itself (eigh_vectors.cu)
//
// Nothing but the number of threads depends on n, so a few variants serve every size.
#include "eigh.cuh"

extern __shared__ __align__(16) char memory[];

#if LW_KERNEL == 0
// ---- reduction to tridiagonal form -------------------------------------------------------------------------------

constexpr int P = LW_P;                      // threads of one matrix, at least n; up to 32 of them share a warp
constexpr int MATRICES = LW_THREADS / P;
constexpr int WARPS = P > 32 ? P / 32 : 1;   // of one matrix

LW_INLINE void together() {
  if (P > 32)
    __syncthreads();
  else
    __syncwarp();
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
    __syncwarp();
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
    __syncwarp();
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
  T* head;     // its first element
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
        T x = load_element(a + (i64)i * n + j);
        if (i == j) x = from_real(real(x));
        if (!is_finite(x)) bad = 1;
        largest = fmax(largest, magnitude(x));
        s[(i64)i * pitch + j] = x;
        if (i != j) s[(i64)j * pitch + i] = conjugate(x);
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
    __syncwarp();
  }
  Real down;
  scaling(largest, down, up);
  bool drop = bad != 0 || !inside;
  for (int i = t / WIDE; i < n; i += P / WIDE)
    for (int j = t % WIDE; j < pitch; j += WIDE) {
      T x = s[(i64)i * pitch + j];
      s[(i64)i * pitch + j] = drop || j >= n ? zero() : scale(x, down);
    }
  together();
  return bad == 0;
}

// Rows k+1 .. of S <- S - v w^H - w v^H, and partial <- S u of the new S, split into shares of rows. A thread has VEC columns
// of a share: `wide` (a power of two) threads cover the columns, from the one of k + 1 on.
LW_INLINE void update_and_multiply(T* s, int pitch, int n, int k, int wide, const Room& room, int t) {
  int chunk = (k + 1) / VEC + (t & (wide - 1)), share = t / wide, shares = P / wide;
  Vector y;
#pragma unroll
  for (int e = 0; e < VEC; e++) y.v[e] = zero();
  if (chunk * VEC < n) {
    Vector v = *(const Vector*)(room.v + chunk * VEC), w = *(const Vector*)(room.w + chunk * VEC);
#pragma unroll 4
    for (int j = k + 1 + share; j < n; j += shares) {
      Vector* at = (Vector*)(s + (i64)j * pitch + chunk * VEC);
      Vector x = *at;
      T vj = room.v[j], wj = room.w[j], uj = room.u[j];
#pragma unroll
      for (int e = 0; e < VEC; e++) {
        x.v[e] = subtract_product(subtract_product(x.v[e], vj, w.v[e]), wj, v.v[e]);
        y.v[e] = add_product(y.v[e], uj, x.v[e]);
      }
      *at = x;
    }
  }
  *(Vector*)(room.partial + t * VEC) = y;
}

LW_INLINE T add_shares(const Room& room, int column, int wide) {
  T sum = zero();
  for (int share = 0; share < P / wide; share++) sum = add(sum, room.partial[share * wide * VEC + column]);
  return sum;
}

// H^H x = beta e_1 with H = I - tau u u^H, u_1 = 1, from x_1 = alpha and the sum of squares of the rest. Returns the factor
// that takes the rest of x to u.
LW_INLINE T reflector(T alpha, Real rest, T& tau, Real& beta) {
  Real re = real(alpha), im = imaginary(alpha), more = rest + im * im;
  if (!(more > LW_TINY)) {
    tau = zero();
    beta = re;
    return zero();
  }
  Real size = sqrt(re * re + more);
  beta = re > 0 ? -size : size;
#if LW_DTYPE < 2
  tau = (beta - re) / beta;
  return Real(1) / (re - beta);
#else
  tau = T{(beta - re) / beta, -im / beta};
  Real x = re - beta, q = Real(1) / (x * x + im * im);
  return T{x * q, -im * q};
#endif
}

// h: row k holds reflector k (its element k + 1 is 1), n rows of h_pitch elements. d, e, tau: n each.
extern "C" __global__ void __launch_bounds__(LW_THREADS)
    eigh_reduce(const T* a, T* h, Real* d, Real* e, T* tau, Real* up, int* info, i64 batch, int n, int h_pitch, int keep) {
  int t = threadIdx.x % P, group = threadIdx.x / P;
  int columns = (n + VEC - 1) / VEC;
  int pitch = LW_GLOBAL ? h_pitch : (columns | 1) * VEC;
  int vectors = columns * VEC;
  T* mine = (T*)memory + (i64)group * ((LW_GLOBAL ? 0 : n * pitch) + 3 * vectors + (P + 1) * VEC);
  Real* sums = (Real*)((T*)memory + (i64)MATRICES * ((LW_GLOBAL ? 0 : n * pitch) + 3 * vectors + (P + 1) * VEC));
  Room room;
  room.v = mine + (LW_GLOBAL ? 0 : n * pitch);
  room.w = room.v + vectors;
  room.u = room.w + vectors;
  room.partial = room.u + vectors;
  room.head = room.partial + P * VEC;
  room.sums = sums;

  for (i64 base = (i64)blockIdx.x * MATRICES; base < batch; base += (i64)gridDim.x * MATRICES) {
    i64 m = base + group;
    bool inside = m < batch;
    if (!inside) m = batch - 1;
    T* reflectors = h + m * n * h_pitch;
    T* s = LW_GLOBAL ? reflectors : mine;
    if (t < vectors) room.v[t] = room.w[t] = room.u[t] = zero();
    Real back;
    bool good = load_matrix(s, pitch, a + m * n * n, n, inside, t, room.sums, back);
    if (inside && t == 0) {
      up[m] = back;
      info[m] = !good;
    }
    T vt = zero(), wt = zero(), wk = zero();
    T vk = zero();
    int wide = 1;
    while (wide * VEC < n) wide *= 2;
    for (int k = 0; k < n; k++) {
      // column k of A below the diagonal, with the update that S still lacks
      T x = zero();
      if (t >= k && t < n) {
        x = conjugate(s[(i64)k * pitch + t]);
        x = subtract_product(subtract_product(x, vt, wk), wt, vk);
      }
      if (t == k && inside) d[m * n + k] = real(x);
      if (k == n - 1) break;
      if (t == k + 1) *room.head = x;
      Real rest = sum_all(t > k + 1 ? square(x) : Real(0), room.sums, t);
      T step;
      Real beta;
      T factor = reflector(*room.head, rest, step, beta);
      T ut = t == k + 1 ? from_real(Real(1)) : t > k ? multiply(x, factor) : zero();
      if (t < vectors) room.u[t] = ut;
      if (t == 0 && inside) {
        e[m * n + k] = beta;
        tau[m * n + k] = step;
      }
      together();
      if (keep && inside && t > k && t < n) reflectors[(i64)k * h_pitch + t] = ut;
      // half the threads cover the columns that are left: more shares, as long as adding them up is the lesser part
      while (wide > 1 && 2 * (P / wide) * (P / wide) < n - k && (wide / 2 + (k + 1) / VEC) * VEC >= n) wide /= 2;
      update_and_multiply(s, pitch, n, k, wide, room, t);
      together();
      // w = p - tau/2 (p^H u) u with p = tau A u
      int from = (k + 1) / VEC * VEC;
      T p = t > k && t < n ? multiply(step, add_shares(room, t - from, wide)) : zero();
      T next = multiply(step, add_shares(room, k + 1 - from, wide));
      T dot = sum_pairs(multiply(conjugate(p), ut), room.sums + 2 * WARPS, t);
      T half = scale(multiply(step, dot), Real(0.5));
      wt = subtract(p, multiply(half, ut));
      vt = ut;
      wk = subtract(next, half);
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

constexpr int M = LW_M;  // matrices of one warp, one to a lane
constexpr int WARPS = LW_THREADS / 32;

// One matrix's T in shared memory, interleaved with those of the other lanes.
struct Tridiagonal {
  Real* d;
  Real* e;
  Real floor;  // off-diagonal elements below it are nothing beside the norm
  int n;

  LW_INLINE bool negligible(Real off, Real x, Real y) const { return fabs(off) <= floor + Real(LW_EPS) * (fabs(x) + fabs(y)); }

  // The first i >= low where the matrix splits after row i; n - 1 when it does not.
  LW_INLINE int split(int low) const {
    int i = low;
    while (i < n - 1 && !negligible(e[i * M], d[i * M], d[(i + 1) * M])) i++;
    return i;
  }

  // One QL sweep over rows low .. high. Returns the first row in (low, high] after which the matrix splits now.
  //
  // The chain from rotation to rotation is what takes the time. It goes through g, t and the root alone: the rest is arranged
  // so that it can be done meanwhile, and the next row is fetched ahead.
  template <typename F>
  LW_INLINE int sweep(int low, int high, F write) {
    Real dl = d[low * M], el = e[low * M], above = d[high * M];
    Real g = (d[(low + 1) * M] - dl) / (2 * el), r = sqrt(g * g + 1);
    g = above - dl + el / (g + (g < 0 ? -r : r));
    Real s = 1, c = 1, p = 0, lower = 0;
    Real di = d[(high - 1) * M], ei = e[(high - 1) * M];
    int next = high;
    for (int i = high - 1; i >= low; i--) {
      int before = i > low ? i - 1 : i;
      Real d_before = d[before * M], e_before = e[before * M];
      Real f = s * ei, b = c * ei, t = f * f + g * g;
      Real gap = above - p;
      Real both = (di - gap) * f + 2 * g * b;
      bool tiny = t < LW_TINY;  // nothing to rotate: c = 1
      Real root = fine_root(tiny ? Real(1) : t);
      c = tiny ? Real(1) : g * root;
      s = tiny ? Real(0) : f * root;
      Real z = tiny ? 2 * b : both * root;
      p = s * z;
      g = c * z - b;
      Real done = gap + p;
      if (i < high - 1) {
        Real off = tiny ? Real(0) : t * root;
        e[(i + 1) * M] = off;
        if (negligible(off, done, lower)) next = i + 1;
      }
      d[(i + 1) * M] = lower = done;
      write(high - 1 - i, c, s);
      above = di;
      di = d_before;
      ei = e_before;
    }
    d[low * M] = above - p;
    e[low * M] = g;
    if (high < n - 1) e[high * M] = 0;
    return next;
  }

  // False when it has not converged before the sweeps or the rotations run out.
  LW_INLINE bool solve(Rotation* rotations, i64 room, Sweep* sweeps, int sweep_room, int& count) {
    Real norm = 0;
    for (int i = 0; i < n; i++) norm = fmax(norm, fabs(d[i * M]) + fabs(e[i * M]));
    floor = norm * Real(0.25 * LW_EPS);
    i64 used = 0;
    int low = 0, high = split(0);
    while (low < n - 1) {
      if (high == low) {
        high = split(++low);
        continue;
      }
      if (count == sweep_room || (rotations && used + high - low > room)) return false;
      Rotation* to = rotations + used;
      if (rotations) sweeps[count] = Sweep{(int)used, low, high, 0};
      count++;
      used += high - low;
      high = sweep(low, high, [&](int at, Real c, Real s) {
        Rotation r;
        r.v[0] = c;
        r.v[1] = s;
        if (rotations) to[at] = r;
      });
      if (negligible(e[low * M], d[low * M], d[(low + 1) * M])) low++;
    }
    return true;
  }
};

// One warp: w <- the eigenvalues first .. in ascending order, order[rank] <- their place in d. Ties keep their order.
LW_INLINE void sort_values(const Real* d, int n, int* order, Real* w, int first, int count, Real up, bool failed) {
  for (int i = threadIdx.x % 32; i < n; i += 32) {
    Real x = d[i * M];
    int rank = 0;
#pragma unroll 4
    for (int j = 0; j < n; j++) {
      Real y = d[j * M];
      rank += y < x || (y == x && j < i);
    }
    if (order) order[rank] = i;
    if (rank >= first && rank < first + count) w[rank - first] = failed ? not_a_number() : x * up;
  }
}

// At most `room` rotations and `sweep_room` sweeps of each matrix are written down: more means that it does not converge.
// Without vectors `rotations`, `sweeps`, `sweep_count` and `order` are null.
extern "C" __global__ void __launch_bounds__(LW_THREADS)
    eigh_values(const Real* d, const Real* e, const Real* up, Rotation* rotations, Sweep* sweeps, int* sweep_count, int* order,
                Real* w, int* info, i64 batch, int n, int first, int count, i64 room, int sweep_room) {
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  Real* room_d = (Real*)memory + (i64)warp * 2 * n * M;
  Real* room_e = room_d + n * M;
  for (i64 base = ((i64)blockIdx.x * WARPS + warp) * M; base < batch; base += (i64)gridDim.x * WARPS * M) {
    int matrices = batch - base < M ? (int)(batch - base) : M;
    for (int q = 0; q < matrices; q++)
      for (int i = lane; i < n; i += 32) {
        room_d[i * M + q] = d[(base + q) * n + i];
        room_e[i * M + q] = i < n - 1 ? e[(base + q) * n + i] : Real(0);
      }
    __syncwarp();
    bool failed = false;
    if (lane < matrices) {
      i64 m = base + lane;
      Tridiagonal t{room_d + lane, room_e + lane, 0, n};
      int done = 0;
      failed = !t.solve(rotations ? rotations + m * room : nullptr, room, sweeps + m * sweep_room, sweep_room, done) || info[m];
      if (failed) info[m] = 1;
      if (rotations) sweep_count[m] = failed ? 0 : done;
    }
    __syncwarp();
    for (int q = 0; q < matrices; q++)
      sort_values(room_d + q, n, order ? order + (base + q) * n : nullptr, w + (base + q) * count, first, count, up[base + q],
                  __shfl_sync(0xffffffff, (int)failed, q) != 0);
    __syncwarp();
  }
}
#endif
