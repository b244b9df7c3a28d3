// What every call of cuSOLVER needs: a handle, the size of its workspace, its answers in words.
#pragma once
#include <cstddef>

#include "frame.h"
#include "gpu/handles.h"

namespace lapwing::cusolver {

using cuda::type_of;

class Lease : public cuda::Lease {
 public:
  explicit Lease(Frame& frame, bool newest = false) : cuda::Lease(frame, newest ? vendor::newest_solver : vendor::solver) {}
  const Lease* operator->() const { return this; }
};

// The engine that these routines are here: AMD's are called through the same table.
inline const char* engine_name() { return ENGINE_NAMES[vendor::is_amd() ? ROCSOLVER : CUSOLVER]; }

struct Workspace {
  size_t device = 0, host = 0;
};

// 1 with a message when `status` is not 0.
inline int check(Frame& frame, int status, const char* doing) {
  return status ? fail(frame, "%s: the GPU solver library answered with status %d", doing, status) : 0;
}

}  // namespace lapwing::cusolver
