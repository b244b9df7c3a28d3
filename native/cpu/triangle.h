// Small things done to a triangle of many matrices on the CPU. FINITE and HERMITIAN frames.
#pragma once
#include "frame.h"

namespace lapwing {

// status[m] <- 1 when every element of the named triangle is finite, else 0
int finite(Frame& frame);

// The whole Hermitian matrix from the named triangle, or with the flag SYMMETRIC the symmetric one
int hermitian(Frame& frame);

}  // namespace lapwing
