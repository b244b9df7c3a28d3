#include "gpu/blocked.h"

#include <algorithm>
#include <string>

#include "gpu/cholesky.h"
#include "gpu/cublas_dense.h"
#include "gpu/spectrum.h"
#include "gpu/vendor.h"
#include "operations.h"

namespace lapwing::cuda {
namespace {

constexpr int64_t BLOCK = 64;  // columns between two updates of the whole matrix: blocked.cuh
constexpr int64_t COLUMNS = 32;  // of a tile of right-hand sides: blocked.cu
constexpr int64_t FEW = 4;     // right-hand sides that are solved in one pass over the factor
constexpr int64_t STRIPE = 256;  // rows of a product of which only a triangle is of use
constexpr size_t MOST_SCRATCH = size_t(4) << 30;  // bytes; batches that need more are cut
constexpr int64_t MOST_TOGETHER = 65535;          // the library's limit for batches
constexpr int THREADS = 256;   // of the kernels in blocked.cu

// As in blocked.cuh, blocked_panel.cu, blocked.cu and blocked_few.cu.
struct Moves {
  int32_t source[BLOCK], target[BLOCK], old[BLOCK], count;
};
struct PanelCall {
  void* a;
  int64_t ld, stride, batch;
  int32_t *order, *from, *bad, *flags;
  Moves *inner, *outer;
  int32_t n, first, column, width, last, threads;
};
struct SolveCall {
  const void* e;
  int64_t e_ld, e_stride;
  void* x;
  int64_t x_ld, x_stride, batch, still, columns, skip;
  const Moves* moves;
  int32_t row, width, adjoint, forward, unit;
};
struct CopyCall {
  const void* from;
  int64_t from_ld, from_stride;
  void* to;
  int64_t to_ld, to_stride, batch;
  const int32_t *places, *bad;
  int32_t n, columns, kind;
};
struct DiagonalCall {
  const void* a;
  int64_t ld, stride, batch;
  const int32_t *order, *failed;
  void *value, *logabs;
  int32_t *info, n;
};
struct FewCall {
  const void* e;
  int64_t e_ld, e_stride;
  const void* b;
  int64_t b_ld, b_stride;
  void* x;
  int64_t x_ld, x_stride, batch;
  const int32_t *before, *after, *bad;
  int32_t n, k, forward, unit;
};
enum CopyKind { PLAIN, FROM_ROWS, TO_ROWS, FROM_COLUMNS, IDENTITY };

// Row-major matrices of one batch.
struct Matrices {
  void* at = nullptr;
  int64_t ld = 0, stride = 0;  // elements
};

struct Triangle {
  Matrices a;
  bool upper = false, adjoint = false, unit = false;
  bool forward() const { return upper == adjoint; }  // the adjoint of an upper triangle is a lower one
};

bool is_positive(const Frame& frame) { return frame.op != LU && frame.flags & POS; }
bool is_determinant(const Frame& frame) { return frame.op == SLOGDET || frame.op == DET; }
bool factors(const Frame& frame) { return frame.op == SOLVE || frame.op == INVERSE || frame.op == LU || is_determinant(frame); }
int64_t sides(const Frame& frame) { return OPERATIONS[frame.op].empty == 2 ? frame.size[2] : 0; }

// ---- how a panel is spread over threads: blocked_panel.cu -----------------------------------------------------------

struct PanelShape {
  int rows, width, threads;  // of a thread; columns
  size_t shared;
};

// As many columns as registers and shared memory hold of `left` rows.
PanelShape panel_shape(int32_t dtype, int64_t left, const Properties& gpu) {
  constexpr int64_t WARPS = 16, KEY = 8;
  PanelShape shape{};
  shape.rows = left <= 512 ? 1 : left <= 1024 ? 2 : left <= 2048 ? 4 : 8;
  shape.threads = int(std::max<int64_t>(32, ((left + shape.rows - 1) / shape.rows + 31) / 32 * 32));
  // at most 32 columns, which are a warp's lanes; 64 registers of a thread
  const int64_t most = shape.rows > 4 ? 32 : shape.rows > 2 ? 64 : shape.rows > 1 || size_of(dtype) == 4 ? 128 : 256;
  for (int64_t bytes = most; bytes >= 32; bytes /= 2) {
    shape.width = int(bytes / int64_t(size_of(dtype)));
    shape.shared = size_t(left * (bytes + 16 + 4) + shape.width * bytes + 2 * WARPS * (bytes + KEY + 4) + 8 * shape.width + 16);
    if (int64_t(shape.shared) <= gpu.shared_per_block) return shape;
  }
  shape.width = 0;
  return shape;
}

size_t block_bytes(int32_t dtype) {
  const int64_t element = int64_t(size_of(dtype));
  return size_t((BLOCK * (BLOCK + 16 / element) + BLOCK * COLUMNS + BLOCK) * element);
}

struct FewShape {
  int columns, threads;
  size_t shared;
};

FewShape few_shape(int32_t dtype, int64_t n, int64_t k, bool adjoint) {
  constexpr int64_t ROWS = 32;
  const int64_t summers = n <= 512 ? 8 : 16;
  FewShape shape{};
  shape.columns = k == 1 ? 1 : int(FEW);
  shape.threads = int(32 * (summers + 1));
  const int64_t elements = n * shape.columns + 2 * (adjoint ? summers : 1) * ROWS * shape.columns + 4 * ROWS * (ROWS + 1);
  shape.shared = size_t(elements) * size_of(dtype);
  return shape;
}

// ---- scratch memory -------------------------------------------------------------------------------------------------

// Where each thing stands in the block of memory of one part of the batch.
struct Places {
  size_t matrix = 0, right = 0, order = 0, from = 0, bad = 0, flags = 0, inner = 0, outer = 0, cholesky = 0, total = 0;
  int64_t matrix_ld = 0, right_ld = 0;

  size_t take(size_t bytes) {
    const size_t start = total;
    total += (bytes + 255) / 256 * 256;
    return start;
  }
};

Frame cholesky_frame(const Frame& frame, void* factor, int32_t* info) {
  Frame cholesky = frame;
  cholesky.op = CHOLESKY;
  cholesky.buffer[1] = factor, cholesky.buffer[2] = info;
  return cholesky;
}

// Rows begin on multiples of 16 bytes.
int64_t rounded(const Frame& frame, int64_t columns) {
  const int64_t unit = 16 / int64_t(size_of(frame.dtype));
  return (columns + unit - 1) / unit * unit;
}

// LU is made where the result goes, if its rows are aligned to each other.
bool in_output(const Frame& frame) { return rounded(frame, frame.size[1]) == frame.size[1]; }

Places places_of(const Frame& frame) {
  const int64_t batch = frame.size[0], n = frame.size[1], k = sides(frame);
  const size_t element = size_of(frame.dtype);
  Places places;
  const auto matrices = [&](int64_t ld) { return places.take(size_t(batch * n * ld) * element); };
  const auto integers = [&](int64_t count) { return places.take(size_t(batch * count) * sizeof(int32_t)); };
  if (factors(frame) && is_positive(frame)) {
    if (frame.op == INVERSE)
      places.right_ld = rounded(frame, n), places.right = matrices(places.right_ld);
    else
      places.matrix_ld = n, places.matrix = matrices(n);
    places.cholesky = places.take(cholesky_tiled_scratch(frame));
    if (frame.op != INVERSE) places.bad = integers(1);
  } else if (factors(frame)) {
    places.matrix_ld = rounded(frame, n + k);
    if (frame.op != LU || !in_output(frame)) places.matrix = matrices(places.matrix_ld);
    if (frame.op == INVERSE) places.right_ld = places.matrix_ld, places.right = matrices(places.right_ld);
    places.order = integers(n), places.from = integers(n), places.bad = integers(1), places.flags = integers(1);
    places.inner = places.take(size_t(batch) * sizeof(Moves)), places.outer = places.take(size_t(batch) * sizeof(Moves));
  } else if (frame.op == LU_SOLVE) {
    places.right_ld = rounded(frame, k), places.right = matrices(places.right_ld);
  }
  return places;
}

// Matrices that are solved together.
int64_t part_size(const Frame& frame) {
  Frame one = frame;
  one.size[0] = 1;
  const int64_t together = std::max<int64_t>(1, int64_t(MOST_SCRATCH / std::max<size_t>(1, places_of(one).total)));
  return std::min({frame.size[0], together, MOST_TOGETHER});
}

// ---- one part of the batch ------------------------------------------------------------------------------------------

class Job {
 public:
  Job(Frame& frame, const Properties& gpu, char* block)
      : frame_(frame), gpu_(gpu), blas_(frame), block_(block), places_(places_of(frame)), batch_(frame.size[0]),
        n_(frame.size[1]), k_(sides(frame)), element_(int64_t(size_of(frame.dtype))) {}
  bool ok() const { return blas_.ok(); }

  int run() {
    switch (frame_.op) {
      case TRIANGULAR: return triangular();
      case SOLVE: return is_positive(frame_) ? solve_positive() : solve_general();
      case INVERSE: return is_positive(frame_) ? invert_positive() : invert_general();
      case LU: return lu();
      case LU_SOLVE: return solve_by_lu();
      case CHOLESKY_SOLVE: return solve_by_cholesky();
      default: return determinant();
    }
  }

 private:
  // ---- the operations

  int triangular() {
    const Triangle t{square(frame_.buffer[0]), bool(frame_.flags & UPPER), bool(frame_.flags & ADJOINT), bool(frame_.flags & UNIT)};
    auto* info = integers(frame_.buffer[3]);
    return check_diagonal(t, info) || solve_triangle(t, right_sides(1), right_sides(2), info);
  }

  // [A B] <- [L U, L^-1 P B], X <- U^-1 L^-1 P B
  int solve_general() {
    const Matrices w = scratch_matrix(), wide = at(w, 0, n_);
    auto* info = integers(frame_.buffer[3]);
    return copy(square(frame_.buffer[0]), w, n_) || copy(right_sides(1), wide, k_) ||
           factor(w, n_ + k_, false, order(), info, nullptr) || solve_triangle({w, true}, wide, right_sides(2), info);
  }

  // A = L L^H, or U^H U
  int solve_positive() {
    const Matrices factor = scratch_matrix();
    auto* info = integers(frame_.buffer[3]);
    return cholesky(factor.at, info) || solve_with_cholesky(factor, right_sides(1), right_sides(2), info);
  }

  // A^-1 = U^-1 L^-1 P
  int invert_general() {
    const Matrices w = scratch_matrix(), x{block_ + places_.right, places_.right_ld, places_.right_ld * n_};
    auto* info = integers(frame_.buffer[2]);
    return copy(square(frame_.buffer[0]), w, n_) || factor(w, n_, true, order(), info, nullptr) ||
           copy({}, x, n_, IDENTITY) || substitute({w, false, false, true}, x, n_, true) || substitute({w, true}, x, n_) ||
           invert_order() || copy(x, square(frame_.buffer[1]), n_, FROM_COLUMNS, from(), info);
  }

  // X <- L^-1, A^-1 <- X^H X, both triangles from the lower one
  int invert_positive() {
    const Matrices out = square(frame_.buffer[1]), x{block_ + places_.right, places_.right_ld, places_.right_ld * n_};
    const bool upper = frame_.flags & UPPER;
    auto* info = integers(frame_.buffer[2]);
    if (cholesky(out.at, info) || copy({}, x, n_, IDENTITY) || substitute({out, upper, upper}, x, n_, true)) return 1;
    for (int64_t i = 0; i < n_; i += STRIPE) {
      const int64_t rows = std::min(STRIPE, n_ - i);
      if (multiply(rows, i + rows, n_ - i, 1, at(x, i, i), true, at(x, i, 0), 0, at(out, i, 0))) return 1;
    }
    Frame lower = frame_;
    lower.flags &= ~uint32_t(UPPER);
    if (hermitian(lower, out.at, out.at, nullptr, batch_)) return fail_as(frame_, lower);
    return copy(out, out, n_, PLAIN, nullptr, info);
  }

  int lu() {
    const Matrices a = square(frame_.buffer[0]), out = square(frame_.buffer[1]), w = in_output(frame_) ? out : scratch_matrix();
    auto* info = integers(frame_.buffer[3]);
    return copy(a, w, n_) || factor(w, n_, true, integers(frame_.buffer[2]), info, nullptr) ||
           copy(w, out, n_, PLAIN, nullptr, info);
  }

  // P A = L U, A^H = U^H L^H P
  int solve_by_lu() {
    const bool adjoint = frame_.flags & ADJOINT;
    const Matrices lu = square(frame_.buffer[1]), b = right_sides(3), x = right_sides(4);
    const auto* rows = integers(frame_.buffer[2]);
    const Triangle lower{lu, false, adjoint, true}, upper{lu, true, adjoint};
    if (is_few(lower) && is_few(upper)) {
      if (adjoint) return solve_triangle(upper, b, x) || solve_triangle(lower, x, x, nullptr, nullptr, rows);
      return solve_triangle(lower, b, x, nullptr, rows) || solve_triangle(upper, x, x);
    }
    const Matrices right{block_ + places_.right, places_.right_ld, places_.right_ld * n_};
    if (adjoint)
      return copy(b, right, k_) || substitute(upper, right, k_) || substitute(lower, right, k_) ||
             copy(right, x, k_, TO_ROWS, rows);
    return copy(b, right, k_, FROM_ROWS, rows) || substitute(lower, right, k_) || substitute(upper, right, k_) ||
           copy(right, x, k_);
  }

  int solve_by_cholesky() { return solve_with_cholesky(square(frame_.buffer[1]), right_sides(2), right_sides(3), nullptr); }

  int determinant() {
    const Matrices w = scratch_matrix();
    auto* info = integers(frame_.buffer[frame_.op == SLOGDET ? 3 : 2]);
    auto *bad = integers(block_ + places_.bad), *flags = integers(block_ + places_.flags);
    const bool positive = is_positive(frame_);
    if (positive ? cholesky(w.at, info) : copy(square(frame_.buffer[0]), w, n_) || factor(w, n_, false, order(), bad, flags))
      return 1;
    const DiagonalCall call{w.at, w.ld, w.stride, batch_, positive ? nullptr : order(), positive ? info : flags, frame_.buffer[1],
                            frame_.op == SLOGDET ? frame_.buffer[2] : nullptr, positive ? nullptr : info, int32_t(n_)};
    return queue("block_determinant", batch_, size_t(n_) * sizeof(int32_t), {w.at, call.value}, call);
  }

  // ---- factors

  // The first n columns of a <- L and U of P A = L U, the others <- L^-1 P B. Columns of L that are finished take part in later
  // exchanges only where `left` is set.
  int factor(Matrices a, int64_t columns, bool left, int32_t* rows, int32_t* bad, int32_t* flags) {
    for (int64_t first = 0; first < n_; first += BLOCK) {
      const int64_t end = std::min(first + BLOCK, n_);
      for (int64_t j = first; j < end;) {
        const PanelShape shape = panel_shape(frame_.dtype, n_ - j, gpu_);
        const int64_t width = std::min<int64_t>(shape.width, end - j), next = j + width;
        if (panel(a, shape, first, j, width, next == end, rows, bad, flags)) return 1;
        // the other columns of the block, unless they are exchanged with the rest
        const bool whole = width == end - first;
        if (!whole && exchange(a, j, width, first, j - first, next - first, end - next, inner())) return 1;
        // A22 <- A22 - L21 U12
        if (next < end && multiply(n_ - next, end - next, width, -1, at(a, next, j), false, at(a, j, next), 1, at(a, next, next)))
          return 1;
        j = next;
      }
      if (exchange(a, first, end - first, 0, left ? first : 0, end, columns - end, outer())) return 1;
      if (end < n_ && multiply(n_ - end, columns - end, end - first, -1, at(a, end, first), false, at(a, first, end), 1, at(a, end, end)))
        return 1;
    }
    return 0;
  }

  // a[j:, j:j+width] <- L and U of these columns
  int panel(Matrices a, const PanelShape& shape, int64_t first, int64_t j, int64_t width, bool last, int32_t* rows, int32_t* bad,
            int32_t* flags) {
    const PanelCall call{a.at, a.ld, a.stride, batch_, rows, from(), bad, flags, inner(), outer(),
                         int32_t(n_), int32_t(first), int32_t(j), int32_t(width), int32_t(last), int32_t(shape.threads)};
    const std::string choice = options(frame_.dtype, false, access_width({a.at}, a.ld * element_),
                                       " -DLW_RT=%d -DLW_W=%d -DLW_RESIDENT=%d -DLW_THREADS=512 -DLW_LANES=32 -DLW_FACTOR=2",
                                       shape.rows, shape.width, shape.rows * shape.width * element_ <= 128 ? 2 : 1);
    return start(frame_, "blocked_panel.cu", choice, "lu_panel", grid_for(batch_), unsigned(shape.threads), shape.shared, call);
  }

  // The exchanges of the rows from j on in `still` columns from `base` on, and in `count` columns from base + skip on, of which
  // the first `width` rows are also solved with the unit triangle at (j, j)
  int exchange(Matrices a, int64_t j, int64_t width, int64_t base, int64_t still, int64_t skip, int64_t count, const Moves* moves) {
    if (still + count == 0) return 0;
    const SolveCall call{at(a, j, j).at, a.ld, a.stride, at(a, j, base).at, a.ld, a.stride, batch_, still, count, skip, moves,
                         int32_t(j), int32_t(width), 0, 1, 1};
    return solve_tiles(call);
  }

  // factor <- L with A = L L^H, or U with A = U^H U
  int cholesky(void* factor, int32_t* info) {
    Frame cholesky = cholesky_frame(frame_, factor, info);
    cholesky.scratch = {block_ + places_.cholesky, [](void* self, size_t) { return self; }};
    return cholesky_tiled(cholesky) ? fail_as(frame_, cholesky) : 0;
  }

  // ---- substitution

  // x <- A^-1 b from the Cholesky factor of A; NaN where bad is not 0
  int solve_with_cholesky(Matrices factor, Matrices b, Matrices x, const int32_t* bad) {
    const bool upper = frame_.flags & UPPER;
    const Triangle first{factor, upper, upper}, second{factor, upper, !upper};
    if (is_few(first) && is_few(second)) return solve_triangle(first, b, x) || solve_triangle(second, x, x, bad);
    return copy(b, x, k_) || substitute(first, x, k_) || substitute(second, x, k_) || copy(x, x, k_, PLAIN, nullptr, bad);
  }

  // x <- T^-1 b, NaN where bad is not 0; with few right-hand sides b in the order `before`, and x in the order `after`
  int solve_triangle(const Triangle& t, Matrices b, Matrices x, const int32_t* bad = nullptr, const int32_t* before = nullptr,
                     const int32_t* after = nullptr) {
    if (!is_few(t)) return copy(b, x, k_) || substitute(t, x, k_) || copy(x, x, k_, PLAIN, nullptr, bad);
    const FewShape shape = few_shape(frame_.dtype, n_, k_, t.adjoint);
    const FewCall call{t.a.at, t.a.ld, t.a.stride, b.at, b.ld, b.stride, x.at, x.ld, x.stride, batch_, before, after, bad,
                       int32_t(n_), int32_t(k_), t.forward(), t.unit};
    const std::string choice = options(frame_.dtype, false, access_width({t.a.at, b.at, x.at}, element_),
                                       " -DLW_READ=%d -DLW_K=%d -DLW_THREADS=%d -DLW_LANES=32 -DLW_FACTOR=2", int(t.adjoint),
                                       shape.columns, shape.threads);
    return start(frame_, "blocked_few.cu", choice, "few_solve", grid_for(batch_), unsigned(shape.threads), shape.shared, call);
  }

  // A few large matrices are read faster by products of the whole GPU than by one block of threads each: 8 of n = 2048 in
  // float64 took 1.22 ms in one block each. H200, 2026-11-16.
  bool is_few(const Triangle& t) const {
    return k_ <= FEW && (n_ <= 1024 || batch_ >= gpu_.multiprocessors) && int64_t(few_shape(frame_.dtype, n_, k_, t.adjoint).shared) <= gpu_.shared_per_block;
  }

  // x <- T^-1 x, `columns` columns. `identity`: x is the identity, of whose columns a lower T fills one block after the other.
  int substitute(const Triangle& t, Matrices x, int64_t columns, bool identity = false) {
    const int64_t last = (n_ - 1) / BLOCK * BLOCK;
    for (int64_t step = 0; step <= last; step += BLOCK) {
      const int64_t j = t.forward() ? step : last - step, width = std::min(BLOCK, n_ - j);
      const int64_t count = identity ? j + width : columns;
      // X1 <- T11^-1 X1
      const Matrices own = at(x, j, 0);
      const SolveCall call{at(t.a, j, j).at, t.a.ld, t.a.stride, own.at, x.ld, x.stride, batch_, 0, count, 0, nullptr,
                           int32_t(j), int32_t(width), t.adjoint, t.forward(), t.unit};
      if (solve_tiles(call)) return 1;
      // X2 <- X2 - T21 X1
      const int64_t first = t.forward() ? j + width : 0, rows = t.forward() ? n_ - first : j;
      const Matrices block = t.adjoint ? at(t.a, j, first) : at(t.a, first, j);
      if (rows && multiply(rows, count, width, -1, block, t.adjoint, own, 1, at(x, first, 0))) return 1;
    }
    return 0;
  }

  int solve_tiles(const SolveCall& call) {
    const int64_t tiles = (call.still + COLUMNS - 1) / COLUMNS + (call.columns + COLUMNS - 1) / COLUMNS;
    return queue("block_solve", tiles * batch_, block_bytes(frame_.dtype), {call.e, call.x}, call);
  }

  // ---- steps

  // C <- beta C + alpha op(A) B; C is rows x columns, op(A) has `depth` columns. To the column-major library all are transposed.
  int multiply(int64_t rows, int64_t columns, int64_t depth, double alpha, Matrices a, bool adjoint, Matrices b, double beta,
               Matrices c) {
    return blas_.gemm_many(vendor::OP_NONE, adjoint ? vendor::OP_ADJOINT : vendor::OP_NONE, columns, rows, depth, alpha,
                           {b.at, b.ld, b.stride}, {a.at, a.ld, a.stride}, beta, {c.at, c.ld, c.stride}, batch_);
  }

  int copy(Matrices from, Matrices to, int64_t columns, CopyKind kind = PLAIN, const int32_t* places = nullptr,
           const int32_t* bad = nullptr) {
    if (from.at == to.at && !bad) return 0;
    const CopyCall call{from.at, from.ld, from.stride, to.at, to.ld, to.stride, batch_, places, bad, int32_t(n_), int32_t(columns), kind};
    return queue("block_copy", (batch_ * n_ * 32 + THREADS - 1) / THREADS, 0, {from.at, to.at}, call);
  }

  // from <- the inverse of the permutation `order`
  int invert_order() {
    return queue("block_order", (batch_ * n_ + THREADS - 1) / THREADS, 0, {}, static_cast<const int32_t*>(order()), from(), batch_,
                 int32_t(n_));
  }

  int check_diagonal(const Triangle& t, int32_t* bad) {
    return queue("block_check", (batch_ * 32 + THREADS - 1) / THREADS, 0, {t.a.at}, t.a.at, t.a.ld, t.a.stride, bad, batch_,
                 int32_t(n_), int32_t(t.unit));
  }

  template <class... Arguments>
  int queue(const char* name, int64_t blocks, size_t shared, std::initializer_list<const void*> arrays, Arguments... arguments) {
    const std::string choice = options(frame_.dtype, false, access_width(arrays, element_),
                                       " -DLW_THREADS=%d -DLW_LANES=32 -DLW_FACTOR=2", THREADS);
    return start(frame_, "blocked.cu", choice, name, grid_for(blocks), THREADS, shared, arguments...);
  }

  // ---- places

  static int32_t* integers(void* place) { return static_cast<int32_t*>(place); }
  Matrices square(void* place) const { return {place, n_, n_ * n_}; }
  Matrices right_sides(int place) const { return {frame_.buffer[place], k_, n_ * k_}; }
  Matrices scratch_matrix() const { return {block_ + places_.matrix, places_.matrix_ld, places_.matrix_ld * n_}; }
  Matrices at(Matrices a, int64_t i, int64_t j) const {
    return {static_cast<char*>(a.at) + (i * a.ld + j) * element_, a.ld, a.stride};
  }
  int32_t* order() const { return integers(block_ + places_.order); }
  int32_t* from() const { return integers(block_ + places_.from); }
  Moves* inner() const { return reinterpret_cast<Moves*>(block_ + places_.inner); }
  Moves* outer() const { return reinterpret_cast<Moves*>(block_ + places_.outer); }

  Frame& frame_;
  const Properties& gpu_;
  cublas::Dense blas_;
  char* block_;
  Places places_;
  int64_t batch_, n_, k_, element_;
};

}  // namespace

bool blocked_fits(const Frame& frame, const Properties& gpu) {
  if (is_rectangular(frame.op) || frame.size[1] > BLOCKED_LARGEST) return false;
  if (int64_t(block_bytes(frame.dtype)) > gpu.shared_per_block) return false;
  if (!factors(frame)) return true;
  return is_positive(frame) ? cholesky_tiled_fits(frame, gpu) : panel_shape(frame.dtype, frame.size[1], gpu).width;
}

size_t blocked_scratch(const Frame& frame) { return places_of(part_of(frame, 0, part_size(frame))).total; }

int blocked(Frame& frame) {
  const Properties* gpu = properties(frame);
  if (!gpu) return 1;
  for (vendor::Library library : {vendor::blas, vendor::dense_blas})
    if (const char* reason = vendor::missing(library)) return fail(frame, "engine batched: %s", reason);
  const size_t bytes = blocked_scratch(frame);
  char* block = bytes ? scratch(frame, bytes) : nullptr;
  if (bytes && !block) return 1;
  const int64_t batch = frame.size[0], count = part_size(frame);
  for (int64_t first = 0; first < batch; first += count) {
    Frame part = part_of(frame, first, std::min(count, batch - first));
    Job job(part, *gpu, block);
    if (!job.ok() || job.run()) return fail_as(frame, part);
  }
  return 0;
}

}  // namespace lapwing::cuda
