#include "cpu/hermitian_product.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "cpu/cpu.h"
#include "cpu/matrix.h"
#include "cpu/threads.h"
#include "dtypes.h"

#define LAPWING_KERNELS "cpu/hermitian_tile.h"
#include "cpu/levels.h"

namespace lapwing {
namespace {

constexpr int64_t HEIGHT = 32;       // rows of a tile
constexpr int64_t ROW_BYTES = 1024;  // of a tile: 32 KB together, which the second pass over it finds in the first cache

constexpr int64_t ROWS = 128;        // packed or summed at a time
constexpr int64_t WIDEST = 32;       // numbers in two registers


// real numbers in a row of a group: two registers
template <class T>
int64_t group_width() {
  return 2 * (16 << level) / int64_t(sizeof(RealOf<T>));
}
template <class T>
int64_t groups_for(int64_t columns) {
  const int64_t each = group_width<T>() / PARTS_OF<T>;
  return (columns + each - 1) / each;
}

template <class T>
void tile(const RealOf<T>* t, int64_t ld, int64_t rows, int64_t columns, const RealOf<T>* xc, RealOf<T>* yr, const RealOf<T>* xr,
          RealOf<T>* yc) {
  constexpr int P = PARTS_OF<T>;
  LAPWING_WIDEST(add_tile<RealOf<T>, P>(t, ld, rows, columns, xc, yr, xr, yc));
}

template <class T>
void square(const RealOf<T>* t, int64_t n, const RealOf<T>* x, RealOf<T>* y) {
  constexpr int P = PARTS_OF<T>;
  LAPWING_WIDEST(add_product<RealOf<T>, P, false>(t, HEIGHT * P, P, n, n, x, y));
}

// How many parts the triangle is summed in, each into vectors of its own.
int64_t parts_for(int64_t n) { return n < 512 ? 1 : n < 2048 ? 4 : n < 8192 ? 8 : 32; }

// The rows where part p begins, at equal areas of the lower triangle (upper: from the other end).
int64_t part_begin(int64_t n, int64_t parts, int64_t p, bool upper) {
  const double share = double(upper ? parts - p : p) / double(parts), edge = double(n) * std::sqrt(share);
  const int64_t row = p == 0 ? 0 : p == parts ? n : int64_t(upper ? double(n) - edge : edge);
  return p == parts ? n : row / HEIGHT * HEIGHT;
}

}  // namespace

template <class T>
size_t HermitianProduct<T>::bytes(int64_t n, int64_t columns) {
  return size_t((parts_for(n) + 1) * n * groups_for<T>(columns) * group_width<T>()) * sizeof(RealOf<T>);
}

template <class T>
void HermitianProduct<T>::use(const T* a, int64_t n, bool upper, double scale, int threads) {
  a_ = a;
  n_ = n;
  upper_ = upper;
  scale_ = scale;
  threads_ = threads;
}

template <class T>
void HermitianProduct<T>::multiply(const T* x, T* y, int64_t columns) {
  using R = RealOf<T>;
  constexpr int P = PARTS_OF<T>;
  constexpr int64_t WIDE = ROW_BYTES / int64_t(sizeof(T));
  const int64_t width = group_width<T>(), groups = groups_for<T>(columns), parts = parts_for(n_);
  const int64_t each = width / P, room = n_ * width;  // columns and numbers of a group
  if (held_ < bytes(n_, columns)) {
    held_ = 0;
    memory_ = pages_of(bytes(n_, columns));
    held_ = bytes(n_, columns);
  }
  R* packed = reinterpret_cast<R*>(memory_.get());
  R* sums = packed + groups * room;
  const R scale = R(scale_);

  // X, row by row
  parallel(threads_, n_, ROWS, [&](int64_t first, int64_t last) {
    for (int64_t g = 0; g < groups; g++)
      for (int64_t c = 0; c < each; c++) {
        const int64_t column = g * each + c;
        const R* from = reinterpret_cast<const R*>(x + column * n_);
        R* to = packed + g * room + c;
        for (int64_t part = 0; part < P; part++)
          for (int64_t i = first; i < last; i++)
            to[i * width + part * each] = column < columns ? from[i * P + part] * scale : R(0);
      }
  });

  // the triangle, part by part
  parallel(threads_, parts, 1, [&](int64_t p, int64_t) {
    const int64_t begin = part_begin(n_, parts, p, upper_), end = part_begin(n_, parts, p + 1, upper_);
    R* sum = sums + p * groups * room;
    const int64_t low = upper_ ? begin : 0, high = upper_ ? n_ : end;  // the rows of Y this part adds to
    for (int64_t g = 0; g < groups; g++) std::fill(sum + g * room + low * width, sum + g * room + high * width, R(0));
    T diagonal[HEIGHT * HEIGHT];
    for (int64_t i = begin; i < end; i += HEIGHT) {
      const int64_t rows = std::min(HEIGHT, end - i);
      // the tile on the diagonal, in full: the other half of it must not be read
      for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < r; c++) {
          const T e = upper_ ? conjugated(a_[(i + c) * n_ + i + r]) : a_[(i + r) * n_ + i + c];
          diagonal[r * HEIGHT + c] = e;
          diagonal[c * HEIGHT + r] = conjugated(e);
        }
      for (int64_t r = 0; r < rows; r++) diagonal[r * HEIGHT + r] = T(std::real(a_[(i + r) * n_ + i + r]));
      for (int64_t g = 0; g < groups; g++)
        square<T>(reinterpret_cast<R*>(diagonal), rows, packed + g * room + i * width, sum + g * room + i * width);
      const int64_t last = upper_ ? n_ : i;
      for (int64_t j = upper_ ? i + rows : 0; j < last; j += WIDE) {
        const int64_t wide = std::min(WIDE, last - j);
        for (int64_t g = 0; g < groups; g++)
          tile<T>(reinterpret_cast<const R*>(a_ + i * n_ + j), n_ * P, rows, wide, packed + g * room + j * width,
                  sum + g * room + i * width, packed + g * room + i * width, sum + g * room + j * width);
      }
    }
  });

  // Y <- the sum of the parts, column by column
  parallel(threads_, n_, ROWS, [&](int64_t first, int64_t last) {
    R total[ROWS * WIDEST];
    for (int64_t g = 0; g < groups; g++) {
      std::fill_n(total, (last - first) * width, R(0));
      for (int64_t p = 0; p < parts; p++) {
        const int64_t low = upper_ ? part_begin(n_, parts, p, true) : 0;
        const int64_t high = upper_ ? n_ : part_begin(n_, parts, p + 1, false);
        const R* sum = sums + (p * groups + g) * room;
        for (int64_t k = std::max(first, low) * width; k < std::min(last, high) * width; k++)
          total[k - first * width] += sum[k];
      }
      for (int64_t c = 0; c < std::min(each, columns - g * each); c++) {
        R* to = reinterpret_cast<R*>(y + (g * each + c) * n_);
        for (int64_t part = 0; part < P; part++)
          for (int64_t i = first; i < last; i++) to[i * P + part] = total[(i - first) * width + part * each + c];
      }
    }
  });
}

#define LAPWING_INSTANTIATE(T) template class HermitianProduct<T>;
LAPWING_EACH_TYPE(LAPWING_INSTANTIATE)

}  // namespace lapwing
