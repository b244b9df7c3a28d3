// Eigenvalues and right eigenvectors of general matrices by cuSOLVER, one matrix after the other.
//
// The library gets conj(A), whose eigenvalues and vectors are those of A conjugated. It stores the vectors of a real matrix as
// LAPACK does, a pair of columns for a pair of eigenvalues. Its routine waits for the GPU many times: so the results are put into
// our form on the host, which is a small part of the time.
#include <algorithm>
#include <complex>
#include <vector>

#include "cpu/matrix.h"
#include "cusolver/cusolver.h"
#include "cusolver/handle.h"
#include "dtypes.h"
#include "gpu/cuda.h"
#include "gpu/systems.h"
#include "gpu/vendor.h"
#include "lapack/eig.h"

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

template <class R>
void conjugate_out(std::complex<R>* w, const std::complex<R>* v, std::complex<R>* out, int64_t n) {
  for (int64_t i = 0; i < n; i++) w[i] = std::conj(w[i]);
  if (out) std::copy_n(v, n * n, out), transpose_conjugate(out, n);
}
template <class R>
void conjugate_out(std::complex<R>* w, const R* v, std::complex<R>* out, int64_t n) {
  if (out) lapack::unpack_pairs(w, v, out, n);
}

template <class T>
int eig_as(Frame& frame, const Lease& lease, const Workspace& need, char* block) {
  using C = std::complex<RealOf<T>>;
  const auto& api = vendor::table();
  const Sizes at(frame);
  const Room room(at, need);
  const int64_t n = at.n, size = n * n;
  auto* info = reinterpret_cast<int32_t*>(block + room.info);
  void *matrix = block + room.matrix, *vectors = block + room.vectors, *values = block + room.values;
  std::vector<char> host(need.host);
  std::vector<C> w(static_cast<size_t>(n)), out(at.vectors ? size_t(size) : 0);
  std::vector<T> v(at.vectors ? size_t(size) : 0);
  int32_t states[2] = {};
  const auto from = [](const void* x) { return reinterpret_cast<uint64_t>(x); };
  for (int64_t m = 0; m < frame.size[0]; m++) {
    if (cuda::fill(frame, info, 0, 2 * sizeof *info) ||
        cuda::adjoint(frame, static_cast<T*>(frame.buffer[0]) + m * size, matrix, info, n, n, n, cuda::CHECK) ||
        cuda::replace_failed(frame, matrix, info, n, n) ||
        check(frame,
              api.geev(lease.handle, lease.params, VALUES_ONLY, at.job(), n, at.type, matrix, n, at.complex_type, values, at.type,
                       nullptr, n, at.type, at.vectors ? vectors : nullptr, n, at.type, block + room.work, need.device, host.data(),
                       need.host, info + 1),
              "eigenvalues"))
      return 1;
    int answer = api.copy_to_host(states, from(info), sizeof states, frame.stream);
    if (!answer) answer = api.copy_to_host(w.data(), from(values), w.size() * sizeof(C), frame.stream);
    if (!answer && at.vectors) answer = api.copy_to_host(v.data(), from(vectors), v.size() * sizeof(T), frame.stream);
    if (!answer) answer = api.synchronize(frame.stream);
    if (check(frame, answer, "a copy to the host")) return 1;
    const int32_t failed = states[0] || states[1];
    if (failed) {
      fill_nan(w.data(), n);
      fill_nan(out.data(), int64_t(out.size()));
    } else {
      conjugate_out(w.data(), v.data(), at.vectors ? out.data() : nullptr, n);
    }
    answer = api.copy_to_device(from(static_cast<C*>(frame.buffer[1]) + m * n), w.data(), w.size() * sizeof(C), frame.stream);
    if (!answer && at.vectors)
      answer = api.copy_to_device(from(static_cast<C*>(frame.buffer[2]) + m * size), out.data(), out.size() * sizeof(C), frame.stream);
    if (!answer)
      answer = api.copy_to_device(from(static_cast<int32_t*>(frame.buffer[at.vectors ? 3 : 2]) + m), &failed, sizeof failed, frame.stream);
    if (!answer) answer = api.synchronize(frame.stream);  // the next matrix needs the memory
    if (check(frame, answer, "a copy to the GPU")) return 1;
  }
  return 0;
}

}  // namespace

int eig(Frame& frame) {
  Lease lease(frame);
  Workspace need;
  if (!lease.ok() || ask(frame, lease, &need)) return 1;
  char* block = cuda::scratch(frame, Room(Sizes(frame), need).total);
  return block ? by_dtype(frame.dtype, [&](auto zero) { return eig_as<decltype(zero)>(frame, lease, need, block); }) : 1;
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
  const Sizes at(frame);
  return int64_t(need.host + (at.vectors ? at.matrix() + size_t(at.n * at.n) * at.complex_element : 0));
}

}  // namespace lapwing::cusolver
