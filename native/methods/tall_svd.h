// The singular value decomposition of a small square by LAPACK, column-major, in double precision.
#pragma once
#include <complex>
#include <cstdint>

#include "lapack/fortran.h"
#include "lapack/lapack.h"

namespace lapwing {

inline bool has_small_svd(int32_t dtype) { return lapack::routine(lapack::GESDD, dtype).address; }

// A = U diag(s) V^H, A is destroyed; u null: s alone. LAPACK's info.
template <class C>
int64_t small_svd(int64_t n, C* a, double* s, C* u, C* vh) {
  using namespace lapack;
  const char job = u ? 'S' : 'N';
  Room<double> real_work(!is_complex<C> ? 0 : u ? 5 * n * n + 7 * n : 7 * n);
  const Integers integers(8 * n, width_of<C>(GESDD));
  int64_t info = 0;
  auto run = [&](C* work, int64_t room) {
    if constexpr (is_complex<C>)
      call<C>(GESDD, job, n, n, a, n, s, u, n, vh, n, work, room, static_cast<double*>(real_work), integers.data(), &info);
    else
      call<C>(GESDD, job, n, n, a, n, s, u, n, vh, n, work, room, integers.data(), &info);
  };
  C size{};
  run(&size, -1);
  if (info) return info;
  const int64_t room = whole_size<int64_t>(std::real(size));
  Room<C> work(room);
  run(work, room);
  return info;
}

}  // namespace lapwing
