// The passes over the rows of a tall matrix. A complex matrix is a real one here, with the parts of an element side by side:
// twice the columns, and the same number of operations. Row-major everywhere.
#pragma once
#include <cstdint>
#include <memory>

#include "frame.h"

namespace lapwing {

// X <- (A + noise) F^-1, or A P, or A; G <- X^T X
template <class R>
struct TallPass {
  int64_t rows = 0, columns = 0;
  const R* from = nullptr;
  R* to = nullptr;                  // may be `from`; null: not kept
  const double* factor = nullptr;   // upper triangle of a square
  const double* product = nullptr;  // a square
  const double* noise = nullptr;    // for each column the size of a number of random sign, or null
  const double* scale = nullptr;    // for each column, before G is formed; alone
  double* gram = nullptr;           // the upper triangle is written
};

// The rows of one call. The functions return false if they failed, with a message in the frame, or were interrupted.
template <class R>
class TallRows {
 public:
  virtual ~TallRows() = default;
  virtual bool ok() const { return true; }
  virtual bool pass(const TallPass<R>& pass) = 0;
  // The largest |element| of each column, infinite if one is not finite. largest: columns
  virtual bool largest(const TallPass<R>& pass, double* largest) = 0;
  virtual bool may_forget() const { return true; }  // whether a solving pass may do without `to`
  virtual R* room(R* out) = 0;                      // where rows are kept between passes; may be `out`
  virtual bool write(void* to, const void* host, size_t bytes) = 0;
};

std::unique_ptr<TallRows<float>> cpu_rows(float, Frame& frame);
std::unique_ptr<TallRows<double>> cpu_rows(double, Frame& frame);
std::unique_ptr<TallRows<float>> cuda_rows(float, Frame& frame);
std::unique_ptr<TallRows<double>> cuda_rows(double, Frame& frame);
int64_t tall_device_bytes(const Frame& frame);

}  // namespace lapwing
