// Compiles the kernels of cholesky_small.h for each instruction set and picks one at run time.
#include "cholesky_cpu.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <limits>
#include <type_traits>
#include <utility>

#include "cpu.h"

namespace lapwing {
namespace {

// Above this order a matrix is factored by itself. See use_lanes.
constexpr int64_t LANES_LIMIT = 128;

template <class R>
bool is_good(R pivot) {
  return pivot > 0 && pivot < std::numeric_limits<R>::infinity();
}

}  // namespace
}  // namespace lapwing

#define LAPWING_KERNELS "cholesky_small.h"
#include "levels.h"

namespace lapwing {
namespace {

const int level = cpu_level();

}  // namespace

template <class T>
void cholesky_batch(const T* a, T* out, int32_t* info, int64_t count, int64_t n, bool upper) {
  typedef RealOf<T> R;
  constexpr int P = Scalar<T>::parts;
  const R* from = reinterpret_cast<const R*>(a);
  R* to = reinterpret_cast<R*>(out);
#ifdef LAPWING_X86_LEVELS
  if (level == 2) return avx512::batch_either<R, P>(from, to, info, count, n, upper);
  if (level == 1) return avx2::batch_either<R, P>(from, to, info, count, n, upper);
#endif
  base::batch_either<R, P>(from, to, info, count, n, upper);
}

template <class T>
int64_t cholesky_group(int64_t n) {
  return n > LANES_LIMIT ? 1 : (16 << level) / sizeof(RealOf<T>);
}

#define LAPWING_INSTANTIATE(T)                                                                \
  template void cholesky_batch<T>(const T*, T*, int32_t*, int64_t, int64_t, bool);            \
  template int64_t cholesky_group<T>(int64_t);
LAPWING_INSTANTIATE(float)
LAPWING_INSTANTIATE(double)
LAPWING_INSTANTIATE(std::complex<float>)
LAPWING_INSTANTIATE(std::complex<double>)

}  // namespace lapwing
