// Compiles the kernel of lu_small.h for each instruction set and picks one at run time.
#include "cpu/lu.h"

#include <algorithm>
#include <limits>
#include <type_traits>

#include "cpu/cpu.h"

#define LAPWING_KERNELS "cpu/lu_small.h"
#include "cpu/levels.h"

namespace lapwing {
namespace {

template <class R>
void lu_padded(R* a, int64_t n, int64_t ld, int32_t* pivots, R* l) {
  LAPWING_WIDEST(lu_one<R>(a, n, ld, pivots, l));
}

}  // namespace

template <class R>
void lu_small(R* a, int64_t n, int32_t* pivots) {
  const int64_t lanes = 64 / sizeof(R), ld = (n + lanes - 1) / lanes * lanes;
  R* work = static_cast<R*>(scratch(sizeof(R) * size_t((n + 1) * ld)));
  for (int64_t j = 0; j < n; j++) {
    std::copy(a + j * n, a + (j + 1) * n, work + j * ld);
    std::fill(work + j * ld + n, work + (j + 1) * ld, R(0));
  }
  lu_padded(work, n, ld, pivots, work + n * ld);
  for (int64_t j = 0; j < n; j++) std::copy(work + j * ld, work + j * ld + n, a + j * n);
}

template void lu_small<float>(float*, int64_t, int32_t*);
template void lu_small<double>(double*, int64_t, int32_t*);

}  // namespace lapwing
