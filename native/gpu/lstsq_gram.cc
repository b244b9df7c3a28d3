#include "gpu/lstsq_gram.h"

#include <algorithm>
#include <vector>

#include "gpu/cublas_dense.h"
#include "gpu/cuda.h"
#include "gpu/parts.h"
#include "gpu/lstsq.h"
#include "gpu/vendor.h"
#include "methods/lstsq.h"

namespace lapwing::cuda {
namespace {

constexpr int THREADS = 256;
constexpr int32_t DOUBTFUL = -2;  // as in lstsq_block.cuh

// Some matrices of a frame, all that it has.
class Gram {
 public:
  Gram(Frame& frame, const ChosenEngine& engine)
      : frame_(frame), engine_(engine), batch_(frame.size[0]), m_(frame.size[1]), n_(frame.size[2]), k_(frame.size[3]),
        element_(int64_t(size_of(frame.dtype))) {
    const auto take = [&](int64_t bytes) {
      const size_t start = total_;
      total_ += size_t((bytes + 255) / 256 * 256);
      return start;
    };
    gram_ = take(batch_ * n_ * n_ * element_), inverse_ = take(batch_ * n_ * n_ * element_);
    left_ = take(batch_ * m_ * k_ * element_), gradient_ = take(batch_ * n_ * k_ * element_), change_ = take(batch_ * n_ * k_ * element_);
    sums_ = take(2 * batch_ * n_ * element_), failed_ = take(batch_ * 4);
  }

  // -1 leaves a message in the frame
  int64_t bytes() {
    Frame inner = inverse_frame(nullptr);
    const int64_t more = engine_.bytes(inner);
    if (more < 0) return fail_as(frame_, inner), -1;
    return int64_t(total_) + (more + 255) / 256 * 256;
  }

  int run(char* block, int64_t bytes) {
    block_ = block, end_ = block + bytes;
    const cublas::Dense blas(frame_);
    if (!blas.ok() || multiply_columns(blas) || invert() || measure_rows()) return 1;
    return (k_ && find_x(blas)) || judge();
  }

 private:
  using Operand = cublas::Dense::Operand;
  static constexpr int NONE = vendor::OP_NONE, ADJOINT_OF = vendor::OP_ADJOINT;
  char* at(size_t place) const { return block_ ? block_ + place : nullptr; }
  Operand a() const { return {frame_.buffer[0], n_, m_ * n_}; }
  Operand x() const { return {frame_.buffer[2], k_, n_ * k_}; }
  Operand square(size_t place) const { return {at(place), n_, n_ * n_}; }
  Operand tall(size_t place) const { return {at(place), k_, m_ * k_}; }
  Operand flat(size_t place) const { return {at(place), k_, n_ * k_}; }

  Frame inverse_frame(Rest* memory) const {
    Frame inner = frame_;
    inner.op = INVERSE, inner.engine = AUTO, inner.flags = POS;
    std::fill_n(inner.size, 6, 0);
    std::fill_n(inner.buffer, 8, nullptr);
    inner.size[0] = batch_, inner.size[1] = n_;
    inner.buffer[0] = at(gram_), inner.buffer[1] = at(inverse_), inner.buffer[2] = at(failed_);
    inner.scratch = {memory, Rest::get};
    return inner;
  }

  template <class... Arguments>
  int queue(const char* name, int64_t blocks, size_t shared, Arguments... arguments) {
    const int width = access_width({frame_.buffer[1], frame_.buffer[2]}, element_);
    return start(frame_, "lstsq_judge.cu", options(frame_.dtype, false, width, " -DLW_THREADS=%d", THREADS), name, grid_for(blocks),
                 unsigned(THREADS), shared, arguments...);
  }

  // To the library a row-major matrix is its transpose. G <- A^H A
  int multiply_columns(const cublas::Dense& blas) {
    return blas.gemm_many(NONE, ADJOINT_OF, n_, n_, m_, 1, a(), a(), 0, square(gram_), batch_);
  }

  int invert() {
    Rest rest{block_ + total_, end_, frame_.scratch};
    Frame inner = inverse_frame(&rest);
    return engine_.run(inner) ? fail_as(frame_, inner) : 0;
  }

  int measure_rows() {
    return queue("lstsq_row_sums", (2 * batch_ * n_ * 32 + THREADS - 1) / THREADS, 0, static_cast<const void*>(at(gram_)),
                 static_cast<const void*>(at(inverse_)), static_cast<void*>(at(sums_)), batch_ * n_, int32_t(n_));
  }

  // change <- G^-1 A^H (b - A x), added to x where `to_x`
  int correct(const cublas::Dense& blas, bool to_x) {
    const size_t bytes = size_t(batch_ * m_ * k_ * element_);
    return copy(frame_, at(left_), frame_.buffer[1], bytes) ||
           blas.gemm_many(NONE, NONE, k_, m_, n_, -1, x(), a(), 1, tall(left_), batch_) ||
           blas.gemm_many(NONE, ADJOINT_OF, k_, n_, m_, 1, tall(left_), a(), 0, flat(gradient_), batch_) ||
           blas.gemm_many(NONE, NONE, k_, n_, n_, 1, flat(gradient_), square(inverse_), to_x, to_x ? x() : flat(change_), batch_);
  }

  int find_x(const cublas::Dense& blas) {
    const Operand b{frame_.buffer[1], k_, m_ * k_};
    return blas.gemm_many(NONE, ADJOINT_OF, k_, n_, m_, 1, b, a(), 0, flat(gradient_), batch_) ||
           blas.gemm_many(NONE, NONE, k_, n_, n_, 1, flat(gradient_), square(inverse_), 0, x(), batch_) || correct(blas, true) ||
           correct(blas, false);
  }

  int judge() {
    void* const* to = frame_.buffer;
    return queue("lstsq_judge", batch_, size_t(32 * element_), static_cast<const void*>(to[1]), static_cast<const void*>(at(left_)),
                 static_cast<const void*>(at(change_)), static_cast<const void*>(at(sums_)), static_cast<const void*>(at(failed_)), to[2],
                 to[3], to[4], to[5], batch_, int32_t(m_), int32_t(n_), int32_t(k_), rcond_of(frame_));
  }

  Frame& frame_;
  const ChosenEngine& engine_;
  const int64_t batch_, m_, n_, k_, element_;
  size_t gram_, inverse_, left_, gradient_, change_, sums_, failed_, total_ = 0;
  char *block_ = nullptr, *end_ = nullptr;
};

}  // namespace

bool lstsq_gram_fits(const Frame& frame) {
  constexpr int64_t LEAST = 16, MOST = 16384;
  const int64_t m = frame.size[1], n = frame.size[2], k = frame.size[3];
  if (n < LEAST || n > MOST || m < 2 * n || m >= int64_t(1) << 30 || k > n) return false;
  return !vendor::missing(vendor::blas) && !vendor::missing(vendor::dense_blas);
}

int64_t lstsq_gram_scratch(Frame& frame, const ChosenEngine& engine) { return bytes_of_a_part<Gram>(frame, engine); }

int lstsq_by_gram(Frame& frame, const ChosenEngine& engine, int (*other)(Frame&)) {
  if (run_in_parts<Gram>(frame, engine)) return 1;
  const int64_t batch = frame.size[0];
  std::vector<int32_t> rank(static_cast<size_t>(batch));
  if (read_ranks(frame, rank.data())) return 1;
  struct Run {
    int64_t first, count;
  };
  std::vector<Run> runs;  // of neighbours that are in doubt
  for (int64_t first = 0, end; first < batch; first = end + 1) {
    for (end = first; end < batch && rank[size_t(end)] == DOUBTFUL;) end++;
    if (end > first) runs.push_back({first, end - first});
  }
  // the longest first: its memory is enough for all of them
  std::sort(runs.begin(), runs.end(), [](const Run& x, const Run& y) { return x.count > y.count; });
  SharedScratch memory(frame.scratch);
  for (const Run& run : runs) {
    Frame part = part_of(frame, run.first, run.count);
    part.scratch = memory.begin();
    if (other(part)) return fail_as(frame, part);
  }
  return 0;
}

}  // namespace lapwing::cuda
