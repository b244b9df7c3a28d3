// Compiles the passes of tall_panel.h for each instruction set, picks one at run time, and shares the rows out to threads.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <vector>

#include "cpu/cpu.h"
#include "cpu/pages.h"
#include "cpu/threads.h"
#include "methods/tall_pass.h"

namespace lapwing {
namespace {

constexpr int64_t TALL_ROWS = 128;    // of a panel; a multiple of any group
constexpr int64_t TALL_BLOCK = 8;     // columns of the packed squares that lie together
constexpr int64_t TALL_DIRECT = 256;  // wider rows lie too far apart to be multiplied where they are

// A factor is packed as far as its diagonal: blocks before have 8, 16, ... rows.
constexpr int64_t tall_block_start(int64_t block) { return block * (block + 1) / 2 * TALL_BLOCK * TALL_BLOCK; }

// 64 random signs
inline uint64_t tall_signs(int64_t row, int64_t column) {
  uint64_t z = (uint64_t(row) << 16) + uint64_t(column / 64) + 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

template <class R>
struct TallPacked {
  int64_t padded;           // columns, up to a multiple of the widest vector
  const R* square;
  const R* noise;
};

}  // namespace
}  // namespace lapwing

#define LAPWING_KERNELS "cpu/tall_panel.h"
#include "cpu/levels.h"

namespace lapwing {
namespace {

template <class R>
void tall_rows(const TallPass<R>& pass, const TallPacked<R>& packed, int64_t first, int64_t last, double* gram) {
  LAPWING_WIDEST(tall_rows(pass, packed, first, last, gram));
}

template <class R>
std::vector<R> pack(const TallPass<R>& pass) {
  const int64_t n = pass.columns, blocks = (n + TALL_BLOCK - 1) / TALL_BLOCK, width = blocks * TALL_BLOCK;
  if (!pass.factor && !pass.product) return {};
  std::vector<R> square(size_t(pass.factor ? tall_block_start(blocks) : width * width));
  for (int64_t b = 0; b < blocks; b++)
    for (int64_t k = 0; k < (pass.factor ? (b + 1) * TALL_BLOCK : width); k++)
      for (int64_t c = 0; c < TALL_BLOCK; c++) {
        const int64_t j = b * TALL_BLOCK + c;
        const bool inside = k < n && j < n;
        const int64_t start = pass.factor ? tall_block_start(b) : b * width * TALL_BLOCK;
        double x = 0;
        if (inside && pass.product) x = pass.product[k * n + j];
        if (inside && pass.factor && k <= j) x = k == j ? 1 / pass.factor[k * n + j] : pass.factor[k * n + j];
        square[size_t(start + k * TALL_BLOCK + c)] = R(x);
      }
  return square;
}

// The same pieces for any number of threads, as each has a sum of its own.
int64_t piece_rows(int64_t rows, int64_t columns) {
  constexpr int64_t PIECES = 32;
  const int64_t pieces = std::clamp<int64_t>(rows / std::max<int64_t>(columns, 2 * TALL_ROWS), 1, PIECES);
  return ((rows + pieces - 1) / pieces + TALL_ROWS - 1) / TALL_ROWS * TALL_ROWS;
}

template <class R>
class CpuRows : public TallRows<R> {
 public:
  explicit CpuRows(Frame& frame) : frame_(frame) {}

  bool pass(const TallPass<R>& pass) override {
    const int64_t n = pass.columns, padded = (n + 15) / 16 * 16;
    const std::vector<R> square = pack(pass);
    std::vector<R> noise;
    if (pass.noise) noise.assign(pass.noise, pass.noise + n);
    const TallPacked<R> packed{padded, square.data(), pass.noise ? noise.data() : nullptr};
    const int64_t piece = piece_rows(pass.rows, n), pieces = (pass.rows + piece - 1) / piece;
    std::vector<double> sums(size_t(pass.gram ? pieces * padded * padded : 0));
    const bool finished = parallel(threads_for(frame_), pieces, 1, [&](int64_t p, int64_t) {
      double* sum = pass.gram ? sums.data() + p * padded * padded : nullptr;
      tall_rows(pass, packed, p * piece, std::min(pass.rows, (p + 1) * piece), sum);
    }, frame_.interrupted);
    if (!finished) return false;
    if (!pass.gram) return true;
    // in pairs, pairs of pairs, ...
    for (int64_t step = 1; step < pieces; step *= 2)
      for (int64_t p = 0; p + step < pieces; p += 2 * step)
        for (int64_t e = 0; e < padded * padded; e++)
          sums[size_t(p * padded * padded + e)] += sums[size_t((p + step) * padded * padded + e)];
    for (int64_t i = 0; i < n; i++) std::copy_n(sums.data() + i * padded + i, n - i, pass.gram + i * n + i);
    return true;
  }

  bool largest(const TallPass<R>& pass, double* largest) override {
    const int64_t n = pass.columns, piece = piece_rows(pass.rows, n), pieces = (pass.rows + piece - 1) / piece;
    std::vector<double> found(size_t(pieces * n), 0.0);
    const bool finished = parallel(threads_for(frame_), pieces, 1, [&](int64_t p, int64_t) {
      double* mine = found.data() + p * n;
      for (int64_t i = p * piece; i < std::min(pass.rows, (p + 1) * piece); i++)
        for (int64_t j = 0; j < n; j++) {
          const double x = std::fabs(double(pass.from[i * n + j]));
          if (!(x <= mine[j])) mine[j] = std::isfinite(x) ? x : std::numeric_limits<double>::infinity();
        }
    }, frame_.interrupted);
    std::fill_n(largest, n, 0.0);
    for (int64_t p = 0; p < pieces; p++)
      for (int64_t j = 0; j < n; j++) largest[j] = std::max(largest[j], found[size_t(p * n + j)]);
    return finished;
  }

  R* room(R* out) override {
    if (!out && !kept_) kept_ = huge_pages_of(size_of(frame_.dtype) * size_t(frame_.size[1] * frame_.size[2]));
    return out ? out : reinterpret_cast<R*>(kept_.get());
  }

  bool write(void* to, const void* host, size_t bytes) override {
    std::memcpy(to, host, bytes);
    return true;
  }

 private:
  Frame& frame_;
  Pages kept_{nullptr, nullptr};
};

}  // namespace

std::unique_ptr<TallRows<float>> cpu_rows(float, Frame& frame) { return std::make_unique<CpuRows<float>>(frame); }
std::unique_ptr<TallRows<double>> cpu_rows(double, Frame& frame) { return std::make_unique<CpuRows<double>>(frame); }

}  // namespace lapwing
