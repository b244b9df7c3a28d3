// Cholesky by tiles of 64 x 64: one large matrix, a few, or a batch of middling ones. A = L L^H, left-looking.
//
// Work is cut into tasks, numbered so that a task only waits for smaller numbers; blocks take numbers from a counter, so
// nothing depends on which blocks run at once. In each matrix:
//   head(j)   L(j,j-1) and L(j,j): the critical path, kept inside one block
//   (i,j)     L(i,j), i > j + 1
// in the order head(0); head(1), (2,0), (3,0), ...; head(2), (3,1), ... Matrices are interleaved in groups, so that one
// matrix's waiting is another's work. Tiles of one row are finished from left to right: one counter per row says how many
// half tiles. A release to other blocks waits for the writes before it, so a task makes one; alone, where the chain of
// heads is what counts, a head makes three: L(j,j-1), then the first 32 columns of L(j,j), then the rest.
//
// Each tile is read by its own task alone before it is written, so out may be a.
#include "common.cuh"

constexpr int SIDE = 64;  // of a tile
// 8 warps for the shortest time of one tile, 4 to have more tiles under way on each multiprocessor
constexpr int WARPS = LW_WARPS;
constexpr int THREADS = 32 * WARPS;
constexpr bool EARLY = LW_EARLY;  // heads publish what they have as soon as they have it
constexpr int PITCH = SIDE + VEC;
constexpr int DEPTH = 128 / SIZE;                              // columns in one step of a product: 128 bytes of a row
constexpr int STEP_PITCH = DEPTH + (LW_DTYPE == 1 ? 4 : VEC);  // no bank conflicts in Piece::add
constexpr int STEP_TILE = SIDE * STEP_PITCH;
constexpr int STEPS = SIDE / DEPTH;

// `memory` holds two stages of two operands while multiplying, then the tiles X and D. The launcher asks for the larger.

// Zeroed before the launch.
struct Progress {
  unsigned long long* ticket;
  int* rows;    // [batch][tiles]: finished half tiles of each row
  int* failed;  // [batch]: info
};

// The role of the warp: 0 has the long chains. The kernel chooses who leads.
__shared__ int lead;
LW_INLINE int role() { return (threadIdx.x / 32 + WARPS - lead) % WARPS; }

// One matrix, as the tasks see it.
struct Matrix {
  const T* a;
  T* out;
  i64 n;
  int* rows;

  LW_INLINE i64 at(i64 i, i64 j) const { return LW_UPPER ? j * n + i : i * n + j; }

  // Waits until `halves` half tiles of row tile i are finished; the answer is how many there are.
  LW_INLINE int wait(int i, int halves) const {
    __shared__ int seen;
    if (threadIdx.x == 0)
      while ((seen = acquire(rows + i)) < halves) pause_briefly();
    __syncthreads();
    int value = seen;
    __syncthreads();
    return value;
  }

  // After finish_writes() and a barrier: everything the block wrote to these half tiles comes before.
  LW_INLINE void publish(int i, int halves) const {
    if (role() == WARPS - 1 && threadIdx.x % 32 == 0) release(rows + i, halves);
  }
};

// WIDTH bytes of each of the 64 rows of row tile i, from column `first`, on their way to shared memory.
template <int WIDTH>
LW_INLINE void fetch(T* to, int pitch, const Matrix& m, int i, i64 first) {
  constexpr int COLUMNS = WIDTH / SIZE;
  i64 top = (i64)i * SIDE;
  if (LW_UPPER) {
#pragma unroll 4
    for (int u = threadIdx.x; u < SIDE * COLUMNS; u += THREADS) {
      int r = u % SIDE, k = u / SIDE;
      bool inside = top + r < m.n;
      copy_element(to + r * pitch + k, m.out + (inside ? m.at(top + r, first + k) : 0), inside);
    }
  } else {
    constexpr int UNITS = WIDTH / LW_V;
#pragma unroll 4
    for (int u = threadIdx.x; u < SIDE * UNITS; u += THREADS) {
      int r = u / UNITS, byte = u % UNITS * LW_V;
      bool inside = top + r < m.n;
      copy_async<LW_V>((char*)(to + r * pitch) + byte,
                       (const char*)(m.out + (inside ? m.at(top + r, first) : 0)) + (inside ? byte : 0), inside);
    }
  }
}

// The part of a 64 x 64 tile in one warp: the warps lie in two rows, 32 x 32 or 32 x 16 each.
typedef Piece<4, 16 / WARPS> Part;

LW_INLINE int part_row() { return threadIdx.x / (THREADS / 2) * 32; }
LW_INLINE int part_column() { return threadIdx.x / 32 % (WARPS / 2) * (128 / WARPS); }

// part <- -A(i,j); outside the matrix 0
LW_INLINE void load_part(Part& part, const Matrix& m, int i, int j) {
  i64 top = (i64)i * SIDE + part_row(), left = (i64)j * SIDE + part_column();
  part.each([&](int r, int c, T* pair) {
#pragma unroll
    for (int e = 0; e < 2; e++) pair[e] = zero();
    if (top + r < m.n) {
      const T* from = m.a + m.at(top + r, left + c);
      if (!LW_UPPER && 2 * SIZE <= LW_V) {
        if (left + c < m.n) {
          Pack<T, 2> p = *(const Pack<T, 2>*)from;
          pair[0] = negate(p.v[0]);
          pair[1] = negate(p.v[1]);
        }
      } else {
#pragma unroll
        for (int e = 0; e < 2; e++)
          if (left + c + e < m.n) pair[e] = negate(load_element(m.a + m.at(top + r, left + c + e)));
      }
    }
  });
}

LW_INLINE void part_to_shared(Part& part, T* s) {
  s += part_row() * PITCH + part_column();
  part.each([&](int r, int c, T* pair) {
    s[r * PITCH + c] = negate(pair[0]);
    s[r * PITCH + c + 1] = negate(pair[1]);
  });
}

// COLUMNS columns of tile (i,j), from `first` on, <- S; on the diagonal zeros above it.
template <int COLUMNS>
LW_INLINE void write_tile(const T* s, const Matrix& m, int i, int j, int first) {
  constexpr int STEP = LW_V > SIZE ? LW_V / SIZE : 1;
  constexpr int UNITS = (LW_UPPER ? SIDE : COLUMNS) / STEP;
  i64 top = (i64)i * SIDE, left = (i64)j * SIDE + first;
  s += first;
#pragma unroll 4
  for (int u = threadIdx.x; u < SIDE * COLUMNS / STEP; u += THREADS) {
    int line = u / UNITS, along = u % UNITS * STEP;  // a line of memory is a row, or a column when transposed
    i64 row = LW_UPPER ? top + along : top + line, column = LW_UPPER ? left + line : left + along;
    if (row >= m.n || column >= m.n) continue;
    Pack<T, STEP> p;
#pragma unroll
    for (int v = 0; v < STEP; v++) {
      int r = LW_UPPER ? along + v : line, c = LW_UPPER ? line : along + v;
      p.v[v] = i == j && first + c > r ? zero() : s[r * PITCH + c];
    }
    store_pack(m.out + m.at(row, column), p);
  }
}

// The mirror image of tile (i,j), i > j, above the diagonal <- 0, by the warps of role `from` and more
LW_INLINE void write_zeros(const Matrix& m, int i, int j, int from) {
  constexpr int STEP = LW_V > SIZE ? LW_V / SIZE : 1;
  constexpr int UNITS = SIDE / STEP;
  i64 top = (i64)j * SIDE, left = (i64)i * SIDE;
#pragma unroll 4
  for (int u = (role() - from) * 32 + threadIdx.x % 32; u < SIDE * UNITS; u += THREADS - 32 * from) {
    int line = u / UNITS, along = u % UNITS * STEP;
    i64 row = LW_UPPER ? top + along : top + line, column = LW_UPPER ? left + line : left + along;
    if (row >= m.n || column >= m.n) continue;
    Pack<T, STEP> p;
#pragma unroll
    for (int v = 0; v < STEP; v++) p.v[v] = zero();
    store_pack(m.out + m.at(row, column), p);
  }
}

// x <- x + sum over k < tiles of L(i,k) L(j,k)^H; with `both`, d <- d + sum of L(i,k) L(i,k)^H as well
LW_INLINE void accumulate(Part& x, Part& d, bool both, const Matrix& m, int i, int j, int tiles) {
  T* stage = (T*)memory;
  int seen_i = 0, seen_j = 0;  // thread 0's knowledge
  int steps = tiles * STEPS;
  for (int s = 0; s <= steps; s++) {
    if (s < steps) {
      if (s % STEPS == 0) {
        int need = 2 * (s / STEPS + 1);
        if (threadIdx.x == 0) {
          while (seen_j < need) seen_j = acquire(m.rows + j);
          while (seen_i < need) seen_i = acquire(m.rows + i);
        }
        __syncthreads();
      }
      T* to = stage + (s & 1) * 2 * STEP_TILE;
      fetch<128>(to, STEP_PITCH, m, i, (i64)s * DEPTH);
      fetch<128>(to + STEP_TILE, STEP_PITCH, m, j, (i64)s * DEPTH);
    }
    commit_copies();
    if (s > 0) {
      wait_copies<1>();
      __syncthreads();
      const T* p = stage + ((s - 1) & 1) * 2 * STEP_TILE;
      const T* rows = p + part_row() * STEP_PITCH;
      x.add<DEPTH>(rows, STEP_PITCH, p + STEP_TILE + part_column() * STEP_PITCH, STEP_PITCH);
      if (both) d.add<DEPTH>(rows, STEP_PITCH, p + part_column() * STEP_PITCH, STEP_PITCH);
      __syncthreads();
    }
  }
}

// The columns of L(j,j) from `first` on, and the reciprocals of its diagonal.
template <int COLUMNS>
LW_INLINE void fetch_diagonal(T* l, Real* reciprocals, const Matrix& m, int j, int first) {
  fetch<COLUMNS * SIZE>(l + first, PITCH, m, j, (i64)j * SIDE + first);
  finish_copies();
  __syncthreads();
  int k = first + threadIdx.x;
  if (threadIdx.x < COLUMNS) reciprocals[k] = Real(1) / real(l[k * (PITCH + 1)]);
  __syncthreads();
}

// X <- X L(j,j)^-H: X1 <- X1 L11^-H; X2 <- X2 - X1 L21^H; X2 <- X2 L22^-H. L(j,j) goes to `l`.
LW_INLINE void solve(T* x, T* l, Real* reciprocals, const Matrix& m, int j) {
  int warp = threadIdx.x / 32;
  bool whole = m.wait(j, EARLY ? 2 * j + 1 : 2 * j + 2) > 2 * j + 1;
  if (!EARLY || whole)
    fetch_diagonal<SIDE>(l, reciprocals, m, j, 0);
  else
    fetch_diagonal<TILE>(l, reciprocals, m, j, 0);
#pragma unroll 1
  for (int half = 0; half < 2; half++) {
    if (half) {
      int r = warp % 4 * 16, c = warp / 4 * 16;
      update_piece<2, 16 / WARPS>(x + r * PITCH + TILE + c, PITCH, x + r * PITCH, PITCH, l + (TILE + c) * PITCH, PITCH);
      if (EARLY && !whole) {
        m.wait(j, 2 * j + 2);
        fetch_diagonal<TILE>(l, reciprocals, m, j, TILE);
      }
      __syncthreads();
    }
    int row = 32 * role() + threadIdx.x % 32;
    if (row < SIDE)
      solve_row(x + row * PITCH + half * TILE, l + half * (TILE * PITCH + TILE), PITCH, reciprocals + half * TILE);
    __syncthreads();
  }
}

// D <- L(i,i) of the 64 x 64 tile D, also to memory. In role 0: 0 or the first bad column. While it factors, the
// others clear the mirror image of L(i,i-1), publish it, and publish the first half of L(i,i).
LW_INLINE int factor(T* d, const Matrix& m, int i, T* room, Real* reciprocals) {
  int warp = threadIdx.x / 32, bad = 0;
  int columns = m.n - (i64)i * SIDE < SIDE ? (int)(m.n - (i64)i * SIDE) : SIDE;
  // D11 <- L11
  if (role() == 0) {
    bad = factor_tile(d, PITCH, columns, room, reciprocals);
  } else if (i > 0) {
    if (EARLY) m.publish(i, 2 * i);
    write_zeros(m, i, i - 1, 1);
  }
  __syncthreads();
  if (columns > TILE) {
    // D21 <- D21 L11^-H; D22 <- D22 - D21 D21^H; D22 <- L22
    T* d21 = d + TILE * PITCH;
    T* d22 = d21 + TILE;
    if (role() == 0) solve_row(d21 + threadIdx.x % 32 * PITCH, d, PITCH, reciprocals);
    __syncthreads();
    int r = warp % 2 * 16, c = warp / 2 * (64 / WARPS);
    update_piece<2, 8 / WARPS>(d22 + r * PITCH + c, PITCH, d21 + r * PITCH, PITCH, d21 + c * PITCH, PITCH);
    if (EARLY) {
      write_tile<TILE>(d, m, i, i, 0);
      finish_writes();
    }
    __syncthreads();
    if (EARLY) m.publish(i, 2 * i + 1);
    if (role() == 0) {
      int found = factor_tile(d22, PITCH, columns - TILE, room, reciprocals);
      if (found && bad == 0) bad = TILE + found;
    }
    __syncthreads();
  }
  if (EARLY && columns > TILE)
    write_tile<TILE>(d, m, i, i, TILE);
  else
    write_tile<SIDE>(d, m, i, i, 0);
  return bad;
}

// L(i,j); with `head`, j = i - 1 and L(i,i) as well
LW_INLINE void run_task(const Matrix& m, int* failed, int i, int j, bool head) {
  __shared__ __align__(16) char room[ROOM];
  __shared__ Real reciprocals[SIDE];
  T* xs = (T*)memory;
  T* ds = xs + SIDE * PITCH;
  Part x, d;
  d.clear();
  if (head) load_part(d, m, i, i);
  if (j >= 0) {
    load_part(x, m, i, j);
    accumulate(x, d, head, m, i, j, j);
    part_to_shared(x, xs);
    solve(xs, ds, reciprocals, m, j);
    write_tile<SIDE>(xs, m, i, j, 0);
    if (head) {
      d.add<SIDE>(xs + part_row() * PITCH, PITCH, xs + part_column() * PITCH, PITCH);
    } else {
      finish_writes();
      __syncthreads();
      m.publish(i, 2 * (j + 1));
      write_zeros(m, i, j, 0);
    }
  }
  if (head) {
    part_to_shared(d, ds);
    if (EARLY) finish_writes();
    __syncthreads();
    int bad = factor(ds, m, i, (T*)room, reciprocals);
    // the heads of one matrix run one after the other, so the first to fail is the first column
    if (role() == 0 && threadIdx.x % 32 == 0 && bad && *(volatile int*)failed == 0)
      *(volatile int*)failed = i * SIDE + bad;
    finish_writes();
    __syncthreads();
    m.publish(i, 2 * (i + 1));
  }
}

struct Place {
  i64 matrix;
  int i, j;
};

// Ticket -> group of matrices, then the step in their common order, then the matrix in the group.
LW_INLINE Place place_of(i64 ticket, i64 batch, i64 group, int tiles) {
  i64 tasks = 1 + (i64)tiles * (tiles - 1) / 2;
  i64 g = ticket / (tasks * group), rest = ticket - g * tasks * group;
  i64 size = batch - g * group < group ? batch - g * group : group;
  i64 step = rest / size;
  i64 matrix = g * group + rest - step * size;
  if (step == 0) return {matrix, 0, -1};
  step--;
  int j = 0;
  for (; step >= tiles - 1 - j; j++) step -= tiles - 1 - j;
  return {matrix, j + 1 + (int)step, j};
}

extern "C" __global__ void __launch_bounds__(THREADS, LW_RESIDENT)
    cholesky_tiled(const T* a, T* out, i64 batch, i64 n, i64 group, Progress progress) {
  __shared__ Place place;
  if (threadIdx.x == 0) {
    int slot = block_slot(WARPS);
    lead = (2 * slot + (WARPS == 4 ? slot / 2 : 0)) % WARPS;
  }
  int tiles = (int)((n + SIDE - 1) / SIDE);
  i64 total = batch * (1 + (i64)tiles * (tiles - 1) / 2);
  for (;;) {
    __syncthreads();
    if (threadIdx.x == 0) {
      i64 ticket = (i64)atomicAdd(progress.ticket, 1ULL);
      if (ticket < total)
        place = place_of(ticket, batch, group, tiles);
      else
        place.matrix = -1;
    }
    __syncthreads();
    i64 index = place.matrix;
    if (index < 0) return;
    Matrix m = {a + index * n * n, out + index * n * n, n, progress.rows + index * tiles};
    run_task(m, progress.failed + index, place.i, place.j, place.i == place.j + 1);
  }
}

// After cholesky_tiled: info, and NaN over the matrices that failed, `parts` blocks for each.
extern "C" __global__ void cholesky_settle(T* out, int* info, i64 batch, i64 n, i64 parts, const int* failed) {
  for (i64 item = blockIdx.x; item < batch * parts; item += gridDim.x) {
    i64 m = item / parts, part = item - m * parts;
    int bad = failed[m];
    if (part == 0 && threadIdx.x == 0) info[m] = bad;
    if (bad)
      for (i64 e = part * blockDim.x + threadIdx.x; e < n * n; e += parts * blockDim.x)
        store_element(out + m * n * n + e, filled(not_a_number()));
  }
}
