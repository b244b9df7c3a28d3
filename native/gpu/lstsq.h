// Least squares on a GPU: matrix by matrix by QR if that proves the rank to be full, else by the SVD, for which the host
// waits for the device. 0, or 1 with a message in the frame.
#pragma once
#include "frame.h"
#include "gpu/cuda.h"
#include "gpu/rest.h"

namespace lapwing::cuda {

// The ranks of an LSTSQ frame, when the device has computed them
int read_ranks(Frame& frame, int32_t* rank);

// R of A, and Q^H b; or, for wide matrices, R of A^H, and b. Rows are `ld` elements apart, matrices `stride` elements. The states
// are those of A and of each column of b (qr_state.cuh).
struct Triangles {
  const void* r;
  int64_t r_ld, r_stride;
  const void* right;
  int64_t right_ld, right_stride;
  const int32_t *a_state, *b_state;
};

// The rank of each matrix of an LSTSQ frame, UNPROVEN if R does not prove it to be full, x and the residuals. For wide
// matrices Q remains to be applied to x.
int solve_by_triangles(Frame& frame, const Triangles& triangles);
int64_t triangles_shared(const Frame& frame);  // bytes of shared memory of a block

// x, residuals and rank of the matrices whose rank is UNPROVEN, in `block` of lstsq_svd_bytes(frame). If that is null, memory is
// allocated only if there are any. `doubtful`, if not null, is where the device has counted them: mostly there are none, and their
// ranks need not be read.
int64_t lstsq_svd_bytes(Frame& frame, const ChosenEngine& svd);
int lstsq_by_svd(Frame& frame, const ChosenEngine& svd, char* block, const int32_t* doubtful = nullptr);

// Whether one kernel has a block of threads, or some lanes of a warp, for each matrix.
bool lstsq_is_one_kernel(const Frame& frame, const Properties& gpu);

// In one kernel where a block of threads or less holds a matrix in its registers, else with the QR of blocked_qr.h.
int64_t blocked_lstsq_scratch(Frame& frame, const ChosenEngine& svd);
int blocked_lstsq(Frame& frame, const ChosenEngine& svd);

}  // namespace lapwing::cuda
