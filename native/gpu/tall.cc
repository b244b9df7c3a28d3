#include "gpu/tall.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <vector>

#include "gpu/cuda.h"
#include "gpu/krylov.h"
#include "gpu/vendor.h"

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

// Blocks that share the rows for G, and how many rows each has
struct Share {
  int64_t blocks, rows;
};
Share share_of(int64_t rows, int64_t columns) {
  const int64_t wanted = std::clamp<int64_t>(GRAM_BLOCKS / pairs_of(columns), 1, (rows + DEPTH - 1) / DEPTH);
  const int64_t each = ((rows + wanted - 1) / wanted + DEPTH - 1) / DEPTH * DEPTH;
  return {(rows + each - 1) / each, each};
}

// Bytes of each piece of the scratch memory
struct Layout {
  size_t gram, parts, square, line, kept;
  explicit Layout(const Frame& frame) {
    auto round = [](int64_t bytes) { return size_t(bytes + 255) / 256 * 256; };
    const int64_t n = columns_of(frame), width = width_of(n), real = frame.dtype == F32 || frame.dtype == C64 ? 4 : 8;
    const int64_t sums = std::max(share_of(frame.size[1], n).blocks * pairs_of(n), SOLVE_BLOCKS);
    gram = round(8 * n * n);
    parts = round(8 * sums * (width == 32 ? 4 : 1) * width * width);
    square = round(real * n * n);
    line = round(8 * n);
    kept = frame.op == QR ? 0 : round(real * frame.size[1] * n);
  }
  size_t total() const { return gram + parts + square + line + kept; }
};

template <class R>
class Pass {
 public:
  Pass(Frame& frame, const TallPass<R>& pass, const TallDevice& device)
      : frame_(frame), pass_(pass), device_(device), rows_(pass.rows), n_(pass.columns), width_(width_of(n_)) {}

  bool run() {
    const std::vector<R> square = rounded_square();
    if (!square.empty() && !cuda::tall_upload(frame_, device_.square, square.data(), sizeof(R) * square.size())) return false;
    if (pass_.noise) {
      const std::vector<R> noise(pass_.noise, pass_.noise + n_);
      if (!cuda::tall_upload(frame_, device_.line, noise.data(), sizeof(R) * noise.size())) return false;
    }
    if (pass_.product) return multiply(n_, n_, pass_.from, 0, R(1), R(0), pass_.to);
    const bool together = pass_.gram && n_ <= width_;  // the product with itself while the panel is at hand
    if (pass_.factor && !solve(together)) return false;
    if (!pass_.gram) return true;
    return (pass_.factor && together) || sum_tiles() ? download() : false;
  }

  bool largest(double* found) {
    void* kernel = kernel_of("largest_of_columns", 0);
    if (!kernel || cuda::fill(frame_, device_.line, 0, sizeof(double) * size_t(n_))) return false;
    const R* from = pass_.from;
    void* out = device_.line;
    void* arguments[] = {&from, &rows_, &n_, &out};
    if (cuda::launch(frame_, kernel, {1024}, THREADS, 0, arguments)) return false;
    if (!to_host(found, device_.line, sizeof(double) * size_t(n_))) return false;
    for (int64_t j = 0; j < n_; j++)
      if (std::isnan(found[j])) found[j] = std::numeric_limits<double>::infinity();
    return true;
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

  void* kernel_of(const char* name, size_t shared) {
    auto bits = reinterpret_cast<uintptr_t>(pass_.from) | reinterpret_cast<uintptr_t>(pass_.to) | sizeof(R) * size_t(n_);
    char options[96];
    std::snprintf(options, sizeof options, "-DLW_DTYPE=%d -DLW_UPPER=0 -DLW_V=%d -DLW_WIDTH=%d", sizeof(R) == 8 ? F64 : F32,
                  bits % 16 == 0 ? 16 : bits % 8 == 0 ? 8 : 4, int(width_));
    return cuda::function(frame_, "tall.cu", options, name, shared);
  }

  size_t line_bytes() const { return sizeof(R) * size_t(width_) + 32; }  // of a row in shared memory

  // For blocks of columns J: X_J <- (A_J - X_(<J) F_(<J,J)) F_JJ^-1
  bool solve(bool with_gram) {
    const size_t shared = size_t(PANEL) * line_bytes() + sizeof(R) * size_t(width_ * width_ + width_);
    void* kernel = kernel_of("solve_panels", shared);
    if (!kernel) return false;
    for (int64_t first = 0; first < n_; first += width_) {
      int width = int(std::min(width_, n_ - first));
      const bool apart = pass_.from != pass_.to;
      // X_J <- - X_(<J) F_(<J,J), plus A_J if that is where it lies
      if (first && !multiply(width, first, pass_.to, first, R(-1), apart ? R(0) : R(1), pass_.to + first)) return false;
      const R *from = pass_.from, *more = first && apart ? pass_.to : nullptr;
      R* to = pass_.to;
      void *factor = device_.square, *noise = pass_.noise ? device_.line : nullptr;
      double* parts = with_gram ? device_.parts : nullptr;
      void* arguments[] = {&from, &more, &to, &rows_, &n_, &first, &width, &factor, &noise, &parts};
      if (cuda::launch(frame_, kernel, {unsigned(solve_blocks())}, THREADS, shared, arguments)) return false;
    }
    return !with_gram || sum_parts(solve_blocks());
  }

  int64_t solve_blocks() const { return std::min(SOLVE_BLOCKS, (rows_ + PANEL - 1) / PANEL); }

  bool sum_tiles() {
    const size_t tiles = n_ <= width_ ? 1 : 2;
    const size_t shared = size_t(STAGES * DEPTH) * tiles * line_bytes() + 8 * tiles * size_t(width_);
    void* kernel = kernel_of("gram_tiles", shared);
    if (!kernel) return false;
    if (pass_.scale && !cuda::tall_upload(frame_, device_.line, pass_.scale, sizeof(double) * size_t(n_))) return false;
    Share share = share_of(rows_, n_);
    const R* from = pass_.factor ? pass_.to : pass_.from;
    void* scale = pass_.scale ? device_.line : nullptr;
    double* parts = device_.parts;
    void* arguments[] = {&from, &rows_, &n_, &share.rows, &scale, &parts};
    const cuda::Grid grid{unsigned(share.blocks), unsigned(pairs_of(n_))};
    return !cuda::launch(frame_, kernel, grid, THREADS, shared, arguments) && sum_parts(share.blocks);
  }

  bool sum_parts(int64_t blocks) {
    void* kernel = kernel_of("sum_parts", 0);
    if (!kernel) return false;
    double *parts = device_.parts, *gram = device_.gram;
    void* arguments[] = {&parts, &blocks, &n_, &gram};
    return !cuda::launch(frame_, kernel, {unsigned((n_ + 31) / 32), unsigned(n_)}, 256, 0, arguments);
  }

  // Y <- alpha X S + beta Y, with `width` columns of S from `first` on and `depth` of its rows; all rows are n long
  bool multiply(int64_t width, int64_t depth, const R* x, int64_t first, R alpha, R beta, R* y) {
    constexpr int type = sizeof(R) == 8 ? vendor::REAL_64 : vendor::REAL_32;
    constexpr int compute = sizeof(R) == 8 ? vendor::COMPUTE_64 : vendor::COMPUTE_32;
    const R* square = static_cast<const R*>(device_.square) + first;
    void* blas = static_cast<cuda::Lease*>(device_.blas)->get();
    const auto multiply = vendor::table().blas_gemm;
    const int status = multiply(blas, vendor::OP_NONE, vendor::OP_NONE, width, rows_, depth, &alpha, square, type, n_, x, type,
                                n_, &beta, y, type, n_, compute, vendor::GEMM_DEFAULT);
    return !status || !fail(frame_, "a product by the GPU's BLAS library failed with status %d", status);
  }

  bool to_host(void* host, const void* from, size_t bytes) {
    const auto& api = vendor::table();
    const int status = api.copy_to_host(host, reinterpret_cast<uint64_t>(from), bytes, frame_.stream);
    return !(status || api.synchronize(frame_.stream)) || !fail(frame_, "a copy to the host failed");
  }

  bool download() { return to_host(pass_.gram, device_.gram, sizeof(double) * size_t(n_ * n_)); }

  Frame& frame_;
  const TallPass<R>& pass_;
  const TallDevice& device_;
  int64_t rows_, n_, width_;
};

}  // namespace

template <class R>
bool tall_pass_cuda(Frame& frame, const TallPass<R>& pass, const TallDevice& device) {
  return Pass<R>(frame, pass, device).run();
}

template <class R>
bool tall_largest_cuda(Frame& frame, const TallPass<R>& pass, const TallDevice& device, double* largest) {
  return Pass<R>(frame, pass, device).largest(largest);
}

#define LAPWING_INSTANTIATE(R)                                                     \
  template bool tall_pass_cuda<R>(Frame&, const TallPass<R>&, const TallDevice&);  \
  template bool tall_largest_cuda<R>(Frame&, const TallPass<R>&, const TallDevice&, double*);
LAPWING_INSTANTIATE(float)
LAPWING_INSTANTIATE(double)

namespace cuda {

bool tall_open(Frame& frame, TallDevice* device) {
  const Layout layout(frame);
  char* next = scratch(frame, layout.total());
  if (!next) return false;
  auto take = [&](size_t bytes) { return next += bytes, next - bytes; };
  device->gram = reinterpret_cast<double*>(take(layout.gram));
  device->parts = reinterpret_cast<double*>(take(layout.parts));
  device->square = take(layout.square);
  device->line = take(layout.line);
  device->kept = take(layout.kept);
  auto* lease = new cuda::Lease(frame, vendor::blas);
  device->blas = lease;
  return lease->get();
}

void tall_close(TallDevice* device) { delete static_cast<cuda::Lease*>(device->blas); }

bool tall_upload(Frame& frame, void* to, const void* host, size_t bytes) {
  const int status = vendor::table().copy_to_device(reinterpret_cast<uint64_t>(to), host, bytes, frame.stream);
  return !status || !fail(frame, "a copy to the GPU failed with status %d", status);
}

bool tall_together(const Frame& frame) { return columns_of(frame) <= width_of(columns_of(frame)); }

int64_t tall_bytes(const Frame& frame) { return int64_t(Layout(frame).total()); }

}  // namespace cuda
}  // namespace lapwing
