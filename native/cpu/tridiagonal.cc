// Compiles the kernels of tridiagonal_small.h for each instruction set and picks one at run time.
#include "cpu/tridiagonal.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstdlib>
#include <limits>
#include <type_traits>

#include "cpu/cpu.h"
#include "cpu/pages.h"
#include "cpu/threads.h"
#include "dtypes.h"
#include "methods/lstsq.h"
#include "operations.h"

#define LAPWING_KERNELS "cpu/tridiagonal_small.h"
#include "cpu/levels.h"

namespace lapwing {

template <class R>
int64_t eigh_by_tridiagonal(const R* a, int64_t n, bool upper, R* values, R* vectors, int threads, const TridiagonalSolver<R>& solve) {
  constexpr int64_t TOGETHER_ORDER = 192;  // smaller matrices are done before another thread is awake
  const int gathered = n < TOGETHER_ORDER ? 1 : threads;
  return LAPWING_WIDEST(solve_by_tridiagonal<R>(a, n, upper, values, vectors, gathered, solve));
}

template int64_t eigh_by_tridiagonal<float>(const float*, int64_t, bool, float*, float*, int, const TridiagonalSolver<float>&);
template int64_t eigh_by_tridiagonal<double>(const double*, int64_t, bool, double*, double*, int, const TridiagonalSolver<double>&);

}  // namespace lapwing
