// Mixed precision on a GPU. The factor is a Cholesky factor by blocks, row-major, whose products run on the tensor cores in
// tf32: both operands have their sums along the rows there, the layout those cores want. The diagonal blocks are factored by
// the tiled kernel and inverted, so that panels and triangular solves are products too.
//
// H200, n = 32768: 62 ms, of which products 43, the diagonal blocks 13. Blocks of 2048 or strips of 1024 or 4096 take 2 to 4
// more.
#include <cmath>
#include <cstdio>
#include <cstring>

#include "gpu/cholesky.h"
#include "gpu/cuda.h"
#include "methods/mixed_space.h"
#include "gpu/vendor.h"

namespace lapwing::mixed {
namespace {

constexpr int OP_TRANSPOSE = 1, COMPUTE_TF32 = 77;
constexpr int64_t BLOCK = 1024;        // order of the diagonal blocks
constexpr int64_t STRIP = 2048;        // columns of the rest that are updated at a time: what lies above the diagonal is wasted
constexpr int64_t BASE = 32;           // what one warp inverts: invert_blocks in mixed.cu
constexpr int64_t BAND = 128, TILES = 8;  // of triangle_product in mixed.cu
constexpr int64_t MAX_BLOCKS = 132 * 16;
constexpr int64_t LOOK = 8;            // blocks factored between two looks at how it goes

int64_t blocks_of(int64_t n) { return (n + BLOCK - 1) / BLOCK; }
int64_t pitch_of(int64_t n) { return (n + 63) / 64 * 64; }
int64_t at_most(int64_t blocks) { return std::clamp<int64_t>(blocks, 1, MAX_BLOCKS); }

template <class E>
int type_of() {
  return cuda::type_of(lapack::dtype_of<E>());
}

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

}  // namespace

template <class T>
template <class Take>
void CudaSpace<T>::Storage::take(const Shape& s, Take take) {
  const int64_t n = s.n, k = s.columns, block = s.block(), bands = (n + BAND - 1) / BAND;
  const bool single = k == 1;
  low = take(Low(), n * pitch_of(n));
  inverses = take(Low(), blocks_of(n) * BLOCK * BLOCK);
  panel = take(Low(), n * BLOCK);
  this->block = take(Low(), BLOCK * BLOCK);
  first = take(Low(), block);
  second = take(Low(), block);
  b = take(T(), block);
  x = take(T(), block);
  r = take(T(), block);
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

template <class T>
size_t CudaSpace<T>::bytes(const Shape& shape) {
  size_t total = 0;
  Storage().take(shape, [&](auto zero, int64_t count) {
    total += (sizeof zero * size_t(count) + 255) / 256 * 256;
    return static_cast<decltype(zero)*>(nullptr);
  });
  return total + 256;
}

template <class T>
CudaSpace<T>::CudaSpace(Frame& frame, const Shape& shape)
    : frame_(frame), shape_(shape), blas_(frame, vendor::blas), exponent_(size_t(shape.columns)), failed_(!blas_.get()) {
  if (failed_) return;
  const size_t wanted = bytes(shape);
  auto* next = cuda::scratch(frame, wanted);
  failed_ = !next;
  if (failed_) return;
  next += (256 - reinterpret_cast<uintptr_t>(next) % 256) % 256;
  at_.take(shape, [&](auto zero, int64_t count) {
    auto* start = reinterpret_cast<decltype(zero)*>(next);
    next += (sizeof zero * size_t(count) + 255) / 256 * 256;
    return start;
  });
}

// ---- calls -------------------------------------------------------------------------------------------------------

template <class T>
void CudaSpace<T>::check(int status, const char* doing) {
  if (!status || failed_) return;
  failed_ = true;
  if (!frame_.error[0]) fail(frame_, "mixed precision: %s failed with status %d", doing, status);
}

template <class T>
void* CudaSpace<T>::kernel(const char* name) {
  if (failed_) return nullptr;
  uintptr_t bits = 0;
  for (int i = 0; i < 3; i++) bits |= reinterpret_cast<uintptr_t>(frame_.buffer[i]);
  char options[96];
  std::snprintf(options, sizeof options, "-DLW_DTYPE=%d -DLW_UPPER=%d -DLW_V=%d", frame_.dtype, shape_.upper,
                bits % 16 == 0 ? 16 : 8);
  void* found = cuda::function(frame_, "mixed.cu", options, name);
  if (!found) failed_ = true;
  return found;
}

template <class T>
void CudaSpace<T>::start(const char* name, int64_t blocks, void** arguments, unsigned threads, int64_t second) {
  void* found = kernel(name);
  if (!found || blocks < 1) return;
  if (cuda::launch(frame_, found, {unsigned(blocks), unsigned(second)}, threads, 0, arguments)) failed_ = true;
}

template <class T>
template <class E>
void CudaSpace<T>::gemm(int a_op, int64_t m, int64_t n, int64_t k, double alpha, const E* a, int64_t lda, const E* b,
                        int64_t ldb, double beta, E* c, int64_t ldc, int compute) {
  if (failed_ || !m || !n || !k) return;
  const E by = E(RealOf<E>(alpha)), keep = E(RealOf<E>(beta));
  const int type = type_of<E>();
  check(vendor::table().blas_gemm(blas_.get(), a_op, vendor::OP_NONE, m, n, k, &by, a, type, lda, b, type, ldb, &keep, c, type,
                                  ldc, compute, vendor::GEMM_DEFAULT),
        "a product");
}

template <class T>
void CudaSpace<T>::download(void* host, const void* from, size_t size) {
  if (failed_) return;
  const auto& api = vendor::table();
  check(api.copy_to_host(host, reinterpret_cast<uint64_t>(from), size, frame_.stream), "a copy to the host");
  check(api.synchronize(frame_.stream), "waiting for the GPU");
}

template <class T>
void CudaSpace<T>::upload(void* to, const void* host, size_t size) {
  if (failed_) return;
  check(vendor::table().copy_to_device(reinterpret_cast<uint64_t>(to), host, size, frame_.stream), "a copy to the GPU");
}

template <class T>
void CudaSpace<T>::fill(void* to, size_t size) {
  if (!failed_ && cuda::fill(frame_, to, 0, size)) failed_ = true;
}

// ---- in and out --------------------------------------------------------------------------------------------------

template <class T>
Verdict CudaSpace<T>::load(const Frame& one) {
  int64_t n = shape_.n, k = shape_.columns, pitch = pitch_of(n);
  a_ = static_cast<const T*>(one.buffer[0]);
  const void* b = one.buffer[1];
  // numbers: ||D A D||^2, whether the diagonal is bad, the largest element of each right-hand side
  double *bad = at_.numbers + 1, *sizes = at_.numbers + 2;
  fill(at_.numbers, sizeof(double) * size_t(2 + k));
  void* scale_arguments[] = {&a_, &n, &at_.d, &bad};
  start("find_scale", at_most(n / 256), scale_arguments);
  void* load_arguments[] = {&a_, &n, &at_.d, &at_.low, &pitch, &at_.sums};
  start("load_lower", MAX_BLOCKS, load_arguments);
  int count = int(MAX_BLOCKS);
  void* total_arguments[] = {&at_.sums, &count, &at_.numbers};
  start("total", 1, total_arguments);
  void* size_arguments[] = {&b, &n, &k, &at_.d, &sizes};
  start("side_sizes", k, size_arguments);
  std::vector<double> numbers(size_t(2 + k));
  download(numbers.data(), at_.numbers, sizeof(double) * numbers.size());
  if (failed_) return FAILED;
  if (numbers[1] != 0) return unfit("the diagonal is not positive, or out of range");
  norm_ = std::sqrt(numbers[0]);
  if (!(norm_ > 0) || !std::isfinite(norm_)) return unfit("an element is not finite");
  std::vector<double> by(size_t(k), 1);
  for (int64_t q = 0; q < k; q++) {
    const double most = numbers[size_t(2 + q)];
    if (most != 0 && !(most >= 0x1p-1000 && most <= 0x1p1000)) return unfit("the right-hand side is out of range");
    exponent_[size_t(q)] = most != 0 ? std::ilogb(most) : 0;
    by[size_t(q)] = std::ldexp(1.0, -exponent_[size_t(q)]);
  }
  upload(sizes, by.data(), sizeof(double) * by.size());
  void* side_arguments[] = {&b, &n, &k, &at_.d, &sizes, &at_.b};
  start("load_sides", at_most(n * k / 1024), side_arguments);
  fill(at_.x, sizeof(T) * size_t(n * k));
  if (k > 1) {
    int order = int(BLOCK);
    void* arguments[] = {&a_, &n, &order, &at_.diagonal};
    start("take_diagonal", 64, arguments, 256, blocks_of(n));
  }
  return failed_ ? FAILED : GOOD;
}

template <class T>
void CudaSpace<T>::write(Frame& one) {
  int64_t n = shape_.n, k = shape_.columns;
  void* out = one.buffer[2];
  auto* exponents = reinterpret_cast<int32_t*>(at_.numbers);
  upload(exponents, exponent_.data(), sizeof(int32_t) * exponent_.size());
  void* arguments[] = {&at_.x, &n, &k, &at_.d, &exponents, &out};
  start("write_sides", at_most(n * k / 1024), arguments);
  fill(one.buffer[3], sizeof(int32_t));
}

// ---- the factor --------------------------------------------------------------------------------------------------

template <class T>
Verdict CudaSpace<T>::factor() {
  const int64_t n = shape_.n, pitch = pitch_of(n);
  for (int64_t at = 0; at < n && !failed_; at += BLOCK) {
    const int64_t depth = std::min(BLOCK, n - at), below = n - at - depth, block = at / BLOCK;
    Low *corner = at_.low + at * pitch + at, *inverse = at_.inverses + block * BLOCK * BLOCK;
    // A11 <- L11, and its inverse
    int order = int(depth);
    int64_t step = pitch;
    void* take_arguments[] = {&corner, &step, &order, &at_.block};
    start("take_block", at_most(depth * depth / 1024), take_arguments);
    Frame inner = inner_frame(frame_, lapack::dtype_of<Low>(), depth, at_.block, at_.info + block, at_.progress);
    if (!failed_ && cuda::cholesky_tiled(inner)) {
      std::memcpy(frame_.error, inner.error, sizeof frame_.error);
      failed_ = true;
    }
    invert(depth, inverse);
    if ((block + 1) % LOOK == 0 || !below) {
      if (broke_down(block + 1)) return unfit("it is not positive definite in low precision");
    }
    if (!below) break;
    // A21 <- A21 L11^-H
    Low* rest = corner + depth * pitch;
    gemm<Low>(vendor::OP_ADJOINT, depth, below, depth, 1, inverse, depth, rest, pitch, 0, at_.panel, depth, COMPUTE_TF32);
    int64_t rows = below;
    void* put_arguments[] = {&at_.panel, &rows, &order, &rest, &step};
    start("put_rows", at_most(below), put_arguments);
    // A22 <- A22 - A21 A21^H
    for (int64_t q = 0; q < below; q += STRIP) {
      const Low* these = at_.panel + q * depth;
      gemm<Low>(vendor::OP_ADJOINT, std::min(STRIP, below - q), below - q, depth, -1, these, depth, these, depth, 1,
                rest + q * pitch + depth + q, pitch, COMPUTE_TF32);
    }
  }
  return failed_ ? FAILED : GOOD;
}

// inverse <- the inverse of the lower triangle in at_.block. The panel is free for the halves.
template <class T>
void CudaSpace<T>::invert(int64_t order, Low* inverse) {
  fill(inverse, sizeof(Low) * size_t(order * order));
  int n = int(order), no = 0, yes = 1;
  void* arguments[] = {&at_.block, &n, &inverse};
  start("invert_blocks", (order + BASE - 1) / BASE, arguments, 32);
  for (int side = int(BASE); side < order; side *= 2) {
    const int64_t tiles = (side / BASE) * (side / BASE), pairs = (order + 2 * side - 1) / (2 * side);
    void* first[] = {&at_.block, &inverse, &n, &side, &no, &at_.panel};
    start("merge_blocks", tiles, first, 256, pairs);
    void* second[] = {&inverse, &at_.panel, &n, &side, &yes, &inverse};
    start("merge_blocks", tiles, second, 256, pairs);
  }
}

template <class T>
bool CudaSpace<T>::broke_down(int64_t blocks) {
  std::vector<int32_t> info(size_t(blocks), 0);
  download(info.data(), at_.info, sizeof(int32_t) * info.size());
  return std::any_of(info.begin(), info.end(), [](int32_t i) { return i != 0; });
}

// ---- steps -------------------------------------------------------------------------------------------------------

template <class T>
void CudaSpace<T>::multiply(const T* x, T* y) {
  int64_t n = shape_.n, k = shape_.columns;
  const int64_t some = at_most(n * k / 1024);
  T* conjugates = k == 1 ? nullptr : at_.conjugates;
  void* scale_arguments[] = {&x, &n, &k, &at_.d, &at_.scaled, &conjugates};
  start("scale_rows", some, scale_arguments);
  if (k == 1) {
    const int64_t bands = (n + BAND - 1) / BAND;
    void* arguments[] = {&a_, &n, &at_.scaled, &at_.u, &at_.parts};
    start("triangle_product", bands, arguments, 256, (bands + TILES - 1) / TILES);
    void* sum_arguments[] = {&at_.u, &at_.parts, &n, &at_.d, &y};
    start("sum_product", at_most((n + 255) / 256), sum_arguments);
    return;
  }
  // A block row I of the stored triangle is W^T, W column-major: Y_I <- Y_I + W^T X, and conj(Y) <- conj(Y) + W conj(X_I)
  fill(at_.u, sizeof(T) * size_t(n * k));
  for (int64_t i = 0; i < n; i += BLOCK) {
    const int64_t rows = std::min(BLOCK, n - i), from = shape_.upper ? i + rows : 0, width = shape_.upper ? n - i - rows : i;
    const T* whole = at_.diagonal + i * BLOCK;
    gemm<T>(vendor::OP_NONE, rows, k, rows, 1, whole, BLOCK, at_.scaled + i, n, 0, y + i, n, vendor::COMPUTE_64);
    const T* w = a_ + i * n + from;
    gemm<T>(OP_TRANSPOSE, rows, k, width, 1, w, n, at_.scaled + from, n, 1, y + i, n, vendor::COMPUTE_64);
    gemm<T>(vendor::OP_NONE, width, k, rows, 1, w, n, at_.conjugates + i, n, 1, at_.u + from, n, vendor::COMPUTE_64);
  }
  void* join_arguments[] = {&y, &at_.u, &n, &k, &at_.d};
  start("join_product", some, join_arguments);
}

// Z <- L^-H L^-1 V block by block, the second half on conjugates: the row-major L is the transpose of what cuBLAS sees.
template <class T>
void CudaSpace<T>::precondition(const T* v, T* z) {
  int64_t n = shape_.n, k = shape_.columns, pitch = pitch_of(n), count = n * k;
  const int64_t some = at_most(count / 1024), blocks = blocks_of(n);
  int no = 0, yes = 1;
  void* lower_arguments[] = {&v, &count, &at_.first};
  start("lower_vectors", some, lower_arguments);
  for (int64_t b = 0; b < blocks; b++) {
    int64_t at = b * BLOCK, depth = std::min(BLOCK, n - at), below = n - at - depth;
    int width = int(depth);
    Low *inverse = at_.inverses + b * BLOCK * BLOCK, *x = at_.first + at, *y = at_.second + at;
    Low *strip = at_.low + (at + depth) * pitch + at, *rest = x + depth;
    if (k > 1) {
      gemm<Low>(OP_TRANSPOSE, depth, k, depth, 1, inverse, depth, x, n, 0, y, n, vendor::COMPUTE_32);
      gemm<Low>(OP_TRANSPOSE, below, k, depth, -1, strip, pitch, y, n, 1, rest, n, vendor::COMPUTE_32);
      continue;
    }
    void* inverse_arguments[] = {&inverse, &depth, &x, &y, &depth, &width, &no};
    start("rows_product", (depth + 7) / 8, inverse_arguments);
    void* strip_arguments[] = {&strip, &pitch, &y, &rest, &below, &width, &yes};
    start("rows_product", (below + 7) / 8, strip_arguments);
  }
  void* conjugate_arguments[] = {&at_.second, &count};
  if (sizeof(Low) == 8) start("conjugate_vectors", some, conjugate_arguments);
  for (int64_t b = blocks - 1; b >= 0; b--) {
    int64_t at = b * BLOCK, depth = std::min(BLOCK, n - at);
    int rows = int(depth);
    Low *inverse = at_.inverses + b * BLOCK * BLOCK, *x = at_.second + at, *y = at_.first + at;
    Low *strip = at_.low + at * pitch, *rest = at_.second;
    if (k > 1) {
      gemm<Low>(vendor::OP_NONE, depth, k, depth, 1, inverse, depth, x, n, 0, y, n, vendor::COMPUTE_32);
      gemm<Low>(vendor::OP_NONE, at, k, depth, -1, strip, pitch, y, n, 1, rest, n, vendor::COMPUTE_32);
      continue;
    }
    void* inverse_arguments[] = {&inverse, &depth, &x, &y, &rows, &depth, &no};
    start("columns_product", (depth + 31) / 32, inverse_arguments);
    void* strip_arguments[] = {&strip, &pitch, &y, &rest, &rows, &at, &yes};
    start("columns_product", (at + 31) / 32, strip_arguments);
  }
  void* raise_arguments[] = {&at_.first, &count, &z};
  start("raise_vectors", some, raise_arguments);
}

template <class T>
void CudaSpace<T>::inner(const T* blocks, int64_t count, const T* w, T* c) {
  int64_t n = shape_.n, k = shape_.columns;
  void* arguments[] = {&blocks, &w, &n, &k, &at_.coefficients};
  start("inner", count * k, arguments, 1024);
  download(c, at_.coefficients, sizeof(T) * size_t(count * k));
}

template <class T>
void CudaSpace<T>::add(const T* blocks, int64_t count, const T* c, T* w) {
  int64_t n = shape_.n, k = shape_.columns;
  upload(at_.coefficients, c, sizeof(T) * size_t(count * k));
  void* arguments[] = {&blocks, &count, &at_.coefficients, &n, &k, &w};
  start("add_blocks", at_most(n * k / 256), arguments);
}

template <class T>
void CudaSpace<T>::scale(const T* from, const double* by, T* to) {
  int64_t n = shape_.n, k = shape_.columns;
  upload(at_.numbers, by, sizeof(double) * size_t(k));
  void* arguments[] = {&from, &at_.numbers, &n, &k, &to};
  start("scale_columns", at_most(n * k / 1024), arguments);
}

template class CudaSpace<double>;
template class CudaSpace<std::complex<double>>;

}  // namespace lapwing::mixed
