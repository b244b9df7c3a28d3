// Runs an operation on matrices in GPU memory on the CPU: the matrices are copied to the host, and the results back.
#pragma once
#include "frame.h"

namespace lapwing::cuda {

// `run` gets a CPU frame of the same operation. Waits for the GPU.
int on_host(Frame& frame, int (*run)(Frame&));
int64_t on_host_bytes(const Frame& frame);

}  // namespace lapwing::cuda
