// Compiles the kernels of qr_small.h for each instruction set and picks one at run time.
#include "cpu/qr.h"

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

#define LAPWING_KERNELS "cpu/qr_small.h"
#include "cpu/levels.h"

namespace lapwing {

int qr_blocked(Frame& frame) {
  const double m = double(std::max(frame.size[1], frame.size[2])), n = double(std::min(frame.size[1], frame.size[2]));
  const double work = (frame.op == QR ? 4 : 2) * m * n * n + 16 * m * n;
  // few large matrices are taken one after the other by all threads
  constexpr double TOGETHER_WORK = 4e6;
  const int threads = frame.size[0] * work > TOGETHER_WORK ? threads_for(frame) : 1;
  const bool together = threads > 1 && work > TOGETHER_WORK && frame.size[0] < 2 * threads;
  return by_dtype(frame.dtype, [&](auto zero) {
    typedef decltype(zero) T;
    typedef RealOf<T> R;
    constexpr int P = PARTS_OF<T>;
    if (together) {
      bool stopped = false;
      Team::gather(threads, [&](Team& team) {
        for (int64_t m = 0; m < frame.size[0] && !stopped; m++) {
          LAPWING_WIDEST(factor_orthogonal<R, P>(frame, &team, m, m + 1));
          stopped = frame.interrupted && frame.interrupted();
        }
      });
      return stopped ? 1 : 0;
    }
    return parallel_batch(frame, 1, work, [&](int64_t first, int64_t last) {
      LAPWING_WIDEST(factor_orthogonal<R, P>(frame, nullptr, first, last));
    }) ? 0 : 1;
  });
}

}  // namespace lapwing
