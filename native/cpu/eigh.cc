// Compiles the kernels of eigh_small.h for each instruction set and picks one at run time.
#include "cpu/eigh.h"

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

// Up to this order the QL iterations of two vectors of matrices run together. Measured on Sapphire Rapids (AVX-512,
// 2026-11): 1.6 times as fast at n = 8, 1.1 at n = 48; beyond, the few per cent are worth less than an even cut.
constexpr int64_t EIGH_TOGETHER = 48;

}  // namespace
}  // namespace lapwing

#define LAPWING_KERNELS "cpu/eigh_small.h"
#include "cpu/levels.h"

namespace lapwing {
namespace {

template <class T>
int eigh_as(Frame& frame) {
  typedef RealOf<T> R;
  constexpr int P = PARTS_OF<T>;
  const int64_t n = frame.size[1], first = frame.size[2], count = frame.size[3];
  const bool vectors = frame.op == EIGH, upper = frame.flags & UPPER;
  auto* a = static_cast<const R*>(frame.buffer[0]);
  auto* w = static_cast<R*>(frame.buffer[1]);
  auto* v = vectors ? static_cast<R*>(frame.buffer[2]) : nullptr;
  auto* info = static_cast<int32_t*>(frame.buffer[vectors ? 3 : 2]);
  const double work = 9.0 * n * n * n + 20.0 * n * n;
  const int64_t group = n <= EIGH_TOGETHER ? 2 * lanes<T>() : lanes<T>();
  const bool finished = parallel_batch(frame, group, work, [&](int64_t m, int64_t last) {
    R* to = vectors ? v + m * n * count * P : nullptr;
    LAPWING_WIDEST(eigh_any<R, P>(a + m * n * n * P, w + m * count, to, info + m, last - m, n, first, count, upper));
  });
  return finished ? 0 : 1;
}

}  // namespace

int eigh_batched(Frame& frame) {
  return by_dtype(frame.dtype, [&](auto zero) { return eigh_as<decltype(zero)>(frame); });
}

}  // namespace lapwing
