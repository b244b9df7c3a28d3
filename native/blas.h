// The dense products and the small eigenproblem of LAPACK, column-major, for whichever integer width the library has.
// T is float, double or their complex types. Only after has_dense(dtype) answered true; never from inside `parallel`.
#pragma once
#include <complex>
#include <cstdint>

#include "frame.h"

namespace lapwing::lapack {

template <class T>
using RealOf = decltype(std::real(T()));

template <class T>
constexpr Dtype dtype_of() {
  constexpr bool complex = sizeof(T) != sizeof(RealOf<T>), wide = sizeof(RealOf<T>) == 8;
  return complex ? (wide ? C128 : C64) : (wide ? F64 : F32);
}

bool has_dense(int32_t dtype);

// C <- alpha op(A) op(B) + beta C; op is 'N' or 'C' (adjoint)
template <class T>
void gemm(char a_op, char b_op, int64_t m, int64_t n, int64_t k, T alpha, const T* a, int64_t lda, const T* b, int64_t ldb,
          T beta, T* c, int64_t ldc);

// B <- B R^-1, R upper triangular of order n
template <class T>
void solve_right(int64_t m, int64_t n, const T* r, int64_t ldr, T* b, int64_t ldb);

// A <- its eigenvectors, w <- its eigenvalues ascending; the upper triangle of A is read. LAPACK's info.
template <class T>
int64_t eigh_small(int64_t n, T* a, int64_t lda, RealOf<T>* w);

}  // namespace lapwing::lapack
