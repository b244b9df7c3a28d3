#include "cusolver.h"

#include <map>
#include <mutex>
#include <vector>

#include "cholesky_cuda.h"
#include "cuda.h"
#include "vendor.h"

namespace lapwing::cusolver {
namespace {

struct Handle {
  void* solver = nullptr;
  void* params = nullptr;
};

std::mutex mutex;
std::map<void*, std::vector<Handle>> idle;  // by context; a handle serves one call at a time

int check(Frame& frame, int status, const char* doing) {
  return status ? fail(frame, "%s: the GPU solver library answered with status %d", doing, status) : 0;
}

// A solver handle on the frame's stream for the length of one call.
class Lease {
 public:
  explicit Lease(Frame& frame) {
    if (const char* reason = vendor::missing(vendor::solver)) {
      fail(frame, "engine cusolver: %s", reason);
      return;
    }
    const auto& api = vendor::table();
    if (api.context_current(&context_)) {
      fail(frame, "engine cusolver: there is no GPU context");
      return;
    }
    {
      std::lock_guard<std::mutex> hold(mutex);
      auto& pool = idle[context_];
      if (!pool.empty()) {
        handle_ = pool.back();
        pool.pop_back();
      }
    }
    if (!handle_.solver && check(frame, api.solver_create(&handle_.solver), "starting the solver")) return;
    if (!handle_.params && check(frame, api.solver_params(&handle_.params), "starting the solver")) return;
    ok_ = check(frame, api.solver_stream(handle_.solver, frame.stream), "choosing the stream") == 0;
  }
  ~Lease() {
    if (!handle_.solver) return;
    std::lock_guard<std::mutex> hold(mutex);
    idle[context_].push_back(handle_);
  }
  bool ok() const { return ok_; }
  const Handle* operator->() const { return &handle_; }

 private:
  Handle handle_;
  void* context_ = nullptr;
  bool ok_ = false;
};

int type_of(int32_t dtype) {
  constexpr int types[] = {vendor::REAL_32, vendor::REAL_64, vendor::COMPLEX_32, vendor::COMPLEX_64};
  return types[dtype];
}

struct Workspace {
  size_t device = 0, host = 0;
};

int workspace(Frame& frame, const Lease& lease, Workspace* need) {
  int type = type_of(frame.dtype);
  int64_t n = frame.size[1];
  int status = vendor::table().potrf_size(lease->solver, lease->params, vendor::FILL_LOWER, n, type, frame.buffer[1], n,
                                          type, &need->device, &need->host);
  return check(frame, status, "asking for the workspace");
}

}  // namespace

int64_t cholesky_scratch(Frame& frame) {
  Lease lease(frame);
  Workspace need;
  if (!lease.ok() || workspace(frame, lease, &need)) return -1;
  return int64_t(need.device);
}

// cuSOLVER is nearly twice as fast on the column-major lower triangle as on the upper one, so the row-major lower triangle
// is transposed on the way in and out: n^2 work beside n^3.
int cholesky(Frame& frame) {
  Lease lease(frame);
  Workspace need;
  if (!lease.ok() || workspace(frame, lease, &need)) return 1;
  void* device = nullptr;
  if (need.device && !(device = frame.scratch.get(frame.scratch.self, need.device)))
    return fail(frame, "no GPU memory for a workspace of %zu bytes", need.device);
  std::vector<char> host(need.host);
  int64_t batch = frame.size[0], n = frame.size[1];
  int type = type_of(frame.dtype);
  auto* out = static_cast<char*>(frame.buffer[1]);
  auto* info = static_cast<int32_t*>(frame.buffer[2]);
  size_t bytes = size_of(frame.dtype) * size_t(n) * size_t(n);
  if (cuda::transpose_in(frame)) return 1;
  for (int64_t m = 0; m < batch; m++) {
    int status = vendor::table().potrf(lease->solver, lease->params, vendor::FILL_LOWER, n, type, out + m * bytes, n, type,
                                       device, need.device, host.data(), need.host, info + m);
    if (check(frame, status, "cholesky")) return 1;
  }
  return cuda::finish(frame);
}

int eigh_small(Frame& frame, int64_t n, void* a, void* w, void* work, size_t bytes, int32_t* info) {
  Lease lease(frame);
  if (!lease.ok()) return 1;
  const auto& api = vendor::table();
  const int type = type_of(frame.dtype), real = type_of(frame.dtype % 2);
  Workspace need;
  int status = api.syevd_size(lease->solver, lease->params, vendor::WITH_VECTORS, vendor::FILL_UPPER, n, type, a, n, real, w,
                              type, &need.device, &need.host);
  if (check(frame, status, "asking for the workspace")) return 1;
  if (need.device > bytes) return fail(frame, "a workspace of %zu bytes is needed, %zu are there", need.device, bytes);
  std::vector<char> host(need.host);
  status = api.syevd(lease->solver, lease->params, vendor::WITH_VECTORS, vendor::FILL_UPPER, n, type, a, n, real, w, type, work,
                     need.device, host.data(), need.host, info);
  if (check(frame, status, "eigh")) return 1;
  return need.host ? check(frame, api.synchronize(frame.stream), "waiting for the GPU") : 0;  // host outlives the work
}

}  // namespace lapwing::cusolver
