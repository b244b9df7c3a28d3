// Notation: everything is column-major here, so the row-major matrix A (m x n) is M = A^T (n x m, leading dimension n). Rows of
// E (count x lesser side) and F (count x greater side) are conjugated singular vectors of M or M^H, whichever is wide: in memory
// these are exactly row-major matrices with the vectors as columns, which the other engines read and write.
#include "methods/krylov_svd.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "cpu/pages.h"
#include "dtypes.h"
#include "gpu/cuda.h"
#include "methods/krylov_space.h"
#include "methods/storage.h"
#include "run.h"

namespace lapwing::krylov {
namespace {

constexpr int MOST_ROUNDS = 4;                     // the first one, and repairs: each is a step of subspace iteration
constexpr int64_t WIDE_ELEMENTS = int64_t(1) << 24;  // of a single-precision matrix that are converted at a time
constexpr double LEAST_SQUARE = 1e-280, MOST_SQUARE = 1e280;  // of the largest singular value, in double precision

struct Sizes {
  explicit Sizes(const Frame& frame)
      : m(frame.size[1]), n(frame.size[2]), count(frame.size[3]), lesser(std::min(m, n)), greater(std::max(m, n)) {}
  int64_t m, n, count, lesser, greater;
  bool tall() const { return m >= n; }
  // Rows of A (tall), or columns of A, that are converted at a time
  int64_t slice() const { return std::clamp<int64_t>(WIDE_ELEMENTS / lesser, 1, greater); }
};

template <class T>
struct Storage {
  using Wide = WideOf<T>;
  static constexpr bool CONVERTS = sizeof(T) != sizeof(Wide);
  Wide *gram, *wide_rows, *wide_vectors;
  double *squares, *numbers;
  T *e, *turned, *image, *f, *back, *e_columns, *back_columns, *z, *identity;
  RealOf<T>* s;
  int32_t *info, *bad;

  template <class Take>
  void take(const Sizes& at, Take take) {
    const int64_t k = at.count;
    gram = take(Wide(), at.lesser * at.lesser);
    wide_rows = take(Wide(), CONVERTS ? at.lesser * at.slice() : 0);
    wide_vectors = take(Wide(), CONVERTS ? k * at.lesser : 0);
    squares = take(double(), k);
    numbers = take(double(), 2 * k);
    e = take(T(), k * at.lesser), turned = take(T(), k * at.lesser), back = take(T(), k * at.lesser);
    e_columns = take(T(), k * at.lesser), back_columns = take(T(), k * at.lesser);
    image = take(T(), k * at.greater), f = take(T(), k * at.greater);
    z = take(T(), k * k), identity = take(T(), k * k);
    s = take(RealOf<T>(), k);
    info = take(int32_t(), 1), bad = take(int32_t(), PANEL);
  }
};

Frame inner_frame(const Frame& frame, int32_t op, int32_t dtype, std::initializer_list<int64_t> sizes) {
  Frame inner = frame;
  inner.op = op, inner.dtype = dtype, inner.engine = AUTO, inner.named = false, inner.flags &= LENT, inner.exponents = nullptr;
  std::fill_n(inner.size, 6, 0);
  std::copy(sizes.begin(), sizes.end(), inner.size);
  std::fill_n(inner.buffer, 8, nullptr);
  return inner;
}

Frame gram_frame(const Frame& frame) {
  const Sizes at(frame);
  Frame eigh = inner_frame(frame, EIGH, frame.dtype >= C64 ? C128 : F64, {1, at.lesser, at.lesser - at.count, at.count});
  eigh.flags |= UPPER | OVERWRITE;
  if (frame.dtype % 2 == 0) {
    // the residuals of the triplets are about this, and single precision ends before
    const float tolerance = std::numeric_limits<float>::epsilon() / 8;
    uint32_t bits;
    std::memcpy(&bits, &tolerance, sizeof bits);
    eigh.size[4] = bits;
  }
  return eigh;
}

Frame thin_frame(const Frame& frame, int64_t rows) {
  return inner_frame(frame, SVD, frame.dtype, {1, rows, frame.size[3], 0});
}

Frame full_frame(const Frame& frame) {
  Frame full = inner_frame(frame, SVD, frame.dtype, {frame.size[0], frame.size[1], frame.size[2], 0});
  if (frame.named && frame.engine != KRYLOV) full.engine = frame.engine;
  return full;
}

// The most that an engine asks for at a time on a GPU; -1 with a message in the frame
int64_t inner_bytes(Frame& frame, const SvdEngines& engines) {
  if (frame.device == CPU) return 0;
  Frame eigh = gram_frame(frame), thin = thin_frame(frame, std::max(frame.size[1], frame.size[2]));
  const int64_t bytes[] = {engines.eigh_bytes(eigh), engines.thin_svd_bytes(thin)};
  if (bytes[0] >= 0 && bytes[1] >= 0) return (std::max(bytes[0], bytes[1]) + 255) / 256 * 256;
  fail_as(frame, bytes[0] < 0 ? eigh : thin);
  return -1;
}

// Scratch memory that every engine gets from its start. What does not fit comes from the caller.
struct Region {
  char *start = nullptr, *at = nullptr, *end = nullptr;
  Scratch caller;
  static void* get(void* self, size_t bytes) {
    auto* region = static_cast<Region*>(self);
    if (bytes > size_t(region->end - region->at)) return region->caller.get ? region->caller.get(region->caller.self, bytes) : nullptr;
    char* piece = region->at;
    region->at += std::min((bytes + 255) / 256 * 256, size_t(region->end - region->at));
    return piece;
  }
};

enum class Result { DONE, LEFT, FAILED };

// The matrices of a call, one after the other, in the same memory.
template <class T>
class PartialSvd {
  using Real = RealOf<T>;
  using Wide = WideOf<T>;

 public:
  PartialSvd(const Frame& frame, const SvdEngines& engines)
      : frame_(frame), engines_(engines), size_(frame), k_(size_.count),
        space_frame_(inner_frame(frame, EIGVALSH, frame.dtype, {1, size_.lesser, 0, k_})),
        wide_frame_(inner_frame(frame, EIGVALSH, dtype_of<Wide>(), {1, size_.lesser, 0, k_})) {
    space_frame_.buffer[0] = frame.buffer[0];
    space_ = frame.device == CPU ? cpu_space(T(), space_frame_, nullptr) : cuda_space(T(), space_frame_, nullptr);
    wide_space_ = frame.device == CPU ? cpu_space(Wide(), wide_frame_, nullptr) : cuda_space(Wide(), wide_frame_, nullptr);
  }

  int prepare() {
    const int64_t inner = inner_bytes(frame_, engines_);
    const size_t vectors = storage_bytes<Storage<T>>(size_);
    char* block = ok() && inner >= 0 ? space_->reserve(vectors + size_t(inner)) : nullptr;
    if (!block) return failed() == Result::FAILED;
    region_ = {block + vectors, block + vectors, block + vectors + inner, frame_.scratch};
    cut(block, at_, size_);
    space_->lend(at_.numbers, at_.bad);
    std::vector<T> identity(static_cast<size_t>(k_ * k_), T(0));
    for (int64_t j = 0; j < k_; j++) identity[size_t(j * (k_ + 1))] = T(1);
    space_->upload(at_.identity, identity.data(), sizeof(T) * identity.size());
    T last;
    space_->download(&last, at_.identity, sizeof last);  // waits for the copy
    return !ok() && failed() == Result::FAILED;
  }

  // The matrix of `frame`, which may go to another place of the batch than the frame of the constructor.
  Result run(const Frame& frame) {
    std::copy_n(frame.buffer, 8, frame_.buffer);
    if (const Result result = find_subspace(); result != Result::DONE) return result;
    for (int round = 0; round < MOST_ROUNDS; round++) {
      if (round > 0)
        if (const Result result = improve_subspace(); result != Result::DONE) return result;
      if (const Result result = rotate(); result != Result::DONE) return result;
      if (residual_ <= double(size_.lesser) * std::numeric_limits<Real>::epsilon()) return write();
    }
    return Result::LEFT;
  }

  double residual() const { return residual_; }
  const Frame& frame() const { return frame_; }

 private:
  bool ok() const { return space_->ok() && wide_space_->ok(); }
  Result failed() {
    if (!frame_.error[0]) fail_as(frame_, space_frame_.error[0] ? space_frame_ : wide_frame_);
    return Result::FAILED;
  }
  const T* matrix() const { return static_cast<const T*>(frame_.buffer[0]); }

  // G <- M M^H, or M^H M, in double precision, and E <- its leading eigenvectors
  Result find_subspace() {
    form_gram();
    Frame eigh = gram_frame(frame_);
    void* vectors = Storage<T>::CONVERTS ? static_cast<void*>(at_.wide_vectors) : static_cast<void*>(at_.e);
    void* buffers[] = {at_.gram, at_.squares, vectors, at_.info};
    std::copy_n(buffers, 4, eigh.buffer);
    if (!ok()) return failed();
    if (const Result result = run_inner(engines_.eigh, eigh, at_.info); result != Result::DONE) return result;
    if constexpr (Storage<T>::CONVERTS) space_->narrow(at_.wide_vectors, k_ * size_.lesser, at_.e);
    std::vector<double> squares(static_cast<size_t>(k_));
    wide_space_->download(squares.data(), at_.squares, sizeof(double) * squares.size());
    if (!ok()) return failed();
    // the square of a value that is wanted must stand out from the rounding errors of the Gram matrix
    const double most = squares.back(), noise = double(size_.lesser) * std::numeric_limits<double>::epsilon() * most;
    return most > LEAST_SQUARE && most < MOST_SQUARE && squares.front() > noise ? Result::DONE : Result::LEFT;
  }

  void form_gram() {
    const bool tall = size_.tall();
    const int64_t n = size_.n;
    if constexpr (!Storage<T>::CONVERTS) {
      return wide_space_->gram(!tall, size_.lesser, size_.greater, matrix(), n, 0, at_.gram);
    } else {
      for (int64_t first = 0; first < size_.greater; first += size_.slice()) {
        const int64_t width = std::min(size_.slice(), size_.greater - first);
        if (tall)  // rows of A
          space_->widen(matrix() + first * n, width, n, n, at_.wide_rows);
        else  // columns of A
          space_->widen(matrix() + first, size_.m, width, n, at_.wide_rows);
        wide_space_->gram(!tall, size_.lesser, width, at_.wide_rows, tall ? n : width, first > 0, at_.gram);
      }
    }
  }

  // Y <- X M, or X M^H: from the lesser side to the greater one
  void multiply(const T* x, T* y) {
    space_->gemm(false, !size_.tall(), k_, size_.greater, size_.lesser, 1, x, k_, matrix(), size_.n, 0, y, k_);
  }
  void multiply_back(const T* x, T* y) {
    space_->gemm(false, size_.tall(), k_, size_.lesser, size_.greater, 1, x, k_, matrix(), size_.n, 0, y, k_);
  }
  // Y <- X^H, of `columns` columns
  void turn(const T* x, int64_t columns, T* y) {
    space_->gemm(true, false, columns, k_, k_, 1, x, k_, at_.identity, k_, 0, y, columns);
  }

  // An engine's work on a frame with the buffers of this storage; LEFT where it failed on the numbers
  Result run_inner(int (*engine)(Frame&), Frame& inner, int32_t* info) {
    region_.at = region_.start;
    if (inner.device != CPU) inner.scratch = {&region_, Region::get};
    if (engine(inner)) {
      fail_as(frame_, inner);
      return Result::FAILED;
    }
    int32_t status = 0;
    space_->download(&status, info, sizeof status);
    if (!ok()) return failed();
    return status ? Result::LEFT : Result::DONE;
  }
  // U, S, V^H <- the SVD of the row-major matrix X (rows x count)
  Result thin_svd(const T* x, int64_t rows, T* u) {
    Frame inner = thin_frame(frame_, rows);
    void* buffers[] = {const_cast<T*>(x), u, at_.s, at_.z, at_.info};
    std::copy_n(buffers, 5, inner.buffer);
    return run_inner(engines_.thin_svd, inner, at_.info);
  }

  // F, S, Z from E M = Z^T S F, E <- (Z^T)^H E; then the residual F M^H - S E
  Result rotate() {
    multiply(at_.e, at_.image);
    if (const Result result = thin_svd(at_.image, size_.greater, at_.f); result != Result::DONE) return result;
    space_->gemm(true, false, k_, size_.lesser, k_, 1, at_.z, k_, at_.e, k_, 0, at_.turned, k_);
    std::swap(at_.e, at_.turned);
    multiply_back(at_.f, at_.back);
    turn(at_.e, size_.lesser, at_.e_columns);
    turn(at_.back, size_.lesser, at_.back_columns);
    std::vector<Real> s(static_cast<size_t>(k_));
    space_->download(s.data(), at_.s, sizeof(Real) * s.size());
    const std::vector<double> values(s.begin(), s.end());
    std::vector<double> norms(s.size());
    space_->residual(at_.e_columns, at_.back_columns, values, k_, norms.data());
    if (!ok()) return failed();
    residual_ = *std::max_element(norms.begin(), norms.end()) / values.front();
    return std::isfinite(residual_) ? Result::DONE : Result::LEFT;
  }

  // E <- an orthonormal basis of the rows of F M^H
  Result improve_subspace() { return thin_svd(at_.back, size_.lesser, at_.e); }

  Result write() {
    auto* u = static_cast<T*>(frame_.buffer[1]);
    auto* vh = static_cast<T*>(frame_.buffer[3]);
    const size_t element = sizeof(T) * size_t(k_);
    if (size_.tall()) {
      space_->move(u, at_.f, element * size_t(size_.m));
      space_->move(vh, at_.e_columns, element * size_t(size_.n));
    } else {
      space_->move(u, at_.e, element * size_t(size_.m));
      turn(at_.f, size_.n, vh);
    }
    space_->move(frame_.buffer[2], at_.s, sizeof(Real) * size_t(k_));
    space_->move(frame_.buffer[4], at_.info, sizeof(int32_t));
    return ok() ? Result::DONE : failed();
  }

  Frame frame_;  // of the matrix at hand
  const SvdEngines& engines_;
  const Sizes size_;
  const int64_t k_;
  Frame space_frame_, wide_frame_;
  std::unique_ptr<Space<T>> space_;
  std::unique_ptr<Space<Wide>> wide_space_;
  Storage<T> at_{};
  Region region_;
  double residual_ = 0;  // the largest ||A^H u - s v|| / ||A||
};

// U, S and V^H of the full decomposition.
struct FullPlaces {
  size_t u, s, vh, total;

  explicit FullPlaces(const Frame& frame) {
    const Sizes at(frame);
    const int64_t batch = frame.size[0], element = int64_t(size_of(frame.dtype)), real = int64_t(size_of(frame.dtype % 2));
    const auto rounded = [](int64_t bytes) { return size_t((bytes + 255) / 256 * 256); };
    u = 0;
    s = rounded(batch * at.m * at.lesser * element);
    vh = s + rounded(batch * at.lesser * real);
    total = vh + rounded(batch * at.lesser * at.n * element);
  }
};

// The first bytes of every line
int take_lines(Frame& frame, int32_t dtype, const void* from, int64_t from_length, void* to, int64_t length, int64_t lines) {
  const size_t element = size_of(dtype);
  if (frame.device != CPU) return cuda_take_lines(frame, dtype, from, from_length, to, length, lines);
  for (int64_t i = 0; i < lines; i++)
    std::memcpy(static_cast<char*>(to) + size_t(i * length) * element,
                static_cast<const char*>(from) + size_t(i * from_length) * element, size_t(length) * element);
  return 0;
}

}  // namespace

const char* svd_refuses(const Frame& frame) {
  const Sizes at(frame);
  if (2 * at.count > at.lesser) return "krylov finds up to half of the singular values";
  return nullptr;
}

int svd(Frame& frame, const SvdEngines& engines) {
  return by_dtype(frame.dtype, [&](auto zero) {
    PartialSvd<decltype(zero)> solver(part_of(frame, 0, 1), engines);
    if (solver.prepare()) return fail_as(frame, solver.frame());
    for (int64_t m = 0; m < frame.size[0]; m++) {
      Frame one = part_of(frame, m, 1);
      const Result result = solver.run(one);
      if (result == Result::FAILED) return fail_as(frame, solver.frame());
      if (result == Result::DONE) {
        note("svd: %lld singular values from the Gram matrix, largest residual %.1e of the norm", (long long)frame.size[3],
             solver.residual());
        continue;
      }
      note("svd: the Gram matrix is not accurate enough for the smallest of the values, so the full decomposition does the work");
      one.named = false;
      if (svd_by_full(one, engines)) return fail_as(frame, one);
      frame.engine = one.engine;
    }
    return 0;
  });
}

int svd_by_full(Frame& frame, const SvdEngines& engines) {
  const Sizes at(frame);
  const FullPlaces places(frame);
  const int64_t batch = frame.size[0];
  Pages memory{nullptr, nullptr};
  char* block = nullptr;
  if (frame.device == CPU)
    block = (memory = huge_pages_of(places.total)).get();
  else if (!(block = cuda::scratch(frame, places.total)))
    return 1;
  Frame full = full_frame(frame);
  void* buffers[] = {frame.buffer[0], block + places.u, block + places.s, block + places.vh, frame.buffer[4]};
  std::copy_n(buffers, 5, full.buffer);
  if (engines.full_svd(full)) return fail_as(frame, full);
  frame.engine = full.engine;
  const int32_t dtype = frame.dtype;
  return take_lines(frame, dtype, full.buffer[1], at.lesser, frame.buffer[1], at.count, batch * at.m) ||
         take_lines(frame, dtype % 2, full.buffer[2], at.lesser, frame.buffer[2], at.count, batch) ||
         take_lines(frame, dtype, full.buffer[3], at.lesser * at.n, frame.buffer[3], at.count * at.n, batch);
}

int64_t svd_bytes(Frame& frame, const SvdEngines& engines) {
  const int64_t inner = inner_bytes(frame, engines);
  const auto vectors = by_dtype(frame.dtype, [&](auto zero) { return storage_bytes<Storage<decltype(zero)>>(Sizes(frame)); });
  return inner < 0 ? inner : inner + int64_t(vectors);
}

int64_t svd_by_full_bytes(Frame& frame, const SvdEngines& engines) {
  Frame full = full_frame(frame);
  const int64_t inner = engines.full_svd_bytes(full);
  if (inner < 0) fail_as(frame, full);
  return inner < 0 ? inner : inner + int64_t(FullPlaces(frame).total);
}

}  // namespace lapwing::krylov
