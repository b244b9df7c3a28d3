// A cuSOLVER handle for the length of one call, and what every call needs beside it.
#pragma once
#include <cstddef>

#include "frame.h"

namespace lapwing::cusolver {

// On the frame's stream. A handle serves one call at a time and is kept for the next.
class Lease {
 public:
  explicit Lease(Frame& frame);
  ~Lease();
  Lease(const Lease&) = delete;
  bool ok() const { return ok_; }

  void* solver = nullptr;
  void* params = nullptr;
  const Lease* operator->() const { return this; }

 private:
  void* context_ = nullptr;
  bool ok_ = false;
};

struct Workspace {
  size_t device = 0, host = 0;
};

// 1 with a message when `status` is not 0.
int check(Frame& frame, int status, const char* doing);

int type_of(int32_t dtype);

}  // namespace lapwing::cusolver
