// Compiles the kernels of bidiagonal_small.h for each instruction set and picks one at run time.
#include "cpu/bidiagonal.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstdlib>
#include <limits>
#include <type_traits>

#include "cpu/cpu.h"
#include "cpu/pages.h"
#include "cpu/threads.h"
#include "methods/lstsq.h"
#include "operations.h"

#define LAPWING_KERNELS "cpu/bidiagonal_small.h"
#include "cpu/levels.h"

namespace lapwing {

template <class T>
int64_t svd_by_bidiagonal(const SvdOfOne<T>& call, int threads, const BidiagonalSolver<RealOf<T>>& solve) {
  constexpr int64_t TOGETHER_ORDER = 192;  // smaller matrices are done before another thread is awake
  const int gathered = std::min(call.m, call.n) < TOGETHER_ORDER ? 1 : threads;
  return LAPWING_WIDEST(solve_by_bidiagonal<RealOf<T>, PARTS_OF<T>>(call, gathered, solve));
}

#define LAPWING_INSTANTIATE(T) template int64_t svd_by_bidiagonal<T>(const SvdOfOne<T>&, int, const BidiagonalSolver<RealOf<T>>&);
LAPWING_EACH_TYPE(LAPWING_INSTANTIATE)

}  // namespace lapwing
