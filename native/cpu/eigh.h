// Eigenvalues and eigenvectors of many small symmetric and Hermitian matrices on the CPU, each in a lane of the vector
// registers. EIGH and EIGVALSH frames.
#pragma once
#include "frame.h"

namespace lapwing {

// Largest order these kernels take, and the one up to which they are used for vectors too: above that LAPACK is as fast.
constexpr int64_t EIGH_LARGEST = 416, EIGH_LARGEST_WITH_VECTORS = 224;

// Only the triangle named by UPPER is read, and of its diagonal the real part; v may be a when all vectors are asked for.
// info is 0, or 1 when a matrix is not finite or did not converge; w and v of that matrix, and of no other, are then NaN. The
// same matrix gives the same bits wherever it stands in the batch, and the same values with and without vectors.
int eigh_batched(Frame& frame);

}  // namespace lapwing
