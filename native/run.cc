#include "run.h"

#include <algorithm>
#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <exception>
#include <mutex>
#include <new>
#include <utility>

#include "cpu/denormals.h"
#include "cpu/matrix.h"
#include "cpu/scale.h"
#include "dtypes.h"
#include "gpu/cholesky.h"
#include "gpu/cuda.h"
#include "lapack/lapack.h"
#include "operations.h"
#include "plan.h"

namespace lapwing {
namespace {

// Messages for the log of the thread that made the call.
thread_local std::vector<std::string> notes;

std::atomic<bool> recording{false};
std::mutex runs_mutex;
std::vector<Ran> runs;

void record(const Frame& frame) {
  if (!recording.load(std::memory_order_relaxed)) return;
  std::lock_guard<std::mutex> hold(runs_mutex);
  runs.push_back({frame.op, frame.engine, frame.dtype, frame.size[0], frame.size[1]});
}

// x <- 0 and ||b||^2, where the matrix has no rows or no columns
void empty_lstsq(const Frame& frame) {
  by_dtype(frame.dtype, [&](auto zero) {
    using T = decltype(zero);
    const int64_t batch = frame.size[0], m = frame.size[1], n = frame.size[2], k = frame.size[3];
    auto* b = static_cast<const T*>(frame.buffer[1]);
    auto* residuals = static_cast<RealOf<T>*>(frame.buffer[3]);
    std::fill_n(static_cast<T*>(frame.buffer[2]), batch * n * k, T(0));
    std::fill_n(residuals, batch * k, RealOf<T>(0));
    std::fill_n(static_cast<int32_t*>(frame.buffer[4]), batch, 0);
    for (int64_t i = 0; i < batch * m; i++)
      for (int64_t j = 0; j < k; j++) residuals[i / m * k + j] += std::norm(b[i * k + j]);
  });
}

// What is left to do for an empty call is a status for each matrix.
int run_empty(Frame& frame) {
  if (frame.op == LSTSQ && frame.device == CPU) empty_lstsq(frame);
  const int place = status_place(frame.op);
  frame.engine = AUTO;
  if (place < 0 || frame.size[0] == 0) return 0;
  auto* status = static_cast<int32_t*>(frame.buffer[place]);
  if (frame.device == CPU) {
    std::fill_n(status, frame.size[0], frame.op == FINITE);
    return 0;
  }
  return frame.op == FINITE ? cuda::finite(frame) : cuda::fill(frame, status, 0, 4 * size_t(frame.size[0]));
}

// A matrix may not be destroyed while right-hand sides in its memory are still to be read.
void keep_shared_input(Frame& frame) {
  if (frame.op != SOLVE || !(frame.flags & OVERWRITE)) return;
  const int64_t element = int64_t(size_of(frame.dtype)), rows = frame.size[0] * frame.size[1] * element;
  const auto* a = static_cast<const char*>(frame.buffer[0]);
  const auto* b = static_cast<const char*>(frame.buffer[1]);
  if (a < b + rows * frame.size[2] && b < a + rows * frame.size[1]) frame.flags &= ~uint32_t(OVERWRITE);
}

int run_at(Frame& frame, const Place& place) {
  if (is_empty(frame)) return run_empty(frame);
  const Choice choice = decide(frame, place);
  if (!choice.method) return fail(frame, "engine %s", no_method(frame, place).c_str());
  if (choice.why == Choice::NAMED || choice.why == Choice::LIMITS) {  // others were asked on the way
    const std::string refusal = choice.method->refuses(frame, place);
    if (!refusal.empty()) return fail(frame, "engine %s: %s", ENGINE_NAMES[choice.engine()], refusal.c_str());
  }
  frame.named = choice.why == Choice::NAMED;
  frame.engine = choice.engine();
  keep_shared_input(frame);
  const int status = may_be_extreme(frame) ? run_scaled(frame, choice.method->run) : choice.method->run(frame);
  if (!status) record(frame);
  return status;
}

// From conj(A) conj(x) = conj(b)
int run_conjugated(Frame& frame) {
  Frame other = frame;
  other.flags &= ~uint32_t(CONJUGATE);
  other.buffer[1] = other.buffer[2];
  const int64_t count = frame.size[0] * frame.size[1] * frame.size[2];
  const auto conjugate = [&](const void* from, void* to) {
    by_dtype(frame.dtype, [&](auto zero) {
      typedef decltype(zero) T;
      const T* x = static_cast<const T*>(from);
      std::transform(x, x + count, static_cast<T*>(to), [](T element) { return conjugated(element); });
    });
  };
  conjugate(frame.buffer[1], frame.buffer[2]);
  const int status = run_at(other, {});
  conjugate(frame.buffer[2], frame.buffer[2]);
  frame.engine = other.engine;
  return status ? fail_as(frame, other) : 0;
}

int run_here(Frame& frame) {
  if (frame.device == CPU) return frame.op == TRIANGULAR && frame.flags & CONJUGATE ? run_conjugated(frame) : run_at(frame, {});
  if (frame.size[0] == 0) return 0;  // without a look at the GPU
  cuda::Guard guard(frame);
  const cuda::Properties* gpu = guard.ok() ? cuda::properties(frame) : nullptr;
  return gpu ? run_at(frame, {gpu, true}) : 1;
}

// No exception may reach a caller written in C.
template <class F>
int guarded(Frame& frame, F work) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    frame.out_of_memory = true;
    return fail(frame, "there is not enough host memory for the workspace");
  } catch (const std::exception& error) {
    return fail(frame, "the native core failed: %s", error.what());
  }
}

}  // namespace

int run(Frame& frame) {
  if (frame.op < 0 || frame.op >= N_OPS || frame.dtype < 0 || frame.dtype >= N_DTYPES)
    return fail(frame, "no operation %d for dtype %d", frame.op, frame.dtype);
  if (!settle_part(frame)) return fail(frame, "the matrices are smaller than the part of the spectrum that was asked for");
  notes.clear();
  const KeepDenormals exact;
  const lapack::Use library(frame);
  return guarded(frame, [&] { return run_here(frame); });
}

int run_operator(Frame& frame, const krylov::Product& product, int* converged) {
  if (!settle_part(frame)) return fail(frame, "the part of the spectrum is larger than the matrix");
  const KeepDenormals exact;
  const lapack::Use library(frame);
  return guarded(frame, [&] {
    krylov::Outcome outcome;
    int status = 1;
    if (frame.device == CPU) {
      status = krylov::eigh_operator(frame, product, &outcome);
    } else {
      cuda::Guard guard(frame);
      if (guard.ok()) status = krylov::eigh_operator(frame, product, &outcome);
    }
    *converged = outcome.converged;
    frame.engine = KRYLOV;
    if (!status) record(frame);
    return status;
  });
}

// The same entry for a library that was built on its own and found this one at run time.
extern "C" __attribute__((visibility("default"))) int lapwing_run(Frame* frame) { return run(*frame); }

void note(const char* format, ...) {
  char text[256];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  notes.push_back(text);
}

std::vector<std::string> take_notes() {
  return std::exchange(notes, {});
}

void record_runs(bool on) {
  std::lock_guard<std::mutex> hold(runs_mutex);
  runs.clear();
  recording = on;
}

std::vector<Ran> take_runs() {
  std::lock_guard<std::mutex> hold(runs_mutex);
  return std::exchange(runs, {});
}

}  // namespace lapwing
