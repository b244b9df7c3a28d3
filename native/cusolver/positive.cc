// The Cholesky factor and the inverse of one positive definite matrix by recursion: nearly all of it is products, which the
// GPU does at 50 to 60 TFLOP/s in double (H200, 2026-11-15), where the library's triangular solves reach 10 to 40. In float32
// the products are split for the tensor cores.
//
// Column-major, lower triangle. Only diagonal blocks of order LEAF are inverted for the solves; inverses of larger blocks
// would cost accuracy where the matrix is ill-conditioned.
#include <algorithm>

#include "gpu/cuda.h"
#include "cusolver/job.h"
#include "gpu/spectrum.h"
#include "gpu/systems.h"
#include "gpu/vendor.h"

namespace lapwing::cusolver {
namespace {

using namespace vendor;
using cuda::LEAF;

constexpr int64_t BASE = 4096;   // the library factors so much itself
constexpr int64_t STRIP = 8192;  // rows that are solved for at a time, which bounds the memory beside the matrix
constexpr int64_t SPLIT = 4096;  // larger products with a triangle gain from a plain one inside
// In float32 tensor cores do the products of large matrices, three for one, and so fast that the library and its products with
// triangles get less of the work. Cholesky on the H200, 2026-11-16, by the library and so: n = 8192 8.0 and 8.8 ms, 16384 41 and
// 33 ms, 32768 274 and 159 ms.
constexpr int64_t TENSOR_FROM = 12288, TENSOR = 512, TENSOR_BASE = 2048, TENSOR_SPLIT = 1024;

// GPUs whose tensor cores are at least six times as fast as their float32 units; others lose by it.
bool by_tensor_cores(Frame& frame) {
  const cuda::Properties* device = frame.dtype == F32 && frame.size[1] >= TENSOR_FROM ? cuda::properties(frame) : nullptr;
  return device && (device->compute_capability == 80 || device->compute_capability == 90 || device->compute_capability == 100);
}

// How many of the summed products are split at a time: the copies take at most a fifth of the matrix's memory.
int64_t depth_of(int64_t n) { return std::clamp<int64_t>(n / 16 / 256 * 256, 256, 2048); }

int64_t leaves_of(int64_t n) { return (n + LEAF - 1) / LEAF; }
// Whole leaves, so that none is cut.
int64_t half(int64_t n) { return leaves_of(n) / 2 * LEAF; }

struct Recursion {
  Recursion(const Job& job, int32_t* info)
      : job(job), ld(job.frame.size[1]), info(info), tensor(by_tensor_cores(job.frame)), base(tensor ? TENSOR_BASE : BASE),
        split(tensor ? TENSOR_SPLIT : SPLIT) {}

  const Job& job;
  int64_t ld;  // of the matrix
  int32_t* info;
  bool tensor;
  int64_t base, split;

  char* at(void* a, int64_t i, int64_t j) const { return at(a, i, j, ld); }
  char* at(void* a, int64_t i, int64_t j, int64_t stride) const { return static_cast<char*>(a) + (i + j * stride) * bytes(); }
  const char* at(const void* a, int64_t i, int64_t j, int64_t stride) const {
    return static_cast<const char*>(a) + (i + j * stride) * bytes();
  }
  int64_t bytes() const { return int64_t(job.element); }
  char* leaf(int64_t offset) const { return job.at(job.places.leaves) + offset / LEAF * LEAF * LEAF * bytes(); }
  char* wide() const { return job.at(job.places.wide); }

  // A <- L; `offset` is where A starts in the whole matrix
  int factor(void* a, int64_t n, int64_t offset, bool with_leaves) const {
    if (n <= base) return factor_base(a, n, offset) || (with_leaves && invert_leaves(a, n, offset));
    const int64_t h = half(n), rest = n - h;
    char *low = at(a, h, 0), *second = at(a, h, h);
    // A21 <- A21 L11^-H, A22 <- A22 - A21 A21^H
    return factor(a, h, offset, true) || solve_strips(low, rest, a, h, offset) || square(OP_NONE, rest, h, -1, low, second) ||
           factor(second, rest, offset + h, with_leaves);
  }

  // B <- B L^-H, a strip of its rows after the other
  int solve_strips(char* b, int64_t rows, void* l, int64_t n, int64_t offset) const {
    for (int64_t i = 0; i < rows; i += STRIP) {
      const int64_t some = std::min(STRIP, rows - i);
      char* strip = at(b, i, 0);
      if (solve_right(strip, ld, wide(), some, some, l, n, offset, true, 1) ||
          cuda::copy_block(job.frame, wide(), some, strip, ld, some, n))
        return 1;
    }
    return 0;
  }

  int factor_base(void* a, int64_t n, int64_t offset) const {
    auto* status = job.at<int32_t>(job.places.status);
    const int answer = table().potrf(job.lease.handle, job.lease.params, FILL_LOWER, n, job.type(), a, ld, job.type(),
                                     job.device_work(), job.need.device, job.host_work(), job.need.host,
                                     status);
    return check(job.frame, answer, "cholesky") || cuda::merge(job.frame, info, status, offset) ||
           cuda::check_pivots(job.frame, a, ld, info, n, offset, cuda::POSITIVE);
  }

  // leaves <- the inverses of the diagonal blocks of L: tiles, then pairs of them, all leaves together
  int invert_leaves(void* a, int64_t n, int64_t offset) const {
    const int64_t count = leaves_of(n), each = LEAF * LEAF, room = each / 4;
    char *leaves = leaf(offset), *work = job.at(job.places.leaf_work);
    if (cuda::lift(job.frame, a, ld, leaves, n) || cuda::invert_tiles(job.frame, leaves, count)) return 1;
    for (int64_t s = cuda::LEAF_TILE; s < LEAF; s *= 2)
      for (int64_t p = 0; p < LEAF; p += 2 * s) {
        const char *first = at(leaves, p, p, LEAF), *second = at(leaves, p + s, p + s, LEAF), *low = at(leaves, p + s, p, LEAF);
        // L21 <- -L22^-1 L21 L11^-1
        if (job.blas.gemm_many(OP_NONE, OP_NONE, s, s, s, 1, {second, LEAF, each}, {low, LEAF, each}, 0, {work, s, room}, count) ||
            job.blas.gemm_many(OP_NONE, OP_NONE, s, s, s, -1, {work, s, room}, {first, LEAF, each}, 0, {low, LEAF, each}, count))
          return 1;
      }
    return 0;
  }

  // to <- alpha from L^-1, or alpha from L^-H; alpha is 1 or -1, `from` is destroyed; both have `rows` rows
  int solve_right(void* from, int64_t from_ld, void* to, int64_t to_ld, int64_t rows, void* l, int64_t n, int64_t offset,
                  bool adjoint, double alpha) const {
    const int op = adjoint ? OP_ADJOINT : OP_NONE;
    if (n <= LEAF) return product(OP_NONE, op, rows, n, n, alpha, from, from_ld, leaf(offset), LEAF, 0, to, to_ld);
    const int64_t h = half(n), rest = n - h;
    char *low = at(l, h, 0), *second = at(l, h, h), *from2 = at(from, 0, h, from_ld), *to2 = at(to, 0, h, to_ld);
    if (adjoint)  // X1 <- B1 L11^-H, X2 <- (B2 - X1 L21^H) L22^-H
      return solve_right(from, from_ld, to, to_ld, rows, l, h, offset, true, alpha) ||
             product(OP_NONE, OP_ADJOINT, rows, rest, h, -alpha, to, to_ld, low, ld, 1, from2, from_ld) ||
             solve_right(from2, from_ld, to2, to_ld, rows, second, rest, offset + h, true, alpha);
    // X2 <- B2 L22^-1, X1 <- (B1 - X2 L21) L11^-1
    return solve_right(from2, from_ld, to2, to_ld, rows, second, rest, offset + h, false, alpha) ||
           product(OP_NONE, OP_NONE, rows, h, rest, -alpha, to2, to_ld, low, ld, 1, from, from_ld) ||
           solve_right(from, from_ld, to, to_ld, rows, l, h, offset, false, alpha);
  }

  // L <- L^-1
  int invert(void* a, int64_t n, int64_t offset) const {
    if (n <= LEAF) return cuda::copy_block(job.frame, leaf(offset), LEAF, a, ld, n, n);
    const int64_t h = half(n), rest = n - h;
    char *low = at(a, h, 0), *second = at(a, h, h);
    // L21 <- -L22^-1 L21 L11^-1
    return invert(second, rest, offset + h) || multiply(OP_NONE, second, rest, low, ld, wide(), rest, h) ||
           solve_right(wide(), rest, low, ld, rest, a, h, offset, false, -1) || invert(a, h, offset);
  }

  // X <- X^H X, X being the inverse of L
  int square_inverse(void* a, int64_t n, int64_t offset) const {
    if (n <= LEAF) return job.blas.herk(OP_ADJOINT, n, n, 1, leaf(offset), LEAF, 0, a, ld);
    const int64_t h = half(n), rest = n - h;
    char *low = at(a, h, 0), *second = at(a, h, h);
    // A11 <- X11^H X11 + X21^H X21, A21 <- X22^H X21
    return square_inverse(a, h, offset) || square(OP_ADJOINT, h, rest, 1, low, a) ||
           multiply(OP_ADJOINT, second, rest, low, ld, wide(), rest, h) ||
           cuda::copy_block(job.frame, wide(), rest, low, ld, rest, h) || square_inverse(second, rest, offset + h);
  }

  // C <- op(L) B; B and C are n x columns
  int multiply(int op, const void* l, int64_t n, const void* b, int64_t b_ld, void* c, int64_t c_ld, int64_t columns) const {
    if (n <= split)
      return job.blas.trmm({SIDE_LEFT, FILL_LOWER, op, DIAGONAL_READ}, n, columns, l, ld, b, b_ld, c, c_ld);
    const int64_t h = half(n), rest = n - h;
    const char *low = at(l, h, 0, ld), *second = at(l, h, h, ld), *b2 = at(b, h, 0, b_ld);
    char* c2 = at(c, h, 0, c_ld);
    if (multiply(op, l, h, b, b_ld, c, c_ld, columns) || multiply(op, second, rest, b2, b_ld, c2, c_ld, columns)) return 1;
    // C2 <- C2 + L21 B1, or C1 <- C1 + L21^H B2
    return op == OP_NONE ? product(op, OP_NONE, rest, columns, h, 1, low, ld, b, b_ld, 1, c2, c_ld)
                         : product(op, OP_NONE, h, columns, rest, 1, low, ld, b2, b_ld, 1, c, c_ld);
  }

  // C <- alpha op(A) op(B) + beta C
  int product(int a_op, int b_op, int64_t m, int64_t n, int64_t k, double alpha, const void* a, int64_t lda, const void* b,
              int64_t ldb, double beta, void* c, int64_t ldc) const {
    if (!tensor || std::min({m, n, k}) < TENSOR) return job.blas.gemm(a_op, b_op, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
    return job.blas.gemm_split(a_op, b_op, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, job.at(job.places.split), depth_of(ld));
  }

  // The lower triangle of C <- C + alpha op(A) op(A)^H; tensor cores fill the blocks on its diagonal whole
  int square(int op, int64_t n, int64_t k, double alpha, const void* a, void* c) const {
    const int other = op == OP_NONE ? OP_ADJOINT : OP_NONE;
    if (n <= split) return tensor ? product(op, other, n, n, k, alpha, a, ld, a, ld, 1, c, ld) : job.blas.herk(op, n, k, alpha, a, ld, 1, c, ld);
    const int64_t h = half(n), rest = n - h;
    const char* a2 = op == OP_NONE ? at(a, h, 0, ld) : at(a, 0, h, ld);
    return square(op, h, k, alpha, a, c) ||
           product(op, other, rest, h, k, alpha, a2, ld, a, ld, 1, at(c, h, 0), ld) ||
           square(op, rest, k, alpha, a2, at(c, h, h));
  }
};

}  // namespace

int factor_positive(const Job& job, const void* a, void* work, int32_t* info) {
  const int64_t n = job.frame.size[1];
  return cuda::hermitian(job.frame, a, work, nullptr, 1) || Recursion(job, info).factor(work, n, 0, false);
}

int factor_lower(const Job& job, void* a, int32_t* info) { return Recursion(job, info).factor(a, job.frame.size[1], 0, false); }

int invert_positive(const Job& job, const void* a, void* out, int32_t* info) {
  Frame& frame = job.frame;
  const int64_t n = frame.size[1];
  const Recursion steps(job, info);
  if (cuda::hermitian(frame, a, out, nullptr, 1) || steps.factor(out, n, 0, true) || steps.invert(out, n, 0) ||
      steps.square_inverse(out, n, 0))
    return 1;
  Frame whole = frame;  // the library's lower triangle is our upper one
  whole.flags |= UPPER;
  return cuda::hermitian(whole, out, out, nullptr, 1) ? fail_as(frame, whole) : 0;
}

bool gains_by_recursion(Frame& frame) { return by_tensor_cores(frame); }

int positive_workspace(Job& job) {
  Frame& frame = job.frame;
  const int64_t n = frame.size[1], base = std::min(n, BASE);
  if (check(frame,
            table().potrf_size(job.lease.handle, job.lease.params, FILL_LOWER, base, job.type(), nullptr, n, job.type(),
                               &job.need.device, &job.need.host),
            "asking for the workspace"))
    return 1;
  if (n <= BASE && frame.op != INVERSE) return 0;
  job.places.leaves = job.take(size_t(leaves_of(n) * LEAF * LEAF) * job.element);
  job.places.leaf_work = job.take(size_t(leaves_of(n) * LEAF * LEAF / 4) * job.element);
  const int64_t rows = frame.op == INVERSE ? n - half(n) : std::min(n - half(n), STRIP);
  job.places.wide = job.take(size_t(half(n) * rows) * job.element);
  if (by_tensor_cores(frame)) job.places.split = job.take(cublas::Dense::split_bytes(n, 0, depth_of(n)));
  return 0;
}

}  // namespace lapwing::cusolver
