// Stand-in for libcublas: products and triangular solves, strict about their arguments.
#include <vector>

#include "cholesky.h"
#include "mock.h"

using namespace mock;

namespace {

constexpr int NOT_INITIALIZED = 1, INVALID_VALUE = 7, EXECUTION_FAILED = 13;
constexpr int NONE = 0, TRANSPOSE = 1, ADJOINT = 2, COMPUTE_32 = 68, COMPUTE_64 = 70, COMPUTE_TF32 = 77, DEFAULT = -1;

struct Handle {
  uint64_t magic = 0xb1a5;
  int number;
  void* stream = nullptr;
  std::atomic<bool> busy{false};
};

bool good(void* handle) { return handle && static_cast<Handle*>(handle)->magic == Handle().magic; }

// Element (i, j) of op(A), column-major
template <class T>
struct Operand {
  const T* a;
  int64_t ld;
  int op;
  T operator()(int64_t i, int64_t j) const {
    T x = op == NONE ? a[j * ld + i] : a[i * ld + j];
    return op == ADJOINT ? conjugate(x) : x;
  }
};

// C <- alpha op(A) op(B) + beta C, all column-major; C is not read where beta is 0.
template <class T>
void multiply(int64_t m, int64_t n, int64_t k, T alpha, Operand<T> a, Operand<T> b, T beta, T* c, int64_t ldc) {
  for (int64_t j = 0; j < n; j++) {
    T* column = c + j * ldc;
    for (int64_t i = 0; i < m; i++) column[i] = beta == T(0) ? T(0) : beta * column[i];
    if (a.op == NONE) {
      for (int64_t l = 0; l < k; l++) {
        T by = alpha * b(l, j);
        for (int64_t i = 0; i < m; i++) column[i] += by * a.a[l * a.ld + i];
      }
    } else {
      for (int64_t i = 0; i < m; i++) {
        T sum = 0;
        for (int64_t l = 0; l < k; l++) sum += a(i, l) * b(l, j);
        column[i] += alpha * sum;
      }
    }
  }
}

bool is_op(int op) { return op == NONE || op == TRANSPOSE || op == ADJOINT; }

// What is wrong with a triangle's arguments; nullptr when nothing is.
const char* wrong(void* handle, int side, int fill, int op, int diagonal, int64_t m, int64_t n, int64_t lda, int64_t ldb) {
  if (!good(handle)) return "a handle the library did not make";
  if (side < 0 || side > 1 || fill < 0 || fill > 1 || !is_op(op) || diagonal < 0 || diagonal > 1) return "choices";
  if (m < 1 || n < 1 || lda < (side ? n : m) || ldb < m) return "sizes";
  return nullptr;
}

// Whole op(A) of a triangle, order x order
template <class T>
std::vector<T> triangle(int fill, int op, int diagonal, int64_t order, const T* a, int64_t lda) {
  std::vector<T> out(size_t(order * order), T(0));
  for (int64_t j = 0; j < order; j++)
    for (int64_t i = 0; i < order; i++) {
      if (fill == 0 ? i < j : i > j) continue;
      T x = i == j && diagonal ? T(1) : a[j * lda + i];
      out[size_t(op == NONE ? j * order + i : i * order + j)] = op == ADJOINT ? conjugate(x) : x;
    }
  return out;
}

template <class T>
int solve(void* handle, int side, int fill, int op, int diagonal, int64_t m, int64_t n, const T* alpha, const T* a, int64_t lda,
          T* b, int64_t ldb) {
  if (const char* what = wrong(handle, side, fill, op, diagonal, m, n, lda, ldb)) return refuse(INVALID_VALUE, "trsm: %s", what);
  const int64_t order = side ? n : m, others = side ? m : n;
  const std::vector<T> t = triangle(fill, op, diagonal, order, a, lda);
  const bool lower = (fill == 0) == (op == NONE);
  // unknown i of system q: X(i, q) from the left, X(q, i) from the right
  auto at = [&](int64_t i, int64_t q) -> T& { return side ? b[i * ldb + q] : b[q * ldb + i]; };
  auto factor = [&](int64_t i, int64_t k) { return side ? t[size_t(i * order + k)] : t[size_t(k * order + i)]; };
  const bool forward = side ? !lower : lower;
  for (int64_t q = 0; q < others; q++)
    for (int64_t s = 0; s < order; s++) {
      const int64_t i = forward ? s : order - 1 - s;
      T sum = *alpha * at(i, q);
      for (int64_t r = 0; r < s; r++) {
        const int64_t k = forward ? r : order - 1 - r;
        sum -= factor(i, k) * at(k, q);
      }
      at(i, q) = sum / factor(i, i);
    }
  return 0;
}

template <class T>
int product(void* handle, int side, int fill, int op, int diagonal, int64_t m, int64_t n, const T* alpha, const T* a, int64_t lda,
            const T* b, int64_t ldb, T* c, int64_t ldc) {
  if (const char* what = wrong(handle, side, fill, op, diagonal, m, n, lda, ldb)) return refuse(INVALID_VALUE, "trmm: %s", what);
  if (c == b) return refuse(INVALID_VALUE, "trmm: in place is slow and not meant");
  const int64_t order = side ? n : m;
  const std::vector<T> t = triangle(fill, op, diagonal, order, a, lda);
  const Operand<T> first{t.data(), order, NONE}, second{b, ldb, NONE};
  multiply(m, n, order, *alpha, side ? second : first, side ? first : second, T(0), c, ldc);
  return 0;
}

template <class T, class Real>
int square(void* handle, int fill, int op, int64_t n, int64_t k, const Real* alpha, const T* a, int64_t lda, const Real* beta, T* c,
           int64_t ldc) {
  if (!good(handle)) return refuse(NOT_INITIALIZED, "a handle the library did not make");
  if (fill != 0 || (op != NONE && op != ADJOINT) || n < 1 || k < 1 || lda < (op == NONE ? n : k) || ldc < n)
    return refuse(INVALID_VALUE, "herk");
  std::vector<T> all(size_t(n * n));
  multiply(n, n, k, T(*alpha), Operand<T>{a, lda, op}, Operand<T>{a, lda, op == NONE ? ADJOINT : NONE}, T(0), all.data(), n);
  for (int64_t j = 0; j < n; j++)
    for (int64_t i = j; i < n; i++) c[j * ldc + i] = all[size_t(j * n + i)] + (*beta == 0 ? T(0) : *beta * c[j * ldc + i]);
  return 0;
}

}  // namespace

EXPORT int cublasCreate_v2(void** handle) { return create_handle<Handle>("cublasCreate_v2", NOT_INITIALIZED, handle); }

EXPORT int cublasSetStream_v2(void* handle, void* stream) {
  if (int status = ordered("cublasSetStream_v2", NOT_INITIALIZED)) return status;
  if (!good(handle)) return refuse(NOT_INITIALIZED, "a handle the library did not make");
  static_cast<Handle*>(handle)->stream = stream;
  return 0;
}

EXPORT int cublasGemmEx_64(void* handle, int a_op, int b_op, int64_t m, int64_t n, int64_t k, const void* alpha, const void* a,
                           int a_type, int64_t lda, const void* b, int b_type, int64_t ldb, const void* beta, void* c,
                           int c_type, int64_t ldc, int compute, int algorithm) {
  if (int status = ordered("cublasGemmEx_64", EXECUTION_FAILED)) return status;
  if (!good(handle)) return refuse(NOT_INITIALIZED, "a handle the library did not make");
  auto* h = static_cast<Handle*>(handle);
  note("cublasGemmEx_64 handle=%d stream=%p m=%lld n=%lld k=%lld type=%d", h->number, h->stream, (long long)m, (long long)n,
       (long long)k, a_type);
  int dtype = a_type == 0 ? 0 : a_type == 1 ? 1 : a_type == 4 ? 2 : a_type == 5 ? 3 : -1;
  if (dtype < 0 || b_type != a_type || c_type != a_type) return refuse(INVALID_VALUE, "gemm: types");
  const bool tensor = dtype == 0 && compute == COMPUTE_TF32;
  if ((compute != (dtype % 2 ? COMPUTE_64 : COMPUTE_32) && !tensor) || algorithm != DEFAULT) return refuse(INVALID_VALUE, "gemm: precision");
  if (!is_op(a_op) || !is_op(b_op)) return refuse(INVALID_VALUE, "gemm: operations");
  if (m < 1 || n < 1 || k < 1 || lda < (a_op == NONE ? m : k) || ldb < (b_op == NONE ? k : n) || ldc < m)
    return refuse(INVALID_VALUE, "gemm: sizes");
  if (!a || !b || !c || !alpha || !beta || c == a || c == b) return refuse(INVALID_VALUE, "gemm: pointers");
  if (h->busy.exchange(true)) return refuse(EXECUTION_FAILED, "one handle in two calls at once");
  with_dtype(dtype, [&](auto* null) {
    using T = std::remove_pointer_t<decltype(null)>;
    multiply(m, n, k, *static_cast<const T*>(alpha), Operand<T>{static_cast<const T*>(a), lda, a_op},
             Operand<T>{static_cast<const T*>(b), ldb, b_op}, *static_cast<const T*>(beta), static_cast<T*>(c), ldc);
  });
  h->busy = false;
  return 0;
}

EXPORT int cublasGemmStridedBatchedEx_64(void* handle, int a_op, int b_op, int64_t m, int64_t n, int64_t k, const void* alpha,
                                         const void* a, int a_type, int64_t lda, long long a_stride, const void* b, int b_type,
                                         int64_t ldb, long long b_stride, const void* beta, void* c, int c_type, int64_t ldc,
                                         long long c_stride, int64_t count, int compute, int algorithm) {
  if (int status = ordered("cublasGemmStridedBatchedEx_64", EXECUTION_FAILED)) return status;
  const int64_t element = a_type == 0 ? 4 : a_type == 5 ? 16 : 8;
  for (int64_t i = 0; i < count; i++)
    if (int status = cublasGemmEx_64(handle, a_op, b_op, m, n, k, alpha, static_cast<const char*>(a) + i * a_stride * element, a_type,
                                     lda, static_cast<const char*>(b) + i * b_stride * element, b_type, ldb, beta,
                                     static_cast<char*>(c) + i * c_stride * element, c_type, ldc, compute, algorithm))
      return status;
  return 0;
}

#define TRIANGLES(letter, T, Real, herk)                                                                                    \
  EXPORT int cublas##letter##trsm_v2_64(void* h, int side, int fill, int op, int diagonal, int64_t m, int64_t n,            \
                                        const T* alpha, const T* a, int64_t lda, T* b, int64_t ldb) {                       \
    if (int status = ordered("cublas_trsm", EXECUTION_FAILED)) return status;                                               \
    note("cublas_trsm m=%lld n=%lld side=%d", (long long)m, (long long)n, side);                                            \
    return solve<T>(h, side, fill, op, diagonal, m, n, alpha, a, lda, b, ldb);                                              \
  }                                                                                                                         \
  EXPORT int cublas##letter##trmm_v2_64(void* h, int side, int fill, int op, int diagonal, int64_t m, int64_t n,            \
                                        const T* alpha, const T* a, int64_t lda, const T* b, int64_t ldb, T* c, int64_t ldc) { \
    if (int status = ordered("cublas_trmm", EXECUTION_FAILED)) return status;                                               \
    return product<T>(h, side, fill, op, diagonal, m, n, alpha, a, lda, b, ldb, c, ldc);                                    \
  }                                                                                                                         \
  EXPORT int cublas##letter##herk##_v2_64(void* h, int fill, int op, int64_t n, int64_t k, const Real* alpha, const T* a,   \
                                          int64_t lda, const Real* beta, T* c, int64_t ldc) {                               \
    if (int status = ordered("cublas_herk", EXECUTION_FAILED)) return status;                                               \
    return square<T, Real>(h, fill, op, n, k, alpha, a, lda, beta, c, ldc);                                                 \
  }
TRIANGLES(S, float, float, syrk)
TRIANGLES(D, double, double, syrk)
TRIANGLES(C, std::complex<float>, float, herk)
TRIANGLES(Z, std::complex<double>, double, herk)
