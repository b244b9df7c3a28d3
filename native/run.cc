#include "run.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <complex>
#include <cstdarg>
#include <cstdio>
#include <exception>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "cholesky_cpu.h"
#include "cholesky_cuda.h"
#include "cuda.h"
#include "cusolver.h"
#include "dtypes.h"
#include "eigh.h"
#include "lapack.h"
#include "matrix.h"
#include "solve.h"
#include "spectrum_cuda.h"
#include "threads.h"
#include "vendor.h"

namespace lapwing {
namespace {

// Replaced as a whole; an old table is left alive, since another thread may be reading it.
using Table = std::map<std::string, std::vector<Rule>>;
std::atomic<const Table*> table{nullptr};

template <class T>
int cholesky_batched_as(Frame& frame) {
  int64_t n = frame.size[1];
  auto* a = static_cast<const T*>(frame.buffer[0]);
  auto* out = static_cast<T*>(frame.buffer[1]);
  auto* info = static_cast<int32_t*>(frame.buffer[2]);
  bool upper = frame.flags & UPPER;
  double work = double(n) * n * n / 3 + 8.0 * n * n;  // the second term is the copy in and out
  bool finished = parallel_batch(frame, cholesky_group<T>(n), work, [&](int64_t first, int64_t last) {
    int64_t offset = first * n * n;
    cholesky_batch<T>(a + offset, out + offset, info + first, last - first, n, upper);
  });
  return finished ? 0 : 1;
}

// flags[m] <- 1 when every element of the named triangle is finite. `parts` is 2 for complex.
template <class Real>
int finite_as(Frame& frame, int parts) {
  int64_t batch = frame.size[0], n = frame.size[1];
  bool upper = frame.flags & UPPER;
  auto* a = static_cast<const Real*>(frame.buffer[0]);
  auto* flags = static_cast<int32_t*>(frame.buffer[1]);
  int threads = frame.threads > 0 ? frame.threads : allowed_threads();
  parallel(threads, batch, 1, [&](int64_t m, int64_t) {
    int32_t good = 1;
    for (int64_t i = 0; i < n; i++) {
      const Real* row = a + (m * n * n + i * n) * parts;
      int64_t first = upper ? i : 0, last = upper ? n : i + 1;
      Real sum = 0;
      for (int64_t k = first * parts; k < last * parts; k++) sum += row[k] * Real(0);
      if (!(sum == 0)) good = 0;
    }
    flags[m] = good;
  });
  return 0;
}

template <class T>
int hermitian_as(Frame& frame) {
  int64_t n = frame.size[1];
  auto* a = static_cast<const T*>(frame.buffer[0]);
  auto* out = static_cast<T*>(frame.buffer[1]);
  int threads = frame.threads > 0 ? frame.threads : allowed_threads();
  parallel(threads, frame.size[0], std::max<int64_t>(1, 65536 / (n * n)), [&](int64_t first, int64_t last) {
    for (int64_t m = first; m < last; m++) complete_hermitian(a + m * n * n, out + m * n * n, n, frame.flags & UPPER);
  });
  return 0;
}

void settle(Frame& frame, const char* hardware) {
  if (frame.engine == AUTO)
    frame.engine = choose(hardware, frame.op, frame.device, frame.dtype, frame.size[0], frame.size[1]);
}

// A rule measured on one GPU may name a kernel that another has too little shared memory for.
void settle(Frame& frame, const cuda::Properties& gpu) {
  bool open = frame.engine == AUTO;
  settle(frame, gpu.name);
  if (open && !cuda::cholesky_fits(frame, gpu)) frame.engine = CUSOLVER;
  if (open && frame.engine == CUSOLVER && vendor::missing(vendor::solver)) frame.engine = TILED;
}

int run_cpu(Frame& frame) {
  if (frame.op == FINITE) {
    bool is_float = frame.dtype == F32 || frame.dtype == C64;
    int parts = frame.dtype >= C64 ? 2 : 1;
    return is_float ? finite_as<float>(frame, parts) : finite_as<double>(frame, parts);
  }
  if (frame.op == HERMITIAN) return by_dtype(frame.dtype, [&](auto zero) { return hermitian_as<decltype(zero)>(frame); });
  if (frame.op == EIGH || frame.op == EIGVALSH) return eigh_on_cpu(frame);
  if (is_solve(frame.op)) return solve_on_cpu(frame);
  settle(frame, "");
  if (frame.engine == LAPACK) return lapack::cholesky(frame);
  if (frame.engine == BATCHED)
    return by_dtype(frame.dtype, [&](auto zero) { return cholesky_batched_as<decltype(zero)>(frame); });
  return fail(frame, "engine %d does not run on the CPU", frame.engine);
}

int run_cuda(Frame& frame) {
  cuda::Guard guard(frame);
  if (!guard.ok()) return 1;
  if (frame.op == FINITE) return cuda::finite(frame);
  if (frame.op == HERMITIAN) return cuda::hermitian(frame, frame.buffer[0], frame.buffer[1], nullptr, frame.size[0]);
  const cuda::Properties* gpu = cuda::properties(frame);
  if (!gpu) return 1;
  if (frame.op == EIGH || frame.op == EIGVALSH) return eigh_on_gpu(frame, *gpu);
  if (is_solve(frame.op)) return solve_on_gpu(frame, *gpu);
  settle(frame, *gpu);
  if (frame.engine == BATCHED) return cuda::cholesky_batched(frame);
  if (frame.engine == TILED) return cuda::cholesky_tiled(frame);
  if (frame.engine == CUSOLVER) return cusolver::cholesky(frame);
  return fail(frame, "engine %d does not run on a GPU", frame.engine);
}

// Where the status of each matrix stands; -1: there is none.
int status_place(int32_t op) {
  switch (op) {
    case FINITE: return 1;
    case CHOLESKY: case EIGVALSH: case INVERSE: case SVDVALS: return 2;
    case EIGH: case TRIANGULAR: case SOLVE: case LU: case SLOGDET: return 3;
    case SVD: return 4;
    default: return -1;
  }
}

// Nothing to do: a matrix of order 0 is positive definite, finite, and has no eigenvalue. What is left is a status each.
int run_empty(Frame& frame) {
  const int place = status_place(frame.op);
  if (place < 0 || frame.size[0] == 0) return 0;
  auto* status = static_cast<int32_t*>(frame.buffer[place]);
  if (frame.device == CPU) {
    std::fill_n(status, frame.size[0], frame.op == FINITE);
    return 0;
  }
  cuda::Guard guard(frame);
  if (!guard.ok()) return 1;
  return frame.op == FINITE ? cuda::finite(frame) : cuda::fill(frame, status, 0, 4 * size_t(frame.size[0]));
}

// Operations whose third size is one of the matrix too: without it there is nothing to do either.
bool is_empty(const Frame& frame) {
  if (frame.size[0] == 0 || frame.size[1] == 0) return true;
  switch (frame.op) {
    case EIGH: case EIGVALSH: return frame.size[3] == 0;
    case TRIANGULAR: case SOLVE: case LU_SOLVE: case CHOLESKY_SOLVE: case QR: case SVD: case SVDVALS: return frame.size[2] == 0;
    default: return false;
  }
}

// The part of a spectrum in plain numbers: negative `first` counts from the end, negative `count` is all.
bool settle_part(Frame& frame) {
  if (frame.op != EIGH && frame.op != EIGVALSH) return true;
  int64_t n = frame.size[1];
  if (frame.size[3] < 0) frame.size[2] = 0, frame.size[3] = n;
  if (frame.size[2] < 0) frame.size[2] += n;
  return frame.size[2] >= 0 && frame.size[2] + frame.size[3] <= n;
}

// Messages for the log of the thread that made the call.
thread_local std::vector<std::string> notes;

int no_memory(Frame& frame) {
  frame.out_of_memory = true;
  return fail(frame, "there is not enough host memory for the workspace");
}

}  // namespace

int run(Frame& frame) {
  if (frame.op < 0 || frame.op >= N_OPS || frame.dtype < 0 || frame.dtype >= N_DTYPES)
    return fail(frame, "no operation %d for dtype %d", frame.op, frame.dtype);
  if (!settle_part(frame)) return fail(frame, "the matrices are smaller than the part of the spectrum that was asked for");
  notes.clear();
  const lapack::Use library(frame);
  try {
    if (is_empty(frame)) return run_empty(frame);
    return frame.device == CPU ? run_cpu(frame) : run_cuda(frame);
  } catch (const std::bad_alloc&) {  // no exception may reach a caller written in C
    return no_memory(frame);
  } catch (const std::exception& error) {
    return fail(frame, "the native core failed: %s", error.what());
  }
}

int run_operator(Frame& frame, const krylov::Product& product, int* converged) {
  if (!settle_part(frame)) return fail(frame, "the part of the spectrum is larger than the matrix");
  const lapack::Use library(frame);
  try {
    krylov::Outcome outcome;
    int status = 1;
    if (frame.device == CPU) {
      status = krylov::eigh_operator(frame, product, &outcome);
    } else {
      cuda::Guard guard(frame);
      if (guard.ok()) status = krylov::eigh_operator(frame, product, &outcome);
    }
    *converged = outcome.converged;
    return status;
  } catch (const std::bad_alloc&) {
    return no_memory(frame);
  } catch (const std::exception& error) {
    return fail(frame, "the native core failed: %s", error.what());
  }
}

// The same entry for a library that was built on its own and found this one at run time.
extern "C" __attribute__((visibility("default"))) int lapwing_run(Frame* frame) { return run(*frame); }

int64_t scratch_bytes(Frame& frame) {
  const bool eigen = frame.op == EIGH || frame.op == EIGVALSH;
  if ((frame.op != CHOLESKY && !eigen && !is_solve(frame.op)) || frame.device != CUDA || is_empty(frame)) return 0;
  if (!settle_part(frame)) return fail(frame, "the part of the spectrum is larger than the matrix"), -1;
  cuda::Guard guard(frame);
  const cuda::Properties* gpu = guard.ok() ? cuda::properties(frame) : nullptr;
  if (!gpu) return -1;
  if (eigen) return eigh_scratch(frame, *gpu);
  if (is_solve(frame.op)) return solve_scratch(frame, *gpu);
  settle(frame, *gpu);
  if (frame.engine == BATCHED) return int64_t(cuda::cholesky_batched_scratch(frame, *gpu));
  if (frame.engine == TILED) return int64_t(cuda::cholesky_tiled_scratch(frame));
  return frame.engine == CUSOLVER ? cusolver::cholesky_scratch(frame) : 0;
}

int64_t host_bytes(Frame& frame) {
  if (!settle_part(frame) || is_empty(frame)) return 0;
  if (is_solve(frame.op)) return solve_host_bytes(frame);
  if (frame.op != EIGH && frame.op != EIGVALSH) return 0;
  if (frame.device == CPU) return eigh_host_bytes(frame);
  cuda::Guard guard(frame);
  return guard.ok() ? eigh_host_bytes(frame) : -1;
}

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

void set_rules(const char* hardware, const Rule* rules, size_t count) {
  static std::mutex writing;
  std::lock_guard<std::mutex> hold(writing);
  auto* next = table.load() ? new Table(*table.load()) : new Table;
  (*next)[hardware] = std::vector<Rule>(rules, rules + count);
  table = next;
}

int32_t choose(const char* hardware, int32_t op, int32_t device, int32_t dtype, int64_t batch, int64_t n) {
  if (const Table* all = table.load())
    for (const char* kind : {hardware, ""}) {
      auto found = all->find(kind);
      if (found == all->end()) continue;
      for (const Rule& r : found->second)
        if (r.op == op && r.device == device && r.dtype == dtype && r.n_min <= n && n <= r.n_max && r.batch_min <= batch &&
            batch <= r.batch_max)
          return r.engine;
    }
  if (device == CUDA) return CUSOLVER;
  return op == CHOLESKY ? BATCHED : LAPACK;
}

int fail(Frame& frame, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(frame.error, sizeof frame.error, format, arguments);
  va_end(arguments);
  return 1;
}

}  // namespace lapwing
