// Eigenvalues by cuSOLVER.
//
// The solver works in place on a column-major matrix, which is our row-major one conjugated: its vectors come out conjugated
// and as rows. So: a clean copy in (a matrix with NaN or Inf becomes zero, as the solver may fault on it), the solver, and a
// transpose out.
#include <algorithm>
#include <optional>
#include <vector>

#include "gpu/cuda.h"
#include "cusolver/cusolver.h"
#include "cusolver/handle.h"
#include "gpu/spectrum.h"
#include "gpu/vendor.h"

namespace lapwing::cusolver {
namespace {

// The largest order of which the solver takes several matrices together. Measured: see docs/performance.md.
constexpr int64_t MANY_LIMIT = 2048;
// Its integer check fails for n = 5000 with more than 28 matrices, and for millions of tiny ones.
constexpr int64_t MOST_ELEMENTS = 500000000, MOST_MATRICES = 500000;

enum Method { WHOLE, PART, MANY };

// From these orders on the newest copy of the solver is faster for one real matrix. H200, 12.3.5 against 12.0.4, ms (2026-11-16):
// float64 with vectors n = 4096 105 / 109, 8192 401 / 545, 16384 2002 / 3190; values alone 92 / 100, 214 / 496, 618 / 2819;
// float32 80 / 87, 316 / 476, 1446 / 2029; values alone 73 / 80, 193 / 433, 578 / 1741. For part of a spectrum all of it is computed
// there, which the old copy's own routine for parts beats at 4096 (103).
constexpr int64_t NEWEST_FROM = 4096, NEWEST_PART_FROM = 8192;
// Below this order the library chooses one stage by itself, and two stages are faster for the values alone in float64.
constexpr int64_t LIBRARY_CHOOSES_FROM = 8192;

struct Job {
  int64_t batch, n, first, count;
  bool vectors, in_result, in_input;
  Method method;
  bool newest;    // by the newest copy of the solver
  int algorithm;  // there
  int64_t chunk;  // matrices given to the solver at once
  size_t element, real;
  int type, real_type, mode;  // as the solver names them
};

Job read(const Frame& frame) {
  Job job{};
  job.batch = frame.size[0], job.n = frame.size[1], job.first = frame.size[2], job.count = frame.size[3];
  job.vectors = frame.op == EIGH;
  job.element = size_of(frame.dtype);
  job.real = size_of(frame.dtype % 2);
  job.type = type_of(frame.dtype);
  job.real_type = type_of(frame.dtype % 2);
  job.mode = job.vectors ? vendor::VALUES_AND_VECTORS : vendor::VALUES_ONLY;
  const bool whole = job.count == job.n;
  const bool many = job.batch > 1 && job.n <= MANY_LIMIT && !vendor::missing(vendor::many_solver);
  job.newest = !many && frame.dtype <= F64 && job.n >= (whole ? NEWEST_FROM : NEWEST_PART_FROM) && !vendor::missing(vendor::newest_solver);
  const bool small = job.n < LIBRARY_CHOOSES_FROM && frame.dtype == F64 && !job.vectors;
  job.algorithm = small ? vendor::ALGORITHM_TWO_STAGES : vendor::ALGORITHM_ANY;
  // older solvers of AMD's find all of a spectrum or nothing
  job.method = many ? MANY : whole || job.newest || !vendor::table().syevdx ? WHOLE : PART;
  job.in_result = job.vectors && whole;
  job.in_input = !job.in_result && (frame.flags & OVERWRITE);
  job.chunk = many ? std::clamp<int64_t>(MOST_ELEMENTS / (job.n * job.n), 1, std::min(job.batch, MOST_MATRICES)) : 1;
  return job;
}

int ask(Frame& frame, const Lease& lease, Job& job, Workspace* need) {
  const auto& api = vendor::table();
  int64_t found = 0;
  int status = 1;
  if (job.newest)
    if (check(frame, api.newest_options(lease.params, vendor::OPTION_SYEVD, job.algorithm), "choosing the algorithm")) return 1;
  switch (job.method) {
    case WHOLE:
      status = (job.newest ? api.newest_syevd_size : api.syevd_size)(lease.handle, lease.params, job.mode, vendor::FILL_LOWER, job.n, job.type, nullptr, job.n,
                              job.real_type, nullptr, job.type, &need->device, &need->host);
      break;
    case PART:
      status = api.syevdx_size(lease.handle, lease.params, job.mode, vendor::RANGE_BY_INDEX, vendor::FILL_LOWER, job.n, job.type,
                               nullptr, job.n, nullptr, nullptr, job.first + 1, job.first + job.count, &found, job.real_type,
                               nullptr, job.type, &need->device, &need->host);
      break;
    case MANY:
      // fewer at once where the solver refuses so many
      for (;; job.chunk = (job.chunk + 1) / 2) {
        status = api.syev_many_size(lease.handle, lease.params, job.mode, vendor::FILL_LOWER, job.n, job.type, nullptr, job.n,
                                    job.real_type, nullptr, job.type, &need->device, &need->host, job.chunk);
        if (status == 0 || job.chunk == 1) break;
      }
  }
  return check(frame, status, "asking for the workspace");
}

size_t aligned(size_t bytes) { return (bytes + 255) / 256 * 256; }

// One block of device memory, cut up.
struct Room {
  size_t finite, values, copy, work, total;
};
Room room_for(const Job& job, const Workspace& need) {
  Room at{};
  size_t copies = job.in_result || job.in_input ? 0 : size_t(job.chunk);
  at.finite = 0;
  at.values = at.finite + aligned(sizeof(int32_t) * size_t(job.batch));
  at.copy = at.values + aligned(job.real * size_t(job.n) * size_t(job.count == job.n ? 0 : job.chunk));
  at.work = at.copy + aligned(job.element * size_t(job.n) * size_t(job.n) * copies);
  at.total = at.work + aligned(need.device);
  return at;
}

int solve(Frame& frame, const Lease& lease, const Job& job, void* a, void* w, const Workspace& need, void* device, void* host,
          int32_t* info, int64_t matrices) {
  const auto& api = vendor::table();
  if (job.method == MANY)
    return check(frame,
                 api.syev_many(lease.handle, lease.params, job.mode, vendor::FILL_LOWER, job.n, job.type, a, job.n, job.real_type,
                               w, job.type, device, need.device, host, need.host, info, matrices),
                 "eigh");
  int64_t found = 0;
  const int status =
      job.method == WHOLE
          ? (job.newest ? api.newest_syevd : api.syevd)(lease.handle, lease.params, job.mode, vendor::FILL_LOWER, job.n, job.type, a, job.n, job.real_type, w,
                      job.type, device, need.device, host, need.host, info)
          : api.syevdx(lease.handle, lease.params, job.mode, vendor::RANGE_BY_INDEX, vendor::FILL_LOWER, job.n, job.type, a, job.n,
                       nullptr, nullptr, job.first + 1, job.first + job.count, &found, job.real_type, w, job.type, device,
                       need.device, host, need.host, info);
  return check(frame, status, "eigh");
}

// A job with its handle and the size of its workspace.
struct Call {
  explicit Call(Frame& frame) : job(read(frame)) {
    ok = start(frame);
    if (ok || !job.newest) return;
    // a library may be newer than the driver can serve
    vendor::reject_newest("it does not start with this driver");
    frame.error[0] = 0;
    job = read(frame), need = {};
    ok = start(frame);
  }
  bool start(Frame& frame) {
    lease.emplace(frame, job.newest);
    return lease->ok() && !ask(frame, *lease, job, &need);
  }

  Job job;
  Workspace need;
  std::optional<Lease> lease;
  bool ok = false;
};

}  // namespace

int64_t eigh_scratch(Frame& frame) {
  Call call(frame);
  if (!call.ok) return -1;
  return int64_t(room_for(call.job, call.need).total);
}

int64_t eigh_host_bytes(Frame& frame) {
  Call call(frame);
  if (!call.ok) return -1;
  return int64_t(call.need.host);
}

int eigh(Frame& frame) {
  Call call(frame);
  if (!call.ok) return 1;
  const Job& job = call.job;
  const Workspace& need = call.need;
  const Room at = room_for(job, need);
  char* scratch = cuda::scratch(frame, at.total);
  if (!scratch) return 1;
  std::vector<char> host(need.host);

  auto* a = static_cast<char*>(frame.buffer[0]);
  auto* w = static_cast<char*>(frame.buffer[1]);
  auto* v = job.vectors ? static_cast<char*>(frame.buffer[2]) : nullptr;
  auto* info = static_cast<int32_t*>(frame.buffer[job.vectors ? 3 : 2]);
  auto* finite = reinterpret_cast<int32_t*>(scratch + at.finite);
  const size_t matrix = job.element * size_t(job.n) * size_t(job.n);
  const bool part = job.count != job.n;
  if (cuda::finite(frame, finite)) return 1;

  for (int64_t m = 0; m < job.batch; m += job.chunk) {
    const int64_t matrices = std::min(job.chunk, job.batch - m);
    char* from = a + m * matrix;
    char* work = job.in_result ? v + m * matrix : job.in_input ? from : scratch + at.copy;
    char* values = part ? scratch + at.values : w + m * job.real * job.n;
    // work <- the whole Hermitian matrix, or zero
    if (cuda::hermitian(frame, from, work, finite + m, matrices)) return 1;
    if (solve(frame, *call.lease, job, work, values, need, scratch + at.work, host.data(), info + m, matrices)) return 1;
    // the part that was asked for stands first, unless all were computed
    const int64_t skip = job.method == PART ? 0 : job.first;
    if (cuda::settle(frame, {values, w + m * job.real * job.count, info + m, finite + m, matrices, job.n, skip, job.count})) return 1;
    if (job.vectors && cuda::turn(frame, work, v + m * job.element * job.n * job.count, info + m, matrices, job.n, skip, job.count))
      return 1;
  }
  return 0;
}

}  // namespace lapwing::cusolver
