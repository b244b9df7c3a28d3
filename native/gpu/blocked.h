// Batches of systems too large for the shared memory of one block of threads: LU, solve, inverse and determinants by blocks of
// columns, with the vendor's products. Kernels in src/lapwing/kernels/blocked*.cu.
#pragma once
#include "frame.h"
#include "gpu/cuda.h"

namespace lapwing::cuda {

bool blocked_fits(const Frame& frame, const Properties& gpu);
constexpr int64_t BLOCKED_LARGEST = 4096;  // order of a matrix

// Bytes of device memory; a batch that needs more than that is solved in several parts.
size_t blocked_scratch(const Frame& frame);

// Queues the work on the frame's stream. 0, or 1 with a message in the frame.
int blocked(Frame& frame);

}  // namespace lapwing::cuda
