// The largest singular triplets of a matrix, from the largest eigenvalues of its smaller Gram matrix (A^H A or A A^H).
//
// The Gram matrix is formed in double precision, also for single-precision matrices. Its eigenvectors E give the subspace; the
// SVD of A E (or A^H E) then gives singular values and vectors with the accuracy of a product with A, not with that of its
// square. The answer satisfies: ||A v - s u|| to a few eps ||A||, ||A^H u - s v|| <= n eps ||A|| by a fresh product, U
// and V orthonormal to a few eps. Where the Gram matrix cannot tell a wanted value from zero, or the residuals stay larger, the
// full decomposition does the work.
#pragma once
#include "frame.h"

namespace lapwing::krylov {

// The engines that do the parts of the work, on the frame's device.
struct SvdEngines {
  int (*eigh)(Frame&);              // the largest eigenvalues
  int (*thin_svd)(Frame&);          // of a tall matrix with few columns
  int (*full_svd)(Frame&);          // of the matrix itself
  int64_t (*eigh_bytes)(Frame&);    // their memory on the device of the frame; below 0: a message is in the frame
  int64_t (*thin_svd_bytes)(Frame&);
  int64_t (*full_svd_bytes)(Frame&);
};

// nullptr, or why the iteration cannot take the frame
const char* svd_refuses(const Frame& frame);

// SVD_PART
int svd(Frame& frame, const SvdEngines& engines);
// The same by the full decomposition, from which the part is copied.
int svd_by_full(Frame& frame, const SvdEngines& engines);

// Memory that the two need on the device of the frame; below 0: a message is in the frame.
int64_t svd_bytes(Frame& frame, const SvdEngines& engines);
int64_t svd_by_full_bytes(Frame& frame, const SvdEngines& engines);

}  // namespace lapwing::krylov
