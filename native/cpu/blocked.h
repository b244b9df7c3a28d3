// Systems, inverses, determinants and factors of matrices of middle order on the CPU, one matrix after the other on each thread. See
// blocked_small.h.
#pragma once
#include "frame.h"

namespace lapwing {

// Largest order these kernels take.
constexpr int64_t BLOCKED_LARGEST = 512;

// Matrices `first` to `last` of a frame from TRIANGULAR to DET, on the calling thread.
template <class T>
void solve_blocked(const Frame& frame, int64_t first, int64_t last);

}  // namespace lapwing
