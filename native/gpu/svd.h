// SVD and SVDVALS of batches, or of one matrix, by a QR and one-sided Jacobi with blocks of columns in shared memory
// (svd_block.cu); values alone by a bidiagonal form (svd_bidiagonal.cu). All of it only queues work on the frame's stream.
#pragma once
#include "frame.h"
#include "gpu/cuda.h"

namespace lapwing::cuda {

constexpr int64_t SVD_BLOCKS_LARGEST = 1024;  // the smaller side. Beyond it the polar decomposition has fewer operations

bool svd_fits(const Frame& frame, const Properties& gpu);
bool svd_pays(const Frame& frame, const Properties& gpu);  // whether it is faster than the vendor's solver, or the Gram matrix
int64_t svd_scratch(Frame& frame);    // bytes of device memory, or -1 with a message in the frame
int svd_by_rotations(Frame& frame);       // 0, or 1 with a message in the frame

}  // namespace lapwing::cuda
