// QR and SVD by cuSOLVER, one matrix after the other.
#include <algorithm>
#include <cstdlib>
#include <limits>

#include "cuda.h"
#include "cusolver_job.h"
#include "systems_cuda.h"
#include "vendor.h"

namespace lapwing::cusolver {
namespace {

using namespace vendor;

// The library's four routines of one kind.
template <class Call, class S, class D, class C, class Z>
Call of_dtype(int32_t dtype, S s, D d, C c, Z z) {
  switch (dtype) {
    case F32: return reinterpret_cast<Call>(s);
    case F64: return reinterpret_cast<Call>(d);
    case C64: return reinterpret_cast<Call>(c);
    default: return reinterpret_cast<Call>(z);
  }
}

size_t taken(Job& job, size_t bytes) {
  const size_t start = job.places.total;
  job.places.total += (bytes + 255) / 256 * 256;
  return start;
}

int64_t smaller(const Frame& frame) { return std::min(frame.size[1], frame.size[2]); }

int q_size(const Job& job, int* elements) {
  using Call = int (*)(void*, int, int, int, const void*, int, const void*, int*);
  const Frame& frame = job.frame;
  const int m = int(frame.size[1]), c = int(frame.size[3]);
  const auto& api = table();
  const auto call = of_dtype<Call>(frame.dtype, api.sorgqr_size, api.dorgqr_size, api.cungqr_size, api.zungqr_size);
  return call(job.lease.solver, m, c, int(smaller(frame)), nullptr, m, nullptr, elements);
}

int make_q(const Job& job, void* w, const void* tau, int32_t* status) {
  using Call = int (*)(void*, int, int, int, void*, int, const void*, void*, int, int*);
  const Frame& frame = job.frame;
  const int m = int(frame.size[1]), c = int(frame.size[3]), room = int(std::min<size_t>(job.need.device / job.element, INT32_MAX));
  const auto& api = table();
  const auto call = of_dtype<Call>(frame.dtype, api.sorgqr, api.dorgqr, api.cungqr, api.zungqr);
  return call(job.lease.solver, m, c, int(smaller(frame)), w, m, tau, job.at(job.places.work), room, status);
}

bool by_polar() { return std::getenv("LAPWING_POLAR"); }

// A tall matrix is handed over as conj(A), a wide one as A^T: the library takes no wide ones.
struct Shape {
  explicit Shape(const Frame& frame)
      : tall(frame.size[1] > frame.size[2]), rows(std::max(frame.size[1], frame.size[2])), columns(smaller(frame)),
        vectors(frame.op == SVD), full(vectors && frame.size[3]) {}
  bool tall;
  int64_t rows, columns;
  bool vectors, full;
  int64_t left() const { return full ? rows : columns; }
  signed char job() const { return vectors ? (full ? 'A' : 'S') : 'N'; }
  int mode() const { return vectors ? VALUES_AND_VECTORS : VALUES_ONLY; }
};

}  // namespace

int decompose_workspace(Job& job) {
  Frame& frame = job.frame;
  const auto& api = table();
  const int type = job.type(), real = job.real_type();
  if (frame.op == QR) {
    const int64_t m = frame.size[1], n = frame.size[2], c = frame.size[3];
    if (std::max(m, n) > std::numeric_limits<int32_t>::max()) return fail(frame, "cuSOLVER cannot take a size of %lld", (long long)m);
    int elements = 0;
    if (check(frame, api.geqrf_size(job.lease.solver, job.lease.params, m, n, type, nullptr, m, type, nullptr, type,
                                    &job.need.device, &job.need.host), "asking for the workspace") ||
        check(frame, q_size(job, &elements), "asking for the workspace"))
      return 1;
    job.need.device = std::max(job.need.device, size_t(elements) * job.element);
    job.places.matrix = taken(job, size_t(m * std::max(n, c)) * job.element);
    job.places.tau = taken(job, size_t(std::min(m, n)) * job.element);
    return 0;
  }
  const Shape shape(frame);
  job.places.matrix = taken(job, size_t(shape.rows * shape.columns) * job.element);
  const size_t left = shape.vectors ? size_t(shape.rows * shape.left()) * job.element : 0;
  const size_t right = shape.vectors ? size_t(shape.columns * shape.columns) * job.element : 0;
  job.places.left_vectors = taken(job, left);
  job.places.right_vectors = taken(job, right);
  const int status =
      by_polar() ? api.gesvdp_size(job.lease.solver, job.lease.params, shape.mode(), !shape.full, shape.rows, shape.columns, type,
                                   nullptr, shape.rows, real, nullptr, type, nullptr, shape.rows, type, nullptr, shape.columns,
                                   type, &job.need.device, &job.need.host)
                 : api.gesvd_size(job.lease.solver, job.lease.params, shape.job(), shape.job(), shape.rows, shape.columns, type,
                                  nullptr, shape.rows, real, nullptr, type, nullptr, shape.rows, type, nullptr, shape.columns,
                                  type, &job.need.device, &job.need.host);
  return check(frame, status, "asking for the workspace");
}

int qr(const Job& job, int64_t m) {
  Frame& frame = job.frame;
  const int64_t rows = frame.size[1], columns = frame.size[2], c = frame.size[3];
  void *w = job.at(job.places.matrix), *tau = job.at(job.places.tau);
  auto *info = job.at<int32_t>(job.places.info), *status = job.at<int32_t>(job.places.status);
  // w <- conj(A), whose factors are those of A conjugated
  return cuda::fill(frame, info, 0, sizeof *info) ||
         cuda::adjoint(frame, job.input(0, m, rows * columns), w, info, rows, columns, columns, cuda::CHECK) ||
         cuda::identity(frame, w, info, columns, rows) ||
         check(frame,
               table().geqrf(job.lease.solver, job.lease.params, rows, columns, job.type(), w, rows, job.type(), tau, job.type(),
                             job.at(job.places.work), job.need.device, const_cast<char*>(job.host.data()), job.need.host, status),
               "QR") ||
         cuda::adjoint(frame, w, job.input(2, m, c * columns), info, columns, rows, c, cuda::SPOIL | cuda::TRIANGLE) ||
         check(frame, make_q(job, w, tau, status), "QR") ||
         cuda::adjoint(frame, w, job.input(1, m, rows * c), info, c, rows, rows, cuda::SPOIL);
}

int svd(const Job& job, int64_t m) {
  Frame& frame = job.frame;
  const Shape shape(frame);
  const int64_t rows = frame.size[1], columns = frame.size[2], k = shape.columns, left = shape.left();
  const size_t real = job.element / size_t(job.parts());
  void* a = job.input(0, m, rows * columns);
  char* s = static_cast<char*>(frame.buffer[shape.vectors ? 2 : 1]) + size_t(m * k) * real;
  int32_t* info = job.info(shape.vectors ? 4 : 2, m);
  auto* status = job.at<int32_t>(job.places.status);
  void *w = job.at(job.places.matrix), *u = job.at(job.places.left_vectors), *v = job.at(job.places.right_vectors);
  if (shape.tall ? cuda::adjoint(frame, a, w, info, rows, columns, columns, cuda::CHECK)
                 : cuda::copy_checked(frame, a, w, info, rows, columns))
    return 1;
  if (cuda::identity(frame, w, info, k, shape.rows)) return 1;
  const bool polar = by_polar();
  const int type = job.type(), real_type = job.real_type();
  void* host = const_cast<char*>(job.host.data());
  double shift = 0;
  const int found =
      polar ? table().gesvdp(job.lease.solver, job.lease.params, shape.mode(), !shape.full, shape.rows, k, type, w, shape.rows,
                             real_type, s, type, u, shape.rows, type, v, k, type, job.at(job.places.work), job.need.device, host,
                             job.need.host, status, &shift)
            : table().gesvd(job.lease.solver, job.lease.params, shape.job(), shape.job(), shape.rows, k, type, w, shape.rows,
                            real_type, s, type, u, shape.rows, type, v, k, type, job.at(job.places.work), job.need.device, host,
                            job.need.host, status);
  if (check(frame, found, "SVD")) return 1;
  if (cuda::merge(frame, info, status, true) || cuda::spoil(frame, s, info, k)) return 1;
  if (!shape.vectors) return 0;
  char *out_u = job.input(1, m, rows * (shape.full ? rows : k)), *out_v = job.input(3, m, columns * (shape.full ? columns : k));
  // conj(A) = U S V^H: u <- conj(U), v^H <- V^T, which lies there, or conj of the library's V^H
  // A^T = U S V^H: v^H <- U^T, which lies there; u <- conj(V)
  const size_t square = size_t(k * k) * job.element;
  void* out_right = shape.tall ? out_v : out_u;
  const bool direct = polar == shape.tall;
  if (shape.tall ? cuda::adjoint(frame, u, out_u, info, left, rows, rows, cuda::SPOIL)
                 : cuda::copy(frame, out_v, u, size_t(shape.rows * left) * job.element))
    return 1;
  if (direct ? cuda::copy(frame, out_right, v, square) : cuda::adjoint(frame, v, out_right, info, k, k, k, cuda::SPOIL)) return 1;
  if (!shape.tall && cuda::spoil(frame, out_v, info, shape.rows * left * job.parts())) return 1;
  return cuda::spoil(frame, out_right, info, k * k * job.parts());
}

}  // namespace lapwing::cusolver
