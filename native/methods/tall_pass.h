// What is done to the rows of a tall matrix. A complex matrix is a real one here, with the parts of an element side by side:
// twice the columns, and the same number of operations. Row-major everywhere.
#pragma once
#include <cstdint>

#include "frame.h"

namespace lapwing {

// What the passes need on a GPU.
struct TallDevice {
  double *gram = nullptr, *parts = nullptr;  // columns x columns; several of them
  void *square = nullptr, *line = nullptr, *kept = nullptr;  // line: a number for each column
  void* blas = nullptr;
};

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

// false: interrupted, or a failure with a message in the frame
template <class R>
bool tall_pass_cpu(Frame& frame, const TallPass<R>& pass);
template <class R>
bool tall_pass_cuda(Frame& frame, const TallPass<R>& pass, const TallDevice& device);

// The largest |element| of each column, infinite if one is not finite. largest: columns
template <class R>
bool tall_largest_cpu(Frame& frame, const TallPass<R>& pass, double* largest);
template <class R>
bool tall_largest_cuda(Frame& frame, const TallPass<R>& pass, const TallDevice& device, double* largest);

// The rows of one call on either device.
template <class R>
class TallRows {
 public:
  explicit TallRows(Frame& frame);
  ~TallRows();
  bool ok() const { return ok_; }
  bool pass(const TallPass<R>& pass) {
    return cpu_ ? tall_pass_cpu(frame_, pass) : tall_pass_cuda(frame_, pass, device_);
  }
  bool largest(const TallPass<R>& pass, double* largest) {
    return cpu_ ? tall_largest_cpu(frame_, pass, largest) : tall_largest_cuda(frame_, pass, device_, largest);
  }
  bool may_forget() const;  // whether a solving pass may do without `to`
  R* room(R* out);          // where rows are kept between passes; may be `out`
  bool write(void* to, const void* host, size_t bytes);

 private:
  Frame& frame_;
  bool cpu_, ok_ = true;
  void* kept_ = nullptr;
  TallDevice device_;
};

}  // namespace lapwing
