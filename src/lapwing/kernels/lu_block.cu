// General systems, inverses, LU and determinants of many matrices: a block of threads for each, of whose matrix W columns at a time
// are in shared memory, so that several blocks share a multiprocessor.
//
// The columns of a block column are taken from the matrix, updated by all block columns of L before it, and factored in registers
// (lu_panel.cuh). The factors go to `work`, where a row keeps the place that it has in the matrix: `order` says which row comes to
// each place, and nothing is ever exchanged in memory. Right-hand sides, W at a time, take the same way.
// Options: LW_W, LW_RT = 1; LW_GIVE as in solve.cuh.
#include "lu_panel.cuh"

constexpr int WARPS = LW_THREADS / 32, LINE = PITCH / SIZE;  // LINE: elements between rows in shared memory
constexpr int SETS = 32 / W;                                 // columns that a warp solves for side by side
constexpr int SHARE = (W + WARPS * SETS - 1) / (WARPS * SETS);
constexpr int STRIP = 16;  // rows of a product of one warp

struct Columns {
  T* w;        // the current columns: all rows
  T* l;        // a block column of L or U
  T* diagonal; // the pivots
  T* inverse;  // one over them
  int* order;  // row i is row order[i] of the matrix
  int n, ld;   // ld: elements between rows of `work`
  T* work;

  // Rows `first` to `end` of `width` columns from `column` on to shared memory, zeros up to W columns
  template <int V>
  LW_INLINE void load(T* to, const T* from, i64 from_ld, int column, int width, int first, int end) const {
    constexpr int STEP = V == 16 ? VEC : 1;
    for (int at = threadIdx.x; at < (end - first) * (W / STEP); at += LW_THREADS) {
      const int i = first + at / (W / STEP), c = at % (W / STEP) * STEP;
      const T* source = from + order[i] * from_ld + (c < width ? column + c : 0);
      if (V == 16)
        copy_async<16>(to + i * LINE + c, source, c < width);
      else
        copy_element(to + i * LINE + c, source, c < width);
    }
    finish_copies();
  }
};

// w1 <- L11^-1 w1 or U11^-1 w1 for the rows from k0 on of w, `columns` columns. Lane r has row r of some columns.
template <bool FORWARD>
LW_INLINE void solve_corner(const Columns& s, int k0, int columns, bool tiny) {
  const int lane = threadIdx.x % 32, row = lane % W, set = lane / W, first = threadIdx.x / 32 * SETS + set;
  if (threadIdx.x / 32 * SETS >= columns) return;
  const int count = min(W, s.n - k0), at = min(k0 + row, s.n - 1);
  const T* l = s.l + at * LINE;
  const T d = s.diagonal[at], inverse = s.inverse[at];
  T z[SHARE];
#pragma unroll
  for (int q = 0; q < SHARE; q++) {
    const int c = first + q * WARPS * SETS;
    // behind the last column one of its own, which no other warp is writing
    z[q] = s.w[(k0 + row) * LINE + (W % (WARPS * SETS) && q > 0 ? (c < W ? c : first) : min(c, W - 1))];
  }
#pragma unroll 4
  for (int turn = 0; turn < count; turn++) {
    const int step = FORWARD ? turn : count - 1 - turn;
    const T e = l[step];
    const bool after = FORWARD ? row > step : row < step;
#pragma unroll
    for (int q = 0; q < SHARE; q++) {
      if (q > 0 && q * WARPS * SETS >= columns) continue;
      if (!FORWARD && row == step) z[q] = divide(z[q], d, inverse, tiny);
      const T y = from_lane(z[q], step + set * W);
      z[q] = select(after, subtract_plain(z[q], e, y), z[q]);
    }
  }
#pragma unroll
  for (int q = 0; q < SHARE; q++) {
    const int c = first + q * WARPS * SETS;
    if (c < columns && row < count) s.w[(k0 + row) * LINE + c] = z[q];
  }
}

// w <- w - l w1 for the rows `first` to `end` and 8 Y columns; w1 begins in row k0. The last strip may read rows of l behind the
// matrix, which may hold anything.
template <int Y>
LW_INLINE void update(const Columns& s, int k0, int first, int end) {
  constexpr bool BY_WAVES = LW_MATRIX == 64 && Y % 2 == 0;
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  // both warps of a wave stay as long as one of them has a strip
  const int early = BY_WAVES ? threadIdx.x / 32 % 2 * STRIP : 0;
  for (int r0 = first + threadIdx.x / 32 * STRIP; r0 - early < end; r0 += WARPS * STRIP) {
    T v[2][Y][2];
#pragma unroll
    for (int x = 0; x < 2; x++)
#pragma unroll
      for (int y = 0; y < Y; y++) v[x][y][0] = v[x][y][1] = zero();
    const T *l = s.l + (r0 + g) * LINE, *w = s.w + k0 * LINE;
#if LW_MATRIX == 64
    if constexpr (BY_WAVES) multiply_halves(v, Lines<T>{s.l + r0 * LINE, LINE, 1}, Lines<T>{w, 1, LINE}, W, r0 < end);
    else
#endif
#if LW_DTYPE == 1 && LW_MATRIX == 16
#pragma unroll
    for (int k = 0; k < W; k += 8) {
      T p[2][2], q[Y][2];
#pragma unroll
      for (int e = 0; e < 2; e++) {
#pragma unroll
        for (int x = 0; x < 2; x++) p[x][e] = l[8 * x * LINE + k + 4 * e + t];
#pragma unroll
        for (int y = 0; y < Y; y++) q[y][e] = w[(k + 4 * e + t) * LINE + 8 * y + g];
      }
#pragma unroll
      for (int y = 0; y < Y; y++)
        multiply_tile(v[0][y][0], v[0][y][1], v[1][y][0], v[1][y][1], p[0][0], p[1][0], p[0][1], p[1][1], q[y][0], q[y][1]);
    }
#else
#pragma unroll 4
    for (int k = 0; k < W; k++) {
      const T p[2] = {l[k], l[8 * LINE + k]};
#pragma unroll
      for (int y = 0; y < Y; y++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
          const T q = w[k * LINE + 8 * y + 2 * t + e];
#pragma unroll
          for (int x = 0; x < 2; x++) v[x][y][e] = subtract_plain(v[x][y][e], negate(p[x]), q);
        }
    }
#endif
#pragma unroll
    for (int x = 0; x < 2; x++)
#pragma unroll
      for (int y = 0; y < Y; y++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
          const int row = r0 + pair_row<BY_WAVES>(x);
          T* c = s.w + row * LINE + pair_column<BY_WAVES>(x, y) + e;
          if (row < end) *c = subtract(*c, v[x][y][e]);
        }
  }
}

// One block column of L, or of U, on 8 Y columns of w
template <bool FORWARD, int Y>
LW_INLINE void substitute(const Columns& s, int k0, bool tiny) {
  const int end = min(k0 + W, s.n);
  s.load<16>(s.l, s.work, s.ld, k0, W, FORWARD ? k0 : 0, FORWARD ? s.n : end);
  __syncthreads();
  solve_corner<FORWARD>(s, k0, 8 * Y, tiny);
  __syncthreads();
  if (FORWARD)
    update<Y>(s, k0, k0 + W, s.n);
  else
    update<Y>(s, k0, 0, k0);
  __syncthreads();
}

struct Result {
  int bad, flags;
};
constexpr int TINY = 1;

// The block column at j0 <- its part of L and U; the rows from there on come to their places.
LW_INLINE void factor_columns(const Columns& s, const T* a, int j0, Result& result) {
  const int t = threadIdx.x, n = s.n, left = n - j0, width = min(W, left);
  s.load<LW_V>(s.w, a, n, j0, width, 0, n);
  for (int k0 = 0; k0 < j0; k0 += W) substitute<true, W / 8>(s, k0, false);
  __syncthreads();
  Shared panel;  // in the place of l
  panel.rows = (char*)(s.w + j0 * LINE);
  panel.top = s.l;
  panel.best = (char*)(panel.top + W * W);
  panel.keys = (Key*)(panel.best + 2 * MOST_WARPS * W * SIZE);
  panel.index = (int*)(panel.keys + 2 * MOST_WARPS);
  panel.source = panel.index + 2 * MOST_WARPS;
  panel.vacant = panel.source + W;
  panel.count = panel.vacant + W;
  panel.row_of = panel.count + 4;
  T p[1][W];
  State state{0, 0, t < left ? 1u : 0};
  load_registers<16>(p[0], (const char*)panel.row(min(t, left - 1)));
  eliminate_all<W>(panel, p, state, width, LW_THREADS);
  place_rows(panel, state, nullptr, j0, left, width, LW_THREADS);
  __syncthreads();
  if (result.bad == 0 && state.bad) result.bad = j0 + state.bad;
  result.flags |= state.flags;
  for (int at = t; at < n * UNITS; at += LW_THREADS) {
    const int i = at / UNITS, c = at % UNITS * VEC, place = i - j0, was = i < j0 ? i : j0 + panel.row_of[place];
    Vector x = *(const Vector*)(s.w + was * LINE + c);
#pragma unroll
    for (int v = 0; v < VEC; v++)
      if (place >= 0 && place < width && c + v >= place) x.v[v] = panel.top[place * W + c + v];
    *(Vector*)(s.work + (i64)s.order[was] * s.ld + j0 + c) = x;
  }
  bool small = false;
  if (t < width) {
    const T d = panel.top[t * W + t];
    small = is_tiny(d);
    s.diagonal[j0 + t] = d;
    s.inverse[j0 + t] = is_divisor(d) ? invert(d) : zero();
  }
  const int row = t < left ? s.order[j0 + panel.row_of[t]] : 0;
  if (__syncthreads_count(small)) result.flags |= TINY;
  if (t < left) s.order[j0 + t] = row;
  __syncthreads();
}

// out <- the rows of the factors in their order. A warp has TOGETHER of them on the way at a time: one after the other, 1000 matrices
// of n = 128 took 0.2 ms longer.
LW_INLINE void store_factors(const Columns& s, T* out, bool failed) {
  constexpr int TOGETHER = 8, STEP = LW_V == 16 ? VEC : 1;
  typedef Pack<T, STEP> Access;
  const int n = s.n;
  for (int first = threadIdx.x / 32; first < n; first += WARPS * TOGETHER) {
    for (int c = threadIdx.x % 32 * STEP; c < n; c += 32 * STEP) {
      Access x[TOGETHER];
#pragma unroll
      for (int r = 0; r < TOGETHER; r++)
        x[r] = *(const Access*)(s.work + (i64)s.order[min(first + r * WARPS, n - 1)] * s.ld + c);
#pragma unroll
      for (int r = 0; r < TOGETHER; r++) {
        if (failed)
#pragma unroll
          for (int v = 0; v < STEP; v++) x[r].v[v] = nan_element();
        if (first + r * WARPS < n) store_pack<STEP>(out + (first + r * WARPS) * n + c, x[r]);
      }
    }
  }
}

// w <- right-hand sides in the order of the rows, then the solutions
template <int Y>
LW_INLINE void solve_columns(const Columns& s, const Call& call, i64 m, i64 k0, i64 columns, bool tiny, bool failed) {
  const int n = s.n, last = (n - 1) / W * W, width = (int)min((int)(columns - k0), 8 * Y);
  const T* b = call.b + m * n * columns;
  for (int at = threadIdx.x; at < (last + W) * 8 * Y; at += LW_THREADS) {
    const int i = at / (8 * Y), c = at % (8 * Y);
    T x = zero();
    if (i < n && c < width)
      x = LW_GIVE == 1 ? from_real(Real(s.order[i] == k0 + c)) : load_element(b + s.order[i] * columns + k0 + c);
    s.w[i * LINE + c] = x;
  }
  __syncthreads();
  for (int j = 0; j < n; j += W) substitute<true, Y>(s, j, false);
  for (int j = last; j >= 0; j -= W) substitute<false, Y>(s, j, tiny);
  T* out = call.out + m * n * columns;
  for (int at = threadIdx.x; at < n * 8 * Y; at += LW_THREADS) {
    const int i = at / (8 * Y), c = at % (8 * Y);
    if (c < width) store_element(out + i * columns + k0 + c, failed ? nan_element() : s.w[i * LINE + c]);
  }
  __syncthreads();
}

extern "C" __global__ void __launch_bounds__(LW_THREADS, LW_RESIDENT) lu_block(Call call, T* work, int n) {
  const int blocks = (n + W - 1) / W, t = threadIdx.x;
  Columns s;
  s.n = n, s.ld = blocks * W;
  s.w = (T*)memory;
  s.l = s.w + blocks * W * LINE;
  s.diagonal = s.l + blocks * W * LINE;
  s.inverse = s.diagonal + n;
  s.order = (int*)(s.inverse + n);
  s.work = work + (i64)blockIdx.x * n * s.ld;
  for (i64 m = blockIdx.x; m < call.batch; m += gridDim.x) {
    for (int i = t; i < n; i += LW_THREADS) s.order[i] = i;
    __syncthreads();
    Result result{0, 0};
    for (int j0 = 0; j0 < n; j0 += W) factor_columns(s, call.a + m * n * n, j0, result);
    const bool failed = result.bad && call.info, tiny = result.flags & TINY;
    if (LW_GIVE == 2) {
      store_factors(s, call.out + m * n * n, failed);
      for (int i = t; i < n; i += LW_THREADS) call.rows[m * n + i] = s.order[i];
    }
    if (LW_GIVE < 2) {
      const i64 columns = LW_GIVE == 1 ? n : call.k;
      for (i64 k0 = 0; k0 < columns; k0 += W)
        if (columns - k0 > 8)
          solve_columns<W / 8>(s, call, m, k0, columns, tiny, failed);
        else
          solve_columns<1>(s, call, m, k0, columns, tiny, failed);
    }
    if (LW_GIVE == 3) {
      const bool odd = is_odd(s.order, n), infinite = result.flags & INFINITE;
      if (t < 32)
        store_diagonal_product(call.out + m, call.logabs ? call.logabs + m : nullptr, n, false, odd, infinite,
                               [&](int i) { return s.diagonal[i]; });
      if (t == 0) call.info[m] = infinite;
    } else if (t == 0 && call.info) {
      call.info[m] = result.bad;
    }
    __syncthreads();
  }
}
