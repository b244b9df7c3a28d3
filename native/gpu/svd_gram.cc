#include "gpu/svd_gram.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "gpu/blocked_qr.h"
#include "gpu/cublas_dense.h"
#include "gpu/dry.h"
#include "gpu/parts.h"
#include "gpu/vendor.h"

namespace lapwing::cuda {
namespace {

// The order from which on it is faster than the vendor's polar decomposition in single precision, which needs several
// factorisations, and from 2048 on cannot tell small singular values from zero, so that QR iterations follow.
constexpr int64_t LEAST = 64;
constexpr int64_t LARGEST_REFINED = 8192;  // beyond it the copies would take many gigabytes
constexpr int THREADS = 256;
// The largest element of U^H U - I: below GOOD one step of Newton's method leaves nothing in single precision, above BAD the
// steps may not converge.
constexpr float GOOD = 1e-5f, BAD = 0.02f;
constexpr int MOST_STEPS = 4;
// The largest element of a correction in double precision: after one below REFINED nothing is left that can be seen, above HOPELESS the
// next one does not mend it.
constexpr float REFINED = 1e-8f, HOPELESS = 0.02f;
constexpr int MOST_CORRECTIONS = 3;

struct Sizes {
  explicit Sizes(const Frame& frame)
      : batch(frame.size[0]), m(frame.size[1]), n(frame.size[2]), length(std::max(m, n)), columns(std::min(m, n)),
        dtype(frame.dtype | 1), element(int64_t(size_of(dtype))), wanted(frame.op == SVD), refined(dtype == frame.dtype),
        vectors(wanted || refined) {}
  int64_t batch, m, n, length, columns;
  int32_t dtype;  // of what is computed with
  int64_t element;
  bool wanted, refined, vectors;  // whether vectors are asked for, corrected, computed: in double precision values follow from them
  bool wide() const { return m < n; }
  int64_t long_bytes() const { return batch * length * columns * element; }
  int64_t square_bytes() const { return batch * columns * columns * element; }
};

// Frames in double precision.
Frame inner_frame(const Frame& frame, int32_t op, std::initializer_list<int64_t> size, std::initializer_list<void*> buffers) {
  Frame inner = frame;
  inner.op = op, inner.dtype = frame.dtype | 1, inner.engine = AUTO, inner.flags = 0;
  std::fill_n(inner.size, 6, 0);
  std::fill_n(inner.buffer, 8, nullptr);
  std::copy(size.begin(), size.end(), inner.size);
  std::copy(buffers.begin(), buffers.end(), inner.buffer);
  return inner;
}

struct Engines {
  const ChosenEngine &chosen, &other;
};

// Some matrices of a frame, all that it has.
class Gram {
 public:
  Gram(Frame& frame, const Engines& engines) : frame_(frame), engine_(engines.chosen), other_(engines.other), at_(frame) {
    const auto take = [&](int64_t bytes) {
      const size_t start = total_;
      total_ += size_t((bytes + 255) / 256 * 256);
      return start;
    };
    a_ = take(at_.long_bytes()), g_ = take(at_.square_bytes());
    b_ = take(at_.vectors ? at_.long_bytes() : 0), v_ = take(at_.vectors ? at_.square_bytes() : 0);
    s_ = take(at_.batch * at_.columns * 8), w_ = take(at_.batch * at_.columns * 8);
    bad_ = take(at_.batch * 4), status_ = take(at_.batch * 4), most_ = take(at_.batch * 4);
    state_ = take(at_.batch * 4);
    c_ = take(at_.refined ? at_.long_bytes() : 0);
    r_ = take(at_.refined ? at_.square_bytes() : 0), t_ = take(at_.refined ? at_.square_bytes() : 0);
    work_ = total_;
  }

  // -1 leaves a message in the frame
  int64_t bytes() {
    Frame eigh = eigh_frame(nullptr);
    int64_t more = engine_.bytes(eigh);
    if (more < 0) return fail_as(frame_, eigh), -1;
    if (at_.vectors && !at_.refined) {
      Frame qr = qr_frame(nullptr);
      const int64_t other = engine_.bytes(qr);
      if (other < 0) return fail_as(frame_, qr), -1;
      more = std::max(more, other);
    }
    const int64_t own = int64_t(total_) + (more + 255) / 256 * 256, instead = at_.refined ? other_.bytes(frame_) : 0;
    return instead < 0 ? -1 : std::max(own, (instead + 255) / 256 * 256);
  }

  int run(char* block, int64_t bytes) {
    block_ = block, end_ = block + bytes;
    wide_ = inner_frame(frame_, frame_.op, {}, {});
    if (widen() || eigenvectors() || (at_.vectors && (at_.refined ? refine() : left_vectors())))
      return wide_.error[0] ? fail_as(frame_, wide_) : 1;
    if (give()) return fail_as(frame_, wide_);
    return at_.refined ? decompose_others() : 0;
  }

 private:
  using Operand = cublas::Dense::Operand;
  char* at(size_t place) const { return block_ ? block_ + place : nullptr; }
  int32_t* integers(size_t place) const { return reinterpret_cast<int32_t*>(at(place)); }
  const int32_t* state() const { return integers(state_); }
  Operand tall(size_t place) const { return {at(place), at_.columns, at_.length * at_.columns}; }
  Operand square(size_t place) const { return {at(place), at_.columns, at_.columns * at_.columns}; }

  Frame eigh_frame(Rest* memory) const {
    const int64_t k = at_.columns;
    Frame inner = at_.vectors ? inner_frame(frame_, EIGH, {at_.batch, k, 0, k}, {at(g_), at(w_), at(g_), at(status_)})
                              : inner_frame(frame_, EIGVALSH, {at_.batch, k, 0, k}, {at(g_), at(w_), at(status_)});
    inner.scratch = {memory, Rest::get};
    return inner;
  }
  Frame qr_frame(Rest* memory) const {
    Frame inner = inner_frame(frame_, QR, {at_.batch, at_.length, at_.columns, at_.columns}, {at(b_), at(a_), at(g_)});
    inner.scratch = {memory, Rest::get};
    return inner;
  }
  int solve(Frame (Gram::*frame)(Rest*) const) {
    Rest rest{block_ + work_, end_, frame_.scratch};
    Frame inner = (this->*frame)(&rest);
    return engine_.run(inner) ? fail_as(wide_, inner) : 0;
  }

  template <class... Arguments>
  int queue(const char* name, int64_t blocks, int64_t shared, Arguments... arguments) {
    const std::string text = options(at_.dtype, false, 16, " -DLW_THREADS=%d -DLW_LOW=%d", THREADS, int(!at_.refined));
    return start(wide_, "svd_gram.cu", text, name, grid_for(blocks), unsigned(THREADS), size_t(shared), arguments...);
  }
  int64_t tiles(int64_t rows, int64_t columns) const { return at_.batch * ((rows + 31) / 32) * ((columns + 31) / 32); }
  int64_t tile_bytes() const { return 32 * 33 * at_.element; }
  int narrow(size_t from, void* to, int64_t rows, int64_t columns, bool turned) {
    return queue("svd_narrow", tiles(rows, columns), tile_bytes(), static_cast<const void*>(at(from)), to,
                 static_cast<const int32_t*>(integers(bad_)), at_.batch, int32_t(rows), int32_t(columns), int32_t(turned));
  }

  // To the library a row-major matrix is its transpose. to <- X^H Y
  int inner(const cublas::Dense& blas, int64_t rows, Operand x, Operand y, size_t to) {
    return blas.gemm_many(vendor::OP_NONE, vendor::OP_ADJOINT, at_.columns, at_.columns, rows, 1, y, x, 0, square(to), at_.batch);
  }
  int gram(const cublas::Dense& blas, size_t x) { return inner(blas, at_.length, tall(x), tall(x), g_); }
  // to <- X C
  int multiply(const cublas::Dense& blas, size_t x, size_t c, size_t to) {
    return blas.gemm_many(vendor::OP_NONE, vendor::OP_NONE, at_.columns, at_.length, at_.columns, 1, square(c), tall(x), 0, tall(to),
                          at_.batch);
  }

  // a <- M
  int widen() {
    return fill(wide_, at(bad_), 0, size_t(at_.batch * 4)) ||
           (at_.refined && measure(wide_, frame_.buffer[0], integers(state_), at_.batch, at_.m, at_.n, false)) ||
           queue("svd_widen", tiles(at_.length, at_.columns), tile_bytes(), static_cast<const void*>(frame_.buffer[0]),
                 static_cast<void*>(at(a_)), state(), integers(bad_), at_.batch, int32_t(at_.length), int32_t(at_.columns), int32_t(at_.wide()));
  }

  // M^H M = V W V^H, the columns of V from the largest on
  int eigenvectors() {
    const cublas::Dense blas(wide_);
    if (!blas.ok() || gram(blas, a_) || solve(&Gram::eigh_frame)) return 1;
    return at_.vectors && queue("svd_flip", at_.batch * at_.columns, 0, static_cast<const void*>(at(g_)), static_cast<void*>(at(v_)),
                                at_.batch * at_.columns, int32_t(at_.columns));
  }

  // b <- the columns of M V with length one, s <- what their length was
  int unit_columns(const cublas::Dense& blas) {
    return multiply(blas, a_, v_, b_) || queue("svd_unit", at_.batch * ((at_.columns + 31) / 32), THREADS * 8, static_cast<void*>(at(b_)),
                                               static_cast<void*>(at(s_)), at_.batch, int32_t(at_.length), int32_t(at_.columns));
  }

  // M V = U S. Columns of M V are orthogonal but for rounding errors of G, which small singular values make larger: steps of
  // Newton's method, or a QR, make them orthogonal. In the end U is in b.
  int left_vectors() {
    const cublas::Dense blas(wide_);
    const int64_t lines = at_.batch * at_.columns;
    const auto length = int32_t(at_.length), columns = int32_t(at_.columns);
    if (!blas.ok() || unit_columns(blas)) return 1;
    for (int step = 0; step < MOST_STEPS; step++) {
      float most = 0;
      if (fill(wide_, at(most_), 0, 4) || gram(blas, b_) ||
          queue("svd_correct", lines, 0, static_cast<void*>(at(g_)), integers(most_), lines, columns) || read_most(&most, 1))
        return 1;
      if (!(most < BAD)) break;
      if (multiply(blas, b_, g_, a_)) return 1;
      std::swap(a_, b_);
      if (most < GOOD) return 0;
    }
    if (solve(&Gram::qr_frame) || queue("svd_phase", at_.batch * at_.length, 0, static_cast<void*>(at(a_)),
                                        static_cast<const void*>(at(g_)), at_.batch, length, columns))
      return 1;
    std::swap(a_, b_);
    return 0;
  }

  // M V = U S, U in b, with both sides corrected until nothing is left to correct; left_ <- for each matrix how much the last step did
  int refine() {
    const cublas::Dense blas(wide_);
    const int64_t lines = at_.batch * at_.columns;
    const auto columns = int32_t(at_.columns);
    if (!blas.ok() || unit_columns(blas)) return 1;
    left_.assign(size_t(at_.batch), 1);
    for (int step = 0; step < MOST_CORRECTIONS; step++) {
      void *r = at(r_), *g = at(g_);
      const void* t = at(t_);
      if (fill(wide_, at(most_), 0, size_t(at_.batch * 4)) || multiply(blas, a_, v_, c_) || inner(blas, at_.length, tall(b_), tall(c_), t_) ||
          inner(blas, at_.length, tall(b_), tall(b_), r_) || inner(blas, at_.columns, square(v_), square(v_), g_) ||
          queue("svd_quotients", (lines + THREADS - 1) / THREADS, 0, static_cast<const void*>(r), static_cast<const void*>(g), t,
                static_cast<void*>(at(s_)), lines, columns) ||
          queue("svd_refine", lines, 0, r, g, t, static_cast<const void*>(at(s_)), static_cast<const int32_t*>(integers(bad_)),
                static_cast<const int32_t*>(integers(status_)), integers(most_), lines, columns) ||
          multiply(blas, b_, r_, c_) ||
          blas.gemm_many(vendor::OP_NONE, vendor::OP_NONE, at_.columns, at_.columns, at_.columns, 1, square(g_), square(v_), 0, square(t_),
                         at_.batch) ||
          read_most(left_.data(), at_.batch))
        return 1;
      std::swap(b_, c_);
      std::swap(v_, t_);
      const auto goes_on = [](float left) { return left > REFINED && left < HOPELESS; };
      if (std::none_of(left_.begin(), left_.end(), goes_on)) break;
    }
    if (Dry::current()) left_.assign(size_t(at_.batch), 1);  // names the other engine's kernels too
    return 0;
  }

  // Matrices whose vectors were too far from orthogonal
  int decompose_others() {
    for (int64_t first = 0, end; first < at_.batch; first = end) {
      for (end = first + 1; end < at_.batch && is_left(end) == is_left(first);) end++;
      if (!is_left(first)) continue;
      Rest rest{block_, end_, frame_.scratch};
      Frame part = part_of(frame_, first, end - first);
      part.scratch = {&rest, Rest::get};
      if (other_.run(part)) return fail_as(frame_, part);
    }
    return 0;
  }
  bool is_left(int64_t which) const { return left_[size_t(which)] > REFINED; }

  int read_most(float* most, int64_t count) { return download(wide_, most, at(most_), size_t(count) * sizeof *most); }

  // A = U S V^H, or where A is wide, V S U^H
  int give() {
    const int place = at_.wanted ? 2 : 1;
    const auto columns = int32_t(at_.columns);
    if (queue("svd_values", at_.batch, THREADS * 8, static_cast<const void*>(at(at_.vectors ? s_ : w_)), frame_.buffer[place],
              state(), integers(bad_), static_cast<const int32_t*>(integers(status_)), static_cast<int32_t*>(frame_.buffer[at_.wanted ? 4 : 2]),
              at_.batch, columns, int32_t(!at_.vectors)))
      return 1;
    if (!at_.wanted) return 0;
    void *u = frame_.buffer[1], *vh = frame_.buffer[3];
    return narrow(b_, at_.wide() ? vh : u, at_.length, at_.columns, at_.wide()) ||
           narrow(v_, at_.wide() ? u : vh, at_.columns, at_.columns, !at_.wide());
  }

  Frame& frame_;
  const ChosenEngine &engine_, &other_;
  const Sizes at_;
  std::vector<float> left_;
  size_t c_ = 0, r_ = 0, t_ = 0, state_ = 0, a_ = 0, g_ = 0, b_ = 0, v_ = 0, s_ = 0, w_ = 0, bad_ = 0, status_ = 0, most_ = 0, work_ = 0, total_ = 0;
  char *block_ = nullptr, *end_ = nullptr;
  Frame wide_;  // for messages, and for products in double precision
};

int check_libraries(Frame& frame) {
  for (const vendor::Library library : {vendor::blas, vendor::dense_blas})
    if (const char* reason = vendor::missing(library)) return fail(frame, "svd: %s", reason);
  return 0;
}

}  // namespace

bool svd_gram_fits(const Frame& frame) {
  const Sizes at(frame);
  if (at.columns < LEAST || at.length >= int64_t(1) << 30 || (at.wanted && frame.size[3] && at.m != at.n)) return false;
  return !at.refined || (at.length <= 2 * at.columns && at.columns <= LARGEST_REFINED);
}

int64_t svd_gram_scratch(Frame& frame, const ChosenEngine& engine, const ChosenEngine& other) {
  return check_libraries(frame) ? -1 : bytes_of_a_part<Gram>(frame, Engines{engine, other});
}

int svd_by_gram(Frame& frame, const ChosenEngine& engine, const ChosenEngine& other) {
  return check_libraries(frame) || run_in_parts<Gram>(frame, Engines{engine, other});
}

}  // namespace lapwing::cuda
