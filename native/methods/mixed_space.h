// The two places where a matrix is solved in mixed precision. A space knows the matrix and its low-precision factor; the
// refinement in mixed.cc knows nothing else of the device. A block is `columns` vectors of n elements, one after another.
#pragma once
#include <algorithm>
#include <complex>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <vector>

#include "lapack/blas.h"
#include "frame.h"
#include "cpu/hermitian_product.h"
#include "gpu/krylov.h"

namespace lapwing::mixed {

using lapack::RealOf;

template <class T>
using LowOf = std::conditional_t<std::is_same_v<T, double>, float, std::complex<float>>;

struct Shape {
  int64_t n, columns;
  int64_t cycle;  // steps before a restart
  bool positive, upper;
  int64_t block() const { return n * columns; }
};

// Nothing, or why low precision will not do; a call that failed or was interrupted has its sentence in the frame.
enum Verdict { GOOD, UNFIT, FAILED };

template <class T>
class CpuSpace {
 public:
  using Scalar = T;
  using Low = LowOf<T>;

  CpuSpace(Frame& frame, const Shape& shape);
  static size_t bytes(const Shape& shape);

  // The scaled matrix A^ = R A C in low precision and the scaled right-hand sides, from buffers 0 and 1 of `one`.
  Verdict load(const Frame& one);
  Verdict factor();
  const char* reason() const { return reason_; }  // of UNFIT

  // Of A^, and what ||r|| / (||A|| ||x||) of the matrix itself is for a scaled r and x
  double norm() const { return norm_; }
  void true_ratios(const T* r, const T* x, double* ratios);

  T* right_sides() { return b_; }
  T* solution() { return x_; }
  T* residual() { return r_; }
  T* basis(int64_t j) { return v_ + j * shape_.block(); }
  T* direction(int64_t j) { return z_ + j * shape_.block(); }

  void multiply(const T* x, T* y);      // Y <- A^ X
  void precondition(const T* v, T* z);  // Z <- M^-1 V, columns of V of norm 1 or 0
  // c[i * columns + q] <- <block i, w>, column q of each; `host` arrays
  void inner(const T* blocks, int64_t count, const T* w, T* c);
  void add(const T* blocks, int64_t count, const T* c, T* w);  // W <- W + sum of the blocks with the columns scaled by c
  void scale(const T* from, const double* by, T* to);          // column by column
  void write(Frame& one);                                      // x and info
  bool ok() const { return true; }

 private:
  Verdict load_positive(const T* a);
  Verdict load_general(const T* a);
  Verdict unfit(const char* reason) { return reason_ = reason, UNFIT; }
  int threads() const;

  Frame& frame_;
  Shape shape_;
  const T* a_ = nullptr;
  const char* reason_ = "";
  HermitianProduct<T> hermitian_;
  std::unique_ptr<char, void (*)(void*)> memory_{nullptr, nullptr};
  Low *low_ = nullptr, *side_ = nullptr;  // the factor, and one block
  T *b_ = nullptr, *x_ = nullptr, *r_ = nullptr, *v_ = nullptr, *z_ = nullptr, *scaled_ = nullptr;
  double *row_ = nullptr, *column_ = nullptr;  // R and C
  int64_t* pivots_ = nullptr;
  std::vector<int> exponent_;  // right-hand side q is 2^-exponent of the caller's
  double norm_ = 0, whole_ = 0, smallest_row_ = 1, largest_column_ = 1;
  int shift_ = 0;              // whole_ is the norm of 2^-shift A
};

// Positive definite matrices alone: on an H200 cuSOLVER's LU is no faster in float32 than in float64.
template <class T>
class CudaSpace {
 public:
  using Scalar = T;
  using Low = LowOf<T>;

  CudaSpace(Frame& frame, const Shape& shape);
  static size_t bytes(const Shape& shape);

  Verdict load(const Frame& one);
  Verdict factor();
  const char* reason() const { return reason_; }
  double norm() const { return norm_; }
  void true_ratios(const T*, const T*, double* ratios) { std::fill_n(ratios, shape_.columns, 0.0); }  // see CpuSpace

  T* right_sides() { return at_.b; }
  T* solution() { return at_.x; }
  T* residual() { return at_.r; }
  T* basis(int64_t j) { return at_.v + j * shape_.block(); }
  T* direction(int64_t j) { return at_.z + j * shape_.block(); }

  void multiply(const T* x, T* y);
  void precondition(const T* v, T* z);
  void inner(const T* blocks, int64_t count, const T* w, T* c);
  void add(const T* blocks, int64_t count, const T* c, T* w);
  void scale(const T* from, const double* by, T* to);
  void write(Frame& one);
  bool ok() const { return !failed_; }

 private:
  struct Storage {
    Low *low, *inverses, *panel, *block, *first, *second;  // the factor; its diagonal blocks inverted; room
    T *b, *x, *r, *v, *z, *scaled, *conjugates, *diagonal, *u, *parts, *coefficients;
    double *d, *sums, *numbers;
    int32_t* info;
    char* progress;
    template <class Take>
    void take(const Shape& shape, Take take);
  };
  Verdict unfit(const char* reason) { return reason_ = reason, UNFIT; }
  void invert(int64_t order, Low* inverse);
  bool broke_down(int64_t blocks);
  void* kernel(const char* name);
  void start(const char* name, int64_t blocks, void** arguments, unsigned threads = 256, int64_t second = 1);
  template <class E>
  void gemm(int a_op, int64_t m, int64_t n, int64_t k, double alpha, const E* a, int64_t lda, const E* b, int64_t ldb,
            double beta, E* c, int64_t ldc, int compute);
  void download(void* host, const void* from, size_t size);
  void upload(void* to, const void* host, size_t size);
  void fill(void* to, size_t size);
  void check(int status, const char* doing);

  Frame& frame_;
  Shape shape_;
  cuda::Lease blas_;
  Storage at_{};
  const T* a_ = nullptr;
  const char* reason_ = "";
  std::vector<int32_t> exponent_;
  double norm_ = 0;
  bool failed_ = false;
};

}  // namespace lapwing::mixed
