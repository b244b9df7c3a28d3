// The passes over a tall matrix on a GPU: kernels in src/lapwing/kernels/tall.cu, wide products by cuBLAS.
#pragma once
#include "methods/tall_pass.h"

namespace lapwing::cuda {

bool tall_open(Frame& frame, TallDevice* device);  // false leaves a message
void tall_close(TallDevice* device);
bool tall_together(const Frame& frame);  // whether one kernel solves and sums
bool tall_upload(Frame& frame, void* to, const void* host, size_t bytes);
int64_t tall_bytes(const Frame& frame);

}  // namespace lapwing::cuda
