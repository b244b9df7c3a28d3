// What the stand-ins for cuSOLVERMg and cuSOLVERMp share: elements of any CUDA type as complex<double>, and how they refuse.
#pragma once

#include <complex>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

using Z = std::complex<double>;
#define API extern "C" __attribute__((visibility("default")))

namespace {

[[noreturn]] void refuse(const char* what) {
  std::fprintf(stderr, "stand-in: %s\n", what);
  std::abort();
}
void expect(bool ok, const char* what) {
  if (!ok) refuse(what);
}

// cudaDataType: 0 and 1 are float and double, 4 and 5 their complex kinds
size_t item(int type) { return type == 0 ? 4 : type == 5 ? 16 : 8; }
Z read(const void* p, int64_t i, int type) {
  switch (type) {
    case 0: return static_cast<const float*>(p)[i];
    case 1: return static_cast<const double*>(p)[i];
    case 4: return Z(static_cast<const std::complex<float>*>(p)[i]);
    default: return static_cast<const Z*>(p)[i];
  }
}
void write(void* p, int64_t i, int type, Z x) {
  switch (type) {
    case 0: static_cast<float*>(p)[i] = float(x.real()); break;
    case 1: static_cast<double*>(p)[i] = x.real(); break;
    case 4: static_cast<std::complex<float>*>(p)[i] = std::complex<float>(x); break;
    default: static_cast<Z*>(p)[i] = x;
  }
}

// X <- (L L^H)^-1 X
template <class Matrix>
void solve(Matrix& l, Matrix& x, int64_t n, int64_t k) {
  for (int64_t c = 0; c < k; c++) {
    for (int64_t i = 0; i < n; i++) {
      for (int64_t j = 0; j < i; j++) x(i, c) -= l(i, j) * x(j, c);
      x(i, c) /= l(i, i);
    }
    for (int64_t i = n; i-- > 0;) {
      for (int64_t j = i + 1; j < n; j++) x(i, c) -= std::conj(l(j, i)) * x(j, c);
      x(i, c) /= l(i, i);
    }
  }
}

}  // namespace
