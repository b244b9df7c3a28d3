#include "cpu/triangle.h"

#include <algorithm>

#include "cpu/cpu.h"
#include "cpu/matrix.h"
#include "cpu/threads.h"
#include "dtypes.h"

namespace lapwing {

int finite(Frame& frame) {
  return by_dtype(frame.dtype, [&](auto zero) {
    typedef RealOf<decltype(zero)> Real;
    constexpr int PARTS = PARTS_OF<decltype(zero)>;
    const int64_t n = frame.size[1];
    const bool upper = frame.flags & UPPER;
    auto* a = static_cast<const Real*>(frame.buffer[0]);
    auto* status = static_cast<int32_t*>(frame.buffer[1]);
    parallel(threads_for(frame), frame.size[0], 1, [&](int64_t m, int64_t) {
      int32_t good = 1;
      for (int64_t i = 0; i < n; i++) {
        const Real* row = a + (m * n * n + i * n) * PARTS;
        const int64_t first = upper ? i : 0, last = upper ? n : i + 1;
        Real sum = 0;
        for (int64_t k = first * PARTS; k < last * PARTS; k++) sum += row[k] * Real(0);
        if (!(sum == 0)) good = 0;
      }
      status[m] = good;
    });
    return 0;
  });
}

int hermitian(Frame& frame) {
  return by_dtype(frame.dtype, [&](auto zero) {
    typedef decltype(zero) T;
    constexpr int64_t EDGE = Tile<T>::EDGE, PIECE = 1 << 15;
    const int64_t n = frame.size[1], strips = (n + EDGE - 1) / EDGE;  // rows of tiles
    const bool upper = frame.flags & UPPER, symmetric = frame.flags & SYMMETRIC;
    const int64_t all = frame.size[0] * strips, piece = std::max<int64_t>(1, PIECE * strips / (n * n));
    const int threads = frame.size[0] * n * n < 4 * PIECE ? 1 : threads_for(frame);
    parallel(threads, all, piece, [&](int64_t first, int64_t last) {
      for (int64_t at = first; at < last; at++) {
        const int64_t m = at / strips, row = at % strips * EDGE, end = std::min(n, row + EDGE);
        const T* a = static_cast<const T*>(frame.buffer[0]) + m * n * n;
        T* out = static_cast<T*>(frame.buffer[1]) + m * n * n;
        symmetric ? complete_hermitian<false>(a, out, n, upper, row, end) : complete_hermitian(a, out, n, upper, row, end);
      }
    });
    return 0;
  });
}

}  // namespace lapwing
