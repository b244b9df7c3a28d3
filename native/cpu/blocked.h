// Systems, inverses, determinants and factors of matrices of middle order on the CPU, one matrix after the other on each thread. See
// blocked_small.h.
#pragma once
#include "frame.h"

namespace lapwing {

// Largest order these kernels take.
constexpr int64_t BLOCKED_LARGEST = 512;

// Real triangles with one right-hand side each are solved several at once up to this order: one alone spends its time waiting for
// its sums. Two threads of Zen 5 (2026-11-18), us with and without, float64: 300 of n = 33 33 and 50, 100 of 64 34 and 41, 20 of 128
// 20 and 21, 12 of 176 23 and 22; one of 64 3.0 and 1.6. float32: 12 of 176 15 and 19, 8 of 256 27 and 27.
constexpr int64_t TOGETHER_LARGEST = 128, TOGETHER_LARGEST_FLOAT32 = 192, TOGETHER_LEAST = 4;
constexpr int64_t TOGETHER = 8;  // triangles at once, or a part of that

inline bool triangles_together(const Frame& frame) {
  const int64_t largest = frame.dtype == F32 ? TOGETHER_LARGEST_FLOAT32 : frame.dtype == F64 ? TOGETHER_LARGEST : 0;
  return frame.op == TRIANGULAR && frame.size[2] == 1 && !(frame.flags & ADJOINT) && frame.size[1] <= largest &&
         (frame.size[0] >= TOGETHER_LEAST || frame.named);
}

// Matrices `first` to `last` of a frame from TRIANGULAR to DET, on the calling thread.
template <class T>
void solve_blocked(const Frame& frame, int64_t first, int64_t last);

}  // namespace lapwing
