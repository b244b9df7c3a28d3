#include "cpu/solve_careful.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include "cpu/cpu.h"
#include "dtypes.h"

namespace lapwing {
namespace {

template <class T>
RealOf<T> size_of_element(T x) { return std::abs(std::real(x)) + std::abs(std::imag(x)); }

// x / d; a complex division squares its divisor, so that both are brought up first
template <class T>
T quotient(T x, T d) {
  const RealOf<T> up = size_of_element(d) < 1 ? 1 / std::numeric_limits<RealOf<T>>::epsilon() : 1;
  for (int i = 0; i < 4 && size_of_element(d) < std::numeric_limits<RealOf<T>>::epsilon(); i++) x *= up, d *= up;
  return x / d;
}

template <class T>
struct System {
  int64_t n, columns;
  std::vector<T> a, x;

  T* row(int64_t i) { return x.data() + i * columns; }
  void subtract(int64_t i, T by, int64_t j) {
    for (int64_t c = 0; c < columns; c++) row(i)[c] -= by * row(j)[c];
  }

  // X <- T^-1 X, T being a triangle of a, or its adjoint. Returns the place of the first divisor that is none.
  int32_t substitute(bool upper, bool adjoint, bool unit) {
    const auto at = [&](int64_t i, int64_t j) { return adjoint ? conjugated(a[j * n + i]) : a[i * n + j]; };
    const bool forward = upper == adjoint;
    int32_t bad = 0;
    for (int64_t step = 0; step < n; step++) {
      const int64_t i = forward ? step : n - 1 - step;
      for (int64_t j = forward ? 0 : i + 1; j < (forward ? i : n); j++) subtract(i, at(i, j), j);
      if (unit) continue;
      const T d = at(i, i);
      const auto size = size_of_element(d);
      if (!(size > 0 && std::isfinite(size))) bad = bad ? std::min(bad, int32_t(i + 1)) : int32_t(i + 1);
      for (int64_t c = 0; c < columns; c++) row(i)[c] = quotient(row(i)[c], d);
    }
    return bad;
  }

  // P A = L U, X <- L^-1 P X
  int32_t eliminate() {
    for (int64_t j = 0; j < n; j++) {
      int64_t p = j;
      for (int64_t i = j + 1; i < n; i++)
        if (size_of_element(a[i * n + j]) > size_of_element(a[p * n + j])) p = i;
      if (p != j) {
        std::swap_ranges(a.begin() + j * n, a.begin() + (j + 1) * n, a.begin() + p * n);
        std::swap_ranges(row(j), row(j) + columns, row(p));
      }
      const auto size = size_of_element(a[j * n + j]);
      if (!(size > 0 && std::isfinite(size))) return int32_t(j + 1);
      for (int64_t i = j + 1; i < n; i++) {
        const T l = quotient(a[i * n + j], a[j * n + j]);
        for (int64_t c = j + 1; c < n; c++) a[i * n + c] -= l * a[j * n + c];
        subtract(i, l, j);
      }
    }
    return 0;
  }

  // Row rows[i] of X becomes row i, or the other way round.
  void permute(const int32_t* rows, bool back) {
    std::vector<T> from = x;
    for (int64_t i = 0; i < n; i++)
      std::copy_n(from.data() + (back ? i : rows[i]) * columns, columns, row(back ? rows[i] : i));
  }
};

template <class T>
int32_t solve_as(const Frame& frame, int64_t which, int64_t first, int64_t columns, const Spread<RealOf<T>>& out) {
  const int64_t n = frame.size[1], k = frame.size[2];
  const bool factored = frame.op == LU_SOLVE || frame.op == CHOLESKY_SOLVE;
  const int sides = frame.op == LU_SOLVE ? 3 : frame.op == CHOLESKY_SOLVE ? 2 : 1;
  const bool upper = frame.flags & UPPER, adjoint = frame.flags & ADJOINT;
  const T *a = static_cast<const T*>(frame.buffer[factored]) + which * n * n, *b = static_cast<const T*>(frame.buffer[sides]);
  System<T> system{n, columns, std::vector<T>(a, a + n * n), std::vector<T>(n * columns)};
  for (int64_t i = 0; i < n; i++)
    for (int64_t c = 0; c < columns; c++)
      system.row(i)[c] = frame.op == INVERSE ? T(i == first + c) : b[(which * n + i) * k + first + c];

  int32_t bad = 0;
  if (frame.op == TRIANGULAR) {
    bad = system.substitute(upper, adjoint, frame.flags & UNIT);
  } else if (frame.op == CHOLESKY_SOLVE) {
    bad = system.substitute(upper, upper, false);
    system.substitute(upper, !upper, false);
  } else if (frame.op == LU_SOLVE) {
    const int32_t* rows = static_cast<const int32_t*>(frame.buffer[2]) + which * n;
    if (!adjoint) system.permute(rows, false), system.substitute(false, false, true);
    bad = system.substitute(true, adjoint, false);
    if (adjoint) system.substitute(false, true, true), system.permute(rows, true);
  } else {
    bad = system.eliminate();
    if (!bad) system.substitute(true, false, false);
  }
  for (int64_t i = 0; i < n; i++)
    for (int64_t c = 0; c < columns; c++) {
      RealOf<T>* to = out.first + i * out.down + c * out.right;
      to[0] = std::real(system.row(i)[c]);
      if (PARTS_OF<T> == 2) to[out.part] = std::imag(system.row(i)[c]);
    }
  return bad;
}

}  // namespace

template <class R>
int32_t solve_carefully(const Frame& frame, int64_t which, int64_t first, int64_t columns, const Spread<R>& x) {
  if (frame.dtype == C64 || frame.dtype == C128) return solve_as<std::complex<R>>(frame, which, first, columns, x);
  return solve_as<R>(frame, which, first, columns, x);
}

template int32_t solve_carefully<float>(const Frame&, int64_t, int64_t, int64_t, const Spread<float>&);
template int32_t solve_carefully<double>(const Frame&, int64_t, int64_t, int64_t, const Spread<double>&);

}  // namespace lapwing
