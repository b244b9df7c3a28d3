// Eigenvalues by LAPACK: small matrices side by side, each on one thread; others one after the other with the library's own threads.
//
// The whole spectrum: divide and conquer (syevd), in the memory of the result. A part of it: relatively robust
// representations (syevr), which cost the same reduction to tridiagonal form but only the vectors that are asked for. Inside
// large clusters of equal eigenvalues syevr may find no vectors; such a matrix is solved as a whole.
#include <algorithm>
#include <cmath>
#include <complex>

#include "dtypes.h"
#include "lapack/fortran.h"
#include "lapack/lapack.h"
#include "cpu/matrix.h"
#include "cpu/threads.h"
#include "cpu/tridiagonal.h"

namespace lapwing::lapack {
namespace {

// 32-bit integers cannot hold the workspace of syevd, 1 + 6 n + 2 n^2, from here on.
constexpr int64_t NARROW_LIMIT = 32000;

// w, z <- the eigenvalues first .. first + count - 1 of one column-major matrix, and their vectors; a is destroyed.
template <class T>
int64_t heevr(bool vectors, char triangle, int64_t n, T* a, RealOf<T>* w, T* z, int64_t first, int64_t count) {
  using Real = RealOf<T>;
  const char job = vectors ? 'V' : 'N';
  const Real unused = 0, tolerance = 0;  // 0: as accurate as the method can
  int64_t found = 0;
  const Integers support(2 * n, width_of<T>(HEEVR));
  Room<Real> values(n);
  const int64_t info = with_three_workspaces<T>(HEEVR, [&](auto... rest) {
    call<T>(HEEVR, job, 'I', triangle, n, a, n, unused, unused, first + 1, first + count, tolerance, &found,
            static_cast<Real*>(values), z, n, support.data(), rest...);
  });
  std::copy_n(static_cast<Real*>(values), count, w);
  return info ? info : int64_t(found != count);
}

// The same from the whole spectrum.
template <class T>
int64_t part_of_heevd(bool vectors, char triangle, int64_t n, T* a, RealOf<T>* w, T* z, int64_t first, int64_t count) {
  Room<RealOf<T>> values(n);
  const int64_t info = heevd(vectors, triangle, n, a, n, static_cast<RealOf<T>*>(values));
  std::copy_n(static_cast<RealOf<T>*>(values) + first, count, w);
  if (vectors) std::copy_n(a + first * n, n * count, z);
  return info;
}

// The same of the tridiagonal matrix with the diagonals d and e, for cpu/tridiagonal.h
template <class R>
int64_t solve_tridiagonal(int64_t n, R* d, R* e, R* z, int64_t ld) {
  int64_t info = 0;
  if (!z) {
    call<R>(STERF, n, d, e, &info);
    return info;
  }
  return with_three_workspaces<R>(STEDC, [&](auto... rest) { call<R>(STEDC, 'I', n, d, e, z, ld, rest...); });
}

// Whether the matrix goes by our own reduction to tridiagonal form. Two threads of a Xeon (2026-11-16, one run beside others), n = 32 to
// 400: times of NumPy's OpenBLAS over ours 1.04 to 2.8. Of torch's MKL over ours with vectors: float64 n = 48 1.1, 100 1.03, 128 0.96,
// 200 0.80, 1000 0.85; float32 100 0.87, 128 1.4, 200 0.99, 256 1.0, 1000 0.70; without vectors 0.94 to 1.5 up to n = 1000, 0.91 at 2048.
// With vectors at n = 512, four threads 0.87, eight 0.57. Where MKL is lent it is used.
template <class T>
bool is_own_reduction(const Frame& frame) {
  constexpr int64_t OWN_LEAST = 17, ANY_THREADS = 256;
  const int64_t n = frame.size[1], largest = frame.op == EIGH ? 768 : 1024;
  if (is_complex<T> || frame.device != CPU || frame.size[3] != n || n < OWN_LEAST || n > largest || is_lent()) return false;
  return n <= ANY_THREADS || frame.size[0] > 1 || threads_for(frame) <= 2;
}

// The triangle that is not read <- the transpose of the one that is.
template <class T>
void mirror(T* a, int64_t n, bool from_upper) {
  for (int64_t i = 0; i < n; i++)
    for (int64_t j = 0; j < i; j++)
      if (from_upper) a[i * n + j] = a[j * n + i];
      else a[j * n + i] = a[i * n + j];
}

template <class T>
int eigh_as(Frame& frame) {
  using Real = RealOf<T>;
  const int64_t n = frame.size[1], first = frame.size[2], count = frame.size[3];
  const bool vectors = frame.op == EIGH, upper = frame.flags & UPPER;
  auto* a = static_cast<T*>(frame.buffer[0]);
  auto* w = static_cast<Real*>(frame.buffer[1]);
  auto* v = vectors ? static_cast<T*>(frame.buffer[2]) : nullptr;
  auto* info = static_cast<int32_t*>(frame.buffer[vectors ? 3 : 2]);
  const bool heevd_fits = width_of<T>(HEEVD) == 8 || n <= NARROW_LIMIT, whole = count == n && heevd_fits;
  // a copy that may be destroyed: the result's own memory, the input if it may go, else some of our own
  const bool in_result = vectors && whole, in_input = !in_result && (frame.flags & OVERWRITE);
  // a row-major lower triangle is the upper one in column-major order, of the conjugate matrix
  const char triangle = upper ? 'L' : 'U';
  const bool own_reduction = is_own_reduction<T>(frame);
  // the threads are busy where small matrices go side by side
  const int threads = own_reduction && (frame.size[0] == 1 || n * n > SIDE_BY_SIDE) ? threads_for(frame) : 1;

  const bool finished = side_by_side(frame, whole ? HEEVD : HEEVR, [&](int64_t m, int64_t) {
    Room<T> own(in_result || in_input || own_reduction ? 0 : n * n);
    Room<T> z(vectors && !whole ? n * count : 0), diagonal(in_input && !whole ? n : 0);
    T* from = a + m * n * n;
    T* work = in_result ? v + m * n * n : in_input ? from : static_cast<T*>(own);
    Real* values = w + m * count;
    T* result = vectors ? v + m * n * count : nullptr;
    int64_t status = 0;
    if constexpr (!is_complex<T>)
      if (own_reduction) {
        status = eigh_by_tridiagonal<T>(from, n, upper, values, result, threads, solve_tridiagonal<T>);
        info[m] = int32_t(status);
        if (!status) return;
        fill_nan(values, n);
        if (vectors) fill_nan(result, n * n);
        return;
      }
    if (!copy_finite_triangle(from, work, n, upper)) {
      status = 1;
    } else if (whole) {
      status = heevd(vectors, triangle, n, work, n, values);
    } else {
      if (in_input) {  // what is left if syevr destroys its triangle and fails
        mirror(work, n, upper);
        for (int64_t i = 0; i < n; i++) diagonal[i] = work[i * (n + 1)];
      }
      status = heevr<T>(vectors, triangle, n, work, values, z, first, count);
      if (status && heevd_fits) {
        if (in_input) {
          mirror(work, n, !upper);
          for (int64_t i = 0; i < n; i++) work[i * (n + 1)] = diagonal[i];
        } else {
          copy_finite_triangle(from, work, n, upper);
        }
        status = part_of_heevd<T>(vectors, triangle, n, work, values, z, first, count);
      }
    }
    info[m] = int32_t(status);
    if (status) {
      fill_nan(values, count);
      if (vectors) fill_nan(result, n * count);
    } else if (vectors && whole) {
      transpose_conjugate(result, n);
    } else if (vectors) {
      transpose_conjugate(static_cast<T*>(z), result, count, n);
    }
  });
  return finished ? 0 : 1;
}

}  // namespace

int eigh(Frame& frame) {
  if (check(frame, HEEVD, frame.size[1])) return 1;
  return by_dtype(frame.dtype, [&](auto zero) { return eigh_as<decltype(zero)>(frame); });
}

int64_t eigh_host_bytes(const Frame& frame) {
  const int64_t n = frame.size[1], count = frame.size[3], element = int64_t(size_of(frame.dtype));
  const bool vectors = frame.op == EIGH, whole = count == n;
  if (frame.dtype == F64 && is_own_reduction<double>(frame)) return tridiagonal_bytes<double>(n, vectors) + (vectors ? n * n * 8 : 0);
  if (frame.dtype == F32 && is_own_reduction<float>(frame)) return tridiagonal_bytes<float>(n, vectors) + (vectors ? n * n * 4 : 0);
  // the copy, what is returned, and the workspace of the routine (its largest part; block sizes of about 64 else)
  int64_t copy = vectors && whole ? 0 : n * n, result = vectors && !whole ? n * count : 0;
  int64_t work = vectors && whole ? 2 * n * n : 64 * n;
  return (copy + result + work) * element;
}

}  // namespace lapwing::lapack
