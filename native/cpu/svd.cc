// Compiles the kernels of svd_small.h for each instruction set and picks one at run time.
#include "cpu/svd.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <limits>
#include <type_traits>
#include <utility>

#include "cpu/cpu.h"
#include "determinant.h"
#include "dtypes.h"
#include "cpu/solve_careful.h"
#include "cpu/solve.h"
#include "cpu/threads.h"

#define LAPWING_KERNELS "cpu/svd_small.h"
#include "cpu/levels.h"

namespace lapwing {
namespace {

template <class T>
void svd_part(const Frame& frame, int64_t first, int64_t last) {
  typedef RealOf<T> R;
  constexpr int P = Scalar<T>::parts;
  LAPWING_WIDEST(svd_any<R, P>(frame, first, last));
}

}  // namespace

bool svd_fits(const Frame& frame) {
  const int64_t m = frame.size[1], n = frame.size[2];
  if (frame.op == SVD && frame.size[3] && m != n) return false;
  return std::min(m, n) <= SVD_LARGEST && std::max(m, n) <= SVD_LONGEST;
}

// From times of one thread beside NumPy's LAPACK on Sapphire Rapids (AVX-512, 2026-11): a single matrix of order 8 is worth its
// vector, of order 16 a quarter of a vector of them, of order 32 a half.
bool svd_pays(const Frame& frame) {
  const int64_t k = std::min(frame.size[1], frame.size[2]), lanes = lanes_of(frame.dtype);
  return k <= 8 || frame.size[0] >= (k <= 16 ? lanes / 4 : lanes / 2);
}

int svd_batched(Frame& frame) {
  const double m = double(frame.size[1]), n = double(frame.size[2]), k = std::min(m, n), l = std::max(m, n);
  const double sweeps = frame.op == SVD ? 8 : 4;
  return by_dtype(frame.dtype, [&](auto zero) {
    typedef decltype(zero) T;
    const double work = sweeps * 8 * k * k * k + 4 * l * k * k + 100;
    const bool finished = parallel_batch(frame, lanes<T>(), work, [&](int64_t first, int64_t last) {
      svd_part<T>(frame, first, last);
    });
    return finished ? 0 : 1;
  });
}

}  // namespace lapwing
