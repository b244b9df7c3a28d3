// Steps of blocked systems other than the panel and the products: exchanges of rows, substitution with a diagonal block, copies,
// determinants.
#include "blocked.cuh"

constexpr int WARPS = LW_THREADS / 32;
constexpr int COLUMNS = 32;         // of a tile: one for each lane
constexpr int STEP = 8;             // rows that are solved together
constexpr int E_PITCH = BLOCK + VEC;

// Two ranges of columns of x, cut into tiles. `still` columns from `left` on are only exchanged, the others solved with too.
struct Solve {
  const T* e;          // the top left of the diagonal block; may be null where there is nothing to solve with
  i64 e_ld, e_stride;
  T* x;                // row `row` and column 0 of the right-hand sides
  i64 x_ld, x_stride, batch, still, columns;
  i64 skip;            // where the solved columns begin
  const Moves* moves;  // may be null
  int row, width;      // of x: its row number among those that moves name; rows of the block
  int adjoint, forward, unit;
};

// x <- E^-1 x for the tile, STEP rows at a time; E is lower (forward) or upper. Rows past the width are zeros.
LW_INLINE void substitute(const T* e, const T* inverse, T* x, int width, bool forward, bool unit) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, last = (width - 1) / STEP * STEP;
  for (int step = 0; step <= last; step += STEP) {
    const int j = forward ? step : last - step;
    T y[STEP];
    if (warp == 0) {
#pragma unroll
      for (int q = 0; q < STEP; q++) y[q] = x[(j + q) * COLUMNS + lane];
      if (forward) {
#pragma unroll
        for (int q = 0; q < STEP; q++) {
#pragma unroll
          for (int p = 0; p < q; p++) y[q] = subtract_plain(y[q], e[(j + q) * E_PITCH + j + p], y[p]);
          if (!unit) y[q] = divide(y[q], e[(j + q) * (E_PITCH + 1)], inverse[j + q], true);
        }
      } else {
#pragma unroll
        for (int q = STEP - 1; q >= 0; q--) {
#pragma unroll
          for (int p = STEP - 1; p > q; p--) y[q] = subtract_plain(y[q], e[(j + q) * E_PITCH + j + p], y[p]);
          if (!unit) y[q] = divide(y[q], e[(j + q) * (E_PITCH + 1)], inverse[j + q], true);
        }
      }
#pragma unroll
      for (int q = 0; q < STEP; q++) x[(j + q) * COLUMNS + lane] = select(j + q < width, y[q], zero());
    }
    __syncthreads();
#pragma unroll
    for (int q = 0; q < STEP; q++) y[q] = x[(j + q) * COLUMNS + lane];
    const int first = forward ? j + STEP : 0, end = forward ? width : j;
    for (int i = first + warp; i < end; i += WARPS) {
      T sum = x[i * COLUMNS + lane], line[STEP];
      load_registers<16>(line, (const char*)(e + i * E_PITCH + j));
#pragma unroll
      for (int q = 0; q < STEP; q++) sum = subtract_plain(sum, line[q], y[q]);
      x[i * COLUMNS + lane] = sum;
    }
    __syncthreads();
  }
}

// A block of threads for each tile: rows of x are exchanged, then X <- E^-1 X for `width` rows of it.
extern "C" __global__ void __launch_bounds__(LW_THREADS) block_solve(Solve call) {
  T* e = (T*)memory;
  T* x = e + BLOCK * E_PITCH;
  T* inverse = x + BLOCK * COLUMNS;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, width = call.width, rounded = (width + STEP - 1) / STEP * STEP;
  const i64 still = (call.still + COLUMNS - 1) / COLUMNS, tiles = still + (call.columns + COLUMNS - 1) / COLUMNS;
  for (i64 item = blockIdx.x; item < tiles * call.batch; item += gridDim.x) {
    const i64 m = item / tiles, tile = item - m * tiles;
    const bool solves = tile >= still;
    const i64 column = solves ? call.skip + (tile - still) * COLUMNS + lane : tile * COLUMNS + lane;
    const bool inside = solves ? column < call.skip + call.columns : column < call.still;
    T* own = call.x + m * call.x_stride + (inside ? column : 0);
    const Moves* moves = call.moves ? call.moves + m : nullptr;
    for (int i = warp; i < rounded; i += WARPS) {
      const bool there = inside && i < width;
      const int from = moves && i < width ? moves->source[i] - call.row : i;
      copy_element(x + i * COLUMNS + lane, own + (there ? from : 0) * call.x_ld, there);
    }
    if (solves) {
      const T* block = call.e + m * call.e_stride;
      for (int at = threadIdx.x; at < rounded * rounded; at += LW_THREADS) {
        const int i = at / rounded, j = at % rounded;
        const bool there = i < width && j < width;
        if (!call.adjoint)
          copy_element(e + i * E_PITCH + j, block + (there ? i * call.e_ld + j : 0), there);
        else
          e[j * E_PITCH + i] = there ? conjugate(load_element(block + i * call.e_ld + j)) : zero();
      }
    }
    finish_copies();
    __syncthreads();
    if (solves && threadIdx.x < rounded)
      inverse[threadIdx.x] = (int)threadIdx.x < width ? invert(e[threadIdx.x * (E_PITCH + 1)]) : zero();
    // what was in the way; all that was moved up has been read
    for (int i = warp; moves && i < moves->count; i += WARPS)
      if (inside) store_element(own + (moves->target[i] - call.row) * call.x_ld, load_element(own + (moves->old[i] - call.row) * call.x_ld));
    __syncthreads();
    if (solves) substitute(e, inverse, x, width, call.forward, call.unit);
    for (int i = warp; i < width; i += WARPS)
      if (inside) store_element(own + i * call.x_ld, x[i * COLUMNS + lane]);
    __syncthreads();
  }
}

// ---- copies --------------------------------------------------------------------------------------------------------

constexpr int FROM_ROWS = 1, TO_ROWS = 2, FROM_COLUMNS = 3, IDENTITY = 4;  // 0: each stays in its place
struct Copy {
  const T* from;
  i64 from_ld, from_stride;
  T* to;
  i64 to_ld, to_stride, batch;
  const int *places, *bad;  // places: n for each matrix; bad: NaN for a matrix where it is not 0; both may be null
  int n, columns, kind;
};

// to <- from: n rows of `columns` elements, or with rows or columns in other places. A warp for each row.
extern "C" __global__ void __launch_bounds__(LW_THREADS) block_copy(Copy call) {
  const i64 warps = (i64)gridDim.x * WARPS;
  for (i64 row = (i64)blockIdx.x * WARPS + threadIdx.x / 32; row < call.batch * call.n; row += warps) {
    const i64 m = row / call.n, i = row - m * call.n;
    const int* places = call.places + m * call.n;
    const bool failed = call.bad && call.bad[m];
    i64 source = i, target = i;
    if (call.kind == FROM_ROWS || call.kind == TO_ROWS) {
      const unsigned place = places[i];
      (call.kind == FROM_ROWS ? source : target) = place < (unsigned)call.n ? place : 0;
    }
    const T* from = call.from + m * call.from_stride + source * call.from_ld;
    T* to = call.to + m * call.to_stride + target * call.to_ld;
    if (from == to && !failed) continue;
#pragma unroll 4
    for (int j = threadIdx.x % 32; j < call.columns; j += 32) {
      const int column = call.kind == FROM_COLUMNS ? places[j] : j;
      store_element(to + j, call.kind == IDENTITY ? from_real(Real(i == j)) : failed ? nan_element() : load_element(from + column));
    }
  }
}

// place[order[i]] <- i for each matrix
extern "C" __global__ void __launch_bounds__(LW_THREADS) block_order(const int* order, int* place, i64 batch, int n) {
  const i64 at = (i64)blockIdx.x * LW_THREADS + threadIdx.x;
  if (at < batch * n) place[at / n * n + order[at]] = (int)(at % n);
}

// ---- diagonals -----------------------------------------------------------------------------------------------------

// bad <- the first element of a diagonal that cannot be divided by, from 1 on, or 0. A warp for each matrix.
extern "C" __global__ void __launch_bounds__(LW_THREADS) block_check(const T* a, i64 ld, i64 stride, int* bad, i64 batch, int n, int unit) {
  const i64 m = (i64)blockIdx.x * WARPS + threadIdx.x / 32;
  if (m >= batch) return;
  int first = 0;
  for (int i0 = 0; i0 < n && !unit && !first; i0 += 32) {
    const int i = i0 + threadIdx.x % 32;
    const unsigned wrong = ballot(i < n && !is_divisor(load_element(a + m * stride + min(i, n - 1) * (ld + 1))));
    if (wrong) first = i0 + __ffs(wrong);
  }
  if (threadIdx.x % 32 == 0) bad[m] = first;
}

struct Diagonal {
  const T* a;  // L U, or a Cholesky factor
  i64 ld, stride, batch;
  const int *order, *failed;  // of the rows, null for a Cholesky factor; what failed in each matrix
  T* value;
  Real* logabs;  // null: value takes the determinant itself, else its sign
  int *info, n;  // info: null where `failed` is it
};

// A block of threads for each determinant.
extern "C" __global__ void __launch_bounds__(LW_THREADS) block_determinant(Diagonal call) {
  int* order = (int*)memory;
  const int n = call.n;
  for (i64 m = blockIdx.x; m < call.batch; m += gridDim.x) {
    const bool positive = !call.order, failed = call.failed[m];
    bool odd = false;
    if (!positive) {
      for (int i = threadIdx.x; i < n; i += LW_THREADS) order[i] = call.order[m * n + i];
      __syncthreads();
      odd = is_odd(order, n);
    }
    if (threadIdx.x < 32)
      store_diagonal_product(call.value + m, call.logabs ? call.logabs + m : nullptr, n, positive, odd, failed,
                             [&](int i) { return load_element(call.a + m * call.stride + i * (call.ld + 1)); });
    if (threadIdx.x == 0 && call.info) call.info[m] = failed;
    __syncthreads();
  }
}
