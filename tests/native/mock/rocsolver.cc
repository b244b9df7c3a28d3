// Stand-in for librocsolver: the arithmetic of libcusolver's stand-in behind AMD's routines, which take their workspace from the handle.
#include "cusolver.cc"
#include "rocm.h"

namespace {

// 0 when the routine may go on; -1 when it was only asked for its workspace, else a status. The workspace is spoilt.
int enter(const char* name, void* handle, size_t bytes, bool good_sizes) {
  if (int status = ordered(name, ROC_INTERNAL)) return status;
  auto* h = roc(handle);
  if (!h) return refuse(ROC_HANDLE, "%s: a handle the library did not make", name);
  if (!good_sizes) return refuse(ROC_SIZE, "%s: sizes or choices", name);
  if (h->asking) {
    const bool more = bytes > h->asked;
    h->asked = std::max(h->asked, bytes);
    return more ? ROC_INCREASED : ROC_UNCHANGED;
  }
  note("%s handle=%d stream=%p bytes=%zu", name, h->number, h->stream, h->bytes);
  if (h->bytes < bytes) return refuse(ROC_MEMORY, "%s: workspace of %zu bytes instead of %zu", name, h->bytes, bytes);
  std::memset(h->work, 0xee, bytes);
  return 0;
}
#define ROC_ENTER(bytes, good_sizes) \
  if (int status = enter(__func__, handle, size_t(bytes), good_sizes)) return status
#define ROC_POINTERS(...)                                                                                    \
  for (const void* pointer : std::initializer_list<const void*>{__VA_ARGS__})                                                             \
    if (!pointer) return refuse(ROC_POINTER, "%s: a null pointer", __func__)

bool is_fill(int fill) { return fill_of(fill) >= 0; }
bool is_evect(int evect) { return evect == 211 || evect == 213; }

template <class T>
bool is_finite(int64_t m, int64_t n, const T* a, int64_t lda) {
  Dense x(m, n, a, lda);
  return finite(x) || refuse(0, "the solver was given a matrix with NaN or Inf");
}

}  // namespace

EXPORT int rocsolver_get_version_string(char* text, size_t size) { return std::snprintf(text, size, "3.26.0.40602") < 0; }

#define ROC_SOLVER(l, T, orgqr_name, ormqr_name, syev, adjoint)                                                                   \
  EXPORT int rocsolver_##l##potrf(void* handle, int fill, int n, T* a, int lda, int* info) {                                      \
    ROC_ENTER(64 * n + 40, fill == 122 && n >= 1 && lda >= n);                                                                    \
    ROC_POINTERS(a, info);                                                                                                        \
    *info = int(factor_lower<T>(n, [=](int64_t i, int64_t j) -> T& { return a[j * lda + i]; }, false));                           \
    return 0;                                                                                                                     \
  }                                                                                                                               \
  EXPORT int rocsolver_##l##potrf_strided_batched(void* handle, int fill, int n, T* a, int lda, int64_t stride, int* info,         \
                                                  int count) {                                                                    \
    ROC_ENTER((64 * n + 40) * count, fill == 122 && n >= 1 && lda >= n && stride >= int64_t(lda) * n && count >= 1);              \
    ROC_POINTERS(a, info);                                                                                                        \
    for (int m = 0; m < count; m++)                                                                                               \
      info[m] = int(factor_lower<T>(n, [=](int64_t i, int64_t j) -> T& { return a[m * stride + j * lda + i]; }, false));           \
    return 0;                                                                                                                     \
  }                                                                                                                               \
  EXPORT int rocsolver_##l##syev##d_strided_batched(void* handle, int evect, int fill, int n, T* a, int lda, int64_t a_stride,    \
                                                   RealOf<T>::type* d, int64_t d_stride, RealOf<T>::type* e, int64_t e_stride,    \
                                                   int* info, int count) {                                                       \
    ROC_ENTER(48 * n * count + 24, is_evect(evect) && is_fill(fill) && n >= 1 && lda == n && count >= 1);                         \
    ROC_POINTERS(a, d, e, info);                                                                                                  \
    for (int m = 0; m < count; m++) {                                                                                             \
      info[m] = solve_one<T>(evect == 211, fill == 121, n, a + m * a_stride, d + m * d_stride, 0, n);                             \
      spoil(e + m * e_stride, sizeof(*e) * size_t(n));                                                                            \
    }                                                                                                                             \
    return 0;                                                                                                                     \
  }                                                                                                                               \
  EXPORT int rocsolver_##l##syev##d(void* handle, int evect, int fill, int n, T* a, int lda, RealOf<T>::type* d,                  \
                                    RealOf<T>::type* e, int* info) {                                                              \
    ROC_ENTER(40 * n + 16, is_evect(evect) && is_fill(fill) && n >= 1 && lda == n);                                               \
    ROC_POINTERS(a, d, e, info);                                                                                                  \
    *info = solve_one<T>(evect == 211, fill == 121, n, a, d, 0, n);                                                               \
    spoil(e, sizeof(*e) * size_t(n));                                                                                             \
    return 0;                                                                                                                     \
  }                                                                                                                               \
  EXPORT int rocsolver_##l##getrf(void* handle, int m, int n, T* a, int lda, int* pivots, int* info) {                            \
    ROC_ENTER(24 * m + 8 * n, m >= 1 && n >= 1 && lda >= m);                                                                      \
    ROC_POINTERS(a, pivots, info);                                                                                                \
    is_finite(m, n, a, lda);                                                                                                      \
    Dense x(m, n, a, lda);                                                                                                        \
    std::vector<int64_t> found(size_t(std::min(m, n)));                                                                           \
    *info = lu(x, found.data());                                                                                                  \
    x.write(a, lda);                                                                                                              \
    std::copy(found.begin(), found.end(), pivots);                                                                                \
    return 0;                                                                                                                     \
  }                                                                                                                               \
  EXPORT int rocsolver_##l##geqrf(void* handle, int m, int n, T* a, int lda, T* tau) {                                            \
    ROC_ENTER(16 * m + 8 * n + 8, m >= 1 && n >= 1 && lda >= m);                                                                  \
    ROC_POINTERS(a, tau);                                                                                                         \
    is_finite(m, n, a, lda);                                                                                                      \
    Dense x(m, n, a, lda), found(std::min(m, n), 1);                                                                              \
    found.x = qr(x);                                                                                                              \
    x.write(a, lda);                                                                                                              \
    found.write(tau, found.m);                                                                                                    \
    return 0;                                                                                                                     \
  }                                                                                                                               \
  EXPORT int rocsolver_##l##orgqr_name(void* handle, int m, int n, int k, T* a, int lda, T* tau) {                                \
    ROC_ENTER(56 * m, m >= n && n >= k && k >= 1 && lda >= m);                                                                    \
    ROC_POINTERS(a, tau);                                                                                                         \
    Dense x(m, n, a, lda), t(k, 1, tau, k);                                                                                       \
    make_q(x, k, t.x);                                                                                                            \
    x.write(a, lda);                                                                                                              \
    return 0;                                                                                                                     \
  }                                                                                                                               \
  EXPORT int rocsolver_##l##ormqr_name(void* handle, int side, int op, int m, int n, int k, T* a, int lda, T* tau, T* c, int ldc) { \
    ROC_ENTER(40 * m, side == 141 && (op == 111 || op == adjoint) && n >= 1 && m >= k && k >= 1 && lda >= m && ldc >= m);         \
    ROC_POINTERS(a, tau, c);                                                                                                      \
    Dense x(m, k, a, lda), t(k, 1, tau, k), y(m, n, c, ldc);                                                                      \
    multiply_by_q(x, k, t.x, op != 111, y);                                                                                       \
    y.write(c, ldc);                                                                                                              \
    return 0;                                                                                                                     \
  }                                                                                                                               \
  EXPORT int rocsolver_##l##gesvd(void* handle, int left, int right, int m, int n, T* a, int lda, RealOf<T>::type* s, T* u,       \
                                  int ldu, T* vh, int ldvh, RealOf<T>::type* e, int mode, int* info) {                            \
    ROC_ENTER(32 * m + 16 * n, m >= n && n >= 1 && left == right && (left == 191 || left == 192 || left == 194) && lda >= m &&    \
                                   ldu >= m && ldvh >= n && mode == 201);                                                         \
    ROC_POINTERS(a, s, e, info);                                                                                                  \
    *info = decompose<T>(m, n, a, lda, s, u, ldu, left == 191 ? m : left == 192 ? n : 0, vh, ldvh, true);                         \
    spoil(e, sizeof(*e) * size_t(n));                                                                                             \
    return 0;                                                                                                                     \
  }
#define ROC_PART(l, T, syev)                                                                                                      \
  EXPORT int rocsolver_##l##syev##dx(void* handle, int evect, int range, int fill, int n, T* a, int lda, RealOf<T>::type,         \
                                     RealOf<T>::type, int first, int last, int* found, RealOf<T>::type* w, T* z, int ldz,         \
                                     int* info) {                                                                                \
    ROC_ENTER(72 * n, is_evect(evect) && range == 233 && is_fill(fill) && n >= 1 && lda == n && ldz == n && first >= 1 &&         \
                          last >= first && last <= n);                                                                            \
    ROC_POINTERS(a, found, w, z, info);                                                                                           \
    *found = last - first + 1;                                                                                                    \
    std::vector<T> copy(a, a + int64_t(n) * n);                                                                                   \
    *info = solve_one<T>(evect == 211, fill == 121, n, copy.data(), w, first - 1, *found);                                        \
    if (evect == 211) std::copy_n(copy.data(), int64_t(n) * *found, z);                                                           \
    spoil(a, sizeof(T) * size_t(n) * size_t(n));                                                                                  \
    return 0;                                                                                                                     \
  }
ROC_SOLVER(s, float, orgqr, ormqr, syev, 112)
ROC_SOLVER(d, double, orgqr, ormqr, syev, 112)
ROC_SOLVER(c, std::complex<float>, ungqr, unmqr, heev, 113)
ROC_SOLVER(z, std::complex<double>, ungqr, unmqr, heev, 113)
ROC_PART(s, float, syev)
ROC_PART(d, double, syev)
ROC_PART(c, std::complex<float>, heev)
ROC_PART(z, std::complex<double>, heev)
