// Matrices on their way into and out of a QR with reflections panel by panel: a working copy with rows of `ld` elements, which is
// scaled by a power of two where its squares could leave the range.
//
// A block has some rows of one matrix.
#include "block.cuh"
#include "qr_state.cuh"

struct Part {
  i64 which;
  int first, rows;
};

// The rows of this block: item number `item` of those with `each` rows.
LW_INLINE Part part_of(i64 item, int rows, int each) {
  const i64 parts = (rows + each - 1) / each, which = item / parts;
  const int first = (int)(item - which * parts) * each;
  return Part{which, first, min(each, rows - first)};
}

// apart: a state for each column, not for each matrix
extern "C" __global__ void __launch_bounds__(LW_THREADS)
    qr_measure(const T* a, int* state, i64 batch, int rows, int columns, int each, int apart) {
  for (i64 item = blockIdx.x; item < batch * ((rows + each - 1) / each); item += gridDim.x) {
    const Part part = part_of(item, rows, each);
    const T* from = a + (part.which * rows + part.first) * columns;
    if (apart) {
      for (Walk w(columns, threadIdx.x, LW_THREADS); w.line < part.rows; w.next()) {
        const T x = load_element(from + (i64)w.line * columns + w.place);
        const int exponent = !is_finite(x) ? NOT_FINITE : magnitude(x) > 0 ? ilogb(magnitude(x)) : -2 * MAX_STATE;
        int* own = state + part.which * columns + w.place;
        if (exponent > *(volatile int*)own) atomicMax(own, exponent);  // few elements are larger than all before them
      }
      continue;
    }
    Real largest = 0;
    bool good = true;
    for (int i = threadIdx.x; i < part.rows * columns; i += LW_THREADS) {
      const T x = load_element(from + i);
      good = good && is_finite(x);
      largest = fmax(largest, magnitude(x));
    }
    largest = max_lanes<32>(largest);
    good = !any_lane(!good);
    if (threadIdx.x % 32 == 0 && (!good || largest > 0)) atomicMax(state + part.which, good ? ilogb(largest) : NOT_FINITE);
  }
}

// to (rows x columns, rows of `ld` elements) <- the scaled matrix, or its adjoint, with zeros up to column `end`. A matrix that
// is not finite is NaN altogether with `spoils`.
extern "C" __global__ void __launch_bounds__(LW_THREADS)
    qr_take(const T* a, T* to, const int* state, i64 batch, i64 stride, int rows, int columns, int end, int ld, int each,
            int turned, int spoils, int apart) {
  for (i64 item = blockIdx.x; item < batch * ((rows + each - 1) / each); item += gridDim.x) {
    const Part part = part_of(item, rows, each);
    const T* from = a + part.which * rows * columns;
    T* out = to + part.which * stride;
    const int* own = state + part.which * (apart ? columns : 1);
    const bool good = !spoils || *own < NOT_FINITE;
    Real by = ldexp(Real(1), -exponent_of(*own));
    for (Walk w(end, threadIdx.x, LW_THREADS); w.line < part.rows; w.next()) {
      const int i = part.first + w.line;
      T x = zero();
      if (w.place < columns) {
        if (apart) by = ldexp(Real(1), -exponent_of(own[w.place]));
        x = turned ? conjugate(load_element(from + (i64)w.place * rows + i)) : load_element(from + (i64)i * columns + w.place);
        x = good ? scale(x, by) : filled(not_a_number());
      }
      out[(i64)i * ld + w.place] = x;
    }
  }
}

// r (rows x columns) <- the upper triangle of the working copy
extern "C" __global__ void __launch_bounds__(LW_THREADS)
    qr_give_r(const T* a, T* r, const int* state, i64 batch, i64 stride, int rows, int columns, int ld, int each) {
  for (i64 item = blockIdx.x; item < batch * ((rows + each - 1) / each); item += gridDim.x) {
    const Part part = part_of(item, rows, each);
    const T* from = a + part.which * stride;
    T* out = r + part.which * rows * columns;
    const bool good = state[part.which] < NOT_FINITE;
    const Real up = ldexp(Real(1), exponent_of(state[part.which]));
    for (Walk w(columns, threadIdx.x, LW_THREADS); w.line < part.rows; w.next()) {
      const int i = part.first + w.line;
      T x = i > w.place ? zero() : scale(from[(i64)min(i, w.place) * ld + w.place], up);
      store_element(out + (i64)i * columns + w.place, good ? x : filled(not_a_number()));
    }
  }
}

// h (columns x rows) <- the transpose of the working copy: R scaled back, the vectors as they are
extern "C" __global__ void __launch_bounds__(LW_THREADS)
    qr_give_raw(const T* a, T* h, const int* state, i64 batch, i64 stride, int rows, int columns, int ld) {
  T* tile = (T*)memory;  // 32 x 33
  const int across_rows = (rows + 31) / 32, across_columns = (columns + 31) / 32;
  const i64 tiles = (i64)across_rows * across_columns;
  for (i64 item = blockIdx.x; item < batch * tiles; item += gridDim.x) {
    const i64 which = item / tiles;
    const int place = (int)(item - which * tiles), i0 = place / across_columns * 32, j0 = place % across_columns * 32;
    const bool good = state[which] < NOT_FINITE;
    const Real up = ldexp(Real(1), exponent_of(state[which]));
    const T* from = a + which * stride;
    T* out = h + which * rows * columns;
    for (int e = threadIdx.x; e < 1024; e += LW_THREADS) {
      const int i = i0 + e / 32, j = j0 + e % 32;
      if (i < rows && j < columns) tile[e / 32 * 33 + e % 32] = scale(from[(i64)i * ld + j], i <= j ? up : Real(1));
    }
    __syncthreads();
    for (int e = threadIdx.x; e < 1024; e += LW_THREADS) {
      const int i = i0 + e % 32, j = j0 + e / 32;
      if (i < rows && j < columns)
        store_element(out + (i64)j * rows + i, good ? tile[e % 32 * 33 + e / 32] : filled(not_a_number()));
    }
    __syncthreads();
  }
}

extern "C" __global__ void __launch_bounds__(LW_THREADS) qr_identity(T* q, i64 batch, int rows, int columns, int each) {
  for (i64 item = blockIdx.x; item < batch * ((rows + each - 1) / each); item += gridDim.x) {
    const Part part = part_of(item, rows, each);
    T* out = q + part.which * rows * columns;
    for (Walk w(columns, threadIdx.x, LW_THREADS); w.line < part.rows; w.next())
      store_element(out + (i64)(part.first + w.line) * columns + w.place, from_real(Real(part.first + w.line == w.place)));
  }
}
