// The passes over a tall matrix on a GPU: kernels in src/lapwing/kernels/tall.cu, wide products by cuBLAS.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "gpu/steps.h"
#include "gpu/vendor.h"
#include "methods/storage.h"
#include "methods/tall.h"
#include "methods/tall_pass.h"

namespace lapwing {
namespace {

// As in src/lapwing/kernels/tall.cu
constexpr int64_t PANEL = 128, DEPTH = 32, STAGES = 3;
constexpr unsigned THREADS = 128;
constexpr int64_t SOLVE_BLOCKS = 264, GRAM_BLOCKS = 528;  // two and four for each multiprocessor of an H200

int64_t columns_of(const Frame& frame) { return frame.size[2] * (frame.dtype >= C64 ? 2 : 1); }
int64_t width_of(int64_t columns) { return columns <= 32 ? 32 : 64; }
int64_t pairs_of(int64_t columns) {
  const int64_t tiles = (columns + width_of(columns) - 1) / width_of(columns);
  return tiles * (tiles + 1) / 2;
}

int64_t row_bytes(int64_t real, int64_t width) { return real * width + 32; }  // of a row in shared memory

// Blocks that share the rows for G, and how many rows each has
struct Share {
  int64_t blocks, rows;
};
Share share_of(int64_t rows, int64_t columns) {
  const int64_t wanted = std::clamp<int64_t>(GRAM_BLOCKS / pairs_of(columns), 1, (rows + DEPTH - 1) / DEPTH);
  const int64_t each = ((rows + wanted - 1) / wanted + DEPTH - 1) / DEPTH * DEPTH;
  return {(rows + each - 1) / each, each};
}

template <class R>
struct Storage {
  double *gram, *parts, *line;  // columns x columns; several of them; a number for each column
  R *square, *kept;

  template <class Take>
  void take(const Frame& frame, Take take) {
    const int64_t n = columns_of(frame), width = width_of(n);
    const int64_t sums = std::max(share_of(frame.size[1], n).blocks * pairs_of(n), SOLVE_BLOCKS);
    gram = take(double(), n * n);
    parts = take(double(), sums * (width == 32 ? 4 : 1) * width * width);
    square = take(R(), n * n);
    line = take(double(), n);
    kept = take(R(), frame.op == QR ? 0 : frame.size[1] * n);
  }
};

template <class R>
class CudaRows : public TallRows<R> {
 public:
  explicit CudaRows(Frame& frame) : frame_(frame), n_(columns_of(frame)), width_(width_of(n_)), steps_(frame, "engine tall", "tall.cu") {
    char* block = cuda::scratch(frame, storage_bytes<Storage<R>>(frame));
    if (block)
      cut(block, at_, frame);
    else
      steps_.stop();
  }

  bool ok() const override { return steps_.ok(); }
  bool may_forget() const override { return n_ <= width_; }  // one kernel solves and sums
  R* room(R* out) override { return frame_.op == QR ? out : at_.kept; }

  bool write(void* to, const void* host, size_t bytes) override {
    steps_.upload(to, host, bytes);
    return ok();
  }

  bool pass(const TallPass<R>& pass) override {
    pass_ = pass;
    const std::vector<R> square = rounded_square();
    if (!square.empty()) steps_.upload(at_.square, square.data(), sizeof(R) * square.size());
    std::vector<R> noise;
    if (pass.noise) noise.assign(pass.noise, pass.noise + n_);
    if (pass.noise) steps_.upload(at_.line, noise.data(), sizeof(R) * noise.size());
    if (pass.product) {
      multiply(n_, n_, pass.from, 0, 1, 0, pass.to);
      return ok();
    }
    const bool together = pass.gram && n_ <= width_;  // the product with itself while the panel is at hand
    if (pass.factor) solve(together);
    if (pass.gram && !(pass.factor && together)) sum_tiles();
    if (pass.gram) steps_.download(pass.gram, at_.gram, sizeof(double) * size_t(n_ * n_));
    return ok();
  }

  bool largest(const TallPass<R>& pass, double* sizes) override {
    pass_ = pass;
    steps_.fill(at_.line, 0, sizeof(double) * size_t(n_));
    start("largest_of_columns", {1024}, THREADS, 0, pass.from, pass.rows, n_, at_.line);
    steps_.download(sizes, at_.line, sizeof(double) * size_t(n_));
    for (int64_t j = 0; j < n_; j++)
      if (std::isnan(sizes[j])) sizes[j] = std::numeric_limits<double>::infinity();
    return ok();
  }

 private:
  // In the precision of the rows; the diagonal of a factor inverted
  std::vector<R> rounded_square() const {
    const double* from = pass_.factor ? pass_.factor : pass_.product;
    if (!from) return {};
    std::vector<R> made(from, from + n_ * n_);
    for (int64_t j = 0; pass_.factor && j < n_; j++) made[size_t(j * n_ + j)] = R(1 / from[j * n_ + j]);
    return made;
  }

  template <class... Arguments>
  void start(const char* name, cuda::Grid grid, unsigned threads, size_t shared, Arguments... arguments) {
    const int width = cuda::access_width({pass_.from, pass_.to}, int64_t(sizeof(R)) * n_);
    const std::string options = cuda::options(sizeof(R) == 8 ? F64 : F32, false, width, " -DLW_WIDTH=%d", int(width_));
    steps_.start(options, name, grid, threads, shared, arguments...);
  }

  size_t line_bytes() const { return size_t(row_bytes(int64_t(sizeof(R)), width_)); }

  // For blocks of columns J: X_J <- (A_J - X_(<J) F_(<J,J)) F_JJ^-1
  void solve(bool with_gram) {
    const size_t shared = size_t(PANEL) * line_bytes() + sizeof(R) * size_t(width_ * width_ + width_);
    const int64_t blocks = std::min(SOLVE_BLOCKS, (pass_.rows + PANEL - 1) / PANEL);
    const bool apart = pass_.from != pass_.to;
    const auto* noise = pass_.noise ? reinterpret_cast<const R*>(at_.line) : nullptr;
    for (int64_t first = 0; first < n_; first += width_) {
      const int width = int(std::min(width_, n_ - first));
      // X_J <- - X_(<J) F_(<J,J), plus A_J if that is where it lies
      if (first) multiply(width, first, pass_.to, first, -1, apart ? 0 : 1, pass_.to + first);
      const R* more = first && apart ? pass_.to : nullptr;
      start("solve_panels", {unsigned(blocks)}, THREADS, shared, pass_.from, more, pass_.to, pass_.rows, n_, first, width,
            at_.square, noise, with_gram ? at_.parts : nullptr);
    }
    if (with_gram) sum_parts(blocks);
  }

  void sum_tiles() {
    const size_t tiles = n_ <= width_ ? 1 : 2;
    const size_t shared = size_t(STAGES * DEPTH) * tiles * line_bytes() + 8 * tiles * size_t(width_);
    if (pass_.scale) steps_.upload(at_.line, pass_.scale, sizeof(double) * size_t(n_));
    const Share share = share_of(pass_.rows, n_);
    const R* from = pass_.factor ? pass_.to : pass_.from;
    start("gram_tiles", {unsigned(share.blocks), unsigned(pairs_of(n_))}, THREADS, shared, from, pass_.rows, n_, share.rows,
          pass_.scale ? at_.line : nullptr, at_.parts);
    sum_parts(share.blocks);
  }

  void sum_parts(int64_t blocks) {
    start("sum_parts", {unsigned((n_ + 31) / 32), unsigned(n_)}, 256, 0, at_.parts, blocks, n_, at_.gram);
  }

  // Y <- alpha X S + beta Y, with `width` columns of S from `first` on and `depth` of its rows; all rows are n long
  void multiply(int64_t width, int64_t depth, const R* x, int64_t first, double alpha, double beta, R* y) {
    steps_.gemm(vendor::OP_NONE, width, pass_.rows, depth, alpha, at_.square + first, n_, x, n_, beta, y, n_,
                sizeof(R) == 8 ? vendor::COMPUTE_64 : vendor::COMPUTE_32);
  }

  Frame& frame_;
  int64_t n_, width_;
  cuda::Steps steps_;
  Storage<R> at_{};
  TallPass<R> pass_;
};

}  // namespace

std::unique_ptr<TallRows<float>> cuda_rows(float, Frame& frame) { return std::make_unique<CudaRows<float>>(frame); }
std::unique_ptr<TallRows<double>> cuda_rows(double, Frame& frame) { return std::make_unique<CudaRows<double>>(frame); }

int64_t tall_shared(const Frame& frame) {
  const int64_t n = columns_of(frame), width = width_of(n), real = frame.dtype % 2 ? 8 : 4, tiles = n <= width ? 1 : 2;
  const int64_t line = row_bytes(real, width);
  return std::max(PANEL * line + real * width * (width + 1), STAGES * DEPTH * tiles * line + 8 * tiles * width);
}

int64_t tall_device_bytes(const Frame& frame) {
  return int64_t((frame.dtype % 2 ? storage_bytes<Storage<double>, Frame> : storage_bytes<Storage<float>, Frame>)(frame));
}

}  // namespace lapwing
