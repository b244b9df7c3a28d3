// Singular values and vectors by one-sided Jacobi, with blocks of columns in shared memory.
//
// A, or A^H where it is wide, is M (length x k). Its columns are sorted by size, M P = Q R, and L = R^H is what the rotations
// work on: they converge in half of the sweeps that M needs, and where M has rows of very different size they converge at all.
// L V = X S with orthogonal columns X, so that M = (Q V) S (P X)^H.
//
// The columns of L lie in `work` one behind the other, each followed by its column of V. A sweep meets each pair of columns
// once. It goes round by round, and in each round every block of `width` columns meets one other block, in shared memory. A
// matrix that fits as a whole is two blocks, which stay. LW_LANES lanes work on a pair of columns.
//
// Where M has a lower rank, R has rows that are rounding errors of rounding errors. They are far from orthogonal, and rotations
// would make them smaller by a factor eps in each sweep until they underflow. Rows and columns that are smaller than the error
// eps |m_j| of each column m_j count as zero: that costs no accuracy, not even where the columns of M differ in size.
#include "qr_state.cuh"
#include "svd.cuh"

constexpr int LANES = LW_LANES;
constexpr int GROUPS = LW_THREADS / LANES;
constexpr int WARPS = LW_THREADS / 32;
constexpr Real NOISE = LW_EPS / 4;  // beside the elements of a column: an error that the QR makes anyway
constexpr int SWEEPS = 40;  // seven to eleven are usual; as in svd.cc

// ---- the way in --------------------------------------------------------------------------------------------------------

// sizes <- the state of each row (qr_state.cuh), a warp for each
extern "C" __global__ void __launch_bounds__(LW_THREADS) svd_measure_rows(const T* a, int* sizes, i64 rows, int columns) {
  for (i64 row = (i64)blockIdx.x * WARPS + threadIdx.x / 32; row < rows; row += (i64)gridDim.x * WARPS) {
    Real largest = 0;
    bool good = true;
    for (int j = threadIdx.x % 32; j < columns; j += 32) {
      const T x = load_element(a + row * columns + j);
      good = good && is_finite(x);
      largest = fmax(largest, magnitude(x));
    }
    largest = max_lanes<32>(largest);
    good = !any_lane(!good);
    if (threadIdx.x % 32 == 0) sizes[row] = !good ? NOT_FINITE : largest > 0 ? ilogb(largest) : -2 * MAX_STATE;
  }
}

// order <- the columns from large to small, by their sizes; state <- that of the matrix; smallest <- the size of the smallest
// column that is not zero. A block of threads per matrix.
extern "C" __global__ void __launch_bounds__(LW_THREADS)
    svd_order(const int* sizes, int* order, int* state, int* smallest, i64 batch, int columns) {
  for (i64 which = blockIdx.x; which < batch; which += gridDim.x) {
    const int* own = sizes + which * columns;
    for (int c = threadIdx.x; c < columns; c += LW_THREADS) {
      int at = 0, there = 0;
      for (int other = 0; other < columns; other++) {
        at += own[other] > own[c] || (own[other] == own[c] && other < c);
        there += own[other] > -MAX_STATE;
      }
      order[which * columns + at] = c;
      if (at == 0) state[which] = own[c];
      if (at == max(there, 1) - 1) smallest[which] = own[c];
    }
  }
}

// What counts as zero in a column of this size, after the scaling of svd_take
LW_INLINE Real noise_of(int size, int state) { return ldexp(NOISE, size - exponent_of(state)); }
LW_INLINE Real least_square(int smallest, int state) {
  const Real noise = smallest > -MAX_STATE ? noise_of(smallest, state) : Real(0);
  return fmax(noise * noise, LW_NO_COLUMN);
}

struct Reading {
  const T* a;
  T* to;
  const int *order, *state;
  i64 batch, stride;
  int length, columns, ld, wide;
};

// to (length x columns, rows of `ld` elements with zeros behind them) <- M P near 1, in 32 x 32 tiles
extern "C" __global__ void __launch_bounds__(LW_THREADS) svd_take(Reading call) {
  T* tile = (T*)memory;  // 32 x 33
  const int across_rows = (call.length + 31) / 32, across_columns = (call.ld + 31) / 32;
  const i64 tiles = (i64)across_rows * across_columns;
  for (i64 item = blockIdx.x; item < call.batch * tiles; item += gridDim.x) {
    const i64 which = item / tiles;
    const int number = (int)(item - which * tiles), i0 = number / across_columns * 32, j0 = number % across_columns * 32;
    const T* a = call.a + which * call.length * call.columns;
    const int* order = call.order + which * call.columns;
    const int state = call.state[which];
    const Real by = ldexp(Real(1), -exponent_of(state));
    for (int e = threadIdx.x; e < 1024; e += LW_THREADS) {
      const int i = i0 + (call.wide ? e % 32 : e / 32), j = j0 + (call.wide ? e / 32 : e % 32);
      T x = zero();
      if (i < call.length && j < call.columns) {
        x = call.wide ? conjugate(load_element(a + (i64)order[j] * call.length + i)) : load_element(a + (i64)i * call.columns + order[j]);
        x = state < NOT_FINITE ? scale(x, by) : filled(not_a_number());
      }
      tile[(i - i0) * 33 + j - j0] = x;
    }
    __syncthreads();
    for (int e = threadIdx.x; e < 1024; e += LW_THREADS) {
      const int i = i0 + e / 32, j = j0 + e % 32;
      if (i < call.length && j < call.ld) call.to[which * call.stride + (i64)i * call.ld + j] = tile[e / 32 * 33 + e % 32];
    }
    __syncthreads();
  }
}

struct Lifted {
  const T* r;
  T* work;
  const int *sizes, *order, *state;
  i64 batch, stride;
  int ld, columns, rows, pitch;
};

// work <- L = R^H; a row of R for each warp
extern "C" __global__ void __launch_bounds__(LW_THREADS) svd_lift(Lifted call) {
  const int lane = threadIdx.x % 32, columns = call.columns;
  for (i64 line = (i64)blockIdx.x * WARPS + threadIdx.x / 32; line < call.batch * columns; line += (i64)gridDim.x * WARPS) {
    const i64 which = line / columns;
    const int j = (int)(line - which * columns), state = call.state[which];
    const int *sizes = call.sizes + which * columns, *order = call.order + which * columns;
    const T* row = call.r + which * call.stride + (i64)j * call.ld;
    bool any = false;
    for (int i = j + lane; i < columns; i += 32) any = any || !(magnitude(row[i]) <= noise_of(sizes[order[i]], state));
    any = any_lane(any);
    for (int i = lane; i < call.rows; i += 32)
      call.work[line * call.pitch + i] = any && i >= j && i < columns ? conjugate(row[i]) : zero();
  }
}

// ---- the rotations -----------------------------------------------------------------------------------------------------

struct Turns {
  T* work;
  int* moved;                    // for each matrix and sweep: whether a column moved
  const int *state, *smallest;   // qr_state.cuh, svd_order
  i64 batch;
  int rows, v_rows;  // of L and V, with zeros up to a multiple of VEC; no V: 0
  int columns, width, blocks, sweep, round;  // round -1: all that are left, a block of threads per matrix; else this one alone
};

// Pair number t of n players in round r of n - 1: each meets every other once.
LW_INLINE void meeting(int t, int r, int n, int& i, int& j) {
  int a = r + t, b = r - t;
  a -= a >= n - 1 ? n - 1 : 0;
  b += b < 0 ? n - 1 : 0;
  if (t == 0) b = n - 1;
  i = min(a, b);
  j = max(a, b);
}

// The 2 `width` columns in shared memory become more orthogonal: all pairs, or those of a column of each block. Returns whether
// this thread moved any.
LW_INLINE bool turn_columns(T* columns, int width, int rows, int pitch, bool all, Real small, Real least) {
  const int group = threadIdx.x / LANES, start = threadIdx.x % LANES * VEC;
  bool moved = false;
  for (int round = 0; round < (all ? 2 * width - 1 : width); round++) {
    for (int first = 0; first < width; first += GROUPS) {
      const int t = first + group;
      const bool active = t < width;
      int i = 0, j = 0;
      if (all) {
        meeting(active ? t : 0, round, 2 * width, i, j);
      } else {
        i = active ? t : 0;
        j = i + round;
        j += j >= width ? 0 : width;
      }
      T *x = columns + i * pitch, *y = columns + j * pitch;
      Real p = 0, q = 0;
      T product = zero();
      if (active)
#pragma unroll 4
        for (int e = start; e < rows; e += LANES * VEC) {
          const Vector a = *(const Vector*)(x + e), b = *(const Vector*)(y + e);
#pragma unroll
          for (int v = 0; v < VEC; v++) {
            p += square(a.v[v]);
            q += square(b.v[v]);
            product = add_product(product, a.v[v], b.v[v]);
          }
        }
      p = sum_lanes<LANES>(p);
      q = sum_lanes<LANES>(q);
      product = sum_lanes<LANES>(product);
      const bool ordered = p >= q;  // columns keep their places: rotations that exchange them converge late in this order of pairs
      const Turn turn(ordered ? product : conjugate(product), p, q, ordered, small, least);
      if (!active || !turn.moves) continue;
      moved = true;
      const T back = negate(conjugate(turn.s));
#pragma unroll 4
      for (int e = start; e < pitch; e += LANES * VEC) {
        Vector a = *(const Vector*)(x + e), b = *(const Vector*)(y + e);
#pragma unroll
        for (int v = 0; v < VEC; v++) {
          const T one = a.v[v], two = b.v[v];
          a.v[v] = turn.apply(one, two);
          b.v[v] = add_plain(scale(two, turn.c), back, one);
        }
        *(Vector*)(x + e) = a;
        *(Vector*)(y + e) = b;
      }
    }
    __syncthreads();
  }
  return moved;
}

#if LW_HELD
// The pairs of a column of each block. Column t of the first block stays in the registers of its lanes, LW_HELD accesses of L
// and of V for each, while those of the second block pass by: shared memory is what bounds these rotations.
LW_INLINE bool turn_held(T* columns, int width, int rows, int pitch, Real small, Real least) {
  const int group = threadIdx.x / LANES, start = threadIdx.x % LANES * VEC, v_rows = pitch - rows;
  bool moved = false;
  for (int first = 0; first < width; first += GROUPS) {
    const int i = min(first + group, width - 1);
    const bool active = first + group < width;
    T* x = columns + i * pitch;
    Vector held[2][LW_HELD];
#pragma unroll
    for (int h = 0; h < LW_HELD; h++) {
      const int e = start + h * LANES * VEC;
#pragma unroll
      for (int v = 0; v < VEC; v++) held[0][h].v[v] = held[1][h].v[v] = zero();
      if (e < rows) held[0][h] = *(const Vector*)(x + e);
      if (e < v_rows) held[1][h] = *(const Vector*)(x + rows + e);
    }
    for (int round = 0; round < width; round++) {
      const int place = i + round;
      T* y = columns + (place >= width ? place : place + width) * pitch;
      Vector other[LW_HELD];
      Real p = 0, q = 0;
      T product = zero();
#pragma unroll
      for (int h = 0; h < LW_HELD; h++) {
        const int e = start + h * LANES * VEC;
#pragma unroll
        for (int v = 0; v < VEC; v++) other[h].v[v] = zero();
        if (active && e < rows) other[h] = *(const Vector*)(y + e);
#pragma unroll
        for (int v = 0; v < VEC; v++) {
          p += square(held[0][h].v[v]);
          q += square(other[h].v[v]);
          product = add_product(product, held[0][h].v[v], other[h].v[v]);
        }
      }
      p = sum_lanes<LANES>(p);
      q = sum_lanes<LANES>(q);
      product = sum_lanes<LANES>(product);
      const bool ordered = p >= q;
      const Turn turn(ordered ? product : conjugate(product), p, q, ordered, small, least);
      if (active && turn.moves) {
        moved = true;
        const T back = negate(conjugate(turn.s));
#pragma unroll
        for (int part = 0; part < 2; part++) {
          T* to = y + part * rows;
#pragma unroll
          for (int h = 0; h < LW_HELD; h++) {
            const int e = start + h * LANES * VEC;
            if (e >= (part ? v_rows : rows)) continue;
            Vector two = part ? *(const Vector*)(to + e) : other[h];
#pragma unroll
            for (int v = 0; v < VEC; v++) {
              const T one = held[part][h].v[v];
              held[part][h].v[v] = turn.apply(one, two.v[v]);
              two.v[v] = add_plain(scale(two.v[v], turn.c), back, one);
            }
            *(Vector*)(to + e) = two;
          }
        }
      }
      __syncthreads();
    }
    if (active)
#pragma unroll
      for (int h = 0; h < LW_HELD; h++) {
        const int e = start + h * LANES * VEC;
        if (e < rows) *(Vector*)(x + e) = held[0][h];
        if (e < v_rows) *(Vector*)(x + rows + e) = held[1][h];
      }
  }
  __syncthreads();
  return moved;
}
#endif

// Two blocks of columns between memory and shared memory.
struct Blocks {
  T *columns, *work;
  int first, second, width, end, rows, pitch;

  LW_INLINE int number(int c) const { return c < width ? first + c : second + c - width; }

  // fresh: V is the identity
  LW_INLINE void load(bool fresh) const {
    const int loaded = fresh ? rows : pitch;
    for (int c = threadIdx.x / 32; c < 2 * width; c += WARPS) {
      const int j = number(c);
      for (int e = threadIdx.x % 32 * VEC; e < pitch; e += 32 * VEC) {
        T* to = columns + c * pitch + e;
        if (e < loaded) {
          copy_async<16>(to, work + (i64)min(j, end - 1) * pitch + e, j < end);
        } else {
#pragma unroll
          for (int v = 0; v < VEC; v++) to[v] = from_real(Real(e - rows + v == j));
        }
      }
    }
    finish_copies();
    __syncthreads();
  }

  LW_INLINE void store() const {
    for (int c = threadIdx.x / 32; c < 2 * width; c += WARPS) {
      const int j = number(c);
      if (j >= end) continue;
      for (int e = threadIdx.x % 32 * VEC; e < pitch; e += 32 * VEC)
        *(Vector*)(work + (i64)j * pitch + e) = *(const Vector*)(columns + c * pitch + e);
    }
    __syncthreads();
  }
};

extern "C" __global__ void __launch_bounds__(LW_THREADS) svd_turn(Turns call) {
  const int pitch = call.rows + call.v_rows, pairs = call.blocks / 2;
  const bool alone = call.round < 0, whole = call.blocks == 2;
  const Real small = LW_EPS * sqrt(Real(call.rows));
  const i64 items = alone ? call.batch : call.batch * pairs;
  for (i64 item = blockIdx.x; item < items; item += gridDim.x) {
    const i64 which = alone ? item : item / pairs;
    const int pair = alone ? 0 : (int)(item - which * pairs);
    if (call.state[which] >= NOT_FINITE) continue;
    const Real least = least_square(call.smallest[which], call.state[which]);
    int* moved = call.moved + which * SWEEPS;
    Blocks blocks{(T*)memory, call.work + which * call.columns * pitch, 0, 0, call.width, call.columns, call.rows, pitch};
    bool loaded = false;
    for (int sweep = call.sweep; sweep < (alone ? SWEEPS : call.sweep + 1); sweep++) {
      if (sweep > 0 && !*(volatile int*)(moved + sweep - 1)) break;
      bool any = false;
      for (int round = alone ? 0 : call.round; round < (alone ? call.blocks - 1 : call.round + 1); round++) {
        for (int p = pair; p < (alone ? pairs : pair + 1); p++) {
          meeting(p, round, call.blocks, blocks.first, blocks.second);
          blocks.first *= call.width;
          blocks.second *= call.width;
          if (!whole || !loaded) blocks.load(sweep == 0 && round == 0);
          loaded = true;
#if LW_HELD
          if (round > 0)
            any = turn_held(blocks.columns, call.width, call.rows, pitch, small, least) || any;
          else
#endif
            any = turn_columns(blocks.columns, call.width, call.rows, pitch, round == 0, small, least) || any;
          if (!whole) blocks.store();
        }
      }
      any = __syncthreads_count(any) > 0;
      if (any && threadIdx.x == 0) moved[sweep] = 1;
      __syncthreads();
    }
    if (whole && loaded) blocks.store();
  }
}

// ---- the way out -------------------------------------------------------------------------------------------------------

struct Settled {
  T* work;
  Real* s;
  int *order, *info;  // order: the column of each singular value
  const int *moved, *state, *smallest;
  i64 batch;
  int rows, v_rows, columns;
};

// Columns that are missing become unit vectors orthogonal to all others: what is left of that row of the identity of which most
// is left. `there`: the columns that have length one.
struct Completion {
  T *work, *y, *dots;
  Real* used;  // the squares of each row of those columns, summed
  int *there, *place;
  int pitch, columns;

  // y <- y - the part of it in column c, for all c: y - X dots
  LW_INLINE void subtract() const {
    __syncthreads();
    for (int i = threadIdx.x; i < columns; i += LW_THREADS) {
      T sum = y[i];
      for (int c = 0; c < columns; c++)
        if (there[c]) sum = subtract_plain(sum, work[(i64)c * pitch + i], dots[c]);
      y[i] = sum;
    }
    __syncthreads();
  }

  LW_INLINE void run() const {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int i = threadIdx.x; i < columns; i += LW_THREADS) {
      Real sum = 0;
      for (int c = 0; c < columns; c++)
        if (there[c]) sum += square(work[(i64)c * pitch + i]);
      used[i] = sum;
    }
    __syncthreads();
    for (int j = 0; j < columns; j++) {
      if (there[j]) continue;
      if (warp == 0) {
        Real least = 2;
        int at = 0;
        for (int i = lane; i < columns; i += 32)
          if (used[i] < least) least = used[i], at = i;
        for (int step = 16; step > 0; step /= 2) {
          const Real other = shuffle_xor(least, step);
          const int other_at = shuffle_xor(at, step);
          const bool takes = other < least || (other == least && other_at < at);
          least = takes ? other : least;
          at = takes ? other_at : at;
        }
        if (lane == 0) *place = at;
      }
      __syncthreads();
      for (int i = threadIdx.x; i < columns; i += LW_THREADS) y[i] = from_real(Real(i == *place));
      for (int c = threadIdx.x; c < columns; c += LW_THREADS) dots[c] = conjugate(work[(i64)c * pitch + *place]);
      subtract();
      for (int c = warp; c < columns; c += WARPS) {
        T dot = zero();
        for (int i = lane; i < columns; i += 32) dot = add_product(dot, y[i], work[(i64)c * pitch + i]);
        dot = sum_lanes<32>(dot);
        if (lane == 0) dots[c] = dot;
      }
      subtract();
      Real squares = 0;
      for (int i = lane; i < columns; i += 32) squares += square(y[i]);
      const Real by = fine_root(sum_lanes<32>(squares));
      for (int i = threadIdx.x; i < columns; i += LW_THREADS) {
        const T x = scale(y[i], by);
        work[(i64)j * pitch + i] = x;
        used[i] += square(x);
      }
      if (threadIdx.x == 0) there[j] = 1;
      __syncthreads();
    }
  }
};

// The singular values, their order, and columns of L of length one. A block of threads per matrix.
extern "C" __global__ void __launch_bounds__(LW_THREADS) svd_settle(Settled call) {
  const int k = call.columns, pitch = call.rows + call.v_rows, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  T *y = (T*)memory, *dots = y + k;
  Real *squares = (Real*)(dots + k), *used = squares + k;
  int *there = (int*)(used + k), *place = there + k;
  for (i64 which = blockIdx.x; which < call.batch; which += gridDim.x) {
    T* work = call.work + which * k * pitch;
    const int state = call.state[which];
    const bool good = state < NOT_FINITE && !call.moved[which * SWEEPS + SWEEPS - 1];
    const Real up = ldexp(Real(1), exponent_of(state)), least = least_square(call.smallest[which], state);
    __syncthreads();
    for (int c = warp; c < k; c += WARPS) {
      T* x = work + (i64)c * pitch;
      Real sum = 0;
      for (int i = lane; i < k; i += 32) sum += good ? square(x[i]) : Real(0);
      sum = sum_lanes<32>(sum);
      const bool is_there = sum > least;
      if (lane == 0) squares[c] = sum, there[c] = is_there;
      const Real by = fine_root(is_there ? sum : Real(1));
      if (call.order && good)
        for (int i = lane; i < k; i += 32) x[i] = is_there ? scale(x[i], by) : zero();
    }
    __syncthreads();
    bool missing = false;
    for (int c = threadIdx.x; c < k; c += LW_THREADS) {
      const Real own = squares[c];
      int at = 0;
      for (int other = 0; other < k; other++) at += squares[other] > own || (squares[other] == own && other < c);
      call.s[which * k + at] = !good ? not_a_number() : there[c] ? sqrt(own) * up : Real(0);
      if (call.order) call.order[which * k + at] = c;
      missing = missing || !there[c];
    }
    if (threadIdx.x == 0) call.info[which] = !good;
    if (call.order && good && __syncthreads_count(missing) > 0)
      Completion{work, y, dots, used, there, place, pitch, k}.run();
  }
}

struct Writing {
  const T* work;
  T* out;
  const int *order, *places, *info;  // null: columns and elements in their own order; no failures
  i64 batch, stride;                 // elements from matrix to matrix of `work`
  int pitch, rows, columns, length, adjoint;  // out is rows x columns
};

// out <- the columns of work, or with `adjoint` their conjugates, in 32 x 32 tiles. Element i of a column goes to row places[i];
// rows from `length` on are zeros.
extern "C" __global__ void __launch_bounds__(LW_THREADS) svd_give_columns(Writing call) {
  T* tile = (T*)memory;  // 32 x 33
  const int across_rows = (call.rows + 31) / 32, across_columns = (call.columns + 31) / 32;
  const i64 tiles = (i64)across_rows * across_columns;
  for (i64 item = blockIdx.x; item < call.batch * tiles; item += gridDim.x) {
    const i64 which = item / tiles;
    const int number = (int)(item - which * tiles), i0 = number / across_columns * 32, j0 = number % across_columns * 32;
    const T* work = call.work + which * call.stride;
    const bool good = !call.info || !call.info[which];
    for (int e = threadIdx.x; e < 1024; e += LW_THREADS) {
      const int i = i0 + e % 32, j = j0 + e / 32;
      T x = zero();
      if (i < call.length && j < call.columns)
        x = work[(i64)(call.order ? call.order[which * call.columns + j] : j) * call.pitch + i];
      tile[e / 32 * 33 + e % 32] = call.adjoint ? conjugate(x) : x;
    }
    __syncthreads();
    for (int e = threadIdx.x; e < 1024; e += LW_THREADS) {
      const int i = i0 + e / 32, j = j0 + e % 32;
      if (i >= call.rows || j >= call.columns) continue;
      const int row = call.places ? call.places[which * call.rows + i] : i;
      store_element(call.out + (which * call.rows + row) * call.columns + j,
                    good ? add(tile[e % 32 * 33 + e / 32], zero()) : filled(not_a_number()));
    }
    __syncthreads();
  }
}

// out <- the conjugate columns of work as rows; element i of a column goes to places[i]. A warp for each.
extern "C" __global__ void __launch_bounds__(LW_THREADS) svd_give_rows(Writing call) {
  for (i64 row = (i64)blockIdx.x * WARPS + threadIdx.x / 32; row < call.batch * call.rows; row += (i64)gridDim.x * WARPS) {
    const i64 which = row / call.rows;
    const T* from = call.work + which * call.stride + (i64)call.order[row] * call.pitch;
    const bool good = !call.info[which];
    for (int i = threadIdx.x % 32; i < call.columns; i += 32)
      store_element(call.out + row * call.columns + call.places[which * call.columns + i],
                    good ? add(conjugate(from[i]), zero()) : filled(not_a_number()));
  }
}
