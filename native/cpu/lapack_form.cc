#include "lapack_form.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "cpu/threads.h"
#include "dtypes.h"

namespace lapwing {
namespace {

constexpr int64_t EDGE = 8;  // of the tiles that are read whole before they are written

// Both tiles of a mirrored pair are read before one is written, so that `to` may be `from`.
template <class T>
void transpose(const T* from, T* to, int64_t n) {
  T low[EDGE][EDGE], high[EDGE][EDGE];
  const auto read = [&](T(&tile)[EDGE][EDGE], int64_t i, int64_t j, int64_t rows, int64_t columns) {
    for (int64_t r = 0; r < rows; r++)
      for (int64_t c = 0; c < columns; c++) tile[c][r] = from[(i + r) * n + j + c];
  };
  const auto write = [&](const T(&tile)[EDGE][EDGE], int64_t i, int64_t j, int64_t rows, int64_t columns) {
    for (int64_t r = 0; r < rows; r++)
      for (int64_t c = 0; c < columns; c++) to[(i + r) * n + j + c] = tile[r][c];
  };
  for (int64_t i = 0; i < n; i += EDGE) {
    const int64_t rows = std::min(EDGE, n - i);
    for (int64_t j = 0; j <= i; j += EDGE) {
      const int64_t columns = std::min(EDGE, n - j);
      if (rows == EDGE && columns == EDGE) {  // lengths that the compiler knows
        read(low, i, j, EDGE, EDGE), read(high, j, i, EDGE, EDGE);
        write(low, j, i, EDGE, EDGE), write(high, i, j, EDGE, EDGE);
      } else {
        read(low, i, j, rows, columns), read(high, j, i, columns, rows);
        write(low, j, i, columns, rows), write(high, i, j, rows, columns);
      }
    }
  }
}

// pivots[i] - 1 is where row order[i] is when its turn comes: a row before i has left its place for that of the row that came there.
void to_pivots(int32_t* order, int64_t n) {
  for (int64_t i = n - 1; i >= 0; i--) {
    int64_t at = order[i];
    for (int64_t steps = 0; at < i && steps < n; steps++) at = order[at];
    order[i] = int32_t(at + 1);
  }
}

void to_rows(int32_t* pivots, int64_t n, std::vector<int32_t>& rows) {
  rows.resize(size_t(n));
  std::iota(rows.begin(), rows.end(), 0);
  for (int64_t i = 0; i < n; i++) {
    const int64_t other = std::clamp<int64_t>(pivots[i], 1, n) - 1;
    std::swap(rows[size_t(i)], rows[size_t(other)]);
  }
  std::copy(rows.begin(), rows.end(), pivots);
}

}  // namespace

int lapack_form(Frame& frame, Exchanges exchanges) {
  if (frame.device == CUDA) return cuda::lapack_form(frame, exchanges);
  const int64_t n = frame.size[1];
  auto* integers = static_cast<int32_t*>(frame.buffer[2]);
  return by_dtype(frame.dtype, [&](auto zero) {
    using T = decltype(zero);
    const bool finished = parallel_batch(frame, 1, 8 * double(n * n), [&](int64_t first, int64_t last) {
      std::vector<int32_t> rows;
      for (int64_t m = first; m < last; m++) {
        transpose(static_cast<const T*>(frame.buffer[0]) + m * n * n, static_cast<T*>(frame.buffer[1]) + m * n * n, n);
        if (exchanges == TO_PIVOTS) to_pivots(integers + m * n, n);
        if (exchanges == TO_ROWS) to_rows(integers + m * n, n, rows);
      }
    });
    return finished ? 0 : 1;
  });
}

}  // namespace lapwing
