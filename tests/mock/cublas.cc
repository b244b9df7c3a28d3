// Stand-in for libcublas: the one product that the Krylov engine uses, strict about its arguments.
#include "cholesky.h"
#include "mock.h"

using namespace mock;

namespace {

constexpr int NOT_INITIALIZED = 1, INVALID_VALUE = 7, EXECUTION_FAILED = 13;
constexpr int NONE = 0, ADJOINT = 2, COMPUTE_32 = 68, COMPUTE_64 = 70, DEFAULT = -1;

struct Handle {
  uint64_t magic = 0xb1a5;
  int number;
  void* stream = nullptr;
  std::atomic<bool> busy{false};
};
std::atomic<int> created{0};

bool good(void* handle) { return handle && static_cast<Handle*>(handle)->magic == Handle().magic; }

// C <- alpha op(A) B + beta C, all column-major; C is not read where beta is 0.
template <class T>
void multiply(bool adjoint, int64_t m, int64_t n, int64_t k, T alpha, const T* a, int64_t lda, const T* b, int64_t ldb, T beta,
              T* c, int64_t ldc) {
  for (int64_t j = 0; j < n; j++) {
    T* column = c + j * ldc;
    for (int64_t i = 0; i < m; i++) column[i] = beta == T(0) ? T(0) : beta * column[i];
    if (adjoint) {
      for (int64_t i = 0; i < m; i++) {
        T sum = 0;
        for (int64_t l = 0; l < k; l++) sum += conjugate(a[i * lda + l]) * b[j * ldb + l];
        column[i] += alpha * sum;
      }
    } else {
      for (int64_t l = 0; l < k; l++) {
        T by = alpha * b[j * ldb + l];
        for (int64_t i = 0; i < m; i++) column[i] += by * a[l * lda + i];
      }
    }
  }
}

}  // namespace

EXPORT int cublasCreate_v2(void** handle) {
  if (int status = ordered("cublasCreate_v2", NOT_INITIALIZED)) return status;
  auto* made = new Handle;
  made->number = ++created;
  *handle = made;
  note("cublasCreate_v2 handle=%d", made->number);
  return 0;
}

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
  if (compute != (dtype % 2 ? COMPUTE_64 : COMPUTE_32) || algorithm != DEFAULT) return refuse(INVALID_VALUE, "gemm: precision");
  if ((a_op != NONE && a_op != ADJOINT) || b_op != NONE) return refuse(INVALID_VALUE, "gemm: operations");
  if (m < 1 || n < 1 || k < 1 || lda < (a_op == NONE ? m : k) || ldb < k || ldc < m) return refuse(INVALID_VALUE, "gemm: sizes");
  if (!a || !b || !c || !alpha || !beta || c == a || c == b) return refuse(INVALID_VALUE, "gemm: pointers");
  if (h->busy.exchange(true)) return refuse(EXECUTION_FAILED, "one handle in two calls at once");
  with_dtype(dtype, [&](auto* null) {
    using T = std::remove_pointer_t<decltype(null)>;
    multiply(a_op == ADJOINT, m, n, k, *static_cast<const T*>(alpha), static_cast<const T*>(a), lda, static_cast<const T*>(b), ldb,
             *static_cast<const T*>(beta), static_cast<T*>(c), ldc);
  });
  h->busy = false;
  return 0;
}
