// Passes over a row-major matrix on the CPU around LAPACK, on several threads where there is much to move. Not from inside
// a `parallel` of more than one thread.
#pragma once
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>

#include "frame.h"
#include "matrix.h"
#include "threads.h"

namespace lapwing::lapack {

// body(first, last) over [0, count), each of them `size` elements to move
template <class Body>
void pass(const Frame& frame, int64_t count, int64_t size, const Body& body) {
  constexpr int64_t PIECE = 1 << 17;
  if (count * size < 2 * PIECE) return body(int64_t(0), count);
  parallel(frame.threads > 0 ? frame.threads : allowed_threads(), count, std::max<int64_t>(1, PIECE / size), body);
}

template <class T>
bool all_finite(const T* a, int64_t count) {
  using Real = decltype(std::real(T()));
  constexpr int64_t PARTS = sizeof(T) / sizeof(Real), LANES = 16;
  auto* part = reinterpret_cast<const Real*>(a);
  const int64_t parts = count * PARTS, whole = parts / LANES * LANES;
  Real sum[LANES] = {}, total = 0;
  for (int64_t i = 0; i < whole; i += LANES)
    for (int64_t lane = 0; lane < LANES; lane++) sum[lane] += part[i + lane] * Real(0);
  for (int64_t i = whole; i < parts; i++) total += part[i] * Real(0);
  for (Real lane : sum) total += lane;
  return total == 0;
}

template <class T>
void put(T* to, const T* from, int64_t count) {
  if (to != from) std::memmove(static_cast<void*>(to), from, sizeof(T) * size_t(count));
}

template <class T>
bool is_finite(const Frame& frame, const T* a, int64_t rows, int64_t columns) {
  std::atomic<bool> finite{true};
  pass(frame, rows, columns, [&](int64_t first, int64_t last) {
    if (!all_finite(a + first * columns, (last - first) * columns)) finite = false;
  });
  return finite;
}

// out <- a; false when it holds NaN or Inf
template <class T>
bool copy_finite(const Frame& frame, const T* a, T* out, int64_t rows, int64_t columns) {
  std::atomic<bool> finite{true};
  pass(frame, rows, columns, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; i++) {
      if (!all_finite(a + i * columns, columns)) finite = false;
      put(out + i * columns, a + i * columns, columns);
    }
  });
  return finite;
}

// out <- the named triangle of a, its diagonal real; false when it holds NaN or Inf
template <class T>
bool copy_finite_hermitian(const Frame& frame, const T* a, T* out, int64_t n, bool upper) {
  std::atomic<bool> finite{true};
  pass(frame, n, n, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; i++) {
      const int64_t begin = upper ? i : 0, end = upper ? n : i + 1;
      T* row = out + i * n;
      put(row + begin, a + i * n + begin, end - begin);
      row[i] = T(std::real(row[i]));
      if (!all_finite(row + begin, end - begin)) finite = false;
    }
  });
  return finite;
}

// The order of the first leading minor with NaN or Inf in it
template <class T, class Read>
int64_t first_not_finite(const T* a, int64_t n, const Read& reads) {
  int64_t place = n;
  for (int64_t i = 0; i < n; i++)
    for (int64_t j = 0; j < n; j++)
      if (std::max(i, j) < place && reads(i, j) && !all_finite(a + i * n + j, 1)) place = std::max(i, j) + 1;
  return place;
}

// The other triangle <- the adjoint of the named one
template <class T>
void mirror(const Frame& frame, T* a, int64_t n, bool upper) {
  const int64_t blocks = (n + TURN_BLOCK - 1) / TURN_BLOCK;
  // a block row of the triangle that is written; long and short ones take turns
  pass(frame, blocks, TURN_BLOCK * (n / 2 + 1), [&](int64_t first, int64_t last) {
    for (int64_t b = first; b < last; b++) {
      const int64_t i0 = (b % 2 ? blocks - 1 - b / 2 : b / 2) * TURN_BLOCK;
      for (int64_t j0 = 0; j0 <= i0; j0 += TURN_BLOCK)
        for (int64_t i = i0; i < std::min(n, i0 + TURN_BLOCK); i++)
          for (int64_t j = j0; j < std::min(i, j0 + TURN_BLOCK); j++) {
            T &low = a[i * n + j], &high = a[j * n + i];
            (upper ? low : high) = conjugated(upper ? high : low);
          }
    }
  });
  for (int64_t i = 0; i < n; i++) a[i * n + i] = T(std::real(a[i * n + i]));
}

// out (count x rows) <- the first `count` rows of a^H, a being rows x columns
template <class T>
void turn(const Frame& frame, const T* a, T* out, int64_t rows, int64_t columns, int64_t count) {
  const int64_t blocks = (count + TURN_BLOCK - 1) / TURN_BLOCK;
  pass(frame, blocks, TURN_BLOCK * rows, [&](int64_t first, int64_t last) {
    const int64_t begin = first * TURN_BLOCK, end = std::min(count, last * TURN_BLOCK);
    for (int64_t j0 = 0; j0 < rows; j0 += TURN_BLOCK)
      for (int64_t i0 = begin; i0 < end; i0 += TURN_BLOCK)
        for (int64_t i = i0; i < std::min(end, i0 + TURN_BLOCK); i++)
          for (int64_t j = j0; j < std::min(rows, j0 + TURN_BLOCK); j++) out[i * rows + j] = conjugated(a[j * columns + i]);
  });
}

template <class T>
void turn(const Frame& frame, const T* a, T* out, int64_t rows, int64_t columns) {
  turn(frame, a, out, rows, columns, columns);
}

// a <- a^H, in place
template <class T>
void turn(const Frame& frame, T* a, int64_t n) {
  const int64_t blocks = (n + TURN_BLOCK - 1) / TURN_BLOCK;
  pass(frame, blocks, TURN_BLOCK * (n / 2 + 1), [&](int64_t first, int64_t last) {
    for (int64_t b = first; b < last; b++) {
      const int64_t i0 = (b % 2 ? blocks - 1 - b / 2 : b / 2) * TURN_BLOCK;
      for (int64_t j0 = 0; j0 <= i0; j0 += TURN_BLOCK)
        for (int64_t i = i0; i < std::min(n, i0 + TURN_BLOCK); i++)
          for (int64_t j = j0; j < std::min(i + 1, j0 + TURN_BLOCK); j++) {
            T x = conjugated(a[i * n + j]);
            a[i * n + j] = conjugated(a[j * n + i]);
            a[j * n + i] = x;
          }
    }
  });
}

// Rows i and swap(i) of x change places, for i = n - 1 down to 0
template <class T, class Swap>
void swap_rows_back(const Frame& frame, T* x, int64_t n, int64_t columns, const Swap& swap) {
  const int64_t width = std::max<int64_t>(64, 4096 / int64_t(sizeof(T)));
  pass(frame, (columns + width - 1) / width, width * n, [&](int64_t first, int64_t last) {
    const int64_t begin = first * width, end = std::min(columns, last * width);
    for (int64_t i = n - 1; i >= 0; i--)
      if (const int64_t other = swap(i); other != i)
        std::swap_ranges(x + i * columns + begin, x + i * columns + end, x + other * columns + begin);
  });
}

}  // namespace lapwing::lapack
