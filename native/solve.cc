#include "solve.h"

#include "cusolver.h"
#include "lapack.h"
#include "mixed.h"
#include "run.h"
#include "solve_cpu.h"
#include "solve_cuda.h"
#include "vendor.h"

namespace lapwing {
namespace {

void settle(Frame& frame, const char* hardware) {
  if (frame.engine == AUTO)
    frame.engine = choose(hardware, frame.op, frame.device, frame.dtype, frame.size[0], frame.size[1]);
}

void settle(Frame& frame, const cuda::Properties& gpu) {
  const bool open = frame.engine == AUTO;
  settle(frame, gpu.name);
  if (!open) return;
  if (frame.engine == BATCHED && !cuda::solve_fits(frame, gpu)) frame.engine = CUSOLVER;
}

// Small systems go to the batched kernels in full precision, whatever was allowed.
bool is_mixed(const Frame& frame) {
  return frame.op == SOLVE && (frame.flags & MIXED) && (frame.dtype == F64 || frame.dtype == C128);
}

}  // namespace

int solve_on_cpu(Frame& frame) {
  const bool open = frame.engine == AUTO;
  settle(frame, "");
  if (open && frame.engine == BATCHED && !solve_fits(frame)) frame.engine = LAPACK;
  if (frame.engine == BATCHED) return solve_batched(frame);
  if (frame.engine == LAPACK) return is_mixed(frame) ? mixed::solve(frame, lapack::solve) : lapack::solve(frame);
  return fail(frame, "engine %d cannot take this on the CPU", frame.engine);
}

int solve_on_gpu(Frame& frame, const cuda::Properties& gpu) {
  settle(frame, gpu);
  if (frame.engine == BATCHED) return cuda::solve_batched(frame);
  if (frame.engine == CUSOLVER) return is_mixed(frame) ? mixed::solve(frame, cusolver::solve) : cusolver::solve(frame);
  return fail(frame, "engine %d cannot take this on a GPU", frame.engine);
}

int64_t solve_scratch(Frame& frame, const cuda::Properties& gpu) {
  settle(frame, gpu);
  if (frame.engine == BATCHED) return int64_t(cuda::solve_batched_scratch(frame, gpu));
  if (frame.engine != CUSOLVER) return 0;
  const int64_t full = cusolver::solve_scratch(frame);
  return full >= 0 && is_mixed(frame) ? full + mixed::scratch_bytes(frame) : full;
}

int64_t solve_host_bytes(Frame& frame) {
  if (frame.device != CPU || frame.engine != LAPACK) return 0;
  return lapack::solve_host_bytes(frame) + (is_mixed(frame) ? mixed::host_bytes(frame) : 0);
}

}  // namespace lapwing
