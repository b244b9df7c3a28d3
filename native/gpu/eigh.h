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

// From this order on divide and conquer and batched products are faster than rotations. H200, 2026-11-16, float, ms, with vectors:
// 40 of n = 176 1.0 and 1.9, 40 of 352 2.8 and 6.6, 640 of 512 42 and 118.
constexpr int64_t EIGH_REDUCED_FROM = 150;

// EIGH and EIGVALSH. 0, or 1 with a message in the frame.
int eigh_batched(Frame& frame);

// Bytes that eigh_batched asks the frame's scratch for.
size_t eigh_batched_scratch(const Frame& frame, const Properties& device);

// Whether the kernels can do this n on this GPU.
bool eigh_fits(const Frame& frame, const Properties& device);

// Whether they use batched products of the vendor's BLAS in between.
bool eigh_needs_products(const Frame& frame, const Properties& device);

}  // namespace lapwing::cuda
