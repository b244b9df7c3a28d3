// Which engine does an eigenproblem, and what it costs. EIGH and EIGVALSH frames.
#pragma once
#include "cuda.h"
#include "frame.h"

namespace lapwing {

int eigh_on_cpu(Frame& frame);
int eigh_on_gpu(Frame& frame, const cuda::Properties& gpu);
int64_t eigh_scratch(Frame& frame, const cuda::Properties& gpu);  // device bytes; -1 leaves a message in the frame
int64_t eigh_host_bytes(Frame& frame);                            // about

}  // namespace lapwing
