#include "gpu/cublas_dense.h"

#include <algorithm>
#include <cstring>

#include "gpu/cuda.h"
#include "gpu/systems.h"
#include "gpu/vendor.h"

namespace lapwing::cublas {

using vendor::of_dtype;

Scalar::Scalar(int32_t dtype, double value) {
  const float narrow = float(value);
  if (dtype % 2)
    std::memcpy(bytes, &value, sizeof value);
  else
    std::memcpy(bytes, &narrow, sizeof narrow);
}

Dense::Dense(Frame& frame) : frame_(frame), lease_(frame, vendor::blas), handle_(lease_.get()) {}

int Dense::check(int status, const char* doing) const {
  return status ? fail(frame_, "%s: the GPU's BLAS library answered with status %d", doing, status) : 0;
}

int Dense::trsm(Triangle kind, int64_t m, int64_t n, double alpha, const void* a, int64_t lda, void* b, int64_t ldb) const {
  using Call = int (*)(void*, int, int, int, int, int64_t, int64_t, const void*, const void*, int64_t, void*, int64_t);
  const auto& api = vendor::table();
  const Scalar by(frame_.dtype, alpha);
  const auto call = of_dtype<Call>(frame_.dtype, api.strsm, api.dtrsm, api.ctrsm, api.ztrsm);
  return check(call(handle_, kind.side, kind.fill, kind.op, kind.diagonal, m, n, by.bytes, a, lda, b, ldb), "triangular solve");
}

int Dense::trmm(Triangle kind, int64_t m, int64_t n, const void* a, int64_t lda, const void* b, int64_t ldb, void* c,
                int64_t ldc) const {
  using Call = int (*)(void*, int, int, int, int, int64_t, int64_t, const void*, const void*, int64_t, const void*, int64_t,
                       void*, int64_t);
  const auto& api = vendor::table();
  const Scalar one(frame_.dtype, 1);
  const auto call = of_dtype<Call>(frame_.dtype, api.strmm, api.dtrmm, api.ctrmm, api.ztrmm);
  return check(call(handle_, kind.side, kind.fill, kind.op, kind.diagonal, m, n, one.bytes, a, lda, b, ldb, c, ldc),
               "triangular product");
}

int Dense::herk(int op, int64_t n, int64_t k, double alpha, const void* a, int64_t lda, double beta, void* c,
                int64_t ldc) const {
  using Call = int (*)(void*, int, int, int64_t, int64_t, const void*, const void*, int64_t, const void*, void*, int64_t);
  const auto& api = vendor::table();
  const Scalar first(frame_.dtype, alpha), second(frame_.dtype, beta);  // real numbers, which stand first in complex ones
  const auto call = of_dtype<Call>(frame_.dtype, api.ssyrk, api.dsyrk, api.cherk, api.zherk);
  return check(call(handle_, vendor::FILL_LOWER, op, n, k, first.bytes, a, lda, second.bytes, c, ldc), "product");
}

int Dense::gemm(int a_op, int b_op, int64_t m, int64_t n, int64_t k, double alpha, const void* a, int64_t lda, const void* b,
                int64_t ldb, double beta, void* c, int64_t ldc) const {
  const Scalar first(frame_.dtype, alpha), second(frame_.dtype, beta);
  const int type = cuda::type_of(frame_.dtype), compute = frame_.dtype % 2 ? vendor::COMPUTE_64 : vendor::COMPUTE_32;
  return check(vendor::table().blas_gemm(handle_, a_op, b_op, m, n, k, first.bytes, a, type, lda, b, type, ldb, second.bytes, c,
                                         type, ldc, compute, vendor::GEMM_DEFAULT),
               "product");
}

int Dense::gemm_split(int a_op, int b_op, int64_t m, int64_t n, int64_t k, double alpha, const void* a, int64_t lda,
                      const void* b, int64_t ldb, double beta, void* c, int64_t ldc, void* work, int64_t depth) const {
  const Scalar by(frame_.dtype, alpha), one(frame_.dtype, 1), first_beta(frame_.dtype, beta);
  const int type = cuda::type_of(frame_.dtype);
  auto *left = static_cast<float*>(work), *right = left + 3 * m * depth;
  for (int64_t begin = 0; begin < k; begin += depth) {
    const int64_t part = std::min(depth, k - begin), all = 3 * part;
    // the summed index counts rows of both, which tensor cores read fastest, and the three blocks follow each other along it
    const auto split = [&](bool turned, const void* from, int64_t ld, int64_t count, float* to, bool second) {
      const auto* at = static_cast<const float*>(from) + begin * (turned ? ld : 1);
      return cuda::split(frame_, at, ld, to, all, part, turned ? count : part, turned ? part : count, second, turned);
    };
    if (split(a_op == vendor::OP_NONE, a, lda, m, left, false) || split(b_op != vendor::OP_NONE, b, ldb, n, right, true) ||
        check(vendor::table().blas_gemm(handle_, vendor::OP_ADJOINT, vendor::OP_NONE, m, n, all, by.bytes, left, type, all, right,
                                        type, all, begin ? one.bytes : first_beta.bytes, c, type, ldc, vendor::COMPUTE_TF32,
                                        vendor::GEMM_DEFAULT),
              "product"))
      return 1;
  }
  return 0;
}

int Dense::gemm_many(int a_op, int b_op, int64_t m, int64_t n, int64_t k, double alpha, Operand a, Operand b, double beta,
                     Operand c, int64_t count) const {
  const Scalar first(frame_.dtype, alpha), second(frame_.dtype, beta);
  const int type = cuda::type_of(frame_.dtype), compute = frame_.dtype % 2 ? vendor::COMPUTE_64 : vendor::COMPUTE_32;
  return check(vendor::table().blas_gemm_many(handle_, a_op, b_op, m, n, k, first.bytes, a.at, type, a.ld, a.stride, b.at, type,
                                              b.ld, b.stride, second.bytes, const_cast<void*>(c.at), type, c.ld, c.stride, count,
                                              compute, vendor::GEMM_DEFAULT),
               "product");
}

}  // namespace lapwing::cublas
