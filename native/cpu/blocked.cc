// Compiles the kernels of blocked_small.h for each instruction set and picks one at run time.
#include "cpu/blocked.h"

#include <algorithm>
#include <complex>
#include <limits>
#include <type_traits>
#include <utility>

#include "cpu/cholesky.h"
#include "cpu/cpu.h"
#include "cpu/solve_careful.h"
#include "determinant.h"
#include "dtypes.h"
#include "operations.h"

#define LAPWING_KERNELS "cpu/blocked_small.h"
#include "cpu/levels.h"

namespace lapwing {

template <class T>
void solve_blocked(const Frame& frame, int64_t first, int64_t last) {
  LAPWING_WIDEST(solve_middle<RealOf<T>, PARTS_OF<T>>(frame, first, last));
}

#define LAPWING_INSTANTIATE(T) template void solve_blocked<T>(const Frame&, int64_t, int64_t);
LAPWING_EACH_TYPE(LAPWING_INSTANTIATE)

}  // namespace lapwing
