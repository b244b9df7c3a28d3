// LAPACK by injected pointers: no BLAS is linked. NumPy's own OpenBLAS or SciPy's capsules supply the routines.
#pragma once
#include "frame.h"

namespace lapwing::lapack {

// Routine "spotrf", "dpotrf", "strsm", ... at `address`; `width` is the size of its integers, 4 or 8. false: not a name we use.
bool bind(const char* name, void* address, int width);
extern const char* const ROUTINES[20];

// Above this order a matrix is factored block by block, each at most so large.
void set_block(int64_t order);
bool has(Op op, Dtype dtype);

int cholesky(Frame& frame);

}  // namespace lapwing::lapack
