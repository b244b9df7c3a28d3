#include "cusolver/cusolver.h"

#include <algorithm>
#include <vector>

#include "gpu/cholesky.h"
#include "gpu/cuda.h"
#include "gpu/dry.h"
#include "gpu/hip.h"
#include "cusolver/job.h"
#include "gpu/vendor.h"

namespace lapwing::cusolver {
namespace {

// Matrices that AMD's library factors at once, so that its workspace stays small; NVIDIA's takes them one by one.
int64_t at_once(const Frame& frame) {
  constexpr int64_t most_elements = 1 << 26;
  const int64_t n = frame.size[1];
  return vendor::is_amd() && !cuda::Dry::current() ? std::clamp<int64_t>(most_elements / (n * n), 1, frame.size[0]) : 1;
}

int workspace(Frame& frame, const Lease& lease, Workspace* need) {
  const int type = type_of(frame.dtype);
  const int64_t n = frame.size[1], count = at_once(frame);
  const int status = count > 1 ? vendor::hip::potrf_many_size(lease->handle, n, type, count, &need->device)
                               : vendor::table().potrf_size(lease->handle, lease->params, vendor::FILL_LOWER, n, type, frame.buffer[1], n,
                                                            type, &need->device, &need->host);
  return check(frame, status, "asking for the workspace");
}

bool by_recursion(Frame& frame) {
  return gains_by_recursion(frame) && !vendor::missing(vendor::blas) && !vendor::missing(vendor::dense_blas);
}

}  // namespace

int64_t cholesky_scratch(Frame& frame) {
  if (by_recursion(frame)) return solve_scratch(frame);
  Lease lease(frame);
  Workspace need;
  if (!lease.ok() || workspace(frame, lease, &need)) return -1;
  return int64_t(need.device);
}

// cuSOLVER is nearly twice as fast on the column-major lower triangle as on the upper one, so the row-major lower triangle
// is transposed on the way in and out: n^2 work beside n^3.
int cholesky(Frame& frame) {
  if (by_recursion(frame)) return cuda::transpose_in(frame) || solve(frame) || cuda::finish(frame);
  Lease lease(frame);
  Workspace need;
  if (!lease.ok() || workspace(frame, lease, &need)) return 1;
  void* device = nullptr;
  if (need.device && !(device = cuda::scratch(frame, need.device))) return 1;
  std::vector<char> host(need.host);
  int64_t batch = frame.size[0], n = frame.size[1];
  int type = type_of(frame.dtype);
  auto* out = static_cast<char*>(frame.buffer[1]);
  auto* info = static_cast<int32_t*>(frame.buffer[2]);
  size_t bytes = size_of(frame.dtype) * size_t(n) * size_t(n);
  if (cuda::transpose_in(frame)) return 1;
  for (int64_t m = 0, count = at_once(frame); m < batch; m += count) {
    char* first = out + m * bytes;
    const int status =
        count > 1 ? vendor::hip::potrf_many(lease->handle, n, type, first, std::min(count, batch - m), device, need.device, info + m)
                  : vendor::table().potrf(lease->handle, lease->params, vendor::FILL_LOWER, n, type, first, n, type, device,
                                          need.device, host.data(), need.host, info + m);
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
  int status = api.syevd_size(lease->handle, lease->params, vendor::VALUES_AND_VECTORS, vendor::FILL_UPPER, n, type, a, n, real, w,
                              type, &need.device, &need.host);
  if (check(frame, status, "asking for the workspace")) return 1;
  if (need.device > bytes) return fail(frame, "a workspace of %zu bytes is needed, %zu are there", need.device, bytes);
  std::vector<char> host(need.host);
  status = api.syevd(lease->handle, lease->params, vendor::VALUES_AND_VECTORS, vendor::FILL_UPPER, n, type, a, n, real, w, type, work,
                     need.device, host.data(), need.host, info);
  if (check(frame, status, "eigh")) return 1;
  return need.host ? check(frame, api.synchronize(frame.stream), "waiting for the GPU") : 0;  // host outlives the work
}

}  // namespace lapwing::cusolver
