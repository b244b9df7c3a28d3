// From a dtype's number to its type.
#pragma once
#include <complex>

#include "frame.h"

namespace lapwing {

// f(zero) with a zero of the type that `dtype` stands for.
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
