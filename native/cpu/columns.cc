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
#include "dtypes.h"

#define LAPWING_KERNELS "cpu/columns_small.h"
#include "cpu/levels.h"

namespace lapwing {

namespace {

// Zen 5, one thread (2026-11-18), us, n = 512, and by OpenBLAS: complex64, 2 columns 26 and 79, 8 columns 81 and 100; complex128, 8 columns
// 115 and 180.
constexpr int64_t MOST_COMPLEX = 8;

// Across the lanes a few right-hand sides take as long as a vector of them. Zen 5 (AVX-512, 2026-11-18), us, one behind the other and
// across the lanes, float32, n = 1000: 3 columns 51 and 138, 8 101 and 138; of the transpose 37 and 121.
template <class T>
bool by_columns(int64_t k) {
  return PARTS_OF<T> == 2 || k <= std::max<int64_t>(1, lanes<T>() / 2);
}

}  // namespace

template <class T>
int64_t most_columns() {
  if constexpr (PARTS_OF<T> == 2)
    return MOST_COMPLEX;
  else
    return 2 * lanes<T>();
}

template <class T>
void solve_few_columns(const T* l, int64_t n, T* x, int64_t k, bool upper, bool turned, bool unit, int threads) {
  using R = RealOf<T>;
  T* room = static_cast<T*>(scratch(sizeof(T) * size_t(n * most_columns<T>())));
  if constexpr (PARTS_OF<T> == 1)
    if (!by_columns<T>(k)) {
      LAPWING_WIDEST(solve_few<R>(l, n, x, k, upper, turned, unit, room));
      return;
    }
  // A smaller triangle is solved before another thread is awake.
  constexpr int64_t TOGETHER_BYTES = 3 << 20;
  with_team(n * n / 2 * int64_t(sizeof(T)) < TOGETHER_BYTES ? 1 : threads, [&](Team* team) {
    LAPWING_WIDEST(solve_few_by_columns<R, PARTS_OF<T>>(l, n, x, k, upper, turned, unit, room, team));
  });
}

#define LAPWING_COLUMNS(T)            \
  template int64_t most_columns<T>(); \
  template void solve_few_columns<T>(const T*, int64_t, T*, int64_t, bool, bool, bool, int);
LAPWING_COLUMNS(float)
LAPWING_COLUMNS(double)
LAPWING_COLUMNS(std::complex<float>)
LAPWING_COLUMNS(std::complex<double>)

}  // namespace lapwing
