// Passes over a row-major matrix on the CPU around LAPACK, on several threads where there is much to move.
#pragma once
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>

#include "frame.h"
#include "cpu/dense.h"
#include "cpu/matrix.h"
#include "cpu/threads.h"

namespace lapwing::lapack {

// body(first, last) over [0, count), each of them `size` elements to move
template <class Body>
void pass(const Frame& frame, int64_t count, int64_t size, const Body& body) {
  constexpr int64_t PIECE = 1 << 17;
  if (count * size < 2 * PIECE) return body(int64_t(0), count);
  parallel(threads_for(frame), count, std::max<int64_t>(1, PIECE / size), body);
}

template <class T>
void put(T* to, const T* from, int64_t count) {
  if (to != from) std::memmove(static_cast<void*>(to), from, sizeof(T) * size_t(count));
}

// The same, and whether every body answered true
template <class Body>
bool pass_all(const Frame& frame, int64_t count, int64_t size, const Body& body) {
  std::atomic<bool> all{true};
  pass(frame, count, size, [&](int64_t first, int64_t last) {
    if (!body(first, last)) all = false;
  });
  return all;
}

template <class T>
bool is_finite(const Frame& frame, const T* a, int64_t rows, int64_t columns) {
  return pass_all(frame, rows, columns, [&](int64_t first, int64_t last) {
    return all_finite(a + first * columns, (last - first) * columns);
  });
}

// out <- a; false when it holds NaN or Inf
template <class T>
bool copy_finite(const Frame& frame, const T* a, T* out, int64_t rows, int64_t columns) {
  return pass_all(frame, rows, columns, [&](int64_t first, int64_t last) {
    bool finite = true;
    for (int64_t i = first; i < last; i++) {
      finite = all_finite(a + i * columns, columns) && finite;
      put(out + i * columns, a + i * columns, columns);
    }
    return finite;
  });
}

// out <- the named triangle of a, its diagonal real; false when it holds NaN or Inf
template <class T>
bool copy_finite_hermitian(const Frame& frame, const T* a, T* out, int64_t n, bool upper) {
  return pass_all(frame, n, n, [&](int64_t first, int64_t last) {
    bool finite = true;
    for (int64_t i = first; i < last; i++) {
      const int64_t begin = upper ? i : 0, end = upper ? n : i + 1;
      T* row = out + i * n;
      put(row + begin, a + i * n + begin, end - begin);
      row[i] = T(std::real(row[i]));
      finite = all_finite(row + begin, end - begin) && finite;
    }
    return finite;
  });
}

template <class T>
void fetch(const T* a, int64_t stride, int64_t rows, int64_t columns) {
  constexpr int64_t LINE = std::max<int64_t>(1, 64 / sizeof(T));
  for (int64_t i = 0; i < rows; i++)
    for (int64_t j = 0; j < columns; j += LINE) __builtin_prefetch(a + i * stride + j);
}

// out (columns x rows) <- a^H, a being rows x columns, on the calling thread; false when it holds NaN or Inf. stride and ld: from a row
// to the next.
template <class T>
bool turn_block(const T* a, int64_t stride, int64_t rows, int64_t columns, T* out, int64_t ld) {
  constexpr int64_t EDGE = Tile<T>::EDGE, PAGE = 4096 / int64_t(sizeof(T));
  // rows that are pages apart share a set of the cache: they are written in pieces of several lines
  const bool at_once = stride % PAGE && ld % PAGE;
  const auto is_wide = [](int64_t height, int64_t width) { return !is_complex<T> && height >= TURN_LEAST && width >= TURN_LEAST; };
  if constexpr (!is_complex<T>)
    if (at_once && is_wide(rows, columns)) return turn_wide(a, stride, rows, columns, out, ld);
  bool finite = true;
  Tile<T> tile;
  for (int64_t j = 0; j < columns; j += EDGE)
    for (int64_t i = 0; i < rows; i += EDGE) {
      const int64_t height = std::min(EDGE, rows - i), width = std::min(EDGE, columns - j);
      const T* from = a + i * stride + j;
      // the next pieces are pages apart, which no hardware foresees
      if (i + 2 * EDGE <= rows) fetch(from + EDGE * stride, stride, EDGE, width);
      if (is_wide(height, width)) {
        if constexpr (!is_complex<T>) finite = turn_wide(from, stride, height, width, tile.at[0], EDGE + Tile<T>::STEP) && finite;
      } else {
        tile.read(from, stride, height, width);
        for (int64_t c = 0; c < width; c++) finite = all_finite(tile.at[c], height) && finite;
      }
      tile.write(out + j * ld + i, ld, width, height);
    }
  return finite;
}

// out (count x rows, its rows `ld` apart) <- the first `count` rows of a^H, a being rows x columns; false when these hold NaN or Inf
template <class T>
bool turn(const Frame& frame, const T* a, T* out, int64_t rows, int64_t columns, int64_t count, int64_t ld) {
  constexpr int64_t EDGE = Tile<T>::EDGE;
  return pass_all(frame, (count + EDGE - 1) / EDGE, EDGE * rows, [&](int64_t first, int64_t last) {
    const int64_t j = first * EDGE;
    return turn_block(a + j, columns, rows, std::min(count, last * EDGE) - j, out + j * ld, ld);
  });
}

template <class T>
bool turn(const Frame& frame, const T* a, T* out, int64_t rows, int64_t columns, int64_t count) {
  return turn(frame, a, out, rows, columns, count, rows);
}

template <class T>
bool turn(const Frame& frame, const T* a, T* out, int64_t rows, int64_t columns) {
  return turn(frame, a, out, rows, columns, columns);
}

// Tiles (i, j) with j <= i of a matrix of order n, body(i, j, rows, columns): long and short rows take turns.
template <class T, class Body>
void lower_tiles(const Frame& frame, int64_t n, const Body& body) {
  constexpr int64_t EDGE = Tile<T>::EDGE;
  const int64_t tiles = (n + EDGE - 1) / EDGE;
  pass(frame, tiles, EDGE * (n / 2 + 1), [&](int64_t first, int64_t last) {
    for (int64_t t = first; t < last; t++) {
      const int64_t i = (t % 2 ? tiles - 1 - t / 2 : t / 2) * EDGE;
      for (int64_t j = 0; j <= i; j += EDGE) body(i, j, std::min(EDGE, n - i), std::min(EDGE, n - j));
    }
  });
}

// a <- a^H, in place
template <class T>
void turn(const Frame& frame, T* a, int64_t n) {
  lower_tiles<T>(frame, n, [&](int64_t i, int64_t j, int64_t rows, int64_t columns) {
    if constexpr (is_complex<T>) {
      Tile<T> low, high;
      low.read(a + i * n + j, n, rows, columns);
      high.read(a + j * n + i, n, columns, rows);
      low.write(a + j * n + i, n, columns, rows);
      high.write(a + i * n + j, n, rows, columns);
    } else {
      constexpr int64_t EDGE = Tile<T>::EDGE;
      T low[EDGE * EDGE];
      turn_block(a + i * n + j, n, rows, columns, low, EDGE);
      if (i != j) turn_block(a + j * n + i, n, columns, rows, a + i * n + j, n);
      for (int64_t c = 0; c < columns; c++) put(a + (j + c) * n + i, low + c * EDGE, rows);
    }
  });
}

// The other triangle <- the adjoint of the named one, the diagonal <- its real part
template <class T>
void mirror(const Frame& frame, T* a, int64_t n, bool upper) {
  lower_tiles<T>(frame, n, [&](int64_t i, int64_t j, int64_t rows, int64_t columns) {
    Tile<T> tile;
    if (i == j) {
      for (int64_t r = i; r < i + rows; r++) {
        a[r * (n + 1)] = T(std::real(a[r * (n + 1)]));
        for (int64_t c = i; c < r; c++) {
          T &low = a[r * n + c], &high = a[c * n + r];
          (upper ? low : high) = conjugated(upper ? high : low);
        }
      }
    } else if (upper) {
      tile.read(a + j * n + i, n, columns, rows);
      tile.write(a + i * n + j, n, rows, columns);
    } else {
      tile.read(a + i * n + j, n, rows, columns);
      tile.write(a + j * n + i, n, columns, rows);
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
