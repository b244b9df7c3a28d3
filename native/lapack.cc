#include "lapack.h"

#include <cmath>
#include <complex>
#include <cstring>
#include <limits>

#include "threads.h"

namespace lapwing::lapack {
namespace {

struct Routine {
  void* address = nullptr;
  int width = 0;
};
Routine potrf[N_DTYPES];

// Column-major view of a row-major matrix: its lower triangle is the upper one there, also for Hermitian matrices.
template <class Int, class T>
int64_t factor(const Routine& routine, T* a, int64_t n, bool upper) {
  char triangle = upper ? 'L' : 'U';
  Int order = Int(n), info = 0;
  using Potrf = void (*)(char*, Int*, T*, Int*, Int*);
  reinterpret_cast<Potrf>(routine.address)(&triangle, &order, a, &order, &info);
  return info;
}

// Some LAPACKs let an Inf or NaN pivot pass: the first one is where the factorisation failed.
template <class T>
int64_t first_bad_pivot(const T* l, int64_t n, int64_t info) {
  int64_t last = info > 0 ? info - 1 : n;
  for (int64_t i = 0; i < last; i++)
    if (!std::isfinite(std::real(l[i * n + i]))) return i + 1;
  return info;
}

// out <- the named triangle of a, zeros elsewhere
template <class T>
void copy_triangle(const T* a, T* out, int64_t n, bool upper) {
  for (int64_t i = 0; i < n; i++) {
    const T* from = a + i * n;
    T* to = out + i * n;
    int64_t first = upper ? i : 0, last = upper ? n : i + 1;
    if (to != from) std::memcpy(static_cast<void*>(to + first), from + first, sizeof(T) * (last - first));
    std::memset(static_cast<void*>(to), 0, sizeof(T) * first);
    std::memset(static_cast<void*>(to + last), 0, sizeof(T) * (n - last));
  }
}

template <class T>
void fill_nan(T* l, int64_t count) {
  using Real = decltype(std::real(T()));
  const Real nan = std::numeric_limits<Real>::quiet_NaN();
  auto* part = reinterpret_cast<Real*>(l);
  for (int64_t k = 0; k < count * int64_t(sizeof(T) / sizeof(Real)); k++) part[k] = nan;
}

template <class T>
int cholesky_as(Frame& frame) {
  const Routine& routine = potrf[frame.dtype];
  int64_t batch = frame.size[0], n = frame.size[1];
  bool upper = frame.flags & UPPER;
  auto* a = static_cast<const T*>(frame.buffer[0]);
  auto* out = static_cast<T*>(frame.buffer[1]);
  auto* info = static_cast<int32_t*>(frame.buffer[2]);
  // The library brings its own threads, so the matrices are taken one after the other.
  bool finished = parallel(1, batch, 1, [&](int64_t m, int64_t) {
    T* l = out + m * n * n;
    copy_triangle(a + m * n * n, l, n, upper);
    int64_t status = routine.width == 8 ? factor<int64_t>(routine, l, n, upper) : factor<int32_t>(routine, l, n, upper);
    status = first_bad_pivot(l, n, status);
    info[m] = int32_t(status);
    if (status) fill_nan(l, n * n);
  }, frame.interrupted);
  return finished ? 0 : 1;
}

}  // namespace

bool bind(const char* name, void* address, int width) {
  const char* letters = "sdcz";
  const char* letter = std::strchr(letters, name[0]);
  if (!name[0] || !letter) return false;
  if (std::strcmp(name + 1, "potrf") == 0) {
    potrf[letter - letters] = {address, width};
    return true;
  }
  return false;
}

bool has(Op op, Dtype dtype) { return op == CHOLESKY && potrf[dtype].address; }

int cholesky(Frame& frame) {
  if (!has(CHOLESKY, Dtype(frame.dtype))) return fail(frame, "no LAPACK library was found");
  if (frame.size[1] > std::numeric_limits<int32_t>::max() && potrf[frame.dtype].width == 4)
    return fail(frame, "this LAPACK has 32-bit integers and cannot take n = %lld", (long long)frame.size[1]);
  switch (frame.dtype) {
    case F32: return cholesky_as<float>(frame);
    case F64: return cholesky_as<double>(frame);
    case C64: return cholesky_as<std::complex<float>>(frame);
    default: return cholesky_as<std::complex<double>>(frame);
  }
}

}  // namespace lapwing::lapack
