#include "gpu/krylov.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>

#include "gpu/cuda.h"
#include "cusolver/cusolver.h"
#include "gpu/vendor.h"

namespace lapwing::krylov {
namespace {

constexpr unsigned THREADS = 256;           // of the kernels in krylov.cu
constexpr int64_t MAX_BLOCKS = 132 * 16;    // the kernels stride over what is left
constexpr int64_t HOST_EIGH = 96;           // up to this order the host solves the small problem as fast as the GPU

}  // namespace

template <class T>
CudaSpace<T>::CudaSpace(Frame& frame, const Product* product)
    : frame_(frame), n_(frame.size[1]), product_(product), blas_(frame, vendor::blas), failed_(!blas_.get()) {}

template <class T>
int CudaSpace<T>::reserve(size_t bytes) {
  next_ = cuda::scratch(frame_, bytes);
  return next_ ? 0 : 1;
}

template <class T>
void CudaSpace<T>::check(int status, const char* doing) {
  if (!status || failed_) return;
  failed_ = true;
  if (!frame_.error[0]) fail(frame_, "engine krylov: %s failed with status %d", doing, status);
}

// ---- kernels -----------------------------------------------------------------------------------------------------

template <class T>
void* CudaSpace<T>::kernel(const char* name, size_t shared, int width) {
  if (failed_) return nullptr;
  const void* vectors = frame_.op == EIGH ? frame_.buffer[2] : nullptr;
  const auto bits = reinterpret_cast<uintptr_t>(frame_.buffer[0]) | reinterpret_cast<uintptr_t>(vectors);
  const int access = bits % 16 == 0 ? 16 : bits % 8 == 0 ? 8 : 4;
  char options[160];
  std::snprintf(options, sizeof options, "-DLW_DTYPE=%d -DLW_UPPER=%d -DLW_V=%d -DLW_WIDTH=%d", frame_.dtype,
                bool(frame_.flags & UPPER), access, width ? width : 32);
  void* found = cuda::function(frame_, "krylov.cu", options, name, shared);
  if (!found) failed_ = true;
  return found;
}

template <class T>
void CudaSpace<T>::start(void* kernel, int64_t blocks, unsigned threads, size_t shared, void** arguments) {
  if (failed_ || !kernel) return;
  const cuda::Grid grid{unsigned(std::clamp<int64_t>(blocks, 1, MAX_BLOCKS))};
  if (cuda::launch(frame_, kernel, grid, threads, shared, arguments)) failed_ = true;
}

template <class T>
void CudaSpace<T>::download(void* host, const void* from, size_t bytes) {
  if (failed_) return;
  const auto& api = vendor::table();
  check(api.copy_to_host(host, reinterpret_cast<uint64_t>(from), bytes, frame_.stream), "a copy to the host");
  check(api.synchronize(frame_.stream), "waiting for the GPU");
}

template <class T>
void CudaSpace<T>::upload(void* to, const void* host, size_t bytes) {
  if (failed_) return;
  check(vendor::table().copy_to_device(reinterpret_cast<uint64_t>(to), host, bytes, frame_.stream), "a copy to the GPU");
}

template <class T>
void CudaSpace<T>::copy(T* to, const T* from, int64_t columns) {
  if (failed_) return;
  const size_t bytes = sizeof(T) * size_t(n_ * columns);
  check(vendor::table().copy(reinterpret_cast<uint64_t>(to), reinterpret_cast<uint64_t>(from), bytes, frame_.stream), "a copy");
}

template <class T>
void CudaSpace<T>::clear(int32_t* flags, int64_t count) {
  if (!failed_ && cuda::fill(frame_, flags, 0, sizeof(int32_t) * size_t(count))) failed_ = true;
}

template <class T>
double CudaSpace<T>::read_largest() {
  double most = 0;
  download(&most, bad_, sizeof most);
  return most;
}

// The one number goes through the room for the pivots' flags, which is free then.
template <class T>
double CudaSpace<T>::largest(const T* a) {
  void* found = kernel("largest");
  clear(bad_, 2);
  void* arguments[] = {&a, &n_, &bad_};
  start(found, (n_ + 7) / 8, THREADS, 0, arguments);
  return read_largest();
}

template <class T>
double CudaSpace<T>::largest_of(const T* x, int64_t columns) {
  void* found = kernel("largest_of");
  clear(bad_, 2);
  int64_t count = n_ * columns;
  void* arguments[] = {&x, &count, &bad_};
  start(found, count / 2048, THREADS, 0, arguments);
  return read_largest();
}

template <class T>
void CudaSpace<T>::load(const T* a, T* c, double scale) {
  Real by = Real(scale);
  void* arguments[] = {&a, &c, &n_, &by};
  const int64_t tiles = (n_ + 31) / 32;
  start(kernel("mirror"), tiles * (tiles + 1) / 2, THREADS, 0, arguments);
  a_ = c;
}

template <class T>
void CudaSpace<T>::random(T* x, int64_t columns, uint64_t seed) {
  int64_t count = n_ * columns;
  double by = 1 / (75674.0 * std::sqrt(double(n_)));
  void* arguments[] = {&x, &count, &seed, &by};
  start(kernel("fill_random"), count / 1024, THREADS, 0, arguments);
}

template <class T>
void CudaSpace<T>::normalise(T* x, int64_t columns, T* gram, Rank<Real> rank, uint64_t replacement, int32_t* dead) {
  inner(x, columns, x, columns, gram, columns);
  int order = int(columns), width = columns <= 16 ? 16 : columns <= 32 ? 32 : 64;
  const size_t shared = sizeof(T) * size_t(order * order);
  void* factor_arguments[] = {&gram, &order, &rank.floor, &rank.relative, &bad_};
  start(kernel("cholesky_gram", shared), 1, THREADS, shared, factor_arguments);
  const size_t triangle = sizeof(T) * size_t(width * width);
  double by = 1 / (75674.0 * std::sqrt(double(n_)));
  void* solve_arguments[] = {&x, &n_, &order, &gram, &bad_, &dead, &replacement, &by};
  start(kernel("solve_rows", triangle, width), (n_ + 127) / 128, 128, triangle, solve_arguments);
}

template <class T>
void CudaSpace<T>::residual(const T* y, T* ay, const std::vector<double>& theta, int64_t columns, double* norms) {
  upload(numbers_, theta.data(), sizeof(double) * size_t(columns));
  double* found = numbers_ + columns;
  void* arguments[] = {&y, &ay, &numbers_, &n_, &columns, &found};
  start(kernel("residual"), columns, THREADS, 0, arguments);
  download(norms, found, sizeof(double) * size_t(columns));
}

// ---- products ----------------------------------------------------------------------------------------------------

template <class T>
void CudaSpace<T>::gemm(int a_op, int64_t m, int64_t n, int64_t k, T alpha, const T* a, int64_t lda, const T* b, int64_t ldb,
                        T beta, T* c, int64_t ldc) {
  if (failed_) return;
  const int type = cuda::type_of(lapack::dtype_of<T>());
  constexpr int compute = sizeof(Real) == 8 ? vendor::COMPUTE_64 : vendor::COMPUTE_32;
  check(vendor::table().blas_gemm(blas_.get(), a_op, vendor::OP_NONE, m, n, k, &alpha, a, type, lda, b, type, ldb, &beta, c,
                                  type, ldc, compute, vendor::GEMM_DEFAULT),
        "a product");
}

template <class T>
void CudaSpace<T>::multiply(const T* x, T* y, int64_t columns) {
  if (failed_) return;
  if (!product_) return gemm(vendor::OP_NONE, n_, columns, n_, T(1), a_, n_, x, n_, T(0), y, n_);
  if (product_->apply(product_->self, x, y, columns)) {
    failed_ = true;
    if (!frame_.error[0]) fail(frame_, "engine krylov: the product with the matrix failed");
    return;
  }
  if (scale_ == 1) return;
  int64_t count = n_ * columns;
  void* arguments[] = {&y, &count, &scale_};
  start(kernel("rescale"), count / 1024, THREADS, 0, arguments);
}

template <class T>
void CudaSpace<T>::inner(const T* v, int64_t v_columns, const T* x, int64_t columns, T* c, int64_t ldc) {
  gemm(vendor::OP_ADJOINT, v_columns, columns, n_, T(1), v, n_, x, n_, T(0), c, ldc);
}

template <class T>
void CudaSpace<T>::subtract(const T* v, int64_t v_columns, const T* c, int64_t ldc, T* x, int64_t columns) {
  gemm(vendor::OP_NONE, n_, columns, v_columns, T(-1), v, n_, c, ldc, T(1), x, n_);
}

template <class T>
void CudaSpace<T>::combine(const T* v, int64_t v_columns, const T* s, int64_t lds, T* y, int64_t columns) {
  gemm(vendor::OP_NONE, n_, columns, v_columns, T(1), v, n_, s, lds, T(0), y, n_);
}

// ---- the small problem and the way out ---------------------------------------------------------------------------

template <class T>
int64_t CudaSpace<T>::eigh_small(int64_t m, T* h, Real* w, T* room, int64_t room_elements) {
  if (m > HOST_EIGH && !vendor::missing(vendor::solver)) {
    const int64_t square = (m * m + 63) / 64 * 64, values = (m + 63) / 64 * 64;  // the solver wants aligned pieces
    if (room_elements > square + values + 64) {
      // room: H, the eigenvalues, info, then the solver's workspace
      T* matrix = room;
      auto* found = reinterpret_cast<Real*>(room + square);
      auto* info = reinterpret_cast<int32_t*>(room + square + values);
      void* work = room + square + values + 64;
      const size_t work_bytes = sizeof(T) * size_t(room_elements - square - values - 64);
      upload(matrix, h, sizeof(T) * size_t(m * m));
      if (failed_) return -1;
      const int answer = cusolver::eigh_small(frame_, m, matrix, found, work, work_bytes, info);
      if (answer == 0) {
        std::vector<T> tail(size_t(values + 1));  // eigenvalues and info in one go
        download(h, matrix, sizeof(T) * size_t(m * m));
        download(tail.data(), found, sizeof(T) * tail.size());
        std::memcpy(w, tail.data(), sizeof(Real) * size_t(m));
        int32_t status = 0;
        std::memcpy(&status, tail.data() + values, sizeof status);
        return failed_ ? -1 : status;
      }
      frame_.error[0] = 0;  // its workspace does not fit here: the host can do it
    }
  }
  return lapack::heevd(true, 'U', m, h, m, w);
}

template <class T>
void CudaSpace<T>::write(int64_t m, const T* y, const std::vector<double>& w, bool reversed) {
  const bool vectors = frame_.op == EIGH;
  int64_t count = frame_.size[3];
  auto* values = static_cast<Real*>(frame_.buffer[1]) + m * count;
  auto* info = static_cast<int32_t*>(frame_.buffer[vectors ? 3 : 2]) + m;
  T* out = vectors ? static_cast<T*>(frame_.buffer[2]) + m * n_ * count : nullptr;
  const int32_t status = y ? 0 : 1;
  upload(info, &status, sizeof status);
  std::vector<Real> host(size_t(count), std::numeric_limits<Real>::quiet_NaN());
  for (int64_t j = 0; y && j < count; j++) host[size_t(j)] = Real(w[size_t(reversed ? count - 1 - j : j)]);
  upload(values, host.data(), sizeof(Real) * size_t(count));
  if (vectors && y) {
    int order = reversed;
    void* arguments[] = {&y, &out, &n_, &count, &order};
    start(kernel("write_rows"), n_ * count / 1024, THREADS, 0, arguments);
  } else if (vectors && !failed_) {
    if (cuda::fill(frame_, out, 0xff, sizeof(T) * size_t(n_ * count))) failed_ = true;  // every bit set is a NaN
  }
  if (!failed_) check(vendor::table().synchronize(frame_.stream), "waiting for the GPU");  // the host's copies may go now
}

// Seconds on an H200 in float64: cuSOLVER's subset routine takes 26 ms, 0.1 s and 2.9 s at n = 2048, 4096 and 16384; a step
// is bound by the latency of its dozen kernels, or by reading A, or by flops. Only ratios matter.
template <class T>
double CudaSpace<T>::direct_cost() const {
  const double n = double(n_);
  return 6.6e-13 * n * n * n + 1.1e-5 * n;
}

template <class T>
double CudaSpace<T>::step_cost(int64_t columns, int64_t size) const {
  const double n = double(n_), c = double(columns);
  return 2e-4 * std::ceil(c / PANEL) + n * n * std::max(2e-12, 4e-14 * c) + 3e-13 * n * double(size) * c;
}

template <class T>
double CudaSpace<T>::ritz_cost(int64_t size) const {
  const double m = double(size);
  return 5e-4 + 1.1e-5 * m;
}

template class CudaSpace<float>;
template class CudaSpace<double>;
template class CudaSpace<std::complex<float>>;
template class CudaSpace<std::complex<double>>;

}  // namespace lapwing::krylov
