// Mixed precision on a GPU. The factor is a Cholesky factor by blocks, row-major, whose products run on the tensor cores in
// tf32: both operands have their sums along the rows there, the layout those cores want. The diagonal blocks are factored by
// the tiled kernel and inverted, so that panels and triangular solves are products too.
//
// H200, n = 32768: 62 ms, of which products 43, the diagonal blocks 13. Blocks of 2048 or strips of 1024 or 4096 take 2 to 4
// more.
#include <algorithm>
#include <cmath>

#include "gpu/cholesky.h"
#include "gpu/steps.h"
#include "gpu/vendor.h"
#include "methods/mixed_space.h"
#include "methods/storage.h"

namespace lapwing::mixed {
namespace {

constexpr int COMPUTE_TF32 = 77;
constexpr int64_t BLOCK = 1024;        // order of the diagonal blocks
constexpr int64_t STRIP = 2048;        // columns of the rest that are updated at a time: what lies above the diagonal is wasted
constexpr int64_t BASE = 32;           // what one warp inverts: invert_blocks in mixed.cu
constexpr int64_t BAND = 128, TILES = 8;  // of triangle_product in mixed.cu
constexpr int64_t MAX_BLOCKS = 132 * 16;
constexpr int64_t LOOK = 8;            // blocks factored between two looks at how it goes

int64_t blocks_of(int64_t n) { return (n + BLOCK - 1) / BLOCK; }
int64_t pitch_of(int64_t n) { return (n + 63) / 64 * 64; }
int64_t at_most(int64_t blocks) { return std::clamp<int64_t>(blocks, 1, MAX_BLOCKS); }

// The inner factorisation's scratch memory is a piece of ours.
void* hand_out(void* self, size_t) { return self; }

Frame inner_frame(const Frame& frame, int32_t dtype, int64_t order, void* matrix, int32_t* info, void* room) {
  Frame inner;
  inner.op = CHOLESKY;
  inner.dtype = dtype;
  inner.device = CUDA;
  inner.ordinal = frame.ordinal;
  inner.engine = TILED;
  inner.size[0] = 1;
  inner.size[1] = order;
  inner.buffer[0] = inner.buffer[1] = matrix;
  inner.buffer[2] = info;
  inner.stream = frame.stream;
  inner.scratch = {room, hand_out};
  return inner;
}

template <class T>
struct Storage {
  LowOf<T> *low, *inverses, *panel, *block, *first, *second;  // the factor; its diagonal blocks inverted; room
  T *b, *x, *r, *v, *z, *scaled, *conjugates, *diagonal, *u, *parts, *coefficients;
  double *d, *sums, *numbers;
  int32_t* info;
  char* progress;

  template <class Take>
  void take(const Shape& s, Take take) {
    using Low = LowOf<T>;
    const int64_t n = s.n, k = s.columns, block = s.block(), bands = (n + BAND - 1) / BAND;
    const bool single = k == 1;
    low = take(Low(), n * pitch_of(n));
    inverses = take(Low(), blocks_of(n) * BLOCK * BLOCK);
    panel = take(Low(), n * BLOCK);
    this->block = take(Low(), BLOCK * BLOCK);
    first = take(Low(), block);
    second = take(Low(), block);
    for (T** one : {&b, &x, &r}) *one = take(T(), block);
    v = take(T(), block * (s.cycle + 1));
    z = take(T(), block * s.cycle);
    scaled = take(T(), block);
    conjugates = take(T(), single ? 0 : block);
    diagonal = take(T(), single ? 0 : blocks_of(n) * BLOCK * BLOCK);
    u = take(T(), single ? (bands + TILES - 1) / TILES * n : block);  // for more columns: the sums that are conjugated
    parts = take(T(), single ? bands * n : 0);
    coefficients = take(T(), (s.cycle + 2) * k);
    d = take(double(), n);
    sums = take(double(), MAX_BLOCKS);
    numbers = take(double(), 2 + k);
    info = take(int32_t(), blocks_of(n));
    progress = take(char(), 4096);
  }
};

// The caller's memory need not be aligned.
template <class T>
size_t aligned_bytes(const Shape& shape) {
  return storage_bytes<Storage<T>>(shape) + 256;
}

// Positive definite matrices alone: on an H200 cuSOLVER's LU is no faster in float32 than in float64.
template <class T>
class CudaSpace : public Space<T> {
  using Low = LowOf<T>;
  using Base = Space<T>;
  using Base::frame_, Base::shape_, Base::a_, Base::exponent_, Base::norm_, Base::unfit;

 public:
  CudaSpace(Frame& frame, const Shape& shape) : Base(frame, shape), steps_(frame, "mixed precision", "mixed.cu") {
    char* block = steps_.ok() ? cuda::scratch(frame, aligned_bytes<T>(shape)) : nullptr;
    if (!block) steps_.stop();
    if (!block) return;
    cut(block + (256 - reinterpret_cast<uintptr_t>(block) % 256) % 256, at_, shape);
    this->b_ = at_.b, this->x_ = at_.x, this->r_ = at_.r, this->v_ = at_.v, this->z_ = at_.z;
  }

  bool ok() const override { return steps_.ok(); }

  // ---- in and out --------------------------------------------------------------------------------------------------

  Verdict load(const Frame& one) override {
    const int64_t n = shape_.n, k = shape_.columns, pitch = pitch_of(n);
    a_ = static_cast<const T*>(one.buffer[0]);
    const void* b = one.buffer[1];
    // numbers: ||D A D||^2, whether the diagonal is bad, the largest element of each right-hand side
    double *bad = at_.numbers + 1, *sizes = at_.numbers + 2;
    steps_.fill(at_.numbers, 0, sizeof(double) * size_t(2 + k));
    start("find_scale", at_most(n / 256), a_, n, at_.d, bad);
    start("load_lower", MAX_BLOCKS, a_, n, at_.d, at_.low, pitch, at_.sums);
    start("total", 1, at_.sums, int(MAX_BLOCKS), at_.numbers);
    start("side_sizes", k, b, n, k, at_.d, sizes);
    std::vector<double> numbers(size_t(2 + k));
    steps_.download(numbers.data(), at_.numbers, sizeof(double) * numbers.size());
    if (!ok()) return FAILED;
    if (numbers[1] != 0) return unfit("the diagonal is not positive, or out of range");
    norm_ = std::sqrt(numbers[0]);
    if (!(norm_ > 0) || !std::isfinite(norm_)) return unfit("an element is not finite");
    std::vector<double> by(size_t(k), 1);
    for (int64_t q = 0; q < k; q++) {
      if (!this->set_exponent(q, numbers[size_t(2 + q)])) return unfit("the right-hand side is out of range");
      by[size_t(q)] = std::ldexp(1.0, -exponent_[size_t(q)]);
    }
    steps_.upload(sizes, by.data(), sizeof(double) * by.size());
    start("load_sides", at_most(n * k / 1024), b, n, k, at_.d, sizes, at_.b);
    steps_.fill(at_.x, 0, sizeof(T) * size_t(n * k));
    if (k > 1) start_with(256, blocks_of(n), "take_diagonal", 64, a_, n, int(BLOCK), at_.diagonal);
    return ok() ? GOOD : FAILED;
  }

  void write(Frame& one) override {
    const int64_t n = shape_.n, k = shape_.columns;
    auto* exponents = reinterpret_cast<int32_t*>(at_.numbers);
    steps_.upload(exponents, exponent_.data(), sizeof(int32_t) * exponent_.size());
    start("write_sides", at_most(n * k / 1024), at_.x, n, k, at_.d, exponents, one.buffer[2]);
    steps_.fill(one.buffer[3], 0, sizeof(int32_t));
  }

  // ---- the factor --------------------------------------------------------------------------------------------------

  Verdict factor() override {
    const int64_t n = shape_.n, pitch = pitch_of(n);
    for (int64_t at = 0; at < n && ok(); at += BLOCK) {
      const int64_t depth = std::min(BLOCK, n - at), below = n - at - depth, block = at / BLOCK;
      Low *corner = at_.low + at * pitch + at, *inverse = at_.inverses + block * BLOCK * BLOCK;
      // A11 <- L11, and its inverse
      start("take_block", at_most(depth * depth / 1024), corner, pitch, int(depth), at_.block);
      Frame inner = inner_frame(frame_, dtype_of<Low>(), depth, at_.block, at_.info + block, at_.progress);
      if (ok() && cuda::cholesky_tiled(inner)) fail_as(frame_, inner), steps_.stop();
      invert(depth, inverse);
      if (((block + 1) % LOOK == 0 || !below) && broke_down(block + 1))
        return unfit("it is not positive definite in low precision");
      if (!below) break;
      // A21 <- A21 L11^-H
      Low* rest = corner + depth * pitch;
      steps_.gemm(vendor::OP_ADJOINT, depth, below, depth, 1, inverse, depth, rest, pitch, 0, at_.panel, depth, COMPUTE_TF32);
      start("put_rows", at_most(below), at_.panel, below, int(depth), rest, pitch);
      // A22 <- A22 - A21 A21^H
      for (int64_t q = 0; q < below; q += STRIP) {
        const Low* these = at_.panel + q * depth;
        steps_.gemm(vendor::OP_ADJOINT, std::min(STRIP, below - q), below - q, depth, -1, these, depth, these, depth, 1,
                  rest + q * pitch + depth + q, pitch, COMPUTE_TF32);
      }
    }
    return ok() ? GOOD : FAILED;
  }

  // inverse <- the inverse of the lower triangle in at_.block. The panel is free for the halves.
  void invert(int64_t order, Low* inverse) {
    steps_.fill(inverse, 0, sizeof(Low) * size_t(order * order));
    const int n = int(order);
    start_with(32, 1, "invert_blocks", (order + BASE - 1) / BASE, at_.block, n, inverse);
    for (int side = int(BASE); side < order; side *= 2) {
      const int64_t tiles = (side / BASE) * (side / BASE), pairs = (order + 2 * side - 1) / (2 * side);
      start_with(256, pairs, "merge_blocks", tiles, at_.block, inverse, n, side, 0, at_.panel);
      start_with(256, pairs, "merge_blocks", tiles, inverse, at_.panel, n, side, 1, inverse);
    }
  }

  bool broke_down(int64_t blocks) {
    std::vector<int32_t> info(size_t(blocks), 0);
    steps_.download(info.data(), at_.info, sizeof(int32_t) * info.size());
    return std::any_of(info.begin(), info.end(), [](int32_t i) { return i != 0; });
  }

  // ---- steps -------------------------------------------------------------------------------------------------------

  void multiply(const T* x, T* y) override {
    const int64_t n = shape_.n, k = shape_.columns;
    const int64_t some = at_most(n * k / 1024);
    start("scale_rows", some, x, n, k, at_.d, at_.scaled, k == 1 ? nullptr : at_.conjugates);
    if (k == 1) {
      const int64_t bands = (n + BAND - 1) / BAND;
      start_with(256, (bands + TILES - 1) / TILES, "triangle_product", bands, a_, n, at_.scaled, at_.u, at_.parts);
      start("sum_product", at_most((n + 255) / 256), at_.u, at_.parts, n, at_.d, y);
      return;
    }
    // A block row I of the stored triangle is W^T, W column-major: Y_I <- Y_I + W^T X, and conj(Y) <- conj(Y) + W conj(X_I)
    steps_.fill(at_.u, 0, sizeof(T) * size_t(n * k));
    for (int64_t i = 0; i < n; i += BLOCK) {
      const int64_t rows = std::min(BLOCK, n - i), from = shape_.upper ? i + rows : 0, width = shape_.upper ? n - i - rows : i;
      const T* whole = at_.diagonal + i * BLOCK;
      steps_.gemm(vendor::OP_NONE, rows, k, rows, 1, whole, BLOCK, at_.scaled + i, n, 0, y + i, n, vendor::COMPUTE_64);
      const T* w = a_ + i * n + from;
      steps_.gemm(vendor::OP_TRANSPOSE, rows, k, width, 1, w, n, at_.scaled + from, n, 1, y + i, n, vendor::COMPUTE_64);
      steps_.gemm(vendor::OP_NONE, width, k, rows, 1, w, n, at_.conjugates + i, n, 1, at_.u + from, n, vendor::COMPUTE_64);
    }
    start("join_product", some, y, at_.u, n, k, at_.d);
  }

  // Z <- L^-H L^-1 V block by block, the second half on conjugates: the row-major L is the transpose of what cuBLAS sees.
  void precondition(const T* v, T* z) override {
    const int64_t n = shape_.n, k = shape_.columns, pitch = pitch_of(n), count = n * k;
    const int64_t some = at_most(count / 1024), blocks = blocks_of(n);
    start("lower_vectors", some, v, count, at_.first);
    for (int64_t b = 0; b < blocks; b++) {
      const int64_t at = b * BLOCK, depth = std::min(BLOCK, n - at), below = n - at - depth;
      Low *inverse = at_.inverses + b * BLOCK * BLOCK, *x = at_.first + at, *y = at_.second + at;
      Low *strip = at_.low + (at + depth) * pitch + at, *rest = x + depth;
      if (k > 1) {
        steps_.gemm(vendor::OP_TRANSPOSE, depth, k, depth, 1, inverse, depth, x, n, 0, y, n, vendor::COMPUTE_32);
        steps_.gemm(vendor::OP_TRANSPOSE, below, k, depth, -1, strip, pitch, y, n, 1, rest, n, vendor::COMPUTE_32);
        continue;
      }
      start("rows_product", (depth + 7) / 8, inverse, depth, x, y, depth, int(depth), 0);
      start("rows_product", (below + 7) / 8, strip, pitch, y, rest, below, int(depth), 1);
    }
    if (sizeof(Low) == 8) start("conjugate_vectors", some, at_.second, count);
    for (int64_t b = blocks - 1; b >= 0; b--) {
      const int64_t at = b * BLOCK, depth = std::min(BLOCK, n - at);
      Low *inverse = at_.inverses + b * BLOCK * BLOCK, *x = at_.second + at, *y = at_.first + at;
      Low *strip = at_.low + at * pitch, *rest = at_.second;
      if (k > 1) {
        steps_.gemm(vendor::OP_NONE, depth, k, depth, 1, inverse, depth, x, n, 0, y, n, vendor::COMPUTE_32);
        steps_.gemm(vendor::OP_NONE, at, k, depth, -1, strip, pitch, y, n, 1, rest, n, vendor::COMPUTE_32);
        continue;
      }
      start("columns_product", (depth + 31) / 32, inverse, depth, x, y, int(depth), depth, 0);
      start("columns_product", (at + 31) / 32, strip, pitch, y, rest, int(depth), at, 1);
    }
    start("raise_vectors", some, at_.first, count, z);
  }

  void inner(const T* blocks, int64_t count, const T* w, T* c) override {
    const int64_t n = shape_.n, k = shape_.columns;
    start_with(1024, 1, "inner", count * k, blocks, w, n, k, at_.coefficients);
    steps_.download(c, at_.coefficients, sizeof(T) * size_t(count * k));
  }

  void add(const T* blocks, int64_t count, const T* c, T* w) override {
    const int64_t n = shape_.n, k = shape_.columns;
    steps_.upload(at_.coefficients, c, sizeof(T) * size_t(count * k));
    start("add_blocks", at_most(n * k / 256), blocks, count, at_.coefficients, n, k, w);
  }

  void scale(const T* from, const double* by, T* to) override {
    const int64_t n = shape_.n, k = shape_.columns;
    steps_.upload(at_.numbers, by, sizeof(double) * size_t(k));
    start("scale_columns", at_most(n * k / 1024), from, at_.numbers, n, k, to);
  }

 private:
  template <class... Arguments>
  void start(const char* name, int64_t blocks, Arguments... arguments) {
    start_with(256, 1, name, blocks, arguments...);
  }
  template <class... Arguments>
  void start_with(unsigned threads, int64_t second, const char* name, int64_t blocks, Arguments... arguments) {
    const int width = std::max(8, cuda::access_width({frame_.buffer[0], frame_.buffer[1], frame_.buffer[2]}));
    const cuda::Grid grid{unsigned(blocks), unsigned(second)};
    if (blocks > 0) steps_.start(cuda::options(frame_.dtype, shape_.upper, width), name, grid, threads, 0, arguments...);
  }

  cuda::Steps steps_;
  Storage<T> at_{};
};

}  // namespace

#define LAPWING_SPACE(T)                                                              \
  size_t cuda_bytes(T, const Shape& shape) { return aligned_bytes<T>(shape); } \
  std::unique_ptr<Space<T>> cuda_space(T, Frame& frame, const Shape& shape) { \
    return std::make_unique<CudaSpace<T>>(frame, shape);                                    \
  }
LAPWING_SPACE(double)
LAPWING_SPACE(std::complex<double>)

}  // namespace lapwing::mixed
