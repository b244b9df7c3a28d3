// Compiles the kernel of columns_small.h for each instruction set and picks one at run time.
#include "cpu/columns.h"

#include <algorithm>
#include <limits>
#include <type_traits>

#include "cpu/cpu.h"

#define LAPWING_KERNELS "cpu/columns_small.h"
#include "cpu/levels.h"

namespace lapwing {

template <class R>
int64_t most_columns() {
  return 2 * lanes<R>();
}

template <class R>
void solve_few_columns(const R* l, int64_t n, R* x, int64_t k, bool upper, bool turned, bool unit) {
  R* room = static_cast<R*>(scratch(sizeof(R) * size_t(n * most_columns<R>())));
  LAPWING_WIDEST(solve_few<R>(l, n, x, k, upper, turned, unit, room));
}

template int64_t most_columns<float>();
template int64_t most_columns<double>();
template void solve_few_columns<float>(const float*, int64_t, float*, int64_t, bool, bool, bool);
template void solve_few_columns<double>(const double*, int64_t, double*, int64_t, bool, bool, bool);

}  // namespace lapwing
