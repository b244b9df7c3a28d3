// Stand-in for librocblas: that of libcublas under AMD's names and numbers.
//   MOCK_ROCBLAS_VERSION  (4.2.1); before 4 trmm works in place, and has another name where it does not
#include "cublas.cc"
#include "rocm.h"

namespace {

// The other stand-in's handle behind one of ours.
void* inner(void* handle) {
  static thread_local Handle made;
  auto* h = roc(handle);
  if (!h || h->asking) return nullptr;
  made.number = h->number, made.stream = h->stream;
  return &made;
}
int type_of(int type) { return type == 151 ? 0 : type == 152 ? 1 : type == 154 ? 4 : type == 155 ? 5 : -1; }
int compute_of(int type) { return type == 152 || type == 155 ? COMPUTE_64 : COMPUTE_32; }

// Whether this name works in place in the version that the stand-in plays.
bool in_place(const char* name) { return number("MOCK_ROCBLAS_VERSION", 4) < 4 && !std::strchr(name + 8, '_'); }

template <class Int>
int gemm(void* handle, int a_op, int b_op, Int m, Int n, Int k, const void* alpha, const void* a, int a_type, Int lda, const void* b,
         int b_type, Int ldb, const void* beta, const void* c, int c_type, Int ldc, void* d, int d_type, Int ldd, int compute, int algorithm,
         int32_t solution, uint32_t flags) {
  if (c != d || ldc != ldd || d_type != c_type || compute != a_type || algorithm || solution || flags) return refuse(ROC_VALUE, "gemm");
  return cublasGemmEx_64(inner(handle), op_of(a_op), op_of(b_op), m, n, k, alpha, a, type_of(a_type), lda, b, type_of(b_type), ldb, beta, d,
                         type_of(c_type), ldc, compute_of(compute), DEFAULT);
}

template <class Int>
int gemm_many(void* handle, int a_op, int b_op, Int m, Int n, Int k, const void* alpha, const void* a, int a_type, Int lda,
              int64_t a_stride, const void* b, int b_type, Int ldb, int64_t b_stride, const void* beta, const void* c, int c_type, Int ldc,
              int64_t c_stride, void* d, int d_type, Int ldd, int64_t d_stride, Int count, int compute, int algorithm, int32_t solution,
              uint32_t flags) {
  if (c != d || ldc != ldd || d_type != c_type || c_stride != d_stride || compute != a_type || algorithm || solution || flags)
    return refuse(ROC_VALUE, "gemm");
  return cublasGemmStridedBatchedEx_64(inner(handle), op_of(a_op), op_of(b_op), m, n, k, alpha, a, type_of(a_type), lda, a_stride, b,
                                       type_of(b_type), ldb, b_stride, beta, d, type_of(c_type), ldc, c_stride, count,
                                       compute_of(compute), DEFAULT);
}

}  // namespace

EXPORT int rocblas_create_handle(void** handle) { return create_handle<RocHandle>("rocblas_create_handle", ROC_HANDLE, handle); }
EXPORT int rocblas_set_stream(void* handle, void* stream) {
  if (int status = ordered("rocblas_set_stream", ROC_HANDLE)) return status;
  if (!roc(handle)) return refuse(ROC_HANDLE, "a handle the library did not make");
  roc(handle)->stream = stream;
  return 0;
}
EXPORT int rocblas_get_version_string(char* text, size_t size) {
  const char* version = std::getenv("MOCK_ROCBLAS_VERSION");
  return std::snprintf(text, size, "%s", version ? version : "4.2.1.1a2b3c") < 0;
}
EXPORT int rocblas_start_device_memory_size_query(void* handle) {
  if (int status = ordered("rocblas_start_device_memory_size_query", ROC_QUERY)) return status;
  auto* h = roc(handle);
  if (!h || h->asking) return refuse(ROC_QUERY, "a size is asked for already");
  h->asking = true, h->asked = 0;
  return 0;
}
EXPORT int rocblas_stop_device_memory_size_query(void* handle, size_t* bytes) {
  auto* h = roc(handle);
  if (!h || !h->asking) return refuse(ROC_QUERY, "no size is asked for");
  h->asking = false;
  *bytes = h->asked;
  return ordered("rocblas_stop_device_memory_size_query", ROC_QUERY);
}
EXPORT int rocblas_set_workspace(void* handle, void* work, size_t bytes) {
  if (int status = ordered("rocblas_set_workspace", ROC_MEMORY)) return status;
  auto* h = roc(handle);
  if (!h || h->asking || uintptr_t(work) % 64) return refuse(ROC_MEMORY, "workspace");
  h->work = static_cast<char*>(work), h->bytes = bytes;
  return 0;
}

EXPORT int rocblas_gemm_ex(void* handle, int a_op, int b_op, int m, int n, int k, const void* alpha, const void* a, int a_type, int lda,
                           const void* b, int b_type, int ldb, const void* beta, const void* c, int c_type, int ldc, void* d, int d_type,
                           int ldd, int compute, int algorithm, int32_t solution, uint32_t flags) {
  return gemm<int>(handle, a_op, b_op, m, n, k, alpha, a, a_type, lda, b, b_type, ldb, beta, c, c_type, ldc, d, d_type, ldd, compute,
                   algorithm, solution, flags);
}
EXPORT int rocblas_gemm_strided_batched_ex(void* handle, int a_op, int b_op, int m, int n, int k, const void* alpha, const void* a,
                                           int a_type, int lda, int64_t a_stride, const void* b, int b_type, int ldb, int64_t b_stride,
                                           const void* beta, const void* c, int c_type, int ldc, int64_t c_stride, void* d, int d_type,
                                           int ldd, int64_t d_stride, int count, int compute, int algorithm, int32_t solution,
                                           uint32_t flags) {
  return gemm_many<int>(handle, a_op, b_op, m, n, k, alpha, a, a_type, lda, a_stride, b, b_type, ldb, b_stride, beta, c, c_type, ldc,
                        c_stride, d, d_type, ldd, d_stride, count, compute, algorithm, solution, flags);
}

// suffix: of the name; Int: of its sizes; adjoint: of op in syrk, which for real matrices must be a transpose
#define ROC_TRIANGLES(suffix, Int, letter, Letter, T, Real, herk, adjoint)                                                     \
  EXPORT int rocblas_##letter##trsm##suffix(void* h, int side, int fill, int op, int diagonal, Int m, Int n, const T* alpha,   \
                                            const T* a, Int lda, T* b, Int ldb) {                                              \
    return cublas##Letter##trsm_v2_64(inner(h), side_of(side), fill_of(fill), op_of(op), diagonal_of(diagonal), m, n, alpha,   \
                                      a, lda, b, ldb);                                                                         \
  }                                                                                                                            \
  EXPORT int rocblas_##letter##herk##suffix(void* h, int fill, int op, Int n, Int k, const Real* alpha, const T* a, Int lda,   \
                                            const Real* beta, T* c, Int ldc) {                                                 \
    if (op != 111 && op != adjoint) return refuse(ROC_VALUE, "herk: op");                                                      \
    return cublas##Letter##herk##_v2_64(inner(h), fill_of(fill), op == 111 ? NONE : ADJOINT, n, k, alpha, a, lda, beta, c,     \
                                        ldc);                                                                                  \
  }
#define ROC_TRMM(name, Int, Letter, T)                                                                                         \
  EXPORT int name(void* h, int side, int fill, int op, int diagonal, Int m, Int n, const T* alpha, const T* a, Int lda,        \
                  const T* b, Int ldb, T* c, Int ldc) {                                                                        \
    if (in_place(#name)) return refuse(ROC_VALUE, "trmm works in place in this version");                                      \
    return cublas##Letter##trmm_v2_64(inner(h), side_of(side), fill_of(fill), op_of(op), diagonal_of(diagonal), m, n, alpha,   \
                                      a, lda, b, ldb, c, ldc);                                                                 \
  }
#define ROC_ALL(X, suffix, Int)                                          \
  X(suffix, Int, s, S, float, float, syrk, 112)                          \
  X(suffix, Int, d, D, double, double, syrk, 112)                        \
  X(suffix, Int, c, C, std::complex<float>, float, herk, 113)            \
  X(suffix, Int, z, Z, std::complex<double>, double, herk, 113)
ROC_ALL(ROC_TRIANGLES, , int)
ROC_ALL(ROC_TRIANGLES, _64, int64_t)
#define ROC_TRMMS(suffix, Int, letter, Letter, T, Real, herk, adjoint)  \
  ROC_TRMM(rocblas_##letter##trmm, int, Letter, T)                      \
  ROC_TRMM(rocblas_##letter##trmm_outofplace, int, Letter, T)           \
  ROC_TRMM(rocblas_##letter##trmm_64, int64_t, Letter, T)
ROC_ALL(ROC_TRMMS, , int)
EXPORT int rocblas_gemm_ex_64(void* handle, int a_op, int b_op, int64_t m, int64_t n, int64_t k, const void* alpha, const void* a,
                              int a_type, int64_t lda, const void* b, int b_type, int64_t ldb, const void* beta, const void* c, int c_type,
                              int64_t ldc, void* d, int d_type, int64_t ldd, int compute, int algorithm, int32_t solution, uint32_t flags) {
  return gemm<int64_t>(handle, a_op, b_op, m, n, k, alpha, a, a_type, lda, b, b_type, ldb, beta, c, c_type, ldc, d, d_type, ldd, compute,
                       algorithm, solution, flags);
}
EXPORT int rocblas_gemm_strided_batched_ex_64(void* handle, int a_op, int b_op, int64_t m, int64_t n, int64_t k, const void* alpha,
                                              const void* a, int a_type, int64_t lda, int64_t a_stride, const void* b, int b_type,
                                              int64_t ldb, int64_t b_stride, const void* beta, const void* c, int c_type, int64_t ldc,
                                              int64_t c_stride, void* d, int d_type, int64_t ldd, int64_t d_stride, int64_t count,
                                              int compute, int algorithm, int32_t solution, uint32_t flags) {
  return gemm_many<int64_t>(handle, a_op, b_op, m, n, k, alpha, a, a_type, lda, a_stride, b, b_type, ldb, b_stride, beta, c, c_type, ldc,
                            c_stride, d, d_type, ldd, d_stride, count, compute, algorithm, solution, flags);
}
