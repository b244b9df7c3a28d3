// What every device source shares: the element type, copies into shared memory, and the 32 x 32 tile operations.
//
// Compile-time choices, set by the launcher:
//   LW_DTYPE  0 float, 1 double, 2 complex of float, 3 complex of double
//   LW_UPPER  1: the memory is read and written transposed, so that the kernels only know the lower triangle.
//             B(i,j) = mem[j*n + i] is conj(A), B = L L^H, and L^T written the same way is U with A = U^H U
//   LW_V      bytes of one global access: 16, or less where a pointer or a row is not aligned to 16
#pragma once
#include "lanes.cuh"
#include "matrix_cores.cuh"

typedef long long i64;
typedef unsigned long long u64;

#if LW_DTYPE == 0 || LW_DTYPE == 2
typedef float Real;
#define LW_LARGEST 3.402823466e+38f
#else
typedef double Real;
#define LW_LARGEST 1.7976931348623157e+308
#endif

template <typename R>
struct alignas(2 * sizeof(R)) Complex {
  R re, im;
};
#if LW_DTYPE < 2
typedef Real T;
#else
typedef Complex<Real> T;
#endif

// The dynamic shared memory of a kernel
extern __shared__ __align__(16) char memory[];

constexpr int SIZE = sizeof(T);
constexpr int VEC = 16 / SIZE;  // elements in one 16-byte access
constexpr int TILE = 32;
constexpr int ROOM = 8 * TILE * sizeof(T);  // bytes that factor_tile needs beside the tile

template <typename E, int COUNT>
struct alignas(sizeof(E) * COUNT) Pack {
  E v[COUNT];
};
typedef Pack<T, VEC> Vector;

// ---- scalars -----------------------------------------------------------------------------------------------------

LW_INLINE float reciprocal_root(float x) { return rsqrtf(x); }
// Without a branch, so that other work can be scheduled around it. The hardware's 20 bits and one step of third order:
// y <- y + y e (1/2 + 3/8 e), e = 1 - x y^2. Subnormal numbers are scaled first.
LW_INLINE double reciprocal_root(double x) {
  bool small = x < 1e-300;
  double s = small ? x * 0x1p200 : x, y = estimated_root(s);
  double e = fma(-s * y, y, 1.0);
  y = fma(y * e, fma(e, 0.375, 0.5), y);
  return small ? y * 0x1p100 : y;
}
LW_INLINE bool is_pivot(Real d) { return d > Real(0) && d <= Real(LW_LARGEST); }
LW_INLINE Real not_a_number() { return Real(__int_as_float(0x7fffffff)); }

#if LW_DTYPE < 2
LW_INLINE Real real(T x) { return x; }
LW_INLINE Real imaginary(T) { return Real(0); }
LW_INLINE T conjugate(T x) { return x; }
LW_INLINE T select(bool first, T a, T b) { return first ? a : b; }
LW_INLINE T from_real(Real x) { return x; }
LW_INLINE T scale(T x, Real by) { return x * by; }
LW_INLINE T negate(T x) { return -x; }
LW_INLINE T subtract(T a, T b) { return a - b; }
// c + a conj(b) and c - a conj(b)
LW_INLINE T add_product(T c, T a, T b) { return a * b + c; }
LW_INLINE T subtract_product(T c, T a, T b) { return c - a * b; }
LW_INLINE T subtract_plain(T c, T a, T b) { return c - a * b; }
LW_INLINE bool is_finite(T x) { return x - x == Real(0); }
LW_INLINE T filled(Real x) { return x; }
#else
LW_INLINE Real real(T x) { return x.re; }
LW_INLINE Real imaginary(T x) { return x.im; }
LW_INLINE T conjugate(T x) { return T{x.re, -x.im}; }
LW_INLINE T select(bool first, T a, T b) { return T{first ? a.re : b.re, first ? a.im : b.im}; }
LW_INLINE T from_real(Real x) { return T{x, Real(0)}; }
LW_INLINE T scale(T x, Real by) { return T{x.re * by, x.im * by}; }
LW_INLINE T negate(T x) { return T{-x.re, -x.im}; }
LW_INLINE T subtract(T a, T b) { return T{a.re - b.re, a.im - b.im}; }
LW_INLINE T add_product(T c, T a, T b) {
  return T{a.im * b.im + (a.re * b.re + c.re), a.im * b.re + (c.im - a.re * b.im)};
}
LW_INLINE T subtract_product(T c, T a, T b) {
  return T{(c.re - a.re * b.re) - a.im * b.im, (c.im - a.im * b.re) + a.re * b.im};
}
// c - a b
LW_INLINE T subtract_plain(T c, T a, T b) {
  return T{(c.re - a.re * b.re) + a.im * b.im, (c.im - a.im * b.re) - a.re * b.im};
}
LW_INLINE bool is_finite(T x) { return x.re - x.re == Real(0) && x.im - x.im == Real(0); }
LW_INLINE T filled(Real x) { return T{x, x}; }
#endif

LW_INLINE T zero() { return filled(Real(0)); }

// ---- copies ------------------------------------------------------------------------------------------------------

constexpr int ELEMENT = SIZE < LW_V ? SIZE : LW_V;  // bytes of one access when going element by element

LW_INLINE void copy_element(T* shared, const T* global, bool inside = true) {
#pragma unroll
  for (int byte = 0; byte < SIZE; byte += ELEMENT)
    copy_async<ELEMENT>((char*)shared + byte, (const char*)global + byte, inside);
}

LW_INLINE void store_element(T* global, T x) {
  typedef Pack<Real, ELEMENT / sizeof(Real)> Part;
#pragma unroll
  for (int byte = 0; byte < SIZE; byte += ELEMENT) *(Part*)((char*)global + byte) = *(Part*)((char*)&x + byte);
}

LW_INLINE T load_element(const T* global) {
  typedef Pack<Real, ELEMENT / sizeof(Real)> Part;
  T x;
#pragma unroll
  for (int byte = 0; byte < SIZE; byte += ELEMENT) *(Part*)((char*)&x + byte) = *(const Part*)((const char*)global + byte);
  return x;
}

// STEP elements to global memory in one access, or one in as many as its alignment wants.
template <int STEP>
LW_INLINE void store_pack(T* global, Pack<T, STEP> p) {
  if (LW_V >= SIZE)
    *(Pack<T, STEP>*)global = p;
  else
    store_element(global, p.v[0]);
}

// COUNT neighbouring elements between registers and a staged row, in accesses of UNIT bytes.
template <int UNIT, int COUNT>
LW_INLINE void load_registers(T (&a)[COUNT], const char* row) {
  constexpr int STEP = UNIT > SIZE ? UNIT / SIZE : 1;
  typedef Pack<T, STEP> Access;
#pragma unroll
  for (int k = 0; k < COUNT; k += STEP) {
    Access p = *(const Access*)(row + k * SIZE);
#pragma unroll
    for (int v = 0; v < STEP; v++) a[k + v] = p.v[v];
  }
}

template <int UNIT, int COUNT>
LW_INLINE void store_registers(char* row, const T (&a)[COUNT]) {
  constexpr int STEP = UNIT > SIZE ? UNIT / SIZE : 1;
  typedef Pack<T, STEP> Access;
#pragma unroll
  for (int k = 0; k < COUNT; k += STEP) {
    Access p;
#pragma unroll
    for (int v = 0; v < STEP; v++) p.v[v] = a[k + v];
    *(Access*)(row + k * SIZE) = p;
  }
}

// f(k, element k) for the elements of a line of N in shared memory after element j, which are read VEC at a time.
template <int N, typename F>
LW_INLINE void each_after(const T* line, int j, F f) {
#pragma unroll
  for (int k0 = 0; k0 < N; k0 += VEC) {
    if (k0 + VEC > j + 1) {
      Vector p = *(const Vector*)(line + k0);
#pragma unroll
      for (int v = 0; v < VEC; v++)
        if (k0 + v > j && k0 + v < N) f(k0 + v, p.v[v]);
    }
  }
}

// The value of the lane whose number differs by the bits of `step`.
LW_INLINE Real across(Real x, int step) { return shuffle_xor(x, step); }
#if LW_DTYPE >= 2
LW_INLINE T across(T x, int step) { return T{across(x.re, step), across(x.im, step)}; }
#endif

// Pair number p -> tile (i,j), j <= i, counting row by row.
LW_INLINE void pair_of(i64 p, i64& i, i64& j) {
  i = (i64)((sqrt(8.0 * (double)p + 1.0) - 1.0) * 0.5);
  while (i * (i + 1) / 2 > p) i--;
  while ((i + 1) * (i + 2) / 2 <= p) i++;
  j = p - i * (i + 1) / 2;
}

// ---- 32 x 32 tiles -----------------------------------------------------------------------------------------------

LW_INLINE void store_four(T* to, T x0, T x1, T x2, T x3) {
  T x[4] = {x0, x1, x2, x3};
  store_registers<16>((char*)to, x);
}

// a <- a - x y^H for x and y of four elements
LW_INLINE T subtract_four(T a, const T (&x)[4], const T* y) {
  T four[4];
  load_registers<16>(four, (const char*)y);
#pragma unroll
  for (int q = 0; q < 4; q++) a = subtract_product(a, x[q], four[q]);
  return a;
}

// Row r of the matrix is in lane r's registers, N a multiple of 4. A = L L^H; returns 0 or the 1-based first column whose
// pivot is not finite and positive. What lies right of the diagonal is never used, nor rows and columns past `columns`.
//
// The chain from column to column is the cost, so four columns are taken at once: their rows are published, every lane
// factors the 4 x 4 diagonal block for itself and solves its own row with it, and the solved rows are published for the
// update, which begins with the next four columns. `room` holds 8 elements for each of the `lanes` lanes.
template <int N, bool KEEP>
LW_INLINE int factor_rows(T (&a)[N], int r, int columns, T* room, int lanes, Real* reciprocals) {
  T* panel = room;
  T* solved = room + 4 * lanes;
  int bad = 0;
  store_four(panel + 4 * r, a[0], a[1], a[2], a[3]);
#pragma unroll
  for (int j = 0; j < N; j += 4) {
    if (j < columns) {
      sync_warp();
      T b[4][4], x[4] = {a[j], a[j + 1], a[j + 2], a[j + 3]};
#pragma unroll
      for (int q = 0; q < 4; q++) load_registers<16>(b[q], (const char*)(panel + 4 * (j + q)));
#pragma unroll
      for (int q = 0; q < 4; q++) {
        Real d = real(b[q][q]), s = reciprocal_root(d);
        if (!is_pivot(d) && bad == 0 && j + q < columns) bad = j + q + 1;
        if (KEEP && r == j + q) reciprocals[r] = s;
        x[q] = r == j + q ? from_real(d * s) : scale(x[q], s);
#pragma unroll
        for (int i = q + 1; i < 4; i++) {
          b[i][q] = scale(b[i][q], s);
          x[i] = subtract_product(x[i], x[q], b[i][q]);
#pragma unroll
          for (int k = q + 1; k <= i; k++) b[i][k] = subtract_product(b[i][k], b[i][q], b[k][q]);
        }
      }
#pragma unroll
      for (int q = 0; q < 4; q++) a[j + q] = x[q];
      if (j + 4 < N) {
        store_four(solved + 4 * r, x[0], x[1], x[2], x[3]);
        sync_warp();
#pragma unroll
        for (int k = j + 4; k < j + 8; k++) a[k] = subtract_four(a[k], x, solved + 4 * k);
        store_four(panel + 4 * r, a[j + 4], a[j + 5], a[j + 6], a[j + 7]);
#pragma unroll
        for (int k = j + 8; k < N; k++) a[k] = subtract_four(a[k], x, solved + 4 * k);
      }
    }
  }
  return bad;
}

// One warp: S <- L of the 32 x 32 tile S, exact zeros above the diagonal. `room` is ROOM bytes.
LW_INLINE int factor_tile(T* s, int ld, int columns, T* room, Real* reciprocals) {
  int r = threadIdx.x % 32;
  T a[TILE];
  load_registers<16>(a, (const char*)(s + r * ld));
  int bad = factor_rows<TILE, true>(a, r, columns, room, 32, reciprocals);
#pragma unroll
  for (int k = 0; k < TILE; k += VEC) {
    Vector p;
#pragma unroll
    for (int v = 0; v < VEC; v++) p.v[v] = k + v <= r ? a[k + v] : zero();
    *(Vector*)(s + r * ld + k) = p;
  }
  return bad;
}

// x <- x L^-H for one row x of 32 in shared memory, four columns at a time; L is a 32 x 32 tile.
LW_INLINE void solve_row(T* row, const T* l, int ld, const Real* reciprocals) {
  T x[TILE];
  load_registers<16>(x, (const char*)row);
#pragma unroll
  for (int j = 0; j < TILE; j += 4) {
#pragma unroll
    for (int k = 0; k < j; k += VEC) {
#pragma unroll
      for (int q = 0; q < 4; q++) {
        Vector p = *(const Vector*)(l + (j + q) * ld + k);
#pragma unroll
        for (int v = 0; v < VEC; v++) x[j + q] = subtract_product(x[j + q], x[k + v], p.v[v]);
      }
    }
#pragma unroll
    for (int q = 0; q < 4; q++) {
      x[j + q] = scale(x[j + q], reciprocals[j + q]);
#pragma unroll
      for (int p = q + 1; p < 4; p++) x[j + p] = subtract_product(x[j + p], x[j + q], l[(j + p) * ld + j + q]);
    }
  }
  store_registers<16>((char*)row, x);
}

// The piece of a product that one lane of a warp holds, as pair_row and pair_column say. IN_PARTS: the matrix instructions take floats
// in parts of 11 bits, where there are such; rows must then be 4 elements more than a multiple of 32 apart, for no bank conflicts.
template <int X, int Y, bool IN_PARTS = false>
struct Piece {
  static constexpr bool BY_WAVES = LW_MATRIX == 64 && X % 2 == 0 && Y % 2 == 0;
  static constexpr bool BY_PARTS = IN_PARTS && LW_DTYPE == 0 && LW_MATRIX == 16;
  T v[X][Y][2];

  LW_INLINE void clear() {
#pragma unroll
    for (int x = 0; x < X; x++)
#pragma unroll
      for (int y = 0; y < Y; y++) v[x][y][0] = v[x][y][1] = zero();
  }

  LW_INLINE static int row(int x) { return pair_row<BY_WAVES>(x); }
  LW_INLINE static int column(int x, int y) { return pair_column<BY_WAVES>(x, y); }

  // Calls f(row, column, first of two elements) for each pair of neighbours.
  template <typename F>
  LW_INLINE void each(F f) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int x = 0; x < X; x++)
#pragma unroll
      for (int y = 0; y < Y; y++) f(BY_WAVES ? row(x) : g + 8 * x, BY_WAVES ? column(x, y) : 8 * y + 2 * t, v[x][y]);
  }

  // V <- V + A B^H over DEPTH columns, A of 8X rows and B of 8Y rows in shared memory. Both warps of a wave of 64 come here together;
  // one that is not `active` there only helps the other.
  template <int DEPTH>
  LW_INLINE void add(const T* a, int lda, const T* b, int ldb, bool active = true) {
#if LW_MATRIX == 64
    if constexpr (BY_WAVES) {
      multiply_halves(v, Lines<T>{a, lda, 1}, Lines<T>{b, ldb, 1}, DEPTH, active);
      return;
    }
#endif
    int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#if LW_DTYPE == 0 && LW_MATRIX == 16
    if constexpr (BY_PARTS) {
#pragma unroll 2
      for (int k = 0; k < DEPTH; k += 8) {
        T p[X][2], q[Y][2];
#pragma unroll
        for (int x = 0; x < X; x++)
#pragma unroll
          for (int e = 0; e < 2; e++) p[x][e] = a[(g + 8 * x) * lda + k + 4 * e + t];
#pragma unroll
        for (int y = 0; y < Y; y++)
#pragma unroll
          for (int e = 0; e < 2; e++) q[y][e] = b[(g + 8 * y) * ldb + k + 4 * e + t];
        multiply_in_parts(v, p, q);
      }
    }
#endif
#if LW_DTYPE == 1 && LW_MATRIX == 16
#pragma unroll
    for (int k = 0; k < DEPTH; k += 8) {
      T p[X][2], q[Y][2];
#pragma unroll
      for (int x = 0; x < X; x++)
#pragma unroll
        for (int e = 0; e < 2; e++) p[x][e] = a[(g + 8 * x) * lda + k + 4 * e + t];
#pragma unroll
      for (int y = 0; y < Y; y++)
#pragma unroll
        for (int e = 0; e < 2; e++) q[y][e] = b[(g + 8 * y) * ldb + k + 4 * e + t];
#pragma unroll
      for (int x = 0; x < X; x += 2)
#pragma unroll
        for (int y = 0; y < Y; y++)
          multiply_tile(v[x][y][0], v[x][y][1], v[x + 1][y][0], v[x + 1][y][1], p[x][0], p[x + 1][0], p[x][1], p[x + 1][1], q[y][0],
                        q[y][1]);
    }
#elif LW_DTYPE == 1 && LW_MATRIX == 8
#pragma unroll 4
    for (int k = 0; k < DEPTH; k += 4) {
      T p[X], q[Y];
#pragma unroll
      for (int x = 0; x < X; x++) p[x] = a[(g + 8 * x) * lda + k + t];
#pragma unroll
      for (int y = 0; y < Y; y++) q[y] = b[(g + 8 * y) * ldb + k + t];
#pragma unroll
      for (int x = 0; x < X; x++)
#pragma unroll
        for (int y = 0; y < Y; y++)
          multiply_tile(v[x][y][0], v[x][y][1], p[x], q[y]);
    }
#else
    if constexpr (!BY_PARTS) {
#pragma unroll(X * Y < 16 ? 2 : 1)
      for (int k = 0; k < DEPTH; k += VEC) {
        Vector p[X], q[Y][2];
#pragma unroll
        for (int x = 0; x < X; x++) p[x] = *(const Vector*)(a + (g + 8 * x) * lda + k);
#pragma unroll
        for (int y = 0; y < Y; y++)
#pragma unroll
          for (int e = 0; e < 2; e++) q[y][e] = *(const Vector*)(b + (8 * y + 2 * t + e) * ldb + k);
#pragma unroll
        for (int d = 0; d < VEC; d++)
#pragma unroll
          for (int x = 0; x < X; x++)
#pragma unroll
            for (int y = 0; y < Y; y++)
#pragma unroll
              for (int e = 0; e < 2; e++) v[x][y][e] = add_product(v[x][y][e], p[x].v[d], q[y][e].v[d]);
      }
    }
#endif
  }
};

// One warp: C <- C - A B^H for a piece of 8X x 8Y of C, 32 columns deep, all in shared memory.
template <int X, int Y>
LW_INLINE void update_piece(T* c, int ldc, const T* a, int lda, const T* b, int ldb, bool active = true) {
  Piece<X, Y> piece;
  piece.clear();
  piece.template add<TILE>(a, lda, b, ldb, active);
  if (active) piece.each([&](int row, int column, T* pair) {
    T* at = c + row * ldc + column;
    at[0] = subtract(at[0], pair[0]);
    at[1] = subtract(at[1], pair[1]);
  });
}
