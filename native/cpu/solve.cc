// Compiles the kernels of solve_small.h and svd_small.h for each instruction set and picks one at run time.
#include "cpu/solve.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <limits>
#include <type_traits>
#include <utility>

#include "cpu/blocked.h"
#include "cpu/cpu.h"
#include "dtypes.h"
#include "determinant.h"
#include "cpu/qr.h"
#include "cpu/solve_careful.h"
#include "cpu/threads.h"
#include "methods/lstsq.h"
#include "operations.h"

#define LAPWING_KERNELS "cpu/svd_small.h"
#include "cpu/levels.h"

namespace lapwing {
namespace {

// Flops for a matrix, about; moving an element counts as eight.
double work_of(const Frame& frame) {
  const double n = double(frame.size[1]), k = double(frame.size[2]);
  switch (frame.op) {
    case TRIANGULAR: return triangles_together(frame) ? 3 * n * n : n * n * k + 8 * n * (n + 2 * k);
    case LU_SOLVE: case CHOLESKY_SOLVE: return 2 * n * n * k + 8 * n * (n + 2 * k);
    case SOLVE: return n * n * n + 2 * n * n * k + 8 * n * (n + 2 * k);
    case INVERSE: return 2 * n * n * n + 16 * n * n;
    case SVD: case SVDVALS: {
      const double least = std::min(n, k), sweeps = least > SVD_JACOBI_LARGEST ? (frame.op == SVD ? 2 : 0.5) : frame.op == SVD ? 8 : 4;
      return sweeps * 8 * least * least * least + 4 * std::max(n, k) * least * least + 100;
    }
    case QR: return 4 * n * k * std::min(n, k) + 16 * n * k + 8 * n * double(frame.size[3]);
    case QR_R: case QR_RAW: case LSTSQ: return 2 * n * k * std::min(n, k) + 16 * n * k + 4 * n * k * double(frame.size[3]);
    default: return n * n * n + 16 * n * n;
  }
}

int64_t order_of(const Frame& frame) {
  return is_rectangular(frame.op) ? std::max(frame.size[1], frame.size[2]) : frame.size[1];
}

bool is_svd(const Frame& frame) { return frame.op == SVD || frame.op == SVDVALS; }

bool is_qr(const Frame& frame) { return frame.op == QR || frame.op == QR_R || frame.op == QR_RAW; }

// Whether the matrices are taken side by side, each in a lane; others one by one. From times of one thread on Zen 4 (AVX-512,
// 2026-11): a vector that is not nearly full takes as long as a full one, and a triangle that is used once is not worth the way.
// An engine asked for by name gives the same bits for a matrix in a batch of any size.
bool in_lanes(const Frame& frame) {
  if (is_svd(frame) || frame.op == LSTSQ) return true;
  const int64_t n = order_of(frame), lanes = lanes_of(frame.dtype);
  if (frame.named) return n <= SOLVE_LARGEST;
  if (n > SOLVE_LARGEST || (frame.op == TRIANGULAR && n > 16)) return false;
  return n <= 16 || frame.size[0] >= (n <= 32 ? lanes / 2 : lanes);
}

// How many times as fast as one matrix after the other on one thread (cpu/bidiagonal.h) the QR iteration on bidiagonal matrices is, with
// full vectors. Times on Zen 5 (AVX-512, eight lanes, float64, 2026-11-18): svd 2.4 at n = 64, 1.9 at 100, 1.3 at 128, 1.1 at 160, 0.9 at
// 200; svdvals 2.1, 1.6, 1.3, 1.1, 0.9. float32, sixteen lanes: svd 2.9 at 100, 1.7 at 128, 1.5 at 160; svdvals 2.6, 2.0, 1.5.
double bidiagonal_gain(const Frame& frame) {
  const double least = double(std::min(frame.size[1], frame.size[2])), lanes = double(lanes_of(frame.dtype));
  const bool narrow = frame.dtype == F32 || frame.dtype == C64;
  return lanes / 8 * (narrow ? 0.75 : 1) * std::min(3.3, 165 / least);
}

// From how many matrices on Jacobi's method in lanes is faster than one after the other. Two threads of Zen 5 (2026-11-18), float64, times
// of one after the other over those in lanes: svd n = 16 with 2 matrices 1.1, 24 with 4 1.2, 32 with 4 0.7, with 8 1.2; svdvals n = 8
// with 2 1.0, 12 with 4 1.1, 16 with 4 0.9, with 8 1.3, 32 with 8 1.0.
int64_t least_for_jacobi(const Frame& frame) {
  const int64_t least = std::min(frame.size[1], frame.size[2]), lanes = lanes_of(frame.dtype);
  const int64_t count = frame.op == SVD ? (least <= 16 ? lanes / 4 : least <= 24 ? lanes / 2 : lanes * 3 / 4)
                                        : (least <= 8 ? lanes / 4 : least <= 12 ? lanes / 2 : lanes);
  return std::max<int64_t>(2, count);
}

}  // namespace

bool solve_fits(const Frame& frame) {
  const int64_t m = frame.size[1], n = frame.size[2];
  if (frame.op == LSTSQ)
    return std::min(m, n) <= SVD_JACOBI_LARGEST && m * n <= SOLVE_LARGEST * SOLVE_LARGEST && frame.size[3] <= SOLVE_COLUMNS;
  if (!is_svd(frame)) return order_of(frame) <= BLOCKED_LARGEST;
  if (frame.op == SVD && frame.size[3] && m != n) return false;
  return std::min(m, n) <= SVD_LARGEST && std::max(m, n) <= SVD_LONGEST;
}

// From times of one thread on Zen 4 (AVX-512, 2026-11-16): at n = 256 these kernels take half the time of the library's LU, QR and
// triangular solves, at 352 and 512 two thirds. The library may use two threads for one matrix, batches go over the threads anyway:
// so 256 for one matrix, 512 for more. For an SVD a single matrix of order 7 is worth its vector (7.4 us, the library 8.1; 5.3 and 6.2
// for complex128 of order 5), without singular vectors one order less.
bool solve_pays(const Frame& frame) {
  const int64_t n = order_of(frame), lanes = lanes_of(frame.dtype);
  if (is_svd(frame)) {
    const int64_t least = std::min(frame.size[1], frame.size[2]);
    if (least > SVD_JACOBI_LARGEST) return lanes_pay(frame, lanes, bidiagonal_gain(frame));
    const bool complex = frame.dtype == C64 || frame.dtype == C128, vectors = frame.op == SVD;
    const int64_t single = complex ? 4 + vectors : 6 + vectors;
    return least <= single || frame.size[0] >= least_for_jacobi(frame);
  }
  if (frame.op == LSTSQ) {
    const int64_t size = frame.size[1] * frame.size[2];
    return size <= 512 || frame.size[0] >= (size <= 2048 ? lanes / 4 : lanes / 2);
  }
  // the library spreads many right-hand sides of one matrix over the threads
  const bool sides = OPERATIONS[frame.op].empty == 2 && !is_rectangular(frame.op);
  if (sides && frame.size[0] == 1 && n > 16 && frame.size[2] > 4 * n) return false;
  return n <= (frame.size[0] > 1 ? BLOCKED_LARGEST : 256);
}

int solve_batched(Frame& frame) {
  return by_dtype(frame.dtype, [&](auto zero) {
    typedef decltype(zero) T;
    typedef RealOf<T> R;
    constexpr int P = PARTS_OF<T>;
    if (!in_lanes(frame) && is_qr(frame)) return qr_blocked(frame);
    if (!in_lanes(frame))
      return parallel_batch(frame, triangles_together(frame) ? TOGETHER : 1, work_of(frame), [&](int64_t first, int64_t last) { solve_blocked<T>(frame, first, last); }) ? 0 : 1;
    const bool finished = parallel_batch(frame, lanes<T>(), work_of(frame), [&](int64_t first, int64_t last) {
      LAPWING_WIDEST(solve_any<R, P>(frame, first, last));
    });
    return finished ? 0 : 1;
  });
}

}  // namespace lapwing
