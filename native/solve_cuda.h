// Many small systems, inverses and factorisations at once on a GPU. Kernels in src/lapwing/cuda/solve*.cu.
#pragma once
#include "cuda.h"
#include "frame.h"

namespace lapwing::cuda {

bool solve_fits(const Frame& frame, const Properties& gpu);  // whether solve_batched takes it
int solve_batched(Frame& frame);
size_t solve_batched_scratch(const Frame& frame, const Properties& gpu);

}  // namespace lapwing::cuda
