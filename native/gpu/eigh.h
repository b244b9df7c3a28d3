// Our own GPU kernels for the eigenvalues and eigenvectors of many Hermitian matrices. They only queue work on the frame's
// stream.
#pragma once
#include <cstddef>

#include "gpu/cuda.h"
#include "frame.h"

namespace lapwing::cuda {

// The largest n that the kernels take.
constexpr int64_t EIGH_LARGEST = 16384;

// The largest n, by dtype, for which they are chosen, with vectors and for values alone. H200, 2026-11-16, ms with vectors, against
// cuSOLVER 12.0.4 (12.3.5): float32 n = 2048 10.9 / 24.8, 4096 42 / 89 (80), 8192 199 / 480 (316), 16384 1340 / 2029 (1446); float64 2048
// 16.5 / 27.1, 4096 61 / 109 (105), 8192 331 / 549 (401), 16384 2263 / 3190 (1996); complex64 4096 74 / 120; complex128 2048 31 / 37, 4096
// 150 / 184. Values alone: float32 8192 163 / 433 (193), float64 4096 57 / 100 (92), 8192 298 / 496 (214).
constexpr int64_t EIGH_CHOSEN[] = {16384, 8192, 4096, 4096}, EIGH_CHOSEN_VALUES[] = {8192, 5120, 4096, 4096};

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
