// cuSOLVER's 64-bit interface.
#pragma once
#include "frame.h"

namespace lapwing::cusolver {

// One large matrix after the other.
int cholesky(Frame& frame);
int64_t cholesky_scratch(Frame& frame);   // -1 leaves a message in the frame

// EIGH and EIGVALSH: many small matrices together, larger ones one after the other.
int eigh(Frame& frame);
int64_t eigh_scratch(Frame& frame);       // -1 leaves a message in the frame
int64_t eigh_host_bytes(Frame& frame);

}  // namespace lapwing::cusolver
