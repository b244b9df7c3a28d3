// Least squares of many tall matrices: a block of threads for each, A and b in its registers, all in one launch.
//
// G lanes share C columns, RT rows of each column to a lane: row G i + l of what is left is in lane l. The lanes of column c put
// it into shared memory; after a barrier every thread multiplies its own columns by it while one warp makes the reflection, and
// after a second one all apply that, and the lanes of column c + 1 put theirs into shared memory. After G columns their rows of R are complete: the rows below move one register down,
// so that a register is never chosen at run time. R and Q^H b go to shared memory row by row.
// Then one warp decides whether the rank is certainly full, and other warps solve for x.
//   LW_G, LW_C, LW_RT  as above
//   LW_HOLD            1: the elements of a reflection stay in registers between its two uses
//   LW_PIECES          pieces of 32 elements of x
#include "lstsq_block.cuh"

constexpr int G = LW_G, C = LW_C, RT = LW_RT, PIECES = LW_PIECES, WARPS = LW_THREADS / 32;
constexpr int PADDED = (RT + VEC - 1) / VEC * VEC, LENGTH = G * PADDED;  // of a column in shared memory
constexpr int COLUMNS = 32 / G * C;                                     // of a warp
constexpr int CHAINS = C < 4 ? 4 : 2;                                   // sums side by side

struct Shared {
  T* x;     // two columns: VEC elements of each lane, then the next ones of each
  T* head;  // the factor and tau of a reflection; the first element of its column
  T* r;     // n rows of `pitch` elements: R and Q^H b
  int* state;  // of A, and of each column of b: qr_state.cuh
  int pitch;
};

LW_INLINE Real sum_group(Real x) {
#pragma unroll
  for (int step = G / 2; step > 0; step /= 2) x += across(x, step);
  return x;
}
#if LW_DTYPE >= 2
LW_INLINE T sum_group(T x) { return T{sum_group(x.re), sum_group(x.im)}; }
LW_INLINE T from_group(T x, int l) { return T{shuffle(x.re, l, G), shuffle(x.im, l, G)}; }
#else
LW_INLINE T from_group(T x, int l) { return shuffle(x, l, G); }
#endif

// The columns of this thread.
struct Columns {
  T a[C][RT];
  int l, first;  // lane of the group; the first column

  LW_INLINE Columns() : l(threadIdx.x % G), first(threadIdx.x / G * C) {}

  LW_INLINE void load(const Call& call, i64 which) {
    const T *from = call.a + which * call.m * call.n, *right = call.b + which * call.m * call.k;
#pragma unroll
    for (int q = 0; q < C; q++) {
      const int j = first + q;
      const T* column = j < call.n ? from + j : right + (j - call.n);
      const int stride = j < call.n ? call.n : call.k;
#pragma unroll
      for (int i = 0; i < RT; i++) {
        const int row = G * i + l;
        a[q][i] = row < call.m && j < call.n + call.k ? load_element(column + (i64)row * stride) : zero();
      }
    }
  }

  // The states of A and of the columns of b <- the exponents of their largest elements, or NOT_FINITE
  LW_INLINE void measure(const Call& call, int* state) const {
    Real largest = 0;
    bool good = true;
#pragma unroll
    for (int q = 0; q < C; q++) {
      Real own = 0;
      bool finite = true;
#pragma unroll
      for (int i = 0; i < RT; i++) {
        finite = finite && is_finite(a[q][i]);
        own = fmax(own, magnitude(a[q][i]));
      }
      const int j = first + q;
      if (j < call.n) {
        good = good && finite;
        largest = fmax(largest, own);
      } else if (j < call.n + call.k && !(finite && own == 0)) {
        atomicMax(state + 1 + j - call.n, finite ? ilogb(own) : NOT_FINITE);
      }
    }
    largest = max_lanes<32>(largest);
    good = !any_lane(!good);
    if (threadIdx.x % 32 == 0 && (!good || largest > 0)) atomicMax(state, good ? ilogb(largest) : NOT_FINITE);
  }

  LW_INLINE void rescale(const Call& call, const int* state) {
#pragma unroll
    for (int q = 0; q < C; q++) {
      const int j = first + q, exponent = j < call.n + call.k ? exponent_of(state[j < call.n ? 0 : 1 + j - call.n]) : 0;
      if (exponent != 0) {
        const Real by = ldexp(Real(1), -exponent);
#pragma unroll
        for (int i = 0; i < RT; i++) a[q][i] = scale(a[q][i], by);
      }
    }
  }

  // Column c to shared memory, where it is in this thread; the rows of lanes up to l0 in the first register are above it.
  LW_INLINE void publish(const Shared& s, int c, int l0) const {
    const bool own = c >= first && c < first + C;
    T* to = s.x + (c & 1) * LENGTH + l * VEC;
#pragma unroll
    for (int i0 = 0; i0 < RT; i0 += VEC) {
      Vector p;
#pragma unroll
      for (int v = 0; v < VEC; v++) {
        const int i = i0 + v;
        p.v[v] = i < RT ? a[0][i < RT ? i : 0] : zero();
#pragma unroll
        for (int q = 1; q < C; q++) p.v[v] = i < RT ? select(c % C == q, a[q][i < RT ? i : 0], p.v[v]) : zero();
        if (i == 0) {
          if (own && l == l0) s.head[2] = p.v[v];
          p.v[v] = select(l > l0, p.v[v], zero());
        }
      }
      if (own) *(Vector*)(to + i0 * G) = p;
    }
  }

  // x^H a for the x of column c and each column a of this thread
  LW_INLINE void project(const Shared& s, int c, T (&x)[PADDED], T (&whole)[C]) const {
    const T* from = s.x + (c & 1) * LENGTH + l * VEC;
    T sum[C][CHAINS];
#pragma unroll
    for (int q = 0; q < C; q++)
#pragma unroll
      for (int e = 0; e < CHAINS; e++) sum[q][e] = zero();
#pragma unroll
    for (int i0 = 0; i0 < RT; i0 += VEC) {
      const Vector p = *(const Vector*)(from + i0 * G);
#pragma unroll
      for (int v = 0; v < VEC; v++) {
        const int i = i0 + v;
        x[i] = p.v[v];
        if (i < RT)
#pragma unroll
          for (int q = 0; q < C; q++) sum[q][i % CHAINS] = add_product(sum[q][i % CHAINS], a[q][i < RT ? i : 0], p.v[v]);
      }
    }
#pragma unroll
    for (int q = 0; q < C; q++) whole[q] = CHAINS == 4 ? add(add(sum[q][0], sum[q][1]), add(sum[q][2], sum[q][CHAINS - 1])) : add(sum[q][0], sum[q][1]);
#pragma unroll
    for (int step = G / 2; step > 0; step /= 2)
#pragma unroll
      for (int q = 0; q < C; q++) whole[q] = add(whole[q], across(whole[q], step));
  }

  // The reflection of column c, whose row is in the first register of lane l0, on the columns of this thread; those up to c, which
  // are finished, may become anything. Row c of R to shared memory.
  LW_INLINE void reflect(const Shared& s, int c, int l0, int columns, const T (&x)[PADDED], const T (&whole)[C]) {
    const T* from = s.x + (c & 1) * LENGTH + l * VEC;
    const T factor = s.head[0], tau = s.head[1];
    T by[C], top[C];
#pragma unroll
    for (int q = 0; q < C; q++) top[q] = from_group(a[q][0], l0);
#pragma unroll
    for (int q = 0; q < C; q++) {
      const T own = add_product(zero(), add_product(top[q], whole[q], factor), tau);  // conj(tau) u^H a
      if (l == l0 && first + q > c && first + q < columns) s.r[c * s.pitch + first + q] = subtract(top[q], own);
      by[q] = multiply(factor, own);
    }
#pragma unroll
    for (int i0 = 0; i0 < RT; i0 += VEC) {
      const Vector p = *(const Vector*)(from + i0 * G);
#pragma unroll
      for (int v = 0; v < VEC; v++) {
        const int i = i0 + v;
        if (i < RT)
#pragma unroll
          for (int q = 0; q < C; q++) a[q][i < RT ? i : 0] = subtract_plain(a[q][i < RT ? i : 0], LW_HOLD ? x[i] : p.v[v], by[q]);
      }
    }
  }

  LW_INLINE void move_down() {
#pragma unroll
    for (int q = 0; q < C; q++) {
#pragma unroll
      for (int i = 0; i + 1 < RT; i++) a[q][i] = a[q][i + 1];
      a[q][RT - 1] = zero();
    }
  }

  // The squared norm of column q below the n rows of R
  LW_INLINE Real rest(int q, int n) const {
    Real sum = l < n % G ? Real(0) : square(a[q][0]);
#pragma unroll
    for (int i = 1; i < RT; i++) sum += square(a[q][i]);
    return sum_group(sum);
  }
};

// One warp: the reflection of column c, and R(c, c)
LW_INLINE void make_reflection(const Shared& s, int c) {
  const T* x = s.x + (c & 1) * LENGTH;
  Real sum = 0;
#pragma unroll
  for (int i = 0; i < (LENGTH + 32 * VEC - 1) / (32 * VEC); i++) {
    const int at = (threadIdx.x % 32 + 32 * i) * VEC;
    if (at < LENGTH) {
      const Vector p = *(const Vector*)(x + at);
#pragma unroll
      for (int v = 0; v < VEC; v++) sum += square(p.v[v]);
    }
  }
  T tau;
  Real beta;
  const T factor = reflector(s.head[2], sum_lanes<32>(sum), tau, beta);
  if (threadIdx.x % 32 == 0) {
    s.head[0] = factor;
    s.head[1] = tau;
    s.r[c * s.pitch + c] = from_real(beta);
  }
}

// A reflection is made by the first warp, which is the first to have no columns left, while the others multiply by its column.
LW_INLINE void factor(Columns& own, const Shared& s, int n, int columns) {
  const int warp = threadIdx.x / 32, last = min((warp + 1) * COLUMNS, columns) - 1;
  if (warp == 0) own.publish(s, 0, 0);
  int l0 = 0;
#pragma unroll 1
  for (int c = 0; c < n; c++) {
    T x[PADDED], whole[C];
    __syncthreads();
    if (warp == 0) make_reflection(s, c);
    if (last > c) own.project(s, c, x, whole);
    __syncthreads();
    if (last > c) {
      own.reflect(s, c, l0, columns, x, whole);
      if (l0 == G - 1) own.move_down();
      if (c + 1 < n && (c + 1) / COLUMNS == warp) own.publish(s, c + 1, (c + 1) % G);
    }
    l0 = l0 == G - 1 ? 0 : l0 + 1;
  }
}

// R in shared memory, and one warp with a vector: lane l has its elements l, l + 32, ...
struct Triangle {
  const T* r;
  int n, pitch;
  T inverse[PIECES];  // of the diagonal

  LW_INLINE Triangle(const Shared& s, int n) : r(s.r), n(n), pitch(s.pitch) {
#pragma unroll
    for (int t = 0; t < PIECES; t++) inverse[t] = inverse_of(at(place(t), place(t)));
  }
  LW_INLINE T at(int i, int j) const { return r[i * pitch + j]; }
  LW_INLINE int place(int t) const { return min(32 * t + (int)(threadIdx.x % 32), n - 1); }

  // z <- R^-H z; the squared norm of this lane's columns of R
  LW_INLINE Real solve_adjoint(T (&z)[PIECES]) const {
    const int lane = threadIdx.x % 32;
    Real squares = 0;
#pragma unroll
    for (int t = 0; t < PIECES; t++) {
      const int count = min(32, n - 32 * t);
#pragma unroll 4
      for (int step = 0; step < count; step++) {
        const int c = 32 * t + step;
        const T own = multiply(z[t], conjugate(inverse[t])), y = from_lane(own, step);
#pragma unroll
        for (int p = t; p < PIECES; p++) {
          const T e = at(c, place(p));
          if (32 * p + lane < n && (p > t || lane >= step)) squares += square(e);
          if (p > t)
            z[p] = subtract_product(z[p], y, e);
          else
            z[t] = lane == step ? own : select(lane > step, subtract_product(z[t], y, e), z[t]);
        }
      }
    }
    return squares;
  }

  // z <- R^-1 z
  LW_INLINE void solve(T (&z)[PIECES]) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int t = PIECES - 1; t >= 0; t--) {
      const int count = min(32, n - 32 * t);
#pragma unroll 4
      for (int step = count - 1; step >= 0; step--) {
        const int c = 32 * t + step;
        const T own = multiply(z[t], inverse[t]), y = from_lane(own, step);
#pragma unroll
        for (int p = 0; p <= t; p++) {
          const T e = at(place(p), c);
          if (p < t)
            z[p] = subtract_plain(z[p], e, y);
          else
            z[t] = lane == step ? own : select(lane < step, subtract_plain(z[t], e, y), z[t]);
        }
      }
    }
  }

  // z <- z / |z|; |z|
  LW_INLINE Real normalise(T (&z)[PIECES]) const {
    Real sum = 0;
#pragma unroll
    for (int t = 0; t < PIECES; t++)
      if (32 * t + (int)(threadIdx.x % 32) < n) sum += square(z[t]);
    const Real size = sqrt(sum_lanes<32>(sum));
#pragma unroll
    for (int t = 0; t < PIECES; t++) z[t] = scale(z[t], 1 / size);
    return size;
  }

  // As lstsq_rank in lstsq.cu
  LW_INLINE bool is_regular(double rcond) const {
    T z[PIECES];
#pragma unroll
    for (int t = 0; t < PIECES; t++) z[t] = start_element(32 * t + threadIdx.x % 32);
    double whole = 0;
    bool full = false;
#pragma unroll 1
    for (int round = 0; round < ROUNDS && !full; round++) {
      const Real squares = solve_adjoint(z);
      if (round == 0) whole = sqrt(sum_lanes<32>(squares));
      const double before = normalise(z);
      solve(z);
      const double inverse = normalise(z);
      if (!is_proof(before, inverse)) break;
      full = is_full(round, whole, inverse, rcond);
    }
    return full;
  }
};

// x of right-hand side `column`, by one warp
LW_INLINE void store_x(const Triangle& triangle, const Shared& s, const Call& call, i64 which, int column) {
  T z[PIECES];
#pragma unroll
  for (int t = 0; t < PIECES; t++) z[t] = triangle.at(triangle.place(t), call.n + column);
  triangle.solve(z);
  const int up = exponent_of(s.state[1 + column]), down = exponent_of(s.state[0]);
#pragma unroll
  for (int t = 0; t < PIECES; t++) {
    const int i = 32 * t + threadIdx.x % 32;
    if (i < call.n) store_element(call.x + (which * call.n + i) * call.k + column, shifted(z[t], up - down));
  }
}

extern "C" __global__ void __launch_bounds__(LW_THREADS, LW_RESIDENT) lstsq_block(Call call, double rcond, int only_doubtful) {
  const int warp = threadIdx.x / 32, n = call.n, k = call.k, columns = n + k;
  Shared s;
  s.pitch = columns | 1;
  s.x = (T*)memory;
  s.head = s.x + 2 * LENGTH;
  s.r = s.head + 4;
  s.state = (int*)(s.r + n * s.pitch);
  if (only_doubtful) {  // mostly there are none
    bool any = false;
    for (i64 which = blockIdx.x + (i64)threadIdx.x * gridDim.x; which < call.batch; which += (i64)LW_THREADS * gridDim.x)
      any = any || call.rank[which] == DOUBTFUL;
    if (__syncthreads_count(any) == 0) return;
  }
  for (i64 which = blockIdx.x; which < call.batch; which += gridDim.x) {
    if (only_doubtful && call.rank[which] != DOUBTFUL) continue;
    Columns own;
    own.load(call, which);
    for (int i = threadIdx.x; i <= k; i += LW_THREADS) s.state[i] = -2 * MAX_STATE;
    __syncthreads();
    own.measure(call, s.state);
    __syncthreads();
    if (s.state[0] < NOT_FINITE) {
      own.rescale(call, s.state);
      factor(own, s, n, columns);
#pragma unroll
      for (int q = 0; q < C; q++) {
        const int j = own.first + q - n;
        const Real rest = own.rest(q, n);
        if (own.l == 0 && j >= 0 && j < k) {
          const int up = exponent_of(s.state[1 + j]);
          call.residuals[which * k + j] = shifted(shifted(rest, up), up);
        }
      }
      __syncthreads();
      const Triangle triangle(s, n);
      if (warp == 0) {
        const bool full = triangle.is_regular(rcond);
        if (threadIdx.x == 0) {
          call.rank[which] = full ? n : -1, call.info[which] = 0;
          if (!full) count_doubtful(call);
        }
      }
      // the warps after the first one solve meanwhile
      if (warp > 0 || WARPS == 1)
        for (int j = WARPS == 1 ? 0 : warp - 1; j < k; j += WARPS == 1 ? 1 : WARPS - 1) store_x(triangle, s, call, which, j);
    } else {
      for (int i = threadIdx.x; i < n * k; i += LW_THREADS) store_element(call.x + which * n * k + i, filled(not_a_number()));
      for (int j = threadIdx.x; j < k; j += LW_THREADS) call.residuals[which * k + j] = not_a_number();
      if (threadIdx.x == 0) call.rank[which] = 0, call.info[which] = 1;
    }
    __syncthreads();
  }
}
