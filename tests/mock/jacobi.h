// Plain cyclic Jacobi: what the stand-in solver finds eigenvalues with, in double precision whatever the type.
#pragma once
#include <algorithm>
#include <numeric>
#include <vector>

#include "cholesky.h"

namespace mock {

// Hermitian A = V diag(w) V^H with w ascending; at(i, j) is element (i, j) of the triangle i >= j. v is column-major.
template <class T, class At>
void jacobi(int64_t n, At at, std::vector<double>* w, std::vector<T>* v) {
  using Wide = std::conditional_t<sizeof(T) == sizeof(typename RealOf<T>::type), double, std::complex<double>>;
  std::vector<Wide> a(size_t(n * n)), z(size_t(n * n), Wide(0));
  auto A = [&](int64_t i, int64_t j) -> Wide& { return a[size_t(i + j * n)]; };
  double norm = 0;
  for (int64_t j = 0; j < n; j++) {
    A(j, j) = std::real(at(j, j));
    z[size_t(j + j * n)] = 1;
    for (int64_t i = j + 1; i < n; i++) {
      A(i, j) = Wide(at(i, j));
      A(j, i) = conjugate(A(i, j));
      norm += 2 * std::norm(A(i, j));
    }
    norm += std::norm(A(j, j));
  }
  for (int sweep = 0; sweep < 30; sweep++) {
    double off = 0;
    for (int64_t q = 1; q < n; q++)
      for (int64_t p = 0; p < q; p++) {
        double size = std::abs(A(p, q));
        off += size * size;
        if (size * size <= 1e-36 * norm) continue;
        // the phase makes the element real, then the rotation takes it away
        double tau = (std::real(A(q, q)) - std::real(A(p, p))) / (2 * size);
        double t = (tau < 0 ? -1 : 1) / (std::fabs(tau) + std::sqrt(1 + tau * tau)), c = 1 / std::sqrt(1 + t * t);
        Wide s = c * t * A(p, q) / size;
        auto rotate = [&](Wide* x, Wide* y) {  // columns p and q of a matrix
          for (int64_t i = 0; i < n; i++) {
            Wide xi = x[i], yi = y[i];
            x[i] = c * xi - conjugate(s) * yi;
            y[i] = s * xi + c * yi;
          }
        };
        rotate(&A(0, p), &A(0, q));
        rotate(&z[size_t(p * n)], &z[size_t(q * n)]);
        for (int64_t i = 0; i < n; i++) {
          Wide x = A(p, i), y = A(q, i);
          A(p, i) = c * x - s * y;
          A(q, i) = conjugate(s) * x + c * y;
        }
      }
    if (off <= 1e-31 * norm) break;
  }
  std::vector<int64_t> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int64_t i, int64_t j) { return std::real(A(i, i)) < std::real(A(j, j)); });
  w->resize(size_t(n));
  v->resize(size_t(n * n));
  for (int64_t j = 0; j < n; j++) {
    (*w)[size_t(j)] = std::real(A(order[size_t(j)], order[size_t(j)]));
    for (int64_t i = 0; i < n; i++) (*v)[size_t(i + j * n)] = T(z[size_t(i + order[size_t(j)] * n)]);
  }
}

}  // namespace mock
