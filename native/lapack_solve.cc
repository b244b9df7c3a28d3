// Systems, inverses and decompositions by LAPACK, one matrix after the other, with the library's own threads.
#include "lapack.h"

namespace lapwing::lapack {

int solve(Frame& frame) { return fail(frame, "engine lapack cannot take this"); }

int64_t solve_host_bytes(const Frame&) { return 0; }

}  // namespace lapwing::lapack
