// QR and SVD by cuSOLVER, one matrix after the other.
//
// The SVD by the polar decomposition is several times faster than by QR iterations, but where the matrix is close to a
// singular one the library shifts it, and says by how much: then the slower method takes its place. To know that, the host
// waits for the device.
#include <algorithm>
#include <limits>

#include "gpu/blocked_qr.h"
#include "gpu/cuda.h"
#include "cusolver/job.h"
#include "gpu/lstsq.h"
#include "gpu/systems.h"
#include "gpu/vendor.h"
#include "operations.h"

namespace lapwing::cusolver {
namespace {

using namespace vendor;

int64_t smaller(const Frame& frame) { return std::min(frame.size[1], frame.size[2]); }

int q_size(const Job& job, int* elements) {
  using Call = int (*)(void*, int, int, int, const void*, int, const void*, int*);
  const Frame& frame = job.frame;
  const int m = int(frame.size[1]), c = int(frame.size[3]);
  const auto& api = table();
  const auto call = of_dtype<Call>(frame.dtype, api.sorgqr_size, api.dorgqr_size, api.cungqr_size, api.zungqr_size);
  return call(job.lease.handle, m, c, int(smaller(frame)), nullptr, m, nullptr, elements);
}

int make_q(const Job& job, void* w, const void* tau, int32_t* status) {
  using Call = int (*)(void*, int, int, int, void*, int, const void*, void*, int, int*);
  const Frame& frame = job.frame;
  const int m = int(frame.size[1]), c = int(frame.size[3]);
  const int room = int(std::min<size_t>(job.need.device / job.element, INT32_MAX));
  const auto& api = table();
  const auto call = of_dtype<Call>(frame.dtype, api.sorgqr, api.dorgqr, api.cungqr, api.zungqr);
  return call(job.lease.handle, m, c, int(smaller(frame)), w, m, tau, job.device_work(), room, status);
}

// The R of a tall matrix and of the adjoint of a wide one, both tall: rows x columns, with k right-hand sides.
struct Least {
  explicit Least(const Frame& frame)
      : wide(frame.size[1] < frame.size[2]), rows(std::max(frame.size[1], frame.size[2])), columns(smaller(frame)), k(frame.size[3]) {}
  bool wide;
  int64_t rows, columns, k;
};

// op of Q^H: the library knows no adjoint of real matrices
int adjoint_of(const Frame& frame) { return frame.dtype >= C64 ? OP_ADJOINT : OP_TRANSPOSE; }

int by_q_size(const Job& job, int* elements) {
  using Call = int (*)(void*, int, int, int, int, int, const void*, int, const void*, const void*, int, int*);
  const Least at(job.frame);
  const int rows = int(at.rows);
  const auto& api = table();
  const auto call = of_dtype<Call>(job.frame.dtype, api.sormqr_size, api.dormqr_size, api.cunmqr_size, api.zunmqr_size);
  return call(job.lease.handle, SIDE_LEFT, at.wide ? OP_NONE : adjoint_of(job.frame), rows, int(at.k), int(at.columns), nullptr, rows,
              nullptr, nullptr, rows, elements);
}

// right (rows x k, column-major) <- Q^H right, or for a wide matrix Q right
int multiply_by_q(const Job& job, const void* w, const void* tau, void* right, int32_t* status) {
  using Call = int (*)(void*, int, int, int, int, int, const void*, int, const void*, void*, int, void*, int, int*);
  const Least at(job.frame);
  const int rows = int(at.rows), room = int(std::min<size_t>(job.need.device / job.element, INT32_MAX));
  const auto& api = table();
  const auto call = of_dtype<Call>(job.frame.dtype, api.sormqr, api.dormqr, api.cunmqr, api.zunmqr);
  return call(job.lease.handle, SIDE_LEFT, at.wide ? OP_NONE : adjoint_of(job.frame), rows, int(at.k), int(at.columns), w, rows, tau,
              right, rows, job.device_work(), room, status);
}

// The least orders for the polar decomposition. H200, 2026-11-15, float64, against QR iterations: n = 32 1.1 and 1.3 ms,
// 256 5.6 and 22 ms, 2048 84 and 430 ms; values alone, which it cannot do without vectors: 64 2.8 and 0.5 ms, 128 4.4 and
// 4.8 ms.
constexpr int64_t POLAR_FROM = 32, POLAR_VALUES_FROM = 128;
// AMD's library has no such routine.
bool by_polar(const Frame& frame) { return table().gesvdp && smaller(frame) >= (frame.op == SVD ? POLAR_FROM : POLAR_VALUES_FROM); }

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
};

}  // namespace

int decompose_workspace(Job& job) {
  Frame& frame = job.frame;
  const auto& api = table();
  const int type = job.type(), real = job.real_type();
  if (is_qr(frame.op)) {
    const int64_t m = frame.size[1], n = frame.size[2], c = frame.op == QR ? frame.size[3] : 0;
    if (std::max(m, n) > std::numeric_limits<int32_t>::max())
      return fail(frame, "engine %s: QR of %lld x %lld is too large for its integers", engine_name(), (long long)m, (long long)n);
    int elements = 0;
    if (check(frame, api.geqrf_size(job.lease.handle, job.lease.params, m, n, type, nullptr, m, type, nullptr, type,
                                    &job.need.device, &job.need.host), "asking for the workspace") ||
        (c && check(frame, q_size(job, &elements), "asking for the workspace")))
      return 1;
    job.need.device = std::max(job.need.device, size_t(elements) * job.element);
    job.places.matrix = job.take(size_t(m * std::max(n, c)) * job.element);
    job.places.tau = job.take(size_t(std::min(m, n)) * job.element);
    return 0;
  }
  if (frame.op == LSTSQ) {
    const Least at(frame);
    if (at.rows > std::numeric_limits<int32_t>::max() || at.k > std::numeric_limits<int32_t>::max())
      return fail(frame, "engine %s: lstsq of %lld rows with %lld right-hand sides is too large for its integers",
                  engine_name(), (long long)at.rows, (long long)at.k);
    int elements = 0;
    if (check(frame, api.geqrf_size(job.lease.handle, job.lease.params, at.rows, at.columns, type, nullptr, at.rows, type, nullptr,
                                    type, &job.need.device, &job.need.host), "asking for the workspace") ||
        (at.k && check(frame, by_q_size(job, &elements), "asking for the workspace")))
      return 1;
    job.need.device = std::max(job.need.device, size_t(elements) * job.element);
    job.places.matrix = job.take(size_t(at.rows * at.columns) * job.element);
    job.places.copy = job.take(size_t(at.rows * at.columns) * job.element);
    job.places.right = job.take(size_t(at.rows * at.k) * job.element);
    job.places.right_copy = job.take(size_t(at.rows * at.k) * job.element);
    job.places.triangle = job.take(size_t(at.columns * at.columns) * job.element);
    job.places.tau = job.take(size_t(at.columns) * job.element);
    job.places.state = job.take(size_t(1 + at.k) * sizeof(int32_t));
    return 0;
  }
  const Shape shape(frame);
  job.places.matrix = job.take(size_t(shape.rows * shape.columns) * job.element);
  const bool polar = by_polar(frame), keeps = shape.vectors || polar;
  job.places.left_vectors = job.take(keeps ? size_t(shape.rows * shape.left()) * job.element : 0);
  job.places.right_vectors = job.take(keeps ? size_t(shape.columns * shape.columns) * job.element : 0);
  Workspace more;
  if (check(frame,
            api.gesvd_size(job.lease.handle, job.lease.params, shape.job(), shape.job(), shape.rows, shape.columns, type,
                           nullptr, shape.rows, real, nullptr, type, nullptr, shape.rows, type, nullptr, shape.columns, type,
                           &job.need.device, &job.need.host),
            "asking for the workspace") ||
      (polar && check(frame,
                      api.gesvdp_size(job.lease.handle, job.lease.params, VALUES_AND_VECTORS, !shape.full, shape.rows,
                                      shape.columns, type, nullptr, shape.rows, real, nullptr, type, nullptr, shape.rows, type,
                                      nullptr, shape.columns, type, &more.device, &more.host),
                      "asking for the workspace")))
    return 1;
  job.need = {std::max(job.need.device, more.device), std::max(job.need.host, more.host)};
  return 0;
}

int qr(const Job& job, int64_t m) {
  Frame& frame = job.frame;
  const int64_t rows = frame.size[1], columns = frame.size[2], k = smaller(frame), c = frame.op == QR ? frame.size[3] : k;
  void *w = job.at(job.places.matrix), *tau = job.at(job.places.tau);
  auto *info = job.at<int32_t>(job.places.info), *status = job.at<int32_t>(job.places.status);
  // w <- conj(A), whose factors are those of A conjugated
  return cuda::fill(frame, info, 0, sizeof *info) ||
         cuda::adjoint(frame, job.input(0, m, rows * columns), w, info, rows, columns, columns, cuda::CHECK) ||
         cuda::replace_failed(frame, w, info, columns, rows) ||
         check(frame,
               table().geqrf(job.lease.handle, job.lease.params, rows, columns, job.type(), w, rows, job.type(), tau,
                             job.type(), job.device_work(), job.need.device, job.host_work(), job.need.host, status),
               "QR") ||
         (frame.op == QR_RAW
              ? cuda::adjoint(frame, w, job.input(1, m, rows * columns), info, rows * columns, 1, 1, cuda::SPOIL) ||
                    cuda::adjoint(frame, tau, job.input(2, m, k), info, k, 1, 1, cuda::SPOIL)
              : cuda::adjoint(frame, w, job.input(frame.op == QR ? 2 : 1, m, c * columns), info, columns, rows, c,
                              cuda::SPOIL | cuda::TRIANGLE)) ||
         (frame.op == QR && (check(frame, make_q(job, w, tau, status), "QR") ||
                             cuda::adjoint(frame, w, job.input(1, m, rows * c), info, c, rows, rows, cuda::SPOIL)));
}

int lstsq(const Job& job, int64_t m) {
  Frame part = part_of(job.frame, m, 1);
  const Least at(part);
  const int64_t rows = part.size[1], columns = part.size[2], k = at.k;
  void *w = job.at(job.places.matrix), *copy = job.at(job.places.copy), *tau = job.at(job.places.tau), *r = job.at(job.places.triangle);
  void *right = job.at(job.places.right), *right_copy = job.at(job.places.right_copy);
  auto *info = job.at<int32_t>(job.places.info), *status = job.at<int32_t>(job.places.status);
  int32_t *a_state = job.at<int32_t>(job.places.state), *b_state = a_state + 1;
  // w <- conj(A), or A^T, which is conj(A^H) and lies there already; the factors are conjugated too
  if (cuda::fill(part, info, 0, sizeof *info) || cuda::measure(part, part.buffer[0], a_state, 1, rows, columns, false) ||
      cuda::take_scaled(part, part.buffer[0], a_state, 1, rows, columns, {copy, columns, rows * columns, columns}, false, true, false) ||
      (at.wide ? cuda::copy_checked(part, copy, w, info, rows, columns)
               : cuda::adjoint(part, copy, w, info, rows, columns, columns, cuda::CHECK)) ||
      cuda::replace_failed(part, w, info, at.columns, at.rows) ||
      check(part, table().geqrf(job.lease.handle, job.lease.params, at.rows, at.columns, job.type(), w, at.rows, job.type(), tau,
                                job.type(), job.device_work(), job.need.device, job.host_work(), job.need.host, status), "QR") ||
      cuda::adjoint(part, w, r, info, at.columns, at.rows, at.columns, cuda::TRIANGLE))
    return fail_as(job.frame, part);
  if (k && (cuda::measure(part, part.buffer[1], b_state, 1, rows, k, true) ||
            cuda::take_scaled(part, part.buffer[1], b_state, 1, rows, k, {right_copy, k, rows * k, k}, false, false, true)))
    return fail_as(job.frame, part);
  // right_copy <- Q^H b
  if (k && !at.wide && (cuda::adjoint(part, right_copy, right, info, rows, k, k, 0) ||
                        check(part, multiply_by_q(job, w, tau, right, status), "QR") ||
                        cuda::adjoint(part, right, right_copy, info, k, rows, rows, 0)))
    return fail_as(job.frame, part);
  const cuda::Triangles triangles{r, at.columns, at.columns * at.columns, right_copy, k, rows * k, a_state, b_state};
  if (cuda::solve_by_triangles(part, triangles)) return fail_as(job.frame, part);
  // x <- Q x
  void* x = part.buffer[2];
  if (k && at.wide && (cuda::adjoint(part, x, right, info, columns, k, k, 0) ||
                       check(part, multiply_by_q(job, w, tau, right, status), "QR") ||
                       cuda::adjoint(part, right, x, info, k, columns, columns, 0)))
    return fail_as(job.frame, part);
  return 0;
}

namespace {

// One matrix and what becomes of it.
struct Decomposition {
  const Job& job;
  Shape shape;
  int64_t m;
  char* s;
  int32_t* info;

  char* matrix() const { return job.at(job.places.matrix); }
  char* left() const { return job.at(job.places.left_vectors); }
  char* right() const { return job.at(job.places.right_vectors); }
  int32_t* status() const { return job.at<int32_t>(job.places.status); }

  int take() const {
    Frame& frame = job.frame;
    const int64_t rows = frame.size[1], columns = frame.size[2];
    void* a = job.input(0, m, rows * columns);
    return (shape.tall ? cuda::adjoint(frame, a, matrix(), info, rows, columns, columns, cuda::CHECK)
                       : cuda::copy_checked(frame, a, matrix(), info, rows, columns)) ||
           cuda::replace_failed(frame, matrix(), info, shape.columns, shape.rows);
  }

  int iterate() const {
    const int type = job.type();
    return check(job.frame,
                 table().gesvd(job.lease.handle, job.lease.params, shape.job(), shape.job(), shape.rows, shape.columns, type,
                               matrix(), shape.rows, job.real_type(), s, type, left(), shape.rows, type, right(), shape.columns,
                               type, job.device_work(), job.need.device, job.host_work(), job.need.host, status()),
                 "SVD");
  }

  // `good` is false where another method must be taken
  int polar(bool* good) const {
    const int type = job.type();
    double shift = 0;
    if (check(job.frame,
              table().gesvdp(job.lease.handle, job.lease.params, VALUES_AND_VECTORS, !shape.full, shape.rows, shape.columns,
                             type, matrix(), shape.rows, job.real_type(), s, type, left(), shape.rows, type, right(),
                             shape.columns, type, job.device_work(), job.need.device, job.host_work(), job.need.host, status(),
                             &shift),
              "SVD"))
      return 1;
    const bool is_double = job.frame.dtype % 2;
    int32_t found = 0, bad = 0;
    float narrow = 0;
    double largest = 0;
    const auto& api = table();
    void* value = is_double ? static_cast<void*>(&largest) : &narrow;
    auto from = [](const void* x) { return reinterpret_cast<uint64_t>(x); };
    int answer = api.copy_to_host(value, from(s), is_double ? 8 : 4, job.frame.stream);
    if (!answer) answer = api.copy_to_host(&found, from(status()), sizeof found, job.frame.stream);
    if (!answer) answer = api.copy_to_host(&bad, from(info), sizeof bad, job.frame.stream);
    if (!answer) answer = api.synchronize(job.frame.stream);
    if (check(job.frame, answer, "waiting for the GPU")) return 1;
    if (!is_double) largest = narrow;
    const double eps = is_double ? std::numeric_limits<double>::epsilon() : std::numeric_limits<float>::epsilon();
    *good = bad || (found == 0 && shift <= eps * double(shape.rows) * largest);
    return 0;
  }
};

}  // namespace

int svd(const Job& job, int64_t m) {
  Frame& frame = job.frame;
  const Shape shape(frame);
  const int64_t rows = frame.size[1], columns = frame.size[2], k = shape.columns, left = shape.left();
  const size_t real = job.element / size_t(job.parts());
  char* s = static_cast<char*>(frame.buffer[shape.vectors ? 2 : 1]) + size_t(m * k) * real;
  int32_t* info = job.info(shape.vectors ? 4 : 2, m);
  const Decomposition steps{job, shape, m, s, info};
  bool polar = by_polar(frame);
  if (steps.take() || (polar && steps.polar(&polar))) return 1;
  if (!polar && ((by_polar(frame) && steps.take()) || steps.iterate())) return 1;
  if (cuda::merge(frame, info, steps.status(), cuda::PLAIN) || cuda::spoil(frame, s, info, k)) return 1;
  if (!shape.vectors) return 0;
  void *u = steps.left(), *v = steps.right();
  char *out_u = job.input(1, m, rows * (shape.full ? rows : k)), *out_v = job.input(3, m, columns * (shape.full ? columns : k));
  // tall: conj(A) = U S V^H, so that u <- conj(U) and v^H <- V^T; else A^T = U S V^H, v^H <- U^T and u <- conj(V).
  // A transpose is what lies there row-major. One method gives V, the other V^H.
  void* out_right = shape.tall ? out_v : out_u;
  const bool as_it_is = polar == shape.tall;
  return (shape.tall ? cuda::adjoint(frame, u, out_u, info, left, rows, rows, cuda::SPOIL)
                     : cuda::copy(frame, out_v, u, size_t(shape.rows * left) * job.element) ||
                           cuda::spoil(frame, out_v, info, shape.rows * left * job.parts())) ||
         (as_it_is ? cuda::copy(frame, out_right, v, size_t(k * k) * job.element) ||
                         cuda::spoil(frame, out_right, info, k * k * job.parts())
                   : cuda::adjoint(frame, v, out_right, info, k, k, k, cuda::SPOIL));
}

}  // namespace lapwing::cusolver
