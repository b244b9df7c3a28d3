// The start of divide and conquer (divide.cuh): scaling, and the leaves by implicit QL.
//   LW_THREADS  threads of a block
#include "divide.cuh"
#include "eigh_ql.cuh"

constexpr int LEAF = 32, WARPS = LW_THREADS / 32;  // rows of a leaf at most; leaves of a block
constexpr int PITCH = LEAF + 1;
constexpr int LEAF_ROOM = 2 + 2 * LEAF + 2 * LEAF + LEAF * PITCH + LEAF % 2;  // Reals of shared memory for a leaf
constexpr int MOST_SWEEPS = 30 * LEAF;

// One block for each matrix: d and e are scaled by a power of two so that the largest is near 1. A matrix that is not finite
// becomes zero here, with its info set.
extern "C" __global__ void __launch_bounds__(LW_THREADS) divide_start(Divide at) {
  Real* room = (Real*)memory;
  const int n = at.n, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (i64 matrix = blockIdx.x; matrix < at.batch; matrix += gridDim.x) {
    Real *d = at.d + matrix * n, *e = at.e + matrix * n, largest = 0;
    bool bad = false;
    for (int i = threadIdx.x; i < n; i += LW_THREADS) {
      Real x = d[i], y = i < n - 1 ? e[i] : Real(0);
      bad = bad || !is_finite(x) || !is_finite(y);
      largest = fmax(largest, fmax(fabs(x), fabs(y)));
    }
    largest = max_lanes<32>(largest);
    if (lane == 0) room[warp] = largest;
    bad = __syncthreads_count(bad) != 0;
    for (int w = 0; w < WARPS; w++) largest = fmax(largest, room[w]);
    Real down, up;
    scaling(bad ? Real(0) : largest, down, up);
    for (int i = threadIdx.x; i < n; i += LW_THREADS) {
      d[i] = bad ? Real(0) : d[i] * down;
      e[i] = bad || i == n - 1 ? Real(0) : e[i] * down;
    }
    if (threadIdx.x == 0) {
      at.up[matrix] = up;
      at.info[matrix] = bad;
    }
    __syncthreads();
  }
}

// One warp for each leaf: its eigenvalues in ascending order, and its eigenvectors in the leaf's rows and columns of `to`.
// Here the leaves are the pairs of `at`.
extern "C" __global__ void __launch_bounds__(LW_THREADS) divide_leaf(Divide at) {
  const int lane = threadIdx.x % 32, n = at.n;
  Real* room = (Real*)memory + threadIdx.x / 32 * LEAF_ROOM;
  Real *d = room + 2, *e = d + LEAF;
  Rotation* made = (Rotation*)(e + LEAF);
  Real* q = (Real*)(made + LEAF) + lane;  // row `lane` of the eigenvectors' matrix
  for (i64 leaf = (i64)blockIdx.x * WARPS + threadIdx.x / 32; leaf < at.batch * at.pairs; leaf += (i64)gridDim.x * WARPS) {
    const Pair part = Pair::of(at, leaf, false);
    const int size = part.size();
    if (lane < size) {
      const Real *dp = at.d + part.first, *ep = at.e + part.first;
      Real x = dp[lane];
      if (lane == 0 && part.begin > 0) x -= fabs(ep[-1]);
      if (lane == size - 1 && part.end < n) x -= fabs(ep[lane]);
      d[lane] = x;
      e[lane] = lane < size - 1 ? ep[lane] : Real(0);
    }
    for (int i = 0; i < size; i++) q[i * PITCH] = i == lane;
    __syncwarp();
    Tridiagonal t{d, e, 0, size};
    int low = 0, high = 0, sweeps = 0;
    if (lane == 0) {
      t.measure();
      t.floor = fmax(t.floor, Real(0.25 * LW_EPS));  // the whole matrix's largest entry is near 1
      high = t.split(0);
    }
    while (true) {
      int from = 0, to = 0;
      if (lane == 0) {
        while (low < size - 1 && high == low) high = t.split(++low);
        if (low < size - 1) {
          if (sweeps++ == MOST_SWEEPS) {
            at.info[part.matrix] = 1;
          } else {
            from = low;
            to = high;
            high = t.template sweep<true>(low, high, made);
            if (t.negligible(e[low], d[low], d[low + 1])) low++;
          }
        }
      }
      __syncwarp();
      from = __shfl_sync(0xffffffff, from, 0);
      to = __shfl_sync(0xffffffff, to, 0);
      if (from == to) break;
      Real carried = q[to * PITCH];
#pragma unroll 4
      for (int i = to - 1; i >= from; i--) {
        const Rotation rotation = made[to - 1 - i];
        const Real c = rotation.v[0], s = rotation.v[1], x = q[i * PITCH];
        q[(i + 1) * PITCH] = s * x + c * carried;
        carried = c * x - s * carried;
      }
      q[from * PITCH] = carried;
      __syncwarp();
    }
    int rank = 0;
    if (lane < size) {
      const Real x = d[lane];
      for (int j = 0; j < size; j++) rank += d[j] < x || (d[j] == x && j < lane);
      at.joined[part.first + rank] = x;
      if (at.w) at.w[part.first + rank] = at.info[part.matrix] ? not_a_number() : x * at.up[part.matrix];
    }
    for (int i = 0; i < size; i++) {
      const int r = __shfl_sync(0xffffffff, rank, i);
      if (lane < size) {
        const bool failed = at.w && at.info[part.matrix];
        at.to[part.row(r) + part.begin + lane] = failed ? not_a_number() : q[i * PITCH];
      }
    }
    __syncwarp();
  }
}
