// From a dtype's number to its type, and back.
#pragma once
#include <complex>

#include "frame.h"

// X(type) for each type of element
#define LAPWING_EACH_TYPE(X) X(float) X(double) X(std::complex<float>) X(std::complex<double>)

namespace lapwing {

template <class T>
using RealOf = decltype(std::real(T()));
template <class T>
constexpr int PARTS_OF = sizeof(T) / sizeof(RealOf<T>);

template <class T>
constexpr Dtype dtype_of() {
  constexpr bool wide = sizeof(RealOf<T>) == 8;
  return PARTS_OF<T> == 2 ? (wide ? C128 : C64) : (wide ? F64 : F32);
}

// Calls f(zero) with a zero of the type with this number.
template <class F>
auto by_dtype(int32_t dtype, F f) {
  switch (dtype) {
    case F32: return f(float());
    case F64: return f(double());
    case C64: return f(std::complex<float>());
    default: return f(std::complex<double>());
  }
}

}  // namespace lapwing
