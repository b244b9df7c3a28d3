// The memory in which a matrix is solved in mixed precision. A space knows the matrix and its low-precision factor; the
// refinement in mixed.cc knows nothing else of the device. A block is `columns` vectors of n elements, one after another.
#pragma once
#include <algorithm>
#include <cmath>
#include <complex>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <vector>

#include "frame.h"
#include "dtypes.h"

namespace lapwing::mixed {

template <class T>
using LowOf = std::conditional_t<std::is_same_v<T, double>, float, std::complex<float>>;

struct Shape {
  int64_t n, columns;
  int64_t cycle;  // steps before a restart
  bool positive, upper;
  int64_t block() const { return n * columns; }
};

// GOOD; UNFIT: low precision is not enough, and the space has the reason; FAILED: the message is in the frame, which has
// none if the call was interrupted.
enum Verdict { GOOD, UNFIT, FAILED };

template <class T>
class Space {
 public:
  using Low = LowOf<T>;
  Space(Frame& frame, const Shape& shape) : frame_(frame), shape_(shape), exponent_(size_t(shape.columns)) {}
  virtual ~Space() = default;
  virtual bool ok() const { return true; }

  // The scaled matrix A^ = R A C in low precision and the scaled right-hand sides, from buffers 0 and 1 of `one`.
  virtual Verdict load(const Frame& one) = 0;
  virtual Verdict factor() = 0;
  const char* reason() const { return reason_; }  // why UNFIT

  double norm() const { return norm_; }  // of A^
  // ||r|| / (||A|| ||x||) of the matrix itself, for a scaled r and x. For a positive definite matrix with R = C the scaled ratio
  // bounds it: C is around the root of the diagonal, so ||A|| ||C x|| >= ||x||_inf / min C, and ||C^-1 r|| <= ||r|| / min C.
  virtual void true_ratios(const T*, const T*, double* ratios) { std::fill_n(ratios, shape_.columns, 0.0); }

  T* right_sides() { return b_; }
  T* solution() { return x_; }
  T* residual() { return r_; }
  T* basis(int64_t j) { return v_ + j * shape_.block(); }
  T* direction(int64_t j) { return z_ + j * shape_.block(); }

  virtual void multiply(const T* x, T* y) = 0;      // Y <- A^ X
  virtual void precondition(const T* v, T* z) = 0;  // Z <- M^-1 V, columns of V of norm 1 or 0
  // c[i * columns + q] <- <block i, w>, column q of each; `c` is on the host
  virtual void inner(const T* blocks, int64_t count, const T* w, T* c) = 0;
  virtual void add(const T* blocks, int64_t count, const T* c, T* w) = 0;  // W <- W + the blocks, their columns times c
  virtual void scale(const T* from, const double* by, T* to) = 0;          // column by column
  virtual void write(Frame& one) = 0;                                      // x and info

 protected:
  Verdict unfit(const char* reason) { return reason_ = reason, UNFIT; }

  // Right-hand side q is 2^-exponent of the caller's, whose largest element is `most`. False: out of range.
  bool set_exponent(int64_t q, double most) {
    exponent_[size_t(q)] = most != 0 ? std::ilogb(most) : 0;
    return most == 0 || (most >= 0x1p-1000 && most <= 0x1p1000);
  }

  Frame& frame_;
  Shape shape_;
  const T* a_ = nullptr;
  const char* reason_ = "";
  std::vector<int32_t> exponent_;
  double norm_ = 0;
  T *b_ = nullptr, *x_ = nullptr, *r_ = nullptr, *v_ = nullptr, *z_ = nullptr, *scaled_ = nullptr;
};

#define LAPWING_SPACES(T)                                                \
  std::unique_ptr<Space<T>> cpu_space(T, Frame&, const Shape&);          \
  std::unique_ptr<Space<T>> cuda_space(T, Frame&, const Shape&);         \
  size_t cpu_bytes(T, const Shape&);                                     \
  size_t cuda_bytes(T, const Shape&);
LAPWING_SPACES(double)
LAPWING_SPACES(std::complex<double>)

}  // namespace lapwing::mixed
