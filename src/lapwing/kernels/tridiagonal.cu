// Hermitian matrices to real tridiagonal form, T = Q^H A Q: the matrix stays on the chip, spread over a team of blocks.
//
// Block b of a team of LW_TEAM blocks has the columns b, b + LW_TEAM, ..., all rows of them; a thread has the same rows of several
// of its block's columns, in registers, then in shared memory, then in global memory of its own. Each element is touched once for
// every step: it takes the update of the step before (A - u w^H - w u^H) and is multiplied by the new vector. Vectors are short
// next to the matrix, so every block computes all of them for itself. What the blocks tell each other in a step is, for every
// row i, the product (A u)_i and the element A(i, k) of the next column, from the block that has column i. In global memory the words
// carry the number of the step beside the data, so a reader needs no barrier: it reads until the number is the right one. A team
// of one block keeps them in shared memory.
//
//   LW_RW, LW_CW  warps along the rows and along the columns of a block
//   LW_Q          groups of VEC rows that a thread has
//   LW_C          columns that a thread takes at a time
//   LW_SETS       sets of LW_C columns that a thread holds in registers
//   LW_FAR        1: there are columns in global memory
//   LW_TEAM       blocks of a team
//   LW_FLIP       1: the matrices are the conjugates of what is to be reduced
//   LW_WHOLE      1: both triangles are there, column by column, in scale
//   LW_LEFT       1: only the first columns are reduced, and what is left of each matrix is written, for smaller teams to go on
#include "eigh.cuh"

#ifndef LW_WHOLE
#define LW_WHOLE 0
#endif
#ifndef LW_LEFT
#define LW_LEFT 0
#endif

constexpr int RW = LW_RW, CW = LW_CW, Q = LW_Q, C = LW_C, SETS = LW_SETS, TEAM = LW_TEAM;
constexpr bool ALONE = TEAM == 1;
constexpr int WARPS = RW * CW, THREADS = 32 * WARPS;
constexpr int HEIGHT = 32 * VEC * RW * Q;            // rows that a block has room for
constexpr int S = (HEIGHT + THREADS - 1) / THREADS;  // elements of a vector that a thread computes
constexpr int WORDS = ALONE ? SIZE / 4 : SIZE / 2;  // of 8 bytes that are told of one row
constexpr int PATIENCE = 1 << 22;                    // looks before a thread takes it that nothing comes any more

struct Call {
  const T* a;
  T* v;     // row k: the vector of step k, `pitch` elements; null: not wanted
  Real* d;
  Real* e;
  T* tau;
  Real* up; // the factor that brings eigenvalues back; null: not wanted
  int* info;
  const int* state;  // of tridiagonal_measure.cu; null: the matrices are in scale
  u64* mail;         // 4 n WORDS words of each team, zeros at first
  Vector* rest;      // columns that do not fit on the chip
  T* left;           // with LW_LEFT, columns of `pitch` elements, v_rows of each matrix
  i64 batch, size;   // size: elements from matrix to matrix
  int n, pitch, ld;  // ld: elements from row to row of a matrix
  int order, v_rows; // from matrix to matrix: elements of d and e; rows of v, elements of tau
  int rows, line;    // of v that are written, and elements of each
  int until;         // columns to reduce, with LW_LEFT
  int shared_sets, sets;  // sets of columns in shared memory, and all of them
};

struct Room {
  T *u, *w, *x;  // the vectors of the last step and the new one
  T* head;       // of each own column, the element of the next step's row
  T* part;       // RW partial products of each own column
  Real* sums;
  T* told;       // single elements for all threads
  u64* mail;
  Vector* sets;
};

// ---- what blocks tell each other -------------------------------------------------------------------------------------

struct alignas(2 * SIZE < 16 ? 2 * SIZE : 16) Pair {  // memory is aligned to 16 bytes
  T product, column;
};

LW_INLINE void tell_all(u64* mail, int row, Pair pair, unsigned step) {
  u64* to = mail + row * WORDS;
  if (ALONE) {
    *(Pair*)to = pair;
    return;
  }
  const unsigned* bits = (const unsigned*)&pair;
#pragma unroll
  for (int k = 0; k < WORDS; k += 2) tell_far(to + k, (u64)step << 32 | bits[k], (u64)step << 32 | bits[k + 1]);
}

// The pairs of this thread's rows from row k on; false where they do not come. Several are read at once, as each takes its time.
LW_INLINE bool listen(Pair (&pairs)[S], const u64* mail, int k, int n, unsigned step) {
  constexpr int AT_ONCE = S < 16 / WORDS ? S : 16 / WORDS;
#pragma unroll
  for (int s0 = 0; s0 < S; s0 += AT_ONCE) {
    unsigned missing = 0;
#pragma unroll
    for (int s = s0; s < s0 + AT_ONCE && s < S; s++) {
      const int i = threadIdx.x + THREADS * s;
      pairs[s] = Pair{zero(), zero()};
      if (i >= k && i < n) {
        missing |= 1u << s;
        if (ALONE) pairs[s] = *(const Pair*)(mail + i * WORDS);
      }
    }
    for (int looks = 0; !ALONE && missing; looks++) {
      u64 words[AT_ONCE][WORDS];
#pragma unroll
      for (int s = s0; s < s0 + AT_ONCE && s < S; s++)
        if (missing >> s & 1)
#pragma unroll
          for (int w = 0; w < WORDS; w += 2)
            look(mail + (threadIdx.x + THREADS * s) * WORDS + w, words[s - s0][w], words[s - s0][w + 1]);
#pragma unroll
      for (int s = s0; s < s0 + AT_ONCE && s < S; s++) {
        if (missing >> s & 1) {
          bool here = true;
          alignas(Pair) unsigned bits[WORDS];
#pragma unroll
          for (int w = 0; w < WORDS; w++) {
            here = here && (unsigned)(words[s - s0][w] >> 32) == step;
            bits[w] = (unsigned)words[s - s0][w];
          }
          if (here) {
            pairs[s] = *(const Pair*)bits;
            missing &= ~(1u << s);
          }
        }
      }
      if (missing && looks == PATIENCE) return false;
      if (missing) pause();
    }
  }
  return true;
}

// ---- sums ------------------------------------------------------------------------------------------------------------

// The sum over the block; what was written to shared memory before is visible after.
LW_INLINE Real sum_block(Real x, Real* room) {
  x = sum_lanes<32>(x);
  if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = x;
  __syncthreads();
  Real sum[4] = {0, 0, 0, 0};
#pragma unroll
  for (int w = 0; w < WARPS; w++) sum[w % 4] += room[w];
  return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

// ---- the matrix --------------------------------------------------------------------------------------------------------

struct Place {
  int lane, rw, cw, block, sets;
  LW_INLINE int row(int q) const { return VEC * (lane + 32 * (rw + RW * q)); }
  // number of a column in its block; those that are needed longest are in the first sets, which are the fastest to reach
  LW_INLINE int local(int set, int c) const { return cw + CW * ((sets - 1 - set) * C + c); }
  LW_INLINE int column(int set, int c) const { return block + TEAM * local(set, c); }
  LW_INLINE int columns() const { return CW * C * sets; }
  LW_INLINE bool needs(int set, int k, int n) const { return column(set, C - 1) > k && column(set, 0) < n; }
};

LW_INLINE Vector load_rows(const T* a, int n, int ld, int row, int column, Real down) {
  Vector x;
#if LW_WHOLE
  if (row < n && column < n) return *(const Vector*)(a + (i64)column * ld + row);
#pragma unroll
  for (int e = 0; e < VEC; e++) x.v[e] = zero();
#else
#pragma unroll
  for (int e = 0; e < VEC; e++) {
    const int i = row + e;
    T y = zero();
    if (i < n && column < n && down != 0) {
      const bool there = LW_UPPER ? i <= column : i >= column;
      y = load_element(there ? a + (i64)i * ld + column : a + (i64)column * ld + i);
      y = i == column ? from_real(real(y)) : there != LW_FLIP ? y : conjugate(y);
      y = scale(y, down);
    }
    x.v[e] = y;
  }
#endif
  return x;
}

// Whether rows of this warp's group q are still needed in step k
LW_INLINE bool lives(const Place& p, int q, int k) { return k + 1 < 32 * VEC * (p.rw + RW * q + 1); }

// One set of columns: A <- A - u w^H - w u^H, and the products with the new vector. at(c, q) is where the elements are.
template <typename At>
LW_INLINE void step_set(const At& at, const Room& room, const Place& p, int n, int set, int k, u64* mail, unsigned step) {
  T sum[C], uc[C], wc[C];
#pragma unroll
  for (int c = 0; c < C; c++) {
    uc[c] = room.u[p.column(set, c)];
    wc[c] = room.w[p.column(set, c)];
    sum[c] = zero();
  }
#pragma unroll
  for (int q = 0; q < Q; q++) {
    if (!lives(p, q, k)) continue;
    const int away = k + 1 - 32 * VEC * (p.rw + RW * q);  // of the row whose elements come next
    const Vector u = *(const Vector*)(room.u + p.row(q)), w = *(const Vector*)(room.w + p.row(q)),
                 x = *(const Vector*)(room.x + p.row(q));
#pragma unroll
    for (int c = 0; c < C; c++) {
      Vector a = at(c, q);
#pragma unroll
      for (int e = 0; e < VEC; e++) {
        a.v[e] = subtract_product(subtract_product(a.v[e], u.v[e], wc[c]), w.v[e], uc[c]);
        sum[c] = add_product(sum[c], x.v[e], a.v[e]);
      }
      at(c, q) = a;
    }
    if (away >= 0 && away / VEC == p.lane) {
#pragma unroll
      for (int c = 0; c < C; c++) {
        const Vector a = at(c, q);
        T next = a.v[0];
#pragma unroll
        for (int e = 1; e < VEC; e++) next = select(away % VEC == e, a.v[e], next);
        room.head[p.local(set, c)] = conjugate(next);
      }
    }
  }
  const int index = sum_columns(sum);
  if (RW > 1) {
    if (p.lane % (32 / C) == 0) room.part[p.rw * p.columns() + p.local(set, index)] = sum[0];
  } else {
    sync_warp();
    const int column = p.column(set, index);
    if (p.lane % (32 / C) == 0 && column > k && column < n)
      tell_all(mail, column, Pair{sum[0], room.head[p.local(set, index)]}, step);
  }
}

// The same of columns in global memory, THREADS accesses apart: all of them are on their way at once
LW_INLINE void step_far(Vector* at, const Room& room, const Place& p, int n, int set, int k, u64* mail, unsigned step) {
  Vector a[C][Q];
#pragma unroll
  for (int q = 0; q < Q; q++)
    if (lives(p, q, k))
#pragma unroll
      for (int c = 0; c < C; c++) a[c][q] = at[(c * Q + q) * THREADS];
  step_set([&](int c, int q) -> Vector& { return a[c][q]; }, room, p, n, set, k, mail, step);
#pragma unroll
  for (int q = 0; q < Q; q++)
    if (lives(p, q, k))
#pragma unroll
      for (int c = 0; c < C; c++) at[(c * Q + q) * THREADS] = a[c][q];
}

// One set of columns from `first` on to memory: A - u w^H - w u^H
template <typename At>
LW_INLINE void leave_set(const At& at, const Room& room, const Place& p, int n, int set, int first, T* to, int pitch) {
#pragma unroll
  for (int q = 0; q < Q; q++) {
    const int row = p.row(q);
    if (row < first || row >= n) continue;
    const Vector u = *(const Vector*)(room.u + row), w = *(const Vector*)(room.w + row);
#pragma unroll
    for (int c = 0; c < C; c++) {
      const int column = p.column(set, c);
      if (column < first || column >= n) continue;
      Vector a = at(c, q);
#pragma unroll
      for (int e = 0; e < VEC; e++) {
        a.v[e] = subtract_product(subtract_product(a.v[e], u.v[e], room.w[column]), w.v[e], room.u[column]);
        if (row + e == column) a.v[e] = from_real(real(a.v[e]));
      }
      *(Vector*)(to + (i64)column * pitch + row) = a;
    }
  }
}

extern "C" __global__ void __launch_bounds__(32 * LW_RW * LW_CW, 1) tridiagonal(Call call) {
  const int n = call.n, t = threadIdx.x, team = blockIdx.x / TEAM, teams = gridDim.x / TEAM;
  const int end = LW_LEFT ? call.until : n - 1;  // the step that is the last
  Place p;
  p.lane = t % 32, p.rw = t / 32 % RW, p.cw = t / 32 / RW, p.block = blockIdx.x % TEAM, p.sets = call.sets;
  const int columns = p.columns(), length = max(HEIGHT, TEAM * columns);
  Room room;
  room.sets = (Vector*)memory;
  room.mail = (u64*)(room.sets + call.shared_sets * C * Q * THREADS);
  room.u = (T*)(room.mail + (ALONE ? 2 * n * WORDS : 0));
  room.w = room.u + length;
  room.x = room.w + length;
  room.head = room.x + length;
  room.part = room.head + columns;
  room.told = room.part + (RW > 1 ? RW * columns : 0);
  room.sums = (Real*)(room.told + 2);
  // this thread's elements of the sets behind those in registers
  Vector* near_sets = room.sets + t - SETS * C * Q * THREADS;
  const int far_from = SETS + call.shared_sets;
  Vector* far_sets = call.rest + ((i64)blockIdx.x * (call.sets - far_from) - far_from) * C * Q * THREADS + t;

  bool patient = true;
  Vector a[SETS][C][Q];
  unsigned step = 0;
  int round = 0;
  for (i64 m = team; m < call.batch; m += teams, round++) {
    const int state = call.state ? call.state[m] : 2048;
    const bool good = state < (1 << 20);
    const T* from = call.a + m * call.size;
    Real down, up;
    scaling(state > 0 && good ? ldexp(Real(1), state - 2048) : Real(0), down, up);
    if (!good) down = 0;
    for (int i = t; i < 3 * length; i += THREADS) room.u[i] = zero();
#pragma unroll
    for (int set = 0; set < SETS; set++)
#pragma unroll
      for (int c = 0; c < C; c++)
#pragma unroll
        for (int q = 0; q < Q; q++) {
          a[set][c][q] = load_rows(from, n, call.ld, p.row(q), p.column(set, c), down);
          asm volatile("" ::: "memory");  // addresses of all of them at once would not fit in registers
        }
#pragma unroll 1
    for (int set = SETS; set < call.sets; set++)
#pragma unroll 1
      for (int c = 0; c < C; c++)
#pragma unroll 1
        for (int q = 0; q < Q; q++) {
          const Vector x = load_rows(from, n, call.ld, p.row(q), p.column(set, c), down);
          const i64 place = (i64)((set * C + c) * Q + q) * THREADS;
          if (!LW_FAR || set < far_from)
            near_sets[place] = x;
          else
            far_sets[place] = x;
        }
    __syncthreads();

    // what step k listens to is not written again before all have heard it
    u64* slots = ALONE ? room.mail : call.mail + ((i64)team * 2 + round % 2) * 2 * n * WORDS;
    const bool writes = p.block == (n - 1) % TEAM;
    const int last = p.block < n ? p.block + (n - 1 - p.block) / TEAM * TEAM : -1;  // own column
    T tau = zero();

    for (int k = -1; k < n; k++, step++) {
      Real beta = 0;
      if (k >= 0) {
        // w <- tau y - |tau|^2 (y^H u) u / 2
        Pair pairs[S];
        T x[S];
        patient = patient && listen(pairs, slots + k % 2 * n * WORDS, k, n, step);
        Real dot = 0;
#pragma unroll
        for (int s = 0; s < S; s++) {
          if (t + THREADS * s < n) dot += real(add_product(zero(), pairs[s].product, room.x[t + THREADS * s]));
          if (t + THREADS * s == k) room.told[0] = pairs[s].product;
        }
        dot = sum_block(dot, room.sums);
        const Real half = Real(0.5) * square(tau) * dot;
        const T wk = subtract(multiply(tau, room.told[0]), from_real(half));
        // column k of A - u w^H - w u^H
        Real rest_square = 0;
#pragma unroll
        for (int s = 0; s < S; s++) {
          const int i = t + THREADS * s;
          x[s] = zero();
          if (i >= k && i < n) {
            const T u = room.x[i], w = subtract(multiply(tau, pairs[s].product), scale(u, half));  // this thread wrote room.x[i]
            room.u[i] = u;
            room.w[i] = w;
            x[s] = subtract(subtract_product(pairs[s].column, u, wk), w);
            if (i > k + 1) rest_square += square(x[s]);
            if (i == k + 1) room.told[1] = x[s];
            if (i == k && writes) call.d[m * call.order + k] = real(x[s]);
          }
        }
        rest_square = sum_block(rest_square, room.sums + WARPS);
        if (k == end) break;
        const T factor = reflector(room.told[1], rest_square, tau, beta);
#pragma unroll
        for (int s = 0; s < S; s++) {
          const int i = t + THREADS * s;
          x[s] = i > k + 1 ? multiply(x[s], factor) : from_real(Real(i == k + 1));
          if (i >= k && i < n) room.x[i] = x[s];
          if (writes && call.v && i < call.line) call.v[(m * call.v_rows + k) * call.pitch + i] = x[s];
        }
        if (writes && t == 0) {
          call.e[m * call.order + k] = beta;
          call.tau[m * call.v_rows + k] = tau;
        }
        __syncthreads();
      }
      u64* mail = slots + (k + 1) % 2 * n * WORDS;
      const unsigned next = step + 1;
#pragma unroll
      for (int set = 0; set < SETS; set++)
        if (p.needs(set, k, n))
          step_set([&](int c, int q) -> Vector& { return a[set][c][q]; }, room, p, n, set, k, mail, next);
#pragma unroll 1
      for (int set = SETS; set < far_from; set++)
        if (p.needs(set, k, n))
          step_set([&](int c, int q) -> Vector& { return near_sets[((set * C + c) * Q + q) * THREADS]; }, room, p, n, set, k, mail,
                   next);
#pragma unroll 1
      for (int set = far_from; LW_FAR && set < call.sets; set++)
        if (p.needs(set, k, n)) step_far(far_sets + (i64)set * C * Q * THREADS, room, p, n, set, k, mail, next);
      if (RW > 1) {
        __syncthreads();
        const int column = p.block + TEAM * t;
        if (t < columns && column > k && column < n) {
          T sum = zero();
#pragma unroll
          for (int r = 0; r < RW; r++) sum = add(sum, room.part[r * columns + t]);
          tell_all(mail, column, Pair{sum, room.head[t]}, next);
        }
      }
      if (ALONE) {
        __syncthreads();
      } else if (last <= k + 1 && !writes && !(LW_LEFT && last >= end)) {
        step += end - k;
        break;
      }
    }
#if LW_LEFT
    if (last >= end) {
      T* to = call.left + m * call.v_rows * call.pitch;
#pragma unroll
      for (int set = 0; set < SETS; set++)
        leave_set([&](int c, int q) -> Vector& { return a[set][c][q]; }, room, p, n, set, end, to, call.pitch);
#pragma unroll 1
      for (int set = SETS; set < call.sets; set++)
        leave_set(
            [&](int c, int q) -> Vector& {
              return (!LW_FAR || set < far_from ? near_sets : far_sets)[(i64)((set * C + c) * Q + q) * THREADS];
            },
            room, p, n, set, end, to, call.pitch);
    }
#endif
    if (!patient) call.info[m] = 1;
    if (writes && t == 0) {
      if (call.up) call.up[m] = up;
      if (!good) call.info[m] = 1;
      if (!LW_LEFT) call.e[m * call.order + n - 1] = 0;
    }
    if (writes && !LW_LEFT) {
      for (int k = n - 1; k < call.rows; k++) {
        if (call.v)
          for (int i = t; i < call.line; i += THREADS) call.v[(m * call.v_rows + k) * call.pitch + i] = zero();
        if (t == 0) call.tau[m * call.v_rows + k] = zero();
      }
    }
    __syncthreads();
  }
}
