// A system in float64 or complex128 by a factor in float32 or complex64: Cholesky for POS, else LU with partial pivoting.
//
// The matrix is scaled by powers of two to entries around 1, factored in low precision, and the factor preconditions GMRES on
// the true residual. GMRES serves POS too, in place of CG: a handful of steps makes its orthogonalisation nothing beside the
// product with the matrix, it makes the residual itself smallest, and what it measures falls from step to step, so that a
// rate can be read from it.
//
// An answer that does not come from the full-precision engine satisfies for every column
//   ||b - A x|| <= eps / 4 ||A||_F ||x||
// by a fresh product with A, in the scaled norm and in that of A itself. The goal is eps / 10; more is taken only where a
// further cycle no longer helps. Full-precision Cholesky comes out between eps / 40 and eps / 7 of the same and LU between
// eps / 4 and 6 eps (n = 400 to 32768, conditions 1 to 1e15), the refined answer between eps / 60 and eps / 8.
// If that cannot be reached, or would take longer than the full solve, the full engine does the work: if the factorisation
// breaks down, with NaN or Inf, or if too many steps are needed, which the rate shows from the third on.
//
// On a GPU only positive definite matrices are tried, and the host waits for a few numbers in every step.
#pragma once
#include "frame.h"

namespace lapwing::mixed {

// Whether the method supports this frame: nullptr, or why not. Libraries are not checked.
const char* refuses(const Frame& frame);
bool pays(const Frame& frame);

// A SOLVE frame of F64 or C128. If low precision is not enough for one matrix or more, frame.engine becomes that of `full`.
int solve(Frame& frame, const Direct& full);

// Memory in addition to that of the full engine.
int64_t scratch_bytes(const Frame& frame);
int64_t host_bytes(const Frame& frame);

}  // namespace lapwing::mixed
