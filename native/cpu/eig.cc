// Compiles the kernels of eig_small.h for each instruction set and picks one at run time.
#include "cpu/eig.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <limits>
#include <type_traits>
#include <utility>

#include "cpu/blocked.h"
#include "cpu/cpu.h"
#include "cpu/isolate.h"
#include "cpu/solve.h"
#include "cpu/solve_careful.h"
#include "cpu/standard_block.h"
#include "cpu/threads.h"
#include "determinant.h"
#include "dtypes.h"
#include "lapack/eig.h"
#include "lapack/lapack.h"
#include "methods/lstsq.h"
#include "operations.h"

#define LAPWING_KERNELS "cpu/eig_small.h"
#include "cpu/levels.h"

namespace lapwing {
namespace {

constexpr int32_t NOT_CONVERGED = 2;

// What the kernels could not finish
int finish(Frame& frame) {
  auto* info = static_cast<int32_t*>(frame.buffer[status_place(frame.op)]);
  const bool library = lapack::routine(frame.op == SCHUR ? lapack::GEES : lapack::GEEV, frame.dtype).address;
  for (int64_t m = 0; m < frame.size[0]; m++) {
    if (info[m] != NOT_CONVERGED) continue;
    info[m] = 1;
    if (!library) continue;
    Frame one = part_of(frame, m, 1);
    if (lapack::eig(one)) return fail_as(frame, one);
  }
  return 0;
}

}  // namespace

int eig_batched(Frame& frame) {
  const double n = double(frame.size[1]), work = (frame.op == EIGVALS ? 10 : 30) * n * n * n + 100 * n;
  const bool finished = by_dtype(frame.dtype, [&](auto zero) {
    typedef decltype(zero) T;
    typedef RealOf<T> R;
    constexpr int P = PARTS_OF<T>;
    return parallel_batch(frame, lanes<T>(), work, [&](int64_t first, int64_t last) {
      LAPWING_WIDEST(eig_any<R, P>(frame, first, last));
    });
  });
  return finished ? finish(frame) : 1;
}

}  // namespace lapwing
