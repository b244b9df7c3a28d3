// The declarations of native/gpu/hip.h against AMD's own headers. rows.h is made from LAPWING_HIP and LAPWING_HIP_NEWER by the test: one
// ROW(our name, symbol) for each function that the installed version declares.
#include "gpu/hip.h"

#define __HIP_PLATFORM_AMD__ 1
#include <hip/hip_runtime_api.h>
#include <hip/hiprtc.h>
#ifdef WITH_ROCSOLVER
#include <rocblas/rocblas.h>
#include <rocsolver/rocsolver.h>
#endif

#include "same.h"

namespace ours = lapwing::vendor::hip;

#ifdef WITH_ROCSOLVER
PAIR(lapwing::vendor::Complex32, rocblas_float_complex);
PAIR(lapwing::vendor::Complex64, rocblas_double_complex);
#endif

#define ROW(name, symbol) static_assert(Same<decltype(ours::Names::name), decltype(&symbol)>::value, #symbol);
#include "rows.h"

#define VALUE(name, theirs) static_assert(ours::name == int(theirs), #name)
VALUE(ATTRIBUTE_COOPERATIVE, hipDeviceAttributeCooperativeLaunch);
VALUE(ATTRIBUTE_MULTIPROCESSORS, hipDeviceAttributeMultiprocessorCount);
VALUE(ATTRIBUTE_SHARED, hipDeviceAttributeMaxSharedMemoryPerBlock);
VALUE(ATTRIBUTE_LANES, hipDeviceAttributeWarpSize);
VALUE(COPY_ON_DEVICE, hipMemcpyDeviceToDevice);
static_assert(lapwing::vendor::CAPTURE_RELAXED == int(hipStreamCaptureModeRelaxed));
#ifdef WITH_ROCSOLVER
VALUE(OP_NONE, rocblas_operation_none);
VALUE(OP_TRANSPOSE, rocblas_operation_transpose);
VALUE(OP_ADJOINT, rocblas_operation_conjugate_transpose);
VALUE(FILL_UPPER, rocblas_fill_upper);
VALUE(FILL_LOWER, rocblas_fill_lower);
VALUE(DIAGONAL_READ, rocblas_diagonal_non_unit);
VALUE(DIAGONAL_UNIT, rocblas_diagonal_unit);
VALUE(SIDE_LEFT, rocblas_side_left);
VALUE(SIDE_RIGHT, rocblas_side_right);
VALUE(REAL_32, rocblas_datatype_f32_r);
VALUE(REAL_64, rocblas_datatype_f64_r);
VALUE(COMPLEX_32, rocblas_datatype_f32_c);
VALUE(COMPLEX_64, rocblas_datatype_f64_c);
VALUE(GEMM_STANDARD, rocblas_gemm_algo_standard);
VALUE(VECTORS_ALL, rocblas_svect_all);
VALUE(VECTORS_SINGULAR, rocblas_svect_singular);
VALUE(VECTORS_NONE, rocblas_svect_none);
VALUE(OUT_OF_PLACE, rocblas_outofplace);
VALUE(EIGENVECTORS, rocblas_evect_original);
VALUE(NO_EIGENVECTORS, rocblas_evect_none);
#ifdef WITH_PART
VALUE(RANGE_BY_INDEX, rocblas_erange_index);
#endif
VALUE(STATUS_SIZE, rocblas_status_invalid_size);
VALUE(STATUS_SIZE_INCREASED, rocblas_status_size_increased);
VALUE(STATUS_SIZE_UNCHANGED, rocblas_status_size_unchanged);
#endif
