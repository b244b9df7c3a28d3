// Singular values and vectors of many small matrices at once, each in a lane of the vector registers. See svd_small.h.
#pragma once
#include "frame.h"

namespace lapwing {

// The largest shorter and longer side of the matrices.
constexpr int64_t SVD_LARGEST = 32, SVD_LONGEST = 128;

bool svd_fits(const Frame& frame);  // thin, or square, and small
bool svd_pays(const Frame& frame);
int svd_batched(Frame& frame);

}  // namespace lapwing
