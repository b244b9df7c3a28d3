// Products of one tile with a few vectors, for one instruction set: included after simd.h, as often as that.
//
// A group of vectors is stored row by row, two registers a row: two times LANES real columns, or LANES complex ones with
// their real parts in the first register and their imaginary parts in the second.

namespace lapwing {
namespace {
namespace LAPWING_ISA {

// rows (or columns) of the tile that are taken at a time: their sums fill half of the registers
constexpr int STRIPE = LAPWING_REGISTERS / 4;

template <class R, int PARTS>
struct Row {
  Vec<R> first, second;
};

template <class R, int PARTS>
LAPWING_INLINE Row<R, PARTS> load_row(const R* p) {
  return {load(p), load(p + LANES<R>)};
}

// y <- y + a x, or conj(a) x
template <class R, int PARTS, bool CONJUGATE>
LAPWING_INLINE void add_multiple(Row<R, PARTS>& y, const R* a, const Row<R, PARTS>& x) {
  const Vec<R> re = broadcast(a[0]);
  y.first += re * x.first;
  y.second += re * x.second;
  if constexpr (PARTS == 2) {
    const Vec<R> im = broadcast(CONJUGATE ? -a[1] : a[1]);
    y.first -= im * x.second;
    y.second += im * x.first;
  }
}

// COUNT rows of Y <- Y + T X, where element k of row u of T lies at t[u * down + k * along]; `depth` elements a row. A tile is
// summed by itself before it is added: one chain over a whole row would round three times as much at n = 4000.
template <class R, int PARTS, bool CONJUGATE, int COUNT>
LAPWING_INLINE void add_rows(const R* t, int64_t down, int64_t along, int64_t depth, const R* x, R* y) {
  constexpr int WIDTH = 2 * LANES<R>;
  Row<R, PARTS> sum[COUNT];
#pragma GCC unroll 8
  for (int u = 0; u < COUNT; u++) sum[u] = {broadcast(R(0)), broadcast(R(0))};
  for (int64_t k = 0; k < depth; k++) {
    const Row<R, PARTS> row = load_row<R, PARTS>(x + k * WIDTH);
#pragma GCC unroll 8
    for (int u = 0; u < COUNT; u++) add_multiple<R, PARTS, CONJUGATE>(sum[u], t + u * down + k * along, row);
  }
#pragma GCC unroll 8
  for (int u = 0; u < COUNT; u++) {
    const Row<R, PARTS> before = load_row<R, PARTS>(y + u * WIDTH);
    store(y + u * WIDTH, before.first + sum[u].first);
    store(y + u * WIDTH + LANES<R>, before.second + sum[u].second);
  }
}

template <class R, int PARTS, bool CONJUGATE>
void add_product(const R* t, int64_t down, int64_t along, int64_t count, int64_t depth, const R* x, R* y) {
  constexpr int WIDTH = 2 * LANES<R>;
  int64_t i = 0;
  for (; i + STRIPE <= count; i += STRIPE)
    add_rows<R, PARTS, CONJUGATE, STRIPE>(t + i * down, down, along, depth, x, y + i * WIDTH);
  for (; i < count; i++) add_rows<R, PARTS, CONJUGATE, 1>(t + i * down, down, along, depth, x, y + i * WIDTH);
}

// Y_rows <- Y_rows + T X_columns and Y_columns <- Y_columns + T^H X_rows
template <class R, int PARTS>
void add_tile(const R* t, int64_t ld, int64_t rows, int64_t columns, const R* x_columns, R* y_rows, const R* x_rows,
              R* y_columns) {
  add_product<R, PARTS, false>(t, ld, PARTS, rows, columns, x_columns, y_rows);
  add_product<R, PARTS, true>(t, PARTS, ld, columns, rows, x_rows, y_columns);
}

}  // namespace LAPWING_ISA
}  // namespace
}  // namespace lapwing
