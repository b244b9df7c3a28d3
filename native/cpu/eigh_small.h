// Eigenvalues and eigenvectors of many small matrices, for one instruction set. Included once for each, after simd.h.
//
// R is the real scalar, P how many make an element: 1 real, 2 complex. A lane is a matrix: all lanes do the same
// operations on numbers of their own, so a matrix gives the same bits in every lane, whatever its neighbours are.
// A lane that has nothing to do turns by the angle zero.

namespace lapwing {
namespace {
namespace LAPWING_ISA {

// A matrix is scaled by a power of two until its largest element is about one. Squares below TINY are then far below
// the rounding errors, and what they belong to counts as zero; squares above it have all their digits.
template <class R>
constexpr R TINY = sizeof(R) == 4 ? R(1e-33) : R(1e-290);
template <class R>
constexpr R ROOT_TINY = sizeof(R) == 4 ? R(3.2e-17) : R(1e-145);
template <class R>
constexpr R EPSILON = std::numeric_limits<R>::epsilon();

// What is known of the lanes before the work begins.
template <class R>
struct Scaling {
  Mask<R> good;     // all finite
  Vec<R> up, down;  // powers of two, one over the other
  Vec<R> small;     // an off-diagonal element of the scaled matrix not above this is rounding error

  LAPWING_INLINE Scaling(Vec<R> largest, Mask<R> finite) {
    good = finite;
    largest = good ? largest : Vec<R>{};
    const PowerOfTwo<R> power(largest);
    up = power.up, down = power.down;
    small = EPSILON<R> * (largest * up);
  }
  // A lane that is not finite becomes zero: it must not keep the others waiting.
  LAPWING_INLINE Vec<R> apply(Vec<R> x) const { return good ? x * up : Vec<R>{}; }
};

// ---- real, n = 2, 3: Jacobi, all in registers --------------------------------------------------------

template <class R, int N>
struct Jacobi {
  Vec<R> d[N], off[N], v[N][N];  // off[i]: between row i and the next one, cyclically

  // (x, y) <- (c x - s y, s x + c y)
  static LAPWING_INLINE void turn(Vec<R>& x, Vec<R>& y, Vec<R> c, Vec<R> s) {
    const Vec<R> a = x, b = y;
    x = fma(c, a, -(s * b));
    y = fma(s, a, c * b);
  }

  // Makes the element between rows 0 and 1 zero, in the wanted lanes.
  template <bool VECTORS>
  LAPWING_INLINE void rotate(Mask<R> wanted) {
    // What is as small as this is zero: convergence is quadratic, and soon gives denormal numbers, which are slow.
    const Vec<R> b = abs(off[0]) > 4 * ROOT_TINY<R> ? off[0] : Vec<R>{};
    // tan(2 angle) = 2 b / gap, and cos(2 angle) >= 0: the smaller of the two angles
    const Vec<R> gap = d[1] - d[0], twice = with_sign<R>(b + b, (Vec<R>)((Mask<R>)b ^ (Mask<R>)gap));
    const Vec<R> square = fma(gap, gap, twice * twice), half = broadcast(R(0.5));
    const Mask<R> turns = wanted & (square > TINY<R>);
    const Vec<R> inverse = rsqrt(turns ? square : broadcast(R(1)));
    const Vec<R> cos2 = turns ? fma(half * abs(gap), inverse, half) : broadcast(R(1)), root = rsqrt(cos2);
    const Vec<R> c = cos2 * root, s = turns ? half * twice * inverse * root : Vec<R>{}, t = s * root;
    d[0] = fma(-t, b, d[0]);
    d[1] = fma(t, b, d[1]);
    off[0] = wanted ? Vec<R>{} : b;
    if (N == 3) turn(off[2], off[1], c, s);
    if (VECTORS)
#pragma GCC unroll 3
      for (int r = 0; r < N; r++) turn(v[r][0], v[r][1], c, s);
  }

  // Row 1 becomes row 0, and so on: one copy of the code rotates all three pairs.
  template <bool VECTORS>
  LAPWING_INLINE void relabel() {
    const auto shift = [](Vec<R>(&x)[N]) {
      const Vec<R> x0 = x[0];
      x[0] = x[1], x[1] = x[2], x[2] = x0;
    };
    shift(d), shift(off);
    if (VECTORS)
#pragma GCC unroll 3
      for (int r = 0; r < N; r++) shift(v[r]);
  }

  template <bool VECTORS>
  LAPWING_INLINE void sort(int i, int j) {
    const auto exchange = [](Mask<R> swap, Vec<R>& x, Vec<R>& y) {
      const Vec<R> low = swap ? y : x;
      y = swap ? x : y;
      x = low;
    };
    const Mask<R> swap = d[j] < d[i];
    exchange(swap, d[i], d[j]);
    if (VECTORS)
#pragma GCC unroll 3
      for (int r = 0; r < N; r++) exchange(swap, v[r][i], v[r][j]);
  }

  LAPWING_INLINE void begin() {
#pragma GCC unroll 3
    for (int i = 0; i < N; i++)
#pragma GCC unroll 3
      for (int j = 0; j < N; j++) v[i][j] = broadcast(R(i == j));
  }
  LAPWING_INLINE Vec<R> largest_off() const {
    return N == 2 ? abs(off[0]) : larger<R>(larger<R>(abs(off[0]), abs(off[1])), abs(off[N - 1]));
  }
};

// U vectors of problems in turn: one waits for its square root while another works. good: the lanes that are done.
template <class R, int N, bool VECTORS, int U>
LAPWING_INLINE void solve_jacobi(Jacobi<R, N> (&problem)[U], const Vec<R> (&small)[U], Mask<R> (&good)[U]) {
  constexpr int SWEEPS = N == 2 ? 1 : 12;  // n = 3: five or six are enough, for convergence is quadratic
  Mask<R> wanted[U];
#pragma GCC unroll 2
  for (int u = 0; u < U; u++) wanted[u] = small[u] == small[u], problem[u].begin();
  for (int turn = 0; turn < SWEEPS * (N == 2 ? 1 : 3); turn++) {
    if (N == 3 && turn % 3 == 0) {
      Mask<R> left = {};
#pragma GCC unroll 2
      for (int u = 0; u < U; u++) left |= wanted[u] = problem[u].largest_off() > small[u] * R(0.125);
      if (!any(left)) break;
    }
#pragma GCC unroll 2
    for (int u = 0; u < U; u++) problem[u].template rotate<VECTORS>(wanted[u]);
    if constexpr (N == 3)
#pragma GCC unroll 2
      for (int u = 0; u < U; u++) problem[u].template relabel<VECTORS>();
  }
#pragma GCC unroll 2
  for (int u = 0; u < U; u++) {
    good[u] = problem[u].largest_off() <= small[u];
    problem[u].template sort<VECTORS>(0, 1);
    if constexpr (N == 3) {
      problem[u].template sort<VECTORS>(1, 2);
      problem[u].template sort<VECTORS>(0, 1);
    }
  }
}

// Matrices one after another.
template <class R, int SIZE>
struct Run {
  R* first;
  LAPWING_INLINE R* operator[](int m) const { return first + m * SIZE; }
};

// The upper triangle of LANES<R> whole matrices, scaled.
template <class R, int N>
LAPWING_INLINE Scaling<R> read_fixed(Jacobi<R, N>& problem, const R* a, bool upper) {
  constexpr int K = CHUNK<R>, SIZE = N * N, CHUNKS = (SIZE + K - 1) / K;
  Vec<R> flat[SIZE];
  // A matrix is a flat run of scalars; the last chunk of it overlaps the one before.
#pragma GCC unroll 16
  for (int c = 0; c < CHUNKS; c++) {
    const int first = c * K + K < SIZE ? c * K : SIZE - K;
    Vec<R> piece[1][K];
    read_chunks<R, 1>(piece, Run<const R, SIZE>{a}, first);
#pragma GCC unroll 4
    for (int e = 0; e < K; e++) flat[first + e] = piece[0][e];
  }
  if (!upper)
#pragma GCC unroll 3
    for (int i = 0; i < N; i++)
#pragma GCC unroll 3
      for (int j = i + 1; j < N; j++) flat[i * N + j] = flat[j * N + i];

  Vec<R> largest = {};
  Mask<R> finite = largest == largest;
#pragma GCC unroll 3
  for (int i = 0; i < N; i++)
#pragma GCC unroll 3
    for (int j = i; j < N; j++) {
      finite &= is_finite<R>(flat[i * N + j]);
      largest = larger<R>(largest, abs(flat[i * N + j]));
    }
  const Scaling<R> scaling(largest, finite);
#pragma GCC unroll 3
  for (int i = 0; i < N; i++) {
    problem.d[i] = scaling.apply(flat[i * N + i]);
    const int next = (i + 1) % N;
    problem.off[i] = scaling.apply(flat[std::min(i, next) * N + std::max(i, next)]);
  }
  return scaling;
}

template <class R, int N>
LAPWING_INLINE void write_fixed(const Jacobi<R, N>& problem, R* v) {
  constexpr int K = CHUNK<R>, SIZE = N * N, CHUNKS = (SIZE + K - 1) / K;
#pragma GCC unroll 16
  for (int c = 0; c < CHUNKS; c++) {
    const int first = c * K + K < SIZE ? c * K : SIZE - K;
    Vec<R> piece[1][K];
#pragma GCC unroll 4
    for (int e = 0; e < K; e++) piece[0][e] = problem.v[(first + e) / N][(first + e) % N];
    write_chunks<R, 1>(piece, Run<R, SIZE>{v}, first);
  }
}

template <class R, int N, bool VECTORS>
__attribute__((noinline)) void batch_fixed(const R* a, R* w, R* v, int32_t* info, int64_t matrices, int64_t from,
                                           int64_t count, bool upper) {
  constexpr int W = LANES<R>, U = N == 3 && LAPWING_REGISTERS == 32 ? 2 : 1, SIZE = N * N;
  for (; matrices > 0; matrices -= U * W) {
    const int64_t group = std::min<int64_t>(matrices, U * W);
    R block[U * W * SIZE];
    const bool part = group < U * W, direct = !part && count == N;
    if (part)  // the last group is filled up with copies of its last matrix
      for (int64_t m = 0; m < U * W; m++)
        __builtin_memcpy(block + m * SIZE, a + std::min(m, group - 1) * SIZE, SIZE * sizeof(R));
    const R* read = part ? block : a;
    R* written = direct ? v : block;

    Jacobi<R, N> problem[U];
    Vec<R> small[U], down[U];
    Mask<R> good[U], finite[U];
#pragma GCC unroll 2
    for (int u = 0; u < U; u++) {
      const Scaling<R> scaling = read_fixed<R, N>(problem[u], read + u * W * SIZE, upper);
      small[u] = scaling.small, down[u] = scaling.down, finite[u] = scaling.good;
    }
    solve_jacobi<R, N, VECTORS, U>(problem, small, good);
    R values[N][U * W];
    Mask<R> all = finite[0];
#pragma GCC unroll 2
    for (int u = 0; u < U; u++) {
#pragma GCC unroll 3
      for (int i = 0; i < N; i++) store(values[i] + u * W, problem[u].d[i] * down[u]);
      if (VECTORS) write_fixed<R, N>(problem[u], written + u * W * SIZE);
      good[u] &= finite[u];
      all &= good[u];
    }

    for (int64_t m = 0; m < group; m++)
      for (int64_t j = 0; j < count; j++) w[m * count + j] = values[from + j][m];
    if (VECTORS && !direct)
      for (int64_t i = 0; i < group * N; i++)
        for (int64_t j = 0; j < count; j++) v[i * count + j] = block[i * N + from + j];
    for (int64_t m = 0; m < group; m++) info[m] = 0;
    if (__builtin_expect(any(~all), 0))
      for (int64_t m = 0; m < group; m++) {
        if (good[m / W][m % W]) continue;
        info[m] = 1;
        fill_nan(w + m * count, count);
        if (VECTORS) fill_nan(v + m * N * count, N * count);
      }
    a += group * SIZE, w += group * count, info += group;
    if (VECTORS) v += group * N * count;
  }
}

template <class R, int P>
void batch_one(const R* a, R* w, R* v, int32_t* info, int64_t matrices) {
  for (int64_t m = 0; m < matrices; m++) {
    const R x = a[m * P];
    const bool good = std::abs(x) <= std::numeric_limits<R>::max();
    const R nan = std::numeric_limits<R>::quiet_NaN();
    info[m] = !good;
    w[m] = good ? x : nan;
    if (!v) continue;
    v[m * P] = good ? R(1) : nan;
    if (P == 2) v[m * P + 1] = good ? R(0) : nan;
  }
}

// ---- any n: A = Q T Q^H, T = Z W Z^T, V = Q Z --------------------------------------------------------

// A square matrix for each lane. A row of it is P rows of reals, real parts first, so that a real rotation of columns
// need not know about complex numbers. An odd number of vectors to a row spreads a column over all sets of the cache.
template <class R, int P>
struct Square {
  Vec<R>* x;
  int64_t n, stride;

  static LAPWING_INLINE int64_t stride_for(int64_t n) { return n | 1; }
  LAPWING_INLINE Vec<R>* row(int64_t i) const { return x + i * P * stride; }
  LAPWING_INLINE Element<R, P> get(int64_t i, int64_t j) const {
    const Vec<R>* p = row(i) + j;
    if constexpr (P == 1)
      return {p[0]};
    else
      return {p[0], p[stride]};
  }
  LAPWING_INLINE void set(int64_t i, int64_t j, const Element<R, P>& value) const {
    Vec<R>* p = row(i) + j;
    p[0] = value.re;
    if constexpr (P == 2) p[stride] = value.im;
  }
};

// The lower triangle of LANES<R> matrices, from either of theirs, in pieces of G chunks.
template <class R, int P, int G>
LAPWING_INLINE void read_triangle(const Square<R, P>& to, const R* const (&from)[LANES<R>], bool upper) {
  constexpr int STEP = G * CHUNK<R>;
  const int64_t n = to.n, width = n * P;
  for (int64_t row = 0; row < n; row++) {
    const int64_t begin = upper ? row : 0, end = upper ? n : row + 1;
    Vec<R>* line = upper ? to.x + row : to.row(row);
    const int64_t next = upper ? P * to.stride : 1;
    for (int64_t first = begin * P / STEP * STEP; first < end * P; first += STEP) {
      const int64_t at = std::min(first, width - STEP);
      Vec<R> v[G][CHUNK<R>];
      read_chunks<R, G>(v, from, row * width + at);
#pragma GCC unroll 16
      for (int c = 0; c < STEP; c++) {
        const int64_t column = (at + c) / P, part = (at + c) % P;
        const Vec<R> value = v[c / CHUNK<R>][c % CHUNK<R>];
        if (begin <= column && column < end) line[part * to.stride + column * next] = upper && part ? -value : value;
      }
    }
  }
}

template <class R, int P>
LAPWING_INLINE Scaling<R> scale_triangle(const Square<R, P>& a) {
  Vec<R> largest = {};
  Mask<R> finite = largest == largest;
  for (int64_t i = 0; i < a.n; i++)
    for (int p = 0; p < P; p++) {
      const Vec<R>* row = a.row(i) + p * a.stride;
      for (int64_t j = 0; j < i + 1 - p; j++) {  // the diagonal has no imaginary part
        finite &= is_finite<R>(row[j]);
        largest = larger<R>(largest, abs(row[j]));
      }
    }
  const Scaling<R> scaling(largest, finite);
  for (int64_t i = 0; i < a.n; i++)
    for (int p = 0; p < P; p++) {
      Vec<R>* row = a.row(i) + p * a.stride;
      for (int64_t j = 0; j <= i; j++) row[j] = scaling.apply(row[j]);
    }
  return scaling;
}

// A <- the lower triangle of LANES<R> matrices, scaled. An idle lane repeats the last matrix.
template <class R, int P>
__attribute__((noinline)) Scaling<R> read_scaled(const Square<R, P>& to, const R* a, int64_t matrices, bool upper) {
  constexpr int W = LANES<R>, LINE = LAPWING_VECTOR / 16;
  const R* from[W];
  for (int64_t m = 0; m < W; m++) from[m] = a + std::min(m, matrices - 1) * to.n * to.n * P;
  to.n * P >= W ? read_triangle<R, P, LINE>(to, from, upper) : read_triangle<R, P, 1>(to, from, upper);
  return scale_triangle<R, P>(to);
}

// y <- A v for M rows of the lower triangle from row i on, columns k .. i + M - 1: what rows below add to y comes later.
template <class R, int P, int M>
LAPWING_INLINE void multiply_rows(const Square<R, P>& a, int64_t k, int64_t i, const Vec<R>* v, Vec<R>* y) {
  Element<R, P> sum[M] = {}, vi[M];
#pragma GCC unroll 4
  for (int m = 0; m < M; m++) vi[m] = get<R, P>(v + P * (i + m));
  for (int64_t j = k; j < i; j++) {
    const Element<R, P> vj = get<R, P>(v + P * j);
    Element<R, P> yj = get<R, P>(y + P * j);
#pragma GCC unroll 4
    for (int m = 0; m < M; m++) {
      const Element<R, P> x = a.get(i + m, j);
      add_product<R, P>(sum[m], x, vj);
      add_product<R, P>(yj, conj<R, P>(x), vi[m]);
    }
    put<R, P>(y + P * j, yj);
  }
#pragma GCC unroll 4
  for (int m = 0; m < M; m++) {
#pragma GCC unroll 4
    for (int j = 0; j < m; j++) {
      const Element<R, P> x = a.get(i + m, i + j);
      add_product<R, P>(sum[m], x, vi[j]);
      add_product<R, P>(sum[j], conj<R, P>(x), vi[m]);
    }
    add_product<R, P>(sum[m], real<R, P>(a.get(i + m, i + m).re), vi[m]);
  }
#pragma GCC unroll 4
  for (int m = 0; m < M; m++) put<R, P>(y + P * (i + m), sum[m]);
}

// A <- A - v w^H - w v^H for M rows from row i on, columns k .. i + M - 1.
template <class R, int P, int M>
LAPWING_INLINE void update_rows(const Square<R, P>& a, int64_t k, int64_t i, const Vec<R>* v, const Vec<R>* w) {
  Element<R, P> vi[M], wi[M];
#pragma GCC unroll 4
  for (int m = 0; m < M; m++) vi[m] = get<R, P>(v + P * (i + m)), wi[m] = get<R, P>(w + P * (i + m));
  for (int64_t j = k; j < i + M; j++) {
    const Element<R, P> vj = get<R, P>(v + P * j), wj = get<R, P>(w + P * j);
#pragma GCC unroll 4
    for (int m = 0; m < M; m++) {
      Element<R, P> x = a.get(i + m, j);
      subtract<R, P>(x, vi[m], wj);
      subtract<R, P>(x, wi[m], vj);
      a.set(i + m, j, x);
    }
  }
}

template <int P>
constexpr int ROWS_AT_ONCE = LAPWING_REGISTERS == 32 && P == 1 ? 4 : 2;

// T <- Q^H A Q, Q = H(0) H(1) ..., H(k) = I - tau v v^H: d and e are the diagonals of T; v of H(k) stays in column k of
// A, below the diagonal; its first element is one.
template <class R, int P>
__attribute__((noinline)) void tridiagonalize(const Square<R, P>& a, Vec<R>* d, Vec<R>* e, Vec<R>* taus, Vec<R>* v, Vec<R>* w) {
  constexpr int M = ROWS_AT_ONCE<P>;
  const int64_t n = a.n;
  for (int64_t k = 0; k < n; k++) {
    d[k] = a.get(k, k).re;
    if (k == n - 1) break;
    if (P == 1 && k == n - 2) {
      e[k] = a.get(k + 1, k).re;
      taus[k] = Vec<R>{};
      continue;
    }
    // H^H x = beta e1 for the column x below the diagonal
    const Element<R, P> alpha = a.get(k + 1, k);
    Vec<R> rest = {};
    if constexpr (P == 2) rest = alpha.im * alpha.im;
    for (int64_t i = k + 2; i < n; i++) {
      const Element<R, P> x = a.get(i, k);
      rest = fma(x.re, x.re, rest);
      if constexpr (P == 2) rest = fma(x.im, x.im, rest);
      put<R, P>(v + P * i, x);
    }
    const Mask<R> turns = rest > TINY<R>;
    const Vec<R> norm = sqrt(turns ? fma(alpha.re, alpha.re, rest) : broadcast(R(1)));
    const Vec<R> beta = with_sign<R>(norm, -alpha.re), inverse = 1 / beta;
    e[k] = turns ? beta : alpha.re;
    Element<R, P> tau, scale;
    const Vec<R> pivot = alpha.re - beta;
    if constexpr (P == 1) {
      tau = {turns ? -pivot * inverse : Vec<R>{}};
      scale = {turns ? 1 / pivot : Vec<R>{}};
    } else {
      const Vec<R> square = 1 / fma(pivot, pivot, alpha.im * alpha.im);
      tau = {turns ? -pivot * inverse : Vec<R>{}, turns ? -alpha.im * inverse : Vec<R>{}};
      scale = {turns ? pivot * square : Vec<R>{}, turns ? -alpha.im * square : Vec<R>{}};
    }
    put<R, P>(taus + P * k, tau);
    put<R, P>(v + P * (k + 1), real<R, P>(broadcast(R(1))));
    for (int64_t i = k + 2; i < n; i++) {
      const Element<R, P> x = product<R, P>(get<R, P>(v + P * i), scale);
      put<R, P>(v + P * i, x);
      a.set(i, k, x);
    }
    // w <- tau A v, then w <- w - tau/2 (w^H v) v
    int64_t i = k + 1;
    for (; (n - i) % M; i++) multiply_rows<R, P, 1>(a, k + 1, i, v, w);
    for (; i < n; i += M) multiply_rows<R, P, M>(a, k + 1, i, v, w);
    Element<R, P> dot = {};
    for (i = k + 1; i < n; i++) {
      const Element<R, P> x = product<R, P>(tau, get<R, P>(w + P * i));
      put<R, P>(w + P * i, x);
      add_product<R, P>(dot, conj<R, P>(x), get<R, P>(v + P * i));
    }
    dot = product<R, P>(tau, dot);
    LAPWING_ISA::scale<R, P>(dot, broadcast(R(-0.5)));
    for (i = k + 1; i < n; i++) {
      Element<R, P> x = get<R, P>(w + P * i);
      add_product<R, P>(x, dot, get<R, P>(v + P * i));
      put<R, P>(w + P * i, x);
    }
    // A <- A - v w^H - w v^H
    for (i = k + 1; (n - i) % M; i++) update_rows<R, P, 1>(a, k + 1, i, v, w);
    for (; i < n; i += M) update_rows<R, P, M>(a, k + 1, i, v, w);
  }
}

// Q <- H(k) Q for C columns from column j on; row k + 1 of Q is still zero, and column k is v.
template <class R, int P, int C>
LAPWING_INLINE void reflect_columns(const Square<R, P>& q, int64_t k, int64_t j, const Element<R, P>& tau) {
  Element<R, P> sum[C] = {};
  for (int64_t i = k + 2; i < q.n; i++) {
    const Element<R, P> x = conj<R, P>(q.get(i, k));
#pragma GCC unroll 8
    for (int c = 0; c < C; c++) add_product<R, P>(sum[c], x, q.get(i, j + c));
  }
#pragma GCC unroll 8
  for (int c = 0; c < C; c++) {
    sum[c] = negative<R, P>(product<R, P>(tau, sum[c]));
    q.set(k + 1, j + c, sum[c]);
  }
  for (int64_t i = k + 2; i < q.n; i++) {
    const Element<R, P> x = q.get(i, k);
#pragma GCC unroll 8
    for (int c = 0; c < C; c++) {
      Element<R, P> y = q.get(i, j + c);
      add_product<R, P>(y, x, sum[c]);
      q.set(i, j + c, y);
    }
  }
}

// Q <- H(0) H(1) ... in the place of the vectors v, tile by tile from the right: a tile of columns takes all reflections
// while it is in the first-level cache. Left of what is done are still the vectors v.
template <class R, int P>
__attribute__((noinline)) void form_q(const Square<R, P>& q, const Vec<R>* taus) {
  constexpr int C = LAPWING_REGISTERS / 4 / P;
  const int64_t n = q.n;
  const Element<R, P> zero = real<R, P>(Vec<R>{}), one = real<R, P>(broadcast(R(1)));
  for (int64_t end = n; end > 1; end = std::max<int64_t>(end - C, 1)) {
    const int64_t begin = std::max<int64_t>(end - C, 1);
    for (int64_t k = end - 2; k >= 0; k--) {
      const Element<R, P> tau = get<R, P>(taus + P * k), minus = negative<R, P>(tau);
      int64_t j = std::max(begin, k + 2);
      if (j + C == end) {
        reflect_columns<R, P, C>(q, k, j, tau);
        continue;
      }
      for (; j + 2 <= end; j += 2) reflect_columns<R, P, 2>(q, k, j, tau);
      if (j < end) reflect_columns<R, P, 1>(q, k, j, tau);
      if (k + 1 < begin) continue;
      // The column that begins as column k + 1 of the identity
      Element<R, P> first = one;
      first.re -= tau.re;
      if constexpr (P == 2) first.im = minus.im;
      q.set(k + 1, k + 1, first);
      for (int64_t i = k + 2; i < n; i++) q.set(i, k + 1, product<R, P>(minus, q.get(i, k)));
    }
  }
  q.set(0, 0, one);
  for (int64_t i = 1; i < n; i++) q.set(i, 0, zero), q.set(0, i, zero);
}

// Rotations of columns i and i + 1, i = last - 1 .. first.
template <class R>
struct Sweep {
  int64_t first, last;
  Vec<R>* turns;  // cosine and sine, by i
};

// The QL iteration with implicit shifts on one vector of matrices: T <- G^T T G. Each lane works on a block of its own,
// rows low .. high, within the range first .. last swept for all.
template <class R>
struct Chase {
  Vec<R>*d, *e;
  Mask<R> low, high;
  Vec<R> start;           // where the block begins: d - shift
  Vec<R> g, diagonal, c, s;

  // The lowest block of each lane that has not fallen apart yet, and Wilkinson's shift for it. first and last narrow the
  // search. Returns whether there is a block.
  LAPWING_INLINE bool find(Vec<R> small, int64_t& first, int64_t& last, int64_t n) {
    low = high = broadcast_int<R>(n + 1);
    while (last > 0 && !any(abs(e[last - 1]) > small)) e[--last] = Vec<R>{};
    if (last == 0) return false;
    while (!any(abs(e[first]) > small)) e[first++] = Vec<R>{};
    Mask<R> before = {};
    Vec<R> d0 = {}, d1 = {}, e0 = broadcast(R(1)), d_end = {};
    for (int64_t i = last - 1; i >= first; i--) {
      const Mask<R> inside = abs(e[i]) > small, ends = inside & ~before;
      e[i] = inside ? e[i] : Vec<R>{};
      low = inside ? broadcast_int<R>(i) : low;
      high = ends ? broadcast_int<R>(i + 1) : high;
      d0 = inside ? d[i] : d0;
      d1 = inside ? d[i + 1] : d1;
      e0 = inside ? e[i] : e0;
      d_end = ends ? d[i + 1] : d_end;
      before = inside;
    }
    const Vec<R> half = (d1 - d0) / (2 * e0);
    start = d_end - d0 + e0 / (half + with_sign<R>(sqrt(fma(half, half, broadcast(R(1)))), half));
    return true;
  }
  LAPWING_INLINE void begin(int64_t last) {
    diagonal = d[last];
    g = Vec<R>{};
    c = s = broadcast(R(1));
  }
  // A lane outside its block turns by zero, and g is then e[i + 1] as it was.
  LAPWING_INLINE void step(int64_t i) {
    const Mask<R> at = broadcast_int<R>(i), starts = high == at + 1, inside = (low <= at) & (high > at);
    const Vec<R> one = broadcast(R(1)), zero = {};
    const Vec<R> ei = e[i], di = d[i];
    g = starts ? start : g;
    const Vec<R> f = (starts ? one : s) * ei, b = c * ei;
    const Vec<R> square = fma(f, f, g * g);
    const Mask<R> turns = inside & (square > TINY<R>);
    const Vec<R> inverse = rsqrt(square);
    e[i + 1] = starts ? zero : turns ? square * inverse : g;
    c = turns ? g * inverse : one;
    s = turns ? f * inverse : zero;
    const Vec<R> t = fma(di - diagonal, s, 2 * c * b);
    d[i + 1] = fma(s, t, diagonal);
    diagonal = fma(-s, t, di);
    g = fma(c, t, -b);
  }
  LAPWING_INLINE void end(int64_t first) {
    d[first] = diagonal;
    e[first] = g;
  }
};

// V <- V G for ROWS rows of reals, all sweeps in turn: the rows stay in the first-level cache, an element in a register
// from one rotation to the next.
template <class R, int ROWS>
__attribute__((noinline)) void rotate_rows(Vec<R>* v, int64_t stride, const Sweep<R>* sweeps, int64_t count) {
  for (int64_t k = 0; k < count; k++) {
    const int64_t first = sweeps[k].first, last = sweeps[k].last;
    const Vec<R>* turns = sweeps[k].turns;
    Vec<R> carry[ROWS];
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++) carry[r] = v[r * stride + last];
    for (int64_t i = last - 1; i >= first; i--) {
      const Vec<R> c = turns[2 * i], s = turns[2 * i + 1];
#pragma GCC unroll 8
      for (int r = 0; r < ROWS; r++) {
        const Vec<R> x = v[r * stride + i];
        v[r * stride + i + 1] = fma(s, x, c * carry[r]);
        carry[r] = fma(-s, carry[r], c * x);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++) v[r * stride + first] = carry[r];
  }
}

// Sweeps whose rotations are kept until V is turned by all of them.
constexpr int SWEEPS_KEPT = 8;
// LAPACK's limit; two sweeps to an eigenvalue are usual.
constexpr int64_t SWEEPS_LIMIT = 30;

// T of a vector of matrices, and its eigenvectors to be.
template <class R>
struct Tridiagonal {
  int64_t n;
  Vec<R>*d, *e, *turns;
  Vec<R> small;  // as in Scaling
  Mask<R> good;
  Vec<R>* v;  // rows of reals, none if only values are wanted
  int64_t rows, stride;

  void rotate(const Sweep<R>* sweeps, int64_t count) const {
    constexpr int ROWS = 4;
    int64_t i = 0;
    for (; i + ROWS <= rows; i += ROWS) rotate_rows<R, ROWS>(v + i * stride, stride, sweeps, count);
    for (; i < rows; i++) rotate_rows<R, 1>(v + i * stride, stride, sweeps, count);
  }
};

// T <- diagonal, V <- V Z for U vectors of matrices in turn, step by step: one waits for its square root while another
// works.
template <class R, int U>
__attribute__((noinline)) void diagonalize(Tridiagonal<R> (&t)[U]) {
  const int64_t n = t[0].n;
  Chase<R> chase[U];
  int64_t first[U] = {}, last[U];
  for (int u = 0; u < U; u++) {
    chase[u].d = t[u].d, chase[u].e = t[u].e, last[u] = n - 1;
    t[u].e[n - 1] = Vec<R>{};
  }
  Sweep<R> sweeps[U][SWEEPS_KEPT];
  int64_t kept = 0;
  for (int64_t sweep = 0; sweep < SWEEPS_LIMIT * n; sweep++) {
    int64_t from = n, to = 0;
    for (int u = 0; u < U; u++)
      if (chase[u].find(t[u].small, first[u], last[u], n)) from = std::min(from, first[u]), to = std::max(to, last[u]);
    if (from >= to) break;
    for (int u = 0; u < U; u++) {
      sweeps[u][kept] = {from, to, t[u].turns + 2 * n * kept};
      chase[u].begin(to);
    }
    for (int64_t i = to - 1; i >= from; i--)
#pragma GCC unroll 2
      for (int u = 0; u < U; u++) {
        chase[u].step(i);
        sweeps[u][kept].turns[2 * i] = chase[u].c;
        sweeps[u][kept].turns[2 * i + 1] = chase[u].s;
      }
    for (int u = 0; u < U; u++) chase[u].end(from);
    if (++kept < SWEEPS_KEPT) continue;
    for (int u = 0; u < U; u++) t[u].rotate(sweeps[u], kept);
    kept = 0;
  }
  for (int u = 0; u < U; u++) {
    t[u].rotate(sweeps[u], kept);
    for (int64_t i = 0; i < n; i++) t[u].good &= (abs(t[u].e[i]) <= t[u].small) & is_finite<R>(t[u].d[i]);
  }
}

// place[j]: where d[j] stands in ascending order
template <class R>
LAPWING_INLINE void rank(const Vec<R>* d, int64_t n, Mask<R>* place) {
  for (int64_t j = 0; j < n; j++) {
    Mask<R> before = {};
    for (int64_t i = 0; i < j; i++) before -= d[i] <= d[j];
    for (int64_t i = j + 1; i < n; i++) before -= d[i] < d[j];
    place[j] = before;
  }
}

template <class R, int P>
__attribute__((noinline)) void write(const Square<R, P>& v, const Tridiagonal<R>& t, Vec<R> down, R* values, R* vectors,
                                     int32_t* info, int64_t matrices, int64_t first, int64_t count) {
  constexpr int W = LANES<R>;
  const int64_t n = t.n;
  Mask<R>* place = reinterpret_cast<Mask<R>*>(t.turns);  // the rotations are done
  rank<R>(t.d, n, place);
  for (int64_t j = 0; j < n; j++) t.d[j] *= down;
  int32_t from[W][EIGH_LARGEST];
  for (int64_t m = 0; m < matrices; m++) {
    info[m] = !t.good[m];
    if (info[m]) std::fill_n(from[m], count, 0);
    for (int64_t j = 0; j < n && !info[m]; j++) {
      const int64_t k = place[j][m] - first;
      if (k < 0 || k >= count) continue;
      values[m * count + k] = t.d[j][m];
      from[m][k] = int32_t(j * W + m);
    }
  }
  if (vectors)
    for (int64_t i = 0; i < n; i++)
      for (int64_t m = 0; m < matrices; m++)
        for (int p = 0; p < P; p++) {
          const R* row = reinterpret_cast<const R*>(v.row(i) + p * v.stride);
          R* to = vectors + (m * n + i) * count * P + p;
          for (int64_t j = 0; j < count; j++) to[j * P] = row[from[m][j]];
        }
  for (int64_t m = 0; m < matrices; m++) {
    if (!info[m]) continue;
    fill_nan(values + m * count, count);
    if (vectors) fill_nan(vectors + m * n * count * P, n * count * P);
  }
}

// U vectors of matrices, the last one perhaps in part.
template <class R, int P, int U>
__attribute__((noinline)) void solve_lanes(const R* a, R* w, R* v, int32_t* info, int64_t matrices, int64_t n, int64_t first,
                                           int64_t count, bool upper) {
  constexpr int64_t W = LANES<R>;
  const int64_t stride = Square<R, P>::stride_for(n), square = n * P * stride;
  const int64_t size = square + n * (2 + 2 * SWEEPS_KEPT);
  Vec<R>* memory = static_cast<Vec<R>*>(scratch((U * size + 3 * n * P) * sizeof(Vec<R>)));
  Vec<R>*taus = memory + U * size, *x = taus + n * P, *y = x + n * P;
  Square<R, P> q[U];
  Tridiagonal<R> t[U];
  Vec<R> down[U];
  for (int u = 0; u < U; u++) {
    Vec<R>* d = memory + u * size + square;
    q[u] = {memory + u * size, n, stride};
    const Scaling<R> scaling = read_scaled<R, P>(q[u], a + u * W * n * n * P, matrices - u * W, upper);
    down[u] = scaling.down;
    t[u] = {n, d, d + n, d + 2 * n, scaling.small, scaling.good, q[u].x, v ? n * P : 0, stride};
    tridiagonalize<R, P>(q[u], t[u].d, t[u].e, taus, x, y);
    if (v) form_q<R, P>(q[u], taus);
  }
  diagonalize<R, U>(t);
  for (int64_t u = 0; u < U; u++)
    write<R, P>(q[u], t[u], down[u], w + u * W * count, v ? v + u * W * n * count * P : nullptr, info + u * W,
                std::min(W, matrices - u * W), first, count);
}

// ---- the choice ----------------------------------------------------------------------------------

template <class R, int N>
void batch_small(const R* a, R* w, R* v, int32_t* info, int64_t matrices, int64_t first, int64_t count, bool upper) {
  v ? batch_fixed<R, N, true>(a, w, v, info, matrices, first, count, upper)
    : batch_fixed<R, N, false>(a, w, v, info, matrices, first, count, upper);
}

template <class R, int P>
void eigh_any(const R* a, R* w, R* v, int32_t* info, int64_t matrices, int64_t n, int64_t first, int64_t count,
              bool upper) {
  if (n == 0) return (void)std::fill_n(info, matrices, 0);
  if (n == 1) return batch_one<R, P>(a, w, v, info, matrices);
  if constexpr (P == 1) {
    if (n == 2) return batch_small<R, 2>(a, w, v, info, matrices, first, count, upper);
    if (n == 3) return batch_small<R, 3>(a, w, v, info, matrices, first, count, upper);
  }
  constexpr int64_t W = LANES<R>;
  for (int64_t m = 0; m < matrices;) {
    const bool two = n <= EIGH_TOGETHER && matrices - m > W;
    const auto solve = two ? solve_lanes<R, P, 2> : solve_lanes<R, P, 1>;
    const int64_t group = std::min(matrices - m, two ? 2 * W : W);
    solve(a + m * n * n * P, w + m * count, v ? v + m * n * count * P : nullptr, info + m, group, n, first, count, upper);
    m += group;
  }
}

}  // namespace LAPWING_ISA
}  // namespace
}  // namespace lapwing
