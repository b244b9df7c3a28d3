// Eigenvalues and right eigenvectors of general matrices by cuSOLVER, one matrix after the other.
//
// The library gets conj(A), whose eigenvalues and vectors are those of A conjugated. It stores the vectors of a real matrix as
// LAPACK does, a pair of columns for a pair of eigenvalues: these are unpacked on the host. Its routine waits for the GPU anyway.
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

// One matrix on its way through the library
template <class T>
class Passage {
  using C = std::complex<RealOf<T>>;
  static constexpr bool COMPLEX = PARTS_OF<T> == 2;

 public:
  Passage(Frame& frame, const Lease& lease, const Workspace& need, char* block)
      : frame_(frame), lease_(lease), need_(need), at_(frame), room_(at_, need), block_(block), host_(need.host),
        w_(static_cast<size_t>(at_.n)), v_(packed() ? size_t(at_.n * at_.n) : 0), out_(v_.size()) {}

  int run(int64_t m) {
    const int64_t n = at_.n, size = n * n;
    auto* info = reinterpret_cast<int32_t*>(block_ + room_.info);
    void *matrix = block_ + room_.matrix, *vectors = at_.vectors ? block_ + room_.vectors : nullptr;
    C* out = at_.vectors ? static_cast<C*>(frame_.buffer[2]) + m * size : nullptr;
    if (cuda::fill(frame_, info, 0, 2 * sizeof *info) ||
        cuda::adjoint(frame_, static_cast<T*>(frame_.buffer[0]) + m * size, matrix, info, n, n, n, cuda::CHECK) ||
        cuda::replace_failed(frame_, matrix, info, n, n) ||
        check(frame_,
              vendor::table().geev(lease_.handle, lease_.params, VALUES_ONLY, at_.job(), n, at_.type, matrix, n, at_.complex_type,
                                   block_ + room_.values, at_.type, nullptr, n, at_.type, vectors, n, at_.type,
                                   block_ + room_.work, need_.device, host_.data(), need_.host, info + 1),
              "eigenvalues") ||
        cuda::merge(frame_, info, info + 1, cuda::PLAIN) ||
        cuda::copy(frame_, static_cast<int32_t*>(frame_.buffer[at_.vectors ? 3 : 2]) + m, info, sizeof *info) ||
        (COMPLEX && out && cuda::adjoint(frame_, vectors, out, info, n, n, n, cuda::SPOIL)))
      return 1;
    int32_t failed = 0;
    download(&failed, info, sizeof failed);
    download(w_.data(), block_ + room_.values, w_.size() * sizeof(C));
    if (packed()) download(v_.data(), vectors, v_.size() * sizeof(T));
    if (wait("a copy to the host")) return 1;
    if (failed) {
      fill_nan(w_.data(), n);
      fill_nan(out_.data(), int64_t(out_.size()));
    } else if constexpr (COMPLEX) {
      for (C& x : w_) x = std::conj(x);
    } else if (out) {
      lapack::unpack_pairs(w_.data(), v_.data(), out_.data(), n);
    }
    upload(static_cast<C*>(frame_.buffer[1]) + m * n, w_.data(), w_.size() * sizeof(C));
    if (packed()) upload(out, out_.data(), out_.size() * sizeof(C));
    return wait("a copy to the GPU");  // the next matrix needs the memory
  }

 private:
  bool packed() const { return at_.vectors && !COMPLEX; }
  void download(void* to, const void* from, size_t bytes) {
    if (!status_) status_ = vendor::table().copy_to_host(to, reinterpret_cast<uint64_t>(from), bytes, frame_.stream);
  }
  void upload(void* to, const void* from, size_t bytes) {
    if (!status_) status_ = vendor::table().copy_to_device(reinterpret_cast<uint64_t>(to), from, bytes, frame_.stream);
  }
  int wait(const char* doing) {
    if (!status_) status_ = vendor::table().synchronize(frame_.stream);
    return check(frame_, status_, doing);
  }

  Frame& frame_;
  const Lease& lease_;
  const Workspace& need_;
  Sizes at_;
  Room room_;
  char* block_;
  std::vector<char> host_;
  std::vector<C> w_;
  std::vector<T> v_;
  std::vector<C> out_;
  int status_ = 0;
};

}  // namespace

int eig(Frame& frame) {
  Lease lease(frame);
  Workspace need;
  if (!lease.ok() || ask(frame, lease, &need)) return 1;
  char* block = cuda::scratch(frame, Room(Sizes(frame), need).total);
  if (!block) return 1;
  return by_dtype(frame.dtype, [&](auto zero) {
    Passage<decltype(zero)> passage(frame, lease, need, block);
    for (int64_t m = 0; m < frame.size[0]; m++)
      if (passage.run(m)) return 1;
    return 0;
  });
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
