// Compiles the kernels of qr_small.h for each instruction set and picks one at run time.
#include "cpu/qr.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <limits>
#include <type_traits>

#include "cpu/cpu.h"
#include "cpu/threads.h"
#include "dtypes.h"
#include "methods/lstsq.h"
#include "operations.h"

#define LAPWING_KERNELS "cpu/qr_small.h"
#include "cpu/levels.h"

namespace lapwing {

int qr_blocked(Frame& frame) {
  const double m = double(std::max(frame.size[1], frame.size[2])), n = double(std::min(frame.size[1], frame.size[2]));
  const double work = (frame.op == QR ? 4 : 2) * m * n * n + 16 * m * n;
  return by_dtype(frame.dtype, [&](auto zero) {
    typedef decltype(zero) T;
    return parallel_batch(frame, 1, work, [&](int64_t first, int64_t last) {
      LAPWING_WIDEST(factor_orthogonal<RealOf<T>, PARTS_OF<T>>(frame, first, last));
    }) ? 0 : 1;
  });
}

}  // namespace lapwing
