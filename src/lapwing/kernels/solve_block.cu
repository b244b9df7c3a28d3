// Systems, inverses, LU and determinants of many matrices above 32 x 32, but for those that solve_lanes.cu takes: a block of threads
// for each, the matrix E in shared memory.
//
// One warp factors a panel of NB columns in registers, RT rows to a lane; all threads then update the rest of the matrix by
// rank NB. With LW_AHEAD the next panel is updated first and factored while the other warps update the rest. With LW_FEW each
// right-hand side belongs to a warp, which keeps it in registers; else right-hand sides come in chunks of LW_K columns in
// shared memory. A matrix, and a chunk, is read whole before anything of it is written, so outputs may be inputs.
// n is not known at compile time.
#include "block.cuh"
#include "solve.cuh"

constexpr int KC = LW_K;  // columns of a chunk; a multiple of VEC

struct Shared {
  T* e;         // n rows of `pitch` elements
  T* x;         // a chunk: n rounded up rows of KC elements
  T* inverse;   // of the pivots, n rounded up
  T* line;      // two rows of a panel
  T* corner;    // NB x NB, the inverse of a diagonal block
  int* source;  // for each row of a panel: the row that moves there
  int* target;  // for each row of a panel that no pivot row is: where it moves
  int* order;   // row i of L U is row order[i] of the matrix
  int* place;   // order[place[i]] = i
  int n, pitch;
  LW_INLINE T& at(int i, int j) const { return e[i * pitch + j]; }
};

// The threads of a block agree on it in shared memory.
struct State {
  int bad;
  int flags;
};
constexpr int TINY = 1, INFINITE = 2;  // some pivot is

// ---- factors -----------------------------------------------------------------------------------------------------

// One warp: the panel of `width` columns from j0 on. Lane l has the rows j0 + l, j0 + l + 32, ...
LW_INLINE void factor_panel(Shared& s, int j0, State* state) {
  const int lane = threadIdx.x % 32, left = s.n - j0, width = min(NB, left);
  T p[RT][NB];
#pragma unroll
  for (int r = 0; r < RT; r++)
    if (32 * r < left) load_line(p[r], &s.at(min(j0 + lane + 32 * r, s.n - 1), j0));
  int bad = 0, flags = 0;
  unsigned open = 0;    // bit r: row r of the lane is no pivot row yet
  unsigned chosen = 0;  // 4 bits for each row of the lane: the column that it became the pivot row of
#pragma unroll
  for (int r = 0; r < RT; r++)
    if (lane + 32 * r < left) open |= 1u << r;

#pragma unroll
  for (int c = 0; c < NB; c++) {
    if (c < width) {
      const int j = j0 + c;
      if (LW_FACTOR == 2) {
        Key best = 0;
        int which = 0;
#pragma unroll
        for (int r = 0; r < RT; r++) {
          if (32 * r < left) {
            const Key key = open >> r & 1 ? key_of(p[r][c]) : 0;
            which = key > best ? r : which;
            best = key > best ? key : best;
          }
        }
        const bool owner = lane == lane_of_largest(best);
        T* line = s.line + (c & 1) * NB;
#pragma unroll
        for (int r = 0; r < RT; r++) {
          if (owner && which == r) {
            store_line(line, p[r]);
            s.source[c] = j0 + lane + 32 * r;
            open &= ~(1u << r);
            chosen |= (unsigned)c << (4 * r);
          }
        }
        sync_warp();
        T u[NB];
        load_line(u, line);
        const T d = u[c];
        const bool good = is_divisor(d), small = is_tiny(d);
        if (!good && bad == 0) bad = j + 1;
        if (!is_finite(d)) flags |= INFINITE;
        if (small) flags |= TINY;
        const T q = select(good, invert(d), zero());
        if (lane == 0) s.inverse[j] = q;
#pragma unroll
        for (int r = 0; r < RT; r++) {
          if (32 * r < left) {
            const bool active = open >> r & 1;
            const T l = divide(p[r][c], d, q, small), by = select(active, l, zero());
            p[r][c] = select(active, l, p[r][c]);
#pragma unroll
            for (int k = c + 1; k < NB; k++) p[r][k] = subtract_plain(p[r][k], by, u[k]);
          }
        }
      } else {
        // the multipliers of the columns that follow are in the rows j + 1, j + 2, ... of this column
        const Real d = from_lane(real(p[0][c]), c), q = reciprocal_root(d);
        if (!is_pivot(d) && bad == 0) bad = j + 1;
        if (lane == 0) s.inverse[j] = from_real(q);
        T u[NB];
#pragma unroll
        for (int k = c + 1; k < NB; k++) u[k] = scale(from_lane(p[0][c], k), q);
#pragma unroll
        for (int r = 0; r < RT; r++) {
          if (32 * r < left) {
            p[r][c] = r == 0 && lane == c ? from_real(d * q) : scale(p[r][c], q);
#pragma unroll
            for (int k = c + 1; k < NB; k++) p[r][k] = subtract_product(p[r][k], p[r][c], u[k]);
          }
        }
      }
    }
  }
  if (width < NB) {  // zeros stay zeros behind the last column
#pragma unroll
    for (int r = 0; r < RT; r++)
#pragma unroll
      for (int c = 1; c < NB; c++)
        if (c >= width) p[r][c] = zero();
  }

  int displaced = 0;
  if (LW_FACTOR == 2) {
    // pivot rows move to the top of the panel; the rows that were there move where pivot rows have left
    const bool moves = lane < width && open & 1;
    const int from = lane < width ? s.source[lane] : 0;
    const bool leaves = lane < width && from >= j0 + width;
    const unsigned before = (1u << lane) - 1;
    const unsigned movers = ballot(moves), leavers = ballot(leaves);
    int* vacant = (int*)s.corner;
    if (leaves) vacant[__popc(leavers & before)] = from;
    sync_warp();
    displaced = moves ? vacant[__popc(movers & before)] : 0;
    if (lane < width) s.target[lane] = displaced;
  }
  if (LW_FACTOR == 1) sync_warp();  // lanes without a row of their own have read the last one
#pragma unroll
  for (int r = 0; r < RT; r++) {
    const int i = j0 + lane + 32 * r;
    if (i < s.n) {
      int to = i;
      if (LW_FACTOR == 2) to = open >> r & 1 ? (r == 0 && lane < width ? displaced : i) : j0 + (int)(chosen >> (4 * r) & 15);
      store_line(&s.at(to, j0), p[r]);
    }
  }
  if (LW_FACTOR == 1) {  // L^H beside L
    sync_warp();
#pragma unroll
    for (int r = 0; r < RT; r++) {
      const int i = j0 + lane + 32 * r;
#pragma unroll
      for (int c = 0; c < NB; c++)
        if (i < s.n && i > j0 + c) s.at(j0 + c, i) = conjugate(p[r][c]);
    }
  }
  if (lane == 0) {
    if (bad && state->bad == 0) state->bad = bad;
    state->flags |= flags;
  }
}

// Columns outside the panel: their rows are exchanged, and U12 <- L11^-1 A12 right of the panel. The order of the rows is
// exchanged like a column.
LW_INLINE void exchange_and_solve(Shared& s, int j0) {
  const int width = min(NB, s.n - j0);
  int source[NB], target[NB];
#pragma unroll
  for (int c = 0; c < NB; c++) source[c] = s.source[min(c, width - 1)], target[c] = s.target[min(c, width - 1)];
  if (threadIdx.x == LW_THREADS - 1) {
    int moved[NB], old[NB];
#pragma unroll
    for (int c = 0; c < NB; c++) moved[c] = s.order[source[c]], old[c] = s.order[min(j0 + c, s.n - 1)];
#pragma unroll
    for (int c = 0; c < NB; c++) {
      if (c < width) {
        if (target[c]) s.order[target[c]] = old[c];
        s.order[j0 + c] = moved[c];
      }
    }
  }
  // L is not needed for a determinant
  for (int k = threadIdx.x + (LW_GIVE == 3 ? j0 : 0); k < s.n; k += LW_THREADS) {
    if (k >= j0 && k < j0 + width) continue;
    T u[NB], old[NB];
#pragma unroll
    for (int c = 0; c < NB; c++) u[c] = s.at(source[c], k);
#pragma unroll
    for (int c = 0; c < NB; c++)
      if (c < width && target[c]) old[c] = s.at(j0 + c, k);
#pragma unroll
    for (int c = 0; c < NB; c++)
      if (c < width && target[c]) s.at(target[c], k) = old[c];
    if (k > j0) {
#pragma unroll
      for (int c = 1; c < NB; c++) {
        T l[NB];
        load_line(l, &s.at(j0 + c, j0));
#pragma unroll
        for (int i = 0; i < c; i++) u[c] = subtract_plain(u[c], l[i], u[i]);
      }
    }
#pragma unroll
    for (int c = 0; c < NB; c++)
      if (c < width) s.at(j0 + c, k) = u[c];
  }
}

// E <- E - L U for the rows from `first` on and the columns `begin` to `end`, by the threads from `start` on.
LW_INLINE void update(Shared& s, int j0, int first, int begin, int end, int start = 0) {
  const int rows = (s.n - first + HIGH - 1) / HIGH, columns = (end - begin + VEC - 1) / VEC;
  if (rows <= 0 || columns <= 0) return;
  for (Walk w(columns, threadIdx.x - start, LW_THREADS - start); w.line < rows; w.next()) {
    const int j = begin + w.place * VEC;
    subtract_piece(s.e + j, s.pitch, s.e + j0, s.pitch, &s.at(j0, j), s.pitch, first + w.line * HIGH, s.n);
  }
}

// The same for the rows and columns from `first` on, at and below the diagonal.
LW_INLINE void update_lower(Shared& s, int j0, int first, int start = 0) {
  constexpr int EACH = HIGH / VEC;  // pieces as wide as one is high
  const int rows = (s.n - first + HIGH - 1) / HIGH;
  for (int t = threadIdx.x - start; t < rows * (rows + 1) / 2 * EACH; t += LW_THREADS - start) {
    int bi, bj;
    small_pair_of(t / EACH, bi, bj);
    const int j = first + bj * HIGH + t % EACH * VEC;
    if (j < s.n) subtract_piece(s.e + j, s.pitch, s.e + j0, s.pitch, &s.at(j0, j), s.pitch, first + bi * HIGH, s.n);
  }
}

LW_INLINE void update_rest(Shared& s, int j0, int first, int start = 0) {
  if (LW_FACTOR == 1)
    update_lower(s, j0, first, start);
  else
    update(s, j0, j0 + NB, first, s.n, start);
}

LW_INLINE void factor(Shared& s, State* state) {
  const bool warp0 = threadIdx.x < 32;
  if (warp0) factor_panel(s, 0, state);
  __syncthreads();
  for (int j0 = 0; j0 < s.n; j0 += NB) {
    const int next = j0 + NB;
    if (LW_FACTOR == 2) {
      exchange_and_solve(s, j0);
      __syncthreads();
    }
    if (next >= s.n) break;
    if (LW_AHEAD) {
      update(s, j0, next, next, min(next + NB, s.n));
      __syncthreads();
      if (warp0)
        factor_panel(s, next, state);
      else
        update_rest(s, j0, next + NB, 32);
    } else {
      update_rest(s, j0, next);
      __syncthreads();
      if (warp0) factor_panel(s, next, state);
    }
    __syncthreads();
  }
}

// ---- substitution ------------------------------------------------------------------------------------------------

// y <- E11^-1 y for the diagonal block at j0 and one column y, each thread for itself. Past the matrix y and E are zero.
template <bool FORWARD>
LW_INLINE void solve_corner(const Shared& s, T (&y)[NB], int j0, int kind, bool tiny) {
#pragma unroll
  for (int q = 0; q < NB; q++) {
    const int c = FORWARD ? q : NB - 1 - q;
    T l[NB];
    load_line(l, &s.at(min(j0 + c, s.n - 1), j0));
#pragma unroll
    for (int p = 0; p < q; p++) {
      const int i = FORWARD ? p : NB - 1 - p;
      y[c] = subtract_plain(y[c], l[i], y[i]);
    }
    if (kind == 2) y[c] = divide(y[c], l[c], s.inverse[j0 + c], tiny);
  }
}

// One warp: x <- E^-1 x for the lower triangle of E (FORWARD) or the upper one; lane l has the elements l, l + 32, ...
template <bool FORWARD>
LW_INLINE void substitute_column(const Shared& s, T (&x)[RT], int kind, bool tiny) {
  constexpr int CORNERS = 32 / NB;
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int turn = 0; turn < RT; turn++) {
    const int own = FORWARD ? turn : RT - 1 - turn;
#pragma unroll 1
    for (int step = 0; step < CORNERS; step++) {
      const int first = NB * (FORWARD ? step : CORNERS - 1 - step), j0 = 32 * own + first;
      if (j0 >= s.n) continue;
      T y[NB];
#pragma unroll
      for (int q = 0; q < NB; q++) y[q] = select(j0 + q < s.n, from_lane(x[own], first + q), zero());
      solve_corner<FORWARD>(s, y, j0, kind, tiny);
#pragma unroll
      for (int q = 0; q < NB; q++) x[own] = select(lane == first + q, y[q], x[own]);
#pragma unroll
      for (int r = 0; r < RT; r++) {
        const int i = lane + 32 * r;
        if ((FORWARD ? r >= own : r <= own) && (FORWARD ? i >= j0 + NB && i < s.n : i < j0)) {
          T l[NB];
          load_line(l, &s.at(i, j0));
#pragma unroll
          for (int q = 0; q < NB; q++) x[r] = subtract_plain(x[r], l[q], y[q]);
        }
      }
    }
  }
}

// The same for the chunk in shared memory and all threads, NB rows at a time.
template <bool FORWARD>
LW_INLINE void substitute(const Shared& s, int kind, bool tiny) {
  constexpr int WIDE = KC >= VEC ? KC / VEC : 1;
  const int last = (s.n - 1) / NB * NB;
  for (int step = 0; step <= last; step += NB) {
    const int j0 = FORWARD ? step : last - step;
    for (int k = threadIdx.x; k < KC; k += LW_THREADS) {
      T y[NB];
#pragma unroll
      for (int q = 0; q < NB; q++) y[q] = s.x[(j0 + q) * KC + k];
      solve_corner<FORWARD>(s, y, j0, kind, tiny);
#pragma unroll
      for (int q = 0; q < NB; q++)
        if (j0 + q < s.n) s.x[(j0 + q) * KC + k] = y[q];
    }
    __syncthreads();
    const int first = FORWARD ? j0 + NB : 0, end = FORWARD ? s.n : j0, v = threadIdx.x % WIDE * VEC;
    for (int i = first + threadIdx.x / WIDE * HIGH; i < end; i += LW_THREADS / WIDE * HIGH)
      subtract_piece(s.x + v, KC, s.e + j0, s.pitch, s.x + j0 * KC + v, KC, i, s.n);
    __syncthreads();
  }
}

// E <- L^-1 for its lower triangle; with pivoting the diagonal of L is one and U stays where it is.
LW_INLINE void invert_lower(Shared& s) {
  for (int j0 = 0; j0 < s.n; j0 += NB) {
    const int width = min(NB, s.n - j0);
    // the rows of the block: Z <- L11^-1 Z, and L11^-1 itself beside the matrix
    for (int k = threadIdx.x; k < j0 + NB; k += LW_THREADS) {
      T y[NB];
#pragma unroll
      for (int q = 0; q < NB; q++)
        y[q] = k < j0 ? s.at(min(j0 + q, s.n - 1), k) : from_real(Real(q == k - j0 && q < width));
      solve_corner<true>(s, y, j0, LW_FACTOR == 1 ? 2 : 1, false);
#pragma unroll
      for (int q = 0; q < NB; q++) {
        if (k >= j0)
          s.corner[q * NB + k - j0] = y[q];
        else if (q < width)
          s.at(j0 + q, k) = y[q];
      }
    }
    __syncthreads();
    // Z <- Z - L21 Z1 below
    update(s, j0, j0 + NB, 0, j0);
    __syncthreads();
    // the panel itself: Z21 <- -L21 L11^-1
    for (int i = j0 + threadIdx.x; i < s.n; i += LW_THREADS) {
      T l[NB], z[NB];
      load_line(l, &s.at(i, j0));
#pragma unroll
      for (int c = 0; c < NB; c++) z[c] = zero();
      if (i < j0 + NB) {
        load_line(z, s.corner + (i - j0) * NB);
#pragma unroll
        for (int c = 0; c < NB; c++)
          if (LW_FACTOR == 2 && j0 + c >= i) z[c] = l[c];
      } else {
#pragma unroll
        for (int q = 0; q < NB; q++) {
          T inverse[NB];
          load_line(inverse, s.corner + q * NB);
#pragma unroll
          for (int c = 0; c <= q; c++) z[c] = subtract_plain(z[c], l[q], inverse[c]);
        }
      }
      store_line(&s.at(i, j0), z);
    }
    __syncthreads();
  }
}

// out <- Z^H Z: Hermitian by its form, with as small a residual on either side.
LW_INLINE void store_square(const Shared& s, T* out, bool failed) {
  constexpr int SIDE = LW_DTYPE >= 2 ? 2 : 4;
  constexpr int ACCESS = LW_V > SIZE ? LW_V : SIZE;  // bytes
  const int n = s.n, rows = (n + SIDE - 1) / SIDE;
  for (int t = threadIdx.x; t < rows * (rows + 1) / 2; t += LW_THREADS) {
    int bi, bj;
    small_pair_of(t, bi, bj);
    const int i0 = bi * SIDE, j0 = bj * SIDE;
    T sum[SIDE][SIDE], mirror[SIDE][SIDE];
#pragma unroll
    for (int a = 0; a < SIDE; a++)
#pragma unroll
      for (int b = 0; b < SIDE; b++) sum[a][b] = zero();
    for (int k = i0; k < n; k++) {
      T x[SIDE], y[SIDE];
      load_registers<16>(x, (const char*)&s.at(k, i0));
      load_registers<16>(y, (const char*)&s.at(k, j0));
#pragma unroll
      for (int a = 0; a < SIDE; a++)
#pragma unroll
        for (int b = 0; b < SIDE; b++) sum[a][b] = add_product(sum[a][b], y[b], x[a]);
    }
#pragma unroll
    for (int a = 0; a < SIDE; a++)
#pragma unroll
      for (int b = 0; b < SIDE; b++) {
        if (bi == bj && a == b) sum[a][b] = only_real(sum[a][b]);
        if (failed) sum[a][b] = nan_element();
        mirror[b][a] = conjugate(sum[a][b]);
      }
    if (LW_V >= SIZE && bi > bj && i0 + SIDE <= n) {
#pragma unroll
      for (int a = 0; a < SIDE; a++) {
        store_registers<ACCESS>((char*)(out + (i0 + a) * n + j0), sum[a]);
        store_registers<ACCESS>((char*)(out + (j0 + a) * n + i0), mirror[a]);
      }
    } else {
#pragma unroll
      for (int a = 0; a < SIDE; a++)
#pragma unroll
        for (int b = 0; b < SIDE; b++) {
          const int i = i0 + a, j = j0 + b;
          if (i < n && j <= i) store_element(out + i * n + j, sum[a][b]);
          if (i < n && j < i) store_element(out + j * n + i, mirror[b][a]);
        }
    }
  }
}

// ---- memory ------------------------------------------------------------------------------------------------------

// E from the memory M. Of a Hermitian matrix that will be factored only the lower triangle is of use.
LW_INLINE void load(Shared& s, const T* a) {
  const int n = s.n;
  load_rows(s.e, s.pitch, a, n, n);
  if (LW_READ == 0 || (LW_READ == 2 && LW_FACTOR)) return;
  __syncthreads();
  for (int i = threadIdx.x / 32; i < n; i += WARPS) {
    for (int j = threadIdx.x % 32; j <= i; j += 32) {
      const T low = s.at(i, j), high = s.at(j, i);
      if (LW_READ == 1) s.at(i, j) = conjugate(high), s.at(j, i) = conjugate(low);
      if (LW_READ == 2 && i != j) s.at(j, i) = conjugate(low);
      if (LW_READ == 3 && i != j) s.at(i, j) = conjugate(high);
    }
  }
}

// Element (i, k) of the right-hand sides: b with its rows in the order of the pivots, or L^-1 and its columns so that those of
// the inverse come out in order.
LW_INLINE T side(const Shared& s, const T* b, i64 columns, int i, i64 k) {
  if (LW_GIVE == 0) return load_element(b + (LW_ROWS == 1 ? s.order[i] : i) * columns + k);
  const int j = s.place[k];
  return i < j ? zero() : i == j ? from_real(1) : s.at(i, j);
}

LW_INLINE void store_solution(Shared& s, const Call& call, i64 m, bool failed, bool tiny) {
  constexpr int FORWARD = LW_GIVE == 1 ? 0 : LW_FORWARD;
  const int n = s.n;
  const i64 columns = LW_GIVE == 1 ? n : call.k;
  const T* b = call.b + m * n * columns;
  T* out = call.out + m * n * columns;
#if LW_FEW
  const int lane = threadIdx.x % 32;
  for (i64 k = threadIdx.x / 32; k < columns; k += WARPS) {
    T x[RT];
#pragma unroll
    for (int r = 0; r < RT; r++) x[r] = side(s, b, columns, min(lane + 32 * r, n - 1), k);
    if (FORWARD) substitute_column<true>(s, x, FORWARD, tiny);
    if (LW_BACKWARD) substitute_column<false>(s, x, LW_BACKWARD, tiny);
    sync_warp();
#pragma unroll
    for (int r = 0; r < RT; r++) {
      const int i = lane + 32 * r;
      if (i < n) store_element(out + (LW_ROWS == 2 ? s.order[i] : i) * columns + k, select(failed, nan_element(), x[r]));
    }
  }
#else
  for (i64 k0 = 0; k0 < columns; k0 += KC) {
    for (int t = threadIdx.x; t < rounded_up(n) * KC; t += LW_THREADS) {
      const int i = t / KC, k = t % KC;
      s.x[t] = i < n && k0 + k < columns ? side(s, b, columns, i, k0 + k) : zero();
    }
    __syncthreads();
    if (FORWARD) substitute<true>(s, FORWARD, tiny);
    if (LW_BACKWARD) substitute<false>(s, LW_BACKWARD, tiny);
    for (int t = threadIdx.x; t < n * KC; t += LW_THREADS) {
      const int i = t / KC, k = t % KC;
      if (k0 + k < columns)
        store_element(out + (LW_ROWS == 2 ? s.order[i] : i) * columns + k0 + k, select(failed, nan_element(), s.x[t]));
    }
    __syncthreads();
  }
#endif
}

// ---- factors as LAPACK has them --------------------------------------------------------------------------------

// L U in column-major memory, and the exchanges of rows.
LW_INLINE void store_factors(const Shared& s, T* lu, int* pivots) {
  for (int e = threadIdx.x; e < s.n * s.n; e += LW_THREADS) store_element(lu + e, s.at(e % s.n, e / s.n));
  for (int i = threadIdx.x; i < s.n; i += LW_THREADS) pivots[i] = pivot_of(s.order, s.n, i);
}

// ---- the determinant ---------------------------------------------------------------------------------------------

LW_INLINE void store_determinant(const Shared& s, const Call& call, i64 m, const State& state) {
  const bool odd = LW_FACTOR == 2 && is_odd(s.order, s.n), failed = LW_FACTOR == 1 ? state.bad : state.flags & INFINITE;
  if (threadIdx.x >= 32) return;
  store_diagonal_product(call.out + m, call.logabs ? call.logabs + m : nullptr, s.n, LW_FACTOR == 1, odd, failed,
                         [&](int i) { return s.at(i, i); });
  if (threadIdx.x == 0) call.info[m] = LW_FACTOR == 1 ? state.bad : failed;
}

// ---- all together ------------------------------------------------------------------------------------------------

// The diagonal of a matrix that is a factor already; `bad` is its first element that cannot be divided by.
LW_INLINE void invert_diagonal(Shared& s, State* state) {
  for (int i = threadIdx.x; i < s.n; i += LW_THREADS) {
    const T d = s.at(i, i);
    s.inverse[i] = invert(d);
    if (is_tiny(d)) atomicOr(&state->flags, TINY);
    if ((LW_FORWARD == 2 || LW_BACKWARD == 2) && !is_divisor(d)) atomicMax(&state->bad, s.n - i);  // the first has most left
  }
  __syncthreads();
  if (threadIdx.x == 0 && state->bad) state->bad = s.n - state->bad + 1;
  __syncthreads();
}

extern "C" __global__ void __launch_bounds__(LW_THREADS, LW_RESIDENT) solve_block(Call call, int n, int pitch) {
  Shared s;
  s.n = n, s.pitch = pitch;
  s.e = (T*)memory;
  s.x = s.e + n * pitch;  // the pitch is a multiple of 16 bytes
  s.inverse = s.x + (LW_FEW ? 0 : rounded_up(n) * KC);
  s.line = s.inverse + rounded_up(n);
  s.corner = s.line + 2 * NB;
  s.source = (int*)(s.corner + NB * NB);
  s.target = s.source + NB;
  State* state = (State*)(s.target + NB);
  s.order = (int*)(state + 1);
  s.place = s.order + n;
  for (i64 m = blockIdx.x; m < call.batch; m += gridDim.x) {
    if (threadIdx.x == 0) state->bad = state->flags = 0;
    for (int i = threadIdx.x; i < rounded_up(n); i += LW_THREADS) {
      s.inverse[i] = zero();
      if ((LW_FACTOR == 2 || LW_ROWS) && i < n) {
        const unsigned from = LW_FACTOR ? i : call.rows[m * n + i];
        s.order[i] = from < n ? from : 0;
      }
    }
    load(s, call.a + m * n * n);
    __syncthreads();
    if (LW_FACTOR)
      factor(s, state);
    else
      invert_diagonal(s, state);
    const State now = *state;
    const bool failed = now.bad && call.info;
    if (LW_KEEP) store_factors(s, (T*)call.logabs + m * n * n, call.rows + m * n);
    if (LW_GIVE == 0) store_solution(s, call, m, failed, now.flags & TINY);
    if (LW_GIVE == 1) {
      for (int i = threadIdx.x; i < n && LW_FACTOR == 2; i += LW_THREADS) s.place[s.order[i]] = i;
      invert_lower(s);
      if (LW_FACTOR == 1)
        store_square(s, call.out + m * n * n, failed);
      else
        store_solution(s, call, m, failed, now.flags & TINY);
    }
    if (LW_GIVE == 2) {
      store_rows(call.out + m * n * n, s.e, pitch, n, n, [&](int, int, Real x) { return failed ? not_a_number() : x; });
      for (int i = threadIdx.x; i < n; i += LW_THREADS) call.rows[m * n + i] = s.order[i];
    }
    if (LW_GIVE == 3)
      store_determinant(s, call, m, now);
    else if (threadIdx.x == 0 && call.info)
      call.info[m] = now.bad;
    __syncthreads();
  }
}
