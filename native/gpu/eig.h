// Our own GPU kernel for the eigenvalues, eigenvectors and Schur forms of many general matrices. It only queues work on the
// frame's stream.
#pragma once
#include <cstddef>

#include "gpu/cuda.h"
#include "frame.h"

namespace lapwing::cuda {

constexpr int64_t EIG_LARGEST = 128;  // the largest n that the kernel takes

// EIG, EIGVALS and SCHUR. 0, or 1 with a message in the frame.
int eig_batched(Frame& frame);

// Bytes that eig_batched asks the frame's scratch for.
size_t eig_batched_scratch(const Frame& frame, const Properties& device);

// Whether the kernel can do this n on this GPU.
bool eig_fits(const Frame& frame, const Properties& device);

}  // namespace lapwing::cuda
