// The start of divide and conquer (divide.cuh): scaling, and the leaves by implicit QL.
//   LW_THREADS  threads of a block
//   LW_M        leaves of a warp
#include "divide.cuh"
#include "eigh_ql.cuh"

constexpr int LEAF = 32, WARPS = LW_THREADS / 32;  // rows of a leaf at most; warps of a block
constexpr int WARP_ROOM = (2 + 2 * LEAF) * M + 2 * LEAF * STRIDE + M * LEAF * LEAF;  // Reals of shared memory for a warp
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

// One warp for M leaves: their eigenvalues in ascending order, and their eigenvectors in a leaf's rows and columns of `to`. A lane
// for each leaf makes the rotations of a sweep, then all lanes apply them. Here the leaves are the pairs of `at`.
extern "C" __global__ void __launch_bounds__(LW_THREADS) divide_leaf(Divide at) {
  const int lane = threadIdx.x % 32, n = at.n;
  Real* room = (Real*)memory + threadIdx.x / 32 * WARP_ROOM;
  Real *d = room + 2 * M, *e = d + LEAF * M;
  Rotation* made = (Rotation*)(e + LEAF * M);
  Real* vectors = (Real*)(made + LEAF * STRIDE) + lane;  // row `lane` of the eigenvectors' matrices
  const i64 leaves = at.batch * at.pairs, step = (i64)gridDim.x * WARPS * M;
  for (i64 first = ((i64)blockIdx.x * WARPS + threadIdx.x / 32) * M; first < leaves; first += step) {
    const int count = leaves - first < M ? (int)(leaves - first) : M;
    int size = 0;  // of the lane's own leaf
    for (int l = 0; l < count; l++) {
      const Pair part = Pair::of(at, first + l, false);
      const int rows = part.size();
      if (lane == l) size = rows;
      if (lane < rows) {
        const Real *dp = at.d + part.first, *ep = at.e + part.first;
        Real x = dp[lane];
        if (lane == 0 && part.begin > 0) x -= fabs(ep[-1]);
        if (lane == rows - 1 && part.end < n) x -= fabs(ep[lane]);
        d[lane * M + l] = x;
        e[lane * M + l] = lane < rows - 1 ? ep[lane] : Real(0);
      }
      for (int i = 0; i < rows; i++) vectors[(l * LEAF + i) * LEAF] = i == lane;
    }
    sync_warp();
    Tridiagonal t{d + lane, e + lane, 0, size};
    int low = 0, high = 0, sweeps = 0;
    if (lane < count) {
      t.measure();
      t.floor = fmax(t.floor, Real(0.25 * LW_EPS));  // the whole matrix's largest entry is near 1
      high = t.split(0);
    }
    while (true) {
      int from = 0, to = 0;
      if (lane < count) {
        while (low < size - 1 && high == low) high = t.split(++low);
        if (low < size - 1) {
          if (sweeps++ == MOST_SWEEPS) {
            at.info[(first + lane) / at.pairs] = 1;
            low = size;
          } else {
            from = low;
            to = high;
            high = t.template sweep<true>(low, high, made + lane);
            if (t.negligible(t.e[low * M], t.d[low * M], t.d[(low + 1) * M])) low++;
          }
        }
      }
      if (!any_lane(from < to)) break;
      sync_warp();
      for (int l = 0; l < count; l++) {
        const int begin = shuffle(from, l), end = shuffle(to, l);
        Real *q = vectors + l * LEAF * LEAF, carried = q[end * LEAF];
#pragma unroll 4
        for (int i = end - 1; i >= begin; i--) {
          const Rotation rotation = made[(end - 1 - i) * STRIDE + l];
          const Real c = rotation.v[0], s = rotation.v[1], x = q[i * LEAF];
          q[(i + 1) * LEAF] = s * x + c * carried;
          carried = c * x - s * carried;
        }
        if (begin < end) q[begin * LEAF] = carried;
      }
      sync_warp();
    }
    for (int l = 0; l < count; l++) {
      const Pair part = Pair::of(at, first + l, false);
      const int rows = part.size();
      const bool failed = at.w && at.info[part.matrix];
      int rank = 0;
      if (lane < rows) {
        const Real x = d[lane * M + l];
        for (int j = 0; j < rows; j++) rank += d[j * M + l] < x || (d[j * M + l] == x && j < lane);
        at.joined[part.first + rank] = x;
        if (at.w) at.w[part.first + rank] = failed ? not_a_number() : x * at.up[part.matrix];
      }
      for (int i = 0; i < rows; i++) {
        const int r = shuffle(rank, i);
        if (lane < rows) at.to[part.row(r) + part.begin + lane] = failed ? not_a_number() : vectors[(l * LEAF + i) * LEAF];
      }
    }
    sync_warp();
  }
}
