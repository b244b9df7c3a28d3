// The dense products and the small eigenproblem of LAPACK, column-major, for whichever integer width the library has.
// T is float, double or their complex types. Only after has_dense(dtype) answered true; never from inside `parallel`.
#pragma once
#include <complex>
#include <cstdint>
#include <new>

#include "frame.h"

namespace lapwing::lapack {

template <class T>
using RealOf = decltype(std::real(T()));

template <class T>
constexpr Dtype dtype_of() {
  constexpr bool complex = sizeof(T) != sizeof(RealOf<T>), wide = sizeof(RealOf<T>) == 8;
  return complex ? (wide ? C128 : C64) : (wide ? F64 : F32);
}

// Memory that is not touched before it is used.
template <class T>
class Room {
 public:
  explicit Room(int64_t count) : data_(static_cast<T*>(::operator new(sizeof(T) * size_t(count > 0 ? count : 1)))) {}
  ~Room() { ::operator delete(data_); }
  Room(const Room&) = delete;
  operator T*() const { return data_; }

 private:
  T* data_;
};

// A size that LAPACK answered as a floating-point number: a float holds it only to 24 bits, and may have rounded it down.
template <class Int, class Real>
Int whole_size(Real answered) {
  return Int(answered) + Int(double(answered) * 1e-7) + 1;
}

bool has_dense(int32_t dtype);

// C <- alpha op(A) op(B) + beta C; op is 'N' or 'C' (adjoint)
template <class T>
void gemm(char a_op, char b_op, int64_t m, int64_t n, int64_t k, T alpha, const T* a, int64_t lda, const T* b, int64_t ldb,
          T beta, T* c, int64_t ldc);

// B <- B R^-1, R upper triangular of order n
template <class T>
void solve_right(int64_t m, int64_t n, const T* r, int64_t ldr, T* b, int64_t ldb);

// w <- the eigenvalues of A, ascending, from the triangle 'U' or 'L'; A <- its eigenvectors, or destroyed. LAPACK's info.
template <class T>
int64_t heevd(bool vectors, char triangle, int64_t n, T* a, int64_t lda, RealOf<T>* w);

}  // namespace lapwing::lapack
