// Systems and inverses by LAPACK, one matrix after the other, with the library's own threads. Where our own routines of cpu/dense.h are
// faster they stand in for the library's.
//
// To a column-major library a row-major matrix is its transpose, M = A^T, and the rows of b are columns. So nothing is
// transposed on the way: M = P L U is factored in place of A, and A x = b is x^T P L U = b^T, solved from the right. Only
// where the caller is given the factors themselves (LU) must it be the rows of A that were exchanged.
#include <algorithm>
#include <cmath>
#include <complex>
#include <limits>
#include <numeric>

#include "cpu/columns.h"
#include "cpu/dense.h"
#include "determinant.h"
#include "dtypes.h"
#include "lapack/fortran.h"
#include "lapack/lapack.h"
#include "lapack/decompose.h"
#include "lapack/rows.h"
#include "cpu/matrix.h"
#include "cpu/threads.h"

namespace lapwing::lapack {

namespace {

// ---- one row-major triangle ----------------------------------------------------------------------------------------

template <class T>
void conjugate_all(T* x, int64_t count) {
  if constexpr (is_complex<T>)
    for (int64_t i = 0; i < count; i++) x[i] = std::conj(x[i]);
}

struct Triangle {
  bool upper = false, adjoint = false, unit = false;
};

constexpr int64_t SMALL_TRIANGLE = 32;  // of this order a loop of our own is as fast as a call
constexpr int64_t QUIET_ORDER = 96;      // up to here OpenBLAS solves with one vector in the calling thread

// x <- L^-1 x, or L^-H x; x is n x k
template <class T>
void solve_triangle(const Frame& frame, Triangle kind, const T* l, T* x, int64_t n, int64_t k) {
  const char triangle = kind.upper ? 'L' : 'U', diagonal = kind.unit ? 'U' : 'N';
  // Short rows of x leave the library little to gain by blocks and threads. One complex column is as fast by its own routine.
  if (k <= most_columns<T>() && !(is_complex<T> && k == 1)) {
    if (kind.adjoint) conjugate_all(x, n * k);
    solve_few_columns(l, n, x, k, kind.upper, kind.adjoint, kind.unit, threads_for(frame));
    if (kind.adjoint) conjugate_all(x, n * k);
    return;
  }
  if (k > 1) return call<T>(TRSM, 'R', triangle, kind.adjoint ? 'C' : 'N', diagonal, k, n, T(1), l, n, x, k);
  // one column is the same in both orders, and has a routine of its own: L = M^T, L^H = conj(M)
  if (kind.adjoint) conjugate_all(x, n);
  const char op = kind.adjoint ? 'N' : 'T';
  if (foreign(TRSV, dtype_of<T>()) && n > QUIET_ORDER)
    call<T>(TRSM, 'L', triangle, op, diagonal, n, int64_t(1), T(1), l, n, x, n);
  else
    call<T>(TRSV, triangle, op, diagonal, n, l, n, x, int64_t(1));
  if (kind.adjoint) conjugate_all(x, n);
}

// x <- A^-1 x from the Cholesky factor: A = L L^H, or U^H U
template <class T>
void solve_factored(const Frame& frame, bool upper, const T* l, T* x, int64_t n, int64_t k) {
  solve_triangle(frame, {upper, upper}, l, x, n, k);
  solve_triangle(frame, {upper, !upper}, l, x, n, k);
}

// 0, or the place of the first pivot that is zero, unless that is allowed, or not finite
template <class T>
int64_t first_bad(const T* a, int64_t n, bool allow_zero = false) {
  for (int64_t i = 0; i < n; i++) {
    const T pivot = a[i * (n + 1)];
    if ((pivot == T(0) && !allow_zero) || !all_finite(&pivot, 1)) return i + 1;
  }
  return 0;
}

// ---- inverses in place, column-major ---------------------------------------------------------------------------------

// column by column: x_j <- A^-1 e_j
template <class T>
void invert_small_triangle(bool upper, int64_t n, T* a, int64_t ld) {
  for (int64_t c = 0; c < n; c++) {
    // from the corner where the inverse begins: of an upper triangle the first column, of a lower one the last
    const int64_t j = upper ? c : n - 1 - c, step = upper ? 1 : -1, corner = upper ? 0 : n - 1;
    const T pivot = T(1) / a[j + j * ld];
    for (int64_t i = corner; i != j; i += step) {
      T sum = 0;
      for (int64_t k = i; k != j; k += step) sum += a[i + k * ld] * a[k + j * ld];
      a[i + j * ld] = -sum * pivot;
    }
    a[j + j * ld] = pivot;
  }
}

// Above the block order by halves, as OpenBLAS may crash on very large triangles (see lapack.cc); where the library has only
// the solves, down to a small order.
template <class T>
void invert_triangle(char triangle, int64_t n, T* a, int64_t ld) {
  const bool by_solves = foreign(TRTRI, dtype_of<T>());
  int64_t info = 0;
  if (by_solves && n <= SMALL_TRIANGLE) return invert_small_triangle(triangle == 'U', n, a, ld);
  if (!by_solves && n <= block()) return call<T>(TRTRI, triangle, 'N', n, a, ld, &info);
  const int64_t h = n / 2, rest = n - h;
  T* second = a + h * (ld + 1);
  if (triangle == 'U') {  // A12 <- -A11^-1 A12 A22^-1
    call<T>(TRSM, 'L', 'U', 'N', 'N', h, rest, T(-1), a, ld, a + h * ld, ld);
    call<T>(TRSM, 'R', 'U', 'N', 'N', h, rest, T(1), second, ld, a + h * ld, ld);
  } else {  // A21 <- -A22^-1 A21 A11^-1
    call<T>(TRSM, 'R', 'L', 'N', 'N', rest, h, T(-1), a, ld, a + h, ld);
    call<T>(TRSM, 'L', 'L', 'N', 'N', rest, h, T(1), second, ld, a + h, ld);
  }
  invert_triangle(triangle, h, a, ld);
  invert_triangle(triangle, rest, second, ld);
}

// U <- U U^H, or L <- L^H L
template <class T>
void square_triangle(char triangle, int64_t n, T* a, int64_t ld) {
  using Real = RealOf<T>;
  int64_t info = 0;
  if (n <= block()) return call<T>(LAUUM, triangle, n, a, ld, &info);
  const int64_t h = n / 2, rest = n - h;
  const char adjoint = is_complex<T> ? 'C' : 'T';
  T* second = a + h * (ld + 1);
  square_triangle(triangle, h, a, ld);
  if (triangle == 'U') {  // A11 <- A11 + A12 A12^H, A12 <- A12 A22^H
    call<T>(HERK, triangle, 'N', h, rest, Real(1), static_cast<const T*>(a + h * ld), ld, Real(1), a, ld);
    call<T>(TRMM, 'R', 'U', 'C', 'N', h, rest, T(1), second, ld, a + h * ld, ld);
  } else {  // A11 <- A11 + A21^H A21, A21 <- A22^H A21
    call<T>(HERK, triangle, adjoint, h, rest, Real(1), static_cast<const T*>(a + h), ld, Real(1), a, ld);
    call<T>(TRMM, 'L', 'L', 'C', 'N', rest, h, T(1), second, ld, a + h, ld);
  }
  square_triangle(triangle, rest, second, ld);
}

// (U^H U)^-1 = U^-1 U^-H, or (L L^H)^-1 = L^-H L^-1, from the factor
template <class T>
void invert_factored(char triangle, int64_t n, T* a) {
  int64_t info = 0;
  if (const int threads = dense_threads(n)) return dense_positive_inverse(a, n, triangle == 'U', threads);
  if (n <= block()) return call<T>(POTRI, triangle, n, a, n, &info);
  invert_triangle(triangle, n, a, n);
  square_triangle(triangle, n, a, n);
}

// ---- factors of one matrix -------------------------------------------------------------------------------------------

constexpr auto ALL = [](int64_t, int64_t) { return true; };

auto named(bool upper) {
  return [upper](int64_t i, int64_t j) { return upper ? j >= i : j <= i; };
}

// work <- the Cholesky factor of a; 0, or what failed
template <class T>
int64_t factor_positive(const Frame& frame, const T* a, T* work, int64_t n, bool upper) {
  if (!copy_finite_hermitian(frame, a, work, n, upper)) return first_not_finite(work, n, named(upper));
  return cholesky_in_place(work, n, upper);
}

// column-major a <- its factors
template <class T>
void factor_columns(T* a, const Integers& pivots, int64_t n) {
  int64_t info = 0;
  if (const int threads = dense_threads(n)) {
    Room<int64_t> rows(n);
    dense_lu<T>(a, n, n, rows, threads);
    for (int64_t i = 0; i < n; i++) pivots.put(i, rows[i] + 1);
    return;
  }
  call<T>(GETRF, n, n, a, n, pivots.data(), &info);
}

// work <- the factors of A^T as the library sees it
template <class T>
int64_t factor_transposed(const Frame& frame, const T* a, T* work, const Integers& pivots, int64_t n, bool allow_zero = false) {
  if (!copy_finite(frame, a, work, n, n)) return first_not_finite(work, n, ALL);
  factor_columns(work, pivots, n);
  return first_bad(work, n, allow_zero);
}

// lu <- the factors of A itself, row-major; may be a
template <class T>
int64_t factor_rows(const Frame& frame, const T* a, T* lu, const Integers& pivots, int64_t n) {
  // column-major conj(A), whose factors are those of A conjugated
  if (a == lu) {
    if (!is_finite(frame, a, n, n)) return first_not_finite(a, n, ALL);
    turn(frame, lu, n);
  } else {
    if (!turn(frame, a, lu, n, n)) return first_not_finite(a, n, ALL);
  }
  factor_columns(lu, pivots, n);
  turn(frame, lu, n);
  return first_bad(lu, n);
}

// The first bad pivot when rows are exchanged, which the caller gets; `info` is the one when columns are exchanged.
template <class T>
int64_t place_by_rows(const Frame& frame, const T* a, T* work, const Integers& pivots, int64_t n, int64_t info) {
  if (work == a) return info;
  const int64_t place = factor_rows(frame, a, work, pivots, n);
  return place ? place : info;
}

// ---- the operations ----------------------------------------------------------------------------------------------------

template <class T>
struct Arrays {
  explicit Arrays(Frame& frame) : frame(frame), n(frame.size[1]), k(frame.size[2]) {}
  T* of(int place, int64_t m, int64_t size) const { return static_cast<T*>(frame.buffer[place]) + m * size; }
  int32_t* integers(int place, int64_t m, int64_t size) const { return static_cast<int32_t*>(frame.buffer[place]) + m * size; }

  // one matrix after the other; the library brings its own threads
  template <class Body>
  int each(const Body& body) const {
    return parallel(1, frame.size[0], 1, [&](int64_t m, int64_t) { body(m); }, frame.interrupted) ? 0 : 1;
  }

  Frame& frame;
  const int64_t n, k;
};

// Whether the solution says that all of the triangle is finite. What is not would have made it so too, unless it met only
// zeros, which a library may pass over.
template <class T>
bool shows_finite(const T* x, int64_t n, int64_t k) {
  for (int64_t i = 0; i < n; i++)
    if (!std::any_of(x + i * k, x + (i + 1) * k, [](T y) { return y != T(0); })) return false;
  return all_finite(x, n * k);
}

template <class T>
bool is_finite_triangle(const Frame& frame, Triangle kind, const T* l, int64_t n) {
  return pass_all(frame, n, n / 2 + 1, [&](int64_t first, int64_t last) {
    bool good = true;
    for (int64_t i = first; i < last; i++) {
      const int64_t begin = kind.upper ? i + kind.unit : 0, end = kind.upper ? n : i + !kind.unit;
      good = all_finite(l + i * n + begin, end - begin) && good;
    }
    return good;
  });
}

template <class T>
int triangular(Frame& frame) {
  const Arrays<T> at(frame);
  const int64_t n = at.n, k = at.k;
  const Triangle kind{bool(frame.flags & UPPER), bool(frame.flags & ADJOINT), bool(frame.flags & UNIT)};
  return at.each([&](int64_t m) {
    const T* l = at.of(0, m, n * n);
    T* x = at.of(2, m, n * k);
    int64_t status = 0;
    put(x, at.of(1, m, n * k), n * k);
    solve_triangle(frame, kind, l, x, n, k);
    // a bad pivot would show too: what is divided by it is not finite, or zero
    if (!shows_finite(x, n, k)) {
      if (!kind.unit) status = first_bad(l, n);
      if (!status && !is_finite_triangle(frame, kind, l, n))
        status = first_not_finite(l, n, [&](int64_t i, int64_t j) { return named(kind.upper)(i, j) && !(kind.unit && i == j); });
    }
    *at.integers(3, m, 1) = int32_t(status);
    if (status) fill_nan(x, n * k);
  });
}

// x <- A^-1 b by A = L D L^T, or L D L^H, D of blocks of order 1 and 2. 0, or the place of a pivot that is zero.
template <class T>
int64_t solve_symmetric(const Frame& frame, const T* a, T* work, const T* b, T* x, int64_t n, int64_t k) {
  const bool adjoint = frame.flags & SELF_ADJOINT;
  const Name factor = adjoint ? HETRF : SYTRF, solve = adjoint ? HETRS : SYTRS;
  if (!copy_finite(frame, a, work, n, n)) return first_not_finite(work, n, ALL);
  const Integers pivots(n, width_of<T>(factor));
  int64_t info = 0;
  // column-major this is A^T: A itself, or its conjugate, which takes conj(b) to conj(x)
  with_workspace<T>([&](T* room, int64_t size) { call<T>(factor, 'L', n, work, n, pivots.data(), room, size, &info); });
  if (info) return info;
  Room<T> columns(n * k);
  turn(frame, b, static_cast<T*>(columns), n, k);
  if (!adjoint) conjugate_all(static_cast<T*>(columns), n * k);
  call<T>(solve, 'L', n, k, work, n, pivots.data(), static_cast<T*>(columns), n, &info);
  if (!adjoint) conjugate_all(static_cast<T*>(columns), n * k);
  turn(frame, static_cast<T*>(columns), x, k, n);
  return 0;
}

template <class T>
int solve_systems(Frame& frame) {
  const Arrays<T> at(frame);
  const int64_t n = at.n, k = at.k;
  const bool positive = frame.flags & POS, upper = frame.flags & UPPER, in_input = frame.flags & OVERWRITE;
  Room<T> own(in_input ? 0 : n * n);
  // LDL has half the work of LU, but its routines use the cores badly: two threads of a Xeon, float64, OpenBLAS: n = 512 5.0 ms and
  // by LU 3.2, 2048 117 and 132; MKL: n = 512 3.7 and 2.3, 2048 123 and 99 (2026-11-16)
  constexpr int64_t LDL_FROM = 768;
  const bool symmetric = (frame.flags & (SYMMETRIC | SELF_ADJOINT)) && n >= LDL_FROM && !is_lent() && !dense_threads(n);
  Integers pivots(positive ? 0 : n, width_of<T>(GETRF));
  return at.each([&](int64_t m) {
    // LU, which names the pivot that is zero, cannot use an input that was destroyed
    if (symmetric && !in_input &&
        !solve_symmetric<T>(frame, at.of(0, m, n * n), own, at.of(1, m, n * k), at.of(2, m, n * k), n, k)) {
      *at.integers(3, m, 1) = 0;
      return;
    }
    T *a = at.of(0, m, n * n), *work = in_input ? a : static_cast<T*>(own), *x = at.of(2, m, n * k);
    int64_t status = positive ? factor_positive(frame, a, work, n, upper) : factor_transposed(frame, a, work, pivots, n);
    if (status && !positive) status = place_by_rows(frame, a, work, pivots, n, status);
    *at.integers(3, m, 1) = int32_t(status);
    if (status) return fill_nan(x, n * k);
    put(x, at.of(1, m, n * k), n * k);
    if (positive) return solve_factored(frame, upper, work, x, n, k);
    // the library's U and L are the row-major lower and upper triangles: A = U^T L^T P^T
    solve_triangle(frame, {false}, work, x, n, k);
    solve_triangle(frame, {true, false, true}, work, x, n, k);
    swap_rows_back(frame, x, n, k, [&](int64_t i) { return pivots[i] - 1; });
  });
}

template <class T>
int inverse(Frame& frame) {
  const Arrays<T> at(frame);
  const int64_t n = at.n;
  const bool positive = frame.flags & POS, upper = frame.flags & UPPER;
  Room<T> lu(positive ? 0 : n * n);
  Integers pivots(positive ? 0 : n, width_of<T>(GETRF));
  return at.each([&](int64_t m) {
    const T* a = at.of(0, m, n * n);
    T* x = at.of(1, m, n * n);
    int64_t status = 0;
    if (positive) {
      status = factor_positive(frame, a, x, n, upper);
      if (!status) {
        const char triangle = upper ? 'L' : 'U';
        invert_factored(triangle, n, x);
        mirror(frame, x, n, upper);
      }
    } else {
      status = factor_transposed(frame, a, static_cast<T*>(lu), pivots, n);
      if (status) {
        status = place_by_rows(frame, a, static_cast<T*>(lu), pivots, n, status);
      } else {  // X <- U^-1 L^-1 P^T
        const int threads = dense_threads(n);
        if (!threads || !dense_inverse<T>(lu, x, n, threads)) {
          pass(frame, n, n, [&](int64_t first, int64_t last) {
            for (int64_t i = first; i < last; i++) {
              put(x + i * n, lu + i * n, i + 1);
              std::fill(x + i * n + i + 1, x + (i + 1) * n, T(0));
            }
          });
          invert_triangle('U', n, x, n);
          call<T>(TRSM, 'R', 'L', 'N', 'U', n, n, T(1), static_cast<T*>(lu), n, x, n);
        }
        swap_rows_back(frame, x, n, n, [&](int64_t i) { return pivots[i] - 1; });
      }
    }
    *at.integers(2, m, 1) = int32_t(status);
    if (status) fill_nan(x, n * n);
  });
}

template <class T>
int lu(Frame& frame) {
  const Arrays<T> at(frame);
  const int64_t n = at.n;
  Integers pivots(n, width_of<T>(GETRF));
  return at.each([&](int64_t m) {
    T* out = at.of(1, m, n * n);
    int32_t* rows = at.integers(2, m, n);
    const int64_t status = factor_rows(frame, at.of(0, m, n * n), out, pivots, n);
    *at.integers(3, m, 1) = int32_t(status);
    std::iota(rows, rows + n, 0);
    if (status) return fill_nan(out, n * n);
    for (int64_t i = 0; i < n; i++) std::swap(rows[i], rows[pivots[i] - 1]);
  });
}

bool is_order(const int32_t* rows, int64_t n) {
  return std::all_of(rows, rows + n, [&](int32_t row) { return row >= 0 && row < n; });
}

template <class T>
int solve_by_lu(Frame& frame) {
  const Arrays<T> at(frame);
  const int64_t n = at.n, k = at.k;
  const bool adjoint = frame.flags & ADJOINT;
  Room<T> own(n * k);
  return at.each([&](int64_t m) {
    const T *factors = at.of(1, m, n * n), *b = at.of(3, m, n * k);
    const int32_t* rows = at.integers(2, m, n);
    T *x = at.of(4, m, n * k), *work = own;
    if (first_bad(factors, n) || !is_order(rows, n)) return fill_nan(x, n * k);
    if (adjoint) {  // A^H = U^H L^H P
      put(work, b, n * k);
      solve_triangle(frame, {true, true}, factors, work, n, k);
      solve_triangle(frame, {false, true, true}, factors, work, n, k);
      for (int64_t i = 0; i < n; i++) put(x + rows[i] * k, work + i * k, k);
    } else {  // P A = L U
      for (int64_t i = 0; i < n; i++) put(work + i * k, b + rows[i] * k, k);
      put(x, work, n * k);
      solve_triangle(frame, {false, false, true}, factors, x, n, k);
      solve_triangle(frame, {true}, factors, x, n, k);
    }
  });
}

template <class T>
int solve_by_cholesky(Frame& frame) {
  const Arrays<T> at(frame);
  const int64_t n = at.n, k = at.k;
  return at.each([&](int64_t m) {
    const T* l = at.of(1, m, n * n);
    T* x = at.of(3, m, n * k);
    if (first_bad(l, n)) return fill_nan(x, n * k);
    put(x, at.of(2, m, n * k), n * k);
    solve_factored(frame, frame.flags & UPPER, l, x, n, k);
  });
}

template <class T>
int determinant(Frame& frame) {
  const Arrays<T> at(frame);
  const int64_t n = at.n;
  const bool positive = frame.flags & POS, upper = frame.flags & UPPER, in_input = frame.flags & OVERWRITE;
  Room<T> own(in_input ? 0 : n * n);
  Integers pivots(positive ? 0 : n, width_of<T>(GETRF));
  const Determinants<T> results(frame);
  return at.each([&](int64_t m) {
    T *a = at.of(0, m, n * n), *work = in_input ? a : static_cast<T*>(own);
    const int64_t status = positive ? factor_positive(frame, a, work, n, upper)
                                    : factor_transposed(frame, a, work, pivots, n, true);  // the determinant may be zero
    results.info(m) = int32_t(status);
    if (status) return results.fail(m);
    Pivots product;
    for (int64_t i = 0; i < n; i++) {
      const T pivot = work[i * (n + 1)];
      product.multiply({std::real(pivot), std::imag(pivot)});
      if (!positive && pivots[i] != i + 1) product.mantissa = -product.mantissa;
    }
    if (positive) product.square();
    results.put(m, product);
  });
}

int check_all(Frame& frame) {
  const int64_t largest = std::max(frame.size[1], frame.size[2]);
  for (int name = 0; name < N_NAMES; name++)
    if (check(frame, Name(name), largest)) return 1;
  return 0;
}

}  // namespace

int solve(Frame& frame) {
  if (check_all(frame)) return 1;
  if (frame.op == QR || frame.op == QR_R || frame.op == QR_RAW) return qr(frame);
  if (frame.op == SVD || frame.op == SVDVALS) return svd(frame);
  return by_dtype(frame.dtype, [&](auto zero) {
    using T = decltype(zero);
    switch (frame.op) {
      case TRIANGULAR: return triangular<T>(frame);
      case SOLVE: return solve_systems<T>(frame);
      case INVERSE: return inverse<T>(frame);
      case LU: return lu<T>(frame);
      case LU_SOLVE: return solve_by_lu<T>(frame);
      case CHOLESKY_SOLVE: return solve_by_cholesky<T>(frame);
      default: return determinant<T>(frame);
    }
  });
}

int64_t solve_host_bytes(const Frame& frame) {
  const int64_t n = frame.size[1], k = frame.size[2], element = int64_t(size_of(frame.dtype));
  const bool positive = frame.flags & POS, in_input = frame.flags & OVERWRITE;
  const int64_t panels = dense_threads(n) ? 2 * 128 * n * element : 0;
  switch (frame.op) {
    case SOLVE: return panels + (in_input ? 0 : (n * n + (frame.flags & (SYMMETRIC | SELF_ADJOINT) ? n * k : 0)) * element);
    case INVERSE:
      if (positive) return panels + (dense_threads(n) ? (9 * n / 8 + 512) * n * element : 0);  // L, then W, in blocks of 96
      return panels + (dense_threads(n) ? 2 : 1) * n * n * element;
    case LU_SOLVE: return n * k * element;
    case LU: return panels;
    case TRIANGULAR: case CHOLESKY_SOLVE: return 0;
    case QR: case QR_R: case QR_RAW: case SVD: case SVDVALS: return decompose_host_bytes(frame);
    default: return panels + (in_input ? 0 : n * n * element);  // determinants
  }
}

}  // namespace lapwing::lapack
