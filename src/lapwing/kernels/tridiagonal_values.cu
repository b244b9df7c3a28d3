// Eigenvalues of real symmetric tridiagonal matrices, each by itself: how many are below x is the number of changes of sign in the
// sequence p_i = (d_i - x) p_{i-1} - e_{i-1}^2 p_{i-2}, and an interval with the value in it is divided until it is narrow.
//
// LW_LANES lanes look at as many points of an interval at once. A matrix of float is done in double too: the sequence is scaled
// once in eight steps then, not in every one, and nothing is lost by it. Matrices come with elements near 1 or smaller.
//
// LW_PART lines are in shared memory at a time, a multiple of 8; 0: all of them, for the whole call.
#include "eigh.cuh"

#ifndef LW_PART
#define LW_PART 0
#endif
constexpr int LANES = LW_LANES, THREADS = 256, PART = LW_PART;
constexpr double NARROW = LW_DTYPE == 0 ? 0x1p-30 : 0x1p-58;  // next to the first interval
constexpr double LEAST = 0x1p-120;  // squares below it are zero next to a matrix whose largest element is 1

struct Call {
  const Real *d, *e, *up;  // n numbers each of each matrix
  const int* reduced;      // 1: there is no answer
  Real* values;            // count of each matrix, from value `first` on
  int* info;
  i64 batch;
  int n, first, count, positive;  // positive: values below zero are rounding errors
};

struct alignas(16) Line {
  double d, e2;
};

// The last two of the sequence, scaled, and its changes of sign
struct Sequence {
  double p = 1, before = 0;
  int count = 0;
};

// n more lines. They go up to a multiple of 8, where d is large.
LW_INLINE void go_on(Sequence& sequence, const Line* lines, int n, double x) {
  double p = sequence.p, before = sequence.before;
  int count = sequence.count;
  for (int i0 = 0; i0 < n; i0 += 8) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const Line line = lines[i0 + i];
      const double next = fma(line.d - x, p, -line.e2 * before);
      count += (unsigned)((__double2hiint(next) ^ __double2hiint(p))) >> 31;
      before = p;
      p = next;
    }
    const int one = __double2hiint(p) & 0x7ff00000, two = __double2hiint(before) & 0x7ff00000;
    const double by = __hiloint2double(0x7fe00000 - max(one, two), 0);
    p *= by;
    before *= by;
  }
  sequence = Sequence{p, before, count};
}

LW_INLINE double over_block(double x, double* room) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x = fmax(x, shuffle_xor(x, step));
  if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = x;
  __syncthreads();
#pragma unroll
  for (int w = 0; w < THREADS / 32; w++) x = fmax(x, room[w]);
  __syncthreads();
  return x;
}

extern "C" __global__ void __launch_bounds__(THREADS) tridiagonal_values(Call call) {
  const int n = call.n, padded = (n + 7) / 8 * 8, each = THREADS / LANES, parts = (call.count + each - 1) / each;
  double* room = (double*)memory;
  Line* lines = (Line*)(room + THREADS / 32);
  const int lane = threadIdx.x % LANES, first_lane = threadIdx.x % 32 / LANES * LANES;
  for (i64 job = blockIdx.x; job < call.batch * parts; job += gridDim.x) {
    const i64 m = job / parts;
    const int number = (int)(job - m * parts) * each + threadIdx.x / LANES;
    double low = -LW_LARGEST, high = -LW_LARGEST;  // minus the lower end, and the upper end
    for (int i = threadIdx.x; i < padded; i += THREADS) {
      const double left = i > 0 && i < n ? call.e[m * n + i - 1] : 0, right = i + 1 < n ? call.e[m * n + i] : 0;
      const double d = i < n ? call.d[m * n + i] : 0, radius = fabs(left) + fabs(right);
      if (PART == 0) lines[i] = Line{d, i == 0 ? 0 : i < n ? fmax(left * left, LEAST) : 0};
      if (i < n) {
        low = fmax(low, radius - d);
        high = fmax(high, radius + d);
      }
    }
    low = -over_block(low, room);
    high = over_block(high, room);
    const double above_all = 2 * high - low + 1;  // no change of sign
    if (PART == 0)
      for (int i = n + threadIdx.x; i < padded; i += THREADS) lines[i].d = above_all;
    __syncthreads();
    // how many values are below x
    const auto below = [&](double x) {
      Sequence sequence;
      if constexpr (PART == 0) {
        go_on(sequence, lines, n, x);
      } else {
        for (int begin = 0; begin < padded; begin += PART) {
          const int end = min(begin + PART, padded);
          for (int i = begin + threadIdx.x; i < end; i += THREADS) {
            const double left = i > 0 && i < n ? call.e[m * n + i - 1] : 0;
            lines[i - begin] = Line{i < n ? call.d[m * n + i] : above_all, i == 0 ? 0 : i < n ? fmax(left * left, LEAST) : 0};
          }
          __syncthreads();
          go_on(sequence, lines, end - begin, x);
          __syncthreads();
        }
      }
      return sequence.count;
    };
    const double margin = fmax(fabs(low), fabs(high)) * (4 * LW_EPS);
    low -= margin;
    high += margin;
    const int wanted = call.first + min(number, call.count - 1);
    for (double width = 1; width > NARROW; width /= LANES + 1) {
      const double step = (high - low) * (1.0 / (LANES + 1)), x = low + step * (lane + 1);
      const bool above = below(x) > wanted;
      if (LANES == 1) {
        low = above ? low : x;
        high = above ? x : high;
      } else {
        // the value lies below the points of the lanes from `place` on
        const unsigned all = LANES == 32 ? 0xffffffffu : (1u << LANES % 32) - 1;
        const unsigned own = ballot(above) >> first_lane & all;
        const int place = own ? __ffs(own) - 1 : LANES;
        if (place < LANES) high = low + step * (place + 1);
        low += step * place;
      }
    }
    if (lane == 0 && number < call.count) {
      const Real value = (Real)(0.5 * (low + high)) * call.up[m];
      call.values[m * call.count + number] = call.reduced[m] ? not_a_number() : call.positive && !(value > 0) ? Real(0) : value;
    }
    if (job == m * parts && threadIdx.x == 0) call.info[m] = call.reduced[m];
    __syncthreads();
  }
}
