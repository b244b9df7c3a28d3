// Tall and narrow matrices: QR (c = n), thin SVD and singular values in a few passes over the rows, by Cholesky QR. The small
// matrices live on the host in double precision; only tall_pass.h touches the rows.
//
//   G <- X^H X,  R^H R = G (+ shift I),  X <- X R^-1,   until G is close to the identity; A = X (the last R ... the first R)
//
// The columns are scaled to length one first, so that only the angles between them count. If G is not safely definite a
// shift is added, and noise of a few units in the last place to X: a perturbation that the error bound allows, and which
// gives columns that depend on each other, exactly or nearly, a direction of their own.
#pragma once
#include "frame.h"

namespace lapwing {

const char* tall_refuses(const Frame& frame);  // nullptr, or why not; libraries are not asked for
bool tall_pays(const Frame& frame);

// A matrix for which full orthogonality is not reached, also one with NaN or Inf, goes to `direct`, and frame.engine becomes
// that of the direct routine. On a GPU the host waits for each Gram matrix: how many passes there will be depends on them.
int tall(Frame& frame, const Direct& direct);

int64_t tall_scratch(const Frame& frame);     // device bytes
int64_t tall_shared(const Frame& frame);      // bytes of shared memory of a block on a GPU
int64_t tall_host_bytes(const Frame& frame);  // about

}  // namespace lapwing
