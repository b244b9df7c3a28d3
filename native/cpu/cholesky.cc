// Compiles the kernels of cholesky_small.h for each instruction set and picks one at run time.
#include "cpu/cholesky.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <limits>
#include <type_traits>
#include <utility>

#include "cpu/cpu.h"
#include "cpu/threads.h"
#include "dtypes.h"

namespace lapwing {
namespace {

constexpr int64_t LANES_LIMIT = CHOLESKY_LANES;

template <class R>
bool is_good(R pivot) {
  return pivot > 0 && pivot < std::numeric_limits<R>::infinity();
}

}  // namespace
}  // namespace lapwing

#define LAPWING_KERNELS "cpu/cholesky_small.h"
#include "cpu/levels.h"

namespace lapwing {

template <class T>
void cholesky_batch(const T* a, T* out, int32_t* info, int64_t count, int64_t n, bool upper) {
  typedef RealOf<T> R;
  constexpr int P = PARTS_OF<T>;
  const R* from = reinterpret_cast<const R*>(a);
  R* to = reinterpret_cast<R*>(out);
  LAPWING_WIDEST(batch_either<R, P>(from, to, info, count, n, upper));
}

int cholesky_batched(Frame& frame) {
  return by_dtype(frame.dtype, [&](auto zero) {
    typedef decltype(zero) T;
    const int64_t n = frame.size[1];
    auto* a = static_cast<const T*>(frame.buffer[0]);
    auto* out = static_cast<T*>(frame.buffer[1]);
    auto* info = static_cast<int32_t*>(frame.buffer[2]);
    const bool upper = frame.flags & UPPER;
    const double work = double(n) * n * n / 3 + 8.0 * n * n;  // the second term is the copy in and out
    const int64_t group = n > CHOLESKY_LANES ? 1 : lanes<T>();
    const bool finished = parallel_batch(frame, group, work, [&](int64_t first, int64_t last) {
      cholesky_batch<T>(a + first * n * n, out + first * n * n, info + first, last - first, n, upper);
    });
    return finished ? 0 : 1;
  });
}

#define LAPWING_INSTANTIATE(T) template void cholesky_batch<T>(const T*, T*, int32_t*, int64_t, int64_t, bool);
LAPWING_EACH_TYPE(LAPWING_INSTANTIATE)

}  // namespace lapwing
