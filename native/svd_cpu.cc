// Compiles the kernels of svd_small.h for each instruction set and picks one at run time.
#include "svd_cpu.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <limits>
#include <type_traits>
#include <utility>

#include "cpu.h"
#include "dtypes.h"
#include "solve_careful.h"
#include "solve_cpu.h"
#include "threads.h"

#define LAPWING_KERNELS "svd_small.h"
#include "levels.h"

namespace lapwing {
namespace {

const int level = cpu_level();

template <class T>
void svd_part(const Frame& frame, int64_t first, int64_t last) {
  typedef RealOf<T> R;
  constexpr int P = Scalar<T>::parts;
#ifdef LAPWING_X86_LEVELS
  if (level == 2) return avx512::svd_any<R, P>(frame, first, last);
  if (level == 1) return avx2::svd_any<R, P>(frame, first, last);
#endif
  base::svd_any<R, P>(frame, first, last);
}

}  // namespace

bool svd_takes(const Frame& frame) {
  const int64_t m = frame.size[1], n = frame.size[2];
  if (frame.op == SVD && frame.size[3] && m != n) return false;
  return std::min(m, n) <= SVD_LARGEST && std::max(m, n) <= SVD_LONGEST;
}

// From times of one thread beside NumPy's LAPACK on Sapphire Rapids (AVX-512, 2026-11): a single matrix of order 8 is worth its
// vector, of order 16 a quarter of a vector of them, of order 32 a half.
bool svd_pays(const Frame& frame) {
  const bool is_short = frame.dtype == F32 || frame.dtype == C64;
  const int64_t k = std::min(frame.size[1], frame.size[2]), lanes = (16 << level) / (is_short ? 4 : 8);
  return k <= 8 || frame.size[0] >= (k <= 16 ? lanes / 4 : lanes / 2);
}

int svd_batched(Frame& frame) {
  if (!svd_takes(frame))
    return fail(frame, "engine batched takes thin or square singular value decompositions up to %d x %d on the CPU",
                int(SVD_LONGEST), int(SVD_LARGEST));
  const double m = double(frame.size[1]), n = double(frame.size[2]), k = std::min(m, n), l = std::max(m, n);
  const double sweeps = frame.op == SVD ? 8 : 4;
  return by_dtype(frame.dtype, [&](auto zero) {
    typedef decltype(zero) T;
    const int64_t group = (16 << level) / sizeof(RealOf<T>);
    const double work = sweeps * 8 * k * k * k + 4 * l * k * k + 100;
    const bool finished = parallel_batch(frame, group, work, [&](int64_t first, int64_t last) {
      svd_part<T>(frame, first, last);
    });
    return finished ? 0 : 1;
  });
}

}  // namespace lapwing
