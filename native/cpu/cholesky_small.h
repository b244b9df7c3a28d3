// Cholesky of many small matrices, for one instruction set. Included once for each, after simd.h.
//
// R is the real scalar, P how many make an element: 1 real, 2 complex.
//
// Every path below subtracts l(i,k) conj(l(j,k)) from a(i,j) for k = 0, 1, ..., in this order, and
// then multiplies by 1/l(j,j). So all give the same bits, and which one runs may depend on the
// number of matrices.

namespace lapwing {
namespace {
namespace LAPWING_ISA {

// x <- sqrt(x), returns 1/sqrt(x), which is positive and finite just when the pivot x was.
template <class R, int P>
LAPWING_INLINE Vec<R> root(Element<R, P>& x) {
  x.re = sqrt(x.re);
  if constexpr (P == 2) x.im = Vec<R>{};
  return 1 / x.re;
}

template <class R>
constexpr unsigned ALL_GOOD = (1u << LANES<R>)-1;

// info <- the first bad pivot, and NaN into the matrices that have one. inverse: 1/l(j,j), by lanes.
template <class R>
__attribute__((noinline)) void mark_bad(const Vec<R>* inverse, R* out, int32_t* info, int64_t count, int64_t n,
                                        int64_t size) {
  for (int64_t m = 0; m < count; m++) {
    int64_t j = 0;
    while (j < n && is_good<R>(inverse[j][m])) j++;
    if (j == n) continue;
    info[m] = int32_t(j + 1);
    fill_nan(out + m * size, size);
  }
}

// ---- n known to the compiler: the whole triangle in registers ------------------------------------

// Matrices one after another.
template <class R, int SIZE>
struct Spaced {
  R* first;
  LAPWING_INLINE R* operator[](int m) const { return first + m * SIZE; }
};

template <class R, int P, int N, bool UPPER>
LAPWING_INLINE void factor_fixed(const R* a, R* out, int32_t* info) {
  constexpr int W = LANES<R>, K = CHUNK<R>, SIZE = N * N * P, CHUNKS = (SIZE + K - 1) / K;
  Element<R, P> l[N][N];
  const Spaced<const R, SIZE> from = {a};
  const Spaced<R, SIZE> to = {out};

  // A matrix is a flat run of scalars; the last chunk of it overlaps the one before.
#pragma GCC unroll 64
  for (int c = 0; c < CHUNKS; c++) {
    const int first = c * K + K < SIZE ? c * K : SIZE - K;
    Vec<R> v[1][K];
    bool needed = false;
#pragma GCC unroll 4
    for (int e = 0; e < K; e++) {
      const int row = (first + e) / P / N, column = (first + e) / P % N;
      needed |= UPPER ? column >= row : column <= row;
    }
    if (!needed) continue;
    read_chunks<R, 1>(v, from, first);
#pragma GCC unroll 4
    for (int e = 0; e < K; e++) {
      const int row = (first + e) / P / N, column = (first + e) / P % N;
      Element<R, P>& x = UPPER ? l[column][row] : l[row][column];
      if ((first + e) % P == 0)
        x.re = v[0][e];
      else if constexpr (P == 2)
        x.im = v[0][e];
    }
  }

  Vec<R> inverse[N];
  unsigned good = ALL_GOOD<R>;
#pragma GCC unroll 8
  for (int j = 0; j < N; j++) {
    inverse[j] = root(l[j][j]);
    good &= positive_finite(inverse[j]);
#pragma GCC unroll 8
    for (int i = j + 1; i < N; i++) scale(l[i][j], inverse[j]);
#pragma GCC unroll 8
    for (int i = j + 1; i < N; i++)
#pragma GCC unroll 8
      for (int k = j + 1; k <= i; k++) subtract(l[i][k], l[i][j], l[k][j]);
  }

#pragma GCC unroll 64
  for (int c = 0; c < CHUNKS; c++) {
    const int first = c * K + K < SIZE ? c * K : SIZE - K;
    Vec<R> v[1][K];
#pragma GCC unroll 4
    for (int e = 0; e < K; e++) {
      const int row = (first + e) / P / N, column = (first + e) / P % N;
      const Element<R, P>& x = UPPER ? l[column][row] : l[row][column];
      if (UPPER ? column < row : column > row)
        v[0][e] = Vec<R>{};
      else if ((first + e) % P == 0)
        v[0][e] = x.re;
      else if constexpr (P == 2)
        v[0][e] = x.im;
    }
    write_chunks<R, 1>(v, to, first);
  }

  for (int m = 0; m < W; m++) info[m] = 0;
  if (__builtin_expect(good != ALL_GOOD<R>, 0)) mark_bad<R>(inverse, out, info, W, N, SIZE);
}

template <class R, int P, int N, bool UPPER>
__attribute__((noinline)) void batch_fixed(const R* a, R* out, int32_t* info, int64_t count) {
  constexpr int W = LANES<R>, SIZE = N * N * P;
  while (count > 0) {
    const int64_t group = std::min<int64_t>(count, W);
    R block[W * SIZE];
    int32_t block_info[W];
    const bool part = group < W;
    if (part)  // the last group is filled up with copies of its last matrix
      for (int64_t m = 0; m < W; m++)
        __builtin_memcpy(block + m * SIZE, a + std::min(m, group - 1) * SIZE, SIZE * sizeof(R));
    factor_fixed<R, P, N, UPPER>(part ? block : a, part ? block : out, part ? block_info : info);
    if (part) {
      __builtin_memcpy(out, block, group * SIZE * sizeof(R));
      __builtin_memcpy(info, block_info, group * sizeof(int32_t));
    }
    a += group * SIZE, out += group * SIZE, info += group, count -= group;
  }
}

template <class R, int P>
void batch_one(const R* a, R* out, int32_t* info, int64_t count) {
  for (int64_t m = 0; m < count; m++) {
    const R pivot = a[m * P];
    const bool good = is_good(pivot);
    info[m] = !good;
    fill_nan(out + m * P, P);
    if (good) out[m * P] = std::sqrt(pivot);
    if (good && P == 2) out[m * P + 1] = 0;
  }
}

// ---- any n, matrices across lanes ----------------------------------------------------------------

// The lower triangle by rows; the four rows of a block row have one length.
LAPWING_INLINE int64_t row_offset(int64_t i) {
  const int64_t block = i / 4;
  return 8 * block * (block + 1) + (i % 4) * (4 * block + 4);
}

// Register tiles: as many accumulators as leave room for the operands.
template <int P>
constexpr int TILE_ROWS = LAPWING_REGISTERS == 32 || P == 1 ? 4 : 2;
template <int P>
constexpr int TILE_COLUMNS = LAPWING_REGISTERS == 32 && P == 1 ? 4 : 2;
// Chunks of a matrix that fill a vector.
constexpr int LINE = LAPWING_VECTOR / 16;

// Moves G chunks of a row between the matrices and the triangle s. EDGE: some are across the diagonal.
template <class R, int P, bool UPPER>
struct Reader {
  const R* p[LANES<R>];
  Vec<R>* s;

  template <int G, bool EDGE>
  void move(int64_t row, int64_t first, int64_t n) const {
    Vec<R> v[G][CHUNK<R>];
    read_chunks<R, G>(v, p, row * n * P + first);
    Vec<R>* line = s + P * row_offset(row) + first;
#pragma GCC unroll 16
    for (int c = 0; c < G * CHUNK<R>; c++) {
      const int64_t i = (first + c) / P;
      if (!UPPER)
        line[c] = v[c / CHUNK<R>][c % CHUNK<R>];  // elements past the diagonal land in rows that are written later
      else if (!EDGE || i >= row)
        s[P * (row_offset(i) + row) + (first + c) % P] = v[c / CHUNK<R>][c % CHUNK<R>];
    }
  }
  void skip(int64_t, int64_t, int64_t, int64_t) const {}
};

template <class R, int P, bool UPPER>
struct Writer {
  R* p[LANES<R>];
  const Vec<R>* s;

  template <int G, bool EDGE>
  void move(int64_t row, int64_t first, int64_t n) const {
    static const Vec<R> zero = {};
    Vec<R> v[G][CHUNK<R>];
    const Vec<R>* line = s + P * row_offset(row) + first;
#pragma GCC unroll 16
    for (int c = 0; c < G * CHUNK<R>; c++) {
      const int64_t i = (first + c) / P;
      const Vec<R>* x = UPPER ? s + P * (row_offset(i) + row) + (first + c) % P : line + c;
      if (EDGE) x = (UPPER ? i < row : i > row) ? &zero : x;
      v[c / CHUNK<R>][c % CHUNK<R>] = *x;
    }
    write_chunks<R, G>(v, p, row * n * P + first);
  }
  // Zero outside the triangle, in whole vectors. What is too much falls on the row written next.
  void skip(int64_t row, int64_t first, int64_t last, int64_t n) const {
    constexpr int W = LANES<R>, K = CHUNK<R>;
    if (first >= last) return;
    for (int m = 0; m < W; m++) {
      R* to = p[m] + row * n * P;
      if (n * P >= W)
        for (int64_t i = first; i < last; i += W) store(to + i, Vec<R>{});
      else
        for (int64_t i = first; i < last; i += K) store_chunk(to + i, Chunk<R>{});
    }
  }
};

// Shows mover the triangle by rows, and a row by vectors: a cache line is touched once, for matrices
// 4096 bytes apart share a set of the first-level cache. The last piece of a row overlaps the one before.
template <class R, int P, bool UPPER, class Mover>
__attribute__((noinline)) void walk(const Mover& mover, int64_t n) {
  const int64_t width = n * P;
  const int64_t step = width >= LANES<R> ? LANES<R> : CHUNK<R>;
  for (int64_t row = 0; row < n; row++) {
    const int64_t begin = UPPER ? row * P : 0, end = UPPER ? width : (row + 1) * P;
    int64_t first = begin / step * step;
    if (UPPER) mover.skip(row, 0, first, n);
    for (; first < end; first += step) {
      const int64_t at = std::min(first, width - step);
      if (step == CHUNK<R>)
        mover.template move<1, true>(row, at, n);
      else if (UPPER ? at >= begin : at + step <= end)
        mover.template move<LINE, false>(row, at, n);
      else
        mover.template move<LINE, true>(row, at, n);
    }
    if (!UPPER) mover.skip(row, first, width, n);
  }
}

// X <- (X - X' L'^H) L^-H for M rows x and C columns from c on, L' and X' being the columns before c.
template <class R, int P, int M, int C>
LAPWING_INLINE void solve_tile(Vec<R>* x, int64_t dx, const Vec<R>* l, int64_t dl, int64_t c, const Vec<R>* inverse) {
  Element<R, P> t[M][C];
#pragma GCC unroll 4
  for (int i = 0; i < M; i++)
#pragma GCC unroll 4
    for (int j = 0; j < C; j++) t[i][j] = get<R, P>(x + i * dx + P * (c + j));
  for (int64_t k = 0; k < c; k++) {
    Element<R, P> b[C];
#pragma GCC unroll 4
    for (int j = 0; j < C; j++) b[j] = get<R, P>(l + j * dl + P * k);
#pragma GCC unroll 4
    for (int i = 0; i < M; i++) {
      const Element<R, P> a = get<R, P>(x + i * dx + P * k);
#pragma GCC unroll 4
      for (int j = 0; j < C; j++) subtract<R, P>(t[i][j], a, b[j]);
    }
  }
#pragma GCC unroll 4
  for (int j = 0; j < C; j++) {
#pragma GCC unroll 4
    for (int k = 0; k < j; k++) {
      const Element<R, P> b = get<R, P>(l + j * dl + P * (c + k));
#pragma GCC unroll 4
      for (int i = 0; i < M; i++) subtract<R, P>(t[i][j], t[i][k], b);
    }
#pragma GCC unroll 4
    for (int i = 0; i < M; i++) {
      scale<R, P>(t[i][j], inverse[c + j]);
      put<R, P>(x + i * dx + P * (c + j), t[i][j]);
    }
  }
}

// L L^H <- X - X' X'^H for the M x M tile on the diagonal at row r; returns the good lanes.
template <class R, int P, int M>
LAPWING_INLINE unsigned factor_tile(Vec<R>* x, int64_t dx, int64_t r, Vec<R>* inverse) {
  Element<R, P> t[M][M];
#pragma GCC unroll 4
  for (int i = 0; i < M; i++)
#pragma GCC unroll 4
    for (int j = 0; j <= i; j++) t[i][j] = get<R, P>(x + i * dx + P * (r + j));
  for (int64_t k = 0; k < r; k++) {
    Element<R, P> a[M];
#pragma GCC unroll 4
    for (int i = 0; i < M; i++) {
      a[i] = get<R, P>(x + i * dx + P * k);
#pragma GCC unroll 4
      for (int j = 0; j <= i; j++) subtract<R, P>(t[i][j], a[i], a[j]);
    }
  }
  unsigned good = ALL_GOOD<R>;
#pragma GCC unroll 4
  for (int j = 0; j < M; j++) {
    inverse[r + j] = root<R, P>(t[j][j]);
    good &= positive_finite(inverse[r + j]);
    put<R, P>(x + j * dx + P * (r + j), t[j][j]);
#pragma GCC unroll 4
    for (int i = j + 1; i < M; i++) {
      scale<R, P>(t[i][j], inverse[r + j]);
      put<R, P>(x + i * dx + P * (r + j), t[i][j]);
#pragma GCC unroll 4
      for (int k = j + 1; k <= i; k++) subtract<R, P>(t[i][k], t[i][j], t[k][j]);
    }
  }
  return good;
}

// M rows of L from row r on.
template <class R, int P, int M>
__attribute__((noinline)) unsigned factor_rows(Vec<R>* s, int64_t r, Vec<R>* inverse) {
  constexpr int C = TILE_COLUMNS<P>;
  Vec<R>* x = s + P * row_offset(r);
  const int64_t dx = P * (r / 4 * 4 + 4);
  for (int64_t c = 0; c < r; c += C)
    solve_tile<R, P, M, C>(x, dx, s + P * row_offset(c), P * (c / 4 * 4 + 4), c, inverse);
  return factor_tile<R, P, M>(x, dx, r, inverse);
}

// Up to LANES<R> matrices at once. An idle lane repeats the last matrix.
template <class R, int P, bool UPPER>
__attribute__((noinline)) void factor_lanes(const R* a, R* out, int32_t* info, int64_t count, int64_t n) {
  constexpr int W = LANES<R>, M = TILE_ROWS<P>;
  Vec<R>* inverse = static_cast<Vec<R>*>(scratch((n + P * row_offset((n + 3) / 4 * 4) + W) * sizeof(Vec<R>)));
  Vec<R>* s = inverse + n;

  Reader<R, P, UPPER> reader;
  reader.s = s;
  for (int64_t m = 0; m < W; m++) reader.p[m] = a + std::min(m, count - 1) * n * n * P;
  walk<R, P, UPPER>(reader, n);

  unsigned good = ALL_GOOD<R>;
  int64_t r = 0;
  for (; r + M <= n; r += M) good &= factor_rows<R, P, M>(s, r, inverse);
  if constexpr (M == 4) {
    if (n - r == 3) good &= factor_rows<R, P, 3>(s, r, inverse);
    if (n - r == 2) good &= factor_rows<R, P, 2>(s, r, inverse);
  }
  if (n - r == 1) good &= factor_rows<R, P, 1>(s, r, inverse);

  Writer<R, P, UPPER> writer;
  writer.s = s;
  for (int64_t m = 0; m < W; m++) writer.p[m] = out + std::min(m, count - 1) * n * n * P;
  walk<R, P, UPPER>(writer, n);
  for (int64_t m = 0; m < count; m++) info[m] = 0;
  if (good != ALL_GOOD<R>) mark_bad<R>(inverse, out, info, count, n, n * n * P);
}

// ---- one matrix at a time, its columns across lanes: for matrices too large, or too few -----------

// Tile of the factor: rows, and vectors of columns.
template <class R, int P>
constexpr int BAND_VECTORS = LAPWING_REGISTERS == 16 && P == 2 ? 1 : 2;
template <class R, int P>
constexpr int BAND = std::min(LAPWING_REGISTERS / 4 / P, BAND_VECTORS<R, P>* LANES<R>);

// U = L^H is kept by rows, so that the lanes run along a row of U. Left of its diagonal is garbage,
// which stays in its own lanes and is never broadcast.
template <class R, int P>
struct Band {
  R* u;
  int64_t stride, imag;  // from a row to the next, from real to imaginary parts

  LAPWING_INLINE Element<R, P> row(int64_t i, int64_t j) const {
    const Vec<R>* p = reinterpret_cast<const Vec<R>*>(u + i * stride + j);
    if constexpr (P == 1)
      return {*p};
    else
      return {*p, *reinterpret_cast<const Vec<R>*>(u + i * stride + imag + j)};
  }
  LAPWING_INLINE void set_row(int64_t i, int64_t j, const Element<R, P>& x) const {
    *reinterpret_cast<Vec<R>*>(u + i * stride + j) = x.re;
    if constexpr (P == 2) *reinterpret_cast<Vec<R>*>(u + i * stride + imag + j) = x.im;
  }
  LAPWING_INLINE Element<R, P> same(int64_t i, int64_t j) const {
    if constexpr (P == 1)
      return {broadcast<R>(u[i * stride + j])};
    else
      return {broadcast<R>(u[i * stride + j]), broadcast<R>(u[i * stride + imag + j])};
  }

  // Rows r .. r+M-1, V vectors of columns from c on: U <- L^-1 (A - L' U'). On the diagonal L comes
  // out of the same tile; then the result is the first bad pivot, or 0.
  template <int M, int V, bool DIAGONAL>
  LAPWING_INLINE int64_t tile(int64_t r, int64_t c, int64_t n, R* inverse) const {
    constexpr int W = LANES<R>;
    Element<R, P> t[M][V];
#pragma GCC unroll 8
    for (int i = 0; i < M; i++)
#pragma GCC unroll 2
      for (int v = 0; v < V; v++) t[i][v] = row(r + i, c + v * W);
    for (int64_t k = 0; k < r; k++) {
      Element<R, P> b[V];
#pragma GCC unroll 2
      for (int v = 0; v < V; v++) b[v] = row(k, c + v * W);
#pragma GCC unroll 8
      for (int i = 0; i < M; i++) {
        const Element<R, P> a = same(k, r + i);
#pragma GCC unroll 2
        for (int v = 0; v < V; v++) subtract<R, P>(t[i][v], b[v], a);
      }
    }
#pragma GCC unroll 8
    for (int k = 0; k < M; k++) {
      R pivot = 1;
      if (DIAGONAL) {
        if (r + k >= n) break;  // rows that only fill up the tile
        // The pivot and its row go through memory: that is how a lane gets to all others.
#pragma GCC unroll 2
        for (int v = 0; v < V; v++) set_row(r + k, c + v * W, t[k][v]);
        pivot = u[(r + k) * stride + r + k];
        if (!is_good(pivot)) return r + k + 1;
        pivot = std::sqrt(pivot);
        inverse[k] = 1 / pivot;
      }
#pragma GCC unroll 2
      for (int v = 0; v < V; v++) {
        scale<R, P>(t[k][v], broadcast<R>(inverse[k]));
        set_row(r + k, c + v * W, t[k][v]);
      }
      if (DIAGONAL) {
        u[(r + k) * stride + r + k] = pivot;
        if (P == 2) u[(r + k) * stride + imag + r + k] = 0;
      }
#pragma GCC unroll 8
      for (int i = k + 1; i < M; i++) {
        const Element<R, P> a = same(r + k, r + i);
#pragma GCC unroll 2
        for (int v = 0; v < V; v++) subtract<R, P>(t[i][v], t[k][v], a);
      }
    }
    return 0;
  }

  // The row of scalars q of the columns of A: real and imaginary parts are rows of their own.
  LAPWING_INLINE R* line(int64_t q) const { return u + q / P * stride + q % P * imag; }

  void read_upper(const R* a, int64_t n) const {
    for (int64_t i = 0; i < n; i++)
      for (int p = 0; p < P; p++)
        for (int64_t j = i; j < n; j++) line(i * P + p)[j] = a[(i * n + j) * P + p];
  }
  void write_upper(R* a, int64_t n) const {
    for (int64_t i = 0; i < n; i++) {
      std::fill_n(a + i * n * P, i * P, R(0));
      for (int p = 0; p < P; p++)
        for (int64_t j = i; j < n; j++) a[(i * n + j) * P + p] = line(i * P + p)[j];
    }
  }

  // Transposed in blocks of K rows. A block may hold some of the other triangle, which is garbage to us.
  void read_lower(const R* a, int64_t n) const {
    constexpr int K = CHUNK<R>;
    for (int64_t i = 0; i < n; i += K) {
      const int64_t blocks = i + K <= n ? std::min((i + K) * P + K - 1, n * P) / K * K : 0;
      for (int64_t q = 0; q < blocks; q += K) {
        Chunk<R> v[K];
#pragma GCC unroll 4
        for (int e = 0; e < K; e++) v[e] = load_chunk(a + (i + e) * n * P + q);
        transpose_chunks(v);
#pragma GCC unroll 4
        for (int e = 0; e < K; e++) store_chunk(line(q + e) + i, v[e]);
      }
      for (int64_t j = i; j < std::min(i + K, n); j++)
        for (int64_t q = blocks; q < (j + 1) * P; q++) line(q)[j] = a[j * n * P + q];
    }
  }
  void write_lower(R* a, int64_t n) const {
    constexpr int K = CHUNK<R>;
    for (int64_t i = 0; i < n; i += K) {
      const int64_t blocks = i + K <= n ? (i + 1) * P / K * K : 0;
      for (int64_t q = 0; q < blocks; q += K) {
        Chunk<R> v[K];
#pragma GCC unroll 4
        for (int e = 0; e < K; e++) v[e] = load_chunk(line(q + e) + i);
        transpose_chunks(v);
#pragma GCC unroll 4
        for (int e = 0; e < K; e++) store_chunk(a + (i + e) * n * P + q, v[e]);
      }
      for (int64_t j = i; j < std::min(i + K, n); j++) {
        for (int64_t q = blocks; q < (j + 1) * P; q++) a[j * n * P + q] = line(q)[j];
        std::fill_n(a + (j * n + j + 1) * P, (n - j - 1) * P, R(0));
      }
    }
  }
};

template <class R, int P>
__attribute__((noinline)) int32_t factor_band(const R* a, R* out, int64_t n, bool upper) {
  constexpr int W = LANES<R>, M = BAND<R, P>, V = BAND_VECTORS<R, P>, PAD = std::max(M, W);
  const int64_t columns = (n + PAD - 1) / PAD * PAD, rows = (n + M - 1) / M * M;
  // An odd number of vectors to a row spreads a column over all sets of the cache.
  const int64_t stride = (P * columns / W | 1) * W;
  const Band<R, P> band = {static_cast<R*>(scratch(rows * stride * sizeof(R))), stride, columns};
  upper ? band.read_upper(a, n) : band.read_lower(a, n);
  R inverse[M] = {};
  for (int64_t r = 0; r < n; r += M) {
    int64_t c = r / W * W, bad = 0;
    if (c + V * W <= columns)
      bad = band.template tile<M, V, true>(r, c, n, inverse), c += V * W;
    else if constexpr (V == 2 && M <= W)
      bad = band.template tile<M, 1, true>(r, c, n, inverse), c += W;
    if (bad) {
      fill_nan(out, n * n * P);
      return int32_t(bad);
    }
    for (; c + V * W <= columns; c += V * W) band.template tile<M, V, false>(r, c, n, inverse);
    if (V == 2 && c < columns) band.template tile<M, 1, false>(r, c, n, inverse);
  }
  upper ? band.write_upper(out, n) : band.write_lower(out, n);
  return 0;
}

// ---- the choice ----------------------------------------------------------------------------------

// Measured on Sapphire Rapids (AVX-512, 2026-11): a full group is as fast as its matrices one by one at
// n = 128; a part of a group must be the larger, the larger n is.
template <class R, int P>
bool use_lanes(int64_t n, int64_t group) {
  if (n * P < CHUNK<R> || n > LANES_LIMIT) return false;
  return group * 4 >= LANES<R> * (n <= 24 ? 1 : n <= 64 ? 2 : 3);
}

template <class R, int P, bool UPPER>
void batch(const R* a, R* out, int32_t* info, int64_t count, int64_t n) {
  if (n == 0) return (void)std::fill_n(info, count, 0);
  if (n == 1) return batch_one<R, P>(a, out, info, count);
  if constexpr (LAPWING_FIXED >= 4) {
    if (n == 2) return batch_fixed<R, P, 2, UPPER>(a, out, info, count);
    if (n == 3) return batch_fixed<R, P, 3, UPPER>(a, out, info, count);
    if (n == 4) return batch_fixed<R, P, 4, UPPER>(a, out, info, count);
  }
  if constexpr (LAPWING_FIXED >= 8 && P == 1) {
    if (n == 5) return batch_fixed<R, P, 5, UPPER>(a, out, info, count);
    if (n == 6) return batch_fixed<R, P, 6, UPPER>(a, out, info, count);
    if (n == 7) return batch_fixed<R, P, 7, UPPER>(a, out, info, count);
    if (n == 8) return batch_fixed<R, P, 8, UPPER>(a, out, info, count);
  }
  const int64_t size = n * n * P;
  while (count > 0) {
    const int64_t group = std::min<int64_t>(count, LANES<R>);
    if (use_lanes<R, P>(n, group))
      factor_lanes<R, P, UPPER>(a, out, info, group, n);
    else
      for (int64_t m = 0; m < group; m++) info[m] = factor_band<R, P>(a + m * size, out + m * size, n, UPPER);
    a += group * size, out += group * size, info += group, count -= group;
  }
}

template <class R, int P>
void batch_either(const R* a, R* out, int32_t* info, int64_t count, int64_t n, bool upper) {
  upper ? batch<R, P, true>(a, out, info, count, n) : batch<R, P, false>(a, out, info, count, n);
}

}  // namespace LAPWING_ISA
}  // namespace
}  // namespace lapwing
