// QR and SVD by LAPACK: small singular value problems side by side, each on one thread; others one after the other with the
// library's own threads. QR by our own code where that is faster.
//
// A row-major matrix is its transpose to the library. The SVD of A^T has u and v^H of A in each other's place, both already
// row-major: nothing moves. But the library is slower on wide matrices, whose panels (LQ) run across the memory: so a tall A
// is transposed on the way in and out, for the SVD and for the QR.
#include "lapack/decompose.h"

#include <algorithm>
#include <cmath>
#include <complex>

#include "dtypes.h"
#include "lapack/fortran.h"
#include "lapack/lapack.h"
#include "lapack/rows.h"
#include "cpu/bidiagonal.h"
#include "cpu/matrix.h"
#include "cpu/qr.h"
#include "cpu/threads.h"

namespace lapwing::lapack {
namespace {

// 32-bit integers cannot hold the workspace of gesdd, about 9 k^2 of complex matrices, from here on: gesvd takes less.
constexpr int64_t NARROW_LIMIT = 15000;

// Whether our own kernel does it. Very narrow matrices were not measured.
bool is_own_qr(const Frame& frame) {
  constexpr int64_t LEAST_COLUMNS = 16;
  const int64_t m = frame.size[1], n = frame.size[2];
  const bool qr = frame.op == QR || frame.op == QR_R || frame.op == QR_RAW;
  return qr && std::min(m, n) >= LEAST_COLUMNS && dense_threads(std::max(m, n));
}

// QR, QR_R and QR_RAW
template <class T>
int qr_as(Frame& frame) {
  const int64_t m = frame.size[1], n = frame.size[2], k = std::min(m, n), c = frame.op == QR ? frame.size[3] : k;
  const bool raw = frame.op == QR_RAW, forms_q = frame.op == QR;
  Room<T> own(raw ? 0 : m * std::max(n, c)), own_tau(raw ? 0 : k);
  return parallel(1, frame.size[0], 1, [&](int64_t at, int64_t) {
    const T* a = static_cast<const T*>(frame.buffer[0]) + at * m * n;
    T* first = static_cast<T*>(frame.buffer[1]) + at * (forms_q ? m * c : raw ? n * m : k * n);
    T* second = forms_q ? static_cast<T*>(frame.buffer[2]) + at * c * n : raw ? static_cast<T*>(frame.buffer[2]) + at * k : nullptr;
    T *w = raw ? first : static_cast<T*>(own), *tau = raw ? second : static_cast<T*>(own_tau), *r = forms_q ? second : first;
    // the first k columns decide Q; what is not finite behind them spoils its own column of R alone
    const int64_t checked = forms_q ? n : k;
    int64_t info = !pass_all(frame, m, checked, [&](int64_t begin, int64_t end) {
      bool finite = true;
      for (int64_t i = begin; i < end; i++) finite = all_finite(a + i * n, checked) && finite;
      return finite;
    });
    if (!info) {
      turn(frame, a, w, m, n);  // column-major conj(A), whose factors are those of A conjugated
      with_workspace<T>([&](T* work, int64_t room) { call<T>(GEQRF, m, n, w, m, tau, work, room, &info); });
    }
    if (!info && raw) {
      for (int64_t i = 0; is_complex<T> && i < m * n; i++) w[i] = conjugated(w[i]);
      for (int64_t i = 0; is_complex<T> && i < k; i++) tau[i] = conjugated(tau[i]);
    } else if (!info) {
      turn(frame, w, r, n, m, c);
      for (int64_t i = 1; i < c; i++) std::fill_n(r + i * n, std::min(i, n), T(0));
    }
    if (!info && forms_q)
      with_workspace<T>([&](T* work, int64_t room) { call<T>(UNGQR, m, c, k, w, m, tau, work, room, &info); });
    if (!info && forms_q) turn(frame, w, first, c, m);
    if (!info) return;
    fill_nan(first, forms_q ? m * c : raw ? m * n : k * n);
    if (second) fill_nan(second, forms_q ? c * n : k);
  }, frame.interrupted) ? 0 : 1;
}

// One column-major matrix of `rows` x `columns`, which is destroyed; its u and v^H where they are wanted.
template <class T>
struct Decomposition {
  int64_t rows, columns;
  T* a;
  RealOf<T>* s;
  T *u, *vh;
  char job;  // 'A', 'S' or 'N'
  int64_t ld_vh;

  int64_t divide_and_conquer() const { return gesdd(job, rows, columns, a, s, u, vh, ld_vh); }

  int64_t iterate() const {
    Room<RealOf<T>> real_work(is_complex<T> ? 5 * std::min(rows, columns) : 0);
    int64_t info = 0;
    with_workspace<T>([&](T* work, int64_t room) {
      if constexpr (is_complex<T>)
        call<T>(GESVD, job, job, rows, columns, a, rows, s, u, rows, vh, ld_vh, work, room, static_cast<RealOf<T>*>(real_work),
                &info);
      else
        call<T>(GESVD, job, job, rows, columns, a, rows, s, u, rows, vh, ld_vh, work, room, &info);
    });
    return info;
  }
};

// The BidiagonalSolver of cpu/bidiagonal.h, by divide and conquer
template <class R>
int64_t solve_bidiagonal(int64_t n, R* d, R* e, R* x, int64_t ld_x, R* y, int64_t ld_y) {
  const Integers integers(8 * n, width_of<R>(BDSDC));
  Room<R> work(x ? 3 * n * n + 4 * n : 8 * n);
  R unused = 0;
  int64_t info = 0;
  call<R>(BDSDC, 'U', x ? 'I' : 'N', n, d, e, x, x ? ld_x : 1, y, x ? ld_y : 1, &unused, integers.data(), static_cast<R*>(work),
          integers.data(), &info);
  return info;
}

// Whether the matrix goes by our own reduction to bidiagonal form. Two threads of Zen 5 (2026-11-18,
// benchmarks/results/cpu-spectra-epyc-2026-11-18.json), time of the best of NumPy, SciPy and torch over ours, all four types, n = 8
// to 1000 (complex 512): svd 1.2 to 2.9, svdvals 1.4 to 3.6; svd float64 n = 2048 1.4. More threads, and larger matrices, were not
// measured: the columns are split into four parts or more. Where MKL is lent it is used.
bool is_own_svd(const Frame& frame) {
  constexpr int64_t LEAST = 3, LARGEST = 2048, LONGEST = 20000, ANY_THREADS = 256;
  const int64_t k = std::min(frame.size[1], frame.size[2]), longer = std::max(frame.size[1], frame.size[2]);
  if ((frame.op != SVD && frame.op != SVDVALS) || frame.device != CPU || is_lent()) return false;
  if (k < LEAST || k > LARGEST || longer > LONGEST || !routine(BDSDC, frame.dtype).address) return false;
  return k <= ANY_THREADS || goes_side_by_side(frame) || threads_for(frame) <= 4;
}

template <class T>
int svd_as(Frame& frame) {
  using Real = RealOf<T>;
  const int64_t m = frame.size[1], n = frame.size[2], k = std::min(m, n);
  const bool vectors = frame.op == SVD, full = vectors && frame.size[3];
  const int64_t u_columns = full ? m : k, vh_rows = full ? n : k;
  const bool narrow = width_of<T>(GESDD) == 4 && k > NARROW_LIMIT;
  const bool tall = m > n;
  const char kind = !vectors ? 'N' : full ? 'A' : 'S';
  const bool own_reduction = is_own_svd(frame);
  // the threads are busy where small matrices go side by side
  const int threads = own_reduction && !goes_side_by_side(frame) ? threads_for(frame) : 1;
  return side_by_side(frame, GESDD, [&](int64_t at, int64_t) {
    const T* a = static_cast<const T*>(frame.buffer[0]) + at * m * n;
    T* u = vectors ? static_cast<T*>(frame.buffer[1]) + at * m * u_columns : nullptr;
    Real* s = static_cast<Real*>(frame.buffer[vectors ? 2 : 1]) + at * k;
    T* vh = vectors ? static_cast<T*>(frame.buffer[3]) + at * vh_rows * n : nullptr;
    int32_t& failed = static_cast<int32_t*>(frame.buffer[vectors ? 4 : 2])[at];
    failed = 0;
    if (own_reduction && !svd_by_bidiagonal<T>({a, m, n, full, u, s, vh}, threads, solve_bidiagonal<Real>)) return;
    Room<T> own(m * n), turned_u(vectors && tall ? m * u_columns : 0), turned_vh(vectors && tall ? vh_rows * n : 0);
    // column-major A^T, or conj(A) whose factors are those of A conjugated
    auto take = [&] {
      if (!tall) return copy_finite<T>(frame, a, own, m, n);
      turn<T>(frame, a, own, m, n);
      return is_finite<T>(frame, own, n, m);
    };
    const Decomposition<T> job = tall ? Decomposition<T>{m, n, own, s, turned_u, turned_vh, kind, vectors ? vh_rows : 1}
                                      : Decomposition<T>{n, m, own, s, vh, u, kind, vectors ? u_columns : 1};
    int64_t info = !take();
    if (!info && !narrow) info = job.divide_and_conquer();
    // its iterations may fail where those of the plain method do not
    if ((info && take()) || (!info && narrow)) info = job.iterate();
    if (!info && vectors && tall) {
      turn<T>(frame, turned_u, u, u_columns, m);
      turn<T>(frame, turned_vh, vh, n, vh_rows);
    }
    failed = info != 0;
    if (!info) {
      for (int64_t i = 0; i < k; i++) s[i] = std::abs(s[i]);  // never -0, which some LAPACKs leave
      return;
    }
    fill_nan(s, k);
    if (vectors) fill_nan(u, m * u_columns);
    if (vectors) fill_nan(vh, vh_rows * n);
  }) ? 0 : 1;
}

}  // namespace

int qr(Frame& frame) {
  if (is_own_qr(frame)) return qr_blocked(frame);
  return by_dtype(frame.dtype, [&](auto zero) { return qr_as<decltype(zero)>(frame); });
}

int svd(Frame& frame) {
  return by_dtype(frame.dtype, [&](auto zero) { return svd_as<decltype(zero)>(frame); });
}

int64_t decompose_host_bytes(const Frame& frame) {
  const int64_t m = frame.size[1], n = frame.size[2], k = std::min(m, n), element = int64_t(size_of(frame.dtype));
  if (is_own_qr(frame)) return element * m * (n + 64 + (frame.op == QR ? frame.size[3] : 0));
  if (frame.op == QR_RAW) return element * 32 * n;
  const int64_t widest = std::max(n, frame.op == QR ? frame.size[3] : 0);
  if (frame.op == QR || frame.op == QR_R) return element * (m + 32) * widest;
  if (is_own_svd(frame)) {
    const bool vectors = frame.op == SVD;
    return by_dtype(frame.dtype, [&](auto zero) {
      typedef decltype(zero) T;
      const int64_t solver = (vectors ? 3 * k * k : 0) + 16 * k;
      return bidiagonal_bytes<T>(m, n, vectors, vectors && frame.size[3]) + int64_t(sizeof(RealOf<T>)) * solver;
    });
  }
  if (frame.op == SVDVALS) return element * (m * n + 64 * std::max(m, n));
  const int64_t turned = m > n ? m * (frame.size[3] ? m : k) + n * n : 0;
  return element * (m * n + turned + 4 * k * k + 7 * k);
}

}  // namespace lapwing::lapack
