// Eigenvalues of general matrices and Schur forms by LAPACK. EIG, EIGVALS and SCHUR frames.
#pragma once
#include "frame.h"

namespace lapwing::lapack {

int eig(Frame& frame);
int64_t eig_host_bytes(const Frame& frame);

}  // namespace lapwing::lapack
