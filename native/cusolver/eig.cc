// Eigenvalues and right eigenvectors of general matrices by cuSOLVER, one matrix after the other.
//
// The library gets conj(A), whose eigenvalues and vectors are those of A conjugated. It stores the vectors of a real matrix as
// LAPACK does, a pair of columns for a pair of eigenvalues. Its routine waits for the GPU anyway.
#include <memory>

#include "cusolver/cusolver.h"
#include "cusolver/handle.h"
#include "dtypes.h"
#include "gpu/cuda.h"
#include "gpu/systems.h"
#include "gpu/vendor.h"

namespace lapwing::cusolver {
namespace {

using vendor::VALUES_AND_VECTORS;
using vendor::VALUES_ONLY;

struct Sizes {
  explicit Sizes(const Frame& frame)
      : n(frame.size[1]), vectors(frame.op == EIG), element(size_of(frame.dtype)), complex_element(size_of(frame.dtype | 2)),
        type(type_of(frame.dtype)), complex_type(type_of(frame.dtype | 2)) {}
  int64_t n;
  bool vectors;
  size_t element, complex_element;
  int type, complex_type;
  size_t matrix() const { return size_t(n * n) * element; }
  int job() const { return vectors ? VALUES_AND_VECTORS : VALUES_ONLY; }
};

int ask(Frame& frame, const Lease& lease, Workspace* need) {
  const Sizes at(frame);
  return check(frame,
               vendor::table().geev_size(lease.handle, lease.params, VALUES_ONLY, at.job(), at.n, at.type, nullptr, at.n,
                                         at.complex_type, nullptr, at.type, nullptr, at.n, at.type, nullptr, at.n, at.type,
                                         &need->device, &need->host),
               "asking for the workspace");
}

size_t aligned(size_t bytes) { return (bytes + 255) / 256 * 256; }

struct Room {
  size_t info = 0, values, matrix, vectors, work, total;
  Room(const Sizes& at, const Workspace& need) {
    values = aligned(2 * sizeof(int32_t));
    matrix = values + aligned(size_t(at.n) * at.complex_element);
    vectors = matrix + aligned(at.matrix());
    work = vectors + aligned(at.vectors ? at.matrix() : 0);
    total = work + aligned(need.device);
  }
};

// One matrix on its way through the library
class Passage {
 public:
  Passage(Frame& frame, const Lease& lease, const Workspace& need, char* block)
      : frame_(frame), lease_(lease), need_(need), at_(frame), room_(at_, need), block_(block), host_(new char[need.host]) {}

  int run(int64_t m) {
    const int64_t n = at_.n;
    auto* info = reinterpret_cast<int32_t*>(block_ + room_.info);
    void *matrix = block_ + room_.matrix, *vectors = at_.vectors ? block_ + room_.vectors : nullptr;
    const char* a = static_cast<const char*>(frame_.buffer[0]) + size_t(m) * at_.matrix();
    if (cuda::fill(frame_, info, 0, 2 * sizeof *info) || cuda::adjoint(frame_, a, matrix, info, n, n, n, cuda::CHECK) ||
        cuda::replace_failed(frame_, matrix, info, n, n) ||
        check(frame_,
              vendor::table().geev(lease_.handle, lease_.params, VALUES_ONLY, at_.job(), n, at_.type, matrix, n, at_.complex_type,
                                   block_ + room_.values, at_.type, nullptr, n, at_.type, vectors, n, at_.type,
                                   block_ + room_.work, need_.device, host_.get(), need_.host, info + 1),
              "eigenvalues") ||
        cuda::merge(frame_, info, info + 1, cuda::PLAIN) ||
        cuda::copy(frame_, static_cast<int32_t*>(frame_.buffer[at_.vectors ? 3 : 2]) + m, info, sizeof *info) ||
        give(m, info, vectors))
      return 1;
    return check(frame_, vendor::table().synchronize(frame_.stream), "waiting for the GPU");  // the next one needs the host's memory
  }

 private:
  int give(int64_t m, int32_t* info, const void* vectors) {
    const int64_t n = at_.n, across = (n + 31) / 32;
    const bool complex = frame_.dtype >= C64;
    const auto queue = [&](const char* name, int64_t blocks, size_t shared, auto... arguments) {
      return cuda::start(frame_, "eig_give.cu", cuda::options(frame_.dtype, false, 16), name, cuda::grid_for(blocks), 256, shared, arguments...);
    };
    const void* values = block_ + room_.values;
    void* w = static_cast<char*>(frame_.buffer[1]) + size_t(m * n) * at_.complex_element;
    if (queue("eig_values", (2 * n + 255) / 256, 0, values, w, static_cast<const int32_t*>(info), int32_t(n), int32_t(complex ? -1 : 1))) return 1;
    if (!vectors) return 0;
    char* v = static_cast<char*>(frame_.buffer[2]) + size_t(m * n * n) * at_.complex_element;
    if (complex) return cuda::adjoint(frame_, vectors, v, info, n, n, n, cuda::SPOIL);
    return queue("eig_pairs", across * across, size_t(32 * 35) * at_.element, vectors, values, static_cast<void*>(v), static_cast<const int32_t*>(info),
                 int32_t(n));
  }

  Frame& frame_;
  const Lease& lease_;
  const Workspace& need_;
  Sizes at_;
  Room room_;
  char* block_;
  std::unique_ptr<char[]> host_;  // not cleared, which would take milliseconds
};

}  // namespace

int eig(Frame& frame) {
  Lease lease(frame);
  Workspace need;
  if (!lease.ok() || ask(frame, lease, &need)) return 1;
  char* block = cuda::scratch(frame, Room(Sizes(frame), need).total);
  if (!block) return 1;
  Passage passage(frame, lease, need, block);
  for (int64_t m = 0; m < frame.size[0]; m++)
    if (passage.run(m)) return 1;
  return 0;
}

int64_t eig_scratch(Frame& frame) {
  Lease lease(frame);
  Workspace need;
  if (!lease.ok() || ask(frame, lease, &need)) return -1;
  return int64_t(Room(Sizes(frame), need).total);
}

int64_t eig_host_bytes(Frame& frame) {
  Lease lease(frame);
  Workspace need;
  if (!lease.ok() || ask(frame, lease, &need)) return -1;
  return int64_t(need.host);
}

}  // namespace lapwing::cusolver
