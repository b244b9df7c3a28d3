// Compiles the kernels of columns_small.h for each instruction set and picks one at run time.
#include "cpu/columns.h"

#include <algorithm>
#include <atomic>
#include <complex>
#include <limits>
#include <type_traits>

#include "cpu/cpu.h"
#include "cpu/threads.h"
#include "cpu/wait.h"

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

template <class R>
void solve_one_column(const R* l, int64_t n, R* x, bool upper, bool turned, bool unit, int threads) {
  // A smaller triangle is solved before another thread is awake.
  constexpr int64_t TOGETHER_BYTES = 3 << 20;
  if (threads < 2 || n * n / 2 * int64_t(sizeof(R)) < TOGETHER_BYTES)
    return LAPWING_WIDEST(solve_one<R>(l, n, x, upper, turned, unit, nullptr));
  Team::gather(threads, [&](Team& team) { LAPWING_WIDEST(solve_one<R>(l, n, x, upper, turned, unit, &team)); });
}

template int64_t most_columns<float>();
template int64_t most_columns<double>();
template void solve_few_columns<float>(const float*, int64_t, float*, int64_t, bool, bool, bool);
template void solve_few_columns<double>(const double*, int64_t, double*, int64_t, bool, bool, bool);
template void solve_one_column<float>(const float*, int64_t, float*, bool, bool, bool, int);
template void solve_one_column<double>(const double*, int64_t, double*, bool, bool, bool, int);

}  // namespace lapwing
