// Eigenvalues, eigenvectors and Schur forms of many small general matrices on the CPU, each in a lane of the vector registers.
// EIG, EIGVALS and SCHUR frames.
#pragma once
#include "frame.h"

namespace lapwing {

constexpr int64_t EIG_LARGEST = 64;

// A matrix whose iterations do not converge here is solved by LAPACK. The same matrix gives the same bits wherever it stands in the
// batch, and the same eigenvalues with and without vectors.
int eig_batched(Frame& frame);

}  // namespace lapwing
