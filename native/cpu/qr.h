// QR and least squares of matrices of middle size on the CPU, one matrix after the other on each thread. See qr_small.h.
#pragma once
#include "frame.h"

namespace lapwing {

// QR, QR_R, QR_RAW and LSTSQ frames. The latter leaves matrices whose rank is not certainly full UNPROVEN.
int qr_blocked(Frame& frame);

}  // namespace lapwing
