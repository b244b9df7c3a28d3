// One matrix in the memory of a thread, its rows in whole vectors, for one instruction set. Included after simd.h.

namespace lapwing {
namespace {
namespace LAPWING_ISA {

// One matrix wherever it is, in reals: each element is spread over a vector.
template <class R, int P>
struct Scalars {
  const R* x;
  int64_t down, right, imag;  // from a row to the next, from a column to the next, from a real part to its imaginary one

  LAPWING_INLINE const R* at(int64_t i, int64_t j) const { return x + i * down + j * right; }
  LAPWING_INLINE Element<R, P> get(int64_t i, int64_t j) const {
    if constexpr (P == 1)
      return {broadcast(*at(i, j))};
    else
      return {broadcast(*at(i, j)), broadcast(at(i, j)[imag])};
  }
  LAPWING_INLINE Scalars from(int64_t i, int64_t j) const { return {at(i, j), down, right, imag}; }
  LAPWING_INLINE Scalars turned() const { return {x, right, down, imag}; }
  LAPWING_INLINE Scalars backwards(int64_t rows, int64_t columns) const {
    return {at(rows - 1, columns - 1), -down, -right, imag};
  }
  LAPWING_INLINE Scalars upside_down(int64_t rows) const { return {at(rows - 1, 0), -down, right, imag}; }
};

// One matrix whose rows are whole vectors: column c is a vector of columns. The imaginary parts of a row are `imag` behind.
template <class R, int P>
struct Lines {
  R* x;
  int64_t down, imag;

  LAPWING_INLINE R* at(int64_t i, int64_t c) const { return x + i * down + c * LANES<R>; }
  LAPWING_INLINE Element<R, P> get(int64_t i, int64_t c) const {
    if constexpr (P == 1)
      return {load(at(i, c))};
    else
      return {load(at(i, c)), load(at(i, c) + imag)};
  }
  LAPWING_INLINE void set(int64_t i, int64_t c, const Element<R, P>& value) const {
    store(at(i, c), value.re);
    if constexpr (P == 2) store(at(i, c) + imag, value.im);
  }
  LAPWING_INLINE Lines from(int64_t i, int64_t c) const { return {at(i, c), down, imag}; }
  LAPWING_INLINE Lines upside_down(int64_t rows) const { return {at(rows - 1, 0), -down, imag}; }
  LAPWING_INLINE Scalars<R, P> scalars() const { return {x, down, 1, imag}; }
};

// Reals from a row to the next, for rows of `columns`: whole vectors, and an odd number of them, so that a column is spread over all
// sets of the cache.
template <class R, int P>
LAPWING_INLINE int64_t line_of(int64_t columns) {
  constexpr int W = LANES<R>;
  return (P * ((columns + W - 1) / W) | 1) * W;
}

// A matrix in memory from `memory` on, which moves behind it.
template <class R, int P>
LAPWING_INLINE Lines<R, P> take(R*& memory, int64_t rows, int64_t columns) {
  constexpr int W = LANES<R>;
  const int64_t line = line_of<R, P>(columns);
  const Lines<R, P> lines = {memory, line, (columns + W - 1) / W * W};
  memory += rows * line;
  return lines;
}

// One row of `columns` elements, zeros behind them up to a whole vector
template <class R, int P>
LAPWING_INLINE void read_line(const Lines<R, P>& to, int64_t i, const R* from, int64_t columns) {
  constexpr int W = LANES<R>;
  R *re = to.at(i, 0), *im = re + to.imag;
  if constexpr (P == 1)
    std::copy_n(from, columns, re);
  else
    for (int64_t j = 0; j < columns; j++) re[j] = from[2 * j], im[j] = from[2 * j + 1];
  for (int64_t j = columns; j % W; j++) {
    re[j] = 0;
    if constexpr (P == 2) im[j] = 0;
  }
}
template <class R, int P>
LAPWING_INLINE void write_line(const Lines<R, P>& from, int64_t i, R* to, int64_t columns) {
  const R *re = from.at(i, 0), *im = re + from.imag;
  if constexpr (P == 1)
    std::copy_n(re, columns, to);
  else
    for (int64_t j = 0; j < columns; j++) to[2 * j] = re[j], to[2 * j + 1] = im[j];
}

template <class R, int P>
LAPWING_INLINE void clear_line(const Lines<R, P>& x, int64_t i, int64_t vectors) {
  for (int64_t c = 0; c < vectors; c++) x.set(i, c, real<R, P>(Vec<R>{}));
}

// to <- the transpose of a block of whole vectors, rows x columns
template <class R>
LAPWING_INLINE void transpose_block(const R* from, int64_t down, R* to, int64_t to_down, int64_t rows, int64_t columns) {
  constexpr int W = LANES<R>, G = LAPWING_VECTOR / 16, K = CHUNK<R>;
  for (int64_t i = 0; i < rows; i += W) {
    const R* p[W];
    for (int r = 0; r < W; r++) p[r] = from + (i + r) * down;
    for (int64_t j = 0; j < columns; j += W) {
      Vec<R> v[G][K];
      read_chunks<R, G>(v, p, j);
#pragma GCC unroll 16
      for (int c = 0; c < W; c++) store(to + (j + c) * to_down + i, v[c / K][c % K]);
    }
  }
}
template <class R, int P>
LAPWING_INLINE void transpose_lines(const Lines<R, P>& from, const Lines<R, P>& to, int64_t rows, int64_t columns) {
  transpose_block<R>(from.x, from.down, to.x, to.down, rows, columns);
  if constexpr (P == 2) transpose_block<R>(from.x + from.imag, from.down, to.x + to.imag, to.down, rows, columns);
}

template <class R, int P>
using Scalar = std::conditional_t<P == 2, std::complex<R>, R>;

template <class R, int P>
LAPWING_INLINE Scalar<R, P> scalar_at(const Lines<R, P>& x, int64_t i, int64_t j) {
  const R* p = x.x + i * x.down + j;
  if constexpr (P == 1)
    return *p;
  else
    return {*p, p[x.imag]};
}
template <class R, int P>
LAPWING_INLINE Element<R, P> spread(Scalar<R, P> x) {
  if constexpr (P == 1)
    return {broadcast(x)};
  else
    return {broadcast(x.real()), broadcast(x.imag())};
}

// x y, without the check for infinities that a complex product has
template <class R, int P>
LAPWING_INLINE Scalar<R, P> times(Scalar<R, P> x, Scalar<R, P> y) {
  if constexpr (P == 1)
    return x * y;
  else
    return {x.real() * y.real() - x.imag() * y.imag(), x.real() * y.imag() + x.imag() * y.real()};
}
// 1 / x
template <class R, int P>
Scalar<R, P> inverse_of(Scalar<R, P> x) {
  return R(1) / x;
}

template <class R>
LAPWING_INLINE Mask<R> lane_numbers() {
  Mask<R> lanes;
#pragma GCC unroll 16
  for (int i = 0; i < LANES<R>; i++) lanes[i] = i;
  return lanes;
}
// The sum of all lanes, in each of them
template <class R, int HALF = LANES<R> / 2>
LAPWING_INLINE Vec<R> sum_lanes(Vec<R> x) {
  if constexpr (HALF == 0)
    return x;
  else
    return sum_lanes<R, HALF / 2>(x + __builtin_shuffle(x, lane_numbers<R>() ^ broadcast_int<R>(HALF)));
}
// The largest and the least of all lanes, in each of them
template <class R, int HALF = LANES<R> / 2>
LAPWING_INLINE Vec<R> largest_lane(Vec<R> x) {
  if constexpr (HALF == 0)
    return x;
  else
    return largest_lane<R, HALF / 2>(larger<R>(x, __builtin_shuffle(x, lane_numbers<R>() ^ broadcast_int<R>(HALF))));
}
template <class R, int HALF = LANES<R> / 2>
LAPWING_INLINE Mask<R> least_lane(Mask<R> x) {
  if constexpr (HALF == 0) {
    return x;
  } else {
    const Mask<R> other = __builtin_shuffle(x, lane_numbers<R>() ^ broadcast_int<R>(HALF));
    return least_lane<R, HALF / 2>(x < other ? x : other);
  }
}

}  // namespace LAPWING_ISA
}  // namespace
}  // namespace lapwing
