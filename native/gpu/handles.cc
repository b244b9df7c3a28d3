#include "gpu/handles.h"

#include <map>
#include <mutex>
#include <tuple>
#include <utility>
#include <vector>

namespace lapwing::cuda {
namespace {

std::mutex mutex;
// handle and parameters, by library and context, and on AMD's GPUs by stream: rocBLAS keeps device memory in a handle, which streams must
// not share, and a stream may be gone when the handle is taken again
std::map<std::tuple<int, void*, void*>, std::vector<std::pair<void*, void*>>> idle;

}  // namespace

Lease::Lease(Frame& frame, vendor::Library library) : library_(library) {
  const bool newest = library == vendor::newest_solver, solver = newest || library == vendor::solver;
  const char* name = solver ? "solver" : "BLAS";
  if (const char* reason = vendor::missing(library)) {
    fail(frame, "the GPU's %s library is missing: %s", name, reason);
    return;
  }
  const auto& api = vendor::table();
  stream_ = vendor::is_amd() ? frame.stream : nullptr;
  if (api.context_current(&context_)) {
    fail(frame, "the GPU's %s library: there is no GPU context", name);
    return;
  }
  {
    std::lock_guard<std::mutex> hold(mutex);
    auto& pool = idle[{library, context_, stream_}];
    if (!pool.empty()) {
      std::tie(handle, params) = pool.back();
      pool.pop_back();
    }
  }
  int status = handle ? 0 : newest ? api.newest_create(&handle) : solver ? api.solver_create(&handle) : api.blas_create(&handle);
  if (!status && solver && !params) status = newest ? api.newest_params(&params) : api.solver_params(&params);
  if (status) {
    fail(frame, "starting the %s: the GPU's library answered with status %d", name, status);
    return;
  }
  const auto choose_stream = newest ? api.newest_stream : solver ? api.solver_stream : api.blas_stream;
  status = choose_stream(handle, frame.stream);
  ok_ = status == 0;
  if (!ok_) fail(frame, "choosing the stream: the GPU's %s library answered with status %d", name, status);
}

Lease::~Lease() {
  if (!handle) return;
  std::lock_guard<std::mutex> hold(mutex);
  idle[{library_, context_, stream_}].emplace_back(handle, params);
}

int type_of(int32_t dtype) {
  constexpr int types[] = {vendor::REAL_32, vendor::REAL_64, vendor::COMPLEX_32, vendor::COMPLEX_64};
  return types[dtype];
}

}  // namespace lapwing::cuda
