// A few eigenpairs at one end of the spectrum of a large Hermitian matrix: thick-restart block Krylov with full
// reorthogonalisation, one algorithm for CPU and CUDA.
//
// A converged answer satisfies:
//   each pair   ||A v - w v|| <= n eps ||A||, or the caller's tolerance, by a fresh product with A; vectors orthonormal to a
//               few eps;
//   the set     a fresh random block Z of `block` columns, orthogonal to the found vectors, is taken through q >= 2 block
//               Krylov steps (a sixth of the solve's own) and shows no Ritz value beyond the cut, else the solve goes on
//               with it. So the only way to miss an eigenvalue is that it stays below the cut in that space as well. Let it
//               lie gamma (cut - other end) beyond the cut. By the Chebyshev bound on the Rayleigh quotient it is seen
//               whenever the squared component of Z along its eigenvector, a chi^2 with `block` degrees of freedom, exceeds
//               s = n / (gamma T_q(1 + 2 gamma)^2), so it is missed with a probability of at most (e s / block)^(block / 2).
//               n = 16384, block 16, q = 10: P < 2e-3 for gamma = 0.1, P < 1e-12 for 0.15. A value closer to the cut
//               relies on the solve itself, whose own random start makes the same argument with all its steps.
//   same bits   the start is a fixed sequence, and no decision looks at a clock.
#pragma once
#include "frame.h"

namespace lapwing::krylov {

// Y <- A X on the frame's device and stream. `columns` vectors of n elements, each contiguous, one after another.
// Nonzero stops the solve.
struct Product {
  void* self = nullptr;
  int (*apply)(void* self, const void* x, void* y, int64_t columns) = nullptr;
};

struct Outcome {
  bool converged = false;        // of every matrix of the batch
  bool repeated_at_cut = false;  // the last value inside equals the first one outside to 10 n eps ||A||, in one of them
  int64_t products = 0;          // columns multiplied by A
  int restarts = 0;
  double residual = 0;           // the worst ||A v - w v|| / ||A||
};

// The part is the smallest or the largest eigenvalues.
bool at_an_end(const Frame& frame);

// The caller's bound on ||A v - w v|| / ||A||, used instead of n eps; 0: there is none.
double tolerance_of(const Frame& frame);

// EIGH or EIGVALSH of such a part. If the iteration would take longer than the direct routine, or n is too small for its
// vectors, that routine does the work, and frame.engine becomes its own.
int eigh(Frame& frame, const Direct& direct);

// The same for a matrix that is only given by its product; buffer[0] is not read, batch is 1. There is no direct routine to
// fall back to, so it continues as long as the residual falls.
int eigh_operator(Frame& frame, const Product& a, Outcome* outcome);

// The memory of one call with a matrix or an operator, whatever the batch: on the device in one request to frame.scratch (0 on the CPU), and on the host.
size_t scratch_bytes(const Frame& frame);
size_t host_bytes(const Frame& frame);

}  // namespace lapwing::krylov
