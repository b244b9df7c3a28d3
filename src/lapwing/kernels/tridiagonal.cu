// Hermitian matrices to real tridiagonal form, T = Q^H A Q: the matrix stays on the chip, spread over a team of blocks.
//
// Block b of a team of LW_TEAM blocks has the columns b, b + LW_TEAM, ..., all rows of them; a thread has the same rows of several
// of its block's columns, in registers, then in shared memory, then in global memory of its own. Each element is touched once for
// every step: it takes the update of the step before (A - u w^H - w u^H) and is multiplied by the new vector. Vectors are short
// next to the matrix, so every block computes all of them for itself. What the blocks tell each other in a step is, for every
// row i, the product (A u)_i and the element A(i, k) of the next column, from the block that has column i. The words carry the
// number of the step beside the data, so a reader needs no barrier: it reads until the number is the right one.
//
//   LW_RW, LW_CW  warps along the rows and along the columns of a block
//   LW_Q          groups of VEC rows that a thread has
//   LW_C          columns that a thread takes at a time
//   LW_SETS       sets of LW_C columns that a thread holds in registers
//   LW_TEAM       blocks of a team
//   LW_NEAR       1: the team is a cluster, and what it tells each other lies in shared memory; 0: in global memory
#include "eigh.cuh"

#if LW_NEAR && LW_TEAM > 1
#define LW_CLUSTERED __cluster_dims__(LW_TEAM, 1, 1)
#else
#define LW_CLUSTERED
#endif

constexpr int RW = LW_RW, CW = LW_CW, Q = LW_Q, C = LW_C, SETS = LW_SETS, TEAM = LW_TEAM;
constexpr int WARPS = RW * CW, THREADS = 32 * WARPS;
constexpr int HEIGHT = 32 * VEC * RW * Q;            // rows that a block has room for
constexpr int S = (HEIGHT + THREADS - 1) / THREADS;  // elements of a vector that a thread computes
constexpr int WORDS = 2 * SIZE / 4;                  // that are told of one row
constexpr int PATIENCE = 1 << 22;                    // looks before a thread takes it that nothing comes any more

struct Call {
  const T* a;
  T* v;     // row k: the vector of step k, `v_rows` rows of `pitch` elements; null: not wanted
  Real* d;  // n of each matrix
  Real* e;
  T* tau;   // v_rows of each matrix
  Real* up; // the factor that brings eigenvalues back
  int* info;
  const int* state;  // tridiagonal_measure
  u64* mail;         // 4 n WORDS words of each team, zeros at first
  Vector* rest;      // columns that do not fit on the chip
  i64 batch;
  int n, pitch, v_rows;
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

// ---- words with their step -------------------------------------------------------------------------------------------

LW_INLINE void pause() {}

LW_INLINE void tell(u64* to, int block, u64 one, u64 two) {
#if LW_NEAR && LW_TEAM > 1
  unsigned address;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared_address(to)), "r"(block));
  asm volatile("st.relaxed.cluster.shared::cluster.v2.u64 [%0], {%1, %2};" ::"r"(address), "l"(one), "l"(two) : "memory");
#elif LW_NEAR
  asm volatile("st.volatile.shared.v2.u64 [%0], {%1, %2};" ::"r"(shared_address(to)), "l"(one), "l"(two) : "memory");
#else
  asm volatile("st.relaxed.gpu.global.v2.u64 [%0], {%1, %2};" ::"l"(to), "l"(one), "l"(two) : "memory");
#endif
}
LW_INLINE void look(const u64* from, u64& one, u64& two) {
#if LW_NEAR && LW_TEAM > 1
  asm volatile("ld.relaxed.cluster.shared.v2.u64 {%0, %1}, [%2];" : "=l"(one), "=l"(two) : "r"(shared_address(from)) : "memory");
#elif LW_NEAR
  asm volatile("ld.volatile.shared.v2.u64 {%0, %1}, [%2];" : "=l"(one), "=l"(two) : "r"(shared_address(from)) : "memory");
#else
  asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];" : "=l"(one), "=l"(two) : "l"(from) : "memory");
#endif
}

// All blocks of a team meet.
LW_INLINE void meet() {
#if LW_NEAR && LW_TEAM > 1
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
#else
  __syncthreads();
#endif
}

struct alignas(16) Pair {
  T product, column;
};

LW_INLINE void tell_all(u64* to, Pair pair, unsigned step) {
  const unsigned* bits = (const unsigned*)&pair;
#pragma unroll
  for (int k = 0; k < WORDS; k += 2)
    for (int block = 0; block < (LW_NEAR ? TEAM : 1); block++)
      tell(to + k, block, (u64)step << 32 | bits[k], (u64)step << 32 | bits[k + 1]);
}

LW_INLINE Pair listen(const u64* from, unsigned step, bool& patient) {
  Pair pair;
  unsigned* bits = (unsigned*)&pair;
  for (int looks = 0;; looks++) {
    bool all = true;
#pragma unroll
    for (int k = 0; k < WORDS; k += 2) {
      u64 one, two;
      look(from + k, one, two);
      all = all && (unsigned)(one >> 32) == step && (unsigned)(two >> 32) == step;
      bits[k] = (unsigned)one;
      bits[k + 1] = (unsigned)two;
    }
    if (all || !patient) return pair;
    if (looks == PATIENCE) patient = false;
    pause();
  }
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

// Sums of C elements over a warp. Lane l with l % (32 / C) == 0 has that of element `index` in x[0].
LW_INLINE int sum_columns(T (&x)[C]) {
  const int lane = threadIdx.x % 32;
  int index = 0;
#pragma unroll
  for (int count = C / 2, step = 16; step > 0; count /= 2, step /= 2) {
    if (count > 0) {
      const bool high = lane & step;
      if (high) index += count;
#pragma unroll
      for (int k = 0; k < C / 2; k++) {
        if (k < count) {
          const T keep = select(high, x[k + count], x[k]), send = select(high, x[k], x[k + count]);
          x[k] = add(keep, across(send, step));
        }
      }
    } else {
      x[0] = add(x[0], across(x[0], step));
    }
  }
  return index;
}

// ---- the matrix --------------------------------------------------------------------------------------------------------

struct Place {
  int lane, rw, cw, block, sets;
  LW_INLINE int row(int q) const { return VEC * (lane + 32 * (rw + RW * q)); }
  // number of a column in its block; those that are needed longest are in the first sets, which are the fastest to reach
  LW_INLINE int local(int set, int c) const { return cw + CW * ((sets - 1 - set) * C + c); }
  LW_INLINE int column(int set, int c) const { return block + TEAM * local(set, c); }
};

LW_INLINE Vector load_rows(const T* a, int n, int row, int column, Real down) {
  Vector x;
#pragma unroll
  for (int e = 0; e < VEC; e++) {
    const int i = row + e;
    T y = zero();
    if (i < n && column < n && down != 0) {
      const bool there = LW_UPPER ? i <= column : i >= column;
      y = load_element(there ? a + (i64)i * n + column : a + (i64)column * n + i);
      y = i == column ? from_real(real(y)) : there ? y : conjugate(y);
      y = scale(y, down);
    }
    x.v[e] = y;
  }
  return x;
}

// One set of columns: A <- A - u w^H - w u^H, and the products with the new vector. at(c, q) is where the elements are.
template <typename At>
LW_INLINE void step_set(const Room& room, const Place& p, int n, int set, int k, u64* mail, unsigned step, At at) {
  if (p.column(set, C - 1) <= k || p.column(set, 0) >= n) return;
  T sum[C], uc[C], wc[C];
#pragma unroll
  for (int c = 0; c < C; c++) {
    uc[c] = room.u[p.column(set, c)];
    wc[c] = room.w[p.column(set, c)];
    sum[c] = zero();
  }
#pragma unroll
  for (int q = 0; q < Q; q++) {
    const int first = 32 * VEC * (p.rw + RW * q), away = k + 1 - first;  // of the row whose elements come next
    if (away >= 32 * VEC) continue;
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
        T found = a.v[0];
#pragma unroll
        for (int e = 1; e < VEC; e++) found = select(away % VEC == e, a.v[e], found);
        room.head[p.local(set, c)] = conjugate(found);
      }
    }
  }
  const int index = sum_columns(sum);
  if (RW > 1) {
    if (p.lane % (32 / C) == 0) room.part[p.local(set, index) * RW + p.rw] = sum[0];
  } else {
    __syncwarp();
    const int column = p.column(set, index);
    if (p.lane % (32 / C) == 0 && column > k && column < n)
      tell_all(mail + column * WORDS, Pair{sum[0], room.head[p.local(set, index)]}, step);
  }
}

// state <- 2048 + the exponent of the largest element of each matrix, or 1 << 20 where one is not finite; zeros at first
extern "C" __global__ void __launch_bounds__(256) tridiagonal_measure(const T* a, int* state, i64 batch, int n, int rows) {
  const int parts = (n + rows - 1) / rows, lane = threadIdx.x % 32;
  for (i64 job = blockIdx.x; job < batch * parts; job += gridDim.x) {
    const i64 m = job / parts;
    const int first = (int)(job - m * parts) * rows, end = min(first + rows, n);
    int most = 0;
    for (int i = first + threadIdx.x / 32; i < end; i += 8)
      for (int j = LW_UPPER ? i + lane : lane; LW_UPPER ? j < n : j <= i; j += 32) {
        T x = load_element(a + (m * n + i) * n + j);
        if (i == j) x = from_real(real(x));
        const Real size = magnitude(x);
        most = max(most, !is_finite(x) ? 1 << 20 : size > 0 ? 2048 + ilogb(size) : 0);
      }
    most = __reduce_max_sync(0xffffffff, (unsigned)most);
    if (lane == 0 && most > 0) atomicMax(state + m, most);
  }
}

extern "C" __global__ void __launch_bounds__(32 * LW_RW * LW_CW, 1) LW_CLUSTERED tridiagonal(Call call) {
  const int n = call.n, t = threadIdx.x, columns = CW * C * call.sets, length = max(HEIGHT, TEAM * columns);
  const int team = blockIdx.x / TEAM, teams = gridDim.x / TEAM;
  Place p;
  p.lane = t % 32, p.rw = t / 32 % RW, p.cw = t / 32 / RW, p.block = blockIdx.x % TEAM, p.sets = call.sets;
  Room room;
  room.sets = (Vector*)memory;
  room.mail = (u64*)(room.sets + call.shared_sets * C * Q * THREADS);
  room.u = (T*)(room.mail + (LW_NEAR ? 2 * n * WORDS : 0));
  room.w = room.u + length;
  room.x = room.w + length;
  room.head = room.x + length;
  room.part = room.head + columns;
  room.told = room.part + (RW > 1 ? RW * columns : 0);
  room.sums = (Real*)(room.told + 2);
  Vector* rest = call.rest + ((i64)blockIdx.x * (call.sets - SETS - call.shared_sets) * C * Q) * THREADS;
  if (LW_NEAR)
    for (int i = t; i < 2 * n * WORDS; i += THREADS) room.mail[i] = 0;
  meet();

  bool patient = true;
  Vector a[SETS][C][Q];
  const auto near_set = [&](int set) {
    return [&, set](int c, int q) -> Vector& { return room.sets[((set * C + c) * Q + q) * THREADS + t]; };
  };
  const auto far_set = [&](int set) {
    return [&, set](int c, int q) -> Vector& { return rest[((i64)(set * C + c) * Q + q) * THREADS + t]; };
  };

  unsigned step = 0;
  int round = 0;
  for (i64 m = team; m < call.batch; m += teams, round++) {
    const int state = call.state[m];
    const bool good = state < (1 << 20);
    const T* from = call.a + m * n * n;
    Real down, up;
    scaling(state > 0 && good ? ldexp(Real(1), state - 2048) : Real(0), down, up);
    if (!good) down = 0;
    for (int i = t; i < 3 * length; i += THREADS) room.u[i] = zero();
#pragma unroll
    for (int set = 0; set < SETS; set++)
#pragma unroll
      for (int c = 0; c < C; c++)
#pragma unroll
        for (int q = 0; q < Q; q++) a[set][c][q] = load_rows(from, n, p.row(q), p.column(set, c), down);
    for (int set = SETS; set < call.sets; set++)
      for (int c = 0; c < C; c++)
        for (int q = 0; q < Q; q++) {
          const Vector x = load_rows(from, n, p.row(q), p.column(set, c), down);
          if (set < SETS + call.shared_sets)
            near_set(set - SETS)(c, q) = x;
          else
            far_set(set - SETS - call.shared_sets)(c, q) = x;
        }
    __syncthreads();

    // what step k listens to is not written again before all have heard it; near blocks meet between two matrices
    u64* slots = LW_NEAR ? room.mail : call.mail + ((i64)team * 2 + round % 2) * 2 * n * WORDS;
    const bool writes = p.block == (n - 1) % TEAM;
    const int last = p.block < n ? p.block + (n - 1 - p.block) / TEAM * TEAM : -1;  // own column
    T u[S], x[S], tau = zero();
#pragma unroll
    for (int s = 0; s < S; s++) u[s] = x[s] = zero();

    for (int k = -1; k < n; k++, step++) {
      Real beta = 0;
      if (k >= 0) {
        // w <- tau y - |tau|^2 (y^H u) u / 2
        T w[S], column[S];
        Real dot = 0;
#pragma unroll
        for (int s = 0; s < S; s++) {
          const int i = t + THREADS * s;
          w[s] = column[s] = zero();
          if (i >= k && i < n) {
            const Pair pair = listen(slots + (k % 2 * n + i) * WORDS, step, patient);
            w[s] = pair.product;
            column[s] = pair.column;
            dot += real(add_product(zero(), pair.product, u[s]));
            if (i == k) room.told[0] = pair.product;
          }
        }
        dot = sum_block(dot, room.sums);
        const Real half = Real(0.5) * square(tau) * dot;
        const T wk = subtract(multiply(tau, room.told[0]), from_real(half));
        // column k of A - u w^H - w u^H
        Real rest_square = 0;
#pragma unroll
        for (int s = 0; s < S; s++) {
          const int i = t + THREADS * s;
          w[s] = subtract(multiply(tau, w[s]), scale(u[s], half));
          x[s] = zero();
          if (i >= k && i < n) {
            x[s] = subtract(subtract_product(column[s], u[s], wk), w[s]);
            if (i > k + 1) rest_square += square(x[s]);
            if (i == k + 1) room.told[1] = x[s];
            if (i == k && writes) call.d[m * n + k] = real(x[s]);
          }
        }
        rest_square = sum_block(rest_square, room.sums + WARPS);
        if (k == n - 1) break;
        const T factor = reflector(room.told[1], rest_square, tau, beta);
#pragma unroll
        for (int s = 0; s < S; s++) {
          const int i = t + THREADS * s;
          x[s] = i > k + 1 ? multiply(x[s], factor) : from_real(Real(i == k + 1));
          if (i >= k && i < n) {
            room.u[i] = u[s];
            room.w[i] = w[s];
            room.x[i] = x[s];
          }
          if (writes && call.v && i < call.pitch) call.v[(m * call.v_rows + k) * call.pitch + i] = x[s];
          u[s] = x[s];
        }
        if (writes && t == 0) {
          call.e[m * n + k] = beta;
          call.tau[m * call.v_rows + k] = tau;
        }
        __syncthreads();
      }
      u64* mail = slots + (k + 1) % 2 * n * WORDS;
      const unsigned next = step + 1;
#pragma unroll
      for (int set = 0; set < SETS; set++)
        step_set(room, p, n, set, k, mail, next, [&](int c, int q) -> Vector& { return a[set][c][q]; });
      for (int set = 0; set < call.shared_sets; set++) step_set(room, p, n, set + SETS, k, mail, next, near_set(set));
      for (int set = SETS + call.shared_sets; set < call.sets; set++)
        step_set(room, p, n, set, k, mail, next, far_set(set - SETS - call.shared_sets));
      if (RW > 1) {
        __syncthreads();
        const int column = p.block + TEAM * t;
        if (t < columns && column > k && column < n) {
          T sum = zero();
#pragma unroll
          for (int r = 0; r < RW; r++) sum = add(sum, room.part[t * RW + r]);
          tell_all(mail + column * WORDS, Pair{sum, room.head[t]}, next);
        }
      }
      if (last <= k + 1 && !writes) {
        step += n - 1 - k;
        break;
      }
    }
    if (writes) {
      if (t == 0) {
        call.up[m] = up;
        call.info[m] = !good || !patient;
        call.e[m * n + n - 1] = 0;
      }
      for (int k = n - 1; k < call.v_rows; k++) {
        if (call.v)
          for (int i = t; i < call.pitch; i += THREADS) call.v[(m * call.v_rows + k) * call.pitch + i] = zero();
        if (t == 0) call.tau[m * call.v_rows + k] = zero();
      }
    }
    meet();
  }
}
