// Eigenvalues and eigenvectors of a batch of real symmetric tridiagonal matrices by divide and conquer, on the frame's stream.
// The host never waits, so that a call can be captured in a graph.
#pragma once
#include "frame.h"

namespace lapwing::cuda {

// The largest n that was tested.
constexpr int64_t DIVIDE_MOST = 16384;

// Whether matrices of order n are supported on a GPU that allows a block this much shared memory.
bool divide_fits(int64_t n, int32_t real_dtype, int64_t shared_per_block);

// Bytes of scratch that divide() needs.
int64_t divide_bytes(int64_t batch, int64_t n, int32_t real_dtype);

// w (batch x n): the eigenvalues in ascending order. z (batch x n x n): row i of a matrix is the eigenvector of w[i]. The
// diagonals d and e (batch x n, the last of e is not used) are overwritten. info of a matrix is set to 0, or to 1 if it is
// not finite or does not converge; its w and z are then NaN. shared_per_block: the limit of the GPU. 0, or 1 with a message in the
// frame.
int divide(Frame& frame, int64_t batch, int64_t n, int32_t real_dtype, void* d, void* e, void* w, void* z, void* scratch,
           int32_t* info, int64_t shared_per_block);

}  // namespace lapwing::cuda
