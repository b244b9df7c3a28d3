// SVD and SVDVALS of float32 and complex64 matrices by the eigenvectors of M^H M in double precision: its rounding errors are far
// below theirs even when squared. The host waits for the device.
#pragma once
#include "frame.h"
#include "gpu/rest.h"

namespace lapwing::cuda {

bool svd_gram_fits(const Frame& frame);  // whether it takes the dtype and the shape, and is faster than the vendor's SVD
int64_t svd_gram_scratch(Frame& frame, const ChosenEngine& engine);
int svd_by_gram(Frame& frame, const ChosenEngine& engine);

}  // namespace lapwing::cuda
