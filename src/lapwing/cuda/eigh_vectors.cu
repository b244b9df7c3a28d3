// V = Q Z: the third stage of eigh.cu.
//
// Reflectors and rotations act on columns, so every row of V goes its own way from a row of the identity: a lane per row, no
// exchange between lanes. Columns are passed over few times: LW_B reflectors and LW_K sweeps of rotations are done together.
// LW_P lanes have one matrix (n <= LW_P, or 32 rows of a larger one). The rows are in shared memory, or in global memory where
// that is too small (LW_GLOBAL), column after column.
#include "eigh.cuh"

constexpr int P = LW_P;
constexpr int GROUPS = 32 / P;
constexpr int K = LW_K;
constexpr int B = LW_B;
constexpr int WARPS = LW_THREADS / 32;
constexpr int ROW = 33;  // a column of 32 rows in shared memory, and one for the banks

extern __shared__ __align__(16) char memory[];

// K rotations of one step, or B reflectors' elements of one column, for the lanes of a group to read together.
typedef Pack<Rotation, K> Step;
struct alignas(16) Elements {
  T v[B];
};
constexpr int STAGE = (32 * sizeof(Step) > 32 * sizeof(Elements) ? 32 * sizeof(Step) : 32 * sizeof(Elements));

struct Rows {
  T* at;
  i64 pitch;
  LW_INLINE T& operator()(int column) const { return at[column * pitch]; }
};

struct Lanes {
  char* stage;  // STAGE bytes for the warp
  int group, r;
  LW_INLINE Step* steps() const { return (Step*)stage + group * P; }
  LW_INLINE Elements* elements() const { return (Elements*)stage + group * P; }
};

// Columns i0 .. of reflectors k0 .. k0 + B - 1, published for the group; adds this lane's share of conj(v_a) v_b.
LW_INLINE void stage_reflectors(const Lanes& lanes, const T* h, i64 pitch, int n, int k0, int i0, T (*gram)[B]) {
  int i = i0 + lanes.r;
  Elements x;
#pragma unroll
  for (int b = 0; b < B; b++) x.v[b] = k0 + b < n - 1 && i > k0 + b && i < n ? h[(k0 + b) * pitch + i] : zero();
  __syncwarp();
  lanes.elements()[lanes.r] = x;
  __syncwarp();
  if (gram)
#pragma unroll
    for (int b = 1; b < B; b++)
#pragma unroll
      for (int a = 0; a < b; a++) gram[a][b] = add_product(gram[a][b], x.v[b], x.v[a]);
}

LW_INLINE T sum_group(T x) {
#if LW_DTYPE < 2
  return sum_lanes<P>(x);
#else
  return T{sum_lanes<P>(x.re), sum_lanes<P>(x.im)};
#endif
}

// x <- x H_0 H_1 ... H_{n-2}, B at a time: z_b = tau_b (x v_b - sum_{a<b} z_a v_a^H v_b), x <- x - sum_b z_b v_b^H.
LW_INLINE void apply_reflectors(const Rows& x, const Lanes& lanes, const T* h, i64 pitch, const T* tau, int n) {
  for (int k0 = 0; k0 < n - 1; k0 += B) {
    T y[B], gram[B][B];
#pragma unroll
    for (int b = 0; b < B; b++) {
      y[b] = zero();
#pragma unroll
      for (int a = 0; a < B; a++) gram[a][b] = zero();
    }
    for (int i0 = k0 + 1; i0 < n; i0 += P) {
      stage_reflectors(lanes, h, pitch, n, k0, i0, gram);
      int end = n - i0 < P ? n - i0 : P;
#pragma unroll 4
      for (int i = 0; i < end; i++) {
        Elements v = lanes.elements()[i];
        T xi = x(i0 + i);
#pragma unroll
        for (int b = 0; b < B; b++) y[b] = add_plain(y[b], xi, v.v[b]);
      }
    }
#pragma unroll
    for (int b = 0; b < B; b++) {
#pragma unroll
      for (int a = 0; a < b; a++) y[b] = subtract(y[b], multiply(y[a], sum_group(gram[a][b])));
      y[b] = k0 + b < n - 1 ? multiply(tau[k0 + b], y[b]) : zero();
    }
    for (int i0 = k0 + 1; i0 < n; i0 += P) {
      if (n - k0 - 1 > P) stage_reflectors(lanes, h, pitch, n, k0, i0, nullptr);
      int end = n - i0 < P ? n - i0 : P;
#pragma unroll 4
      for (int i = 0; i < end; i++) {
        Elements v = lanes.elements()[i];
        T xi = x(i0 + i);
#pragma unroll
        for (int b = 0; b < B; b++) xi = subtract_product(xi, y[b], v.v[b]);
        x(i0 + i) = xi;
      }
    }
  }
}

// K sweeps at once. Sweep q is q steps behind: in step i it does its rotation i + q, of columns i + q and i + q + 1.
struct Sweeps {
  int start[K], low[K], high[K];
  int top, bottom;  // columns bottom .. top are touched

  // Sweeps s .. s + K - 1 of `count`; whether there is anything to do in any matrix of the warp.
  LW_INLINE bool load(const Sweep* from, int s, int count) {
    top = -1;
    bottom = 0x7fffffff;
#pragma unroll
    for (int q = 0; q < K; q++) {
      Sweep one{0, 0x7fffffff, -1, 0};
      if (s + q < count) one = from[s + q];
      start[q] = one.start;
      low[q] = one.low;
      high[q] = one.high;
      top = top > one.high ? top : one.high;
      bottom = bottom < one.low ? bottom : one.low;
    }
    if (P < 32) {
      top = __reduce_max_sync(0xffffffff, top);
      bottom = __reduce_min_sync(0xffffffff, bottom);
    }
    return top >= 0;
  }

  // The rotations of step i, ones where a sweep has none.
  LW_INLINE Step at(const Rotation* rotations, int i) const {
    Step step;
#pragma unroll
    for (int q = 0; q < K; q++) {
      int j = i + q;
      step.v[q].v[0] = Real(1);
      step.v[q].v[1] = Real(0);
      if (j >= low[q] && j < high[q]) step.v[q] = rotations[start[q] + high[q] - 1 - j];
    }
    return step;
  }
};

LW_INLINE void rotate(T& y, T& x, Rotation r) {
  T old = y;
  Real c = r.v[0], s = r.v[1];
  y = subtract(scale(y, c), scale(x, s));
  x = add(scale(old, s), scale(x, c));
}

LW_INLINE void apply_rotations(const Rows& x, const Lanes& lanes, const Rotation* rotations, const Sweep* sweeps, int count,
                               int most) {
  for (int s = 0; s < most; s += K) {
    Sweeps now;
    if (!now.load(sweeps, s, count)) continue;
    // y holds columns i - K + 1 .. i + K; each block of K steps takes K new columns in and K finished ones out
    T y[2 * K];
#pragma unroll
    for (int q = 0; q < 2 * K; q++) y[q] = zero();
    y[K] = x(now.top);
    Step ahead = now.at(rotations, now.top - 1 - lanes.r);
    for (int i0 = now.top - 1; i0 + K >= now.bottom; i0 -= P) {
      __syncwarp();
      lanes.steps()[lanes.r] = ahead;
      __syncwarp();
      if (i0 - P + K >= now.bottom) ahead = now.at(rotations, i0 - P - lanes.r);
      for (int i = i0; i > i0 - P && i + K >= now.bottom; i -= K) {
#pragma unroll
        for (int q = 0; q < K; q++)
          if (i - q >= now.bottom) y[K - 1 - q] = x(i - q);
#pragma unroll
        for (int q = 0; q < K; q++) {
          Step step = lanes.steps()[i0 - i + q];
#pragma unroll
          for (int p = 0; p < K; p++) rotate(y[K - 1 - q + p], y[K - q + p], step.v[p]);
        }
#pragma unroll
        for (int q = 0; q < K; q++) {
          if (i + 1 + q <= now.top && i + 1 + q >= now.bottom) x(i + 1 + q) = y[K + q];
          y[K + q] = y[q];
        }
      }
    }
  }
}

// Rows in shared memory, in the order of the eigenvalues, to v.
LW_INLINE void store_rows(const T* rows, T* v, const int* order, int n_rows, int count, const Lanes& lanes, bool failed) {
  for (int j = lanes.r; j < count; j += P) {
    const T* column = rows + order[j] * ROW + lanes.group * P;
#pragma unroll 4
    for (int r = 0; r < n_rows; r++) store_element(v + (i64)r * count + j, failed ? filled(not_a_number()) : column[r]);
  }
}

extern "C" __global__ void __launch_bounds__(LW_THREADS)
    eigh_vectors(const T* h, const T* tau, const Rotation* rotations, const Sweep* sweeps, const int* sweep_count,
                 const int* order, const int* info, T* z, T* v, i64 batch, int n, int first, int count, int h_pitch, i64 room,
                 int sweep_room) {
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  int bytes = STAGE + (LW_GLOBAL ? 32 : n) * ROW * SIZE;
  bytes = (bytes + 15) / 16 * 16;
  Lanes lanes{memory + (i64)warp * bytes, lane / P, lane % P};
  T* tile = (T*)(lanes.stage + STAGE);
  int parts = (n + 31) / 32;
  i64 units = P < 32 ? (batch + GROUPS - 1) / GROUPS : batch * parts;
  for (i64 unit = (i64)blockIdx.x * WARPS + warp; unit < units; unit += (i64)gridDim.x * WARPS) {
    i64 m = P < 32 ? unit * GROUPS + lanes.group : unit / parts;
    int r0 = P < 32 ? 0 : (int)(unit - m * parts) * 32;
    bool inside = m < batch;
    if (!inside) m = batch - 1;
    Rows x = LW_GLOBAL ? Rows{z + (m * parts + r0 / 32) * n * 32 + lane, 32} : Rows{tile + lane, ROW};
    for (int i = 0; i < n; i++) x(i) = from_real(Real(i == r0 + lanes.r));
    apply_reflectors(x, lanes, h + m * n * h_pitch, h_pitch, tau + m * n, n);
    int done = sweep_count[m], most = P < 32 ? __reduce_max_sync(0xffffffff, done) : done;
    apply_rotations(x, lanes, rotations + m * room, sweeps + m * sweep_room, done, most);

    int n_rows = n - r0 < 32 ? n - r0 : 32;
    T* to = v + (m * n + r0) * count;
    bool failed = info[m] != 0;
    const int* from = order + m * n + first;
    __syncwarp();
    if (!LW_GLOBAL) {
      if (inside) store_rows(tile, to, from, n_rows, count, lanes, failed);
    } else {
      for (int j0 = 0; j0 < count; j0 += 32) {
        int end = count - j0 < 32 ? count - j0 : 32;
#pragma unroll 4
        for (int j = 0; j < end; j++) tile[j * ROW + lane] = x(from[j0 + j]);
        __syncwarp();
        if (lane < end)
          for (int r = 0; r < n_rows; r++)
            store_element(to + (i64)r * count + j0 + lane, failed ? filled(not_a_number()) : tile[lane * ROW + r]);
        __syncwarp();
      }
    }
    __syncwarp();
  }
}
