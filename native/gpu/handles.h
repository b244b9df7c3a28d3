// Handles of the vendor's BLAS and solver for the length of one call, and their names for dtypes.
#pragma once
#include "frame.h"
#include "gpu/vendor.h"

namespace lapwing::cuda {

// On the frame's stream. A handle serves one call at a time and is kept for the next.
class Lease {
 public:
  Lease(Frame& frame, vendor::Library library);  // blas, solver or newest_solver
  ~Lease();
  Lease(const Lease&) = delete;
  bool ok() const { return ok_; }
  void* get() const { return ok_ ? handle : nullptr; }

  void *handle = nullptr, *params = nullptr;  // params: of the solver

 private:
  vendor::Library library_;
  void *context_ = nullptr, *stream_ = nullptr;
  bool ok_ = false;
};

int type_of(int32_t dtype);

}  // namespace lapwing::cuda
