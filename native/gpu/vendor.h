// Every vendor name lapwing calls, in one table: (library, our name, the vendor's symbol, result and arguments).
// Handles and streams are pointers and enums are ints; the declarations are checked against the vendor's headers in
// tests/abi. AMD's names for the same rows are in hip.h.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace lapwing::vendor {
struct Complex32 {  // the vendor's own complex numbers
  float re, im;
};
struct Complex64 {
  double re, im;
};
}  // namespace lapwing::vendor

// Routines of which there is one for each type: L and l are its letter, `orgqr`, `ormqr` and `syrk` the vendor's names.
#define LAPWING_VENDOR_TYPE(X, L, l, orgqr, ormqr, syrk, Element, Real)                                                \
  X(dense_solver, l##orgqr##_size, "cusolverDn" #L #orgqr "_bufferSize", int,                                          \
    (void*, int, int, int, const Element*, int, const Element*, int*))                                                 \
  X(dense_solver, l##orgqr, "cusolverDn" #L #orgqr, int,                                                               \
    (void*, int, int, int, Element*, int, const Element*, Element*, int, int*))                                        \
  X(dense_solver, l##ormqr##_size, "cusolverDn" #L #ormqr "_bufferSize", int,                                          \
    (void*, int, int, int, int, int, const Element*, int, const Element*, const Element*, int, int*))                  \
  X(dense_solver, l##ormqr, "cusolverDn" #L #ormqr, int,                                                               \
    (void*, int, int, int, int, int, const Element*, int, const Element*, Element*, int, Element*, int, int*))         \
  X(dense_blas, l##trsm, "cublas" #L "trsm_v2_64", int,                                                                \
    (void*, int, int, int, int, int64_t, int64_t, const Element*, const Element*, int64_t, Element*, int64_t))         \
  X(dense_blas, l##trmm, "cublas" #L "trmm_v2_64", int,                                                                \
    (void*, int, int, int, int, int64_t, int64_t, const Element*, const Element*, int64_t, const Element*, int64_t,    \
     Element*, int64_t))                                                                                               \
  X(dense_blas, l##syrk, "cublas" #L #syrk "_v2_64", int,                                                              \
    (void*, int, int, int64_t, int64_t, const Real*, const Element*, int64_t, const Real*, Element*, int64_t))

#define LAPWING_VENDOR(X)                                                                                              \
  X(driver, init, "cuInit", int, (unsigned))                                                                           \
  X(driver, driver_version, "cuDriverGetVersion", int, (int*))                                                         \
  X(driver, device_count, "cuDeviceGetCount", int, (int*))                                                             \
  X(driver, device_get, "cuDeviceGet", int, (int*, int))                                                               \
  X(driver, device_name, "cuDeviceGetName", int, (char*, int, int))                                                    \
  X(driver, device_attribute, "cuDeviceGetAttribute", int, (int*, int, int))                                           \
  X(driver, device_memory, "cuDeviceTotalMem_v2", int, (size_t*, int))                                                 \
  X(driver, primary_context, "cuDevicePrimaryCtxRetain", int, (void**, int))                                           \
  X(driver, context_push, "cuCtxPushCurrent_v2", int, (void*))                                                         \
  X(driver, context_pop, "cuCtxPopCurrent_v2", int, (void**))                                                          \
  X(driver, context_current, "cuCtxGetCurrent", int, (void**))                                                         \
  X(driver, context_device, "cuCtxGetDevice", int, (int*))                                                             \
  X(driver, stream_context, "cuStreamGetCtx", int, (void*, void**))                                                    \
  X(driver, capture_mode, "cuThreadExchangeStreamCaptureMode", int, (int*))                                            \
  X(driver, module_load, "cuModuleLoadData", int, (void**, const void*))                                               \
  X(driver, module_function, "cuModuleGetFunction", int, (void**, void*, const char*))                                 \
  X(driver, function_attribute, "cuFuncSetAttribute", int, (void*, int, int))                                          \
  X(driver, launch, "cuLaunchKernel", int,                                                                             \
    (void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**))              \
  X(driver, launch_together, "cuLaunchCooperativeKernel", int,                                                         \
    (void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**))                      \
  X(driver, fill, "cuMemsetD8Async", int, (uint64_t, unsigned char, size_t, void*))                                    \
  X(driver, copy, "cuMemcpyDtoDAsync_v2", int, (uint64_t, uint64_t, size_t, void*))                                    \
  X(driver, memory_info, "cuMemGetInfo_v2", int, (size_t*, size_t*))                                                   \
  X(driver, copy_to_host, "cuMemcpyDtoHAsync_v2", int, (void*, uint64_t, size_t, void*))                               \
  X(driver, copy_to_device, "cuMemcpyHtoDAsync_v2", int, (uint64_t, const void*, size_t, void*))                       \
  X(driver, synchronize, "cuStreamSynchronize", int, (void*))                                                          \
  X(driver, error_text, "cuGetErrorString", int, (int, const char**))                                                  \
  X(solver, solver_create, "cusolverDnCreate", int, (void**))                                                          \
  X(solver, solver_stream, "cusolverDnSetStream", int, (void*, void*))                                                 \
  X(solver, solver_params, "cusolverDnCreateParams", int, (void**))                                                    \
  X(solver, solver_version, "cusolverGetVersion", int, (int*))                                                         \
  X(solver, potrf_size, "cusolverDnXpotrf_bufferSize", int,                                                            \
    (void*, void*, int, int64_t, int, const void*, int64_t, int, size_t*, size_t*))                                    \
  X(solver, potrf, "cusolverDnXpotrf", int,                                                                            \
    (void*, void*, int, int64_t, int, void*, int64_t, int, void*, size_t, void*, size_t, int*))                        \
  X(solver, syevd_size, "cusolverDnXsyevd_bufferSize", int,                                                            \
    (void*, void*, int, int, int64_t, int, const void*, int64_t, int, const void*, int, size_t*, size_t*))             \
  X(solver, syevd, "cusolverDnXsyevd", int,                                                                            \
    (void*, void*, int, int, int64_t, int, void*, int64_t, int, void*, int, void*, size_t, void*, size_t, int*))       \
  X(solver, syevdx_size, "cusolverDnXsyevdx_bufferSize", int,                                                          \
    (void*, void*, int, int, int, int64_t, int, const void*, int64_t, void*, void*, int64_t, int64_t, int64_t*, int,   \
     const void*, int, size_t*, size_t*))                                                                              \
  X(solver, syevdx, "cusolverDnXsyevdx", int,                                                                          \
    (void*, void*, int, int, int, int64_t, int, void*, int64_t, void*, void*, int64_t, int64_t, int64_t*, int, void*,  \
     int, void*, size_t, void*, size_t, int*))                                                                         \
  X(newest_solver, newest_create, "cusolverDnCreate", int, (void**))                                                   \
  X(newest_solver, newest_stream, "cusolverDnSetStream", int, (void*, void*))                                          \
  X(newest_solver, newest_params, "cusolverDnCreateParams", int, (void**))                                             \
  X(newest_solver, newest_options, "cusolverDnSetAdvOptions", int, (void*, int, int))                                  \
  X(newest_solver, newest_syevd_size, "cusolverDnXsyevd_bufferSize", int,                                              \
    (void*, void*, int, int, int64_t, int, const void*, int64_t, int, const void*, int, size_t*, size_t*))             \
  X(newest_solver, newest_syevd, "cusolverDnXsyevd", int,                                                              \
    (void*, void*, int, int, int64_t, int, void*, int64_t, int, void*, int, void*, size_t, void*, size_t, int*))       \
  X(many_solver, syev_many_size, "cusolverDnXsyevBatched_bufferSize", int,                                             \
    (void*, void*, int, int, int64_t, int, const void*, int64_t, int, const void*, int, size_t*, size_t*, int64_t))    \
  X(many_solver, syev_many, "cusolverDnXsyevBatched", int,                                                             \
    (void*, void*, int, int, int64_t, int, void*, int64_t, int, void*, int, void*, size_t, void*, size_t, int*,        \
     int64_t))                                                                                                         \
  X(eig_solver, geev_size, "cusolverDnXgeev_bufferSize", int,                                                          \
    (void*, void*, int, int, int64_t, int, const void*, int64_t, int, const void*, int, const void*, int64_t, int,     \
     const void*, int64_t, int, size_t*, size_t*))                                                                     \
  X(eig_solver, geev, "cusolverDnXgeev", int,                                                                          \
    (void*, void*, int, int, int64_t, int, void*, int64_t, int, void*, int, void*, int64_t, int, void*, int64_t, int,  \
     void*, size_t, void*, size_t, int*))                                                                              \
  X(blas, blas_create, "cublasCreate_v2", int, (void**))                                                               \
  X(blas, blas_stream, "cublasSetStream_v2", int, (void*, void*))                                                      \
  X(blas, blas_gemm, "cublasGemmEx_64", int,                                                                           \
    (void*, int, int, int64_t, int64_t, int64_t, const void*, const void*, int, int64_t, const void*, int, int64_t,    \
     const void*, void*, int, int64_t, int, int))                                                                      \
  X(dense_solver, getrf_size, "cusolverDnXgetrf_bufferSize", int,                                                      \
    (void*, void*, int64_t, int64_t, int, const void*, int64_t, int, size_t*, size_t*))                                \
  X(dense_solver, getrf, "cusolverDnXgetrf", int,                                                                      \
    (void*, void*, int64_t, int64_t, int, void*, int64_t, int64_t*, int, void*, size_t, void*, size_t, int*))          \
  X(dense_solver, geqrf_size, "cusolverDnXgeqrf_bufferSize", int,                                                      \
    (void*, void*, int64_t, int64_t, int, const void*, int64_t, int, const void*, int, size_t*, size_t*))              \
  X(dense_solver, geqrf, "cusolverDnXgeqrf", int,                                                                      \
    (void*, void*, int64_t, int64_t, int, void*, int64_t, int, void*, int, void*, size_t, void*, size_t, int*))        \
  X(dense_solver, gesvd_size, "cusolverDnXgesvd_bufferSize", int,                                                      \
    (void*, void*, signed char, signed char, int64_t, int64_t, int, const void*, int64_t, int, const void*, int,       \
     const void*, int64_t, int, const void*, int64_t, int, size_t*, size_t*))                                          \
  X(dense_solver, gesvd, "cusolverDnXgesvd", int,                                                                      \
    (void*, void*, signed char, signed char, int64_t, int64_t, int, void*, int64_t, int, void*, int, void*, int64_t,   \
     int, void*, int64_t, int, void*, size_t, void*, size_t, int*))                                                    \
  X(dense_solver, gesvdp_size, "cusolverDnXgesvdp_bufferSize", int,                                                    \
    (void*, void*, int, int, int64_t, int64_t, int, const void*, int64_t, int, const void*, int, const void*, int64_t, \
     int, const void*, int64_t, int, size_t*, size_t*))                                                                \
  X(dense_solver, gesvdp, "cusolverDnXgesvdp", int,                                                                    \
    (void*, void*, int, int, int64_t, int64_t, int, void*, int64_t, int, void*, int, void*, int64_t, int, void*,       \
     int64_t, int, void*, size_t, void*, size_t, int*, double*))                                                       \
  X(dense_blas, blas_gemm_many, "cublasGemmStridedBatchedEx_64", int,                                                  \
    (void*, int, int, int64_t, int64_t, int64_t, const void*, const void*, int, int64_t, long long, const void*, int,  \
     int64_t, long long, const void*, void*, int, int64_t, long long, int64_t, int, int))                              \
  LAPWING_VENDOR_TYPE(X, S, s, orgqr, ormqr, syrk, float, float)                                                       \
  LAPWING_VENDOR_TYPE(X, D, d, orgqr, ormqr, syrk, double, double)                                                     \
  LAPWING_VENDOR_TYPE(X, C, c, ungqr, unmqr, herk, Complex32, float)                                                   \
  LAPWING_VENDOR_TYPE(X, Z, z, ungqr, unmqr, herk, Complex64, double)                                                  \
  X(compiler, rtc_version, "nvrtcVersion", int, (int*, int*))                                                          \
  X(compiler, rtc_create, "nvrtcCreateProgram", int,                                                                   \
    (void**, const char*, const char*, int, const char* const*, const char* const*))                                   \
  X(compiler, rtc_compile, "nvrtcCompileProgram", int, (void*, int, const char* const*))                               \
  X(compiler, rtc_binary_size, "nvrtcGetCUBINSize", int, (void*, size_t*))                                             \
  X(compiler, rtc_binary, "nvrtcGetCUBIN", int, (void*, char*))                                                        \
  X(compiler, rtc_log_size, "nvrtcGetProgramLogSize", int, (void*, size_t*))                                           \
  X(compiler, rtc_log, "nvrtcGetProgramLog", int, (void*, char*))                                                      \
  X(compiler, rtc_destroy, "nvrtcDestroyProgram", int, (void**))

namespace lapwing::vendor {

// many_solver, eig_solver: routines that older solvers lack; newest_solver: the newest copy of the solver on this machine, for the routines
// that are faster there; dense_solver and dense_blas: routines that only systems and decompositions need
enum Library { driver, solver, many_solver, eig_solver, newest_solver, dense_solver, blas, dense_blas, compiler, N_LIBRARIES };

struct Table {
#define LAPWING_MEMBER(library, name, symbol, result, arguments) result(*name) arguments = nullptr;
  LAPWING_VENDOR(LAPWING_MEMBER)
#undef LAPWING_MEMBER
};

// One of the four routines of a kind, by dtype; to the processor their pointers are all the same.
template <class Call, class S, class D, class C, class Z>
Call of_dtype(int dtype, S s, D d, C c, Z z) {
  const Call calls[] = {reinterpret_cast<Call>(s), reinterpret_cast<Call>(d), reinterpret_cast<Call>(c), reinterpret_cast<Call>(z)};
  return calls[dtype];
}

// The values of the vendor's enums that we pass.
constexpr int FILL_LOWER = 0, FILL_UPPER = 1;
constexpr int VALUES_ONLY = 0, VALUES_AND_VECTORS = 1;
constexpr int RANGE_BY_INDEX = 1002;
constexpr int SIDE_LEFT = 0, SIDE_RIGHT = 1, DIAGONAL_READ = 0, DIAGONAL_UNIT = 1;
constexpr int OP_NONE = 0, OP_TRANSPOSE = 1, OP_ADJOINT = 2, COMPUTE_32 = 68, COMPUTE_64 = 70, COMPUTE_TF32 = 77, GEMM_DEFAULT = -1;
constexpr int REAL_32 = 0, REAL_64 = 1, COMPLEX_32 = 4, COMPLEX_64 = 5;
constexpr int ATTRIBUTE_MULTIPROCESSORS = 16, ATTRIBUTE_MAJOR = 75, ATTRIBUTE_MINOR = 76, ATTRIBUTE_SHARED_OPTIN = 97;
constexpr int FUNCTION_MAX_SHARED = 8;
constexpr int CAPTURE_RELAXED = 2;

constexpr int OPTION_SYEVD = 4, ALGORITHM_ANY = 0, ALGORITHM_TWO_STAGES = 2;

// nullptr if every symbol of the library was found, else why not. The first call initialises the driver.
const char* missing(Library library);
const Table& table();

// Whether the driver that was found is AMD's.
bool is_amd();

// The run-time compiler for an architecture ("sm_90", "gfx90a"), which need not be that of a GPU here. nullptr leaves a reason.
const Table* compiler_for(const std::string& architecture, std::string* reason);

// While one lives, every library is there for this thread, does nothing, and reports success: gpu/dry.h.
class Pretence {
 public:
  Pretence();
  ~Pretence();
  Pretence(const Pretence&) = delete;
  unsigned largest_shared() const;  // the most shared memory, in bytes, that a launch asked for
};

// Folders to look in before and after the loader's own search, separated by ':'. `beside` are folders with copies of the solver
// that are used only where they are newer and faster.
void set_paths(const char* first, const char* last, const char* beside);
// The same for AMD's libraries.
void set_amd_paths(const char* first, const char* last);

// The copies of the solver on this machine.
struct SolverCopy {
  std::string path;
  int version;          // 12305 for 12.3.5; 0: it cannot be loaded
  std::string problem;  // why it is not used as the newest copy; "" where it is
  bool ordinary;        // the copy of all other routines
};
std::vector<SolverCopy> solver_copies();
// Stops using the newest copy, for this reason.
void reject_newest(const char* reason);

}  // namespace lapwing::vendor
