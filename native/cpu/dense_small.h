// Factors of one large matrix on several threads, for one instruction set. Included once for each, after simd.h.
//
// R is the real scalar, P how many make an element: 1 real, 2 complex. Matrices are column-major, as LAPACK has them. Nearly all the
// work is C <- C + A B with the tile of C in registers: the lanes run along its columns, A is packed in strips of as many rows, and B
// lies in Lines, row by row.
#include "cpu/lu_panel.h"

namespace lapwing {
namespace {
namespace LAPWING_ISA {

// ---- transposes ------------------------------------------------------------------------------------------------------------

// out (columns x rows) <- the transpose of a (rows x columns), each at least a vector long; false when it holds NaN or Inf. The last
// vectors of a row may overlap those before.
template <class R>
bool turn_real(const R* a, int64_t ld, int64_t rows, int64_t columns, R* out, int64_t to_ld) {
  constexpr int W = LANES<R>, G = LAPWING_VECTOR / 16, K = CHUNK<R>;
  constexpr int64_t WIDE = 128 / int64_t(sizeof(R));  // two lines of the cache
  Vec<R> sum = {};
  for (int64_t j = 0; j < columns; j += WIDE)
    for (int64_t i = 0; i < rows; i += W) {
      const int64_t r = std::min(i, rows - W);
      const R* p[W];
      for (int e = 0; e < W; e++) p[e] = a + (r + e) * ld;
      // the next rows are pages apart, which no hardware foresees
      if (r + 3 * W <= rows)
        for (int e = 0; e < W; e++) {
          __builtin_prefetch(p[e] + 2 * W * ld + j);
          __builtin_prefetch(p[e] + 2 * W * ld + std::min(j + WIDE, columns) - 1);
        }
      for (int64_t q = j; q < std::min(j + WIDE, columns); q += W) {
        const int64_t c = std::min(q, columns - W);
        Vec<R> v[G][K];
        read_chunks<R, G>(v, p, c);
#pragma GCC unroll 16
        for (int e = 0; e < W; e++) {
          sum = fma(v[e / K][e % K], Vec<R>{}, sum);
          store(out + (c + e) * to_ld + r, v[e / K][e % K]);
        }
      }
    }
  return !any(sum != Vec<R>{});
}

// ---- products --------------------------------------------------------------------------------------------------------------

// Vectors in a column of the tile, and real numbers of B that each of them is multiplied by.
constexpr int TALL_BY = LAPWING_VECTOR == 16 && LAPWING_REGISTERS == 16 ? 2 : 3, WIDE_BY = LAPWING_REGISTERS == 32 ? 8 : 4;
template <class R, int P>
constexpr int64_t STRIP_ROWS = TALL_BY * LANES<R> / P;
template <int P>
constexpr int64_t STRIP_COLUMNS = WIDE_BY / P;
constexpr int64_t WIDEST_STRIP = 16;  // lines of B have zeros up to a multiple of this: a vector, a tile

constexpr int64_t rounded(int64_t x, int64_t to) { return (x + to - 1) / to * to; }

template <class R, int P>
int64_t packed_size(int64_t rows, int64_t depth) {
  return rounded(rows, STRIP_ROWS<R, P>) * depth * P;
}

// Which of the rows of a tile's column are meant: all of [0, rows), or those up to, or from, the diagonal.
enum class Part { ALL, UPPER, LOWER };

// C <- C + A B, a tile. P == 2: products with the real and the imaginary parts of B are summed apart, and joined in the end.
template <class R, int P>
LAPWING_INLINE void add_tile(int64_t depth, const R* a, const R* b, int64_t down, int64_t imag, R* c, int64_t ld, int64_t rows,
                             int64_t columns, Part part, int64_t diagonal) {
  constexpr int W = LANES<R>;
  Vec<R> sum[WIDE_BY][TALL_BY] = {};
  const R* b_imag = b + imag;
#pragma GCC unroll 8
  for (int q = 0; q < WIDE_BY / P; q++)
#pragma GCC unroll 4
    for (int v = 0; v < TALL_BY; v++) __builtin_prefetch(c + q * ld + v * W, 1);
  for (int64_t k = 0; k < depth; k++) {
    Vec<R> x[TALL_BY];
#pragma GCC unroll 4
    for (int v = 0; v < TALL_BY; v++) x[v] = load(a + v * W);
#pragma GCC unroll 8
    for (int q = 0; q < WIDE_BY; q++) {
      const Vec<R> y = broadcast(P == 1 ? b[q] : q % 2 ? b_imag[q / 2] : b[q / 2]);
#pragma GCC unroll 4
      for (int v = 0; v < TALL_BY; v++) sum[q][v] = fma(x[v], y, sum[q][v]);
    }
    a += TALL_BY * W, b += down, b_imag += down;
  }
  if constexpr (P == 2) {
    const Vec<R> sign = (lane_numbers<R>() & broadcast_int<R>(1)) ? broadcast(R(1)) : broadcast(R(-1));
#pragma GCC unroll 8
    for (int q = 0; q < WIDE_BY; q += 2)
#pragma GCC unroll 4
      for (int v = 0; v < TALL_BY; v++)
        sum[q / 2][v] = fma(__builtin_shuffle(sum[q + 1][v], lane_numbers<R>() ^ broadcast_int<R>(1)), sign, sum[q][v]);
  }
  if (rows >= STRIP_ROWS<R, P> && columns >= STRIP_COLUMNS<P> && part == Part::ALL) {
#pragma GCC unroll 8
    for (int q = 0; q < STRIP_COLUMNS<P>; q++)
#pragma GCC unroll 4
      for (int v = 0; v < TALL_BY; v++) store(c + q * ld + v * W, load(c + q * ld + v * W) + sum[q][v]);
    return;
  }
  R kept[WIDE_BY][TALL_BY * W];
#pragma GCC unroll 8
  for (int q = 0; q < STRIP_COLUMNS<P>; q++)
#pragma GCC unroll 4
    for (int v = 0; v < TALL_BY; v++) store(kept[q] + v * W, sum[q][v]);
  for (int64_t q = 0; q < std::min<int64_t>(columns, STRIP_COLUMNS<P>); q++) {
    const int64_t end = std::min(rows, STRIP_ROWS<R, P>), at = q + diagonal;
    const int64_t first = part == Part::LOWER ? std::max<int64_t>(0, at) : 0, last = part == Part::UPPER ? std::min(end, at + 1) : end;
    for (int64_t i = first * P; i < last * P; i++) c[q * ld + i] += kept[q][i];
  }
}

// C <- C + A B, or one triangle of that: `row` and `column` are where C begins in the matrix whose diagonal is meant. ld counts reals.
template <class R, int P>
__attribute__((noinline)) void add_product(const R* a, const Lines<R, P>& b, int64_t depth, R* c, int64_t ld, int64_t rows, int64_t columns,
                                           Part part = Part::ALL, int64_t row = 0, int64_t column = 0) {
  constexpr int64_t M = STRIP_ROWS<R, P>, N = STRIP_COLUMNS<P>;
  constexpr int64_t BYTES = 192 << 10;  // of A that stay in the second-level cache while B goes by
  const int64_t high = std::max(M, BYTES / int64_t(sizeof(R) * P) / std::max<int64_t>(depth, 1) / M * M);
  for (int64_t from = 0; from < rows; from += high)
    for (int64_t j = 0; j < columns; j += N)
      for (int64_t i = from; i < std::min(rows, from + high); i += M) {
        // the diagonal meets column q of the tile at its row q + diagonal
        const int64_t diagonal = (column + j) - (row + i), last = diagonal + std::min(N, columns - j) - 1;
        Part here = Part::ALL;
        if (part == Part::UPPER) {
          if (last < 0) continue;
          if (diagonal < M - 1) here = part;
        } else if (part == Part::LOWER) {
          if (diagonal > M - 1) continue;
          if (last > 0) here = part;
        }
        add_tile<R, P>(depth, a + i * depth * P, b.x + j, b.down, b.imag, c + i * P + j * ld, ld, rows - i, columns - j, here, diagonal);
      }
}

// to <- -A in strips, A being column-major
template <class R, int P>
void pack_columns(const R* a, int64_t ld, int64_t rows, int64_t depth, R* to) {
  constexpr int64_t M = STRIP_ROWS<R, P> * P;
  for (int64_t i = 0; i < rows * P; i += M) {
    const int64_t here = std::min(M, rows * P - i);
    for (int64_t k = 0; k < depth; k++, to += M) {
      const R* from = a + k * ld + i;
      if (here == M)
#pragma GCC unroll 4
        for (int v = 0; v < TALL_BY; v++) store(to + v * LANES<R>, -load(from + v * LANES<R>));
      else
        for (int64_t r = 0; r < M; r++) to[r] = r < here ? -from[r] : R(0);
    }
  }
}

// to <- SIGN A in strips for A = Y^T, or conj(Y^T), from Lines
template <class R, int P, bool CONJ, int SIGN = -1>
void pack_lines(const Lines<R, P>& y, int64_t rows, int64_t depth, R* to) {
  constexpr int64_t M = STRIP_ROWS<R, P>;
  constexpr R sign = SIGN;
  for (int64_t i = 0; i < rows; i += M) {
    const int64_t here = std::min(M, rows - i);
    for (int64_t k = 0; k < depth; k++, to += M * P) {
      const R* from = y.x + k * y.down + i;
      if constexpr (P == 1) {
        if (here == M)
#pragma GCC unroll 4
          for (int v = 0; v < TALL_BY; v++) store(to + v * LANES<R>, sign * load(from + v * LANES<R>));
        else
          for (int64_t r = 0; r < M; r++) to[r] = r < here ? sign * from[r] : R(0);
      } else {
        for (int64_t r = 0; r < M; r++) {
          to[2 * r] = r < here ? sign * from[r] : R(0);
          to[2 * r + 1] = r < here ? (CONJ ? -sign : sign) * from[y.imag + r] : R(0);
        }
      }
    }
  }
}

// ---- a block of columns on its way to Lines and back --------------------------------------------------------------------------

// x (rows x columns) <- the block of a column-major matrix at a, zeros behind its columns
template <class R, int P>
void read_block(const R* a, int64_t ld, int64_t rows, int64_t columns, const Lines<R, P>& x) {
  constexpr int W = LANES<R>;
  const int64_t end = rounded(columns, WIDEST_STRIP);
  int64_t high = 0, wide = 0;
  if constexpr (P == 1) {
    high = rows / W * W, wide = columns / W * W;
    transpose_block<R>(a, ld, x.x, x.down, wide, high);
  }
  for (int64_t i = 0; i < rows; i++)
    for (int64_t j = i < high ? wide : 0; j < end; j++)
      for (int part = 0; part < P; part++) x.x[i * x.down + part * x.imag + j] = j < columns ? a[j * ld + i * P + part] : R(0);
}
template <class R, int P>
void write_block(const Lines<R, P>& x, R* a, int64_t ld, int64_t rows, int64_t columns) {
  constexpr int W = LANES<R>;
  int64_t high = 0, wide = 0;
  if constexpr (P == 1) {
    high = rows / W * W, wide = columns / W * W;
    transpose_block<R>(x.x, x.down, a, ld, high, wide);
  }
  for (int64_t j = 0; j < columns; j++)
    for (int64_t i = j < wide ? high : 0; i < rows; i++)
      for (int part = 0; part < P; part++) a[j * ld + i * P + part] = x.x[i * x.down + part * x.imag + j];
}

template <class R, int P>
Lines<R, P> lines_for(R*& memory, int64_t rows, int64_t columns) {
  return take<R, P>(memory, rows, rounded(columns, WIDEST_STRIP));
}
template <class R, int P>
int64_t lines_room(int64_t rows, int64_t columns) {
  return rows * line_of<R, P>(rounded(columns, WIDEST_STRIP));
}

// Columns of a task: a few tasks for each thread, so that they end together.
inline int64_t task_columns(int64_t columns, int threads) {
  return std::clamp<int64_t>(rounded(columns / (4 * threads) + 1, WIDEST_STRIP), 32, 96);
}

// ---- P A = L U -----------------------------------------------------------------------------------------------------------------

// The exchanges of a panel as moves: row i of its block comes from row `from[i]`, and row out[k] behind the block from row out_from[k]
// of it.
struct Moves {
  static constexpr int64_t MOST = 256;
  int64_t count, outside;
  int32_t from[MOST], out[MOST], out_from[MOST];

  // Row first + i changed places with row pivots[first + i]
  void set(const int64_t* pivots, int64_t first, int64_t width) {
    count = width, outside = 0;
    for (int64_t i = 0; i < width; i++) from[i] = int32_t(first + i);
    for (int64_t i = 0; i < width; i++) {
      const int64_t other = pivots[first + i];
      if (other < first + width) {
        std::swap(from[i], from[other - first]);
        continue;
      }
      const int64_t k = std::find(out, out + outside, int32_t(other)) - out;
      if (k == outside) out[k] = out_from[k] = int32_t(other), outside++;
      std::swap(from[i], out_from[k]);
    }
  }
};

// While the columns behind a panel are updated, one thread already factors the next panel.
template <class R, int P>
struct LargeLu {
  typedef Scalar<R, P> T;
  R* a;
  int64_t n, ld;    // ld: reals from a column to the next
  int64_t* pivots;  // row i changed places with row pivots[i]
  int64_t width;    // of a panel
  R* packed[2];     // -L21 of a panel, and of the next
  Moves* moves[2];

  R* at(int64_t i, int64_t j) const { return a + i * P + j * ld; }

  static void exchange(R* x, R* y) {
    for (int part = 0; part < P; part++) std::swap(x[part], y[part]);
  }
  // Rows from `first` to `last` change places with their pivots in columns [begin, end)
  void exchange_rows(int64_t first, int64_t last, int64_t begin, int64_t end) const {
    for (int64_t j = begin; j < end; j++)
      for (int64_t i = first; i < last; i++)
        if (pivots[i] != i) exchange(at(i, j), at(pivots[i], j));
  }

  // x <- the rows of a block with their exchanges, in `columns` columns from c on; rows behind the block get theirs
  void read_exchanged(const Moves& move, int64_t c, int64_t columns, const Lines<R, P>& x, R* room) const {
    const int64_t depth = move.count;
    for (int64_t j = 0; j < columns; j += WIDEST_STRIP) {
      const int64_t here = std::min(WIDEST_STRIP, columns - j);
      for (int64_t q = 0; q < here; q++) {
        T *column = reinterpret_cast<T*>(at(0, c + j + q)), *to = reinterpret_cast<T*>(room) + q * depth;
        for (int64_t i = 0; i < depth; i++) to[i] = column[move.from[i]];
        for (int64_t k = 0; k < move.outside; k++) column[move.out[k]] = column[move.out_from[k]];
      }
      read_block<R, P>(room, depth * P, depth, here, {x.x + j, x.down, x.imag});
    }
  }

  // `columns` columns from c on: U12 <- L11^-1 A12, A22 <- A22 - L21 U12 for the columns [j, j + depth) of L. move: exchanges that
  // these columns have not seen.
  void update(int64_t j, int64_t depth, const R* l, int64_t c, int64_t columns, const Moves* move) const {
    R* memory = static_cast<R*>(scratch<2>(sizeof(R) * size_t(lines_room<R, P>(depth, columns) + WIDEST_STRIP * depth * P)));
    const Lines<R, P> x = lines_for<R, P>(memory, depth, columns);
    if (move)
      read_exchanged(*move, c, columns, x, memory);
    else
      read_block<R, P>(at(j, c), ld, depth, columns, x);
    const Scalars<R, P> l11 = {at(j, j), P, ld, 1};
    sweep<R, P, false>(l11, x, x, Scalars<R, P>{}, depth, rounded(columns, LANES<R>) / LANES<R>, SOLVE_ROWS);
    write_block<R, P>(x, at(j, c), ld, depth, columns);
    add_product<R, P>(l, x, depth, at(j + depth, c), ld, n - j - depth, columns);
  }

  // The columns [j, j + w), narrow ones at a time; then `l` <- -L21
  void factor_panel(int64_t j, int64_t w, R* l, Moves* move) const {
    constexpr int W = LANES<R>, NARROW = PANEL<R>;
    const int64_t rows = n - j, padded = rounded(rows, W);
    R* memory = static_cast<R*>(scratch<1>(sizeof(R) * size_t(panel_room<R, P>(rows) + 4 * W)));
    const Lines<R, P> p = take<R, P>(memory, NARROW, rows), strip = take<R, P>(memory, STRIP, rows);
    Mask<R>* open = reinterpret_cast<Mask<R>*>(memory);
    int32_t *row_at = reinterpret_cast<int32_t*>(memory + padded), *place_of = row_at + padded;
    for (int64_t s = 0; s < w; s += NARROW) {
      const int64_t narrow = std::min<int64_t>(NARROW, w - s), r = j + s, high = n - r;
      for (int64_t c = 0; c < narrow; c++) read_line<R, P>(p, c, at(r, r + c), high);
      int64_t found[NARROW];
      const Panel<R, P> panel = {p, strip, open, high};
      panel.factor(narrow, found);
      for (int64_t c = 0; c < narrow; c++) write_line<R, P>(p, c, at(r, r + c), high);
      for (int64_t i = 0; i < high; i++) row_at[i] = place_of[i] = int32_t(i);
      for (int64_t c = 0; c < narrow; c++) {
        const int32_t place = place_of[found[c]], other = row_at[c];
        row_at[place] = other, place_of[other] = place;
        pivots[r + c] = r + place;
      }
      exchange_rows(r, r + narrow, j, j + w);
      const int64_t rest = w - s - narrow;
      if (!rest) break;
      pack_columns<R, P>(at(r + narrow, r), ld, high - narrow, narrow, l);
      update(r, narrow, l, r + narrow, rest, nullptr);
    }
    if (j + w < n) pack_columns<R, P>(at(j + w, j), ld, n - j - w, w, l);
    move->set(pivots, j, w);
  }

  // Columns [begin, end) <- the exchanges of the rows from `first` on
  void exchange_all(int64_t first, int64_t begin, int64_t end) const {
    const int64_t rows = n - first;
    T* kept = static_cast<T*>(scratch<2>((sizeof(T) + sizeof(int32_t)) * size_t(rows)));
    int32_t* from = reinterpret_cast<int32_t*>(kept + rows);
    std::iota(from, from + rows, 0);
    for (int64_t i = 0; i < rows; i++) std::swap(from[i], from[pivots[first + i] - first]);
    for (int64_t j = begin; j < end; j++) {
      T* column = reinterpret_cast<T*>(at(first, j));
      std::copy_n(column, rows, kept);
      for (int64_t i = 0; i < rows; i++) column[i] = kept[from[i]];
    }
  }

  void factor(Team& team) const {
    factor_panel(0, std::min(width, n), packed[0], moves[0]);
    for (int64_t j = 0, turn = 0; j + width < n; j += width, turn ^= 1) {
      const int64_t next = j + width, w = std::min(width, n - next), behind = next + w, rest = n - behind;
      const int64_t wide = task_columns(rest, team.threads());
      team.run(1 + (rest + wide - 1) / wide, [&](int64_t task) {
        const int64_t c = task ? behind + (task - 1) * wide : next, columns = task ? std::min(wide, n - c) : w;
        update(j, width, packed[turn], c, columns, moves[turn]);
        if (!task) factor_panel(next, w, packed[turn ^ 1], moves[turn ^ 1]);
      });
    }
    // columns of L take part in the exchanges of the panels behind them
    team.run((n - 1) / width, [&](int64_t task) { exchange_all((task + 1) * width, task * width, (task + 1) * width); });
  }
};

template <class R, int P>
void large_lu(R* a, int64_t n, int64_t ld, int64_t* pivots, Team& team, int64_t width) {
  const int64_t size = rounded(packed_size<R, P>(n, width), 4096 / int64_t(sizeof(R)));
  const Pages memory = kept_pages_of(sizeof(R) * size_t(2 * size));
  R* packed = reinterpret_cast<R*>(memory.get());
  Moves moves[2];
  LargeLu<R, P>{a, n, ld * P, pivots, width, {packed, packed + size}, {moves, moves + 1}}.factor(team);
}

// ---- A = U^H U, or L L^H -------------------------------------------------------------------------------------------------------------

template <class R, int P>
struct LargeCholesky {
  typedef Scalar<R, P> T;
  R* a;
  int64_t n, ld;
  bool upper;      // of the column-major matrix
  int64_t width;
  Lines<R, P> y;   // U12, or L21^T, of a panel
  R* packed;       // the same in strips, for the rows of the product
  R* inverse;      // of the diagonal of a block

  R* at(int64_t i, int64_t j) const { return a + i * P + j * ld; }

  // The block on the diagonal from j on; 0, or the place of the pivot that is not positive
  int64_t factor_block(int64_t j, int64_t w) const {
    T* memory = static_cast<T*>(scratch<2>(sizeof(T) * size_t(2 * w * w)));
    // row-major here: the other triangle
    for (int64_t c = 0; c < w; c++) std::copy_n(reinterpret_cast<const T*>(at(j, j + c)), w, memory + c * w);
    int32_t info = 0;
    cholesky_batch<T>(memory, memory + w * w, &info, 1, w, !upper);
    if (info) return j + info;
    for (int64_t c = 0; c < w; c++) {
      const int64_t first = upper ? 0 : c, last = upper ? c + 1 : w;
      std::copy(memory + w * w + c * w + first, memory + w * w + c * w + last, reinterpret_cast<T*>(at(j + first, j + c)));
      const T by = inverse_of<R, P>(memory[w * w + c * w + c]);
      inverse[c * P] = std::real(by);
      if constexpr (P == 2) inverse[c * P + 1] = 0;
    }
    return 0;
  }

  // Columns (rows, where the lower triangle is meant) from c on: y <- U11^-H A12
  void solve(int64_t j, int64_t w, int64_t c, int64_t columns) const {
    const Lines<R, P> here = {y.x + c, y.down, y.imag};
    if (upper)
      read_block<R, P>(at(j, c), ld, w, columns, here);
    else
      for (int64_t k = 0; k < w; k++) read_line<R, P>(here, k, at(c, j + k), columns);
    const Scalars<R, P> l11 = upper ? Scalars<R, P>{at(j, j), ld, P, 1} : Scalars<R, P>{at(j, j), P, ld, 1};
    // U11^H is the conjugate of what is read; L21^T <- conj(L11)^-1 A21^T
    sweep<R, P, P == 2>(l11, here, here, Scalars<R, P>{inverse, P, 0, 1}, w, rounded(columns, LANES<R>) / LANES<R>, SOLVE_ROWS);
    if (upper)
      write_block<R, P>(here, at(j, c), ld, w, columns);
    else
      for (int64_t k = 0; k < w; k++) write_line<R, P>(here, k, at(c, j + k), columns);
  }

  int64_t factor(Team& team) const {
    int64_t status = factor_block(0, std::min(width, n));
    for (int64_t j = 0; !status && j + width < n; j += width) {
      const int64_t next = j + width, w = std::min(width, n - next), rest = n - next;
      constexpr int64_t M = STRIP_ROWS<R, P>;
      // pieces of whole strips and vectors: the strips begin at `next`, the lines of y at 0
      const int64_t piece = rounded(task_columns(rest, team.threads()), M * 16 / std::gcd<int64_t, int64_t>(M, 16));
      team.run((rest + piece - 1) / piece, [&](int64_t task) {
        const int64_t c = next + task * piece, columns = std::min(piece, n - c);
        solve(j, width, c, columns);
        const Lines<R, P> from = {y.x + c, y.down, y.imag};
        R* to = packed + (c - next) * width * P;
        upper ? pack_lines<R, P, true>(from, columns, width, to) : pack_lines<R, P, false>(from, columns, width, to);
        if (P == 2 && !upper)  // the columns of the product are conjugated instead of its rows
          for (int64_t k = 0; k < width; k++)
            for (int64_t i = 0; i < columns; i++) from.x[k * from.down + from.imag + i] *= -1;
      });
      const Part part = upper ? Part::UPPER : Part::LOWER;
      const int64_t behind = next + w, wide = task_columns(n - behind, team.threads()), tasks = (n - behind + wide - 1) / wide;
      const auto add = [&](int64_t c, int64_t columns, int64_t first, int64_t last) {
        const int64_t begin = next + (first - next) / M * M;  // a whole strip
        const Lines<R, P> from = {y.x + c, y.down, y.imag};
        add_product<R, P>(packed + (begin - next) * width * P, from, width, at(begin, c), ld, last - begin, columns, part, begin, c);
      };
      team.run(1 + tasks, [&](int64_t task) {
        if (!task) {
          add(next, w, next, upper ? next + w : n);
          status = factor_block(next, w);
          return;
        }
        // the longest columns first, so that the threads end together
        const int64_t c = behind + (upper ? tasks - task : task - 1) * wide, columns = std::min(wide, n - c);
        upper ? add(c, columns, next, c + columns) : add(c, columns, c, n);
      });
    }
    return status;
  }
};

// 0, or the place of the first pivot that is not positive
template <class R, int P>
int64_t large_cholesky(R* a, int64_t n, int64_t ld, bool upper, Team& team, int64_t width) {
  const int64_t lines = lines_room<R, P>(width, n), packed = packed_size<R, P>(n, width), page = 4096 / int64_t(sizeof(R));
  const Pages memory = kept_pages_of(sizeof(R) * size_t(rounded(lines, page) + rounded(packed, page) + width * P));
  R *first = reinterpret_cast<R*>(memory.get()), *second = first + rounded(lines, page), *third = second + rounded(packed, page);
  const Lines<R, P> y = lines_for<R, P>(first, width, n);
  return LargeCholesky<R, P>{a, n, ld * P, upper, width, y, second, third}.factor(team);
}

// to <- one over the elements of the diagonal; false: one of them is zero, or too small for that
template <class R, int P>
bool invert_pivots(const Scalars<R, P>& a, int64_t n, R* to) {
  bool good = true;
  for (int64_t i = 0; i < n; i++) {
    const R* p = a.at(i, i);
    Scalar<R, P> pivot;
    if constexpr (P == 2)
      pivot = {p[0], p[a.imag]};
    else
      pivot = p[0];
    const Scalar<R, P> by = inverse_of<R, P>(pivot);
    to[i * P] = std::real(by);
    if constexpr (P == 2) to[i * P + 1] = std::imag(by);
    good = good && all_finite(&by, 1);
  }
  return good;
}

// ---- the inverse from P A = L U ------------------------------------------------------------------------------------------------------

// X <- U^-1 L^-1, blocks of columns on their own: first L^-1, which begins at the diagonal, then U^-1 times that.
template <class R, int P>
struct LargeInverse {
  const R* a;  // L and U
  int64_t n, ld, width;
  R *x, *inverse;      // inverse: of U's diagonal
  R* packed;           // -L and -U in strips, block by block: what is below the diagonal, then what is above
  int64_t blocks = (n + width - 1) / width;

  const R* at(int64_t i, int64_t j) const { return a + i * P + j * ld; }
  R* out(int64_t i, int64_t j) const { return x + i * P + j * ld; }
  int64_t end(int64_t j) const { return std::min(n, j + width); }
  int64_t room() const { return packed_size<R, P>(n + STRIP_ROWS<R, P>, width); }  // of a block
  R* below(int64_t j) const { return packed + j / width * room(); }
  R* above(int64_t j) const { return below(j) + packed_size<R, P>(n - end(j), end(j) - j); }

  void pack(int64_t block) const {
    const int64_t j = block * width, w = end(j) - j;
    pack_columns<R, P>(at(end(j), j), ld, n - end(j), w, below(j));
    pack_columns<R, P>(at(0, j), ld, j, w, above(j));
  }

  void solve(int64_t block) const {
    const int64_t c = block * width, columns = end(c) - c, vectors = rounded(columns, LANES<R>) / LANES<R>;
    R* memory = static_cast<R*>(scratch<2>(sizeof(R) * size_t(lines_room<R, P>(width, columns))));
    const Lines<R, P> y = lines_for<R, P>(memory, width, columns);
    for (int64_t j = c; j < end(c); j++) {
      std::fill_n(out(0, j), n * P, R(0));
      *out(j, j) = 1;
    }
    for (int64_t j = c; j < n; j += width) {
      const int64_t w = end(j) - j;
      read_block<R, P>(out(j, c), ld, w, columns, y);
      sweep<R, P, false>(Scalars<R, P>{at(j, j), P, ld, 1}, y, y, Scalars<R, P>{}, w, vectors, SOLVE_ROWS);
      write_block<R, P>(y, out(j, c), ld, w, columns);
      add_product<R, P>(below(j), y, w, out(end(j), c), ld, n - end(j), columns);
    }
    for (int64_t j = (blocks - 1) * width; j >= 0; j -= width) {
      const int64_t w = end(j) - j;
      read_block<R, P>(out(j, c), ld, w, columns, y);
      const Triangle<R, P, Scalars<R, P>> u = {{at(j, j), P, ld, 1}, {inverse + j * P, P, 0, 1}, w, false};
      u.solve(y, vectors);
      write_block<R, P>(y, out(j, c), ld, w, columns);
      add_product<R, P>(above(j), y, w, out(0, c), ld, j, columns);
    }
  }
};

// false: an element of U's diagonal has no inverse
template <class R, int P>
bool large_inverse(const R* a, R* x, int64_t n, Team& team, int64_t width) {
  LargeInverse<R, P> job = {a, n, n * P, width, x, nullptr, nullptr};
  const int64_t strips = rounded(job.blocks * job.room(), 4096 / int64_t(sizeof(R)));
  const Pages memory = kept_pages_of(sizeof(R) * size_t(strips + n * P));
  job.packed = reinterpret_cast<R*>(memory.get()), job.inverse = job.packed + strips;
  if (!invert_pivots<R, P>({a, P, n * P, 1}, n, job.inverse)) return false;
  team.run(job.blocks, [&](int64_t block) { job.pack(block); });
  team.run(job.blocks, [&](int64_t block) { job.solve(block); });
  return true;
}

// ---- the inverse from A = U^H U, or L L^H --------------------------------------------------------------------------------------------

// X <- W^H W for W = L^-1, L being U^H where that is given. First blocks of columns of W on their own, then of X. Only the named triangle
// of X is right.
template <class R, int P>
struct LargePositiveInverse {
  static constexpr int64_t BLOCK = 96;  // whole strips and whole vectors, of any instruction set
  static_assert(BLOCK % STRIP_ROWS<R, P> == 0 && BLOCK % WIDEST_STRIP == 0);

  R* x;  // the factor, then sums, then the inverse
  int64_t n, ld;
  bool upper;              // of the column-major matrix
  R *diagonal, *inverse;   // the blocks on the diagonal of the factor, and one over their diagonal
  R *packed, *solved;      // strips of -L, then of W^H; the blocks of W
  int64_t blocks = (n + BLOCK - 1) / BLOCK;

  R* at(int64_t i, int64_t j) const { return x + i * P + j * ld; }
  int64_t end(int64_t block) const { return std::min(n, (block + 1) * BLOCK); }
  int64_t size(int64_t block) const { return end(block) - block * BLOCK; }
  static int64_t blocks_room(int64_t blocks) { return blocks * (blocks + 1) / 2; }  // on the diagonal and below
  static int64_t lines() { return lines_room<R, P>(BLOCK, BLOCK); }
  static int64_t strips() { return packed_size<R, P>(BLOCK, BLOCK); }
  // of block row i: strips for all rows before its end, which is where L^H and W^H end
  R* row_strips(int64_t i) const { return packed + blocks_room(i) * strips(); }
  // of block column j: what is below the diagonal
  R* column_strips(int64_t j) const { return packed + (blocks_room(blocks) - blocks_room(blocks - j)) * strips(); }
  Lines<R, P> block(int64_t i, int64_t j) const {
    R* memory = solved + (blocks_room(i) + j) * lines();
    return lines_for<R, P>(memory, BLOCK, BLOCK);
  }

  // Block column j of L on its way to strips
  void pack(int64_t j) const {
    const int64_t first = j * BLOCK, w = size(j), rest = n - end(j);
    for (int64_t c = 0; c < w; c++) std::copy_n(at(first, first + c), w * P, diagonal + (j * BLOCK + c) * BLOCK * P);
    if (!upper) return pack_columns<R, P>(at(end(j), first), ld, rest, w, column_strips(j));
    for (int64_t i = j + 1; i < blocks; i++) {
      const Lines<R, P> y = block(i, j);
      read_block<R, P>(at(first, i * BLOCK), ld, w, size(i), y);
      pack_lines<R, P, true>(y, size(i), w, column_strips(j) + (i - j - 1) * BLOCK * w * P);
    }
  }

  // Block column c of W
  void solve(int64_t c) const {
    const int64_t first = c * BLOCK, columns = size(c), vectors = rounded(columns, LANES<R>) / LANES<R>;
    for (int64_t j = first; j < end(c); j++) {
      std::fill_n(at(first, j), (n - first) * P, R(0));
      *at(j, j) = 1;
    }
    for (int64_t j = c; j < blocks; j++) {
      const int64_t from = j * BLOCK, w = size(j);
      const Lines<R, P> y = block(j, c);
      read_block<R, P>(at(from, first), ld, w, columns, y);
      R* const here = diagonal + from * BLOCK * P;
      const Scalars<R, P> by = {inverse + from * P, P, 0, 1};
      if (upper)
        sweep<R, P, P == 2>(Scalars<R, P>{here, BLOCK * P, P, 1}, y, y, by, w, vectors, SOLVE_ROWS);
      else
        sweep<R, P, false>(Scalars<R, P>{here, P, BLOCK * P, 1}, y, y, by, w, vectors, SOLVE_ROWS);
      add_product<R, P>(column_strips(j), y, w, at(end(j), first), ld, n - end(j), columns);
    }
  }

  // Block row i of W on its way to strips
  void turn(int64_t i) const {
    for (int64_t j = 0; j <= i; j++)
      pack_lines<R, P, true, 1>(block(i, j), size(j), size(i), row_strips(i) + j * BLOCK * size(i) * P);
  }

  // Block column c of X
  void multiply(int64_t c) const {
    const int64_t first = c * BLOCK, columns = size(c);
    for (int64_t j = first; j < end(c); j++) std::fill_n(at(upper ? 0 : first, j), (upper ? end(c) : n - first) * P, R(0));
    for (int64_t i = c; i < blocks; i++) {
      const int64_t begin = upper ? 0 : first, rows = upper ? end(c) : end(i) - first;
      add_product<R, P>(row_strips(i) + begin * size(i) * P, block(i, c), size(i), at(begin, first), ld, rows, columns,
                        upper ? Part::UPPER : Part::LOWER, begin, first);
    }
  }

  void invert(Team& team) const {
    for (int64_t i = 0; i < n; i++) {
      const Scalar<R, P> by = inverse_of<R, P>(*reinterpret_cast<const Scalar<R, P>*>(at(i, i)));
      inverse[i * P] = std::real(by);
      if constexpr (P == 2) inverse[i * P + 1] = 0;
    }
    team.run(blocks, [&](int64_t block) { pack(block); });
    team.run(blocks, [&](int64_t block) { solve(block); });
    team.run(blocks, [&](int64_t block) { turn(blocks - 1 - block); });
    team.run(blocks, [&](int64_t block) { multiply(block); });
  }
};

template <class R, int P>
void large_positive_inverse(R* x, int64_t n, bool upper, Team& team) {
  typedef LargePositiveInverse<R, P> Job;
  const int64_t blocks = (n + Job::BLOCK - 1) / Job::BLOCK, all = Job::blocks_room(blocks), page = 4096 / int64_t(sizeof(R));
  const int64_t strips = rounded(all * Job::strips(), page), lines = rounded(all * Job::lines(), page);
  const int64_t diagonal = rounded(blocks * Job::BLOCK * Job::BLOCK * P, page);
  const Pages memory = kept_pages_of(sizeof(R) * size_t(strips + lines + diagonal + n * P));
  R *packed = reinterpret_cast<R*>(memory.get()), *solved = packed + strips, *blocks_at = solved + lines;
  Job{x, n, n * P, upper, blocks_at, blocks_at + diagonal, packed, solved}.invert(team);
}

}  // namespace LAPWING_ISA
}  // namespace
}  // namespace lapwing
