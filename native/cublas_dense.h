// cuBLAS on column-major matrices of a frame's dtype, queued on its stream. 0, or 1 with a message in the frame.
#pragma once
#include "frame.h"
#include "krylov_cuda.h"

namespace lapwing::cublas {

// One number of the frame's dtype on the host.
struct Scalar {
  Scalar(int32_t dtype, double value);
  alignas(16) unsigned char bytes[16] = {};
};

struct Triangle {
  int side, fill, op, diagonal;
};

// Only after blas and dense_blas were found.
class Dense {
 public:
  explicit Dense(Frame& frame);
  bool ok() const { return handle_ != nullptr; }

  // B <- alpha op(A)^-1 B, or B op(A)^-1; B is m x n
  int trsm(Triangle kind, int64_t m, int64_t n, double alpha, const void* a, int64_t lda, void* b, int64_t ldb) const;
  // B <- op(A) B, or B op(A)
  int trmm(Triangle kind, int64_t m, int64_t n, const void* a, int64_t lda, void* b, int64_t ldb) const;
  // The lower triangle of C <- A^H A + beta C; A is k x n
  int square(int64_t n, int64_t k, const void* a, int64_t lda, double beta, void* c, int64_t ldc) const;
  // C <- A^H B + C; A is k x m
  int add_product(int64_t m, int64_t n, int64_t k, const void* a, int64_t lda, const void* b, int64_t ldb, void* c,
                  int64_t ldc) const;

 private:
  int check(int status, const char* doing) const;

  Frame& frame_;
  krylov::BlasLease lease_;
  void* handle_;
};

}  // namespace lapwing::cublas
