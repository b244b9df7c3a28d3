#include "solve.h"

#include <algorithm>

#include "cusolver.h"
#include "lapack.h"
#include "mixed.h"
#include "run.h"
#include "solve_cpu.h"
#include "solve_cuda.h"
#include "tall.h"
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

// A matrix may not be destroyed while right-hand sides in its memory are still to be read.
void keep_shared_input(Frame& frame) {
  if (frame.op != SOLVE || !(frame.flags & OVERWRITE)) return;
  const int64_t element = int64_t(size_of(frame.dtype)), rows = frame.size[0] * frame.size[1] * element;
  const auto* a = static_cast<const char*>(frame.buffer[0]);
  const auto* b = static_cast<const char*>(frame.buffer[1]);
  if (a < b + rows * frame.size[2] && b < a + rows * frame.size[1]) frame.flags &= ~uint32_t(OVERWRITE);
}

// The full-precision engine, behind the shorter ways that some frames have.
template <int (*DIRECT)(Frame&)>
int solve_large(Frame& frame) {
  if (is_mixed(frame)) return mixed::solve(frame, DIRECT);
  return tall_fits(frame) ? tall(frame, DIRECT) : DIRECT(frame);
}

}  // namespace

int solve_on_cpu(Frame& frame) {
  keep_shared_input(frame);
  const bool open = frame.engine == AUTO;
  settle(frame, "");
  if (open && frame.engine == BATCHED && !solve_fits(frame)) frame.engine = LAPACK;
  if (frame.engine == BATCHED) return solve_batched(frame);
  if (frame.engine == LAPACK) return solve_large<lapack::solve>(frame);
  return fail(frame, "engine %d cannot take this on the CPU", frame.engine);
}

int solve_on_gpu(Frame& frame, const cuda::Properties& gpu) {
  keep_shared_input(frame);
  settle(frame, gpu);
  if (frame.engine == BATCHED) return cuda::solve_batched(frame);
  if (frame.engine == CUSOLVER) return solve_large<cusolver::solve>(frame);
  return fail(frame, "engine %d cannot take this on a GPU", frame.engine);
}

int64_t solve_scratch(Frame& frame, const cuda::Properties& gpu) {
  keep_shared_input(frame);
  settle(frame, gpu);
  if (frame.engine == BATCHED) return int64_t(cuda::solve_batched_scratch(frame, gpu));
  if (frame.engine != CUSOLVER) return 0;
  const int64_t direct = cusolver::solve_scratch(frame);
  if (direct < 0) return direct;
  return direct + (is_mixed(frame) ? mixed::scratch_bytes(frame) : tall_fits(frame) ? tall_scratch(frame) : 0);
}

int64_t solve_host_bytes(Frame& frame) {
  if (frame.device != CPU || frame.engine != LAPACK) return 0;
  const int64_t direct = lapack::solve_host_bytes(frame);
  if (is_mixed(frame)) return direct + mixed::host_bytes(frame);
  return tall_fits(frame) ? std::max(direct, tall_host_bytes(frame)) : direct;
}

}  // namespace lapwing
