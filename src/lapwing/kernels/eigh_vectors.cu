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
constexpr int ROW = 33;  // a column of 32 rows in shared memory, and one for the banks

// K rotations of one step, or B reflectors' elements of one column, for the lanes of a group to read together.
struct alignas(sizeof(Rotation) * K < 16 ? sizeof(Rotation) * K : 16) Step {  // shared memory is aligned to 16 bytes
  Rotation v[K];
};
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

// This lane's column of reflectors k0 .. k0 + B - 1.
LW_INLINE Elements fetch_reflectors(const T* h, int pitch, int n, int k0, int i) {
  Elements x;
#pragma unroll
  for (int b = 0; b < B; b++) x.v[b] = k0 + b < n - 1 && i > k0 + b && i < n ? h[(k0 + b) * pitch + i] : zero();
  return x;
}

LW_INLINE void publish(const Lanes& lanes, const Elements& x) {
  sync_warp();
  lanes.elements()[lanes.r] = x;
  sync_warp();
}

// f(column, the reflectors' elements of it) for the columns from i0 on that were published
template <typename F>
LW_INLINE void each_column(const Lanes& lanes, int i0, int n, F f) {
  int end = n - i0 < P ? n - i0 : P;
#pragma unroll 4
  for (int i = 0; i < end; i++) f(i0 + i, lanes.elements()[i]);
}

// x <- x H_0 H_1 ... H_{n-2}, B at a time: z_b = tau_b (x v_b - sum_{a<b} z_a v_a^H v_b), x <- x - sum_b z_b v_b^H.
LW_INLINE void apply_reflectors(const Rows& x, const Lanes& lanes, const T* h, int pitch, const T* tau, int n) {
  for (int k0 = 0; k0 < n - 1; k0 += B) {
    T y[B], gram[B][B];
#pragma unroll
    for (int b = 0; b < B; b++) {
      y[b] = zero();
#pragma unroll
      for (int a = 0; a < B; a++) gram[a][b] = zero();
    }
    Elements ahead = fetch_reflectors(h, pitch, n, k0, k0 + 1 + lanes.r);
    for (int i0 = k0 + 1; i0 < n; i0 += P) {
      publish(lanes, ahead);
#pragma unroll
      for (int b = 1; b < B; b++)
#pragma unroll
        for (int a = 0; a < b; a++) gram[a][b] = add_product(gram[a][b], ahead.v[b], ahead.v[a]);
      // the next columns are on their way meanwhile; after the last come the first again
      if (n - k0 - 1 > P) ahead = fetch_reflectors(h, pitch, n, k0, (i0 + P < n ? i0 + P : k0 + 1) + lanes.r);
      each_column(lanes, i0, n, [&](int i, Elements v) {
        T xi = x(i);
#pragma unroll
        for (int b = 0; b < B; b++) y[b] = add_plain(y[b], xi, v.v[b]);
      });
    }
#pragma unroll
    for (int b = 0; b < B; b++) {
#pragma unroll
      for (int a = 0; a < b; a++) y[b] = subtract(y[b], multiply(y[a], sum_lanes<P>(gram[a][b])));
      y[b] = k0 + b < n - 1 ? multiply(tau[k0 + b], y[b]) : zero();
    }
    for (int i0 = k0 + 1; i0 < n; i0 += P) {
      if (n - k0 - 1 > P) {
        publish(lanes, ahead);
        ahead = fetch_reflectors(h, pitch, n, k0, i0 + P + lanes.r);
      }
      each_column(lanes, i0, n, [&](int i, Elements v) {
        T xi = x(i);
#pragma unroll
        for (int b = 0; b < B; b++) xi = subtract_product(xi, y[b], v.v[b]);
        x(i) = xi;
      });
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
      Sweep one{0, 0x7fff, -1};
      if (s + q < count) one = from[s + q];
      start[q] = one.start;
      low[q] = one.low;
      high[q] = one.high;
      top = top > one.high ? top : one.high;
      bottom = bottom < one.low ? bottom : one.low;
    }
    if (P < 32) {
      top = most_of_lanes(top);
      bottom = least_of_lanes(bottom);
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

// Sweeps s .. s + K - 1 of `count`.
LW_INLINE void apply_rotations(const Rows& x, const Lanes& lanes, const Rotation* rotations, const Sweep* sweeps, int s,
                               int count) {
  Sweeps now;
  if (!now.load(sweeps, s, count)) return;
  // y holds columns i - K + 1 .. i + K; each block of K steps takes K new columns in and K finished ones out
  T y[2 * K];
#pragma unroll
  for (int q = 0; q < 2 * K; q++) y[q] = zero();
  y[K] = x(now.top);
  Step ahead = now.at(rotations, now.top - 1 - lanes.r);
  for (int i0 = now.top - 1; i0 + K >= now.bottom; i0 -= P) {
    sync_warp();
    lanes.steps()[lanes.r] = ahead;
    sync_warp();
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

// A rotation by nothing may turn -0 into 0, and where it is met depends on the neighbours: + 0 makes all zeros the same.
LW_INLINE T finished(T x, bool failed) { return failed ? filled(not_a_number()) : add(x, zero()); }

// Rows in shared memory, in the order of the eigenvalues, to v.
LW_INLINE void store_rows(const T* rows, T* v, const int* order, int n_rows, int count, const Lanes& lanes, bool failed) {
  for (int j = lanes.r; j < count; j += P) {
    const T* column = rows + order[j] * ROW + lanes.group * P;
#pragma unroll 4
    for (int r = 0; r < n_rows; r++) store_element(v + (i64)r * count + j, finished(column[r], failed));
  }
}

struct Vectors {
  const T *h, *tau;
  const Rotation* rotations;
  const Sweep* sweeps;
  int* sweep_count;
  const int* order;
  int* info;
  T *z, *v;
  i64 room;
  int sweep_room, n, first, count, h_pitch;
};

// x <- x times all rotations of matrix m
LW_INLINE void apply_all(const Vectors& at, const Rows& x, const Lanes& lanes, i64 m) {
  const Rotation* rotations = at.rotations + m * at.room;
  const Sweep* sweeps = at.sweeps + m * at.sweep_room;
  int count = at.sweep_count[m], most = P < 32 ? most_of_lanes(count) : count;
  for (int s = 0; s < most; s += K) apply_rotations(x, lanes, rotations, sweeps, s, count);
}

// One warp's rows: `unit` counts the matrices in groups of 32 / P, or their parts of 32 rows.
LW_INLINE void make_rows(const Vectors& at, i64 unit, i64 batch, const Lanes& lanes) {
  int lane = threadIdx.x % 32, n = at.n, count = at.count, parts = (n + 31) / 32;
  T* tile = (T*)(lanes.stage + STAGE);
  i64 m = P < 32 ? unit * GROUPS + lanes.group : unit / parts;
  int r0 = P < 32 ? 0 : (int)(unit - m * parts) * 32;
  bool inside = m < batch;
  if (!inside) m = batch - 1;
  Rows x = LW_GLOBAL ? Rows{at.z + (m * parts + r0 / 32) * n * 32 + lane, 32} : Rows{tile + lane, ROW};
  for (int i = 0; i < n; i++) x(i) = from_real(Real(i == r0 + lanes.r));
  apply_reflectors(x, lanes, at.h + m * n * at.h_pitch, at.h_pitch, at.tau + m * n, n);
  apply_all(at, x, lanes, m);
  bool failed = at.info[m] != 0;

  int n_rows = n - r0 < 32 ? n - r0 : 32;
  T* to = at.v + (m * n + r0) * count;
  const int* from = at.order + m * n + at.first;
  sync_warp();
  if (!LW_GLOBAL) {
    if (inside) store_rows(tile, to, from, n_rows, count, lanes, failed);
  } else {
    for (int j0 = 0; j0 < count; j0 += 32) {
      int end = count - j0 < 32 ? count - j0 : 32;
#pragma unroll 4
      for (int j = 0; j < end; j++) tile[j * ROW + lane] = failed ? zero() : x(from[j0 + j]);
      sync_warp();
      if (lane < end)
        for (int r = 0; r < n_rows; r++)
          store_element(to + (i64)r * count + j0 + lane, finished(tile[lane * ROW + r], failed));
      sync_warp();
    }
  }
  sync_warp();
}

constexpr int WARPS = LW_THREADS / 32;

extern "C" __global__ void __launch_bounds__(LW_THREADS) eigh_vectors(Vectors at, i64 batch) {
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, parts = (at.n + 31) / 32;
  int bytes = STAGE + (LW_GLOBAL ? 32 : at.n) * ROW * SIZE;
  Lanes lanes{memory + warp * ((bytes + 15) / 16 * 16), lane / P, lane % P};
  i64 units = P < 32 ? (batch + GROUPS - 1) / GROUPS : batch * parts;
  for (i64 unit = (i64)blockIdx.x * WARPS + warp; unit < units; unit += (i64)gridDim.x * WARPS)
    make_rows(at, unit, batch, lanes);
}
