// QR of one small real matrix, across the lanes of a vector. Compiled once per instruction set; see levels.h.

namespace lapwing {
namespace {
namespace LAPWING_ISA {

// The sum of the lanes, in each of them
template <class R, int HALF = LANES<R> / 2>
LAPWING_INLINE Vec<R> sum_lanes(Vec<R> x) {
  if constexpr (HALF == 0) {
    return x;
  } else {
    Mask<R> other;
#pragma GCC unroll 16
    for (int i = 0; i < LANES<R>; i++) other[i] = i ^ HALF;
    return sum_lanes<R, HALF / 2>(x + __builtin_shuffle(x, other));
  }
}

// One block of reflections: their vectors, `rows` long and `ld` apart, with zeros and ones in place; T of I - V T V^T.
template <class R>
struct Block {
  static constexpr int WIDTH = 4;
  R* v;
  int64_t ld, rows;
  R t[WIDTH][WIDTH];
};

// C columns <- (I - V T^T V^T) C
template <class R, int C>
LAPWING_INLINE void reflect_block(const Block<R>& block, R* c, int64_t ld) {
  constexpr int B = Block<R>::WIDTH, W = LANES<R>;
  Vec<R> sum[B][C] = {};
  for (int64_t i = 0; i < block.rows; i += W) {
    Vec<R> x[C];
#pragma GCC unroll 4
    for (int j = 0; j < C; j++) x[j] = load(c + j * ld + i);
#pragma GCC unroll 4
    for (int p = 0; p < B; p++) {
      const Vec<R> v = load(block.v + p * block.ld + i);
#pragma GCC unroll 4
      for (int j = 0; j < C; j++) sum[p][j] = fma(v, x[j], sum[p][j]);
    }
  }
  Vec<R> by[B][C];
#pragma GCC unroll 4
  for (int j = 0; j < C; j++) {
#pragma GCC unroll 4
    for (int p = 0; p < B; p++) sum[p][j] = sum_lanes<R>(sum[p][j]);
#pragma GCC unroll 4
    for (int p = 0; p < B; p++) {
      by[p][j] = Vec<R>{};
#pragma GCC unroll 4
      for (int q = 0; q <= p; q++) by[p][j] = fma(broadcast(-block.t[q][p]), sum[q][j], by[p][j]);
    }
  }
  for (int64_t i = 0; i < block.rows; i += W) {
    Vec<R> x[C];
#pragma GCC unroll 4
    for (int j = 0; j < C; j++) x[j] = load(c + j * ld + i);
#pragma GCC unroll 4
    for (int p = 0; p < B; p++) {
      const Vec<R> v = load(block.v + p * block.ld + i);
#pragma GCC unroll 4
      for (int j = 0; j < C; j++) x[j] = fma(v, by[p][j], x[j]);
    }
#pragma GCC unroll 4
    for (int j = 0; j < C; j++) store(c + j * ld + i, x[j]);
  }
}

// a (column-major, m x columns, columns `ld` apart and padded with zeros to whole vectors): the first n columns <- R and below it
// the vectors of the reflections, the others <- Q^T times them. `room` takes 4 ld numbers. false: squares left the range.
template <class R>
bool qr_one(R* a, int64_t m, int64_t n, int64_t columns, int64_t ld, R* tau, R* room) {
  constexpr int B = Block<R>::WIDTH, W = LANES<R>;
  // squares of what is smaller lose digits
  constexpr R LEAST = std::numeric_limits<R>::min() / (std::numeric_limits<R>::epsilon() * std::numeric_limits<R>::epsilon());
  for (int64_t first = 0; first < n; first += B) {
    const int64_t width = std::min<int64_t>(B, n - first), start = first / W * W;
    Block<R> block = {room, ld, (m - start + W - 1) / W * W, {}};
    std::fill_n(room, B * ld, R(0));
    for (int64_t p = 0; p < width; p++) {
      const int64_t j = first + p;
      R *x = a + j * ld, *v = room + p * ld;
      Vec<R> squares = {};
      R rest = 0;
      int64_t i = j + 1;
      for (; i < m && i % W; i++) rest += x[i] * x[i];
      for (; i < m; i += W) {
        const Vec<R> y = load(x + i);
        squares = fma(y, y, squares);
      }
      rest += sum_lanes<R>(squares)[0];
      const R alpha = x[j], square = alpha * alpha + rest;
      if (rest == 0) {  // all zeros, unless their squares vanished
        if (std::any_of(x + j + 1, x + m, [](R y) { return y != 0; })) return false;
        tau[j] = 0;
        v[j - start] = 1;
        continue;
      }
      if (!(square > LEAST && square < std::numeric_limits<R>::max())) return false;
      const R beta = alpha > 0 ? -__builtin_sqrt(square) : __builtin_sqrt(square), by = 1 / (alpha - beta);
      tau[j] = (beta - alpha) / beta;
      x[j] = beta;
      v[j - start] = 1;
      for (i = j + 1; i < m; i++) v[i - start] = x[i] *= by;
      // the columns of the block that are left, and the products of its vectors
      R product[B] = {};
      for (int64_t q = 0; q < width; q++) {
        if (q == p) continue;
        const R* with = q < p ? room + q * ld : a + (first + q) * ld + start;
        Vec<R> dot = {};
        for (i = 0; i < block.rows; i += W) dot = fma(load(v + i), load(with + i), dot);
        product[q] = sum_lanes<R>(dot)[0];
        if (q < p) continue;
        R* to = a + (first + q) * ld + start;
        const Vec<R> less = broadcast(-tau[j] * product[q]);
        for (i = 0; i < block.rows; i += W) store(to + i, fma(less, load(v + i), load(to + i)));
      }
      block.t[p][p] = tau[j];
      for (int64_t q = 0; q < p; q++) {  // T(:, p) <- -tau T V^T v
        R sum = 0;
        for (int64_t k = q; k < p; k++) sum += block.t[q][k] * product[k];
        block.t[q][p] = -tau[j] * sum;
      }
    }
    int64_t c = first + width;
    for (; c + 4 <= columns; c += 4) reflect_block<R, 4>(block, a + c * ld + start, ld);
    for (; c < columns; c++) reflect_block<R, 1>(block, a + c * ld + start, ld);
  }
  return true;
}

// b <- Q b for one column, from what qr_one() left
template <class R>
void apply_q_one(const R* a, int64_t m, int64_t n, int64_t ld, const R* tau, R* b) {
  for (int64_t j = n - 1; j >= 0; j--) {
    const R* v = a + j * ld;
    Vec<R> dot = {};
    constexpr int W = LANES<R>;
    R sum = b[j];
    int64_t i = j + 1;
    for (; i < m && i % W; i++) sum += v[i] * b[i];
    const int64_t from = i;
    for (; i < m; i += W) dot = fma(load(v + i), load(b + i), dot);
    sum = tau[j] * (sum + sum_lanes<R>(dot)[0]);
    b[j] -= sum;
    for (i = j + 1; i < std::min(from, m); i++) b[i] -= sum * v[i];
    const Vec<R> less = broadcast(-sum);
    for (i = from; i < m; i += W) store(b + i, fma(less, load(v + i), load(b + i)));
  }
}

}  // namespace LAPWING_ISA
}  // namespace
}  // namespace lapwing
