#include "lapack/blas.h"

#include "lapack/fortran.h"
#include "lapack/lapack.h"

namespace lapwing::lapack {
bool has_dense(int32_t dtype) {
  return routine(GEMM, dtype).address && routine(TRSM, dtype).address && routine(HEEVD, dtype).address;
}

template <class T>
void gemm(char a_op, char b_op, int64_t m, int64_t n, int64_t k, T alpha, const T* a, int64_t lda, const T* b, int64_t ldb,
          T beta, T* c, int64_t ldc) {
  call<T>(GEMM, a_op, b_op, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

template <class T>
void solve_right(int64_t m, int64_t n, const T* r, int64_t ldr, T* b, int64_t ldb) {
  call<T>(TRSM, 'R', 'U', 'N', 'N', m, n, T(1), r, ldr, b, ldb);
}

template <class T>
int64_t heevd(bool vectors, char triangle, int64_t n, T* a, int64_t lda, RealOf<T>* w) {
  const char job = vectors ? 'V' : 'N';
  return with_three_workspaces<T>(HEEVD, [&](auto... rest) { call<T>(HEEVD, job, triangle, n, a, lda, w, rest...); });
}

#define LAPWING_DENSE(T)                                                                                                 \
  template void gemm<T>(char, char, int64_t, int64_t, int64_t, T, const T*, int64_t, const T*, int64_t, T, T*, int64_t); \
  template void solve_right<T>(int64_t, int64_t, const T*, int64_t, T*, int64_t);                                        \
  template int64_t heevd<T>(bool, char, int64_t, T*, int64_t, RealOf<T>*);
LAPWING_DENSE(float)
LAPWING_DENSE(double)
LAPWING_DENSE(std::complex<float>)
LAPWING_DENSE(std::complex<double>)
#undef LAPWING_DENSE

}  // namespace lapwing::lapack
