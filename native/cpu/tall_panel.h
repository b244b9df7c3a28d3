// The passes over a tall matrix for one instruction set, a panel of rows at a time. Included by levels.h.

namespace lapwing {
namespace {
namespace LAPWING_ISA {

constexpr int TALL_I = LAPWING_REGISTERS >= 32 ? 8 : 4;  // accumulators are TALL_I x 2 vectors
static_assert(TALL_BLOCK % TALL_I == 0, "the packed squares are read in pieces of TALL_I columns");

// Two vectors of rows, transposed: x[k] holds column k of all of them.
template <class R>
using Group = Vec<R> (*)[2];

template <class R>
LAPWING_INLINE void read_group(const R* panel, int64_t ld, int64_t columns, Group<R> x) {
  constexpr int V = LANES<R>, G = LAPWING_VECTOR / 16, K = CHUNK<R>;
  for (int half = 0; half < 2; half++) {
    const R* row[V];
    for (int i = 0; i < V; i++) row[i] = panel + (half * V + i) * ld;
    for (int64_t j = 0; j < columns; j += V) {
      Vec<R> v[G][K];
      read_chunks<R, G>(v, row, j);
      for (int g = 0; g < G; g++)
        for (int e = 0; e < K; e++) x[j + g * K + e][half] = v[g][e];
    }
  }
}

template <class R>
LAPWING_INLINE void write_group(R* panel, int64_t ld, int64_t columns, const Vec<R> (*x)[2]) {
  constexpr int V = LANES<R>, G = LAPWING_VECTOR / 16, K = CHUNK<R>;
  for (int half = 0; half < 2; half++) {
    R* row[V];
    for (int i = 0; i < V; i++) row[i] = panel + (half * V + i) * ld;
    for (int64_t j = 0; j < columns; j += V) {
      Vec<R> v[G][K];
      for (int g = 0; g < G; g++)
        for (int e = 0; e < K; e++) v[g][e] = x[j + g * K + e][half];
      write_chunks<R, G>(v, row, j);
    }
  }
}

// acc <- acc -+ the first columns of x times the packed square, whose rows are TALL_BLOCK long
template <class R, bool SUBTRACT>
LAPWING_INLINE void add_products(Vec<R> (&acc)[TALL_I][2], const Vec<R> (*x)[2], const R* square, int64_t count) {
  for (int64_t k = 0; k < count; k++) {
    const Vec<R> x0 = SUBTRACT ? -x[k][0] : x[k][0], x1 = SUBTRACT ? -x[k][1] : x[k][1];
#pragma GCC unroll 8
    for (int c = 0; c < TALL_I; c++) {
      const Vec<R> r = broadcast(square[k * TALL_BLOCK + c]);
      acc[c][0] = fma(x0, r, acc[c][0]);
      acc[c][1] = fma(x1, r, acc[c][1]);
    }
  }
}

// X <- X F^-1; the diagonal of F is inverted
template <class R>
void solve_group(Group<R> x, const R* packed, int64_t columns) {
  for (int64_t j = 0; j < columns; j += TALL_I) {
    const R* square = packed + tall_block_start(j / TALL_BLOCK) + j % TALL_BLOCK;
    Vec<R> acc[TALL_I][2];
#pragma GCC unroll 8
    for (int c = 0; c < TALL_I; c++) acc[c][0] = x[j + c][0], acc[c][1] = x[j + c][1];
    add_products<R, true>(acc, x, square, j);
    const R* diagonal = square + j * TALL_BLOCK;
#pragma GCC unroll 8
    for (int c = 0; c < TALL_I; c++) {
      const Vec<R> by = broadcast(diagonal[c * TALL_BLOCK + c]);
      for (int h = 0; h < 2; h++) x[j + c][h] = acc[c][h] = acc[c][h] * by;
#pragma GCC unroll 8
      for (int d = c + 1; d < TALL_I; d++) {
        const Vec<R> r = broadcast(-diagonal[c * TALL_BLOCK + d]);
        for (int h = 0; h < 2; h++) acc[d][h] = fma(acc[c][h], r, acc[d][h]);
      }
    }
  }
}

// Y <- X P
template <class R>
void multiply_group(const Vec<R> (*x)[2], Group<R> y, const R* packed, int64_t columns) {
  for (int64_t j = 0; j < columns; j += TALL_I) {
    const R* square = packed + j / TALL_BLOCK * columns * TALL_BLOCK + j % TALL_BLOCK;
    Vec<R> acc[TALL_I][2] = {};
    add_products<R, false>(acc, x, square, columns);
    for (int c = 0; c < TALL_I; c++) y[j + c][0] = acc[c][0], y[j + c][1] = acc[c][1];
  }
}

// G <- G + P^T P for one tile, over the rows of a panel
template <int WIDTH>
LAPWING_INLINE void gram_tile(const double* panel, int64_t rows, int64_t ld, int64_t i, int64_t j, double* gram, int64_t ldg) {
  constexpr int V = LANES<double>;
  VecD acc[TALL_I][WIDTH] = {};
  for (int64_t r = 0; r < rows; r++) {
    const double *left = panel + r * ld + i, *right = panel + r * ld + j;
    VecD b[WIDTH];
#pragma GCC unroll 2
    for (int w = 0; w < WIDTH; w++) b[w] = load(right + w * V);
#pragma GCC unroll 8
    for (int c = 0; c < TALL_I; c++) {
      const VecD a = broadcast(left[c]);
#pragma GCC unroll 2
      for (int w = 0; w < WIDTH; w++) acc[c][w] = fma(a, b[w], acc[c][w]);
    }
  }
  for (int c = 0; c < TALL_I; c++)
    for (int w = 0; w < WIDTH; w++) {
      double* at = gram + (i + c) * ldg + j + w * V;
      store(at, load(at) + acc[c][w]);
    }
}

inline void gram_panel(const double* panel, int64_t rows, int64_t ld, int64_t columns, double* gram, int64_t ldg) {
  constexpr int V = LANES<double>;
  for (int64_t i = 0; i < columns; i += TALL_I) {
    int64_t j = i / V * V;
    for (; j + 2 * V <= columns; j += 2 * V) gram_tile<2>(panel, rows, ld, i, j, gram, ldg);
    for (; j < columns; j += V) gram_tile<1>(panel, rows, ld, i, j, gram, ldg);
  }
}

template <class R>
LAPWING_INLINE void read_row(const TallPass<R>& pass, const R* noise, int64_t row, R* to) {
  const R* from = pass.from + row * pass.columns;
  if (!noise) {
    std::memcpy(to, from, sizeof(R) * size_t(pass.columns));
    return;
  }
  for (int64_t j0 = 0; j0 < pass.columns; j0 += 64) {
    const uint64_t signs = tall_signs(row, j0);
    const int64_t width = std::min<int64_t>(64, pass.columns - j0);
    for (int64_t j = 0; j < width; j++) to[j0 + j] = from[j0 + j] + (signs >> j & 1 ? noise[j0 + j] : -noise[j0 + j]);
  }
}

// Asks for `count` rows that will be read soon: while one panel is worked on the next is on its way.
template <class R>
LAPWING_INLINE void ask_for(const R* rows, int64_t count, int64_t columns) {
  const char* from = reinterpret_cast<const char*>(rows);
  for (int64_t byte = 0; byte < int64_t(sizeof(R)) * count * columns; byte += 64) __builtin_prefetch(from + byte, 0, 2);
}

// Rows [first, last) of the pass; gram (padded x padded) is added to.
template <class R>
void tall_rows(const TallPass<R>& pass, const TallPacked<R>& packed, int64_t first, int64_t last, double* gram) {
  constexpr int64_t V = 2 * LANES<R>;
  constexpr bool same = sizeof(R) == sizeof(double);
  const int64_t columns = pass.columns, width = packed.padded, ld = width + 8;
  const int64_t narrow = (columns + TALL_BLOCK - 1) / TALL_BLOCK * TALL_BLOCK;
  const bool plain = !pass.factor && !pass.product && !pass.scale && !pass.noise;
  if constexpr (same)
    if (plain && columns % TALL_BLOCK == 0 && columns <= TALL_DIRECT) {
      for (int64_t row = first; row < last; row += TALL_ROWS)
        gram_panel(pass.from + row * columns, std::min(TALL_ROWS, last - row), columns, columns, gram, width);
      return;
    }
  // panel, the same in double precision, two groups
  const size_t panel_bytes = sizeof(R) * TALL_ROWS * ld, wide_bytes = same ? 0 : sizeof(double) * TALL_ROWS * ld;
  char* room = static_cast<char*>(scratch(panel_bytes + wide_bytes + 2 * sizeof(R) * V * width));
  R* panel = reinterpret_cast<R*>(room + 2 * sizeof(R) * V * width);
  double* wide = reinterpret_cast<double*>(room + 2 * sizeof(R) * V * width + panel_bytes);
  auto x = reinterpret_cast<Group<R>>(room), y = x + width;
  std::memset(panel, 0, panel_bytes);
  for (int64_t row = first; row < last; row += TALL_ROWS) {
    const int64_t count = std::min(TALL_ROWS, last - row);
    for (int64_t i = 0; i < count; i++) read_row(pass, packed.noise, row + i, panel + i * ld);
    if (pass.factor || pass.product)
      for (int64_t i = 0; i < count; i += V) {  // rows past the last are zeros, or old: never written out
        const int64_t soon = row + TALL_ROWS + i;
        if (soon < last) ask_for(pass.from + soon * columns, std::min(V, last - soon), columns);
        read_group(panel + i * ld, ld, width, x);
        if (pass.factor)
          solve_group<R>(x, packed.square, narrow);
        else
          multiply_group<R>(x, y, packed.square, narrow);
        write_group<R>(panel + i * ld, ld, width, pass.factor ? x : y);
      }
    if (pass.scale)
      for (int64_t i = 0; i < count; i++)
        for (int64_t j = 0; j < columns; j++) panel[i * ld + j] = R(panel[i * ld + j] * pass.scale[j]);
    if (pass.to)
      for (int64_t i = 0; i < count; i++)
        std::memcpy(pass.to + (row + i) * columns, panel + i * ld, sizeof(R) * size_t(columns));
    if (!gram) continue;
    if constexpr (same) {
      gram_panel(panel, count, ld, narrow, gram, width);
    } else {
      for (int64_t i = 0; i < count; i++)
        for (int64_t j = 0; j < width; j++) wide[i * ld + j] = panel[i * ld + j];
      gram_panel(wide, count, ld, narrow, gram, width);
    }
  }
}

}  // namespace LAPWING_ISA
}  // namespace
}  // namespace lapwing
