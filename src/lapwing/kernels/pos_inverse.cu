// Inverses of positive definite matrices: a block of threads for each, of whose matrix only the lower triangle is in shared memory,
// so that more blocks share a multiprocessor than with whole matrices.
//
// L, then Z = L^-1 in its place, then Z^H Z to global memory, both triangles of it. All of them by tiles of 32 x 32, with products
// by the matrix instruction where the GPU has one. Rows from n up to LW_N are those of the identity.
//   LW_N  n rounded up to 32
#include "packed.cuh"

struct Call {
  const T* a;
  T* out;
  int* info;
  i64 batch;
  int n;
};

LW_INLINE T& element(int i, int j) { return tile(i / TILE, 0)[i % TILE * pitch_of(i / TILE) + j]; }

// C <- C + op(A) B, a tile deep; op(A) is A, or with ADJOINT A^H. As for Piece::add, warps that are not `active` come here in waves of
// 64 alone.
template <bool ADJOINT, int X, int Y>
LW_INLINE void add_tile(Piece<X, Y>& c, const T* a, int a_pitch, const T* b, int b_pitch, bool active = true) {
#if LW_MATRIX == 64
  const Lines<T> left = {a, ADJOINT ? 1 : a_pitch, ADJOINT ? a_pitch : 1}, right = {b, 1, b_pitch};
  multiply_halves(c.v, left, right, TILE, active);
#else
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#if LW_DTYPE == 1 && LW_MATRIX == 16
  const double* left = a + (ADJOINT ? t * a_pitch + g : g * a_pitch + t);
  const double* right = b + t * b_pitch + g;
#pragma unroll
  for (int k = 0; k < TILE; k += 8) {
    double p[X][2], q[Y][2];
#pragma unroll
    for (int e = 0; e < 2; e++) {
#pragma unroll
      for (int x = 0; x < X; x++) p[x][e] = left[ADJOINT ? (k + 4 * e) * a_pitch + 8 * x : 8 * x * a_pitch + k + 4 * e];
#pragma unroll
      for (int y = 0; y < Y; y++) q[y][e] = right[(k + 4 * e) * b_pitch + 8 * y];
    }
#pragma unroll
    for (int x = 0; x < X; x += 2)
#pragma unroll
      for (int y = 0; y < Y; y++)
        multiply_tile(c.v[x][y][0], c.v[x][y][1], c.v[x + 1][y][0], c.v[x + 1][y][1], p[x][0], p[x + 1][0], p[x][1], p[x + 1][1],
                      q[y][0], q[y][1]);
  }
#else
#pragma unroll 4
  for (int k = 0; k < TILE; k++) {
    T p[X], q[Y][2];
#pragma unroll
    for (int x = 0; x < X; x++) p[x] = ADJOINT ? conjugate(a[k * a_pitch + g + 8 * x]) : a[(g + 8 * x) * a_pitch + k];
#pragma unroll
    for (int y = 0; y < Y; y++) load_registers<(SIZE == 16 ? 16 : 2 * SIZE)>(q[y], (const char*)(b + k * b_pitch + 8 * y + 2 * t));
#pragma unroll
    for (int x = 0; x < X; x++)
#pragma unroll
      for (int y = 0; y < Y; y++)
#pragma unroll
        for (int e = 0; e < 2; e++) c.v[x][y][e] = subtract_plain(c.v[x][y][e], negate(p[x]), q[y][e]);
  }
#endif
#endif
}

// x <- x L^-1 for a row of 32
LW_INLINE void solve_right(T (&x)[TILE], const T* l, int ld, const Real* reciprocals) {
#pragma unroll
  for (int step = 0; step < TILE; step++) {
    const int k = TILE - 1 - step;
    x[k] = scale(x[k], reciprocals[k]);
#pragma unroll
    for (int c = 0; c < TILE; c += VEC) {
      if (c < k) {
        const Vector p = *(const Vector*)(l + k * ld + c);
#pragma unroll
        for (int v = 0; v < VEC; v++)
          if (c + v < k) x[c + v] = subtract_plain(x[c + v], x[k], p.v[v]);
      }
    }
  }
}

// The triangle <- L^-1, a block column at a time from the right: Z L = I, so that Z(j,j) <- L(j,j)^-1 and
// Z(i,j) <- -(sum over j < k <= i of Z(i,k) L(k,j)) L(j,j)^-1. Solving with L(j,j) instead of multiplying by its inverse keeps the
// residual of Z L as small as that of the factorisation.
LW_INLINE void invert_triangle(int warp, const Real* reciprocals) {
  constexpr int MOST = (2 * (BLOCKS - 1) + WARPS - 1) / WARPS > 1 ? 2 : 1;  // pieces of 16 rows that a warp computes
  static_assert(2 * (BLOCKS - 1) <= 2 * WARPS, "a warp for each block row");
  const int lane = threadIdx.x % 32;
#pragma unroll 1
  for (int j = BLOCKS - 1; j >= 0; j--) {
    const int count = 2 * (BLOCKS - 1 - j);
    Piece<2, 4> piece[MOST];
    // the lowest rows have the longest sums: who has one of them has a short one as well
#pragma unroll
    for (int turn = 0; turn < MOST; turn++) {
      const int at = turn ? 2 * WARPS - 1 - warp : warp;
      piece[turn].clear();
      if (at < count) {
        const int i = BLOCKS - 1 - at / 2, skip = at % 2 * 16 * pitch_of(i);
#pragma unroll 1
        for (int k = j + 1; k <= i; k++) add_tile<false>(piece[turn], tile(i, k) + skip, pitch_of(i), tile(k, j), pitch_of(k));
      }
    }
    __syncthreads();
#pragma unroll
    for (int turn = 0; turn < MOST; turn++) {
      const int at = turn ? 2 * WARPS - 1 - warp : warp;
      if (at < count) {
        const int i = BLOCKS - 1 - at / 2;
        T* to = tile(i, j) + at % 2 * 16 * pitch_of(i);
        piece[turn].each([&](int row, int column, T* pair) {
          to[row * pitch_of(i) + column] = negate(pair[0]);
          to[row * pitch_of(i) + column + 1] = negate(pair[1]);
        });
      }
    }
    __syncthreads();
    const int i = j + warp;
    T x[TILE];
    if (i < BLOCKS) {
      T* row = tile(i, j) + lane * pitch_of(i);
      if (i > j) load_registers<16>(x, (const char*)row);
#pragma unroll
      for (int k = 0; k < TILE; k++)
        if (i == j) x[k] = from_real(Real(k == lane));
      solve_right(x, tile(j, j), pitch_of(j), reciprocals + TILE * j);
    }
    __syncthreads();
    if (i < BLOCKS) store_registers<16>((char*)(tile(i, j) + lane * pitch_of(i)), x);
    __syncthreads();
  }
}

// Two neighbours of a row of the inverse, and their mirror images. `below`: the tile is below the diagonal.
LW_INLINE void store_pair(T* out, int n, int row, int column, const T (&pair)[2], bool below, Real poison) {
  T x[2];
#pragma unroll
  for (int e = 0; e < 2; e++) {
    // the triangle of conj(A) is in memory where it is read transposed
    const T own = LW_UPPER ? conjugate(pair[e]) : pair[e];
    x[e] = subtract(select(row == column + e, from_real(real(own)), own), filled(poison));
  }
  if (row >= n) return;
  if (LW_V >= 2 * SIZE && below) {
    store_registers<2 * SIZE>((char*)(out + row * n + column), x);
  } else {
#pragma unroll
    for (int e = 0; e < 2; e++)
      if (column + e <= row) store_element(out + row * n + column + e, x[e]);
  }
#pragma unroll
  for (int e = 0; e < 2; e++)
    if (column + e < row) store_element(out + (column + e) * n + row, conjugate(x[e]));
}

// out <- Z^H Z: Hermitian by its form. Tiles with the longest sums go first, and each warp takes the next one when it is ready.
LW_INLINE void store_square(T* out, int n, int* ticket, bool failed) {
  const Real poison = failed ? not_a_number() : Real(0);
  constexpr int TILES = BLOCKS * (BLOCKS + 1) / 2;
  for (;;) {
    const int at = shuffle(threadIdx.x % 32 == 0 ? atomicAdd(ticket, 1) : 0, 0);
#if LW_MATRIX == 64
    if (of_half(at, 0) >= TILES && of_half(at, 1) >= TILES) break;
#else
    if (at >= TILES) break;
#endif
    int i = 0, j = at;
    for (; j > i; i++) j -= i + 1;
    Piece<4, 4> sum;
    sum.clear();
#if LW_MATRIX == 64
    const int first = min(of_half(i, 0), of_half(i, 1));
#else
    const int first = i;
#endif
#pragma unroll 1
    for (int k = first; k < BLOCKS; k++)
      add_tile<true>(sum, tile(k, i), pitch_of(k), tile(k, j), pitch_of(k), k >= i);
    if (LW_MATRIX == 64 && at >= TILES) continue;  // a warp that only helped the other
#pragma unroll
    for (int x = 0; x < 4; x++)
#pragma unroll
      for (int y = 0; y < 4; y++)
        store_pair(out, n, TILE * i + sum.row(x), TILE * j + sum.column(x, y), sum.v[x][y], i > j, poison);
  }
}

extern "C" __global__ void __launch_bounds__(LW_THREADS, LW_RESIDENT) pos_inverse(Call call) {
  const int n = call.n;
  T* room = (T*)memory + start_of(BLOCKS);
  Real* reciprocals = (Real*)((char*)room + ROOM);
  int *first_bad = (int*)(reciprocals + LW_N), *ticket = first_bad + 1, *lead = first_bad + 2;
  if (threadIdx.x == 0) *lead = WARPS % 4 == 0 ? block_slot(WARPS) % 4 : 0;
  for (i64 which = blockIdx.x; which < call.batch; which += gridDim.x) {
    load_triangle(call.a + which * n * n, n);
    for (int at = threadIdx.x; at < (LW_N - n) * LW_N; at += LW_THREADS) {
      const int i = n + at / LW_N, j = at % LW_N;
      element(i, j) = from_real(Real(i == j));
    }
    if (threadIdx.x == 0) *first_bad = *ticket = 0;
    __syncthreads();
    const int warp = (threadIdx.x / 32 + WARPS - *lead) % WARPS;
    factor_triangle<BLOCKS, true>(LW_N, LW_N, warp, room, reciprocals, first_bad);
    invert_triangle(warp, reciprocals);
    store_square(call.out + which * n * n, n, ticket, *first_bad != 0);
    if (threadIdx.x == 0) call.info[which] = *first_bad;
    __syncthreads();
  }
}
