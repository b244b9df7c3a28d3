// Hermitian matrices that do not fit on the chip to tridiagonal form, LW_PANEL columns in one launch.
//
// Within a panel the matrix A stays as it is: the step's matrix is A - V W^H - W V^H with the vectors of the panel's earlier steps, and
// products of the vendor's library bring A up to date between two panels. A step reads the lower triangle once. The triangle is cut
// into strips of STRIP columns and these into tiles of TALL rows; each block has the same tiles in all steps. A tile gives two partial
// sums, over its columns for its rows and over its rows for its columns, which are kept apart and added up in the same order
// always. As many tiles as fit stay in shared memory for the whole panel. The rows of all vectors are spread over the blocks as well, so a step has two barriers: one before the partial sums are
// added up, which also gives the next column, and one before that column is used.
//
//   LW_TEAM   blocks
//   LW_PANEL  columns of a panel
//   LW_ROWS   rows of a vector that a block has, and one more: a power of two
#include "eigh.cuh"

constexpr int BLOCKS = LW_TEAM, PANEL = LW_PANEL, ROWS = LW_ROWS;
constexpr int WARPS = 16, THREADS = 32 * WARPS, C = 8, STRIP = WARPS * C, TALL = 32 * VEC;
constexpr int PARTS = THREADS / ROWS, HELD = (PANEL + PARTS - 1) / PARTS;  // threads of a row; columns of V that each has
constexpr int DOT_LANES = THREADS / (2 * PANEL);
constexpr int ROW_WARPS = (ROWS + 31) / 32;
constexpr int MOST_CHUNKS = 32;  // parts of a dot product
constexpr int DOT_PARTS = (MOST_CHUNKS + DOT_LANES - 1) / DOT_LANES, FORMS = (BLOCKS + 31) / 32, SQUARES = (BLOCKS * ROW_WARPS + 31) / 32;
static_assert(DOT_LANES <= 32, "a dot product is added up within a warp");

struct Panel {
  T* a;       // the lower triangle, column by column
  T* v;       // row k: the vector of step k
  T* left;    // [V W] of the panel, column by column
  T* right;   // [W V]
  T* x;       // the column that comes next
  T* rows;    // partial sums: of each strip for the rows
  T* columns; // and of each block of a strip for its columns
  T* dots;    // partial sums of V^H u and W^H u
  Real* forms;    // and of u^H A u
  Real* squares;  // and of x^H x
  Real *d, *e;
  T* tau;
  int* gate;
  int gate_from;  // what the gate counted before this launch
  int n, pitch, first;
  int chunk;      // rows of a partial dot product
  int most_strips;  // that the tiles of a block lie in
  int kept;         // tiles that a block keeps in shared memory
};

// ---- the barrier of all blocks -----------------------------------------------------------------------------------------

LW_INLINE void wait_for_all(int* gate, int& goal) {
  goal += BLOCKS;
  finish_writes();
  __syncthreads();
  if (threadIdx.x == 0) {
    arrive(gate);
    while (arrived(gate) - goal < 0) pause();
    see_all();
  }
  __syncthreads();
}

LW_INLINE Vector empty() {
  Vector x;
#pragma unroll
  for (int e = 0; e < VEC; e++) x.v[e] = zero();
  return x;
}

// ---- which block has what ----------------------------------------------------------------------------------------------

struct Share {
  int most, all;  // tiles of the first strip; of all strips
  int blocks;     // that have tiles: the first ones
  LW_INLINE int start(int strip) const { return strip * most - STRIP / TALL * (strip * (strip - 1) / 2); }
  LW_INLINE int of_block(int block) const { return block < blocks ? (int)((i64)block * all / blocks) : all; }
  LW_INLINE int block_of(int tile) const { return (int)(((i64)(tile + 1) * blocks - 1) / all); }
};

// Element i of the vector whose first element, at `head`, is 1, from the column x
LW_INLINE T vector_of(T x, int i, int head, int n, T factor) {
  return i > head && i < n ? multiply(x, factor) : from_real(Real(i == head));
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) tridiagonal_panel(Panel at) {
  const int n = at.n, pitch = at.pitch, base = at.first, t = threadIdx.x, lane = t % 32, warp = t / 32, block = blockIdx.x;
  const int m = n - base, strips = (m + STRIP - 1) / STRIP, share = (m + BLOCKS - 1) / BLOCKS;
  Share tiles;
  tiles.most = (m + TALL - 1) / TALL;
  tiles.all = tiles.start(strips);
  tiles.blocks = min(BLOCKS, tiles.all);
  const int from = tiles.of_block(block), count = tiles.of_block(block + 1) - from, most = (tiles.all + BLOCKS - 1) / BLOCKS;

  // shared memory
  Vector* kept_tiles = (Vector*)memory;           // at.kept x C x THREADS
  Vector* rows_u = kept_tiles + at.kept * C * THREADS;  // `most` x 32: u at the rows of each own tile
  T* columns_u = (T*)(rows_u + most * 32); // most_strips x STRIP: u at the columns of each own strip
  Vector* parts = (Vector*)(columns_u + at.most_strips * STRIP);  // 2 x WARPS x 32
  T* sums = (T*)parts;                            // 2 x THREADS, at another time
  T* dots = (T*)(parts + 2 * WARPS * 32);         // 2 PANEL
  T* head_w = dots + 2 * PANEL;                   // 2: w of the next column's row
  Real* numbers = (Real*)(head_w + 2);            // WARPS, and 2 more
  int* tile_row = (int*)(numbers + WARPS + 2);    // `most`
  int* tile_strip = tile_row + most;              // `most`
  int* slots = tile_strip + most;                 // `strips`: blocks that have tiles of each

  for (int l = t; l < count; l += THREADS) {
    int strip = 0;
    while (tiles.start(strip + 1) <= from + l) strip++;
    tile_strip[l] = strip;
    tile_row[l] = base + strip * STRIP + (from + l - tiles.start(strip)) * TALL;
  }
  for (int s = t; s < strips; s += THREADS) slots[s] = tiles.block_of(tiles.start(s + 1) - 1) - tiles.block_of(tiles.start(s)) + 1;
  __syncthreads();
  const int first_strip = count ? tile_strip[0] : 0, strips_here = count ? tile_strip[count - 1] - first_strip + 1 : 0;

  Vector next[C];
  const auto fetch = [&](int l) {
    const int row = tile_row[l] + lane * VEC, column = base + tile_strip[l] * STRIP + warp * C;
#pragma unroll
    for (int c = 0; c < C; c++) {
      if (row < pitch && column + c < n)
        next[c] = *(const Vector*)(at.a + (i64)(column + c) * pitch + row);
      else  // what the tile before had there may be anything, above the diagonal
        next[c] = empty();
    }
  };

  const int kept = min(at.kept, count);
  for (int l = 0; l < kept; l++) {
    fetch(l);
#pragma unroll
    for (int c = 0; c < C; c++) kept_tiles[(l * C + c) * THREADS + t] = next[c];
  }

  // what a thread does for the vectors: row number t % ROWS of its block's, or the row of the next column
  const int r = t % ROWS, part = t / ROWS, own = base + block * share + r;
  int goal = at.gate_from;
  const auto give_column = [&](T x, int k) {  // the next column, k, of which only what lies below the diagonal counts
    Real square_sum = 0;
    if (part == 0 && r < share && own < n) {
      at.x[own] = x;
      if (own == k) at.d[k] = real(x);
      if (own > k + 1) square_sum = square(x);
    }
    if (warp < ROW_WARPS) {
      square_sum = sum_lanes<32>(square_sum);
      if (lane == 0) at.squares[block * ROW_WARPS + warp] = square_sum;
    }
  };
  give_column(part == 0 && r < share && own < n ? at.a[(i64)base * pitch + own] : zero(), base);
  if (kept < count) fetch(kept);
  wait_for_all(at.gate, goal);

  for (int k = base; k < base + PANEL; k++) {
    const int done = k - base, head = k + 1;  // columns of V and W; where the new vector begins

    // ---- the new vector u, and A u
    // loads first: all of them are on their way at once
    Real square_parts[SQUARES], rest = 0, beta;
#pragma unroll
    for (int i = 0; i < SQUARES; i++) square_parts[i] = lane + 32 * i < BLOCKS * ROW_WARPS ? at.squares[lane + 32 * i] : Real(0);
    const T alpha = at.x[head];
    const auto row_of = [&](int i) { return tile_row[i / 32] + i % 32 * VEC; };
    const auto column_of = [&](int i) { return base + first_strip * STRIP + i; };
    const auto load_rows = [&](int i) { return i < count * 32 && row_of(i) < pitch ? *(const Vector*)(at.x + row_of(i)) : empty(); };
    const auto load_column = [&](int i) { return i < strips_here * STRIP && column_of(i) < n ? at.x[column_of(i)] : zero(); };
    Vector x_rows = load_rows(t);
    T x_column = load_column(t);
    const int chunks = (m + at.chunk - 1) / at.chunk, unit = block + BLOCKS * warp, dot = unit / chunks;
    T dot_rest = zero(), dot_head = zero();  // y^H u: what comes with the factor, and the element at the head
    if (dot < 2 * done) {
      const int begin = base + unit % chunks * at.chunk, end = min(begin + at.chunk, n);
      const T* line = at.left + (i64)(dot < done ? dot : PANEL + dot - done) * pitch;
#pragma unroll 4
      for (int row = begin + lane * VEC; row < end; row += TALL) {
        const Vector y = *(const Vector*)(line + row), x = *(const Vector*)(at.x + row);
#pragma unroll
        for (int e = 0; e < VEC; e++) {
          dot_rest = add_product(dot_rest, row + e > head ? x.v[e] : zero(), y.v[e]);
          if (row + e == head) dot_head = conjugate(y.v[e]);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < SQUARES; i++) rest += square_parts[i];
    rest = sum_lanes<32>(rest);
    T tau;
    const T factor = reflector(alpha, rest, tau, beta);
    for (int i = t; i < count * 32; i += THREADS) {
      if (i != t) x_rows = load_rows(i);
#pragma unroll
      for (int e = 0; e < VEC; e++) x_rows.v[e] = vector_of(x_rows.v[e], row_of(i) + e, head, n, factor);
      rows_u[i] = x_rows;
    }
    for (int i = t; i < strips_here * STRIP; i += THREADS) {
      if (i != t) x_column = load_column(i);
      columns_u[i] = vector_of(x_column, column_of(i), head, n, factor);
    }
    if (dot < 2 * done) {
      const T sum = sum_lanes<32>(add(multiply(dot_rest, factor), dot_head));
      if (lane == 0) at.dots[unit] = sum;
    }
    __syncthreads();

    Real form = 0;
    T down[C];  // sums over the rows
#pragma unroll
    for (int c = 0; c < C; c++) down[c] = zero();
    for (int l = 0; l < count; l++) {
      Vector a[C];
#pragma unroll
      for (int c = 0; c < C; c++) a[c] = l < kept ? kept_tiles[(l * C + c) * THREADS + t] : next[c];
      if (l >= kept && l + 1 < count) fetch(l + 1);
      const int strip = tile_strip[l], row = tile_row[l], column = base + strip * STRIP + warp * C;
      const T* uc = columns_u + (strip - first_strip) * STRIP + warp * C;
      const Vector u = rows_u[l * 32 + lane];
      Vector across_sum;
#pragma unroll
      for (int e = 0; e < VEC; e++) across_sum.v[e] = zero();
      if (row < base + (strip + 1) * STRIP) {  // on the diagonal
#pragma unroll
        for (int c = 0; c < C; c++)
#pragma unroll
          for (int e = 0; e < VEC; e++) {
            const int under = row + lane * VEC + e - column - c;
            const T x = under == 0 ? from_real(real(a[c].v[e])) : a[c].v[e];
            across_sum.v[e] = add_plain(across_sum.v[e], select(under >= 0, x, zero()), uc[c]);
            down[c] = add_product(down[c], u.v[e], select(under > 0, x, zero()));
          }
      } else {
#pragma unroll
        for (int c = 0; c < C; c++) {
          const T by = uc[c];
#pragma unroll
          for (int e = 0; e < VEC; e++) {
            across_sum.v[e] = add_plain(across_sum.v[e], a[c].v[e], by);
            down[c] = add_product(down[c], u.v[e], a[c].v[e]);
          }
        }
      }
      parts[(l % 2 * WARPS + warp) * 32 + lane] = across_sum;
      __syncthreads();
      if (t / TALL == l % (THREADS / TALL)) {
        const T* list = (const T*)(parts + l % 2 * WARPS * 32) + t % TALL;
        T sum = zero();
#pragma unroll
        for (int w = 0; w < WARPS; w++) sum = add(sum, list[w * TALL]);
        const int i = row + t % TALL;
        if (i < n) at.rows[(i64)strip * pitch + i] = sum;
        form += real(add_product(zero(), sum, ((const T*)rows_u)[l * TALL + t % TALL]));
      }
      if (l + 1 == count || tile_strip[l + 1] != strip) {
        const int slot = block - tiles.block_of(tiles.start(strip));
#pragma unroll
        for (int c = 0; c < C; c++) {
          const T sum = sum_lanes<32>(down[c]);
          if (lane == c && column + c < n) {
            at.columns[(i64)slot * pitch + column + c] = sum;
            form += real(add_product(zero(), sum, uc[c]));
          }
          down[c] = zero();
        }
      }
    }
    form = sum_lanes<32>(form);
    if (lane == 0) numbers[warp] = form;
    __syncthreads();
    if (t == 0) {
      form = 0;
      for (int w = 0; w < WARPS; w++) form += numbers[w];
      at.forms[block] = form;
    }
    if (kept < count) fetch(kept);
    wait_for_all(at.gate, goal);

    // ---- w and the next column, in the block's own rows and in the row where the next vector begins
    const int row = r < share ? own : head;
    const bool here = r <= share && row < n && row > k;
    // loads first, as above
    T product = zero(), column = zero(), u = zero(), held_v[HELD], held_w[HELD], head_v[HELD], before_w[HELD], dot_parts[DOT_PARTS];
    Real form_parts[FORMS];
#pragma unroll
    for (int h = 0; h < HELD; h++) {
      const int p = part + PARTS * h;
      const bool needed = here && p < done;
      held_v[h] = needed ? at.left[(i64)p * pitch + row] : zero();
      held_w[h] = needed ? at.left[(i64)(PANEL + p) * pitch + row] : zero();
      head_v[h] = needed ? at.left[(i64)p * pitch + head] : zero();
      before_w[h] = needed ? at.left[(i64)(PANEL + p) * pitch + head] : zero();
    }
    const int own_dot = t / DOT_LANES;
#pragma unroll
    for (int i = 0; i < DOT_PARTS; i++) {
      const int c = t % DOT_LANES + DOT_LANES * i;
      dot_parts[i] = own_dot < 2 * done && c < chunks ? at.dots[own_dot * chunks + c] : zero();
    }
#pragma unroll
    for (int i = 0; i < FORMS; i++) form_parts[i] = warp == WARPS - 1 && lane + 32 * i < BLOCKS ? at.forms[lane + 32 * i] : Real(0);
    if (here) {
      if (part == 0) {
        column = at.a[(i64)head * pitch + row];
        u = at.x[row];
      }
      const int strip = (row - base) / STRIP, both = strip + 1 + slots[strip];
#pragma unroll 4
      for (int s = part; s < both; s += PARTS)
        product = add(product, s <= strip ? at.rows[(i64)s * pitch + row] : at.columns[(i64)(s - strip - 1) * pitch + row]);
      if (part == 0) u = vector_of(u, row, head, n, factor);
    }
#pragma unroll
    for (int h = 0; h < HELD; h++) column = subtract_product(subtract_product(column, held_v[h], before_w[h]), held_w[h], head_v[h]);
    T dot_sum = zero();
#pragma unroll
    for (int i = 0; i < DOT_PARTS; i++) dot_sum = add(dot_sum, dot_parts[i]);
    dot_sum = sum_lanes<DOT_LANES>(dot_sum);
    if (t % DOT_LANES == 0) dots[own_dot] = dot_sum;
    Real form_sum = 0;
#pragma unroll
    for (int i = 0; i < FORMS; i++) form_sum += form_parts[i];
    __syncthreads();
    // dots: first V^H u, from `done` on W^H u
#pragma unroll
    for (int h = 0; h < HELD; h++) {
      const int p = part + PARTS * h;
      if (p < done) product = subtract_plain(subtract_plain(product, held_v[h], dots[done + p]), held_w[h], dots[p]);
    }
    sums[t] = product;
    sums[THREADS + t] = column;
    if (warp == WARPS - 1) {
      for (int p = lane; p < done; p += 32) form_sum -= 2 * real(add_product(zero(), dots[p], dots[done + p]));
      form_sum = sum_lanes<32>(form_sum);
      if (lane == 0) numbers[WARPS] = form_sum;
    }
    __syncthreads();
    T w = zero();
    if (part == 0) {
      product = column = zero();
#pragma unroll 8
      for (int p = 0; p < PARTS; p++) {
        product = add(product, sums[p * ROWS + r]);
        column = add(column, sums[THREADS + p * ROWS + r]);
      }
      // w <- tau y - |tau|^2 (u^H y) u / 2
      if (here) w = subtract(multiply(tau, product), scale(u, Real(0.5) * square(tau) * numbers[WARPS]));
      if (r == share) head_w[0] = w;
    }
    __syncthreads();
    if (part == 0 && r < share && own < n) {
      at.left[(i64)done * pitch + own] = at.right[(i64)(PANEL + done) * pitch + own] = u;
      at.left[(i64)(PANEL + done) * pitch + own] = at.right[(i64)done * pitch + own] = w;
      at.v[(i64)k * pitch + own] = u;
    }
    if (block == 0 && t == 0) {
      at.e[k] = beta;
      at.tau[k] = tau;
    }
    if (k + 1 < base + PANEL) {
      give_column(here ? subtract(subtract_product(column, u, head_w[0]), w) : zero(), head);
      wait_for_all(at.gate, goal);
    }
  }
}
