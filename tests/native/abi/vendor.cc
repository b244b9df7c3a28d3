// The declarations of native/gpu/vendor.h against the vendor's own headers. rows.h is made from LAPWING_VENDOR by the test: one
// ROW(our name, symbol) for each.
#include "gpu/vendor.h"

#include <cuda.h>
#include <cublas_v2.h>
#include <cusolverDn.h>
#include <nvrtc.h>

#include "same.h"

namespace ours = lapwing::vendor;

PAIR(ours::Complex32, cuComplex);
PAIR(ours::Complex64, cuDoubleComplex);

#define ROW(name, symbol) static_assert(Same<decltype(ours::Table::name), decltype(&symbol)>::value, #symbol);
#include "rows.h"
#undef ROW
#define ROW(name, symbol) +1
static_assert(sizeof(ours::Table) == sizeof(void*) * (0
#include "rows.h"
                                                      ),
              "rows.h has not every row of LAPWING_VENDOR");

#define VALUE(name, theirs) static_assert(ours::name == int(theirs), #name)
VALUE(FILL_LOWER, CUBLAS_FILL_MODE_LOWER);
VALUE(FILL_UPPER, CUBLAS_FILL_MODE_UPPER);
VALUE(VALUES_ONLY, CUSOLVER_EIG_MODE_NOVECTOR);
VALUE(VALUES_AND_VECTORS, CUSOLVER_EIG_MODE_VECTOR);
VALUE(RANGE_BY_INDEX, CUSOLVER_EIG_RANGE_I);
VALUE(SIDE_LEFT, CUBLAS_SIDE_LEFT);
VALUE(SIDE_RIGHT, CUBLAS_SIDE_RIGHT);
VALUE(DIAGONAL_READ, CUBLAS_DIAG_NON_UNIT);
VALUE(DIAGONAL_UNIT, CUBLAS_DIAG_UNIT);
VALUE(OP_NONE, CUBLAS_OP_N);
VALUE(OP_TRANSPOSE, CUBLAS_OP_T);
VALUE(OP_ADJOINT, CUBLAS_OP_C);
VALUE(COMPUTE_32, CUBLAS_COMPUTE_32F);
VALUE(COMPUTE_64, CUBLAS_COMPUTE_64F);
VALUE(OPTION_SYEVD, CUSOLVERDN_SYEVD);
VALUE(ALGORITHM_ANY, CUSOLVER_ALG_0);
VALUE(ALGORITHM_TWO_STAGES, CUSOLVER_ALG_2);
VALUE(COMPUTE_TF32, CUBLAS_COMPUTE_32F_FAST_TF32);
VALUE(GEMM_DEFAULT, CUBLAS_GEMM_DEFAULT);
VALUE(REAL_32, CUDA_R_32F);
VALUE(REAL_64, CUDA_R_64F);
VALUE(COMPLEX_32, CUDA_C_32F);
VALUE(COMPLEX_64, CUDA_C_64F);
VALUE(ATTRIBUTE_MULTIPROCESSORS, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
VALUE(ATTRIBUTE_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
VALUE(ATTRIBUTE_MINOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
VALUE(ATTRIBUTE_SHARED_OPTIN, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
VALUE(FUNCTION_MAX_SHARED, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
VALUE(CAPTURE_RELAXED, CU_STREAM_CAPTURE_MODE_RELAXED);

// the check itself: what must not pass
static_assert(!Same<int(int), int(long)>::value && !Same<int(int), int(int, int)>::value && !Same<int*, long*>::value);
static_assert(!Same<void*, int>::value && !Same<void*, CUuuid*>::value && Same<void*, CUcontext>::value);
