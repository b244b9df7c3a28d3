// Systems, inverses, LU and determinants of many matrices up to 32 x 32, and somewhat larger ones where registers suffice:
// LW_LANES lanes per matrix, and several matrices per warp.
//
// Lane r holds the rows r, r + LANES, r + 2 LANES, ... in registers. What is broadcast through shared memory then serves
// several rows of several matrices at once, and it is that traffic which costs the time. With LW_K > 0 that many right-hand
// sides are solved for with an element per row; with LW_K = 0 a lane takes columns of its own, for any number of right-hand
// sides and for the inverse. A matrix is read whole before anything of it is written, and so is a column, so outputs may be
// inputs. Compiled for the exact LW_N = n.
#include "solve.cuh"

constexpr int N = LW_N;
constexpr int K = LW_K;
constexpr int R = (N + LANES - 1) / LANES;  // rows of a lane
constexpr int MATRICES = LW_THREADS / LANES;
typedef Stage<N * SIZE, N, unsigned> Rows;
typedef Stage<N * (K > 0 ? K : 1) * SIZE, 1, unsigned> Sides;

// ---- factors -----------------------------------------------------------------------------------------------------

constexpr int STEP = Rows::UNIT > SIZE ? Rows::UNIT / SIZE : 1;  // elements of one access
typedef Pack<T, STEP> Access;

// Of L L^H no more than L and its diagonal blocks is kept.
LW_INLINE constexpr bool is_kept(int s, int k) { return LW_FACTOR != 1 || k < LANES * (s + 1); }

// The rows of one lane, and what belongs to the pivots of those rows.
struct Row {
  T e[R][N];
  T pivot[R], inverse[R];
  int place[R];  // of the row among the pivots
  bool tiny;     // some pivot of the matrix is
};
typedef T Elements[R][K > 0 ? K : 1];

// P A = L U for few right-hand sides: they are eliminated along, and L is kept only for LW_KEEP.
constexpr bool FUSED = LW_FACTOR == 2 && LW_GIVE == 0 && K > 0;
constexpr int LINE = R * LANES + (FUSED ? (K + VEC - 1) / VEC * VEC : 0);  // elements of what is published of a column or row

// E = L L^H, column by column: each is published unscaled, so that the pivot and its multipliers arrive together. What lies
// right of the diagonal is not used, and right of the diagonal block not touched. `lines` holds two columns. Returns 0 or the
// 1-based first bad column.
LW_INLINE int factor_hermitian(Row& row, int r, T* lines) {
  int bad = 0;
#pragma unroll
  for (int j = 0; j < N; j++) {
    T* c = lines + (j & 1) * LINE;
#pragma unroll
    for (int s = j / LANES; s < R; s++) c[r + LANES * s] = row.e[s][j];
    sync_warp();
    Real d = real(c[j]), q = reciprocal_root(d);
    if (!is_pivot(d) && bad == 0) bad = j + 1;
    if (r == j % LANES) row.pivot[j / LANES] = from_real(d), row.inverse[j / LANES] = from_real(q);
    T w[R];
#pragma unroll
    for (int s = j / LANES; s < R; s++) {
      row.e[s][j] = scale(row.e[s][j], q);
      w[s] = scale(row.e[s][j], q);
    }
    // E(i,k) <- E(i,k) - E(i,j) conj(E(k,j)) / d
    each_after<N>(c, j, [&](int k, T y) {
#pragma unroll
      for (int s = j / LANES; s < R; s++)
        if (is_kept(s, k)) row.e[s][k] = subtract_product(row.e[s][k], w[s], y);
    });
  }
  return bad;
}

// P E = L U; rows stay in their lanes, and `place` says where they belong. A column without a pivot is left as it is, so that
// what is not finite elsewhere still comes to light.
LW_INLINE int factor_general(Row& row, Elements& x, int* order, int r, T* lines, bool& infinite) {
  int bad = 0;
#pragma unroll
  for (int s = 0; s < R; s++) row.place[s] = N;
#pragma unroll
  for (int j = 0; j < N; j++) {
    Key best = 0;
    int which = 0;
#pragma unroll
    for (int s = 0; s < R; s++) {
      Key key = row.place[s] == N && r + LANES * s < N ? key_of(row.e[s][j]) : 0;
      which = key > best ? s : which;
      best = key > best ? key : best;
    }
    bool mine = r == lane_of_largest(best);
    T* c = lines + (j & 1) * LINE;
#pragma unroll
    for (int s = 0; s < R; s++) {
      if (mine && which == s) {
        row.place[s] = j;
        order[j] = r + LANES * s;
#pragma unroll
        for (int i = 0; i < K; i++)
          if (FUSED) c[R * LANES + i] = x[s][i];
#pragma unroll
        for (int k0 = 0; k0 < N; k0 += VEC) {
          if (k0 + VEC > j) {
            Vector p;
#pragma unroll
            for (int v = 0; v < VEC; v++) p.v[v] = k0 + v < N ? row.e[s][k0 + v < N ? k0 + v : 0] : zero();
            *(Vector*)(c + k0) = p;
          }
        }
      }
    }
    sync_warp();
    T d = c[j];
    bool good = is_divisor(d);
    if (!good && bad == 0) bad = j + 1;
    infinite = infinite || !is_finite(d);
    T q = select(good, invert(d), zero()), l[R];
    const bool small = is_tiny(d);
    row.tiny = row.tiny || small;
#pragma unroll
    for (int s = 0; s < R; s++) {
      bool active = row.place[s] == N;
      if (row.place[s] == j) row.pivot[s] = d, row.inverse[s] = q;
      l[s] = divide(row.e[s][j], d, q, small);
      if (!FUSED || LW_KEEP) row.e[s][j] = select(active, l[s], row.e[s][j]);
      l[s] = select(active, l[s], zero());
#pragma unroll
      for (int i = 0; i < K; i++)
        if (FUSED) x[s][i] = subtract_plain(x[s][i], l[s], c[R * LANES + i]);
    }
    each_after<N>(c, j, [&](int k, T y) {
#pragma unroll
      for (int s = 0; s < R; s++) row.e[s][k] = subtract_plain(row.e[s][k], l[s], y);
    });
  }
  return bad;
}

// ---- a matrix in shared memory -----------------------------------------------------------------------------------

LW_INLINE T* element(char* matrix, int i, int j) { return (T*)(matrix + i * Rows::PITCH) + j; }

LW_INLINE void load_row(Row& row, int s, const char* line) {
#pragma unroll
  for (int k = 0; k < N; k += STEP) {
    if (is_kept(s, k)) {
      Access p = *(const Access*)(line + k * SIZE);
#pragma unroll
      for (int v = 0; v < STEP; v++) row.e[s][k + v] = p.v[v];
    }
  }
}

LW_INLINE void store_row(const Row& row, int s, char* line) {
#pragma unroll
  for (int k = 0; k < N; k += STEP) {
    if (is_kept(s, k)) {
      Access p;
#pragma unroll
      for (int v = 0; v < STEP; v++) p.v[v] = is_kept(s, k + v) ? row.e[s][k + v] : zero();
      *(Access*)(line + k * SIZE) = p;
    }
  }
}

// The rows of E from the memory as it is.
LW_INLINE void read_rows(Row& row, char* matrix, int r) {
  constexpr bool LINE = LW_READ == 0 || LW_READ == 2 || (LW_READ == 3 && LW_FACTOR == 0);
  constexpr bool COLUMN = LW_READ == 1 || LW_READ == 3 || (LW_READ == 2 && LW_FACTOR == 0);
#pragma unroll
  for (int s = 0; s < R; s++) {
    int i = r + LANES * s < N ? r + LANES * s : N - 1;
    row.place[s] = r + LANES * s;
    if (LINE) load_row(row, s, matrix + i * Rows::PITCH);
    if (COLUMN) {
#pragma unroll
      for (int k = 0; k < N; k++) {
        if (is_kept(s, k)) {
          T x = conjugate(*element(matrix, k, i));
          row.e[s][k] = LINE ? select((k < i) == (LW_READ == 3), x, row.e[s][k]) : x;
        }
      }
    }
  }
}

// The first element of the diagonal that cannot be divided by, if anyone asks.
LW_INLINE int invert_diagonal(Row& row, char* matrix, int r, bool asked) {
  int bad = 0;
#pragma unroll
  for (int s = 0; s < R; s++) {
    int i = r + LANES * s < N ? r + LANES * s : N - 1;
    T d = *element(matrix, i, i);
    row.inverse[s] = invert(LW_READ == 1 ? conjugate(d) : d);
    unsigned tiny = lanes_where(is_tiny(d));
    row.tiny = row.tiny || tiny;
    if ((LW_FORWARD == 2 || LW_BACKWARD == 2) && asked) {
      int lane = __ffs(lanes_where(r + LANES * s < N && !is_divisor(d)));
      if (lane && bad == 0) bad = lane + LANES * s;
    }
  }
  return bad;
}

// E into shared memory, every row in its place.
LW_INLINE void write_rows(Row& row, char* matrix, int r) {
  sync_warp();
#pragma unroll
  for (int s = 0; s < R; s++) {
    if (r + LANES * s < N) store_row(row, s, matrix + row.place[s] * Rows::PITCH);
  }
  sync_warp();
}

// L^H beside L.
LW_INLINE void mirror_rows(Row& row, char* matrix, int r) {
#pragma unroll
  for (int s = 0; s < R; s++) {
#pragma unroll
    for (int k = 0; k < N; k++) {
      if (is_kept(s, k) && k < r + LANES * s && r + LANES * s < N)
        *element(matrix, k, r + LANES * s) = conjugate(row.e[s][k]);
    }
  }
  sync_warp();
}

// ---- substitution with an element per row ------------------------------------------------------------------------

LW_INLINE void read_elements(Elements& x, const T* side, int r, const int* order = nullptr) {
#pragma unroll
  for (int s = 0; s < R; s++) {
    int i = r + LANES * s < N ? r + LANES * s : N - 1, from = order ? order[i] : i;
#pragma unroll
    for (int c = 0; c < K; c++) x[s][c] = side[from * K + c];
  }
}

// U x = y with the rows where they were when they became pivots.
LW_INLINE void solve_in_place(Elements& x, const Row& row, const int* order, int r) {
#pragma unroll
  for (int j = N - 1; j >= 0; j--) {
    int lane = order[j] & (LANES - 1);
#pragma unroll
    for (int c = 0; c < K; c++) {
      T y = divide(x[0][c], row.e[0][j], row.inverse[0], row.tiny);
#pragma unroll
      for (int s = 1; s < R; s++)
        y = select(row.place[s] == j, divide(x[s][c], row.e[s][j], row.inverse[s], row.tiny), y);
      y = from_lane(y, lane);
#pragma unroll
      for (int s = 0; s < R; s++) {
        T rest = subtract_plain(x[s][c], row.e[s][j], y);
        x[s][c] = row.place[s] == j ? y : select(row.place[s] < j, rest, x[s][c]);
      }
    }
  }
}

LW_INLINE void solve_elements(Elements& x, const Row& row, char* matrix, int r) {
#pragma unroll
  for (int turn = 0; turn < 2; turn++) {
    const int kind = turn ? LW_BACKWARD : LW_FORWARD;
    if (kind) {
#pragma unroll
      for (int step = 0; step < N; step++) {
        const int j = turn ? N - 1 - step : step, own = j / LANES, lane = j % LANES;
        T y[K > 0 ? K : 1];
#pragma unroll
        for (int c = 0; c < K; c++) {
          T own_y = kind == 2 ? divide(x[own][c], row.e[own][j], row.inverse[own], row.tiny) : x[own][c];
          y[c] = from_lane(own_y, lane);
          if (r == lane) x[own][c] = y[c];
        }
#pragma unroll
        for (int s = 0; s < R; s++) {
          if (turn ? s <= own : s >= own) {
            T e = turn && LW_FACTOR == 1 ? conjugate(*element(matrix, j, r + LANES * s)) : row.e[s][j];
            bool later = s != own || (turn ? r < lane : r > lane);
#pragma unroll
            for (int c = 0; c < K; c++) x[s][c] = select(later, subtract_plain(x[s][c], e, y[c]), x[s][c]);
          }
        }
      }
    }
  }
}

// ---- substitution with columns per lane --------------------------------------------------------------------------

// COLUMNS columns at once. Of column t only the rows from t LEAD on are not zero.
template <int COLUMNS, int LEAD>
struct Block {
  T x[COLUMNS][N];

  // x_i <- x_i - E(i, from .. to) x(from .. to)
  LW_INLINE void subtract_row(int i, int from, int to, const char* matrix) {
#pragma unroll
    for (int k0 = 0; k0 < N; k0 += STEP) {
      if (k0 + STEP > from && k0 < to) {
        Access p = *(const Access*)(matrix + i * Rows::PITCH + k0 * SIZE);
#pragma unroll
        for (int v = 0; v < STEP; v++) {
#pragma unroll
          for (int t = 0; t < COLUMNS; t++)
            if (k0 + v >= from && k0 + v < to && k0 + v >= t * LEAD) x[t][i] = subtract_plain(x[t][i], p.v[v], x[t][k0 + v]);
        }
      }
    }
  }

  // Forward with KIND = LW_FORWARD, or backward with KIND = LW_BACKWARD
  template <int KIND, bool BACK>
  LW_INLINE void substitute(char* matrix, const T* inverses, bool tiny) {
#pragma unroll
    for (int step = 0; step < N; step++) {
      const int i = BACK ? N - 1 - step : step;
      subtract_row(i, BACK ? i + 1 : 0, BACK ? N : i, matrix);
      if (KIND == 2) {
#pragma unroll
        for (int t = 0; t < COLUMNS; t++) x[t][i] = divide(x[t][i], *element(matrix, i, i), inverses[i], tiny);
      }
    }
  }
  LW_INLINE void forward(char* m, const T* inverses, bool tiny) { substitute<LW_FORWARD, false>(m, inverses, tiny); }
  LW_INLINE void backward(char* m, const T* inverses, bool tiny) { substitute<LW_BACKWARD, true>(m, inverses, tiny); }

  // Z^H Z from Z in shared memory and its columns here. Element i needs only the rows from i on, so that it overwrites what is
  // needed no more.
  LW_INLINE void multiply_by_adjoint(const char* matrix) {
#pragma unroll
    for (int i0 = 0; i0 < N; i0 += STEP) {
      T sum[COLUMNS][STEP];
#pragma unroll
      for (int t = 0; t < COLUMNS; t++)
#pragma unroll
        for (int v = 0; v < STEP; v++) sum[t][v] = zero();
#pragma unroll
      for (int k = i0; k < N; k++) {
        Access p = *(const Access*)(matrix + k * Rows::PITCH + i0 * SIZE);
#pragma unroll
        for (int t = 0; t < COLUMNS; t++)
#pragma unroll
          for (int v = 0; v < STEP; v++)
            if (i0 + STEP > t * LEAD) sum[t][v] = add_product(sum[t][v], x[t][k], p.v[v]);
      }
#pragma unroll
      for (int t = 0; t < COLUMNS; t++)
#pragma unroll
        for (int v = 0; v < STEP; v++) x[t][i0 + v] = sum[t][v];
    }
  }
};

// Z = L^-1, then Z^H Z: Hermitian by its form, with as small a residual on either side. Only the lower triangle is computed.
LW_INLINE void invert_hermitian(char* matrix, const T* inverses, int r, bool failed) {
  Block<R, LANES> z;
#pragma unroll
  for (int t = 0; t < R; t++)
#pragma unroll
    for (int i = 0; i < N; i++) z.x[t][i] = from_real(Real(i == r + LANES * t));
  z.forward(matrix, inverses, false);
  sync_warp();
#pragma unroll
  for (int t = 0; t < R; t++)
#pragma unroll
    for (int i = 0; i < N; i++)
      if (r + LANES * t < N) *element(matrix, i, r + LANES * t) = z.x[t][i];
  sync_warp();
  z.multiply_by_adjoint(matrix);
  sync_warp();
#pragma unroll
  for (int t = 0; t < R; t++) {
    int c = r + LANES * t;
#pragma unroll
    for (int i = LANES * t; i < N; i++) {
      T y = select(failed, nan_element(), i == c ? only_real(z.x[t][i]) : z.x[t][i]);
      if (i >= c) *element(matrix, i, c) = y;
      if (i > c) *element(matrix, c, i) = conjugate(y);
    }
  }
}

LW_INLINE void invert_general(char* matrix, const T* inverses, const int* order, int r, bool failed, bool tiny) {
  Block<R, 0> b;
#pragma unroll
  for (int i = 0; i < N; i++) {
    int from = order[i];
#pragma unroll
    for (int t = 0; t < R; t++) b.x[t][i] = from_real(Real(from == r + LANES * t));
  }
  b.forward(matrix, inverses, tiny);
  b.backward(matrix, inverses, tiny);
  sync_warp();
#pragma unroll
  for (int t = 0; t < R; t++)
#pragma unroll
    for (int i = 0; i < N; i++)
      if (r + LANES * t < N) *element(matrix, i, r + LANES * t) = select(failed, nan_element(), b.x[t][i]);
}

// ---- factors as LAPACK has them ----------------------------------------------------------------------------------

// The matrices of a block, L U with every row in its place, in column-major memory.
LW_INLINE void store_columns(const char* matrices, T* lu, int count) {
  for (unsigned e = threadIdx.x; e < unsigned(count * N * N); e += LW_THREADS) {
    const unsigned place = e % (N * N);
    store_element(lu + e, *element((char*)matrices + e / (N * N) * Rows::MATRIX, place % N, place / N));
  }
}

// ---- the determinant ---------------------------------------------------------------------------------------------

LW_INLINE void determinant(const Row& row, const int* order, int r, bool inside, bool failed, T* to, Real* logabs_to) {
  T sign = from_real(1);
  Product product{from_real(1), 0};
  Real logabs = 0;
  bool zeros = false;
#pragma unroll
  for (int s = 0; s < R; s++) {
    int place = r + LANES * s;
    if (place < N) {
      if (LW_FACTOR == 2) {
        sign = multiply(sign, phase(row.pivot[s]));
        // the sign of the permutation: -1 for every earlier pivot from a later row
        int earlier = 0;
#pragma unroll
        for (int i = 0; i < N; i++) earlier += i < place && order[i] > order[place];
        if (earlier % 2) sign = negate(sign), product.mantissa = negate(product.mantissa);
      }
      product.multiply_by(row.pivot[s]);
      logabs += log_magnitude(row.pivot[s]);
      zeros = zeros || is_zero(row.pivot[s]);
    }
  }
  bool singular = lanes_where(zeros);
#pragma unroll
  for (int step = LANES / 2; step > 0; step /= 2) {
    logabs += across(logabs, step);
    sign = multiply(sign, across(sign, step));
    product.multiply_by(across(product.mantissa, step), int(across(Real(product.exponent), step)));
  }
  if (LW_FACTOR == 2 && singular) sign = zero(), logabs = log_of_zero();
  if (failed) sign = nan_element(), logabs = not_a_number();
  if (inside && r == 0) {
    store_element(to, logabs_to ? sign : failed ? nan_element() : product.value());
    if (logabs_to) *logabs_to = logabs;
  }
}

// ---- all together ------------------------------------------------------------------------------------------------

extern "C" __global__ void __launch_bounds__(LW_THREADS, LW_RESIDENT) solve_lanes(Call call) {
  constexpr int LINES = 2 * LINE * SIZE + 16;  // bytes; the 16 keep the matrices of a warp in different banks
  __shared__ __align__(16) char all_lines[MATRICES * LINES];
  __shared__ T all_inverses[MATRICES][N];
  __shared__ int all_orders[MATRICES][N];
  static_assert(sizeof(all_lines) + sizeof(all_inverses) + sizeof(all_orders) <= 12 * 1024, "RESERVED");
  int g = threadIdx.x / LANES, r = threadIdx.x % LANES;
  char* matrix = memory + g * Rows::MATRIX;
  char* sides = memory + MATRICES * Rows::MATRIX;
  T* inverses = all_inverses[g];
  int* order = all_orders[g];
  i64 k = call.k;
  for (i64 first = (i64)blockIdx.x * MATRICES; first < call.batch; first += (i64)gridDim.x * MATRICES) {
    int count = call.batch - first < MATRICES ? (int)(call.batch - first) : MATRICES;
    bool inside = g < count;
    Rows::load(memory, call.a + first * (N * N), count * (N * N * SIZE));
    if (LW_GIVE == 0 && K > 0) Sides::load(sides, call.b + first * (N * K), count * (N * K * SIZE));
    commit_copies();
    if (LW_FACTOR == 0 && LW_ROWS) {
      for (int i = r; i < N; i += LANES) {
        unsigned from = inside ? call.rows[(first + g) * N + i] : i;
        order[i] = from < N ? from : 0;
      }
    }
    wait_copies<0>();
    __syncthreads();

    Row row;
    row.tiny = false;
    Elements x;
    T* side = (T*)(sides + g * Sides::MATRIX);
    read_rows(row, matrix, r);
    if (FUSED) read_elements(x, side, r);
    int bad = 0;
    bool infinite = false;
    if (LW_FACTOR == 0) {
      bad = invert_diagonal(row, matrix, r, call.info);
      if (LW_READ != 0 && K == 0) write_rows(row, matrix, r);
    } else {
      T* lines = (T*)(all_lines + g * LINES);
      bad = LW_FACTOR == 1 ? factor_hermitian(row, r, lines) : factor_general(row, x, order, r, lines, infinite);
      if (LW_GIVE != 3 && !FUSED) write_rows(row, matrix, r);
      if (LW_FACTOR == 1 && LW_GIVE == 0 && K == 0) mirror_rows(row, matrix, r);
    }
#pragma unroll
    for (int s = 0; s < R; s++)
      if (r + LANES * s < N && !FUSED) inverses[row.place[s]] = row.inverse[s];
    sync_warp();

    if (LW_GIVE == 0 && K > 0) {
      if (FUSED) {
        solve_in_place(x, row, order, r);
      } else {
        read_elements(x, side, r, LW_ROWS == 1 ? order : nullptr);
        solve_elements(x, row, matrix, r);
      }
      sync_warp();
#pragma unroll
      for (int s = 0; s < R; s++) {
        int i = r + LANES * s, to = FUSED ? row.place[s] : LW_ROWS == 2 && i < N ? order[i] : i;
#pragma unroll
        for (int c = 0; c < K; c++)
          if (i < N) side[to * K + c] = select(bad != 0, nan_element(), x[s][c]);
      }
      if (LW_KEEP) {
        write_rows(row, matrix, r);
        for (int i = r; i < N && inside; i += LANES) call.rows[(first + g) * N + i] = pivot_of(order, N, i);
      }
      __syncthreads();
      if (LW_KEEP) store_columns(memory, (T*)call.logabs + first * (N * N), count);
      Sides::store(call.out + first * (N * K), sides, count * (N * K * SIZE));
    } else if (LW_GIVE == 0) {
      const T* b = call.b + (first + g) * N * k;
      T* out = call.out + (first + g) * N * k;
      for (i64 c = r; c < k && inside; c += LANES) {
        Block<1, 0> column;
#pragma unroll
        for (int i = 0; i < N; i++) column.x[0][i] = load_element(b + (LW_ROWS == 1 ? order[i] : i) * k + c);
        if (LW_FORWARD) column.forward(matrix, inverses, row.tiny);
        if (LW_BACKWARD) column.backward(matrix, inverses, row.tiny);
#pragma unroll
        for (int i = 0; i < N; i++)
          store_element(out + (LW_ROWS == 2 ? order[i] : i) * k + c, select(bad != 0, nan_element(), column.x[0][i]));
      }
    } else if (LW_GIVE == 3) {
      if (LW_FACTOR == 2) bad = infinite;
      determinant(row, order, r, inside, bad, call.out + first + g, call.logabs ? call.logabs + first + g : nullptr);
    } else {
      if (LW_GIVE == 1 && LW_FACTOR == 1) invert_hermitian(matrix, inverses, r, bad);
      if (LW_GIVE == 1 && LW_FACTOR == 2) invert_general(matrix, inverses, order, r, bad, row.tiny);
      if (LW_GIVE == 2) {
        for (int i = r; i < N; i += LANES) {
#pragma unroll
          for (int j = 0; j < N; j++)
            if (bad) *element(matrix, i, j) = nan_element();
          if (inside) call.rows[(first + g) * N + i] = order[i];
        }
      }
      __syncthreads();
      Rows::store(call.out + first * (N * N), memory, count * (N * N * SIZE));
    }
    if (call.info && inside && r == 0) call.info[first + g] = bad;
    __syncthreads();
  }
}
