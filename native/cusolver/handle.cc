#include "cusolver/handle.h"

#include <map>
#include <mutex>
#include <tuple>
#include <utility>
#include <vector>

#include "gpu/vendor.h"

namespace lapwing::cusolver {
namespace {

std::mutex mutex;
std::map<void*, std::vector<std::pair<void*, void*>>> idle;  // handle and parameters, by context

}  // namespace

Lease::Lease(Frame& frame) {
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
      std::tie(solver, params) = pool.back();
      pool.pop_back();
    }
  }
  if (!solver && check(frame, api.solver_create(&solver), "starting the solver")) return;
  if (!params && check(frame, api.solver_params(&params), "starting the solver")) return;
  ok_ = check(frame, api.solver_stream(solver, frame.stream), "choosing the stream") == 0;
}

Lease::~Lease() {
  if (!solver) return;
  std::lock_guard<std::mutex> hold(mutex);
  idle[context_].emplace_back(solver, params);
}

int check(Frame& frame, int status, const char* doing) {
  return status ? fail(frame, "%s: the GPU solver library answered with status %d", doing, status) : 0;
}

int type_of(int32_t dtype) {
  constexpr int types[] = {vendor::REAL_32, vendor::REAL_64, vendor::COMPLEX_32, vendor::COMPLEX_64};
  return types[dtype];
}

}  // namespace lapwing::cusolver
