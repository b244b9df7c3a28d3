// The Krylov engine's vectors on a GPU: products by cuBLAS, the rest by src/lapwing/kernels/krylov.cu. Everything is queued on
// the frame's stream; the host waits only where a function hands it numbers. See krylov_space.h for what each one does.
#pragma once
#include <string>

#include "gpu/handles.h"
#include "methods/krylov_space.h"

namespace lapwing::krylov {

template <class T>
class CudaSpace {
 public:
  using Real = RealOf<T>;
  using Scalar = T;
  static constexpr Device DEVICE = CUDA;
  static constexpr bool FULL_COPY = true;

  CudaSpace(Frame& frame, const Product* product);

  int reserve(size_t bytes);
  template <class E>
  E* take(int64_t count) {
    auto* start = reinterpret_cast<E*>(next_);
    next_ += (sizeof(E) * size_t(count) + 255) / 256 * 256;
    return start;
  }

  void lend(double* numbers, int32_t* bad) { numbers_ = numbers, bad_ = bad; }

  double largest(const T* a);
  void load(const T* a, T* c, double scale);
  void rescale(double scale) { scale_ = Real(scale); }
  void multiply(const T* x, T* y, int64_t columns);
  void inner(const T* v, int64_t v_columns, const T* x, int64_t columns, T* c, int64_t ldc);
  void subtract(const T* v, int64_t v_columns, const T* c, int64_t ldc, T* x, int64_t columns);
  void combine(const T* v, int64_t v_columns, const T* s, int64_t lds, T* y, int64_t columns);
  void normalise(T* x, int64_t columns, T* gram, Rank<Real> rank, uint64_t replacement, int32_t* dead);
  void random(T* x, int64_t columns, uint64_t seed);
  void residual(const T* y, T* ay, const std::vector<double>& theta, int64_t columns, double* norms);
  void copy(T* to, const T* from, int64_t columns);
  double largest_of(const T* x, int64_t columns);
  void to_host(T* host, const T* from, int64_t count) { download(host, from, sizeof(T) * size_t(count)); }
  void to_host(int32_t* host, const int32_t* from, int64_t count) { download(host, from, sizeof(int32_t) * size_t(count)); }
  void to_space(T* to, const T* host, int64_t count) { upload(to, host, sizeof(T) * size_t(count)); }
  void clear(int32_t* flags, int64_t count);
  int64_t eigh_small(int64_t m, T* h, Real* w, T* room, int64_t room_elements);
  void write(int64_t m, const T* y, const std::vector<double>& w, bool reversed);

  double direct_cost() const;
  double step_cost(int64_t columns, int64_t size) const;
  double ritz_cost(int64_t size) const;

  bool ok() const { return !failed_; }

 private:
  void gemm(int a_op, int64_t m, int64_t n, int64_t k, T alpha, const T* a, int64_t lda, const T* b, int64_t ldb, T beta,
            T* c, int64_t ldc);
  void* kernel(const char* name, size_t shared = 0, int width = 0);
  void start(void* kernel, int64_t blocks, unsigned threads, size_t shared, void** arguments);
  void download(void* host, const void* from, size_t bytes);
  void upload(void* to, const void* host, size_t bytes);
  void check(int status, const char* doing);
  double read_largest();

  Frame& frame_;
  int64_t n_;
  const Product* product_;
  cuda::Lease blas_;
  const T* a_ = nullptr;
  Real scale_ = 1;
  char* next_ = nullptr;
  double* numbers_ = nullptr;  // on their way to or from the host
  int32_t* bad_ = nullptr;
  bool failed_ = false;
};

}  // namespace lapwing::krylov
