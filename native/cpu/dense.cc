// Compiles the kernels of dense_small.h for each instruction set and picks one at run time.
#include "cpu/dense.h"

#include <algorithm>
#include <complex>
#include <limits>
#include <numeric>
#include <type_traits>
#include <utility>

#include "cpu/cholesky.h"
#include "cpu/cpu.h"
#include "cpu/pages.h"
#include "cpu/threads.h"
#include "dtypes.h"

#define LAPWING_KERNELS "cpu/dense_small.h"
#include "cpu/levels.h"

namespace lapwing {
namespace {

// Columns of a panel. Zen 4, one thread: 48 to 128 are within 5 % of each other up to n = 1000; at n = 2048 128 is 3 % to 6 % faster
// than 64.
int64_t panel_columns(int64_t n) { return n < 1500 ? 64 : 128; }

}  // namespace

template <class R>
bool turn_wide(const R* a, int64_t ld, int64_t rows, int64_t columns, R* out, int64_t to_ld) {
  return LAPWING_WIDEST(turn_real(a, ld, rows, columns, out, to_ld));
}
template bool turn_wide<float>(const float*, int64_t, int64_t, int64_t, float*, int64_t);
template bool turn_wide<double>(const double*, int64_t, int64_t, int64_t, double*, int64_t);

template <class T>
void dense_lu(T* a, int64_t n, int64_t ld, int64_t* pivots, int threads) {
  typedef RealOf<T> R;
  R* from = reinterpret_cast<R*>(a);
  const int64_t width = panel_columns(n);
  Team::gather(threads, [&](Team& team) { LAPWING_WIDEST(large_lu<R, PARTS_OF<T>>(from, n, ld, pivots, team, width)); });
}

template <class T>
int64_t dense_cholesky(T* a, int64_t n, int64_t ld, bool upper, int threads) {
  typedef RealOf<T> R;
  R* from = reinterpret_cast<R*>(a);
  const int64_t width = panel_columns(n);
  int64_t status = 0;
  Team::gather(threads, [&](Team& team) { status = LAPWING_WIDEST(large_cholesky<R, PARTS_OF<T>>(from, n, ld, upper, team, width)); });
  return status;
}

template <class T>
bool dense_inverse(const T* lu, T* x, int64_t n, int threads) {
  typedef RealOf<T> R;
  const R* from = reinterpret_cast<const R*>(lu);
  R* to = reinterpret_cast<R*>(x);
  bool good = false;
  const int64_t width = panel_columns(n);
  Team::gather(threads, [&](Team& team) { good = LAPWING_WIDEST(large_inverse<R, PARTS_OF<T>>(from, to, n, team, width)); });
  return good;
}

template <class T>
void dense_positive_inverse(T* x, int64_t n, bool upper, int threads) {
  typedef RealOf<T> R;
  R* to = reinterpret_cast<R*>(x);
  Team::gather(threads, [&](Team& team) { LAPWING_WIDEST(large_positive_inverse<R, PARTS_OF<T>>(to, n, upper, team)); });
}

#define LAPWING_INSTANTIATE(T)                                         \
  template void dense_positive_inverse<T>(T*, int64_t, bool, int);     \
  template bool dense_inverse<T>(const T*, T*, int64_t, int);          \
  template void dense_lu<T>(T*, int64_t, int64_t, int64_t*, int);      \
  template int64_t dense_cholesky<T>(T*, int64_t, int64_t, bool, int);
LAPWING_EACH_TYPE(LAPWING_INSTANTIATE)

}  // namespace lapwing
