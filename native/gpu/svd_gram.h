// SVD by the eigenvectors of M^H M in double precision. The host waits for the device.
//
// For float32 and complex64 matrices, and their values alone: the rounding errors are far below theirs even when squared. For float64 and
// complex128, values alone too, vectors on both sides are corrected up to three times. That mends what the squares cost up to condition
// numbers of about 1e6; `other` decomposes the matrices beyond.
#pragma once
#include "frame.h"
#include "gpu/rest.h"

namespace lapwing::cuda {

bool svd_gram_fits(const Frame& frame);  // whether it takes the dtype and the shape, and is faster than the vendor's SVD
int64_t svd_gram_scratch(Frame& frame, const ChosenEngine& engine, const ChosenEngine& other);
int svd_by_gram(Frame& frame, const ChosenEngine& engine, const ChosenEngine& other);

}  // namespace lapwing::cuda
