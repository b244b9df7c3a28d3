// Eigenvalues and eigenvectors of D + rho z z^T (divide.cuh).
//   LW_THREADS  threads of a block
//   LW_LANES    neighbouring threads that share one root
#include "divide.cuh"

constexpr int LANES = LW_LANES, GROUPS = LW_THREADS / LANES, WARPS = LW_THREADS / 32;
constexpr int MOST_STEPS = 100;
// The residual at which a root is exact, in terms of its rounding errors. Roots of float matrices need not be better than
// float: the weights are computed from them, so that the eigenvectors are orthogonal all the same.
#define LW_EXACT (sizeof(Real) == 4 ? 1e-9 : 2.220446049250313e-16)
// Convergence is quadratic: after a step that is smaller than this beside the offset, the next would change nothing.
#define LW_SMALL_STEP (sizeof(Real) == 4 ? 1e-5 : 1e-9)

LW_INLINE double sum_group(double x) {
#pragma unroll
  for (int step = LANES / 2; step > 0; step /= 2) x += shuffle_xor(x, step);
  return x;
}

// The sums over the poles up to `split` and over the others at base + offset, and their derivatives; the same in all lanes of
// a group. All lanes of the warp must call it.
struct Sums {
  double low, high, low_slope, high_slope;

  LW_INLINE Sums(const double* __restrict__ pole, const double* __restrict__ weight, int split, int k, double base, double offset) {
    const int lane = threadIdx.x % LANES;
    double sum = 0, slope = 0;
    int j = lane;
#pragma unroll 4
    for (; j <= split; j += LANES) add(pole[j], weight[j], base, offset, sum, slope);
    low = sum;
    low_slope = slope;
    sum = slope = 0;
#pragma unroll 4
    for (; j < k; j += LANES) add(pole[j], weight[j], base, offset, sum, slope);
    low = sum_group(low);
    low_slope = sum_group(low_slope);
    high = sum_group(sum);
    high_slope = sum_group(slope);
  }

  static LW_INLINE void add(double pole, double weight, double base, double offset, double& sum, double& slope) {
    const double part = weight * inverse((pole - base) - offset);
    sum = fma(weight, part, sum);
    slope = fma(part, part, slope);
  }
};

LW_INLINE double root_of(double x) { return sqrt(fabs(x)); }

// Between two bounds of the same sign: halves the exponents first.
LW_INLINE double between(double low, double high) {
  const double small = fmin(fabs(low), fabs(high)), large = fmax(fabs(low), fabs(high));
  return large > 4 * small ? (low < 0 ? -1 : 1) * sqrt(small) * sqrt(large) : 0.5 * (low + high);
}

// Root i of 1 + rho sum weight_j^2 / (pole_j - x), between poles i and i + 1, as a pole and an offset. Rational functions
// through the two poles that match value and slope are solved in turn; what does not narrow the bounds is bisected.
LW_INLINE void find_root(const double* __restrict__ pole, const double* __restrict__ weight, double rho, int i, int k, bool active,
                         double& base, double& offset) {
  const double inverse_rho = 1 / rho;
  const bool last = i == k - 1;
  const int split = last ? k - 2 : i;  // the two poles are this and the next; for the last root both lie below it
  const double p1 = pole[split], p2 = pole[split + 1], gap = p2 - p1;
  const double z1 = weight[split] * weight[split], z2 = weight[split + 1] * weight[split + 1];
  double low, high;
  {
    const double half = last ? 0.5 * rho : 0.5 * gap;
    base = last ? p2 : p1;
    const Sums at(pole, weight, split, k, base, half);
    const double value = inverse_rho + at.low + at.high;
    // without the two poles
    const double rest = last ? value + z1 / (gap + half) + z2 / half : value + (z1 - z2) / half;
    if (last) {
      low = 0.5 * rho * z2;
      high = 1.01 * rho;
      if (value <= 0)
        low = fmax(low, half);
      else
        high = half;
      const double a = z1 + z2 - rest * gap, b = z2 * gap, root = root_of(a * a + 4 * b * rest);
      offset = a < 0 ? 2 * b / (root - a) : (a + root) / (2 * rest);
    } else {
      const double nearest = value >= 0 ? z1 : z2, least = 0.5 * nearest * gap / (inverse_rho * gap + 2.02);
      const double b = nearest * gap;
      if (value >= 0) {
        low = fmin(least, half);
        high = half;
        const double a = rest * gap + z1 + z2, root = root_of(a * a - 4 * b * rest);
        offset = a > 0 ? 2 * b / (a + root) : (a - root) / (2 * rest);
      } else {
        base = p2;
        low = -half;
        high = -fmin(least, half);
        const double a = rest * gap - z1 - z2, root = root_of(a * a + 4 * b * rest);
        offset = a < 0 ? 2 * b / (a - root) : -(a + root) / (2 * rest);
      }
    }
    if (!(offset >= low && offset <= high)) offset = between(low, high);
  }
  const bool at_first = base == p1;
  bool middle_way = false;
  int slow = 0;
  double before = 0;
  for (int step = 0; step < MOST_STEPS && any_lane(active); step++) {
    const Sums at(pole, weight, split, k, base, offset);
    if (!active) continue;
    const double value = inverse_rho + at.low + at.high, slope = at.low_slope + at.high_slope;
    const double error = 8 * (fabs(at.low) + fabs(at.high)) + inverse_rho + fabs(offset) * slope;
    if (value <= 0)
      low = offset;
    else
      high = offset;
    if (!(fabs(value) > LW_EXACT * error) || high - low <= 2 * LW_EXACT * fmin(fabs(low), fabs(high))) {
      active = false;
      continue;
    }
    if (step > 0 && fabs(value) > 0.1 * before) {
      middle_way = !middle_way;
      slow++;
    }
    before = fabs(value);
    const double to1 = (p1 - base) - offset, to2 = (p2 - base) - offset;
    double c;
    if (last || middle_way)
      c = value - to1 * at.low_slope - to2 * at.high_slope;
    else if (at_first)
      c = value - to2 * slope + gap * z1 / (to1 * to1);
    else
      c = value - to1 * slope - gap * z2 / (to2 * to2);
    const double a = (to1 + to2) * value - to1 * to2 * slope, b = to1 * to2 * value;
    double step_by;
    if (last) {
      c = fabs(c);
      const double root = root_of(a * a - 4 * b * c);
      step_by = a >= 0 ? (a + root) / (2 * c) : 2 * b / (a - root);
    } else {
      const double root = root_of(a * a - 4 * b * c);
      step_by = a <= 0 ? (a - root) / (2 * c) : 2 * b / (a + root);
    }
    if (!(value * step_by < 0)) step_by = -value / slope;
    const double next = offset + step_by;
    const bool bisects = slow >= 3 || !(next > low && next < high);
    if (bisects)
      slow = 0;
    else if (fabs(step_by) < LW_SMALL_STEP * fabs(next))
      active = false;
    offset = bisects ? between(low, high) : next;
  }
}

// Column c of the pair's columns through all rotations: rows in chains keep the last one at hand.
LW_INLINE void rotate_column(const Divide& at, const Pair& pair, int c) {
  const int half = pair.begin + c < pair.middle ? LEFT : RIGHT;
  Real* column = at.from + pair.row(0) + pair.begin + c;
  const int* turned = at.turned + 2 * pair.first;
  const Real* turns = at.turns + 2 * pair.first;
  int held = -1;
  Real carried = 0;
  for (int r = 0; r < pair.turns; r++) {
    const int p = turned[2 * r], q = turned[2 * r + 1];
    const i64 p_at = (i64)(p & ROW) * pair.n, q_at = (i64)(q & ROW) * pair.n;
    const Real cosine = turns[2 * r], sine = turns[2 * r + 1];
    const Real y = q & half ? column[q_at] : Real(0);
    if ((p & ROW) != held) {
      if (held >= 0) column[(i64)held * pair.n] = carried;
      carried = p & half ? column[p_at] : Real(0);
    }
    column[p_at] = cosine * carried + sine * y;
    carried = cosine * y - sine * carried;
    held = q & ROW;
  }
  if (held >= 0) column[(i64)held * pair.n] = carried;
}

// The first `root_blocks` blocks of a pair find its roots, GROUPS each; the others apply its rotations, a thread to a column.
extern "C" __global__ void __launch_bounds__(LW_THREADS) divide_roots(Divide at, int root_blocks, int turn_blocks) {
  const int blocks = root_blocks + turn_blocks;
  for (i64 index = blockIdx.x; index < at.batch * at.pairs * blocks; index += gridDim.x) {
    const Pair pair = Pair::of(at, index / blocks, true);
    const int part = (int)(index % blocks);
    if (part >= root_blocks) {
      const int c = (part - root_blocks) * LW_THREADS + threadIdx.x;
      if (c < pair.size() && pair.turns) rotate_column(at, pair, c);
      continue;
    }
    const int k = pair.k, i = part * GROUPS + threadIdx.x / LANES;
    if (part * GROUPS >= k) continue;
    const double *pole = at.pole + pair.first, *weight = at.weight + pair.first;
    const double rho = at.rho[pair.first];
    double base, offset;
    if (k == 1) {
      base = pole[0];
      offset = rho * weight[0] * weight[0];
    } else {
      find_root(pole, weight, rho, i < k ? i : k - 1, k, i < k, base, offset);
    }
    if (i < k && threadIdx.x % LANES == 0) {
      at.base[pair.first + i] = base;
      at.offset[pair.first + i] = offset;
    }
  }
}

// The weights of which the roots are exact, up to a common factor, and the rows where the eigenvectors will be.
extern "C" __global__ void __launch_bounds__(LW_THREADS) divide_weights(Divide at, int blocks) {
  const int lane = threadIdx.x % LANES;
  for (i64 index = blockIdx.x; index < at.batch * at.pairs * blocks; index += gridDim.x) {
    const Pair pair = Pair::of(at, index / blocks, true);
    const int k = pair.k, size = pair.size(), j = (int)(index % blocks) * GROUPS + threadIdx.x / LANES;
    const double *pole = at.pole + pair.first, *base = at.base + pair.first, *offset = at.offset + pair.first;
    double product = 1;
    if (j < k) {
      // factors between 0 and 1, four to a division
      const double own = pole[j];
      double top = 1, bottom = 1;
      int i = lane;
#pragma unroll 4
      for (int step = 0; i < k; i += LANES, step++) {
        top *= (base[i] - own) + offset[i];
        bottom *= i < j ? pole[i] - own : i < k - 1 ? pole[i + 1] - own : 1;
        if (step % 4 == 3) {
          product *= top * inverse(bottom);
          top = bottom = 1;
        }
      }
      product *= top * inverse(bottom);
    }
#pragma unroll
    for (int step = LANES / 2; step > 0; step /= 2) product *= shuffle_xor(product, step);
    if (j < size && lane == 0) {
      double value;
      int rank;
      if (j < k) {
        const double size_of = sqrt(fabs(product));
        at.weight[pair.first + j] = at.weight[pair.first + j] < 0 ? -size_of : size_of;
        value = base[j] + offset[j];
        rank = j + count_below(pole + k, size - k, value, false);
      } else {
        value = pole[j];
        int low = 0, high = k;  // roots that are not above it
        while (low < high) {
          const int middle = (low + high) / 2;
          if (base[middle] + offset[middle] <= value)
            low = middle + 1;
          else
            high = middle;
        }
        rank = j - k + low;
      }
      at.rank[pair.first + j] = rank;
      at.joined[pair.first + rank] = value;
      if (at.w) at.w[pair.first + rank] = at.info[pair.matrix] ? not_a_number() : (Real)(value * at.up[pair.matrix]);
    }
  }
}

// Row `place` of u: the components of that pole in the eigenvectors of D + rho z z^T, which get their length 1 later. A block
// does 32 eigenvectors and one of at.parts parts of the poles. The blocks behind them copy the deflated eigenvectors, which
// have no entries in a half that they do not come from; `copied` rows each.
extern "C" __global__ void __launch_bounds__(LW_THREADS) divide_vectors(Divide at, int vector_blocks, int copy_blocks, int copied) {
  double* sums = (double*)memory;  // WARPS x 32
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, blocks = vector_blocks + copy_blocks;
  for (i64 index = blockIdx.x; index < at.batch * at.pairs * blocks; index += gridDim.x) {
    const Pair pair = Pair::of(at, index / blocks, true);
    const int block = (int)(index % blocks), k = pair.k, size = pair.size();
    if (block >= vector_blocks) {
      const bool failed = at.w && at.info[pair.matrix];
      const int first = (block - vector_blocks) * copied, end = min(first + copied, size), left = pair.middle - pair.begin;
      for (int i = max(first, k) + warp; i < end; i += WARPS) {
        const int code = at.row[pair.first + i];
        const Real* from = at.from + pair.row(code & ROW) + pair.begin;
        Real* to = at.to + pair.row(at.rank[pair.first + i]) + pair.begin;
#pragma unroll 4
        for (int c = lane; c < size; c += 32)
          to[c] = failed ? not_a_number() : code & (c < left ? LEFT : RIGHT) ? from[c] : Real(0);
      }
      continue;
    }
    const int part = block % at.parts, i = block / at.parts * 32 + lane;
    if (i - lane >= k) continue;
    const double *pole = at.pole + pair.first, *weight = at.weight + pair.first;
    const int* place = at.place + pair.first;
    const double base = at.base[pair.first + min(i, k - 1)], offset = at.offset[pair.first + min(i, k - 1)];
    const int each = (k + at.parts - 1) / at.parts, end = min(k, (part + 1) * each);
    Real* to = at.u + (pair.matrix * at.n + pair.begin) * at.pitch + pair.begin + i;
    double sum = 0;
#pragma unroll 4
    for (int j = part * each + warp; j < end; j += WARPS) {
      const double x = weight[j] * inverse((pole[j] - base) - offset);
      sum = fma(x, x, sum);
      if (i < k) to[(i64)place[j] * at.pitch] = (Real)x;
    }
    sums[warp * 32 + lane] = sum;
    __syncthreads();
    if (warp == 0 && i < k) {
      sum = 0;
      for (int w = 0; w < WARPS; w++) sum += sums[w * 32 + lane];
      at.squares[part * at.batch * at.n + pair.first + i] = sum;
    }
    __syncthreads();
  }
}
