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
    const int64_t n = frame.size[1];
    parallel(threads_for(frame), frame.size[0], std::max<int64_t>(1, 65536 / (n * n)), [&](int64_t first, int64_t last) {
      for (int64_t m = first; m < last; m++) {
        const T* a = static_cast<const T*>(frame.buffer[0]) + m * n * n;
        T* out = static_cast<T*>(frame.buffer[1]) + m * n * n;
        const bool upper = frame.flags & UPPER;
        frame.flags & SYMMETRIC ? complete_hermitian<false>(a, out, n, upper) : complete_hermitian(a, out, n, upper);
      }
    });
    return 0;
  });
}

}  // namespace lapwing
