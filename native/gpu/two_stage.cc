#include "gpu/two_stage.h"

#include <algorithm>
#include <cstdio>
#include <optional>

#include "gpu/cublas_dense.h"
#include "gpu/divide.h"
#include "gpu/reduce.h"
#include "gpu/vendor.h"

namespace lapwing::cuda {
namespace {

using vendor::OP_ADJOINT, vendor::OP_NONE;

constexpr int64_t BAND = 64;    // diagonals below the main one, and columns of a panel
constexpr int64_t SWEEPS = 32;  // whose reflections are applied together
constexpr int64_t RESERVED = 1024;   // of a block's shared memory, for the driver
constexpr int64_t PANEL_THREADS = 512, CHASE_THREADS = 256, BLOCK_THREADS = 128;
constexpr int64_t PACKED = 2 * (BAND + SWEEPS) * SWEEPS;  // elements of a block of reflections, as in two_stage_back.cu
constexpr int64_t MEASURE_ROWS = 64;  // that a block of tridiagonal_measure has
constexpr size_t ALIGNED = 256;

int64_t rounded(int64_t x, int64_t to) { return (x + to - 1) / to * to; }
int64_t divided(int64_t x, int64_t by) { return (x + by - 1) / by; }

// Columns whose updates are gathered, or whose reflections are applied together: wide enough for products that are not bound by memory.
int64_t gathered(int64_t n, int64_t most) { return std::clamp<int64_t>(rounded(n / 16, BAND), 2 * BAND, most); }

// Rows of a panel in a block's shared memory: few blocks, since each one adds up the sums of all.
int64_t panel_rows(int64_t n, const Properties& gpu) {
  return std::max(std::clamp<int64_t>(rounded(n / 64, 64), 64, 256), rounded(divided(n, gpu.multiprocessors), 64));
}

// Each warp has 16 vectors, and the windows of all nearly fill the shared memory.
int64_t back_threads(int32_t dtype) { return dtype == F64 ? 128 : 256; }

struct Shared {
  int64_t panel, chase, blocks, back;
  Shared(int32_t dtype, int64_t n, const Properties& gpu) {
    const int64_t element = int64_t(size_of(dtype)), high = BAND + SWEEPS, vectors = back_threads(dtype) / 2;
    const int64_t block = SWEEPS * (high + 4) + high * (SWEEPS + 4);
    panel = BAND * panel_rows(n, gpu) * element;
    chase = (3 * BAND + CHASE_THREADS / 32 * BAND + 4) * element;
    blocks = (SWEEPS * (high + 4) + 2 * SWEEPS * (SWEEPS + 1)) * element;
    back = (vectors * (high + 3 * 32 + 4) + 2 * block + vectors * (SWEEPS + 4)) * element;
  }
  int64_t most() const { return std::max({panel, chase, blocks, back}) + RESERVED; }
};

// As in the kernels.
struct PanelCall {
  void *a, *v, *tau, *sums, *heads, *gate;
  int32_t gate_from, m, pitch;
};
struct ChaseCall {
  void *band, *v, *tau, *progress;
  int32_t n, pitch, steps;
};
struct BackCall {
  const void* packed;
  void* z;
  int32_t n, count, pairs, steps;
};

// One matrix
class TwoStage {
 public:
  TwoStage(Frame& frame, const Properties& gpu)
      : frame_(frame), gpu_(gpu), n_(frame.size[1]), first_(frame.size[2]), count_(frame.size[3]), element_(int64_t(size_of(frame.dtype))),
        pitch_(rounded(n_, 32)), panels_(n_ > BAND + 1 ? (n_ - BAND - 2) / BAND + 1 : 0), gather_(gathered(n_, 1024)),
        wide_(gathered(n_, 512)), steps_(std::max<int64_t>(divided(n_ - 1, BAND), 1)), pairs_(divided(std::max<int64_t>(n_ - 2, 0), BAND)),
        vectors_(frame.op == EIGH), shared_(frame.dtype, n_, gpu) {
    const int64_t square = n_ * pitch_ * element_;
    state_ = take(4);  // zeros at first, up to and with the progress
    gate_ = take(4);
    reduced_ = take(4);
    progress_ = take(n_ * 4);
    divided_ = take(4);
    scaled_ = take(4);
    up_ = take(element_);
    d_ = take(n_ * element_);
    e_ = take(n_ * element_);
    w_ = take(n_ * element_);
    tau_ = take(BAND * element_);
    sums_ = take(2 * BAND * (divided(n_, panel_rows(n_, gpu)) + 1) * element_);
    small_ = take(std::max(gather_, wide_) * BAND * element_);
    factor_ = take(panels_ * BAND * BAND * element_);
    band_ = take(n_ * 2 * BAND * element_);
    v_ = take(square);
    if (vectors_) {
      chased_ = take(square);
      chased_tau_ = take(n_ * steps_ * element_);
      z_ = take(n_ * n_ * element_);
    }
    // one after the other in the same place: the first stage, divide and conquer, the blocks of the second stage, those of the first
    const size_t shared_place = total_;
    a_ = take(square);
    y_ = take(BAND * pitch_ * element_);
    x_ = take(gather_ * pitch_ * element_);
    if (!vectors_) return;
    const size_t end = total_;
    const auto other = [&](int64_t bytes) {
      total_ = shared_place;
      const size_t place = take(bytes);
      return place;
    };
    size_t most = end;
    divide_ = other(divide_bytes(1, n_, frame.dtype)), most = std::max(most, total_);
    packed_ = other(2 * (pairs_ * steps_ - pairs_ * (pairs_ - 1) / 2) * PACKED * element_), most = std::max(most, total_);
    wide_y_ = other(wide_ * pitch_ * element_), product_ = take(wide_ * count_ * element_), most = std::max(most, total_);
    total_ = most;
  }

  size_t bytes() const { return total_ + ALIGNED; }  // to align the start

  int place(char* block) {
    block_ = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(block) + ALIGNED - 1) / ALIGNED * ALIGNED);
    blas_.emplace(frame_);
    return !blas_->ok();
  }

  int solve(const void* a, void* w, void* v, int32_t* info) {
    if (take_triangle(a) || to_band() || to_tridiagonal()) return 1;
    if (!vectors_) return tridiagonal_values(frame_, gpu_, spectrum(), w, info);
    return divide(frame_, 1, n_, frame_.dtype, at(d_), at(e_), at(w_), at(z_), at(divide_), at<int32_t>(divided_), gpu_.shared_per_block) ||
           back_to_band() || back_to_full() || tridiagonal_vectors(frame_, spectrum(), at(w_), at(z_), at<int32_t>(divided_), w, v, info, BAND);
  }

 private:
  template <class T = char>
  T* at(size_t offset) const {
    return reinterpret_cast<T*>(block_ + offset);
  }
  // Element (i, j) of a matrix with columns of pitch_ elements
  char* at(size_t offset, int64_t i, int64_t j) const { return block_ + offset + (i + j * pitch_) * element_; }
  size_t take(int64_t bytes) {
    const size_t start = total_;
    total_ += size_t(rounded(bytes, int64_t(ALIGNED)));
    return start;
  }
  Spectrum spectrum() const { return {1, n_, first_, count_, at(d_), at(e_), at(up_), at<int32_t>(reduced_)}; }
  std::string choices(const char* more = "", int64_t value = 0) const {
    char text[64];
    std::snprintf(text, sizeof text, more, int(value));
    return options(frame_.dtype, false, 16, " -DLW_BAND=%d%s", int(BAND), text);
  }
  int gemm(int a_op, int b_op, int64_t m, int64_t n, int64_t k, double alpha, const char* a, int64_t lda, const char* b, int64_t ldb,
           double beta, char* c, int64_t ldc) const {
    return m && n && k ? blas_->gemm(a_op, b_op, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc) : 0;
  }

  // a <- the lower triangle, scaled, column by column
  int take_triangle(const void* a) {
    const std::string text = options(frame_.dtype, frame_.flags & UPPER, access_width({a}));
    return fill(frame_, at(state_), 0, divided_ - state_) ||
           start(frame_, "tridiagonal_measure.cu", text, "tridiagonal_measure", grid_for(divided(n_, MEASURE_ROWS)), 256, 0, a,
                 at<int32_t>(state_), int64_t(1), int32_t(n_), int32_t(MEASURE_ROWS)) ||
           start(frame_, "tridiagonal_measure.cu", text, "tridiagonal_copy", grid_for(divided(pitch_, 32) * divided(n_, 32)), 256,
                 size_t(32 * 33 * element_), a, at<int32_t>(state_), at(a_), at(up_), at<int32_t>(scaled_), int32_t(n_),
                 int32_t(pitch_));
  }

  // A = Q1 B Q1^T. The matrix stays as it was when the gathering of columns began; A - V W^T - W V^T is what it should be.
  int to_band() {
    int64_t from = 0, passed = 0;  // the first column that is gathered; what the gate has counted
    if (fill(frame_, at(v_), 0, size_t(n_ * pitch_ * element_)) || (panels_ && mirror(0))) return 1;
    for (int64_t panel = 0; panel < panels_; panel++) {
      const int64_t c = panel * BAND, k = c - from, r = c + BAND, m = n_ - r;
      char *v = at(v_, r, c), *t = at(factor_) + panel * BAND * BAND * element_, *y = at(y_), *w = at(x_, r, k), *s = at(small_);
      // the panel and its part of the diagonal: A <- A - V W^T - W V^T
      if (gemm(OP_NONE, OP_ADJOINT, n_ - c, BAND, k, -1, at(v_, c, from), pitch_, at(x_, c, 0), pitch_, 1, at(a_, c, c), pitch_) ||
          gemm(OP_NONE, OP_ADJOINT, n_ - c, BAND, k, -1, at(x_, c, 0), pitch_, at(v_, c, from), pitch_, 1, at(a_, c, c), pitch_) ||
          factor(c, passed))
        return 1;
      // Y = V T, where I - V T V^T is the product of the panel's reflections
      if (gemm(OP_ADJOINT, OP_NONE, BAND, BAND, m, 1, v, pitch_, v, pitch_, 0, s, BAND) || triangle(s, t) ||
          gemm(OP_NONE, OP_NONE, m, BAND, BAND, 1, v, pitch_, t, BAND, 0, y, pitch_))
        return 1;
      // W = (A - V W^T - W V^T) Y
      if (gemm(OP_NONE, OP_NONE, m, BAND, m, 1, at(a_, r, r), pitch_, y, pitch_, 0, w, pitch_) ||
          gemm(OP_ADJOINT, OP_NONE, k, BAND, m, 1, at(x_, r, 0), pitch_, y, pitch_, 0, s, gather_) ||
          gemm(OP_NONE, OP_NONE, m, BAND, k, -1, at(v_, r, from), pitch_, s, gather_, 1, w, pitch_) ||
          gemm(OP_ADJOINT, OP_NONE, k, BAND, m, 1, at(v_, r, from), pitch_, y, pitch_, 0, s, gather_) ||
          gemm(OP_NONE, OP_NONE, m, BAND, k, -1, at(x_, r, 0), pitch_, s, gather_, 1, w, pitch_))
        return 1;
      // W <- W - V (Y^T W) / 2
      if (gemm(OP_ADJOINT, OP_NONE, BAND, BAND, m, 1, y, pitch_, w, pitch_, 0, s, BAND) ||
          gemm(OP_NONE, OP_NONE, m, BAND, BAND, -0.5, v, pitch_, s, BAND, 1, w, pitch_))
        return 1;
      const bool last = panel + 1 == panels_;
      if (!last && r - from < gather_) continue;
      if (update(from, r) || (!last && mirror(r))) return 1;
      from = r;
    }
    return start(frame_, "two_stage_panel.cu", panel_choices(), "two_stage_band", grid_for(divided(n_ * 2 * BAND, 1024)), 256, 0, at(a_),
                 at(band_), at<int32_t>(scaled_), at<int32_t>(reduced_), int32_t(n_), int32_t(pitch_));
  }

  std::string panel_choices() const { return choices(" -DLW_ROWS=%d", panel_rows(n_, gpu_)); }

  // V and R of the panel from column c on
  int factor(int64_t c, int64_t& passed) {
    const int64_t r = c + BAND, m = n_ - r, blocks = divided(m, panel_rows(n_, gpu_));
    char* sums = at(sums_);
    const PanelCall call{at(a_, r, c),  at(v_, r, c), at(tau_), sums, sums + 2 * BAND * blocks * element_, at(gate_),
                         int32_t(passed), int32_t(m), int32_t(pitch_)};
    passed += blocks * std::min(BAND, m);
    return start_together(frame_, "two_stage_panel.cu", panel_choices(), "two_stage_panel", grid_for(blocks), unsigned(PANEL_THREADS),
                          size_t(shared_.panel), call);
  }

  // T from V^T V and the factors of the panel
  int triangle(const char* gram, char* t) {
    return start(frame_, "tridiagonal_back.cu", options(frame_.dtype, false, 16, " -DLW_WIDTH=%d", int(BAND)), "tridiagonal_factor",
                 grid_for(1), unsigned(4 * BAND), size_t(BAND * (BAND + 2) * element_), static_cast<const void*>(gram),
                 static_cast<const void*>(at(tau_)), static_cast<void*>(t), int64_t(1));
  }

  // The lower triangle of A <- A - V W^T - W V^T right of the gathered columns, a block of columns after the other
  int update(int64_t from, int64_t to) {
    const int64_t step = std::max<int64_t>(512, rounded(divided(n_ - to, 6), 64)), k = to - from;
    for (int64_t begin = to; begin < n_; begin += step) {
      const int64_t rows = n_ - begin, columns = std::min(step, rows);
      if (gemm(OP_NONE, OP_ADJOINT, rows, columns, k, -1, at(v_, begin, from), pitch_, at(x_, begin, 0), pitch_, 1, at(a_, begin, begin),
               pitch_) ||
          gemm(OP_NONE, OP_ADJOINT, rows, columns, k, -1, at(x_, begin, 0), pitch_, at(v_, begin, from), pitch_, 1, at(a_, begin, begin),
               pitch_))
        return 1;
    }
    return 0;
  }

  // The upper triangle as the lower one, from row and column `first` on: products read both
  int mirror(int64_t first) {
    const int64_t tiles = divided(n_ - first, 32);
    return start(frame_, "two_stage_panel.cu", panel_choices(), "two_stage_mirror", grid_for(tiles * (tiles + 1) / 2), 256,
                 size_t(32 * 33 * element_), at(a_), int32_t(n_), int32_t(pitch_), int32_t(first));
  }

  // B = Q2 T Q2^T
  int to_tridiagonal() {
    const ChaseCall call{at(band_), vectors_ ? at(chased_) : nullptr, vectors_ ? at(chased_tau_) : nullptr, at(progress_),
                         int32_t(n_), int32_t(pitch_), int32_t(steps_)};
    // as many sweeps as can be under way
    const int64_t blocks = std::min<int64_t>(gpu_.multiprocessors, n_ / (2 * BAND) + 2);
    return start_together(frame_, "two_stage_chase.cu", choices(), "two_stage_chase", grid_for(blocks), unsigned(CHASE_THREADS),
                          size_t(shared_.chase), call) ||
           start(frame_, "two_stage_chase.cu", choices(), "two_stage_diagonals", grid_for(divided(n_, 256)), 256, 0, at(band_), at(d_),
                 at(e_), int32_t(n_));
  }

  // Z <- Q2 Z, of the vectors that are asked for
  int back_to_band() {
    if (!pairs_) return 0;
    const int64_t threads = back_threads(frame_.dtype);
    const std::string text = choices(" -DLW_THREADS=%d", threads);
    const BackCall call{at(packed_), at(z_) + first_ * n_ * element_, int32_t(n_), int32_t(count_), int32_t(pairs_), int32_t(steps_)};
    return start(frame_, "two_stage_back.cu", text, "two_stage_blocks", Grid{unsigned(steps_), unsigned(2 * pairs_)},
                 unsigned(BLOCK_THREADS), size_t(shared_.blocks), at(chased_), at(chased_tau_), at(packed_), int32_t(n_), int32_t(pitch_),
                 int32_t(steps_)) ||
           start(frame_, "two_stage_back.cu", text, "two_stage_back", grid_for(divided(count_, threads / 2)), unsigned(threads),
                 size_t(shared_.back), call);
  }

  // Z <- Q1 Z
  int back_to_full() {
    const int64_t each = wide_ / BAND;  // panels of a product
    for (int64_t begin = (panels_ - 1) / each * each; panels_ && begin >= 0; begin -= each) {
      const int64_t end = std::min(begin + each, panels_), c = begin * BAND, r = c + BAND, m = n_ - r, width = (end - begin) * BAND;
      char *v = at(v_, r, c), *s = at(small_), *z = at(z_) + (first_ * n_ + r) * element_;
      // (I - Y V^T) (I - Y' V'^T) = I - (Y, Y' - Y V^T Y') (V, V')^T, Y' = V' T'
      for (int64_t panel = begin; panel < end; panel++) {
        const int64_t k = panel * BAND - c;
        char* y = at(wide_y_, 0, k);
        if (gemm(OP_NONE, OP_NONE, m, BAND, BAND, 1, at(v_, r, c + k), pitch_, at(factor_) + panel * BAND * BAND * element_, BAND, 0,
                 y, pitch_) ||
            gemm(OP_ADJOINT, OP_NONE, k, BAND, m, 1, v, pitch_, y, pitch_, 0, s, wide_) ||
            gemm(OP_NONE, OP_NONE, m, BAND, k, -1, at(wide_y_, 0, 0), pitch_, s, wide_, 1, y, pitch_))
          return 1;
      }
      // Z <- Z - Y (V^T Z)
      if (gemm(OP_ADJOINT, OP_NONE, width, count_, m, 1, v, pitch_, z, n_, 0, at(product_), width) ||
          gemm(OP_NONE, OP_NONE, m, count_, width, -1, at(wide_y_, 0, 0), pitch_, at(product_), width, 1, z, n_))
        return 1;
    }
    return 0;
  }

  Frame& frame_;
  const Properties& gpu_;
  const int64_t n_, first_, count_, element_, pitch_, panels_;
  const int64_t gather_, wide_;    // columns: of an update, of a product with vectors
  const int64_t steps_, pairs_;    // steps of the first sweep; pairs of groups of sweeps
  const bool vectors_;
  const Shared shared_;
  size_t state_, gate_, reduced_, progress_, divided_, scaled_, up_, d_, e_, w_, tau_, sums_, small_, factor_, band_, v_, chased_ = 0,
      chased_tau_ = 0, z_ = 0, a_, y_, x_, divide_ = 0, packed_ = 0, wide_y_ = 0, product_ = 0, total_ = 0;
  char* block_ = nullptr;
  std::optional<cublas::Dense> blas_;
};

}  // namespace

std::string two_stage_refuses(const Frame& frame, const Properties& gpu) {
  char text[160] = "";
  const int64_t n = frame.size[1];
  if (frame.dtype > F64) return "two_stage is for real matrices";
  if (!gpu.together) return "two_stage needs a GPU whose blocks can wait for each other";
  if (n > DIVIDE_MOST)
    std::snprintf(text, sizeof text, "two_stage takes n up to %lld on this device, not %lld", (long long)DIVIDE_MOST, (long long)n);
  else if (const int64_t most = Shared(frame.dtype, n, gpu).most(); most > gpu.shared_per_block)
    std::snprintf(text, sizeof text, "two_stage needs %lld bytes of shared memory in a block, and this GPU allows %d", (long long)most,
                  gpu.shared_per_block);
  else if (!divide_fits(n, frame.dtype, gpu.shared_per_block))
    std::snprintf(text, sizeof text, "n = %lld is too large for this GPU's shared memory", (long long)n);
  return text;
}

int64_t two_stage_bytes(Frame& frame) {
  const Properties* gpu = properties(frame);
  return gpu ? int64_t(TwoStage(frame, *gpu).bytes()) : -1;
}

int eigh_two_stage(Frame& frame) {
  const Properties* gpu = properties(frame);
  if (!gpu) return 1;
  TwoStage one(frame, *gpu);
  char* block = scratch(frame, one.bytes());
  if (!block || one.place(block)) return 1;
  const int64_t batch = frame.size[0], n = frame.size[1], count = frame.size[3], element = int64_t(size_of(frame.dtype));
  const bool vectors = frame.op == EIGH;
  const auto part = [&](int buffer, int64_t bytes) { return static_cast<char*>(frame.buffer[buffer]) + bytes; };
  for (int64_t m = 0; m < batch; m++)
    if (one.solve(part(0, m * n * n * element), part(1, m * count * element), vectors ? part(2, m * n * count * element) : nullptr,
                  static_cast<int32_t*>(frame.buffer[vectors ? 3 : 2]) + m))
      return 1;
  return 0;
}

}  // namespace lapwing::cuda
