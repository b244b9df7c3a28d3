// Determinants: the product of the pivots as a mantissa times a power of two, and the results computed from it.
#pragma once
#include <algorithm>
#include <cmath>
#include <complex>

#include "cpu/matrix.h"
#include "operations.h"

namespace lapwing {

template <class T>
T converted(std::complex<double> x) {
  using R = decltype(std::real(T()));
  if constexpr (sizeof(T) != sizeof(R)) return T(R(x.real()), R(x.imag()));
  else return T(x.real());
}

// No product is too large or too small for it, whatever its length.
struct Pivots {
  std::complex<double> mantissa{1};
  int64_t exponent = 0;

  void multiply(std::complex<double> x) {
    normalise(x);
    mantissa *= x;
    normalise(mantissa);
  }
  void square() { mantissa *= mantissa, exponent *= 2; }
  template <class T>
  T value() const {
    const int e = int(std::clamp<int64_t>(exponent, -4000, 4000));
    return converted<T>({std::ldexp(mantissa.real(), e), std::ldexp(mantissa.imag(), e)});
  }

 private:
  void normalise(std::complex<double>& x) {
    int e = 0;
    std::frexp(std::max(std::abs(x.real()), std::abs(x.imag())), &e);
    x = {std::ldexp(x.real(), -e), std::ldexp(x.imag(), -e)};
    exponent += e;
  }
};

// The results of slogdet, sign and logarithm of the absolute value, and of det.
template <class T>
class Determinants {
  using R = decltype(std::real(T()));

 public:
  explicit Determinants(const Frame& frame) : frame_(frame) {}

  int32_t& info(int64_t m) const { return *at<int32_t>(status_place(frame_.op), m); }

  void put(int64_t m, Pivots product) const {
    if (frame_.exponents) product.exponent -= frame_.size[1] * frame_.exponents[m];
    if (frame_.op == DET) return (void)(*at<T>(1, m) = product.value<T>());
    double size = product.mantissa.imag() == 0 ? std::abs(product.mantissa.real()) : std::abs(product.mantissa);
    *at<T>(1, m) = size == 0 ? T(0) : converted<T>(product.mantissa / size);
    if (size < 0.75) size *= 2, product.exponent -= 1;  // a determinant near one has a logarithm near zero
    *at<R>(2, m) = R(std::log(size) + double(product.exponent) * 0.69314718055994530942);
  }

  void fail(int64_t m) const {
    fill_nan(at<T>(1, m), 1);
    if (frame_.op == SLOGDET) fill_nan(at<R>(2, m), 1);
  }

 private:
  template <class U>
  U* at(int place, int64_t m) const { return static_cast<U*>(frame_.buffer[place]) + m; }
  const Frame& frame_;
};

}  // namespace lapwing
