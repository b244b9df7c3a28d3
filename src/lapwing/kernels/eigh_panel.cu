// The first stage of eigh.cu for matrices that shared memory does not hold: one block per matrix, A in global memory.
//
// What counts is how often A passes through memory. Only its lower triangle is read, once for each column, and it is written
// once for each panel of LW_NB columns: until then the updates A - V W^H - W V^H are kept as V and W in shared memory.
// The upper triangle takes up the reflectors meanwhile.
#include "eigh.cuh"

constexpr int P = LW_THREADS;  // at least n
constexpr int WARPS = P / 32;
constexpr int READERS = LW_READERS;  // warps that multiply by A; each has a vector of its own
constexpr int NB = LW_NB;
constexpr int R = 8;  // rows of A that a warp has in flight

struct Room {
  T* v;  // NB vectors each
  T* w;
  T* u;
  T* y;     // READERS vectors
  T* dots;  // 2 NB
  T* head;
  Real* sums;  // 2 for each warp
  int length;  // of a vector
};

// Sums over the block; whatever was written before is visible after.
LW_INLINE T sum_block(T x, Real* room) {
#if LW_DTYPE < 2
  x = sum_lanes<32>(x);
  if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = x;
  __syncthreads();
  x = 0;
  for (int w = 0; w < WARPS; w++) x += room[w];
  return x;
#else
  Real re = sum_lanes<32>(x.re), im = sum_lanes<32>(x.im);
  if (threadIdx.x % 32 == 0) {
    room[threadIdx.x / 32] = re;
    room[WARPS + threadIdx.x / 32] = im;
  }
  __syncthreads();
  re = im = 0;
  for (int w = 0; w < WARPS; w++) {
    re += room[w];
    im += room[WARPS + w];
  }
  return T{re, im};
#endif
}

// The lower triangle of S <- A near 1 in size; zero where A holds NaN or Inf, and then the answer is false.
LW_INLINE bool load_triangle(T* s, int pitch, const T* a, int n, Real* room, Real& up) {
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  Real largest = 0, bad = 0;
  for (int i = warp; i < n; i += WARPS)
    for (int j = lane; j < n; j += 32) {
      if (LW_UPPER ? j < i : j > i) continue;
      T x = load_element(a + i * n + j);
      if (i == j) x = from_real(real(x));
      if (!is_finite(x)) bad = 1;
      largest = fmax(largest, magnitude(x));
    }
  largest = max_lanes<32>(largest);
  bad = max_lanes<32>(bad);
  if (lane == 0) {
    room[warp] = largest;
    room[WARPS + warp] = bad;
  }
  __syncthreads();
  for (int w = 0; w < WARPS; w++) {
    largest = fmax(largest, room[w]);
    bad = fmax(bad, room[WARPS + w]);
  }
  Real down;
  scaling(largest, down, up);
  for (int i = warp; i < n; i += WARPS)
    for (int j = lane; j < n; j += 32) {
      if (LW_UPPER ? j < i : j > i) continue;
      T x = load_element(a + i * n + j);
      if (i == j) x = from_real(real(x));
      x = bad != 0 ? zero() : scale(x, down);
      if (LW_UPPER)
        s[j * pitch + i] = conjugate(x);
      else
        s[i * pitch + j] = x;
    }
  __syncthreads();
  return bad == 0;
}

// Sums of R = 8 numbers over a warp, each number in the end with four lanes: lane 4 i .. 4 i + 3 returns the sum of x[i].
LW_INLINE T sum_eight(T (&x)[R], int lane) {
#pragma unroll
  for (int half = 4, step = 16; half > 0; half /= 2, step /= 2) {
    bool high = lane & step;
#pragma unroll
    for (int i = 0; i < half; i++) {
      T send = select(high, x[i], x[i + half]), keep = select(high, x[i + half], x[i]);
      x[i] = add(keep, across(send, step));
    }
  }
  x[0] = add(x[0], across(x[0], 2));
  return add(x[0], across(x[0], 1));
}

// Row r0 .. r0 + 7 of the lower triangle from column `from` on: y[rows] += S u, y[columns] += S^H u beside the diagonal.
LW_INLINE void multiply_rows(const T* s, int pitch, int n, int r0, int from, const T* u, T* y, int lane) {
  T rows[R], ur[R];
#pragma unroll
  for (int r = 0; r < R; r++) {
    rows[r] = zero();
    ur[r] = r0 + r < n ? u[r0 + r] : zero();
  }
  for (int c = from + lane * VEC; c - lane * VEC < r0 + R; c += 32 * VEC) {
    Vector x[R], columns;
#pragma unroll
    for (int r = 0; r < R; r++)
      if (r0 + r < n && c < r0 + R) x[r] = *(const Vector*)(s + (r0 + r) * pitch + c);
    if (c >= r0 + R) continue;
    Vector uc = *(const Vector*)(u + c);
    columns = *(const Vector*)(y + c);
    if (c + VEC <= r0) {
#pragma unroll
      for (int r = 0; r < R; r++)
        if (r0 + r < n)
#pragma unroll
          for (int e = 0; e < VEC; e++) {
            rows[r] = add_plain(rows[r], x[r].v[e], uc.v[e]);
            columns.v[e] = add_product(columns.v[e], ur[r], x[r].v[e]);
          }
    } else {
#pragma unroll
      for (int r = 0; r < R; r++)
        if (r0 + r < n)
#pragma unroll
          for (int e = 0; e < VEC; e++) {
            if (c + e <= r0 + r) rows[r] = add_plain(rows[r], x[r].v[e], uc.v[e]);
            if (c + e < r0 + r) columns.v[e] = add_product(columns.v[e], ur[r], x[r].v[e]);
          }
    }
    *(Vector*)(y + c) = columns;
  }
  T sum = sum_eight(rows, lane);
  sync_warp();
  int row = r0 + lane / 4;
  if (lane % 4 == 0 && row < n) y[row] = add(y[row], sum);
  sync_warp();
}

// The lower triangle of S from row and column `from` on <- S - V W^H - W V^H.
LW_INLINE void update_triangle(T* s, int pitch, int n, int from, const Room& room) {
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int r0 = from + R * warp; r0 < n; r0 += R * WARPS)
    for (int c = from + lane * VEC; c < r0 + R && c < n; c += 32 * VEC) {
      Vector x[R];
#pragma unroll
      for (int r = 0; r < R; r++)
        if (r0 + r < n) x[r] = *(const Vector*)(s + (r0 + r) * pitch + c);
#pragma unroll 2
      for (int q = 0; q < NB; q++) {
        const T *v = room.v + q * room.length, *w = room.w + q * room.length;
        Vector vc = *(const Vector*)(v + c), wc = *(const Vector*)(w + c);
#pragma unroll
        for (int r = 0; r < R; r += VEC) {
          Vector vr = *(const Vector*)(v + r0 + r), wr = *(const Vector*)(w + r0 + r);
#pragma unroll
          for (int f = 0; f < VEC; f++)
#pragma unroll
            for (int e = 0; e < VEC; e++)
              x[r + f].v[e] = subtract_product(subtract_product(x[r + f].v[e], vr.v[f], wc.v[e]), wr.v[f], vc.v[e]);
        }
      }
#pragma unroll
      for (int r = 0; r < R; r++)
        if (r0 + r < n) *(Vector*)(s + (r0 + r) * pitch + c) = x[r];
    }
}

// The arguments are those of eigh_reduce.
extern "C" __global__ void __launch_bounds__(LW_THREADS, LW_RESIDENT)
    eigh_panel(const T* a, T* h, Real* d, Real* e, T* tau, Real* up, int* info, i64 batch, int n, int pitch, int) {
  int t = threadIdx.x, lane = t % 32, warp = t / 32;
  Room room;
  room.length = (n + R - 1) / R * R;
  room.v = (T*)memory;
  room.w = room.v + NB * room.length;
  room.u = room.w + NB * room.length;
  room.y = room.u + room.length;
  room.dots = room.y + READERS * room.length;
  room.head = room.dots + 2 * NB;
  room.sums = (Real*)(room.head + VEC);
  for (i64 m = blockIdx.x; m < batch; m += gridDim.x) {
    T* s = h + m * n * pitch;
    for (int i = t; i < (2 * NB + 1 + READERS) * room.length; i += P) room.v[i] = zero();
    Real back;
    bool good = load_triangle(s, pitch, a + m * n * n, n, room.sums, back);
    if (t == 0) {
      up[m] = back;
      info[m] = !good;
    }
    for (int k = 0; k < n; k++) {
      int j = k % NB;
      // column k with the updates of this panel
      T x = zero();
      if (t >= k && t < n) {
        x = s[t * pitch + k];
        for (int q = 0; q < j; q++) {
          const T *v = room.v + q * room.length, *w = room.w + q * room.length;
          x = subtract_product(subtract_product(x, v[t], w[k]), w[t], v[k]);
        }
      }
      if (t == k) d[m * n + k] = real(x);
      if (k == n - 1) break;
      if (t == k + 1) *room.head = x;
      Real rest = real(sum_block(from_real(t > k + 1 ? square(x) : Real(0)), room.sums));
      T step;
      Real beta;
      T factor = reflector(*room.head, rest, step, beta);
      T ut = t == k + 1 ? from_real(Real(1)) : t > k ? multiply(x, factor) : zero();
      if (t < room.length) room.u[t] = ut;
      if (t == 0) {
        e[m * n + k] = beta;
        tau[m * n + k] = step;
      }
      if (t > k && t < n) s[k * pitch + t] = ut;
      __syncthreads();

      // y <- S u, and the products V^H u and W^H u
      if (warp < READERS) {
        int from = (k + 1) / VEC * VEC, first = (k + 1) / R, groups = (n + R - 1) / R - first;
        for (int g = warp, turn = 0; turn * READERS < groups; turn++) {
          g = turn * READERS + (turn % 2 ? READERS - 1 - warp : warp);
          if (g < groups) multiply_rows(s, pitch, n, (first + g) * R, from, room.u, room.y + warp * room.length, lane);
        }
      }
      for (int q = warp; q < 2 * j; q += WARPS) {
        const T* with = (q < j ? room.v + q * room.length : room.w + (q - j) * room.length);
        T sum = zero();
        for (int i = k + 1 + lane; i < n; i += 32) sum = add_product(sum, room.u[i], with[i]);
#pragma unroll
        for (int away = 16; away > 0; away /= 2) sum = add(sum, across(sum, away));
        if (lane == 0) room.dots[q] = sum;
      }
      __syncthreads();
      T p = zero();
      if (t < room.length) {
        for (int r = 0; r < READERS; r++) {
          p = add(p, room.y[r * room.length + t]);
          room.y[r * room.length + t] = zero();
        }
        for (int q = 0; q < j; q++) {
          p = subtract(p, multiply(room.v[q * room.length + t], room.dots[j + q]));
          p = subtract(p, multiply(room.w[q * room.length + t], room.dots[q]));
        }
        p = t > k && t < n ? multiply(step, p) : zero();
      }
      T dot = sum_block(multiply(conjugate(p), ut), room.sums);
      T half = scale(multiply(step, dot), Real(0.5));
      if (t < room.length) {
        room.v[j * room.length + t] = ut;
        room.w[j * room.length + t] = subtract(p, multiply(half, ut));
      }
      __syncthreads();
      if (j == NB - 1) {
        update_triangle(s, pitch, n, k + 1, room);
        __syncthreads();
      }
    }
    __syncthreads();
  }
}
