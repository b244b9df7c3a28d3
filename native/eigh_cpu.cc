// Compiles the kernels of eigh_small.h for each instruction set and picks one at run time.
#include "eigh_cpu.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <limits>
#include <type_traits>
#include <utility>

#include "cpu.h"

namespace lapwing {
namespace {

// Up to this order the QL iterations of two vectors of matrices run together. Measured on Sapphire Rapids (AVX-512,
// 2026-11): 1.6 times as fast at n = 8, 1.1 at n = 48; beyond, the few per cent are worth less than an even cut.
constexpr int64_t EIGH_TOGETHER = 48;

}  // namespace
}  // namespace lapwing

#define LAPWING_KERNELS "eigh_small.h"
#include "levels.h"

namespace lapwing {
namespace {
const int level = cpu_level();
}

template <class T>
void eigh_batch(const T* a, RealOf<T>* w, T* v, int32_t* info, int64_t matrices, int64_t n, int64_t first, int64_t count,
                bool upper) {
  typedef RealOf<T> R;
  constexpr int P = Scalar<T>::parts;
  const R* from = reinterpret_cast<const R*>(a);
  R* to = reinterpret_cast<R*>(v);
#ifdef LAPWING_X86_LEVELS
  if (level == 2) return avx512::eigh_any<R, P>(from, w, to, info, matrices, n, first, count, upper);
  if (level == 1) return avx2::eigh_any<R, P>(from, w, to, info, matrices, n, first, count, upper);
#endif
  base::eigh_any<R, P>(from, w, to, info, matrices, n, first, count, upper);
}

template <class T>
int64_t eigh_group(int64_t n) {
  const int64_t lanes = (16 << level) / sizeof(RealOf<T>);
  return n <= EIGH_TOGETHER ? 2 * lanes : lanes;
}

#define LAPWING_INSTANTIATE(T)                                                                                        \
  template void eigh_batch<T>(const T*, RealOf<T>*, T*, int32_t*, int64_t, int64_t, int64_t, int64_t, bool);          \
  template int64_t eigh_group<T>(int64_t);
LAPWING_INSTANTIATE(float)
LAPWING_INSTANTIATE(double)
LAPWING_INSTANTIATE(std::complex<float>)
LAPWING_INSTANTIATE(std::complex<double>)

}  // namespace lapwing
