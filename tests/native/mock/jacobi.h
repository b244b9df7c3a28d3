// Plain cyclic Jacobi: what the stand-in solver finds eigenvalues with, in double precision whatever the type.
#pragma once
#include <algorithm>
#include <numeric>
#include <vector>

#include "cholesky.h"

namespace mock {

// A square column-major matrix.
template <class T>
struct Square {
  int64_t n;
  std::vector<T> x;
  explicit Square(int64_t order) : n(order), x(size_t(order * order), T(0)) {}
  T& operator()(int64_t i, int64_t j) { return x[size_t(i + j * n)]; }
  const T& operator()(int64_t i, int64_t j) const { return x[size_t(i + j * n)]; }
};

template <class T>
Square<T> product(const Square<T>& a, const Square<T>& b) {
  Square<T> c(a.n);
  for (int64_t j = 0; j < a.n; j++)
    for (int64_t k = 0; k < a.n; k++)
      for (int64_t i = 0; i < a.n; i++) c(i, j) += a(i, k) * b(k, j);
  return c;
}

template <class T>
Square<T> adjoint(const Square<T>& a) {
  Square<T> c(a.n);
  for (int64_t j = 0; j < a.n; j++)
    for (int64_t i = 0; i < a.n; i++) c(j, i) = conjugate(a(i, j));
  return c;
}

// A <- diagonal, Z <- Z times the rotations
template <class T>
void rotate_away(Square<T>& a, Square<T>& z) {
  const int64_t n = a.n;
  double norm = 0;
  for (const T& x : a.x) norm += std::norm(x);
  for (int sweep = 0; sweep < 30; sweep++) {
    double off = 0;
    for (int64_t q = 1; q < n; q++)
      for (int64_t p = 0; p < q; p++) {
        double size = std::abs(a(p, q));
        off += size * size;
        if (size * size <= 1e-36 * norm) continue;
        // the phase makes the element real, then the rotation takes it away
        double tau = (std::real(a(q, q)) - std::real(a(p, p))) / (2 * size);
        double t = (tau < 0 ? -1 : 1) / (std::fabs(tau) + std::sqrt(1 + tau * tau)), c = 1 / std::sqrt(1 + t * t);
        T s = c * t * a(p, q) / size;
        for (Square<T>* m : {&a, &z})
          for (int64_t i = 0; i < n; i++) {
            T x = (*m)(i, p), y = (*m)(i, q);
            (*m)(i, p) = c * x - conjugate(s) * y;
            (*m)(i, q) = s * x + c * y;
          }
        for (int64_t i = 0; i < n; i++) {
          T x = a(p, i), y = a(q, i);
          a(p, i) = c * x - s * y;
          a(q, i) = conjugate(s) * x + c * y;
        }
      }
    if (off <= 1e-31 * norm) break;
  }
}

// Hermitian A = V diag(w) V^H with w ascending; at(i, j) is element (i, j) of the triangle i >= j. v is column-major.
// The rotations' rounding errors add up, so it is done again from A in the basis that was found.
template <class T, class At>
void jacobi(int64_t n, At at, std::vector<double>* w, std::vector<T>* v) {
  using Wide = std::conditional_t<sizeof(T) == sizeof(typename RealOf<T>::type), double, std::complex<double>>;
  Square<Wide> a(n), z(n);
  for (int64_t j = 0; j < n; j++) {
    a(j, j) = std::real(at(j, j));
    z(j, j) = 1;
    for (int64_t i = j + 1; i < n; i++) a(j, i) = conjugate(a(i, j) = Wide(at(i, j)));
  }
  Square<Wide> b = a;
  rotate_away(b, z);
  for (int again = 0; again < (n > 8); again++) {
    // Z <- Z (3 - Z^H Z) / 2: orthonormal again
    Square<Wide> gram = product(adjoint(z), z);
    for (int64_t j = 0; j < n; j++)
      for (int64_t i = 0; i < n; i++) gram(i, j) = (i == j ? 1.5 : 0.0) - 0.5 * gram(i, j);
    z = product(z, gram);
    b = product(adjoint(z), product(a, z));
    rotate_away(b, z);
  }
  std::vector<int64_t> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int64_t i, int64_t j) { return std::real(b(i, i)) < std::real(b(j, j)); });
  w->resize(size_t(n));
  v->resize(size_t(n * n));
  for (int64_t j = 0; j < n; j++) {
    int64_t from = order[size_t(j)];
    (*w)[size_t(j)] = std::real(b(from, from));
    for (int64_t i = 0; i < n; i++) (*v)[size_t(i + j * n)] = T(z(i, from));
  }
}

}  // namespace mock
