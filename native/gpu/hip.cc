// The rows of vendor.h out of AMD's names. Every wrapper takes NVIDIA's numbers and hands on AMD's.
#include "gpu/hip.h"

#include <dlfcn.h>

#include <algorithm>
#include <cctype>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <vector>

namespace lapwing::vendor::hip {
namespace {

Names amd;

// ---- driver ----------------------------------------------------------------------------------------------------------

// HIP has a current device where NVIDIA has a stack of contexts: a context is the number of its device plus one.
void* context_of(int device) { return reinterpret_cast<void*>(uintptr_t(device) + 1); }
int device_of(void* context) { return int(reinterpret_cast<uintptr_t>(context)) - 1; }
thread_local std::vector<int> entered;  // the devices that were current before

int primary_context(void** context, int device) {
  *context = context_of(device);
  return 0;
}
int context_push(void* context) {
  int before = 0;
  int status = amd.get_device(&before);
  if (!status) status = amd.set_device(device_of(context));
  if (!status) entered.push_back(before);
  return status;
}
int context_pop(void** context) {
  int now = 0;
  const int status = amd.get_device(&now);
  *context = context_of(now);
  const int before = entered.empty() ? now : entered.back();
  if (!entered.empty()) entered.pop_back();
  const int back = amd.set_device(before);
  return status ? status : back;
}
int context_current(void** context) {
  int device = 0;
  const int status = amd.get_device(&device);
  *context = context_of(device);
  return status;
}
int stream_context(void* stream, void** context) {
  int device = 0;
  // a driver that cannot be asked: frameworks make the stream's device current before they call
  const int status = amd.stream_device ? amd.stream_device(stream, &device) : amd.get_device(&device);
  *context = context_of(device);
  return status;
}

int device_attribute(int* value, int attribute, int device) {
  switch (attribute) {
    case vendor::ATTRIBUTE_MULTIPROCESSORS: return amd.device_attribute(value, ATTRIBUTE_MULTIPROCESSORS, device);
    case vendor::ATTRIBUTE_SHARED_OPTIN: return amd.device_attribute(value, ATTRIBUTE_SHARED, device);
    default: *value = 0; return 0;  // AMD's versions of an architecture are not compute capabilities
  }
}

// A block may have all of its shared memory without asking.
int function_attribute(void*, int, int) { return 0; }

// A grid has fewer than 2^32 threads along x; the kernels stride over what does not fit.
int launch(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
           void* stream, void** arguments, void** extra) {
  return amd.launch(function, std::min(gx, UINT_MAX / std::max(1u, bx)), gy, gz, bx, by, bz, shared, stream, arguments, extra);
}

int fill_bytes(uint64_t where, unsigned char value, size_t bytes, void* stream) {
  return amd.fill(reinterpret_cast<void*>(where), value, bytes, stream);
}
int copy(uint64_t to, uint64_t from, size_t bytes, void* stream) {
  return amd.copy(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), bytes, stream);
}
int copy_to_host(void* to, uint64_t from, size_t bytes, void* stream) {
  return amd.copy_to_host(to, reinterpret_cast<void*>(from), bytes, stream);
}
int copy_to_device(uint64_t to, const void* from, size_t bytes, void* stream) {
  return amd.copy_to_device(reinterpret_cast<void*>(to), const_cast<void*>(from), bytes, stream);
}
int error_text(int status, const char** text) {
  *text = amd.error_text(status);
  return 0;
}

// ---- compiler --------------------------------------------------------------------------------------------------------

int rtc_create(void** program, const char* source, const char* name, int count, const char* const* headers,
               const char* const* names) {
  return amd.rtc_create(program, source, name, count, const_cast<const char**>(headers), const_cast<const char**>(names));
}
int rtc_compile(void* program, int count, const char* const* options) {
  return amd.rtc_compile(program, count, const_cast<const char**>(options));
}

// ---- numbers ---------------------------------------------------------------------------------------------------------

int op_of(int op) { return op == vendor::OP_NONE ? OP_NONE : op == vendor::OP_TRANSPOSE ? OP_TRANSPOSE : OP_ADJOINT; }
int fill_of(int fill) { return fill == vendor::FILL_LOWER ? FILL_LOWER : FILL_UPPER; }
int side_of(int side) { return side == vendor::SIDE_LEFT ? SIDE_LEFT : SIDE_RIGHT; }
int diagonal_of(int diagonal) { return diagonal == vendor::DIAGONAL_UNIT ? DIAGONAL_UNIT : DIAGONAL_READ; }
int vectors_of(signed char job) { return job == 'A' ? VECTORS_ALL : job == 'S' ? VECTORS_SINGULAR : VECTORS_NONE; }
int eigenvectors_of(int mode) { return mode == VALUES_AND_VECTORS ? EIGENVECTORS : NO_EIGENVECTORS; }

// lapwing's dtype of NVIDIA's type
int dtype_of(int type) {
  return type == vendor::REAL_32 ? 0 : type == vendor::REAL_64 ? 1 : type == vendor::COMPLEX_32 ? 2 : 3;
}
int type_of(int type) {
  constexpr int types[] = {REAL_32, REAL_64, COMPLEX_32, COMPLEX_64};
  return types[dtype_of(type)];
}
size_t element_of(int type) {
  constexpr size_t bytes[] = {4, 8, 8, 16};
  return bytes[dtype_of(type)];
}
size_t real_of(int type) { return dtype_of(type) % 2 ? 8 : 4; }

// Sizes that the routine's 32-bit integers hold.
bool fits(std::initializer_list<int64_t> sizes) {
  return std::all_of(sizes.begin(), sizes.end(), [](int64_t size) { return size <= INT_MAX; });
}

// The routine `name` of NVIDIA's `type`; T and R in its arguments are the element and its real type.
#define LAPWING_AS(letter, name, Element, Real, ...) \
  {                                                  \
    using T = Element;                               \
    using R = Real;                                  \
    static_assert(sizeof(T) >= sizeof(R));           \
    return amd.letter##name __VA_ARGS__;             \
  }
#define LAPWING_BY_TYPE(type, name, ...)                              \
  switch (dtype_of(type)) {                                           \
    case 0: LAPWING_AS(s, name, float, float, __VA_ARGS__)            \
    case 1: LAPWING_AS(d, name, double, double, __VA_ARGS__)          \
    case 2: LAPWING_AS(c, name, Complex32, float, __VA_ARGS__)        \
    default: LAPWING_AS(z, name, Complex64, double, __VA_ARGS__)      \
  }

// ---- workspaces ------------------------------------------------------------------------------------------------------

// rocSOLVER takes its workspace from the handle: it is asked how much it would take, and the caller's memory is put there. What
// our wrappers need themselves stands before it, so that both sides know where.
size_t aligned(size_t bytes) { return (bytes + 255) / 256 * 256; }

// The bytes that `call` would take, without running it.
template <class Call>
int ask(void* handle, size_t own, size_t* device, size_t* host, Call call) {
  *device = 0, *host = 0;
  if (int status = amd.start_query(handle)) return status;
  const int answer = call();
  size_t bytes = 0;
  const int status = amd.stop_query(handle, &bytes);
  *device = aligned(own) + bytes;
  return status || answer == 0 || answer == STATUS_SIZE_INCREASED || answer == STATUS_SIZE_UNCHANGED ? status : answer;
}

// Hands the caller's memory to the library. `own` bytes of it, at `device`, stay ours. Without any the library must forget that of
// the call before, which is gone.
int lend(void* handle, void* device, size_t bytes, size_t own) {
  const size_t before = aligned(own);
  return bytes > before ? amd.set_workspace(handle, static_cast<char*>(device) + before, bytes - before)
                        : amd.set_workspace(handle, nullptr, 0);
}

// ---- solver ----------------------------------------------------------------------------------------------------------

int no_params(void** params) {
  static char any;
  *params = &any;
  return 0;
}

// The leading number of "3.26.0.40602", as cuSOLVER counts: 3026
int solver_version(int* version) {
  char text[128] = "";
  if (int status = amd.solver_version(text, sizeof text)) return status;
  char* end = nullptr;
  const long major = std::strtol(text, &end, 10), minor = *end ? std::strtol(end + 1, nullptr, 10) : 0;
  *version = int(1000 * major + minor);
  return 0;
}

int call_potrf(int type, void* handle, int uplo, int64_t n, void* a, int64_t lda, int* info) {
  LAPWING_BY_TYPE(type, potrf, (handle, fill_of(uplo), int(n), static_cast<T*>(a), int(lda), info))
}
int potrf_size(void* handle, void*, int uplo, int64_t n, int type, const void*, int64_t lda, int, size_t* device, size_t* host) {
  if (!fits({n, lda})) return STATUS_SIZE;
  return ask(handle, 0, device, host, [=] { return call_potrf(type, handle, uplo, n, nullptr, lda, nullptr); });
}
int potrf(void* handle, void*, int uplo, int64_t n, int type, void* a, int64_t lda, int, void* device, size_t bytes, void*, size_t,
          int* info) {
  const int status = lend(handle, device, bytes, 0);
  return status ? status : call_potrf(type, handle, uplo, n, a, lda, info);
}

int call_potrf_many(int type, void* handle, int64_t n, void* a, int* info, int64_t count) {
  LAPWING_BY_TYPE(type, potrf_many, (handle, FILL_LOWER, int(n), static_cast<T*>(a), int(n), n * n, info, int(count)))
}

// rocSOLVER leaves the off-diagonal of the tridiagonal matrix in an array of ours.
int call_syevd(int type, void* handle, int mode, int uplo, int64_t n, void* a, int64_t lda, void* w, void* e, int* info) {
  LAPWING_BY_TYPE(type, syevd, (handle, eigenvectors_of(mode), fill_of(uplo), int(n), static_cast<T*>(a), int(lda),
                                static_cast<R*>(w), static_cast<R*>(e), info))
}
int syevd_size(void* handle, void*, int mode, int uplo, int64_t n, int type, const void*, int64_t lda, int, const void*, int,
               size_t* device, size_t* host) {
  if (!fits({n, lda})) return STATUS_SIZE;
  return ask(handle, size_t(n) * real_of(type), device, host,
             [=] { return call_syevd(type, handle, mode, uplo, n, nullptr, lda, nullptr, nullptr, nullptr); });
}
int syevd(void* handle, void*, int mode, int uplo, int64_t n, int type, void* a, int64_t lda, int, void* w, int, void* device,
          size_t bytes, void*, size_t, int* info) {
  const int status = lend(handle, device, bytes, size_t(n) * real_of(type));
  return status ? status : call_syevd(type, handle, mode, uplo, n, a, lda, w, device, info);
}

// rocSOLVER has the vectors of a part in a matrix of its own, ours come back in A. It counts the eigenvalues on the device.
struct Part {
  int64_t n, first, last;
  int type;
  int64_t count() const { return last - first + 1; }
  size_t vectors() const { return size_t(n * count()) * element_of(type); }
  size_t own() const { return aligned(vectors()) + sizeof(int); }
};
int call_syevdx(const Part& part, void* handle, int mode, int uplo, void* a, int64_t lda, void* w, void* z, int* found, int* info) {
  LAPWING_BY_TYPE(part.type, syevdx,
                  (handle, eigenvectors_of(mode), RANGE_BY_INDEX, fill_of(uplo), int(part.n), static_cast<T*>(a), int(lda), R(0), R(0),
                   int(part.first), int(part.last), found, static_cast<R*>(w), static_cast<T*>(z), int(part.n), info))
}
int syevdx_size(void* handle, void*, int mode, int, int uplo, int64_t n, int type, const void*, int64_t lda, void*, void*, int64_t first,
                int64_t last, int64_t*, int, const void*, int, size_t* device, size_t* host) {
  if (!fits({n, lda})) return STATUS_SIZE;
  const Part part{n, first, last, type};
  return ask(handle, part.own(), device, host,
             [=] { return call_syevdx(part, handle, mode, uplo, nullptr, lda, nullptr, nullptr, nullptr, nullptr); });
}
thread_local void* solver_stream_now = nullptr;  // the copies behind a routine go to the stream that its handle was given last
int syevdx(void* handle, void*, int mode, int, int uplo, int64_t n, int type, void* a, int64_t lda, void*, void*, int64_t first,
           int64_t last, int64_t* found, int, void* w, int, void* device, size_t bytes, void*, size_t, int* info) {
  const Part part{n, first, last, type};
  *found = part.count();
  int status = lend(handle, device, bytes, part.own());
  auto* count = reinterpret_cast<int*>(static_cast<char*>(device) + aligned(part.vectors()));
  if (!status) status = call_syevdx(part, handle, mode, uplo, a, lda, w, device, count, info);
  if (!status && mode == VALUES_AND_VECTORS) status = amd.copy(a, device, part.vectors(), solver_stream_now);
  return status;
}

int call_syev_many(int type, void* handle, int mode, int uplo, int64_t n, void* a, int64_t lda, void* w, void* e, int* info,
                   int64_t count) {
  LAPWING_BY_TYPE(type, syevd_many, (handle, eigenvectors_of(mode), fill_of(uplo), int(n), static_cast<T*>(a), int(lda), lda * n,
                                     static_cast<R*>(w), n, static_cast<R*>(e), n, info, int(count)))
}
int syev_many_size(void* handle, void*, int mode, int uplo, int64_t n, int type, const void*, int64_t lda, int, const void*, int,
                   size_t* device, size_t* host, int64_t count) {
  if (!fits({n, lda, count})) return STATUS_SIZE;
  return ask(handle, size_t(n * count) * real_of(type), device, host,
             [=] { return call_syev_many(type, handle, mode, uplo, n, nullptr, lda, nullptr, nullptr, nullptr, count); });
}
int syev_many(void* handle, void*, int mode, int uplo, int64_t n, int type, void* a, int64_t lda, int, void* w, int, void* device,
              size_t bytes, void*, size_t, int* info, int64_t count) {
  const int status = lend(handle, device, bytes, size_t(n * count) * real_of(type));
  return status ? status : call_syev_many(type, handle, mode, uplo, n, a, lda, w, device, info, count);
}

// rocSOLVER's pivots have 32 bits. They are copied to every second half of ours, whose other halves are zero.
int call_getrf(int type, void* handle, int64_t m, int64_t n, void* a, int64_t lda, int* pivots, int* info) {
  LAPWING_BY_TYPE(type, getrf, (handle, int(m), int(n), static_cast<T*>(a), int(lda), pivots, info))
}
int getrf_size(void* handle, void*, int64_t m, int64_t n, int type, const void*, int64_t lda, int, size_t* device, size_t* host) {
  if (!fits({m, n, lda})) return STATUS_SIZE;
  return ask(handle, size_t(std::min(m, n)) * sizeof(int), device, host,
             [=] { return call_getrf(type, handle, m, n, nullptr, lda, nullptr, nullptr); });
}
int getrf(void* handle, void*, int64_t m, int64_t n, int type, void* a, int64_t lda, int64_t* pivots, int, void* device, size_t bytes,
          void*, size_t, int* info) {
  const auto count = size_t(std::min(m, n));
  int status = lend(handle, device, bytes, count * sizeof(int));
  if (!status) status = call_getrf(type, handle, m, n, a, lda, static_cast<int*>(device), info);
  if (!status) status = amd.fill(pivots, 0, count * sizeof *pivots, solver_stream_now);
  return status ? status : amd.copy_rows(pivots, sizeof *pivots, device, sizeof(int), sizeof(int), count, COPY_ON_DEVICE, solver_stream_now);
}

int call_geqrf(int type, void* handle, int64_t m, int64_t n, void* a, int64_t lda, void* tau) {
  LAPWING_BY_TYPE(type, geqrf, (handle, int(m), int(n), static_cast<T*>(a), int(lda), static_cast<T*>(tau)))
}
int geqrf_size(void* handle, void*, int64_t m, int64_t n, int type, const void*, int64_t lda, int, const void*, int, size_t* device,
               size_t* host) {
  if (!fits({m, n, lda})) return STATUS_SIZE;
  return ask(handle, 0, device, host, [=] { return call_geqrf(type, handle, m, n, nullptr, lda, nullptr); });
}
int geqrf(void* handle, void*, int64_t m, int64_t n, int type, void* a, int64_t lda, int, void* tau, int, void* device, size_t bytes,
          void*, size_t, int* info) {
  int status = lend(handle, device, bytes, 0);
  if (!status) status = amd.fill(info, 0, sizeof *info, solver_stream_now);  // this routine cannot fail
  return status ? status : call_geqrf(type, handle, m, n, a, lda, tau);
}

// E, of the bidiagonal matrix, is ours.
int call_gesvd(int type, void* handle, signed char left, signed char right, int64_t m, int64_t n, void* a, int64_t lda, void* s,
               void* u, int64_t ldu, void* vh, int64_t ldvh, void* e, int* info) {
  LAPWING_BY_TYPE(type, gesvd, (handle, vectors_of(left), vectors_of(right), int(m), int(n), static_cast<T*>(a), int(lda),
                                static_cast<R*>(s), static_cast<T*>(u), int(ldu), static_cast<T*>(vh), int(ldvh), static_cast<R*>(e),
                                OUT_OF_PLACE, info))
}
int gesvd_size(void* handle, void*, signed char left, signed char right, int64_t m, int64_t n, int type, const void*, int64_t lda, int,
               const void*, int, const void*, int64_t ldu, int, const void*, int64_t ldvh, int, size_t* device, size_t* host) {
  if (!fits({m, n, lda, ldu, ldvh})) return STATUS_SIZE;
  return ask(handle, size_t(std::min(m, n)) * real_of(type), device, host, [=] {
    return call_gesvd(type, handle, left, right, m, n, nullptr, lda, nullptr, nullptr, ldu, nullptr, ldvh, nullptr, nullptr);
  });
}
int gesvd(void* handle, void*, signed char left, signed char right, int64_t m, int64_t n, int type, void* a, int64_t lda, int, void* s,
          int, void* u, int64_t ldu, int, void* vh, int64_t ldvh, int, void* device, size_t bytes, void*, size_t, int* info) {
  const int status = lend(handle, device, bytes, size_t(std::min(m, n)) * real_of(type));
  return status ? status : call_gesvd(type, handle, left, right, m, n, a, lda, s, u, ldu, vh, ldvh, device, info);
}

int choose_stream(void* handle, void* stream) {
  solver_stream_now = stream;
  return amd.blas_stream(handle, stream);
}

// The four types of routines that NVIDIA has one of for each. `room` and sizes count elements.
template <class T, class Query>
int ask_elements(void* handle, int* elements, Query call) {
  size_t bytes = 0, host = 0;
  const int status = ask(handle, 0, &bytes, &host, call);
  *elements = int((bytes + sizeof(T) - 1) / sizeof(T));
  return status;
}

template <class T, auto member>
int orgqr_size(void* handle, int m, int n, int k, const T*, int lda, const T*, int* elements) {
  return ask_elements<T>(handle, elements, [=] { return (amd.*member)(handle, m, n, k, nullptr, lda, nullptr); });
}
template <class T, auto member>
int orgqr(void* handle, int m, int n, int k, T* a, int lda, const T* tau, T* work, int room, int* info) {
  int status = lend(handle, work, size_t(room) * sizeof(T), 0);
  if (!status) status = amd.fill(info, 0, sizeof *info, solver_stream_now);
  return status ? status : (amd.*member)(handle, m, n, k, a, lda, const_cast<T*>(tau));
}
template <class T, auto member>
int ormqr_size(void* handle, int side, int op, int m, int n, int k, const T*, int lda, const T*, const T*, int ldc, int* elements) {
  return ask_elements<T>(handle, elements, [=] {
    return (amd.*member)(handle, side_of(side), op_of(op), m, n, k, nullptr, lda, nullptr, nullptr, ldc);
  });
}
template <class T, auto member>
int ormqr(void* handle, int side, int op, int m, int n, int k, const T* a, int lda, const T* tau, T* c, int ldc, T* work, int room,
          int* info) {
  int status = lend(handle, work, size_t(room) * sizeof(T), 0);
  if (!status) status = amd.fill(info, 0, sizeof *info, solver_stream_now);
  return status ? status
                : (amd.*member)(handle, side_of(side), op_of(op), m, n, k, const_cast<T*>(a), lda, const_cast<T*>(tau), c, ldc);
}

// ---- BLAS ------------------------------------------------------------------------------------------------------------

template <class T, auto wide, auto narrow>
int trsm(void* handle, int side, int fill, int op, int diagonal, int64_t m, int64_t n, const T* alpha, const T* a, int64_t lda, T* b,
         int64_t ldb) {
  const int s = side_of(side), f = fill_of(fill), o = op_of(op), d = diagonal_of(diagonal);
  if (amd.*wide) return (amd.*wide)(handle, s, f, o, d, m, n, alpha, a, lda, b, ldb);
  if (!fits({m, n, lda, ldb})) return STATUS_SIZE;
  return (amd.*narrow)(handle, s, f, o, d, int(m), int(n), alpha, a, int(lda), b, int(ldb));
}
template <class T, auto wide, auto narrow>
int trmm(void* handle, int side, int fill, int op, int diagonal, int64_t m, int64_t n, const T* alpha, const T* a, int64_t lda,
         const T* b, int64_t ldb, T* c, int64_t ldc) {
  const int s = side_of(side), f = fill_of(fill), o = op_of(op), d = diagonal_of(diagonal);
  if (amd.*wide) return (amd.*wide)(handle, s, f, o, d, m, n, alpha, a, lda, b, ldb, c, ldc);
  if (!fits({m, n, lda, ldb, ldc})) return STATUS_SIZE;
  return (amd.*narrow)(handle, s, f, o, d, int(m), int(n), alpha, a, int(lda), b, int(ldb), c, int(ldc));
}
template <class T, class R, auto wide, auto narrow>
int syrk(void* handle, int fill, int op, int64_t n, int64_t k, const R* alpha, const T* a, int64_t lda, const R* beta, T* c,
         int64_t ldc) {
  // the symmetric routine of real matrices is asked for a transpose, the Hermitian one for an adjoint
  const int f = fill_of(fill), o = op == vendor::OP_NONE ? OP_NONE : sizeof(T) == sizeof(R) ? OP_TRANSPOSE : OP_ADJOINT;
  if (amd.*wide) return (amd.*wide)(handle, f, o, n, k, alpha, a, lda, beta, c, ldc);
  if (!fits({n, k, lda, ldc})) return STATUS_SIZE;
  return (amd.*narrow)(handle, f, o, int(n), int(k), alpha, a, int(lda), beta, c, int(ldc));
}

int gemm(void* handle, int a_op, int b_op, int64_t m, int64_t n, int64_t k, const void* alpha, const void* a, int type, int64_t lda,
         const void* b, int, int64_t ldb, const void* beta, void* c, int, int64_t ldc, int, int) {
  const int o = op_of(a_op), p = op_of(b_op), t = type_of(type);
  if (amd.blas_gemm_64)
    return amd.blas_gemm_64(handle, o, p, m, n, k, alpha, a, t, lda, b, t, ldb, beta, c, t, ldc, c, t, ldc, t, GEMM_STANDARD, 0, 0);
  if (!fits({m, n, k, lda, ldb, ldc})) return STATUS_SIZE;
  return amd.blas_gemm(handle, o, p, int(m), int(n), int(k), alpha, a, t, int(lda), b, t, int(ldb), beta, c, t, int(ldc), c, t,
                       int(ldc), t, GEMM_STANDARD, 0, 0);
}
int gemm_many(void* handle, int a_op, int b_op, int64_t m, int64_t n, int64_t k, const void* alpha, const void* a, int type,
              int64_t lda, long long a_stride, const void* b, int, int64_t ldb, long long b_stride, const void* beta, void* c, int,
              int64_t ldc, long long c_stride, int64_t count, int, int) {
  const int o = op_of(a_op), p = op_of(b_op), t = type_of(type);
  if (amd.blas_gemm_many_64)
    return amd.blas_gemm_many_64(handle, o, p, m, n, k, alpha, a, t, lda, a_stride, b, t, ldb, b_stride, beta, c, t, ldc, c_stride, c, t,
                                 ldc, c_stride, count, t, GEMM_STANDARD, 0, 0);
  if (!fits({m, n, k, lda, ldb, ldc, count})) return STATUS_SIZE;
  return amd.blas_gemm_many(handle, o, p, int(m), int(n), int(k), alpha, a, t, int(lda), a_stride, b, t, int(ldb), b_stride, beta, c, t,
                            int(ldc), c_stride, c, t, int(ldc), c_stride, int(count), t, GEMM_STANDARD, 0, 0);
}

// ---- the rows --------------------------------------------------------------------------------------------------------

void fill_driver(Table* t) {
  t->init = amd.init, t->driver_version = amd.driver_version, t->device_count = amd.device_count, t->device_get = amd.device_get;
  t->device_name = amd.device_name, t->device_attribute = device_attribute, t->device_memory = amd.device_memory;
  t->primary_context = primary_context, t->context_push = context_push, t->context_pop = context_pop;
  t->context_current = context_current, t->context_device = amd.get_device, t->stream_context = stream_context;
  t->capture_mode = amd.capture_mode, t->module_load = amd.module_load, t->module_function = amd.module_function;
  t->function_attribute = function_attribute, t->launch = launch, t->launch_together = amd.launch_together;
  t->fill = fill_bytes, t->copy = copy, t->memory_info = amd.memory_info, t->copy_to_host = copy_to_host;
  t->copy_to_device = copy_to_device, t->synchronize = amd.synchronize, t->error_text = error_text;
}

void fill_compiler(Table* t) {
  t->rtc_create = rtc_create, t->rtc_compile = rtc_compile;
  t->rtc_binary_size = amd.rtc_binary_size, t->rtc_binary = amd.rtc_binary, t->rtc_log_size = amd.rtc_log_size;
  t->rtc_log = amd.rtc_log, t->rtc_destroy = amd.rtc_destroy;
}

void fill_solver(Table* t) {
  t->solver_create = amd.blas_create, t->solver_stream = choose_stream, t->solver_params = no_params;
  t->solver_version = solver_version, t->potrf_size = potrf_size, t->potrf = potrf, t->syevd_size = syevd_size, t->syevd = syevd;
  if (amd.ssyevdx && amd.dsyevdx && amd.csyevdx && amd.zsyevdx) t->syevdx_size = syevdx_size, t->syevdx = syevdx;
}

void fill_dense_solver(Table* t) {
  t->getrf_size = getrf_size, t->getrf = getrf, t->geqrf_size = geqrf_size, t->geqrf = geqrf, t->gesvd_size = gesvd_size, t->gesvd = gesvd;
#define LAPWING_FILL(l, orgqr_name, ormqr_name, T)                                                               \
  t->l##orgqr_name##_size = orgqr_size<T, &Names::l##orgqr_name>, t->l##orgqr_name = orgqr<T, &Names::l##orgqr_name>;       \
  t->l##ormqr_name##_size = ormqr_size<T, &Names::l##ormqr_name>, t->l##ormqr_name = ormqr<T, &Names::l##ormqr_name>;
  LAPWING_FILL(s, orgqr, ormqr, float)
  LAPWING_FILL(d, orgqr, ormqr, double)
  LAPWING_FILL(c, ungqr, unmqr, Complex32)
  LAPWING_FILL(z, ungqr, unmqr, Complex64)
#undef LAPWING_FILL
}

// Before version 4 rocblas_dtrmm worked in place, and the routine that we need had another name.
std::string find_trmm(void* handle) {
  char text[128] = "";
  if (amd.strmm_64 && amd.dtrmm_64 && amd.ctrmm_64 && amd.ztrmm_64) return "";
  if (amd.blas_version && !amd.blas_version(text, sizeof text) && std::atoi(text) >= 4 && amd.strmm && amd.dtrmm && amd.ctrmm && amd.ztrmm)
    return "";
#define LAPWING_OLD(l)                                                                                       \
  amd.l##trmm = reinterpret_cast<decltype(amd.l##trmm)>(dlsym(handle, "rocblas_" #l "trmm_outofplace"));     \
  if (!amd.l##trmm) return "librocblas has no rocblas_" #l "trmm that leaves its input alone";
  LAPWING_OLD(s)
  LAPWING_OLD(d)
  LAPWING_OLD(c)
  LAPWING_OLD(z)
#undef LAPWING_OLD
  return "";
}

void fill_dense_blas(Table* t) {
  t->blas_gemm_many = gemm_many;
#define LAPWING_FILL(l, syrk_name, T, R)                                              \
  t->l##trsm = trsm<T, &Names::l##trsm_64, &Names::l##trsm>;                          \
  t->l##trmm = trmm<T, &Names::l##trmm_64, &Names::l##trmm>;                          \
  t->l##syrk_name = syrk<T, R, &Names::l##syrk_64, &Names::l##syrk_name>;
  LAPWING_FILL(s, syrk, float, float)
  LAPWING_FILL(d, syrk, double, double)
  LAPWING_FILL(c, herk, Complex32, float)
  LAPWING_FILL(z, herk, Complex64, double)
#undef LAPWING_FILL
}

}  // namespace

std::string fill(Library library, void* handle, Table* table) {
#define LAPWING_FIND(of, name, symbol, result, arguments) \
  if (vendor::of == library) amd.name = reinterpret_cast<result(*) arguments>(dlsym(handle, symbol));
  LAPWING_HIP(LAPWING_FIND)
  LAPWING_HIP_NEWER(LAPWING_FIND)
#undef LAPWING_FIND
#define LAPWING_REQUIRE(of, name, symbol, result, arguments) \
  if (vendor::of == library && !amd.name) return std::string("it has no ") + symbol;
  LAPWING_HIP(LAPWING_REQUIRE)
#undef LAPWING_REQUIRE
  switch (library) {
    case driver: fill_driver(table); break;
    case compiler: fill_compiler(table); break;
    case solver: fill_solver(table); break;
    case many_solver: table->syev_many_size = syev_many_size, table->syev_many = syev_many; break;
    case dense_solver: fill_dense_solver(table); break;
    case blas: table->blas_create = amd.blas_create, table->blas_stream = amd.blas_stream, table->blas_gemm = gemm; break;
    case dense_blas: {
      const std::string reason = find_trmm(handle);
      if (!reason.empty()) return reason;
      fill_dense_blas(table);
      break;
    }
    default: return "AMD has no such library";
  }
  return "";
}

int potrf_many_size(void* handle, int64_t n, int type, int64_t count, size_t* device) {
  size_t host = 0;
  if (!fits({n, count})) return STATUS_SIZE;
  return ask(handle, 0, device, &host, [=] { return call_potrf_many(type, handle, n, nullptr, nullptr, count); });
}
int potrf_many(void* handle, int64_t n, int type, void* a, int64_t count, void* device, size_t bytes, int* info) {
  const int status = lend(handle, device, bytes, 0);
  return status ? status : call_potrf_many(type, handle, n, a, info, count);
}

int lanes_of(int device) {
  int lanes = 0;
  return !amd.device_attribute(&lanes, ATTRIBUTE_LANES, device) && lanes == 32 ? 32 : 64;
}

bool has_cooperative_launch(int device) {
  int has = 0;
  return amd.launch_together && !amd.device_attribute(&has, ATTRIBUTE_COOPERATIVE, device) && has;
}

// The name stands in a structure whose layout differs between versions: it is looked for, behind the name of the GPU.
std::string architecture_of(int device) {
  constexpr size_t LARGEST = 16384, NAME = 256;
  std::vector<char> all(LARGEST, 0);
  const auto call = amd.device_properties ? amd.device_properties : amd.old_device_properties;
  if (!call || call(all.data(), device)) return "";
  for (size_t at = NAME; at + 4 < LARGEST; at++) {
    if (std::memcmp(&all[at], "gfx", 3)) continue;
    size_t end = at + 3;
    while (end < LARGEST && std::isxdigit(static_cast<unsigned char>(all[end]))) end++;
    if (end > at + 3) return {&all[at], end - at};  // what follows a colon are settings, which code without them suits
  }
  return "";
}

int lanes_of(const std::string& architecture) { return architecture.compare(0, 4, "gfx9") == 0 ? 64 : 32; }

std::string version_of(Library library) {
  char text[128] = "";
  int number = 0;
  switch (library) {
    case driver:
    case compiler:  // a part of HIP; hiprtcVersion() says 9.0 in all of them
      if (!amd.driver_version || amd.driver_version(&number)) return "";
      return std::to_string(number / 10000000) + "." + std::to_string(number / 100000 % 100) + "." + std::to_string(number % 100000);
    case blas: return amd.blas_version && !amd.blas_version(text, sizeof text) ? text : "";
    case solver: return amd.solver_version && !amd.solver_version(text, sizeof text) ? text : "";
    default: return "";
  }
}

}  // namespace lapwing::vendor::hip
