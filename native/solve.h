// Which engine solves, inverts or decomposes, and what it costs. Frames from TRIANGULAR to SVDVALS.
#pragma once
#include "cuda.h"
#include "frame.h"

namespace lapwing {

inline bool is_solve(int32_t op) { return op >= TRIANGULAR && op <= SVDVALS; }

int solve_on_cpu(Frame& frame);
int solve_on_gpu(Frame& frame, const cuda::Properties& gpu);
int64_t solve_scratch(Frame& frame, const cuda::Properties& gpu);  // device bytes; -1 leaves a message in the frame
int64_t solve_host_bytes(Frame& frame);                            // about

}  // namespace lapwing
