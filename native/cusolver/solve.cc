// Systems and inverses by cuSOLVER and cuBLAS, one matrix after the other; nothing waits for the device.
//
// The libraries are column-major. Where a matrix is copied anyway it is copied as its adjoint, which to them is conj(A): the
// pivots are those of A. A row-major triangle is used as it is: to them it is L^T, and it is solved with from the right.
#include "cusolver/cusolver.h"

#include <algorithm>

#include "gpu/cuda.h"
#include "cusolver/job.h"
#include "gpu/spectrum.h"
#include "gpu/systems.h"
#include "gpu/vendor.h"
#include "operations.h"

namespace lapwing::cusolver {
namespace {

using namespace vendor;  // the vendor's enums

bool is_positive(const Frame& frame) { return frame.flags & POS; }

int check_libraries(Frame& frame) {
  for (Library library : {solver, dense_solver, blas, dense_blas})
    if (const char* reason = missing(library)) return fail(frame, "engine %s: %s", engine_name(), reason);
  return 0;
}

// ---- factors of one matrix -------------------------------------------------------------------------------------------

// work, which is conj(A) as the library sees it, <- P L U
int factor_general(const Job& job, void* work, int32_t* info, cuda::Pivots pivots) {
  Frame& frame = job.frame;
  const int64_t n = frame.size[1];
  // what is not finite is not handed on
  if (cuda::replace_failed(frame, work, info, n, n)) return 1;
  if (check(frame,
            table().getrf(job.lease.handle, job.lease.params, n, n, job.type(), work, n, job.at<int64_t>(job.places.pivots),
                          job.type(), job.device_work(), job.need.device, job.host_work(), job.need.host,
                          job.at<int32_t>(job.places.status)),
            "LU"))
    return 1;
  return cuda::check_pivots(frame, work, n, info, n, 0, pivots);
}

// x (n x k, row-major, its rows in the order of the pivots) <- A^-1 x from the library's L and U of conj(A): x^T U^H L^H is
// solved from the right. One column is the same in both orders: it is conjugated, and solved from the left, which is faster.
int solve_general(const Job& job, const void* lu, void* x, int64_t k, int32_t* info) {
  Frame& frame = job.frame;
  const int64_t n = frame.size[1];
  if (k == 1)
    return cuda::adjoint(frame, x, x, info, n, 1, 1, 0) ||
           job.blas.trsm({SIDE_LEFT, FILL_LOWER, OP_NONE, DIAGONAL_UNIT}, n, 1, 1, lu, n, x, n) ||
           job.blas.trsm({SIDE_LEFT, FILL_UPPER, OP_NONE, DIAGONAL_READ}, n, 1, 1, lu, n, x, n) ||
           cuda::adjoint(frame, x, x, info, n, 1, 1, cuda::SPOIL);
  return job.blas.trsm({SIDE_RIGHT, FILL_LOWER, OP_ADJOINT, DIAGONAL_UNIT}, k, n, 1, lu, n, x, k) ||
         job.blas.trsm({SIDE_RIGHT, FILL_UPPER, OP_ADJOINT, DIAGONAL_READ}, k, n, 1, lu, n, x, k) ||
         cuda::spoil(frame, x, info, n * k * job.parts());
}

struct Kind {
  bool upper = false, adjoint = false, unit = false;
};

// x (n x k, row-major) <- L^-1 x, or L^-H x, with a row-major triangle
int solve_triangle(const Job& job, Kind kind, const void* l, void* x, int64_t k) {
  const int64_t n = job.frame.size[1];
  const int fill = kind.upper ? FILL_LOWER : FILL_UPPER, diagonal = kind.unit ? DIAGONAL_UNIT : DIAGONAL_READ;
  // one column is the same in both orders, and faster from the left
  if (k == 1 && (!kind.adjoint || job.parts() == 1))
    return job.blas.trsm({SIDE_LEFT, fill, kind.adjoint ? OP_NONE : OP_TRANSPOSE, diagonal}, n, 1, 1, l, n, x, n);
  return job.blas.trsm({SIDE_RIGHT, fill, kind.adjoint ? OP_ADJOINT : OP_NONE, diagonal}, k, n, 1, l, n, x, k);
}

int copy_unless_same(Frame& frame, void* to, const void* from, size_t bytes) {
  return to == from ? 0 : cuda::copy(frame, to, from, bytes);
}

// ---- the operations, one matrix each ---------------------------------------------------------------------------------

// Whether the solutions of one matrix are looked at instead of its triangle; the kernel that does it also sets the status.
bool looks_at_solution(const Frame& frame) {
  constexpr int64_t FEW = 1 << 14;
  return frame.op == TRIANGULAR && frame.size[1] * frame.size[2] <= FEW;
}

int triangular(const Job& job, int64_t m) {
  Frame& frame = job.frame;
  const int64_t n = frame.size[1], k = frame.size[2];
  const Kind kind{bool(frame.flags & UPPER), bool(frame.flags & ADJOINT), bool(frame.flags & UNIT)};
  void *l = job.input(0, m, n * n), *x = job.input(2, m, n * k);
  int32_t* info = job.info(3, m);
  if (copy_unless_same(frame, x, job.input(1, m, n * k), size_t(n * k) * job.element)) return 1;
  if (looks_at_solution(frame))
    return solve_triangle(job, kind, l, x, k) || cuda::check_solution(frame, l, x, k, info, n, kind.upper, kind.unit);
  return cuda::check_triangle(frame, l, info, n, kind.upper, kind.unit) || solve_triangle(job, kind, l, x, k) ||
         cuda::spoil(frame, x, info, n * k * job.parts());
}

int solve_one(const Job& job, int64_t m) {
  Frame& frame = job.frame;
  const int64_t n = frame.size[1], k = frame.size[2];
  void *a = job.input(0, m, n * n), *b = job.input(1, m, n * k), *x = job.input(2, m, n * k);
  int32_t* info = job.info(3, m);
  if (is_positive(frame)) {
    void* work = frame.flags & OVERWRITE ? a : job.at(job.places.matrix);
    if (factor_positive(job, a, work, info)) return 1;
    if (k > 1)  // x^T L L^H = b^T
      return copy_unless_same(frame, x, b, size_t(n * k) * job.element) ||
             job.blas.trsm({SIDE_RIGHT, FILL_LOWER, OP_ADJOINT, DIAGONAL_READ}, k, n, 1, work, n, x, k) ||
             job.blas.trsm({SIDE_RIGHT, FILL_LOWER, OP_NONE, DIAGONAL_READ}, k, n, 1, work, n, x, k) ||
             cuda::spoil(frame, x, info, n * k * job.parts());
    return cuda::adjoint(frame, b, x, info, n, 1, 1, 0) ||  // L L^H conj(x) = conj(b)
           job.blas.trsm({SIDE_LEFT, FILL_LOWER, OP_NONE, DIAGONAL_READ}, n, 1, 1, work, n, x, n) ||
           job.blas.trsm({SIDE_LEFT, FILL_LOWER, OP_ADJOINT, DIAGONAL_READ}, n, 1, 1, work, n, x, n) ||
           cuda::adjoint(frame, x, x, info, n, 1, 1, cuda::SPOIL);
  }
  void *work = job.at(job.places.matrix), *right = job.at(job.places.right);
  auto* rows = job.at<int32_t>(job.places.rows);
  const size_t bytes = size_t(n * k) * job.element;
  return cuda::adjoint(frame, a, work, info, n, n, n, cuda::CHECK) || factor_general(job, work, info, cuda::NOT_ZERO) ||
         cuda::pivot_rows(frame, job.at<int64_t>(job.places.pivots), rows, info, n) || cuda::copy(frame, right, b, bytes) ||
         cuda::permute(frame, right, x, rows, info, n, k, false) || solve_general(job, work, x, k, info);
}

int inverse_one(const Job& job, int64_t m) {
  Frame& frame = job.frame;
  const int64_t n = frame.size[1];
  void *a = job.input(0, m, n * n), *x = job.input(1, m, n * n);
  int32_t* info = job.info(2, m);
  if (is_positive(frame)) return invert_positive(job, a, x, info) || cuda::spoil(frame, x, info, n * n * job.parts());
  void* work = job.at(job.places.matrix);
  auto* rows = job.at<int32_t>(job.places.rows);
  return cuda::adjoint(frame, a, work, info, n, n, n, cuda::CHECK) || factor_general(job, work, info, cuda::NOT_ZERO) ||
         cuda::pivot_rows(frame, job.at<int64_t>(job.places.pivots), rows, info, n) || cuda::permutation(frame, x, rows, n) ||
         solve_general(job, work, x, n, info);
}

int lu_one(const Job& job, int64_t m) {
  Frame& frame = job.frame;
  const int64_t n = frame.size[1];
  void *a = job.input(0, m, n * n), *out = job.input(1, m, n * n);
  auto* rows = static_cast<int32_t*>(frame.buffer[2]) + m * n;
  int32_t* info = job.info(3, m);
  if (a != out) {
    if (cuda::adjoint(frame, a, out, info, n, n, n, cuda::CHECK)) return 1;
  } else {
    if (cuda::copy_checked(frame, a, out, info, n, n) || cuda::turn(frame, out, out, info, 1, n, 0, n)) return 1;
  }
  return factor_general(job, out, info, cuda::NOT_ZERO) || cuda::turn(frame, out, out, info, 1, n, 0, n) ||
         cuda::pivot_rows(frame, job.at<int64_t>(job.places.pivots), rows, info, n);
}

int solve_by_lu(const Job& job, int64_t m) {
  Frame& frame = job.frame;
  const int64_t n = frame.size[1], k = frame.size[2];
  void *lu = job.input(1, m, n * n), *b = job.input(3, m, n * k), *x = job.input(4, m, n * k);
  void* right = job.at(job.places.right);
  auto* rows = static_cast<const int32_t*>(frame.buffer[2]) + m * n;
  auto* info = job.at<int32_t>(job.places.info);
  const size_t bytes = size_t(n * k) * job.element;
  if (cuda::fill(frame, info, 0, sizeof *info) || cuda::check_pivots(frame, lu, n, info, n, 0, cuda::NOT_ZERO)) return 1;
  const bool adjoint = frame.flags & ADJOINT;
  const int status =
      adjoint ? cuda::copy(frame, right, b, bytes) ||  // A^H = U^H L^H P
                    solve_triangle(job, {true, true}, lu, right, k) || solve_triangle(job, {false, true, true}, lu, right, k) ||
                    cuda::permute(frame, right, x, rows, info, n, k, true)
              : cuda::permute(frame, b, right, rows, info, n, k, false) ||  // P A = L U
                    solve_triangle(job, {false, false, true}, lu, right, k) || solve_triangle(job, {true}, lu, right, k) ||
                    cuda::copy(frame, x, right, bytes);
  return status || cuda::spoil(frame, x, info, n * k * job.parts());
}

int solve_by_cholesky(const Job& job, int64_t m) {
  Frame& frame = job.frame;
  const int64_t n = frame.size[1], k = frame.size[2];
  const bool upper = frame.flags & UPPER;
  void *l = job.input(1, m, n * n), *b = job.input(2, m, n * k), *x = job.input(3, m, n * k);
  auto* info = job.at<int32_t>(job.places.info);
  return cuda::fill(frame, info, 0, sizeof *info) || cuda::check_pivots(frame, l, n, info, n, 0, cuda::NOT_ZERO) ||
         copy_unless_same(frame, x, b, size_t(n * k) * job.element) ||
         solve_triangle(job, {upper, upper}, l, x, k) ||  // A = L L^H, or U^H U
         solve_triangle(job, {upper, !upper}, l, x, k) || cuda::spoil(frame, x, info, n * k * job.parts());
}

int determinant(const Job& job, int64_t m) {
  Frame& frame = job.frame;
  const int64_t n = frame.size[1];
  void *a = job.input(0, m, n * n), *work = job.at(job.places.matrix);
  int32_t* info = job.info(status_place(frame.op), m);
  const auto finish = [&](const int64_t* pivots) {
    void* value = job.input(1, m, 1);
    void* logabs = frame.op == SLOGDET ? static_cast<char*>(frame.buffer[2]) + size_t(m) * job.element / size_t(job.parts()) : nullptr;
    return cuda::determinant(frame, work, pivots, value, logabs, info, n);
  };
  if (is_positive(frame)) {
    if (frame.flags & OVERWRITE) work = a;
    return factor_positive(job, a, work, info) || finish(nullptr);
  }
  return cuda::adjoint(frame, a, work, info, n, n, n, cuda::CHECK) || factor_general(job, work, info, cuda::ANY) ||
         finish(job.at<int64_t>(job.places.pivots));
}

int one(const Job& job, int64_t m) {
  switch (job.frame.op) {
    case CHOLESKY: return factor_lower(job, job.input(1, m, job.frame.size[1] * job.frame.size[1]), job.info(2, m));
    case TRIANGULAR: return triangular(job, m);
    case SOLVE: return solve_one(job, m);
    case INVERSE: return inverse_one(job, m);
    case LU: return lu_one(job, m);
    case LU_SOLVE: return solve_by_lu(job, m);
    case CHOLESKY_SOLVE: return solve_by_cholesky(job, m);
    case QR: case QR_R: case QR_RAW: return qr(job, m);
    case SVD: case SVDVALS: return svd(job, m);
    case LSTSQ: return lstsq(job, m);
    default: return determinant(job, m);
  }
}

}  // namespace

int Job::prepare() {
  const int64_t n = frame.size[1], k = frame.size[2], order = n * n;
  const bool factors = frame.op != TRIANGULAR && frame.op != LU_SOLVE && frame.op != CHOLESKY_SOLVE && !is_rectangular(frame.op);
  const bool positive = is_positive(frame) || frame.op == CHOLESKY, overwrite = frame.flags & OVERWRITE;
  if (frame.op != TRIANGULAR) places.info = take(sizeof(int32_t)), places.status = take(sizeof(int32_t));
  if (factors && positive) {
    if (positive_workspace(*this)) return 1;
    if (frame.op != INVERSE && frame.op != CHOLESKY && !overwrite) places.matrix = take(size_t(order) * element);
  } else if (factors) {
    if (check(frame, table().getrf_size(lease.handle, lease.params, n, n, type(), nullptr, n, type(), &need.device, &need.host),
              "asking for the workspace"))
      return 1;
    places.pivots = take(sizeof(int64_t) * size_t(n)), places.rows = take(sizeof(int32_t) * size_t(n));
    if (frame.op != LU) places.matrix = take(size_t(order) * element);
    if (frame.op == SOLVE) places.right = take(size_t(n * k) * element);
  } else if (frame.op == LU_SOLVE) {
    places.right = take(size_t(n * k) * element);
  } else if (is_rectangular(frame.op)) {
    if (decompose_workspace(*this)) return 1;
  }
  places.work = take(need.device);
  return 0;
}

int Job::allocate() {
  if (places.total && !(block = cuda::scratch(frame, places.total))) return 1;
  host.resize(need.host);
  return 0;
}

int64_t solve_scratch(Frame& frame) {
  if (check_libraries(frame)) return -1;
  Job job(frame);
  return job.ok() && !job.prepare() ? int64_t(job.places.total) : -1;
}

int solve(Frame& frame) {
  if (check_libraries(frame)) return 1;
  Job job(frame);
  if (!job.ok() || job.prepare() || job.allocate()) return 1;
  const int place = status_place(frame.op);
  const bool cleared = place >= 0 && !looks_at_solution(frame);
  if (cleared && cuda::fill(frame, frame.buffer[place], 0, sizeof(int32_t) * size_t(frame.size[0]))) return 1;
  for (int64_t m = 0; m < frame.size[0]; m++)
    if (one(job, m)) return 1;
  // the library's host memory outlives its work
  return job.need.host ? check(frame, table().synchronize(frame.stream), "waiting for the GPU") : 0;
}

}  // namespace lapwing::cusolver
