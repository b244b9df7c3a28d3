// Y <- A X on the CPU for a few vectors, from one triangle of a row-major Hermitian A and without a copy of it: each element
// is read once and used for both of its places. For 16 columns of float64 at n = 4000 that takes about 60 % of the time of a
// general product, which reads the full matrix and packs it first.
#pragma once
#include <complex>
#include <cstdint>

#include "cpu/pages.h"

namespace lapwing {

template <class T>
class HermitianProduct {
 public:
  // Products with scale * A from here on. The sums are cut by n alone, so the bits do not depend on `threads`.
  void use(const T* a, int64_t n, bool upper, double scale, int threads);
  void multiply(const T* x, T* y, int64_t columns);  // columns of n elements, one after the other
  static size_t bytes(int64_t n, int64_t columns);

 private:
  const T* a_ = nullptr;
  int64_t n_ = 0;
  bool upper_ = false;
  double scale_ = 1;
  int threads_ = 1;
  size_t held_ = 0;
  Pages memory_{nullptr, nullptr};
};

}  // namespace lapwing
