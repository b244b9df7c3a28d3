// One call of engine cusolver on a frame from TRIANGULAR to SVDVALS: handles, and one block of device memory, cut up.
#pragma once
#include <vector>

#include "gpu/cublas_dense.h"
#include "cusolver/handle.h"
#include "frame.h"

namespace lapwing::cusolver {

// Where each thing stands in the block.
struct Places {
  size_t info = 0;    // status of one matrix, used where the frame has no place for it
  size_t status = 0;  // what the library says
  size_t pivots = 0, rows = 0, matrix = 0, right = 0, tau = 0, leaves = 0, leaf_work = 0, wide = 0, split = 0;
  size_t left_vectors = 0, right_vectors = 0, triangle = 0, copy = 0, right_copy = 0, state = 0, work = 0, total = 0;
};

class Job {
 public:
  explicit Job(Frame& frame) : frame(frame), lease(frame), blas(frame), element(size_of(frame.dtype)) {}
  bool ok() const { return lease.ok() && blas.ok(); }

  // The library's workspace and the places of everything; nothing is allocated. 0, or 1 with a message.
  int prepare();
  int allocate();

  size_t take(size_t bytes) {
    const size_t start = places.total;
    places.total += (bytes + 255) / 256 * 256;
    return start;
  }

  char* input(int place, int64_t m, int64_t elements) const {
    return static_cast<char*>(frame.buffer[place]) + size_t(m * elements) * element;
  }
  int32_t* info(int place, int64_t m) const { return static_cast<int32_t*>(frame.buffer[place]) + m; }
  template <class E = char>
  E* at(size_t place) const { return reinterpret_cast<E*>(block + place); }
  void* device_work() const { return at(places.work); }
  void* host_work() const { return const_cast<char*>(host.data()); }
  int type() const { return type_of(frame.dtype); }
  int real_type() const { return type_of(frame.dtype % 2); }
  int64_t parts() const { return frame.dtype >= C64 ? 2 : 1; }

  Frame& frame;
  Lease lease;
  cublas::Dense blas;
  size_t element;
  Workspace need;
  Places places;
  char* block = nullptr;
  std::vector<char> host;
};

// work <- conj(A) = L L^H, the lower triangle as the library sees it; may be a. positive.cc
int factor_positive(const Job& job, const void* a, void* work, int32_t* info);
// out <- the inverse of A, both triangles; may be a
int invert_positive(const Job& job, const void* a, void* out, int32_t* info);
// a, a column-major lower triangle, <- L
int factor_lower(const Job& job, void* a, int32_t* info);
// Whether the Cholesky factor alone is found faster by recursion than by the library
bool gains_by_recursion(Frame& frame);
int positive_workspace(Job& job);

// One matrix of the frame each; decompose.cc
int qr(const Job& job, int64_t m);
int svd(const Job& job, int64_t m);
int lstsq(const Job& job, int64_t m);  // where the rank is proven, else it is UNPROVEN
int decompose_workspace(Job& job);

}  // namespace lapwing::cusolver
