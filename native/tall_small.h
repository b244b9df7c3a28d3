// The small matrices of tall.cc: column-major, double or complex<double>, by LAPACK.
#pragma once
#include <algorithm>
#include <complex>
#include <cstdint>
#include <vector>

#include "blas.h"
#include "lapack.h"

namespace lapwing::tall_small {

inline bool has_routines(int32_t dtype) {
  return lapack::has_dense(dtype) && lapack::routine[lapack::POTRF][dtype].address && lapack::routine[lapack::GESDD][dtype].address;
}

// The upper triangle of G <- R, R^H R = G. LAPACK's info.
template <class Int, class C>
int64_t cholesky_as(int64_t n, C* g) {
  char triangle = 'U';
  Int order = Int(n), info = 0;
  using Call = void (*)(char*, Int*, C*, Int*, Int*);
  reinterpret_cast<Call>(lapack::routine[lapack::POTRF][lapack::dtype_of<C>()].address)(&triangle, &order, g, &order, &info);
  return info;
}

template <class C>
int64_t cholesky(int64_t n, C* g) {
  const bool wide = lapack::routine[lapack::POTRF][lapack::dtype_of<C>()].width == 8;
  return wide ? cholesky_as<int64_t>(n, g) : cholesky_as<int32_t>(n, g);
}

// A = U diag(s) V^H, A is destroyed; u null: s alone. LAPACK's info.
template <class Int, class C>
int64_t svd_as(int64_t n, C* a, double* s, C* u, C* vh) {
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
int64_t svd(int64_t n, C* a, double* s, C* u, C* vh) {
  const bool wide = lapack::routine[lapack::GESDD][lapack::dtype_of<C>()].width == 8;
  return wide ? svd_as<int64_t>(n, a, s, u, vh) : svd_as<int32_t>(n, a, s, u, vh);
}

// A square matrix; zeros to begin with.
template <class C>
struct Square {
  int64_t n;
  std::vector<C> data;

  explicit Square(int64_t order) : n(order), data(size_t(order * order)) {}
  C& operator()(int64_t i, int64_t j) { return data[size_t(i + j * n)]; }
  const C& operator()(int64_t i, int64_t j) const { return data[size_t(i + j * n)]; }
  bool factor() {
    if (cholesky(n, data.data())) return false;
    for (int64_t j = 0; j < n; j++) {
      for (int64_t i = j + 1; i < n; i++) (*this)(i, j) = C(0);
      if (!std::isfinite(std::real((*this)(j, j)))) return false;
    }
    return true;
  }
};

template <class C>
Square<C> identity(int64_t n) {
  Square<C> x(n);
  for (int64_t i = 0; i < n; i++) x(i, i) = C(1);
  return x;
}

template <class C>
Square<C> operator*(const Square<C>& a, const Square<C>& b) {
  Square<C> c(a.n);
  lapack::gemm<C>('N', 'N', a.n, a.n, a.n, C(1), a.data.data(), a.n, b.data.data(), a.n, C(0), c.data.data(), a.n);
  return c;
}

// R^-1 of an upper triangle
template <class C>
Square<C> inverse(const Square<C>& r) {
  Square<C> x = identity<C>(r.n);
  lapack::solve_right<C>(r.n, r.n, r.data.data(), r.n, x.data.data(), r.n);
  return x;
}

}  // namespace lapwing::tall_small
