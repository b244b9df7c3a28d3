// Many small systems, inverses and factorisations at once, each in a lane of the vector registers. See solve_small.h.
#pragma once
#include "frame.h"

namespace lapwing {

// Largest order these kernels take.
constexpr int64_t SOLVE_LARGEST = 64;
// Right-hand sides held in lanes at a time.
constexpr int64_t SOLVE_COLUMNS = 32;
// Bytes of an array that are fetched ahead; more would push out what is worked on.
constexpr int64_t FETCHED = 16384;

// Frames from TRIANGULAR to SVDVALS.
bool solve_fits(const Frame& frame);
bool solve_pays(const Frame& frame);  // whether the batch is worth its vectors
int solve_batched(Frame& frame);

}  // namespace lapwing
