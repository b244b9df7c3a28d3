// QR and SVD by LAPACK, called by lapack::solve.
#pragma once
#include "frame.h"

namespace lapwing::lapack {

int qr(Frame& frame);   // QR, QR_R and QR_RAW
int svd(Frame& frame);  // SVD and SVDVALS
int64_t decompose_host_bytes(const Frame& frame);

}  // namespace lapwing::lapack
