// cuBLAS on column-major matrices of a frame's dtype, queued on its stream. 0, or 1 with a message in the frame.
#pragma once
#include "frame.h"
#include "gpu/handles.h"

namespace lapwing::cublas {

// One number of the frame's dtype on the host.
struct Scalar {
  Scalar(int32_t dtype, double value);
  alignas(16) unsigned char bytes[16] = {};
};

struct Triangle {
  int side, fill, op, diagonal;
};

// Only after the libraries blas and dense_blas were found.
class Dense {
 public:
  explicit Dense(Frame& frame);
  bool ok() const { return handle_ != nullptr; }

  // B <- alpha op(A)^-1 B, or B op(A)^-1; B is m x n
  int trsm(Triangle kind, int64_t m, int64_t n, double alpha, const void* a, int64_t lda, void* b, int64_t ldb) const;
  // C <- op(A) B, or B op(A); A is a triangle, C and B are m x n
  int trmm(Triangle kind, int64_t m, int64_t n, const void* a, int64_t lda, const void* b, int64_t ldb, void* c,
           int64_t ldc) const;
  // The lower triangle of C <- alpha op(A) op(A)^H + beta C; op(A) is n x k
  int herk(int op, int64_t n, int64_t k, double alpha, const void* a, int64_t lda, double beta, void* c, int64_t ldc) const;
  // C <- alpha op(A) op(B) + beta C
  int gemm(int a_op, int b_op, int64_t m, int64_t n, int64_t k, double alpha, const void* a, int64_t lda, const void* b,
           int64_t ldb, double beta, void* c, int64_t ldc) const;
  // The same of float32 matrices on tensor cores, which multiply 11 bits: every number is split in two (cuda::split), and three
  // of the four products are summed, which is as accurate as float32. `work` has split_bytes(m, n, depth) bytes.
  int gemm_split(int a_op, int b_op, int64_t m, int64_t n, int64_t k, double alpha, const void* a, int64_t lda, const void* b,
                 int64_t ldb, double beta, void* c, int64_t ldc, void* work, int64_t depth) const;
  static size_t split_bytes(int64_t m, int64_t n, int64_t depth) { return size_t(3 * (m + n) * depth) * sizeof(float); }
  // C <- alpha op(A) op(B) + beta C for `count` of each, `stride` elements behind the other; C is m x n
  struct Operand {
    const void* at;
    int64_t ld, stride;
  };
  int gemm_many(int a_op, int b_op, int64_t m, int64_t n, int64_t k, double alpha, Operand a, Operand b, double beta, Operand c,
                int64_t count) const;

 private:
  int check(int status, const char* doing) const;

  Frame& frame_;
  cuda::Lease lease_;
  void* handle_;
};

}  // namespace lapwing::cublas
