// Our own GPU kernels for the eigenvalues and eigenvectors of many Hermitian matrices. They only queue work on the frame's
// stream.
#pragma once
#include <cstddef>

#include "gpu/cuda.h"
#include "frame.h"

namespace lapwing::cuda {

// The largest n that the kernels take.
constexpr int64_t EIGH_LARGEST = 16384;

// The largest n for which they are chosen. It depends on the copy of cuSOLVER that would do the work instead.
int64_t eigh_chosen(const Frame& frame);

// Whether it goes by divide and conquer, or bisection, with batched products, and not by rotations.
bool eigh_is_reduced(const Frame& frame, const Properties& device);

// EIGH and EIGVALSH. 0, or 1 with a message in the frame.
int eigh_batched(Frame& frame);

// Bytes that eigh_batched asks the frame's scratch for.
size_t eigh_batched_scratch(const Frame& frame, const Properties& device);

// Whether the kernels can do this n on this GPU.
bool eigh_fits(const Frame& frame, const Properties& device);

// Whether they use batched products of the vendor's BLAS in between.
bool eigh_needs_products(const Frame& frame, const Properties& device);

}  // namespace lapwing::cuda
