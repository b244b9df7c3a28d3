// The singular value decomposition of a small square by LAPACK, column-major, in double precision.
#pragma once
#include <complex>
#include <cstdint>

#include "blas.h"
#include "lapack.h"

namespace lapwing {

inline bool has_small_svd(int32_t dtype) { return lapack::routine[lapack::GESDD][dtype].address; }

// A = U diag(s) V^H, A is destroyed; u null: s alone. LAPACK's info.
template <class Int, class C>
int64_t small_svd_as(int64_t n, C* a, double* s, C* u, C* vh) {
  constexpr bool complex = sizeof(C) != sizeof(double);
  char job = u ? 'S' : 'N';
  Int order = Int(n), info = 0, ask = -1, ld = order;
  const int64_t real_size = u ? 5 * n * n + 7 * n : 7 * n;
  lapack::Room<double> real_work(complex ? real_size : 0);
  lapack::Room<Int> integers(8 * n);
  void* address = lapack::routine[lapack::GESDD][lapack::dtype_of<C>()].address;
  auto call = [&](C* work, Int* room) {
    if constexpr (complex) {
      using Call = void (*)(char*, Int*, Int*, C*, Int*, double*, C*, Int*, C*, Int*, C*, Int*, double*, Int*, Int*);
      reinterpret_cast<Call>(address)(&job, &order, &order, a, &ld, s, u, &ld, vh, &ld, work, room, real_work, integers, &info);
    } else {
      using Call = void (*)(char*, Int*, Int*, C*, Int*, double*, C*, Int*, C*, Int*, C*, Int*, Int*, Int*);
      reinterpret_cast<Call>(address)(&job, &order, &order, a, &ld, s, u, &ld, vh, &ld, work, room, integers, &info);
    }
  };
  C size{};
  call(&size, &ask);
  if (info) return info;
  Int room = lapack::whole_size<Int>(std::real(size));
  lapack::Room<C> work(room);
  call(work, &room);
  return info;
}

template <class C>
int64_t small_svd(int64_t n, C* a, double* s, C* u, C* vh) {
  const bool wide = lapack::routine[lapack::GESDD][lapack::dtype_of<C>()].width == 8;
  return wide ? small_svd_as<int64_t>(n, a, s, u, vh) : small_svd_as<int32_t>(n, a, s, u, vh);
}

}  // namespace lapwing
