// Compiles the kernels of eig_one_small.h for each instruction set and picks one at run time.
#include "cpu/eig_one.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <limits>
#include <type_traits>
#include <vector>

#include "cpu/cpu.h"
#include "cpu/isolate.h"
#include "cpu/standard_block.h"

#define LAPWING_KERNELS "cpu/eig_one_small.h"
#include "cpu/levels.h"

namespace lapwing {
namespace {

template <class R>
std::vector<int64_t> order_of(int64_t n, const R* a) {
  std::vector<int64_t> order(n);
  bool placed[EIG_ONE_LARGEST];
  isolate(n, [=](int64_t i, int64_t j) { return a[i * n + j] != 0; }, order.data(), placed);
  return order;
}

}  // namespace

template <class R>
bool eig_one(int64_t n, const R* a, std::complex<R>* w, std::complex<R>* v) {
  return LAPWING_WIDEST(solve_eig_one<R>(n, a, order_of(n, a).data(), w, v, nullptr, nullptr));
}

template <class R>
bool schur_one(int64_t n, const R* a, R* t, R* z) {
  std::vector<std::complex<R>> w(static_cast<size_t>(n));
  return LAPWING_WIDEST(solve_eig_one<R>(n, a, order_of(n, a).data(), w.data(), nullptr, t, z));
}

#define LAPWING_INSTANTIATE(R)                                                         \
  template bool eig_one<R>(int64_t, const R*, std::complex<R>*, std::complex<R>*); \
  template bool schur_one<R>(int64_t, const R*, R*, R*);
LAPWING_INSTANTIATE(float)
LAPWING_INSTANTIATE(double)

}  // namespace lapwing
