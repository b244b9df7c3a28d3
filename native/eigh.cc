#include "eigh.h"

#include <complex>

#include "cusolver.h"
#include "dtypes.h"
#include "eigh_cpu.h"
#include "eigh_cuda.h"
#include "krylov.h"
#include "lapack.h"
#include "run.h"
#include "threads.h"
#include "vendor.h"

namespace lapwing {
namespace {

template <class T>
int eigh_batched_as(Frame& frame) {
  using Real = decltype(std::real(T()));
  const int64_t n = frame.size[1], first = frame.size[2], count = frame.size[3];
  const bool vectors = frame.op == EIGH, upper = frame.flags & UPPER;
  auto* a = static_cast<const T*>(frame.buffer[0]);
  auto* w = static_cast<Real*>(frame.buffer[1]);
  auto* v = vectors ? static_cast<T*>(frame.buffer[2]) : nullptr;
  auto* info = static_cast<int32_t*>(frame.buffer[vectors ? 3 : 2]);
  const double work = 9.0 * n * n * n + 20.0 * n * n;
  bool finished = parallel_batch(frame, eigh_group<T>(n), work, [&](int64_t m, int64_t last) {
    eigh_batch<T>(a + m * n * n, w + m * count, vectors ? v + m * n * count : nullptr, info + m, last - m, n, first, count, upper);
  });
  return finished ? 0 : 1;
}

int eigh_batched(Frame& frame) {
  if (frame.size[1] > EIGH_LARGEST)
    return fail(frame, "engine batched takes n up to %lld here", (long long)EIGH_LARGEST);
  return by_dtype(frame.dtype, [&](auto zero) { return eigh_batched_as<decltype(zero)>(frame); });
}

bool at_an_end(const Frame& frame) {
  const int64_t n = frame.size[1], first = frame.size[2], count = frame.size[3];
  return count < n && (first == 0 || first + count == n);
}

// For a part at an end of the spectrum the rules are asked by the number of values instead of the batch.
void settle(Frame& frame, const char* hardware) {
  if (frame.engine != AUTO) return;
  const int64_t batch = frame.size[0], n = frame.size[1], count = frame.size[3];
  frame.engine = choose(hardware, EIGH, frame.device, frame.dtype, batch, n);
  if (frame.engine != BATCHED && at_an_end(frame) &&
      choose(hardware, EIGH_PART, frame.device, frame.dtype, count, n) == KRYLOV)
    frame.engine = KRYLOV;
}

void settle(Frame& frame, const cuda::Properties& gpu) {
  const bool open = frame.engine == AUTO;
  settle(frame, gpu.name);
  if (!open) return;
  if (frame.engine == KRYLOV && vendor::missing(vendor::blas)) frame.engine = CUSOLVER;
  if (frame.engine == BATCHED && !cuda::eigh_fits(frame, gpu)) frame.engine = CUSOLVER;
  if (frame.engine == CUSOLVER && vendor::missing(vendor::solver) && cuda::eigh_fits(frame, gpu)) frame.engine = BATCHED;
}

// The iteration, and the direct routine where it would not pay. Who names the engine gets more of it.
constexpr double PATIENCE_IF_NAMED = 10;

int eigh_krylov(Frame& frame, bool named, int (*direct)(Frame&)) {
  if (!at_an_end(frame)) return fail(frame, "engine krylov takes a part at one end of the spectrum");
  krylov::Outcome outcome;
  if (krylov::eigh(frame, &outcome, named ? PATIENCE_IF_NAMED : 1)) return 1;
  if (!outcome.converged) {
    note("eigh: krylov stopped after %lld products, as the direct routine will be faster", (long long)outcome.products);
    return direct(frame);
  }
  note("eigh: krylov took %lld products and %d restarts, largest residual %.1e of the norm", (long long)outcome.products,
       outcome.restarts, outcome.residual);
  if (outcome.repeated_at_cut) note("eigh: a value is repeated across the cut, so that which of its vectors are returned is arbitrary");
  return 0;
}

}  // namespace

int eigh_on_cpu(Frame& frame) {
  const bool named = frame.engine != AUTO;
  settle(frame, "");
  if (frame.engine == LAPACK) return lapack::eigh(frame);
  if (frame.engine == BATCHED) return eigh_batched(frame);
  if (frame.engine == KRYLOV) return eigh_krylov(frame, named, lapack::eigh);
  return fail(frame, "engine %d has no eigh on the CPU", frame.engine);
}

int eigh_on_gpu(Frame& frame, const cuda::Properties& gpu) {
  const bool named = frame.engine != AUTO;
  settle(frame, gpu);
  if (frame.engine == BATCHED) return cuda::eigh_batched(frame);
  if (frame.engine == CUSOLVER) return cusolver::eigh(frame);
  if (frame.engine == KRYLOV) return eigh_krylov(frame, named, cusolver::eigh);
  return fail(frame, "engine %d has no eigh on a GPU", frame.engine);
}

int64_t eigh_scratch(Frame& frame, const cuda::Properties& gpu) {
  settle(frame, gpu);
  if (frame.engine == BATCHED) return int64_t(cuda::eigh_batched_scratch(frame, gpu));
  if (frame.engine == CUSOLVER) return cusolver::eigh_scratch(frame);
  return int64_t(krylov::scratch_bytes(frame));  // the direct routine asks for its own, should it take over
}

int64_t eigh_host_bytes(Frame& frame) {
  if (frame.engine == KRYLOV) return int64_t(krylov::host_bytes(frame));
  if (frame.device == CPU) return frame.engine == LAPACK ? lapack::eigh_host_bytes(frame) : 0;
  return frame.engine == CUSOLVER ? cusolver::eigh_host_bytes(frame) : 0;
}

}  // namespace lapwing
