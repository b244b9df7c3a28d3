// Shared by the stages of eig.cu: compile-time choices, complex arithmetic, and the matrix they work on.
//
//   LW_MODE    0: eigenvalues, 1: eigenvalues and eigenvectors, 2: T and Z of A = Z T Z^H
//   LW_P       threads of a matrix: 1, or all LW_THREADS of the block
//   LW_ROWS    rows of a column that each lane of a warp has: at least n / 32; n where a thread has a matrix
//   LW_GLOBAL  bit 0: Z is in global memory, transposed; bit 1: H is in global memory
//   LW_N       the order n, where a thread has a matrix
#pragma once
#include "eigh.cuh"

enum Mode { VALUES, VECTORS, SCHUR };

constexpr int P = LW_P, MODE = LW_MODE, WARP = 32;
constexpr int LANES = P < WARP ? P : WARP, GROUPS = P / LANES;
constexpr int STRIDE = P == 1 ? LW_THREADS + 1 : 1;  // between the elements of a matrix; odd against bank conflicts
constexpr int LISTS = P > WARP ? 2 : 1;              // sweeps in memory: the current one, and the one that other warps apply
constexpr int PER_ROW = 3 * LISTS > 2 * GROUPS || MODE != VECTORS ? 3 * LISTS : 2 * GROUPS;  // real numbers of `room` per row
constexpr int COLUMNS = LW_ROWS;                     // elements of a row that each lane has in a sweep
constexpr bool Z_GLOBAL = (LW_GLOBAL & 1) != 0;
constexpr int NOT_FINITE = -10000;  // in place of an exponent

// LW_SAFE: the smallest number whose inverse is finite. Squares below LW_FAINT have lost digits: their numbers are multiplied
// by LW_LIFT and squared again. Balancing multiplies by 2^-MOST_BALANCE to 2^MOST_BALANCE.
#if LW_DTYPE % 2 == 0
#define LW_SAFE 1.17549435e-38f
#define LW_FAINT 1e-30f
#define LW_LIFT 0x1p90f
constexpr int MOST_BALANCE = 50;
#else
#define LW_SAFE 2.2250738585072014e-308
#define LW_FAINT 1e-280
#define LW_LIFT 0x1p600
constexpr int MOST_BALANCE = 400;
#endif

typedef Complex<Real> C;
// A reflection I - v0 w w^T with w = (1, v1, v2), or a rotation with c = v0 and s = v1 + i v2
struct Turn {
  Real v[3];
};

struct Eig {
  const T* a;
  Real* w;
  T* t;
  T* z;     // LW_MODE 2
  Real* v;  // LW_MODE 1
  int* info;
  T* scratch;
  i64 batch;
  int n;
};

// ---- scalars -----------------------------------------------------------------------------------------------------

LW_INLINE C complex_nan() { return C{not_a_number(), not_a_number()}; }
LW_INLINE T element_nan() { return filled(not_a_number()); }
LW_INLINE Real size(Real x) { return fabs(x); }
LW_INLINE Real size(C x) { return fabs(x.re) + fabs(x.im); }
LW_INLINE Real largest_part(C x) { return fmax(fabs(x.re), fabs(x.im)); }
LW_INLINE Real copy_sign(Real x, Real sign) { return sign < 0 ? -fabs(x) : fabs(x); }
LW_INLINE C c_subtract(C a, C b) { return C{a.re - b.re, a.im - b.im}; }
LW_INLINE C c_multiply(C a, C b) { return C{a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re}; }
LW_INLINE C c_scale(C a, Real by) { return C{a.re * by, a.im * by}; }
LW_INLINE C c_shift(C a, int by) { return C{scalbn(a.re, by), scalbn(a.im, by)}; }
LW_INLINE C c_divide(C a, C b) {
  Real by = Real(1) / largest_part(b), p = b.re * by, q = b.im * by, d = by / (p * p + q * q);
  return C{(a.re * p + a.im * q) * d, (a.im * p - a.re * q) * d};
}
#if LW_DTYPE < 2
LW_INLINE T shift(T x, int by) { return scalbn(x, by); }
LW_INLINE C wide(T x) { return C{x, Real(0)}; }
LW_INLINE C times(T a, C x) { return C{a * x.re, a * x.im}; }
#else
LW_INLINE T shift(T x, int by) { return c_shift(x, by); }
LW_INLINE C wide(T x) { return x; }
LW_INLINE C times(T a, C x) { return c_multiply(a, x); }

LW_INLINE C c_root(C x) {
  Real m = largest_part(x);
  if (!(m > 0)) return C{0, 0};
  Real p = x.re / m, q = x.im / m, r = sqrt(p * p + q * q), half = sqrt(Real(0.5) * (r + fabs(p))), root = sqrt(m);
  Real other = Real(0.5) * q / half;
  return p >= 0 ? C{half * root, other * root} : C{fabs(other) * root, copy_sign(half, q) * root};
}
#endif

LW_INLINE void together() {
  if (P > WARP)
    __syncthreads();
  else if (P == WARP)
    sync_warp();
}
LW_INLINE void lanes_together() {
  if (LANES == WARP) sync_warp();
}
LW_INLINE void lanes_in_step() {
  if (LANES == WARP) in_step();
}
LW_INLINE Real from_lane(Real x, int lane) { return shuffle(x, lane); }
#if LW_DTYPE >= 2
LW_INLINE T from_lane(T x, int lane) { return T{from_lane(x.re, lane), from_lane(x.im, lane)}; }
#endif
LW_INLINE unsigned votes(bool x) { return LANES == WARP ? ballot(x) : unsigned(x); }

// Element j of a row whose elements l, l + LANES, ... lane l has
LW_INLINE T from_owner(const T (&x)[COLUMNS], int j) {
  T element = x[0];
#pragma unroll
  for (int c = 1; c < COLUMNS; c++) element = select(j / LANES == c, x[c], element);
  return LANES == WARP ? from_lane(element, j % LANES) : element;
}

// ---- one matrix --------------------------------------------------------------------------------------------------

enum Kind { NOTHING, SWEEP, ROTATION, END, FAILED };

// Work outside the window low .. last. ROTATION: the rotation of rows and columns first and last. SWEEP: for k = first ..
// last - 1 the reflection of rows and columns k, k+1, k+2 (real) or the rotation of k, k+1 (complex).
struct Job {
  int kind, first, last, low;
};

struct Matrix {
  T *h, *z;
  Real* room;           // first u of a reflection, then the sweeps, then x of the eigenvectors
  int *scales, *steps;  // exponents of balancing: in all, and of one pass
  Job* jobs;            // two: one is written while the other is worked on
  Real* sums;           // one number of each warp
  int n, pitch, t, lane, group;
  int slot;  // where a thread has a matrix: which of the block's matrices

  LW_INLINE T& H(int i, int j) const { return h[(i * pitch + j) * STRIDE]; }
  LW_INLINE T& Z(int i, int j) const { return Z_GLOBAL ? z[j * n + i] : z[(i * pitch + j) * STRIDE]; }
  LW_INLINE T U(int i) const { return held<T>(i); }
  LW_INLINE C X(int i) const { return held<C>(group * n + i); }
  LW_INLINE void set_u(int i, T u) const { hold(i, u); }
  LW_INLINE void set_x(int i, C x) const { hold(group * n + i, x); }
  LW_INLINE Real& entry(int list, int k, int place) const { return room[((list * n + k) * 3 + place) * STRIDE + slot]; }

  // Number i of `room`, real or complex. Where a thread has a matrix, both parts of a complex number lie in the thread's own column of
  // real numbers: another thread may be at another stage, with numbers of another size.
  template <typename E>
  LW_INLINE E held(int i) const {
    if constexpr (P == 1 && sizeof(E) > sizeof(Real))
      return E{room[2 * i * STRIDE + slot], room[(2 * i + 1) * STRIDE + slot]};
    else
      return ((E*)room)[i * STRIDE + slot];
  }
  template <typename E>
  LW_INLINE void hold(int i, E x) const {
    if constexpr (P == 1 && sizeof(E) > sizeof(Real))
      room[2 * i * STRIDE + slot] = x.re, room[(2 * i + 1) * STRIDE + slot] = x.im;
    else
      ((E*)room)[i * STRIDE + slot] = x;
  }

  LW_INLINE Real largest_of_all(Real x) const {
    x = max_lanes<LANES>(x);
    if (P > WARP) {
      __syncthreads();
      if (lane == 0) sums[group] = x;
      __syncthreads();
      for (int g = 0; g < GROUPS; g++) x = fmax(x, sums[g]);
    }
    return x;
  }

  // eig_hessenberg.cuh
  LW_INLINE int normalise() const;
  LW_INLINE void balance() const;
  LW_INLINE void reduce() const;

  // eig_qr.cuh
  template <typename F>
  LW_INLINE int last_where(int low, int high, F f) const;
  LW_INLINE bool negligible(int k) const;
  LW_INLINE void record(int list, int k, const Turn& turn) const;
  LW_INLINE int sweep(int low, int high, int turns, int list) const;
  LW_INLINE Job advance(int& high, int& turns, int& total, int list) const;
  template <bool FROM_RIGHT, typename F>
  LW_INLINE void apply(const Job& job, int list, F at) const;
  LW_INLINE void catch_up(const Job& job, int list, int worker, int workers) const;
  LW_INLINE bool iterate() const;
#if LW_DTYPE < 2
  LW_INLINE void shifts(int low, int high, int turns, Real& re1, Real& re2, Real& im) const;
  LW_INLINE void first_column(int m, Real re1, Real re2, Real im, Real (&v)[3]) const;
  LW_INLINE void split_pair(int k, int list) const;
#else
  LW_INLINE T single_shift(int low, int high, int turns) const;
#endif

  // eig_vectors.cuh
  LW_INLINE bool is_pair(int i) const;
  LW_INLINE C value(int i) const;
  LW_INLINE void store_values(Real* w, int exponent, bool failed) const;
  LW_INLINE void substitute(int j, C lambda) const;
  LW_INLINE int shrink(Real most, int j) const;
  LW_INLINE void vectors() const;
  LW_INLINE C vector(int i, int j) const;
  LW_INLINE T schur(int i, int j, int exponent) const;

  LW_INLINE bool solve(int& exponent) const;
};
