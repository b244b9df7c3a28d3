// Eigenvalues of general matrices and Schur forms by LAPACK: small matrices side by side, each on one thread; others one after the
// other with the library's own threads. For real matrices of middle order our own kernels of cpu/eig_one.h stand in for the library's.
//
// A matrix is transposed on the way in: the library then sees conj(A), whose eigenvalues, eigenvectors and Schur factors are
// those of A conjugated, and the transposes on the way out conjugate again.
#include "lapack/eig.h"

#include <algorithm>
#include <complex>
#include <utility>

#include "cpu/eig_one.h"
#include "cpu/matrix.h"
#include "cpu/threads.h"
#include "dtypes.h"
#include "lapack/fortran.h"
#include "lapack/lapack.h"
#include "lapack/rows.h"

namespace lapwing::lapack {
namespace {

// Row-major vectors from the columns of v. A pair of conjugate eigenvalues has the real part of its first vector in one column,
// and the imaginary part in the next.
template <class R>
void unpack_pairs(const std::complex<R>* w, const R* v, std::complex<R>* out, int64_t n) {
  constexpr int64_t ROWS = 16;  // written side by side: each of them is a stream of its own
  for (int64_t first = 0; first < n; first += ROWS) {
    const int64_t last = std::min(first + ROWS, n);
    for (int64_t j = 0; j < n; j++) {
      const R* column = v + j * n;
      const bool pair = w[j].imag() != 0;
      for (int64_t i = first; i < last; i++) {
        out[i * n + j] = pair ? std::complex<R>(column[i], column[n + i]) : std::complex<R>(column[i]);
        if (pair) out[i * n + j + 1] = std::conj(out[i * n + j]);
      }
      j += pair;
    }
  }
}

// w and the right eigenvectors (columns of v, null: none) of one column-major matrix, which is destroyed. LAPACK's info.
template <class R>
int64_t geev(int64_t n, std::complex<R>* a, std::complex<R>* w, std::complex<R>* v) {
  using T = std::complex<R>;
  Room<R> real_work(2 * n);
  int64_t info = 0;
  with_workspace<T>([&](T* work, int64_t room) {
    call<T>(GEEV, 'N', v ? 'V' : 'N', n, a, n, w, static_cast<T*>(nullptr), int64_t(1), v, n, work, room,
            static_cast<R*>(real_work), &info);
  });
  return info;
}
template <class R>
int64_t geev(int64_t n, R* a, std::complex<R>* w, R* v) {
  Room<R> parts(2 * n);
  R *re = parts, *im = re + n;
  int64_t info = 0;
  with_workspace<R>([&](R* work, int64_t room) {
    call<R>(GEEV, 'N', v ? 'V' : 'N', n, a, n, re, im, static_cast<R*>(nullptr), int64_t(1), v, n, work, room, &info);
  });
  for (int64_t i = 0; i < n; i++) w[i] = {re[i], im[i]};
  return info;
}

// T and the columns of z from one column-major matrix, T in its place. LAPACK's info.
template <class T>
int64_t gees(int64_t n, T* a, T* z) {
  Room<T> w(2 * n);
  Room<RealOf<T>> real_work(n);
  void* const none = nullptr;  // no function that selects eigenvalues, and no room for its answers
  int64_t info = 0, selected = 0;
  with_workspace<T>([&](T* work, int64_t room) {
    if constexpr (is_complex<T>)
      call<T>(GEES, 'V', 'N', none, n, a, n, &selected, static_cast<T*>(w), z, n, work, room, static_cast<RealOf<T>*>(real_work),
              none, &info);
    else
      call<T>(GEES, 'V', 'N', none, n, a, n, &selected, static_cast<T*>(w), w + n, z, n, work, room, none, &info);
  });
  return info;
}

template <class R>
void write_vectors(const Frame& frame, const std::complex<R>*, const std::complex<R>* v, std::complex<R>* out, int64_t n) {
  turn(frame, v, out, n, n);
}
template <class R>
void write_vectors(const Frame&, const std::complex<R>* w, const R* v, std::complex<R>* out, int64_t n) {
  unpack_pairs(w, v, out, n);
}

template <class T>
bool is_hermitian(const T* a, int64_t n) {
  for (int64_t i = 0; i < n; i++)
    for (int64_t j = 0; j <= i; j++)
      if (a[i * n + j] != conjugated(a[j * n + i])) return false;
  return true;
}

// The same as geev for a Hermitian matrix, with orthonormal vectors: those of geev for equal eigenvalues may be nearly parallel.
// a <- the vectors.
template <class T>
int64_t heev(int64_t n, T* a, std::complex<RealOf<T>>* w, bool vectors) {
  Room<RealOf<T>> values(n);
  const int64_t info = heevd(vectors, 'L', n, a, n, static_cast<RealOf<T>*>(values));
  for (int64_t i = 0; i < n; i++) w[i] = values[i];
  return info;
}

template <class T>
int eig_as(Frame& frame) {
  using C = std::complex<RealOf<T>>;
  const int64_t n = frame.size[1];
  const bool vectors = frame.op == EIG;
  return side_by_side(frame, GEEV, [&](int64_t at, int64_t) {
    Room<T> own(n * n), columns(vectors ? n * n : 0);
    C* w = static_cast<C*>(frame.buffer[1]) + at * n;
    C* v = vectors ? static_cast<C*>(frame.buffer[2]) + at * n * n : nullptr;
    const auto take = [&] { turn<T>(frame, static_cast<const T*>(frame.buffer[0]) + at * n * n, own, n, n); };
    take();
    int64_t info = !is_finite<T>(frame, own, n, n);
    bool hermitian = !info && is_hermitian<T>(own, n);
    if (hermitian && heev<T>(n, own, w, vectors)) {
      take();
      hermitian = false;
    }
    if constexpr (!is_complex<T>)
      if (!info && !hermitian && n <= EIG_ONE_LARGEST &&
          eig_one(n, static_cast<const T*>(frame.buffer[0]) + at * n * n, w, v)) {
        static_cast<int32_t*>(frame.buffer[vectors ? 3 : 2])[at] = 0;
        return;
      }
    if (!info && !hermitian) info = geev(n, static_cast<T*>(own), w, vectors ? static_cast<T*>(columns) : nullptr);
    static_cast<int32_t*>(frame.buffer[vectors ? 3 : 2])[at] = info != 0;
    if (info) {
      fill_nan(w, n);
      if (vectors) fill_nan(v, n * n);
      return;
    }
    for (int64_t i = 0; is_complex<T> && i < n; i++) w[i] = std::conj(w[i]);
    if (vectors) write_vectors(frame, w, static_cast<const T*>(hermitian ? own : columns), v, n);
  }) ? 0 : 1;
}

template <class T>
int schur_as(Frame& frame) {
  const int64_t n = frame.size[1];
  return side_by_side(frame, GEES, [&](int64_t at, int64_t) {
    Room<T> own(n * n), columns(n * n);
    T* t = static_cast<T*>(frame.buffer[1]) + at * n * n;
    T* z = static_cast<T*>(frame.buffer[2]) + at * n * n;
    turn<T>(frame, static_cast<const T*>(frame.buffer[0]) + at * n * n, own, n, n);
    int64_t info = !is_finite<T>(frame, own, n, n);
    if constexpr (!is_complex<T>)
      if (!info && n <= EIG_ONE_LARGEST && schur_one(n, static_cast<const T*>(frame.buffer[0]) + at * n * n, t, z)) {
        static_cast<int32_t*>(frame.buffer[3])[at] = 0;
        return;
      }
    if (!info) info = gees(n, static_cast<T*>(own), static_cast<T*>(columns));
    static_cast<int32_t*>(frame.buffer[3])[at] = info != 0;
    if (info) {
      fill_nan(t, n * n);
      fill_nan(z, n * n);
      return;
    }
    turn<T>(frame, own, t, n, n);
    turn<T>(frame, columns, z, n, n);
  }) ? 0 : 1;
}

}  // namespace

int eig(Frame& frame) {
  if (check(frame, frame.op == SCHUR ? GEES : GEEV, frame.size[1])) return 1;
  return by_dtype(frame.dtype, [&](auto zero) {
    return frame.op == SCHUR ? schur_as<decltype(zero)>(frame) : eig_as<decltype(zero)>(frame);
  });
}

int64_t eig_host_bytes(const Frame& frame) {
  const int64_t n = frame.size[1], copies = frame.op == EIGVALS ? 1 : 2;
  return (copies * n * n + 64 * n) * int64_t(size_of(frame.dtype));
}

}  // namespace lapwing::lapack
