// QR and least squares on the CPU, one matrix after the other on each thread; few large ones are worked on by all threads together. See
// qr_small.h.
#pragma once
#include "frame.h"

namespace lapwing {

// QR, QR_R, QR_RAW and LSTSQ frames. The latter leaves matrices whose rank is not certainly full UNPROVEN.
int qr_blocked(Frame& frame);

}  // namespace lapwing
