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

// Across the lanes a few right-hand sides take as long as a vector of them. Zen 5 (AVX-512, 2026-11-18), us, one behind the other and
// across the lanes, float32, n = 1000: 3 columns 51 and 138, 8 101 and 138; of the transpose 37 and 121.
template <class R>
bool by_columns(int64_t k) {
  return k <= std::max<int64_t>(1, lanes<R>() / 2);
}

template <class R>
void solve_few_columns(const R* l, int64_t n, R* x, int64_t k, bool upper, bool turned, bool unit, int threads) {
  R* room = static_cast<R*>(scratch(sizeof(R) * size_t(n * most_columns<R>())));
  if (!by_columns<R>(k)) {
    LAPWING_WIDEST(solve_few<R>(l, n, x, k, upper, turned, unit, room));
    return;
  }
  // A smaller triangle is solved before another thread is awake.
  constexpr int64_t TOGETHER_BYTES = 3 << 20;
  with_team(n * n / 2 * int64_t(sizeof(R)) < TOGETHER_BYTES ? 1 : threads, [&](Team* team) {
    LAPWING_WIDEST(solve_few_by_columns<R>(l, n, x, k, upper, turned, unit, room, team));
  });
}

template int64_t most_columns<float>();
template int64_t most_columns<double>();
template void solve_few_columns<float>(const float*, int64_t, float*, int64_t, bool, bool, bool, int);
template void solve_few_columns<double>(const double*, int64_t, double*, int64_t, bool, bool, bool, int);

}  // namespace lapwing
