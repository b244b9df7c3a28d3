// Plain Cholesky: what the stand-in solver and the stand-in kernels compute with.
#pragma once
#include <cmath>
#include <complex>
#include <cstdint>

namespace mock {

template <class T>
struct RealOf {
  using type = T;
};
template <class T>
struct RealOf<std::complex<T>> {
  using type = T;
};

inline float conjugate(float x) { return x; }
inline double conjugate(double x) { return x; }
template <class T>
std::complex<T> conjugate(std::complex<T> x) {
  return std::conj(x);
}

// A = L L^H in the lower triangle; at(i, j) is a reference to element (i, j). Nothing above the diagonal is touched.
// 0, or the first column whose pivot is not positive; `strict` also stops at a pivot that is not finite. The solver is
// not strict, so that the check after it is needed, as with the real one.
template <class T, class At>
int64_t factor_lower(int64_t n, At at, bool strict) {
  using Real = typename RealOf<T>::type;
  for (int64_t j = 0; j < n; j++) {
    Real d = std::real(at(j, j));
    for (int64_t k = 0; k < j; k++) d -= std::norm(at(j, k));
    bool good = strict ? d > 0 && std::isfinite(d) : !(d <= 0);
    if (!good) return j + 1;
    Real root = std::sqrt(d);
    at(j, j) = root;
    for (int64_t i = j + 1; i < n; i++) {
      T sum = at(i, j);
      for (int64_t k = 0; k < j; k++) sum -= at(i, k) * conjugate(at(j, k));
      at(i, j) = sum / root;
    }
  }
  return 0;
}

// Calls f with a null pointer of the element type: 0 float, 1 double, 2 and 3 complex of these.
template <class F>
auto with_dtype(int dtype, F f) {
  switch (dtype) {
    case 0: return f(static_cast<float*>(nullptr));
    case 1: return f(static_cast<double*>(nullptr));
    case 2: return f(static_cast<std::complex<float>*>(nullptr));
    default: return f(static_cast<std::complex<double>*>(nullptr));
  }
}

}  // namespace mock
