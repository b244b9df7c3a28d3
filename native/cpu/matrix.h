// Small things done to a row-major matrix on the CPU: copies, transposes, NaN and Inf.
#pragma once
#include <algorithm>
#include <cmath>
#include <complex>
#include <cstdint>
#include <cstring>
#include <limits>

namespace lapwing {

template <class R>
inline R conjugated(R x) { return x; }
template <class R>
inline std::complex<R> conjugated(std::complex<R> x) { return std::conj(x); }

template <class T>
void fill_nan(T* out, int64_t count) {
  using Real = decltype(std::real(T()));
  auto* part = reinterpret_cast<Real*>(out);
  std::fill_n(part, count * int64_t(sizeof(T) / sizeof(Real)), std::numeric_limits<Real>::quiet_NaN());
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

// The order of the first leading minor with NaN or Inf in it
template <class T, class Read>
int64_t first_not_finite(const T* a, int64_t n, const Read& reads) {
  int64_t place = n;
  for (int64_t i = 0; i < n; i++)
    for (int64_t j = 0; j < n; j++)
      if (std::max(i, j) < place && reads(i, j) && !all_finite(a + i * n + j, 1)) place = std::max(i, j) + 1;
  return place;
}

// work <- the named triangle of a; false when it holds NaN or Inf
template <class T>
bool copy_finite_triangle(const T* a, T* work, int64_t n, bool upper) {
  using Real = decltype(std::real(T()));
  constexpr int64_t PARTS = sizeof(T) / sizeof(Real);
  bool finite = true;
  for (int64_t i = 0; i < n; i++) {
    const int64_t first = upper ? i : 0, last = upper ? n : i + 1;
    const T* from = a + i * n + first;
    if (work != a) std::memcpy(static_cast<void*>(work + i * n + first), from, sizeof(T) * size_t(last - first));
    auto* part = reinterpret_cast<const Real*>(from);
    Real sum = 0;
    for (int64_t k = 0; k < (last - first) * PARTS; k++) sum += part[k] * Real(0);
    finite = finite && sum == 0;
  }
  return finite;
}

constexpr int64_t TURN_BLOCK = 32;

// out (n x count) <- z^H, z being count x n
template <class T>
void transpose_conjugate(const T* z, T* out, int64_t count, int64_t n) {
  for (int64_t i0 = 0; i0 < n; i0 += TURN_BLOCK)
    for (int64_t j0 = 0; j0 < count; j0 += TURN_BLOCK)
      for (int64_t i = i0; i < std::min(n, i0 + TURN_BLOCK); i++)
        for (int64_t j = j0; j < std::min(count, j0 + TURN_BLOCK); j++) out[i * count + j] = conjugated(z[j * n + i]);
}

// a <- a^H, in place
template <class T>
void transpose_conjugate(T* a, int64_t n) {
  for (int64_t i0 = 0; i0 < n; i0 += TURN_BLOCK)
    for (int64_t j0 = 0; j0 <= i0; j0 += TURN_BLOCK)
      for (int64_t i = i0; i < std::min(n, i0 + TURN_BLOCK); i++)
        for (int64_t j = j0; j < std::min(i + 1, j0 + TURN_BLOCK); j++) {
          T x = conjugated(a[i * n + j]);
          a[i * n + j] = conjugated(a[j * n + i]);
          a[j * n + i] = x;
        }
}

// A tile on its way from rows to columns: memory is read and written along its rows, and only the tile across.
template <class T>
struct Tile {
  static constexpr int64_t EDGE = 32, STEP = 4;
  T at[EDGE][EDGE + STEP];

  // the tile <- from^H, or from^T
  template <bool CONJUGATE = true>
  void read(const T* from, int64_t stride, int64_t rows, int64_t columns) {
    int64_t i = 0;
    for (; i + STEP <= rows; i += STEP) {  // four rows at a time fill a short vector of each of the tile's
      const T* row[STEP] = {from + i * stride, from + (i + 1) * stride, from + (i + 2) * stride, from + (i + 3) * stride};
      for (int64_t j = 0; j < columns; j++)
        for (int64_t r = 0; r < STEP; r++) at[j][i + r] = CONJUGATE ? conjugated(row[r][j]) : row[r][j];
    }
    for (; i < rows; i++)
      for (int64_t j = 0; j < columns; j++) at[j][i] = CONJUGATE ? conjugated(from[i * stride + j]) : from[i * stride + j];
  }
  void write(T* to, int64_t stride, int64_t rows, int64_t columns) const {
    for (int64_t i = 0; i < rows; i++)
      if (columns == EDGE)
        std::memcpy(static_cast<void*>(to + i * stride), at[i], sizeof(T) * EDGE);
      else
        std::copy_n(at[i], columns, to + i * stride);
  }
};

// Rows [first, last) of out <- those of the Hermitian matrix whose named triangle is in a, or without conjugation the symmetric one.
// `first` is a multiple of the edge of a tile. out may be a.
template <bool CONJUGATE = true, class T>
void complete_hermitian(const T* a, T* out, int64_t n, bool upper, int64_t first, int64_t last) {
  constexpr int64_t EDGE = Tile<T>::EDGE;
  Tile<T> tile;
  for (int64_t i = first; i < last; i += EDGE) {
    const int64_t rows = std::min(EDGE, last - i);
    for (int64_t r = i; r < i + rows; r++) {
      const int64_t begin = upper ? r : 0, end = upper ? n : r + 1;
      if (out != a) std::memcpy(static_cast<void*>(out + r * n + begin), a + r * n + begin, sizeof(T) * size_t(end - begin));
      if (CONJUGATE) out[r * (n + 1)] = T(std::real(out[r * (n + 1)]));
      // in the tile on the diagonal
      for (int64_t c = upper ? i : r + 1; c < (upper ? r : i + rows); c++) out[r * n + c] = CONJUGATE ? conjugated(a[c * n + r]) : a[c * n + r];
    }
    for (int64_t j = upper ? 0 : i + rows; j < (upper ? i : n); j += EDGE) {
      const int64_t columns = std::min(EDGE, n - j);
      tile.template read<CONJUGATE>(a + j * n + i, n, columns, rows);
      tile.write(out + i * n + j, n, rows, columns);
    }
  }
}

}  // namespace lapwing
