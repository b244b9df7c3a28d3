// Stand-in for libcusolver: 64-bit Cholesky on the column-major lower triangle, strict about its arguments.
//   MOCK_SOLVER_SLEEP  milliseconds each factorisation takes at least
#include "cholesky.h"
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

std::atomic<int> created{0};

bool good(void* handle, void* params) {
  return handle && params && static_cast<Handle*>(handle)->magic == Handle().magic &&
         static_cast<Params*>(params)->magic == Params().magic;
}

int dtype_of(int type) { return type == 0 ? 0 : type == 1 ? 1 : type == 4 ? 2 : type == 5 ? 3 : -1; }

size_t device_bytes(int64_t n, int type) { return size_t(64 * n + 8 * type + 24); }

}  // namespace

EXPORT int cusolverGetVersion(int* version) {
  *version = 12003;
  return 0;
}

EXPORT int cusolverDnCreate(void** handle) {
  if (int status = ordered("cusolverDnCreate", INTERNAL_ERROR)) return status;
  auto* made = new Handle;
  made->number = ++created;
  *handle = made;
  note("cusolverDnCreate handle=%d", made->number);
  return 0;
}

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

// no test runs these two yet: the engine must find them
EXPORT int cusolverDnXsyevd_bufferSize(void*, void*, int, int, int64_t, int, const void*, int64_t, int, const void*, int, size_t*,
                                       size_t*) {
  return INTERNAL_ERROR;
}

EXPORT int cusolverDnXsyevd(void*, void*, int, int, int64_t, int, void*, int64_t, int, void*, int, void*, size_t, void*, size_t,
                            int*) {
  return INTERNAL_ERROR;
}
