// The second column of vendor.h: AMD's names, and how they fill each row of the table.
//
// HIP mirrors most of NVIDIA's driver, rocBLAS and rocSOLVER have the routines. Numbers of enums, the way workspaces are handed over
// and the width of integers differ: hip.cc translates, so that callers see one table. Rows that AMD's libraries cannot fill stay
// null, and their callers use another routine. Declarations are checked against AMD's headers in tests/native/abi.
#pragma once
#include <string>

#include "gpu/vendor.h"

// rocSOLVER and rocBLAS for one type: l is the letter; `orgqr`, `ormqr`, `syev` and `syrk` are what the libraries call them.
#define LAPWING_HIP_TYPE(X, l, orgqr, ormqr, syev, syrk, Element, Real)                                                 \
  X(solver, l##potrf, "rocsolver_" #l "potrf", int, (void*, int, int, Element*, int, int*))                             \
  X(solver, l##potrf_many, "rocsolver_" #l "potrf_strided_batched", int, (void*, int, int, Element*, int, int64_t, int*, int)) \
  X(solver, l##syevd, "rocsolver_" #l #syev "d", int, (void*, int, int, int, Element*, int, Real*, Real*, int*))        \
  X(many_solver, l##syevd_many, "rocsolver_" #l #syev "d_strided_batched", int,                                         \
    (void*, int, int, int, Element*, int, int64_t, Real*, int64_t, Real*, int64_t, int*, int))                          \
  X(dense_solver, l##getrf, "rocsolver_" #l "getrf", int, (void*, int, int, Element*, int, int*, int*))                 \
  X(dense_solver, l##geqrf, "rocsolver_" #l "geqrf", int, (void*, int, int, Element*, int, Element*))                   \
  X(dense_solver, l##orgqr, "rocsolver_" #l #orgqr, int, (void*, int, int, int, Element*, int, Element*))               \
  X(dense_solver, l##ormqr, "rocsolver_" #l #ormqr, int,                                                                \
    (void*, int, int, int, int, int, Element*, int, Element*, Element*, int))                                           \
  X(dense_solver, l##gesvd, "rocsolver_" #l "gesvd", int,                                                               \
    (void*, int, int, int, int, Element*, int, Real*, Element*, int, Element*, int, Real*, int, int*))                  \
  X(dense_blas, l##trsm, "rocblas_" #l "trsm", int,                                                                     \
    (void*, int, int, int, int, int, int, const Element*, const Element*, int, Element*, int))                          \
  X(dense_blas, l##syrk, "rocblas_" #l #syrk, int,                                                                      \
    (void*, int, int, int, int, const Real*, const Element*, int, const Real*, Element*, int))

// Routines that only newer versions have: with 64-bit sizes, for part of a spectrum, ...
#define LAPWING_HIP_NEWER_TYPE(X, l, syev, syrk, Element, Real)                                                         \
  X(solver, l##syevdx, "rocsolver_" #l #syev "dx", int,                                                                 \
    (void*, int, int, int, int, Element*, int, Real, Real, int, int, int*, Real*, Element*, int, int*))                 \
  X(dense_blas, l##trsm_64, "rocblas_" #l "trsm_64", int,                                                               \
    (void*, int, int, int, int, int64_t, int64_t, const Element*, const Element*, int64_t, Element*, int64_t))          \
  X(dense_blas, l##trmm_64, "rocblas_" #l "trmm_64", int,                                                               \
    (void*, int, int, int, int, int64_t, int64_t, const Element*, const Element*, int64_t, const Element*, int64_t,     \
     Element*, int64_t))                                                                                                \
  X(dense_blas, l##trmm, "rocblas_" #l "trmm", int,                                                                     \
    (void*, int, int, int, int, int, int, const Element*, const Element*, int, const Element*, int, Element*, int))     \
  X(dense_blas, l##syrk_64, "rocblas_" #l #syrk "_64", int,                                                             \
    (void*, int, int, int64_t, int64_t, const Real*, const Element*, int64_t, const Real*, Element*, int64_t))

#define LAPWING_HIP(X)                                                                                                  \
  X(driver, init, "hipInit", int, (unsigned))                                                                           \
  X(driver, driver_version, "hipDriverGetVersion", int, (int*))                                                         \
  X(driver, device_count, "hipGetDeviceCount", int, (int*))                                                             \
  X(driver, device_get, "hipDeviceGet", int, (int*, int))                                                               \
  X(driver, device_name, "hipDeviceGetName", int, (char*, int, int))                                                    \
  X(driver, device_attribute, "hipDeviceGetAttribute", int, (int*, int, int))                                           \
  X(driver, device_memory, "hipDeviceTotalMem", int, (size_t*, int))                                                    \
  X(driver, set_device, "hipSetDevice", int, (int))                                                                     \
  X(driver, get_device, "hipGetDevice", int, (int*))                                                                    \
  X(driver, capture_mode, "hipThreadExchangeStreamCaptureMode", int, (int*))                                            \
  X(driver, module_load, "hipModuleLoadData", int, (void**, const void*))                                               \
  X(driver, module_function, "hipModuleGetFunction", int, (void**, void*, const char*))                                 \
  X(driver, launch, "hipModuleLaunchKernel", int,                                                                       \
    (void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**))               \
  X(driver, fill, "hipMemsetAsync", int, (void*, int, size_t, void*))                                                   \
  X(driver, copy, "hipMemcpyDtoDAsync", int, (void*, void*, size_t, void*))                                             \
  X(driver, copy_rows, "hipMemcpy2DAsync", int, (void*, size_t, const void*, size_t, size_t, size_t, int, void*))       \
  X(driver, memory_info, "hipMemGetInfo", int, (size_t*, size_t*))                                                      \
  X(driver, copy_to_host, "hipMemcpyDtoHAsync", int, (void*, void*, size_t, void*))                                     \
  X(driver, copy_to_device, "hipMemcpyHtoDAsync", int, (void*, void*, size_t, void*))                                   \
  X(driver, synchronize, "hipStreamSynchronize", int, (void*))                                                          \
  X(driver, error_text, "hipGetErrorString", const char*, (int))                                                        \
  X(blas, blas_create, "rocblas_create_handle", int, (void**))                                                          \
  X(blas, blas_stream, "rocblas_set_stream", int, (void*, void*))                                                       \
  X(blas, blas_version, "rocblas_get_version_string", int, (char*, size_t))                                             \
  X(blas, start_query, "rocblas_start_device_memory_size_query", int, (void*))                                          \
  X(blas, stop_query, "rocblas_stop_device_memory_size_query", int, (void*, size_t*))                                   \
  X(blas, set_workspace, "rocblas_set_workspace", int, (void*, void*, size_t))                                          \
  X(blas, blas_gemm, "rocblas_gemm_ex", int,                                                                            \
    (void*, int, int, int, int, int, const void*, const void*, int, int, const void*, int, int, const void*,            \
     const void*, int, int, void*, int, int, int, int, int32_t, uint32_t))                                              \
  X(dense_blas, blas_gemm_many, "rocblas_gemm_strided_batched_ex", int,                                                 \
    (void*, int, int, int, int, int, const void*, const void*, int, int, int64_t, const void*, int, int, int64_t,       \
     const void*, const void*, int, int, int64_t, void*, int, int, int64_t, int, int, int, int32_t, uint32_t))          \
  X(solver, solver_version, "rocsolver_get_version_string", int, (char*, size_t))                                       \
  LAPWING_HIP_TYPE(X, s, orgqr, ormqr, syev, syrk, float, float)                                                        \
  LAPWING_HIP_TYPE(X, d, orgqr, ormqr, syev, syrk, double, double)                                                      \
  LAPWING_HIP_TYPE(X, c, ungqr, unmqr, heev, herk, Complex32, float)                                                    \
  LAPWING_HIP_TYPE(X, z, ungqr, unmqr, heev, herk, Complex64, double)                                                   \
  X(compiler, rtc_create, "hiprtcCreateProgram", int,                                                                   \
    (void**, const char*, const char*, int, const char**, const char**))                                                \
  X(compiler, rtc_compile, "hiprtcCompileProgram", int, (void*, int, const char**))                                     \
  X(compiler, rtc_binary_size, "hiprtcGetCodeSize", int, (void*, size_t*))                                              \
  X(compiler, rtc_binary, "hiprtcGetCode", int, (void*, char*))                                                         \
  X(compiler, rtc_log_size, "hiprtcGetProgramLogSize", int, (void*, size_t*))                                           \
  X(compiler, rtc_log, "hiprtcGetProgramLog", int, (void*, char*))                                                      \
  X(compiler, rtc_destroy, "hiprtcDestroyProgram", int, (void**))

// Rows that may be missing. hipGetDeviceProperties fills a structure that differs from version to version: see architecture_of().
#define LAPWING_HIP_NEWER(X)                                                                                            \
  X(driver, stream_device, "hipStreamGetDevice", int, (void*, int*))                                                    \
  X(driver, launch_together, "hipModuleLaunchCooperativeKernel", int,                                                   \
    (void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**))                       \
  X(driver, device_properties, "hipGetDevicePropertiesR0600", int, (void*, int))                                        \
  X(driver, old_device_properties, "hipGetDeviceProperties", int, (void*, int))                                         \
  X(blas, blas_gemm_64, "rocblas_gemm_ex_64", int,                                                                      \
    (void*, int, int, int64_t, int64_t, int64_t, const void*, const void*, int, int64_t, const void*, int, int64_t,     \
     const void*, const void*, int, int64_t, void*, int, int64_t, int, int, int32_t, uint32_t))                         \
  X(dense_blas, blas_gemm_many_64, "rocblas_gemm_strided_batched_ex_64", int,                                           \
    (void*, int, int, int64_t, int64_t, int64_t, const void*, const void*, int, int64_t, int64_t, const void*, int,     \
     int64_t, int64_t, const void*, const void*, int, int64_t, int64_t, void*, int, int64_t, int64_t, int64_t, int,     \
     int, int32_t, uint32_t))                                                                                           \
  LAPWING_HIP_NEWER_TYPE(X, s, syev, syrk, float, float)                                                                \
  LAPWING_HIP_NEWER_TYPE(X, d, syev, syrk, double, double)                                                              \
  LAPWING_HIP_NEWER_TYPE(X, c, heev, herk, Complex32, float)                                                            \
  LAPWING_HIP_NEWER_TYPE(X, z, heev, herk, Complex64, double)

namespace lapwing::vendor::hip {

struct Names {
#define LAPWING_MEMBER(library, name, symbol, result, arguments) result(*name) arguments = nullptr;
  LAPWING_HIP(LAPWING_MEMBER)
  LAPWING_HIP_NEWER(LAPWING_MEMBER)
#undef LAPWING_MEMBER
};

// The values of AMD's enums that hip.cc passes.
constexpr int OP_NONE = 111, OP_TRANSPOSE = 112, OP_ADJOINT = 113, FILL_UPPER = 121, FILL_LOWER = 122;
constexpr int DIAGONAL_READ = 131, DIAGONAL_UNIT = 132, SIDE_LEFT = 141, SIDE_RIGHT = 142;
constexpr int REAL_32 = 151, REAL_64 = 152, COMPLEX_32 = 154, COMPLEX_64 = 155, GEMM_STANDARD = 0;
constexpr int VECTORS_ALL = 191, VECTORS_SINGULAR = 192, VECTORS_NONE = 194, OUT_OF_PLACE = 201;
constexpr int EIGENVECTORS = 211, NO_EIGENVECTORS = 213, RANGE_BY_INDEX = 233;
constexpr int STATUS_SIZE = 4, STATUS_SIZE_INCREASED = 9, STATUS_SIZE_UNCHANGED = 10;
constexpr int ATTRIBUTE_COOPERATIVE = 10, ATTRIBUTE_MULTIPROCESSORS = 63, ATTRIBUTE_SHARED = 74, ATTRIBUTE_LANES = 87;
constexpr int COPY_ON_DEVICE = 3;

// Fills the rows of `library` from an opened file of it. "", or which function it lacks.
std::string fill(Library library, void* handle, Table* table);

// Cholesky factors, in the lower triangle, of `count` matrices of order n that follow each other; NVIDIA's table has no row for them.
int potrf_many_size(void* handle, int64_t n, int type, int64_t count, size_t* device);
int potrf_many(void* handle, int64_t n, int type, void* a, int64_t count, void* device, size_t bytes, int* info);

// Properties of a device without a row in NVIDIA's table.
int lanes_of(int device);                      // of a wave: 64 or 32
bool has_cooperative_launch(int device);
std::string architecture_of(int device);       // "gfx90a"; "" where it is not known
std::string version_of(Library library);       // in the library's own words; "" where it was not found
int lanes_of(const std::string& architecture); // of a GPU that need not be here

}  // namespace lapwing::vendor::hip
