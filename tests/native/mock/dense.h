// LU, QR and SVD of one column-major matrix, in complex numbers of double whatever it holds: what the stand-in solver computes.
#pragma once
#include <algorithm>
#include <complex>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "cholesky.h"

namespace mock {

using Number = std::complex<double>;

// m x n, column-major
struct Dense {
  Dense(int64_t m, int64_t n) : m(m), n(n), x(size_t(m * n)) {}
  template <class T>
  Dense(int64_t m, int64_t n, const T* a, int64_t lda) : Dense(m, n) {
    for (int64_t j = 0; j < n; j++)
      for (int64_t i = 0; i < m; i++) (*this)(i, j) = Number(std::real(a[j * lda + i]), std::imag(a[j * lda + i]));
  }
  Number& operator()(int64_t i, int64_t j) { return x[size_t(j * m + i)]; }
  Number dot(int64_t j, const Dense& other, int64_t k) const {  // column j of this, conjugated, with column k of the other
    Number sum = 0;
    for (int64_t i = 0; i < m; i++) sum += std::conj(x[size_t(j * m + i)]) * other.x[size_t(k * m + i)];
    return sum;
  }
  template <class T>
  void write(T* a, int64_t lda) {
    for (int64_t j = 0; j < n; j++)
      for (int64_t i = 0; i < m; i++) {
        if constexpr (sizeof(T) == sizeof(typename RealOf<T>::type))
          a[j * lda + i] = T((*this)(i, j).real());
        else
          a[j * lda + i] = T((*this)(i, j));
      }
  }
  int64_t m, n;
  std::vector<Number> x;
};

// A <- L U; pivots count from 1. The first zero pivot, or 0.
inline int lu(Dense& a, int64_t* pivots) {
  int info = 0;
  for (int64_t k = 0; k < a.n; k++) {
    int64_t p = k;
    for (int64_t i = k; i < a.m; i++)
      if (std::abs(a(i, k)) > std::abs(a(p, k))) p = i;
    pivots[k] = p + 1;
    for (int64_t j = 0; j < a.n; j++) std::swap(a(k, j), a(p, j));
    if (a(k, k) == 0.0) {
      if (!info) info = int(k + 1);
      continue;
    }
    for (int64_t i = k + 1; i < a.m; i++) a(i, k) /= a(k, k);
    for (int64_t j = k + 1; j < a.n; j++)
      for (int64_t i = k + 1; i < a.m; i++) a(i, j) -= a(i, k) * a(k, j);
  }
  return info;
}

// Columns first .. last of A <- (I - tau v v^H) times them; v has a one at k and stands in column k of V below it
inline void reflect(Dense& v, int64_t k, Number tau, Dense& a, int64_t first) {
  for (int64_t j = first; j < a.n; j++) {
    Number sum = a(k, j);
    for (int64_t i = k + 1; i < a.m; i++) sum += std::conj(v(i, k)) * a(i, j);
    sum *= tau;
    a(k, j) -= sum;
    for (int64_t i = k + 1; i < a.m; i++) a(i, j) -= v(i, k) * sum;
  }
}

inline std::vector<Number> qr(Dense& a) {
  std::vector<Number> tau(size_t(std::min(a.m, a.n)));
  for (int64_t k = 0; k < int64_t(tau.size()); k++) {
    double size = 0, rest = 0;
    for (int64_t i = k; i < a.m; i++) size = std::hypot(size, std::abs(a(i, k)));
    for (int64_t i = k + 1; i < a.m; i++) rest = std::hypot(rest, std::abs(a(i, k)));
    if (rest == 0) continue;
    const Number phase = a(k, k) == 0.0 ? 1.0 : a(k, k) / std::abs(a(k, k)), head = a(k, k) + phase * size;
    for (int64_t i = k + 1; i < a.m; i++) a(i, k) /= head;
    tau[size_t(k)] = 2 / (1 + std::pow(rest / std::abs(head), 2));
    reflect(a, k, tau[size_t(k)], a, k + 1);
    a(k, k) = -phase * size;
  }
  return tau;
}

// A (m x c) <- the first c columns of Q
inline void make_q(Dense& a, int64_t k, const std::vector<Number>& tau) {
  Dense q(a.m, a.n);
  for (int64_t j = 0; j < a.n; j++) q(j, j) = 1;
  for (int64_t i = k - 1; i >= 0; i--) reflect(a, i, tau[size_t(i)], q, 0);
  a = q;
}

// C <- Q C, or Q^H C
inline void multiply_by_q(const Dense& a, int64_t k, const std::vector<Number>& tau, bool adjoint, Dense& c) {
  Dense vectors = a;
  for (int64_t step = 0; step < k; step++) {
    const int64_t i = adjoint ? step : k - 1 - step;
    reflect(vectors, i, adjoint ? std::conj(tau[size_t(i)]) : tau[size_t(i)], c, 0);
  }
}

// Column j of u <- a unit vector orthogonal to those before it
inline void complete(Dense& u, int64_t j) {
  for (int64_t start = 0; start < u.m; start++) {
    for (int64_t i = 0; i < u.m; i++) u(i, j) = i == start ? 1 : 0;
    for (int round = 0; round < 2; round++)
      for (int64_t k = 0; k < j; k++) {
        const Number by = u.dot(k, u, j);
        for (int64_t i = 0; i < u.m; i++) u(i, j) -= by * u(i, k);
      }
    const double size = std::sqrt(u.dot(j, u, j).real());
    if (size < 1e-3) continue;
    for (int64_t i = 0; i < u.m; i++) u(i, j) /= size;
    return;
  }
}

// A = U diag(s) V^H by one-sided Jacobi rotations, m >= n; U has `columns` columns
inline void svd(Dense a, Dense& u, std::vector<double>& s, Dense& v) {
  const int64_t n = a.n;
  Dense w(n, n);
  for (int64_t j = 0; j < n; j++) w(j, j) = 1;
  double largest = 0;
  for (const Number& x : a.x) largest = std::max(largest, std::abs(x));
  for (Number& x : a.x) x = largest == 0 ? 0 : x / largest;
  for (int sweep = 0; sweep < 40; sweep++) {
    bool turned = false;
    for (int64_t p = 0; p < n; p++)
      for (int64_t q = p + 1; q < n; q++) {
        const Number c = a.dot(p, a, q);
        const double x = a.dot(p, a, p).real(), y = a.dot(q, a, q).real(), size = std::abs(c);
        if (size <= 1e-15 * std::sqrt(x * y) || size == 0) continue;
        turned = true;
        const double z = (y - x) / (2 * size), t = (z < 0 ? -1 : 1) / (std::abs(z) + std::sqrt(1 + z * z));
        const double cosine = 1 / std::sqrt(1 + t * t);
        const Number sine = cosine * t * c / size;
        for (Dense* m : {&a, &w})
          for (int64_t i = 0; i < m->m; i++) {
            const Number f = (*m)(i, p), g = (*m)(i, q);
            (*m)(i, p) = cosine * f - std::conj(sine) * g;
            (*m)(i, q) = sine * f + cosine * g;
          }
      }
    if (!turned) break;
  }
  std::vector<double> size(size_t(n), 0.0);
  for (int64_t j = 0; j < n; j++) size[size_t(j)] = std::sqrt(a.dot(j, a, j).real());
  std::vector<int64_t> order(size_t(n), 0);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t p, int64_t q) { return size[size_t(p)] > size[size_t(q)]; });
  s.resize(size_t(n));
  for (int64_t j = 0; j < u.n; j++) {
    const int64_t from = j < n ? order[size_t(j)] : 0;
    const double by = j < n ? size[size_t(from)] : 0;
    if (j < n) s[size_t(j)] = by * largest;
    for (int64_t i = 0; i < n && j < n; i++) v(i, j) = w(i, from);
    for (int64_t i = 0; i < u.m && by > 1e-14; i++) u(i, j) = a(i, from) / by;
    if (!(by > 1e-14)) complete(u, j);
  }
}

}  // namespace mock
