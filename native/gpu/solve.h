// Many small systems, inverses, factorisations and singular values at once on a GPU. Kernels in src/lapwing/kernels/solve*.cu
// and svd.cu.
#pragma once
#include "gpu/cuda.h"
#include "frame.h"

namespace lapwing::cuda {

bool solve_fits(const Frame& frame, const Properties& gpu);  // whether solve_batched takes it
int64_t solve_largest(const Frame& frame, const Properties& gpu);  // the largest order of this system or inverse that it takes
bool solve_is_blocked(const Frame& frame, const Properties& gpu);  // whether blocked.cc does it, with products of the BLAS library
int64_t solve_bytes(Frame& frame, const Properties& gpu);          // of device memory that solve_batched asks for
// QR, QR_R, QR_RAW, LSTSQ: whether it runs panel by panel (blocked_qr.h), and not in one kernel
bool qr_is_blocked(const Frame& frame, const Properties& gpu);
// Whether that is faster than the vendor's solver with one matrix after the other
bool solve_pays(const Frame& frame, const Properties& gpu);
int solve_batched(Frame& frame);
// Whether a SOLVE of general matrices may have two more buffers for solve_batched to fill: the factors in column-major memory, and
// LAPACK's pivots. They are null if they are not needed.
bool solve_keeps(const Frame& frame, const Properties& gpu);

}  // namespace lapwing::cuda
