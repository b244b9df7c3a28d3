// Stand-in for libcusolver: factors, eigenvalues and singular values of column-major matrices, strict about its arguments.
//   MOCK_SOLVER_SLEEP  milliseconds each factorisation takes at least
//   MOCK_MOST_MATRICES the size query refuses more matrices at once
//   MOCK_SOLVER_BYTES  added to the workspace of an eigenproblem
//   MOCK_POLAR_SHIFT   thousandths by which the polar decomposition says it has shifted the matrix
// A matrix whose first element is 13 has no eigenvalues that converge: info becomes 13.
#include "cholesky.h"
#include "dense.h"
#include "jacobi.h"
#include "mock.h"

using namespace mock;

namespace {

constexpr int INVALID_VALUE = 3, INTERNAL_ERROR = 7, NOT_SUPPORTED = 9;
constexpr size_t HOST_BYTES = 48;

struct Handle {
  uint64_t magic = 0x5017e4;
  int number;
  void* stream = nullptr;
  std::atomic<bool> busy{false};
};
struct Params {
  uint64_t magic = 0x9a4a35;
};


bool good(void* handle, void* params) {
  return handle && params && static_cast<Handle*>(handle)->magic == Handle().magic &&
         static_cast<Params*>(params)->magic == Params().magic;
}

int dtype_of(int type) { return type == 0 ? 0 : type == 1 ? 1 : type == 4 ? 2 : type == 5 ? 3 : -1; }

size_t device_bytes(int64_t n, int type) { return size_t(64 * n + 8 * type + 24); }

// Of an eigenproblem: it is more for vectors, and for more of them.
size_t eigh_bytes(int mode, int64_t n, int type, int64_t count, int64_t matrices) {
  return size_t(number("MOCK_SOLVER_BYTES", 0) + (mode ? 32 : 16) * n * matrices + 8 * count + 8 * type + 40);
}

constexpr int INDEX_RANGE = 1002;

// What is wrong with the arguments that all eigenproblems share; nullptr when nothing is.
const char* wrong(void* handle, void* params, int mode, int uplo, int64_t n, int type, int64_t lda, int real, int compute) {
  if (!good(handle, params)) return "a handle the library did not make";
  if (mode != 0 && mode != 1) return "mode";
  if (uplo != 0 && uplo != 1) return "triangle";
  if (n < 1 || lda != n) return "sizes";
  if (dtype_of(type) < 0 || compute != type || real != type % 4) return "types";
  return nullptr;
}

// Whatever the solver leaves behind where it has no answer: no number.
void spoil(void* where, size_t bytes) { std::memset(where, 0xff, bytes); }

// One matrix: eigenvalues first .. first + count - 1 to w, their vectors to the leading columns of a, the rest is spoilt.
template <class T>
int solve_one(int mode, bool upper, int64_t n, T* a, typename RealOf<T>::type* w, int64_t first, int64_t count) {
  using Real = typename RealOf<T>::type;
  auto at = [=](int64_t i, int64_t j) { return upper ? conjugate(a[i * n + j]) : a[j * n + i]; };
  bool finite = true;
  for (int64_t j = 0; j < n; j++)
    for (int64_t i = j; i < n; i++) finite = finite && std::isfinite(std::abs(at(i, j)));
  if (!finite) return refuse(-1, "the solver was given a matrix with NaN or Inf");
  const bool fails = at(0, 0) == T(13);
  std::vector<double> values;
  std::vector<T> vectors;
  if (!fails) jacobi<T>(n, at, &values, &vectors);
  spoil(a, sizeof(T) * size_t(n * n));
  spoil(w, sizeof(Real) * size_t(n));
  if (fails) return 13;
  for (int64_t j = 0; j < count; j++) w[j] = Real(values[size_t(first + j)]);
  if (mode) std::copy_n(&vectors[size_t(first * n)], count * n, a);
  return 0;
}

// The solver's call after its arguments were checked.
int solve(void* handle, int mode, int uplo, int64_t n, int type, void* a, void* w, int64_t first, int64_t count,
          int64_t matrices, void* device, size_t device_size, void* host, size_t host_size, int* info) {
  auto* h = static_cast<Handle*>(handle);
  if (!a || !w || !info || !device || !host) return refuse(INVALID_VALUE, "a null pointer");
  if (device_size < eigh_bytes(mode, n, type, count, matrices) || host_size != HOST_BYTES)
    return refuse(INVALID_VALUE, "workspace size");
  if (h->busy.exchange(true)) return refuse(INTERNAL_ERROR, "one handle in two calls at once");
  std::memset(device, 0xee, device_size);
  std::memset(host, 0xee, host_size);
  usleep(useconds_t(1000 * number("MOCK_SOLVER_SLEEP", 0)));
  with_dtype(dtype_of(type), [&](auto* null) {
    using T = std::remove_pointer_t<decltype(null)>;
    using Real = typename RealOf<T>::type;
    for (int64_t m = 0; m < matrices; m++)
      info[m] = solve_one(mode, uplo == 1, n, static_cast<T*>(a) + m * n * n, static_cast<Real*>(w) + m * n, first, count);
  });
  h->busy = false;
  return 0;
}

}  // namespace

EXPORT int cusolverGetVersion(int* version) {
  *version = 12003;
  return 0;
}

EXPORT int cusolverDnCreate(void** handle) { return create_handle<Handle>("cusolverDnCreate", INTERNAL_ERROR, handle); }

EXPORT int cusolverDnCreateParams(void** params) {
  if (int status = ordered("cusolverDnCreateParams", INTERNAL_ERROR)) return status;
  *params = new Params;
  return 0;
}

EXPORT int cusolverDnSetStream(void* handle, void* stream) {
  if (int status = ordered("cusolverDnSetStream", INTERNAL_ERROR)) return status;
  static_cast<Handle*>(handle)->stream = stream;
  note("cusolverDnSetStream handle=%d stream=%p", static_cast<Handle*>(handle)->number, stream);
  return 0;
}

EXPORT int cusolverDnXpotrf_bufferSize(void* handle, void* params, int uplo, int64_t n, int type, const void*, int64_t lda,
                                       int compute, size_t* device, size_t* host) {
  if (int status = ordered("cusolverDnXpotrf_bufferSize", INTERNAL_ERROR)) return status;
  note("cusolverDnXpotrf_bufferSize n=%lld type=%d", (long long)n, type);
  if (!good(handle, params)) return refuse(INVALID_VALUE, "a handle the library did not make");
  if (uplo != 0) return refuse(NOT_SUPPORTED, "the upper triangle is slow and not meant");
  if (n < 0 || lda < n || dtype_of(type) < 0 || compute != type) return refuse(INVALID_VALUE, "sizes or types");
  *device = device_bytes(n, type);
  *host = HOST_BYTES;
  return 0;
}

EXPORT int cusolverDnXpotrf(void* handle, void* params, int uplo, int64_t n, int type, void* a, int64_t lda, int compute,
                            void* device, size_t device_size, void* host, size_t host_size, int* info) {
  if (int status = ordered("cusolverDnXpotrf", INTERNAL_ERROR)) return status;
  auto* h = static_cast<Handle*>(handle);
  if (!good(handle, params)) return refuse(INVALID_VALUE, "a handle the library did not make");
  note("cusolverDnXpotrf handle=%d stream=%p n=%lld type=%d a=%p work=%p bytes=%zu info=%p", h->number, h->stream,
       (long long)n, type, a, device, device_size, (void*)info);
  if (h->busy.exchange(true)) return refuse(INTERNAL_ERROR, "one handle in two calls at once");
  if (uplo != 0) return refuse(NOT_SUPPORTED, "the upper triangle is slow and not meant");
  if (n < 1 || lda != n || dtype_of(type) < 0 || compute != type) return refuse(INVALID_VALUE, "sizes or types");
  if (!a || !info || !device || !host) return refuse(INVALID_VALUE, "a null pointer");
  if (device_size != device_bytes(n, type) || host_size != HOST_BYTES) return refuse(INVALID_VALUE, "workspace size");
  std::memset(device, 0xee, device_size);
  std::memset(host, 0xee, host_size);
  usleep(useconds_t(1000 * number("MOCK_SOLVER_SLEEP", 0)));
  *info = int(with_dtype(dtype_of(type), [&](auto* null) {
    using T = std::remove_pointer_t<decltype(null)>;
    auto* x = static_cast<T*>(a);
    return factor_lower<T>(n, [=](int64_t i, int64_t j) -> T& { return x[j * lda + i]; }, false);
  }));
  h->busy = false;
  return 0;
}

// ---- eigenvalues -------------------------------------------------------------------------------------------------

#define NOTE_EIGH(more, ...)                                                                                               \
  note("%s handle=%d stream=%p mode=%d uplo=%d n=%lld type=%d" more, __func__, static_cast<Handle*>(handle)->number,       \
       static_cast<Handle*>(handle)->stream, mode, uplo, (long long)n, type, __VA_ARGS__)
#define ENTER_EIGH                                                                                \
  if (int status = ordered(__func__, INTERNAL_ERROR)) return status;                              \
  if (const char* what = wrong(handle, params, mode, uplo, n, type, lda, real, compute))          \
    return refuse(INVALID_VALUE, "%s: %s", __func__, what)

EXPORT int cusolverDnXsyevd_bufferSize(void* handle, void* params, int mode, int uplo, int64_t n, int type, const void*,
                                       int64_t lda, int real, const void*, int compute, size_t* device, size_t* host) {
  ENTER_EIGH;
  *device = eigh_bytes(mode, n, type, n, 1);
  *host = HOST_BYTES;
  NOTE_EIGH(" bytes=%zu", *device);
  return 0;
}

EXPORT int cusolverDnXsyevd(void* handle, void* params, int mode, int uplo, int64_t n, int type, void* a, int64_t lda, int real,
                            void* w, int compute, void* device, size_t device_size, void* host, size_t host_size, int* info) {
  ENTER_EIGH;
  NOTE_EIGH(" a=%p bytes=%zu", a, device_size);
  return solve(handle, mode, uplo, n, type, a, w, 0, n, 1, device, device_size, host, host_size, info);
}

EXPORT int cusolverDnXsyevdx_bufferSize(void* handle, void* params, int mode, int range, int uplo, int64_t n, int type,
                                        const void*, int64_t lda, void*, void*, int64_t first, int64_t last, int64_t* found,
                                        int real, const void*, int compute, size_t* device, size_t* host) {
  ENTER_EIGH;
  if (range != INDEX_RANGE || first < 1 || last < first || last > n || !found) return refuse(INVALID_VALUE, "range");
  *device = eigh_bytes(mode, n, type, last - first + 1, 1);
  *host = HOST_BYTES;
  NOTE_EIGH(" first=%lld last=%lld bytes=%zu", (long long)first, (long long)last, *device);
  return 0;
}

EXPORT int cusolverDnXsyevdx(void* handle, void* params, int mode, int range, int uplo, int64_t n, int type, void* a, int64_t lda,
                             void*, void*, int64_t first, int64_t last, int64_t* found, int real, void* w, int compute,
                             void* device, size_t device_size, void* host, size_t host_size, int* info) {
  ENTER_EIGH;
  NOTE_EIGH(" first=%lld last=%lld a=%p bytes=%zu", (long long)first, (long long)last, a, device_size);
  if (range != INDEX_RANGE || first < 1 || last < first || last > n || !found) return refuse(INVALID_VALUE, "range");
  *found = last - first + 1;
  return solve(handle, mode, uplo, n, type, a, w, first - 1, *found, 1, device, device_size, host, host_size, info);
}

EXPORT int cusolverDnXsyevBatched_bufferSize(void* handle, void* params, int mode, int uplo, int64_t n, int type, const void*,
                                             int64_t lda, int real, const void*, int compute, size_t* device, size_t* host,
                                             int64_t matrices) {
  ENTER_EIGH;
  *device = eigh_bytes(mode, n, type, n, matrices);
  *host = HOST_BYTES;
  NOTE_EIGH(" matrices=%lld bytes=%zu", (long long)matrices, *device);
  if (matrices < 1) return refuse(INVALID_VALUE, "an empty batch");
  return matrices > number("MOCK_MOST_MATRICES", 1L << 40) ? INVALID_VALUE : 0;
}

EXPORT int cusolverDnXsyevBatched(void* handle, void* params, int mode, int uplo, int64_t n, int type, void* a, int64_t lda,
                                  int real, void* w, int compute, void* device, size_t device_size, void* host,
                                  size_t host_size, int* info, int64_t matrices) {
  ENTER_EIGH;
  NOTE_EIGH(" a=%p matrices=%lld bytes=%zu", a, (long long)matrices, device_size);
  if (matrices < 1) return refuse(INVALID_VALUE, "an empty batch");
  if (matrices > number("MOCK_MOST_MATRICES", 1L << 40)) return refuse(INVALID_VALUE, "more matrices than the query took");
  return solve(handle, mode, uplo, n, type, a, w, 0, n, matrices, device, device_size, host, host_size, info);
}

// ---- systems and decompositions ----------------------------------------------------------------------------------------

namespace {

size_t dense_bytes(int64_t m, int64_t n) { return size_t(32 * m + 16 * n + 72); }

// The arguments that these routines share, and the workspace spoilt; nullptr when nothing is wrong.
const char* wrong_dense(void* handle, void* params, int64_t m, int64_t n, int type, int64_t lda, int compute) {
  if (!good(handle, params)) return "a handle the library did not make";
  if (m < 1 || n < 1 || lda < m || dtype_of(type) < 0 || compute != type) return "sizes or types";
  return nullptr;
}
const char* wrong_work(int64_t m, int64_t n, const void* a, void* device, size_t device_size, void* host, size_t host_size, int* info) {
  if (!a || !device || !host || !info) return "a null pointer";
  if (device_size < dense_bytes(m, n) || host_size < HOST_BYTES) return "workspace size";
  std::memset(device, 0xee, device_size);
  std::memset(host, 0xee, host_size);
  return nullptr;
}

template <class F>
int with_type(int type, F f) {
  with_dtype(dtype_of(type), [&](auto* null) { f(null); });
  return 0;
}

bool finite(Dense& a) {
  for (const Number& x : a.x)
    if (!std::isfinite(x.real()) || !std::isfinite(x.imag())) return false;
  return true;
}

}  // namespace

#define ENTER_DENSE(m, n, lda)                                                                  \
  if (int status = ordered(__func__, INTERNAL_ERROR)) return status;                            \
  note("%s m=%lld n=%lld", __func__, (long long)m, (long long)n);                               \
  if (const char* what = wrong_dense(handle, params, m, n, type, lda, compute))                 \
    return refuse(INVALID_VALUE, "%s: %s", __func__, what)
#define ENTER_WORK(m, n)                                                                        \
  if (const char* what = wrong_work(m, n, a, device, device_size, host, host_size, info))       \
    return refuse(INVALID_VALUE, "%s: %s", __func__, what)

EXPORT int cusolverDnXgetrf_bufferSize(void* handle, void* params, int64_t m, int64_t n, int type, const void*, int64_t lda,
                                       int compute, size_t* device, size_t* host) {
  ENTER_DENSE(m, n, lda);
  *device = dense_bytes(m, n), *host = HOST_BYTES;
  return 0;
}

EXPORT int cusolverDnXgetrf(void* handle, void* params, int64_t m, int64_t n, int type, void* a, int64_t lda, int64_t* pivots,
                            int compute, void* device, size_t device_size, void* host, size_t host_size, int* info) {
  ENTER_DENSE(m, n, lda);
  ENTER_WORK(m, n);
  return with_type(type, [&](auto* null) {
    using T = std::remove_pointer_t<decltype(null)>;
    Dense x(m, n, static_cast<T*>(a), lda);
    if (!finite(x)) refuse(-1, "the solver was given a matrix with NaN or Inf");
    *info = lu(x, pivots);
    x.write(static_cast<T*>(a), lda);
  });
}

EXPORT int cusolverDnXgeqrf_bufferSize(void* handle, void* params, int64_t m, int64_t n, int type, const void*, int64_t lda, int,
                                       const void*, int compute, size_t* device, size_t* host) {
  ENTER_DENSE(m, n, lda);
  *device = dense_bytes(m, n), *host = HOST_BYTES;
  return 0;
}

EXPORT int cusolverDnXgeqrf(void* handle, void* params, int64_t m, int64_t n, int type, void* a, int64_t lda, int tau_type,
                            void* tau, int compute, void* device, size_t device_size, void* host, size_t host_size, int* info) {
  ENTER_DENSE(m, n, lda);
  ENTER_WORK(m, n);
  if (tau_type != type) return refuse(INVALID_VALUE, "geqrf: types");
  return with_type(type, [&](auto* null) {
    using T = std::remove_pointer_t<decltype(null)>;
    Dense x(m, n, static_cast<T*>(a), lda);
    if (!finite(x)) refuse(-1, "the solver was given a matrix with NaN or Inf");
    Dense found(int64_t(std::min(m, n)), 1);
    found.x = qr(x);
    x.write(static_cast<T*>(a), lda);
    found.write(static_cast<T*>(tau), found.m);
    *info = 0;
  });
}

#define MAKE_Q(name, T)                                                                                                     \
  EXPORT int name##_bufferSize(void*, int m, int n, int k, const T*, int lda, const T*, int* size) {                        \
    if (m < n || n < k || k < 1 || lda < m) return refuse(INVALID_VALUE, "orgqr: sizes");                                   \
    *size = 7 * m;                                                                                                          \
    return ordered(#name "_bufferSize", INTERNAL_ERROR);                                                                    \
  }                                                                                                                         \
  EXPORT int name(void*, int m, int n, int k, T* a, int lda, const T* tau, T* work, int room, int* info) {                  \
    if (int status = ordered(#name, INTERNAL_ERROR)) return status;                                                         \
    if (m < n || n < k || k < 1 || lda < m || !work || room < 7 * m) return refuse(INVALID_VALUE, "orgqr: sizes");          \
    Dense x(m, n, a, lda), t(k, 1, tau, k);                                                                                 \
    make_q(x, k, t.x);                                                                                                      \
    x.write(a, lda);                                                                                                        \
    *info = 0;                                                                                                              \
    return 0;                                                                                                               \
  }
MAKE_Q(cusolverDnSorgqr, float)
MAKE_Q(cusolverDnDorgqr, double)
MAKE_Q(cusolverDnCungqr, std::complex<float>)
MAKE_Q(cusolverDnZungqr, std::complex<double>)

// adjoint: the only operation beside none that the library takes for this type
#define MULTIPLY_BY_Q(name, T, adjoint)                                                                                     \
  EXPORT int name##_bufferSize(void*, int side, int op, int m, int n, int k, const T*, int lda, const T*, const T*, int ldc, \
                               int* size) {                                                                                 \
    if (side != 0 || (op != 0 && op != adjoint) || n < 1 || m < k || k < 1 || lda < m || ldc < m)                           \
      return refuse(INVALID_VALUE, "ormqr: sizes");                                                                         \
    *size = 5 * m;                                                                                                          \
    return ordered(#name "_bufferSize", INTERNAL_ERROR);                                                                    \
  }                                                                                                                         \
  EXPORT int name(void*, int side, int op, int m, int n, int k, const T* a, int lda, const T* tau, T* c, int ldc, T* work,  \
                  int room, int* info) {                                                                                    \
    if (int status = ordered(#name, INTERNAL_ERROR)) return status;                                                         \
    if (side != 0 || (op != 0 && op != adjoint) || n < 1 || m < k || k < 1 || lda < m || ldc < m || !work || room < 5 * m)  \
      return refuse(INVALID_VALUE, "ormqr: sizes");                                                                         \
    Dense x(m, k, a, lda), t(k, 1, tau, k), y(m, n, c, ldc);                                                                \
    multiply_by_q(x, k, t.x, op != 0, y);                                                                                   \
    y.write(c, ldc);                                                                                                        \
    *info = 0;                                                                                                              \
    return 0;                                                                                                               \
  }
MULTIPLY_BY_Q(cusolverDnSormqr, float, 1)
MULTIPLY_BY_Q(cusolverDnDormqr, double, 1)
MULTIPLY_BY_Q(cusolverDnCunmqr, std::complex<float>, 2)
MULTIPLY_BY_Q(cusolverDnZunmqr, std::complex<double>, 2)

namespace {

// `vectors` holds V, or V^H for adjoint
template <class T>
int decompose(int64_t m, int64_t n, T* a, int64_t lda, typename RealOf<T>::type* s, T* u, int64_t ldu, int64_t u_columns, T* right,
              int64_t ldr, bool adjoint) {
  Dense x(m, n, a, lda), left(m, u_columns ? u_columns : n), v(n, n);
  if (!finite(x)) return refuse(-1, "the solver was given a matrix with NaN or Inf");
  const bool fails = x(0, 0) == 13.0;
  spoil(a, sizeof(T) * size_t(lda * n));
  if (fails) return 13;
  std::vector<double> values;
  svd(x, left, values, v);
  for (int64_t j = 0; j < n; j++) s[j] = typename RealOf<T>::type(values[size_t(j)]);
  if (!u_columns) return 0;
  left.write(u, ldu);
  Dense turned(n, n);
  for (int64_t i = 0; i < n; i++)
    for (int64_t j = 0; j < n; j++) turned(i, j) = adjoint ? std::conj(v(j, i)) : v(i, j);
  turned.write(right, ldr);
  return 0;
}

}  // namespace

EXPORT int cusolverDnXgesvd_bufferSize(void* handle, void* params, signed char job_u, signed char job_v, int64_t m, int64_t n,
                                       int type, const void*, int64_t lda, int, const void*, int, const void*, int64_t, int,
                                       const void*, int64_t, int compute, size_t* device, size_t* host) {
  ENTER_DENSE(m, n, lda);
  if (m < n || job_u != job_v) return refuse(NOT_SUPPORTED, "gesvd: a wide matrix");
  *device = dense_bytes(m, n), *host = HOST_BYTES;
  return 0;
}

EXPORT int cusolverDnXgesvd(void* handle, void* params, signed char job_u, signed char job_v, int64_t m, int64_t n, int type, void* a,
                            int64_t lda, int real, void* s, int, void* u, int64_t ldu, int, void* vh, int64_t ldvh, int compute,
                            void* device, size_t device_size, void* host, size_t host_size, int* info) {
  ENTER_DENSE(m, n, lda);
  ENTER_WORK(m, n);
  if (m < n || job_u != job_v || real != type % 4 || ldu < m || ldvh < n) return refuse(INVALID_VALUE, "gesvd: sizes or types");
  return with_type(type, [&](auto* null) {
    using T = std::remove_pointer_t<decltype(null)>;
    *info = decompose<T>(m, n, static_cast<T*>(a), lda, static_cast<typename RealOf<T>::type*>(s), static_cast<T*>(u), ldu,
                         job_u == 'A' ? m : job_u == 'S' ? n : 0, static_cast<T*>(vh), ldvh, true);
  });
}

EXPORT int cusolverDnXgesvdp_bufferSize(void* handle, void* params, int mode, int, int64_t m, int64_t n, int type, const void*,
                                        int64_t lda, int, const void*, int, const void*, int64_t, int, const void*, int64_t,
                                        int compute, size_t* device, size_t* host) {
  ENTER_DENSE(m, n, lda);
  if (m < n || mode != 1) return refuse(NOT_SUPPORTED, "gesvdp: a wide matrix, or values alone, which fails");
  *device = dense_bytes(m, n) + 8, *host = HOST_BYTES + 8;
  return 0;
}

EXPORT int cusolverDnXgesvdp(void* handle, void* params, int mode, int thin, int64_t m, int64_t n, int type, void* a, int64_t lda,
                             int real, void* s, int, void* u, int64_t ldu, int, void* v, int64_t ldv, int compute, void* device,
                             size_t device_size, void* host, size_t host_size, int* info, double* shift) {
  ENTER_DENSE(m, n, lda);
  ENTER_WORK(m, n);
  if (m < n || mode != 1 || real != type % 4 || ldu < m || ldv < n || !shift) return refuse(INVALID_VALUE, "gesvdp: sizes or types");
  *shift = double(number("MOCK_POLAR_SHIFT", 0)) / 1000;
  return with_type(type, [&](auto* null) {
    using T = std::remove_pointer_t<decltype(null)>;
    *info = decompose<T>(m, n, static_cast<T*>(a), lda, static_cast<typename RealOf<T>::type*>(s), static_cast<T*>(u), ldu,
                         thin ? n : m, static_cast<T*>(v), ldv, false);
    if (*shift > 0) spoil(u, sizeof(T));
  });
}

namespace {

using Complex = std::complex<double>;

// w <- the eigenvalues of a column-major matrix, by QR steps with a shift on its leading part; v <- unit vectors, by inverse iteration
void general_spectrum(int64_t n, const std::vector<Complex>& a, std::vector<Complex>& w, std::vector<Complex>& v) {
  std::vector<Complex> h = a, q(size_t(n * n)), r(size_t(n * n));
  const auto at = [n](std::vector<Complex>& x, int64_t i, int64_t j) -> Complex& { return x[size_t(j * n + i)]; };
  for (int64_t m = n, steps = 0; m > 0;) {
    double last = 0, size = 0;
    for (int64_t j = 0; j + 1 < m; j++) last += std::abs(at(h, m - 1, j));
    for (const Complex& x : h) size = std::max(size, std::abs(x));
    if (last <= 1e-17 * size * double(n) || steps == 2000) {
      w[size_t(m - 1)] = at(h, m - 1, m - 1);
      m--, steps = 0;
      continue;
    }
    const Complex shift = at(h, m - 1, m - 1) + (steps++ % 7 == 0 ? Complex(0.3, 0.4) * last : Complex(0));
    for (int64_t j = 0; j < m; j++) {
      for (int64_t i = 0; i < m; i++) at(q, i, j) = at(h, i, j) - (i == j ? shift : Complex(0));
      for (int64_t k = 0; k < m; k++) at(r, k, j) = 0;
      for (int time = 0; time < 2; time++)
        for (int64_t k = 0; k < j; k++) {
          Complex dot = 0;
          for (int64_t i = 0; i < m; i++) dot += std::conj(at(q, i, k)) * at(q, i, j);
          for (int64_t i = 0; i < m; i++) at(q, i, j) -= dot * at(q, i, k);
          at(r, k, j) += dot;
        }
      double norm = 0;
      for (int64_t i = 0; i < m; i++) norm += std::norm(at(q, i, j));
      at(r, j, j) = norm = std::max(std::sqrt(norm), 1e-300);
      for (int64_t i = 0; i < m; i++) at(q, i, j) /= norm;
    }
    for (int64_t i = 0; i < m; i++)
      for (int64_t j = 0; j < m; j++) {
        Complex sum = i == j ? shift : Complex(0);
        for (int64_t k = i; k < m; k++) sum += at(r, i, k) * at(q, k, j);
        at(h, i, j) = sum;
      }
  }
  for (int64_t j = 0; j < n; j++) {
    std::vector<Complex> x(static_cast<size_t>(n), Complex(1));
    for (int64_t i = 0; i < n; i++) x[size_t(i)] += double(i * i % 5) / 7;
    for (int time = 0; time < 3; time++) {
      std::vector<Complex> m = a;
      for (int64_t i = 0; i < n; i++) at(m, i, i) -= w[size_t(j)] * (1 + 1e-14) + 1e-15;
      for (int64_t k = 0; k < n; k++) {
        int64_t pivot = k;
        for (int64_t i = k; i < n; i++)
          if (std::abs(at(m, i, k)) > std::abs(at(m, pivot, k))) pivot = i;
        for (int64_t c = 0; c < n; c++) std::swap(at(m, k, c), at(m, pivot, c));
        std::swap(x[size_t(k)], x[size_t(pivot)]);
        if (std::abs(at(m, k, k)) < 1e-200) at(m, k, k) = 1e-200;
        for (int64_t i = k + 1; i < n; i++) {
          const Complex by = at(m, i, k) / at(m, k, k);
          for (int64_t c = k; c < n; c++) at(m, i, c) -= by * at(m, k, c);
          x[size_t(i)] -= by * x[size_t(k)];
        }
      }
      for (int64_t i = n - 1; i >= 0; i--) {
        for (int64_t c = i + 1; c < n; c++) x[size_t(i)] -= at(m, i, c) * x[size_t(c)];
        x[size_t(i)] /= at(m, i, i);
      }
      double norm = 0;
      for (const Complex& e : x) norm = std::max(norm, std::abs(e));
      for (Complex& e : x) e /= norm;
      norm = 0;
      for (const Complex& e : x) norm += std::norm(e);
      for (Complex& e : x) e /= std::sqrt(norm);
    }
    std::copy(x.begin(), x.end(), v.begin() + j * n);
  }
}

// The two eigenvalues of a pair of a real matrix side by side, and exactly conjugate
void pair_up(int64_t n, std::vector<Complex>& w, std::vector<Complex>& v) {
  for (int64_t j = 0; j < n; j++) {
    if (std::abs(w[size_t(j)].imag()) < 1e-9) {
      w[size_t(j)] = w[size_t(j)].real();
      Complex largest = 0;
      for (int64_t i = 0; i < n; i++)
        if (std::abs(v[size_t(j * n + i)]) > std::abs(largest)) largest = v[size_t(j * n + i)];
      for (int64_t i = 0; i < n; i++) v[size_t(j * n + i)] = (v[size_t(j * n + i)] * std::conj(largest) / std::abs(largest)).real();
      continue;
    }
    for (int64_t k = j + 1; k < n; k++)
      if (std::abs(w[size_t(k)] - std::conj(w[size_t(j)])) < 1e-6) {
        std::swap(w[size_t(j + 1)], w[size_t(k)]);
        std::swap_ranges(v.begin() + (j + 1) * n, v.begin() + (j + 2) * n, v.begin() + k * n);
        break;
      }
    if (w[size_t(j)].imag() < 0) {
      w[size_t(j)] = std::conj(w[size_t(j)]);
      for (int64_t i = 0; i < n; i++) v[size_t(j * n + i)] = std::conj(v[size_t(j * n + i)]);
    }
    w[size_t(j + 1)] = std::conj(w[size_t(j)]);
    j++;
  }
}

}  // namespace

EXPORT int cusolverDnXgeev_bufferSize(void* handle, void* params, int left, int right, int64_t n, int type, const void*, int64_t lda,
                                      int values, const void*, int, const void*, int64_t, int vectors, const void*, int64_t, int compute,
                                      size_t* device, size_t* host) {
  ENTER_DENSE(n, n, lda);
  if (left != 0 || (right != 0 && right != 1) || values != (type % 4) + 4 || vectors != type)
    return refuse(NOT_SUPPORTED, "geev: left vectors, or types");
  *device = dense_bytes(n, n), *host = HOST_BYTES;
  return 0;
}

EXPORT int cusolverDnXgeev(void* handle, void* params, int left, int right, int64_t n, int type, void* a, int64_t lda, int values, void* w,
                           int, void*, int64_t, int vectors, void* v, int64_t ldv, int compute, void* device, size_t device_size, void* host,
                           size_t host_size, int* info) {
  ENTER_DENSE(n, n, lda);
  ENTER_WORK(n, n);
  if (left != 0 || values != (type % 4) + 4 || vectors != type || (right && (ldv < n || !v))) return refuse(INVALID_VALUE, "geev: sizes or types");
  return with_type(type, [&](auto* null) {
    using T = std::remove_pointer_t<decltype(null)>;
    using R = typename RealOf<T>::type;
    auto* x = static_cast<T*>(a);
    std::vector<Complex> matrix(x, x + n * n), found(static_cast<size_t>(n)), columns(size_t(n * n));
    for (const Complex& e : matrix)
      if (!std::isfinite(std::abs(e))) return void(refuse(INVALID_VALUE, "the solver was given a matrix with NaN or Inf"));
    *info = matrix[0] == 13.0 ? 13 : 0;
    spoil(a, sizeof(T) * size_t(n * n));
    if (*info) return;
    general_spectrum(n, matrix, found, columns);
    constexpr bool is_real = sizeof(T) == sizeof(R);
    if (is_real) pair_up(n, found, columns);
    for (int64_t j = 0; j < n; j++) static_cast<std::complex<R>*>(w)[j] = std::complex<R>(found[size_t(j)]);
    if (!right) return;
    auto* out = static_cast<R*>(v);
    for (int64_t j = 0; j < n; j++)
      for (int64_t i = 0; i < n; i++) {
        const Complex e = columns[size_t(j * n + i)];
        if (!is_real) {
          out[2 * (j * ldv + i)] = R(e.real()), out[2 * (j * ldv + i) + 1] = R(e.imag());
        } else if (found[size_t(j)].imag() >= 0) {
          out[j * ldv + i] = R(e.real());
          if (found[size_t(j)].imag() > 0) out[(j + 1) * ldv + i] = R(e.imag());
        }
      }
  });
}
