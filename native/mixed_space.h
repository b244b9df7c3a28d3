// The two places where a matrix is solved in mixed precision. A space knows the matrix and its low-precision factor; the
// refinement in mixed.cc knows nothing else of the device. A block is `columns` vectors of n elements, one after another.
#pragma once
#include <complex>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <vector>

#include "blas.h"
#include "frame.h"
#include "hermitian_product.h"

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
  static int64_t scratch(const Frame&, const Shape&) { return 0; }
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

}  // namespace lapwing::mixed
