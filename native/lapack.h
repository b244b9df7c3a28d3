// LAPACK by injected pointers: no BLAS is linked. NumPy's own OpenBLAS or SciPy's capsules supply the routines.
#pragma once
#include "frame.h"

namespace lapwing::lapack {

// herk stands for syrk too, the same product for real matrices; so do heevd and heevr for syevd and syevr
enum Name { POTRF, TRSM, HERK, GEMM, HEEVD, HEEVR, GETRF, N_NAMES };
struct Routine {
  void* address = nullptr;
  int width = 0;  // size of its integers, 4 or 8
};
extern Routine routine[N_NAMES][N_DTYPES];
extern const char* const ROUTINES[N_NAMES * N_DTYPES];

// Routine "spotrf", "dpotrf", "strsm", ... at `address`. false: not a name we use.
bool bind(const char* name, void* address, int width);

// Above this order a matrix is factored block by block, each at most so large.
void set_block(int64_t order);

int cholesky(Frame& frame);
int eigh(Frame& frame);         // EIGH and EIGVALSH
int solve(Frame& frame);        // TRIANGULAR to SVDVALS

// Host memory that they will take, in bytes.
int64_t eigh_host_bytes(const Frame& frame);
int64_t solve_host_bytes(const Frame& frame);

}  // namespace lapwing::lapack
