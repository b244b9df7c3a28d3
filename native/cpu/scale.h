// Matrices near the ends of their type's range, where products of two elements are no numbers of that type any more.
#pragma once
#include "frame.h"

namespace lapwing {

// Whether a look at a few elements of the matrices says that some may be extreme. Ordinary matrices cost no pass.
bool may_be_extreme(const Frame& frame);

// run(frame) for matrices and right-hand sides that are scaled by powers of two on the way in, the results on the way out.
int run_scaled(Frame& frame, int (*run)(Frame&));

}  // namespace lapwing
