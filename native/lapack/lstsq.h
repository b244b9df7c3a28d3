// Least squares by LAPACK's QR, without forming Q.
#pragma once
#include "frame.h"

namespace lapwing::lapack {

// x, residuals and rank of the LSTSQ frame's matrices of proven full rank; the rank of the others becomes UNPROVEN.
int lstsq(Frame& frame);
int64_t lstsq_host_bytes(const Frame& frame);

}  // namespace lapwing::lapack
