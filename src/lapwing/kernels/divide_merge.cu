// Joins the eigenvalues of two parts and deflates (divide.cuh): one block for each pair.
#include "divide.cuh"

// What is negligible beside a matrix whose largest entry is near 1.
#define LW_NEGLIGIBLE (4 * (double)LW_EPS)
#define LW_HALF_ROOT 0.70710678118654752440

// In shared memory, or in global memory where that is too small: `size` elements of each of the first four, a bit for each of the
// fifth, and two words for each warp.
struct Room {
  double *d, *z;
  int *code, *list;
  unsigned* close;
  u64* counts;

  LW_INLINE Room(char* memory, int size) {
    const int even = (size + 1) & ~1;
    counts = (u64*)memory;
    d = (double*)(counts + 32);
    z = d + size;
    code = (int*)(z + size);
    list = code + even;
    close = (unsigned*)(list + even);
  }
};

// Four counts of 16 bits in one number: the sum over the threads before this one, and over all threads.
LW_INLINE u64 sum_before(u64 mine, u64* counts, int threads, u64& all) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  u64 sum = mine;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const u64 other = shuffle(sum, lane - step & 31);
    if (lane >= step) sum += other;
  }
  if (lane == 31) counts[warp] = sum;
  __syncthreads();
  u64 before = sum - mine;
  all = 0;
  for (int w = 0; w < threads / 32; w++) {
    if (w < warp) before += counts[w];
    all += counts[w];
  }
  __syncthreads();
  return before;
}

LW_INLINE int field(u64 counts, int which) { return (int)(counts >> 16 * which & 0xffff); }

LW_INLINE bool is_close(double d1, double z1, double d2, double z2) {
  return fabs((d2 - d1) * z1 * z2) <= LW_NEGLIGIBLE * (z1 * z1 + z2 * z2);
}

// Neighbours among the `count` components in the list whose poles are too close: a rotation makes the first one's component
// zero. One thread; how many rotations there are is the cost, so pairs without one are skipped by their bits.
LW_INLINE int rotate_close(const Room& room, int count, Real* turns, int* turned) {
  int made = 0, a = 0;
  while (true) {
    int word = a / 32;
    unsigned bits = word * 32 < count ? room.close[word] & 0xffffffffu << a % 32 : 0;
    while (!bits && ++word * 32 < count) bits = room.close[word];
    if (!bits) return made;
    a = word * 32 + __ffs(bits) - 1;
    int p = room.list[a], q = room.list[a + 1];
    double dp = room.d[p], zp = room.z[p], dq, zq;
    do {
      dq = room.d[q];
      zq = room.z[q];
      const double squares = zp * zp + zq * zq, root = reciprocal_root(squares), c = zq * root, s = -zp * root;
      turns[2 * made] = (Real)c;
      turns[2 * made + 1] = (Real)s;
      turned[2 * made] = room.code[p];
      turned[2 * made + 1] = room.code[q];
      made++;
      const int halves = (room.code[p] | room.code[q]) & BOTH;
      room.code[p] |= halves | DEFLATED;
      room.code[q] |= halves;
      room.d[p] = dp * c * c + dq * s * s;
      room.d[q] = dp = dp * s * s + dq * c * c;
      room.z[q] = zp = squares * root;
      p = q;
      a++;
      if (a + 1 == count) break;
      q = room.list[a + 1];
    } while (is_close(dp, zp, room.d[q], room.z[q]));
    a++;
  }
}

extern "C" __global__ void divide_merge(Divide at, int threads) {
  for (i64 index = blockIdx.x; index < at.batch * at.pairs; index += gridDim.x) {
    const Pair pair = Pair::of(at, index, false);
    const int size = pair.size(), left = pair.middle - pair.begin, lane = threadIdx.x % 32;
    // 25 bytes for each row are enough, and 512 more to begin at a multiple of 256
    const Room room(at.room ? at.room + (pair.first * 25 + 255 & ~(i64)255) + index * 512 : memory, size);
    const Real coupling = at.e[pair.first + left - 1];
    const double rho = 2 * fabs((double)coupling);

    // all eigenvalues in ascending order, with z: the last row of the left part's eigenvectors, the first of the right part's
    const double* values = at.values + pair.first;
    for (int r = threadIdx.x; r < size; r += threads) {
      const bool first = r < left;
      const double x = values[r];
      const int j = first ? r + count_below(values + left, size - left, x, false) : r - left + count_below(values, left, x, true);
      const double z = at.from[pair.row(r) + pair.middle - first] * LW_HALF_ROOT;
      room.d[j] = x;
      room.z[j] = first || coupling >= 0 ? z : -z;
      room.code[j] = r | (first ? LEFT : RIGHT);
    }
    __syncthreads();

    // negligible components are deflated; the others are listed
    int count = 0;
    for (int start = 0; start < size; start += threads) {
      const int j = start + threadIdx.x;
      const bool stays = j < size && rho * fabs(room.z[j]) > LW_NEGLIGIBLE;
      u64 all;
      const int before = (int)sum_before(stays, room.counts, threads, all);
      if (stays)
        room.list[count + before] = j;
      else if (j < size)
        room.code[j] |= DEFLATED;
      count += (int)all;
    }
    __syncthreads();

    bool any = false;
    for (int start = 0; start < count; start += threads) {
      const int a = start + threadIdx.x;
      bool close = false;
      if (a + 1 < count) {
        const int p = room.list[a], q = room.list[a + 1];
        close = is_close(room.d[p], room.z[p], room.d[q], room.z[q]);
      }
      const unsigned bits = ballot(close);
      if (lane == 0 && a < count) room.close[a / 32] = bits;
      any = any || close;
    }
    const bool rotates = __syncthreads_count(any) != 0;
    if (threadIdx.x == 0) {
      const int made = rotates ? rotate_close(room, count, at.turns + 2 * pair.first, at.turned + 2 * pair.first) : 0;
      at.head[4 * pair.first + 3] = made;
    }
    __syncthreads();

    // what goes into the product: rows of the left part, of both, of the right part; and what is deflated
    const auto kind_of = [&](int j) {
      const int code = room.code[j];
      return code & DEFLATED ? 3 : (code & BOTH) == LEFT ? 0 : (code & BOTH) == BOTH ? 1 : 2;
    };
    u64 mine = 0, total;
    for (int j = threadIdx.x; j < size; j += threads) mine += (u64)1 << 16 * kind_of(j);
    sum_before(mine, room.counts, threads, total);
    const int from_left = field(total, 0), not_right = from_left + field(total, 1), k = not_right + field(total, 2);
    const int places[3] = {0, from_left, not_right};
    u64 done = 0;
    for (int start = 0; start < size; start += threads) {
      const int j = start + threadIdx.x, kind = j < size ? kind_of(j) : -1;
      u64 all;
      const u64 before = done + sum_before(kind < 0 ? 0 : (u64)1 << 16 * kind, room.counts, threads, all);
      done += all;
      if (kind == 3) room.list[field(before, 3)] = j;
      if (kind >= 0 && kind < 3) {
        const int i = field(before, 0) + field(before, 1) + field(before, 2);
        const int place = (kind == 0 ? places[0] : kind == 1 ? places[1] : places[2]) + field(before, kind);
        at.pole[pair.first + i] = room.d[j];
        at.weight[pair.first + i] = room.z[j];
        at.place[pair.first + i] = place;
        at.row[pair.first + place] = room.code[j] & ROW;
      }
    }
    __syncthreads();

    // rotations may have changed the order of deflated eigenvalues, though hardly ever by more than a place
    const int deflated = size - k;
    for (bool sorted = !rotates; !sorted;) {
      bool swapped = false;
      for (int odd = 0; odd < 2; odd++) {
        for (int q = 2 * threadIdx.x + odd; q + 1 < deflated; q += 2 * threads) {
          const int x = room.list[q], y = room.list[q + 1];
          if (room.d[x] > room.d[y]) {
            room.list[q] = y;
            room.list[q + 1] = x;
            swapped = true;
          }
        }
        __syncthreads();
      }
      sorted = __syncthreads_count(swapped) == 0;
    }
    for (int q = threadIdx.x; q < deflated; q += threads) {
      const int j = room.list[q];
      at.pole[pair.first + k + q] = room.d[j];
      at.row[pair.first + k + q] = room.code[j];
    }
    if (threadIdx.x == 0) {
      at.rho[pair.first] = rho;
      at.head[4 * pair.first] = k;
      at.head[4 * pair.first + 1] = from_left;
      at.head[4 * pair.first + 2] = not_right;
    }
    __syncthreads();
  }
}
