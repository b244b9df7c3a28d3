// cuSOLVER's 64-bit interface, for one large matrix after the other.
#pragma once
#include "frame.h"

namespace lapwing::cusolver {

int cholesky(Frame& frame);
int64_t cholesky_scratch(Frame& frame);   // -1 leaves a message in the frame

}  // namespace lapwing::cusolver
