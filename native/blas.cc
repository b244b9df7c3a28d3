#include "blas.h"

#include <algorithm>
#include <new>

#include "lapack.h"

namespace lapwing::lapack {
namespace {

template <class Int, class T>
void gemm_as(char a_op, char b_op, Int m, Int n, Int k, T alpha, const T* a, Int lda, const T* b, Int ldb, T beta, T* c,
             Int ldc) {
  using Call = void (*)(char*, char*, Int*, Int*, Int*, T*, const T*, Int*, const T*, Int*, T*, T*, Int*);
  auto call = reinterpret_cast<Call>(routine[GEMM][dtype_of<T>()].address);
  call(&a_op, &b_op, &m, &n, &k, &alpha, a, &lda, b, &ldb, &beta, c, &ldc);
}

template <class Int, class T>
void solve_right_as(Int m, Int n, const T* r, Int ldr, T* b, Int ldb) {
  char side = 'R', triangle = 'U', op = 'N', diagonal = 'N';
  T one = 1;
  using Call = void (*)(char*, char*, char*, char*, Int*, Int*, T*, const T*, Int*, T*, Int*);
  auto call = reinterpret_cast<Call>(routine[TRSM][dtype_of<T>()].address);
  call(&side, &triangle, &op, &diagonal, &m, &n, &one, r, &ldr, b, &ldb);
}

template <class Int, class T>
int64_t heevd_as(bool vectors, char triangle, Int n, T* a, Int lda, RealOf<T>* w) {
  using Real = RealOf<T>;
  constexpr bool complex = sizeof(T) != sizeof(Real);
  char job = vectors ? 'V' : 'N';
  void* address = routine[HEEVD][dtype_of<T>()].address;
  Int info = 0;
  auto call = [&](T* work, Int* room, Real* real_work, Int* real_room, Int* integers, Int* integer_room) {
    if constexpr (complex) {
      using Call = void (*)(char*, char*, Int*, T*, Int*, Real*, T*, Int*, Real*, Int*, Int*, Int*, Int*);
      reinterpret_cast<Call>(address)(&job, &triangle, &n, a, &lda, w, work, room, real_work, real_room, integers, integer_room,
                                      &info);
    } else {
      (void)real_work, (void)real_room;
      using Call = void (*)(char*, char*, Int*, T*, Int*, Real*, T*, Int*, Int*, Int*, Int*);
      reinterpret_cast<Call>(address)(&job, &triangle, &n, a, &lda, w, work, room, integers, integer_room, &info);
    }
  };
  T size{};
  Real real_size{};
  Int integer_room = 0, ask = -1;
  call(&size, &ask, &real_size, &ask, &integer_room, &ask);
  if (info) return info;
  Int room = whole_size<Int>(std::real(size)), real_room = whole_size<Int>(real_size);
  Room<T> work(room);
  Room<Real> real_work(complex ? real_room : 0);
  Room<Int> integers(integer_room);
  call(work, &room, real_work, &real_room, integers, &integer_room);
  return info;
}

bool wide_integers(int32_t dtype) { return routine[GEMM][dtype].width == 8; }

}  // namespace

bool has_dense(int32_t dtype) {
  return routine[GEMM][dtype].address && routine[TRSM][dtype].address && routine[HEEVD][dtype].address;
}

template <class T>
void gemm(char a_op, char b_op, int64_t m, int64_t n, int64_t k, T alpha, const T* a, int64_t lda, const T* b, int64_t ldb,
          T beta, T* c, int64_t ldc) {
  if (wide_integers(dtype_of<T>()))
    gemm_as<int64_t, T>(a_op, b_op, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
  else
    gemm_as<int32_t, T>(a_op, b_op, int32_t(m), int32_t(n), int32_t(k), alpha, a, int32_t(lda), b, int32_t(ldb), beta, c,
                        int32_t(ldc));
}

template <class T>
void solve_right(int64_t m, int64_t n, const T* r, int64_t ldr, T* b, int64_t ldb) {
  if (wide_integers(dtype_of<T>()))
    solve_right_as<int64_t, T>(m, n, r, ldr, b, ldb);
  else
    solve_right_as<int32_t, T>(int32_t(m), int32_t(n), r, int32_t(ldr), b, int32_t(ldb));
}

template <class T>
int64_t heevd(bool vectors, char triangle, int64_t n, T* a, int64_t lda, RealOf<T>* w) {
  return wide_integers(dtype_of<T>()) ? heevd_as<int64_t, T>(vectors, triangle, n, a, lda, w)
                                      : heevd_as<int32_t, T>(vectors, triangle, int32_t(n), a, int32_t(lda), w);
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
