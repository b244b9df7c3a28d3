// Singular values and vectors of many small matrices at once on a GPU. Kernel in src/lapwing/kernels/svd.cu.
#pragma once
#include "gpu/cuda.h"
#include "frame.h"

namespace lapwing::cuda {

bool svd_fits(const Frame& frame);  // whether svd_batched takes it
int svd_batched(Frame& frame);

}  // namespace lapwing::cuda
