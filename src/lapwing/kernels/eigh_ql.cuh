// Implicit QL for real tridiagonal matrices: the second stage of eigh.cu, by itself or beside the third.
#pragma once
#include "eigh.cuh"

constexpr int M = LW_M;  // matrices of one warp, one to a lane
constexpr int STRIDE = M == 1 ? 1 : M + 1;  // of a sweep's rotations in shared memory

// One matrix's T in shared memory, interleaved with those of the other lanes.
struct Tridiagonal {
  Real* d;
  Real* e;
  Real floor;  // off-diagonal elements below it are nothing beside the norm
  int n;

  LW_INLINE bool negligible(Real off, Real x, Real y) const { return fabs(off) <= floor + Real(LW_EPS) * (fabs(x) + fabs(y)); }

  LW_INLINE void measure() {
    Real norm = 0;
    for (int i = 0; i < n; i++) norm = fmax(norm, fabs(d[i * M]) + fabs(e[i * M]));
    floor = norm * Real(0.25 * LW_EPS);
  }

  // The first i >= low where the matrix splits after row i; n - 1 when it does not.
  LW_INLINE int split(int low) const {
    int i = low;
    while (i < n - 1 && !negligible(e[i * M], d[i * M], d[(i + 1) * M])) i++;
    return i;
  }

  // One QL sweep over rows low .. high. Returns the first row in (low, high] after which the matrix splits now.
  //
  // The chain from rotation to rotation is what takes the time. It goes through t, its root, and g or f: the rest is arranged
  // so that it can be done meanwhile, and rows are fetched two ahead, even those just below `low`.
  template <bool WRITE>
  LW_INLINE int sweep(int low, int high, Rotation* to) {
    Real dl = d[low * M], el = e[low * M], above = d[high * M];
    Real g = (d[(low + 1) * M] - dl) / (2 * el), r = sqrt(g * g + 1);
    g = above - dl + el / (g + (g < 0 ? -r : r));
    Real *di = d + (high - 1) * M, *ei = e + (high - 1) * M;
    Real here = di[0], d_next = di[-M], e_next = ei[-M];
    Real f = ei[0], b = f, p = 0, lower = above;
    int next = high;
    for (int i = high - 1; i >= low; i--) {
      Real d_later = di[-2 * M], e_later = ei[-2 * M];
      Real t = f * f + g * g, ahead = f * e_next, gap = above - p, both = (here - gap) * f + 2 * g * b;
      Real root = fine_root(t), c = g * root, s = f * root, z = both * root, off = t * root;
      ahead *= root;
      p = s * z;
      g = c * z - b;
      if (t < LW_TINY) {  // nothing to rotate
        c = 1;
        s = p = off = ahead = 0;
        g = b;
      }
      Real done = gap + p;
      if (negligible(off, done, lower)) next = i + 1;
      di[M] = lower = done;
      ei[M] = off;
      if (WRITE) {
        Rotation rotation;
        rotation.v[0] = c;
        rotation.v[1] = s;
        *to = rotation;
        to += STRIDE;
      }
      f = ahead;  // s times the next element, in one step from the root
      b = c * e_next;
      above = here;
      here = d_next;
      d_next = d_later;
      e_next = e_later;
      di -= M;
      ei -= M;
    }
    d[low * M] = above - p;
    e[low * M] = g;
    e[high * M] = 0;
    return next;
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

struct Values {
  const Real *d, *e, *up;
  Rotation* rotations;  // this and the next three are null without vectors (LW_VECTORS 0)
  Sweep* sweeps;
  int* sweep_count;
  int* order;
  Real* w;
  int* info;
  i64 room;  // rotations of one matrix: more means that it does not converge
  int sweep_room, n, first, count;
};

// Real numbers of shared memory for one warp: two rows that are fetched but not used, d, e, and a sweep's rotations.
LW_INLINE int values_room(int n) { return (2 + 2 * n) * M + (LW_VECTORS ? 2 * n * STRIDE : 0); }

// One warp: matrices base .. base + matrices - 1
LW_INLINE void solve(const Values& at, i64 base, int matrices, Real* room) {
  int lane = threadIdx.x % 32, n = at.n;
  Real* d = room + 2 * M;
  Real* e = d + n * M;
  Rotation* made = (Rotation*)(e + n * M);
  for (int q = 0; q < matrices; q++)
    for (int i = lane; i < n; i += 32) {
      d[i * M + q] = at.d[(base + q) * n + i];
      e[i * M + q] = i < n - 1 ? at.e[(base + q) * n + i] : Real(0);
    }
  sync_warp();
  bool mine = lane < matrices, failed = mine && at.info[base + lane] != 0, busy = mine && !failed;
  Tridiagonal t{d + lane, e + lane, 0, n};
  int low = 0, high = 0, done = 0, used = 0;
  if (busy) {
    t.measure();
    high = t.split(0);
  }
  // all lanes do a sweep each, then they write the rotations together: scattered writes would take longer than the sweeps
  while (any_lane(busy)) {
    int start = used, length = 0;
    if (busy) {
      while (low < n - 1 && high == low) high = t.split(++low);
      busy = low < n - 1;
    }
    if (busy && (done == at.sweep_room || used + high - low > at.room)) {
      busy = false;
      failed = true;
    }
    if (busy) {
      length = high - low;
      used += length;
      if (LW_VECTORS) at.sweeps[(base + lane) * at.sweep_room + done] = Sweep{start, (short)low, (short)high};
      done++;
      high = t.template sweep<(LW_VECTORS != 0)>(low, high, made + lane);
      if (t.negligible(t.e[low * M], t.d[low * M], t.d[(low + 1) * M])) low++;
    }
    if (LW_VECTORS) {
      sync_warp();
      for (int q = 0; q < matrices; q++) {
        int many = shuffle(length, q);
        Rotation* to = at.rotations + (base + q) * at.room + shuffle(start, q);
        for (int i = lane; i < many; i += 32) to[i] = made[i * STRIDE + q];
      }
      sync_warp();
    }
  }
  if (mine) {
    if (failed) at.info[base + lane] = 1;
    if (LW_VECTORS) at.sweep_count[base + lane] = done;
  }
  sync_warp();
  for (int q = 0; q < matrices; q++)
    sort_values(d + q, n, LW_VECTORS ? at.order + (base + q) * n : nullptr, at.w + (base + q) * at.count, at.first, at.count,
                at.up[base + q], shuffle((int)failed, q) != 0);
  sync_warp();
}
