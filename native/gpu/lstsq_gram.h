// LSTSQ of tall matrices by G = A^H A and its inverse, with two corrections of x by the residual. That is as accurate as a QR if
// the square of the condition is far below 1 / eps, and several times faster. The norms of G and its inverse show for which
// matrices that holds; the others go to `other`. The host waits for the device.
#pragma once
#include "frame.h"
#include "gpu/rest.h"

namespace lapwing::cuda {

bool lstsq_gram_fits(const Frame& frame);
int64_t lstsq_gram_scratch(Frame& frame, const ChosenEngine& engine);
int lstsq_by_gram(Frame& frame, const ChosenEngine& engine, int (*other)(Frame&));

}  // namespace lapwing::cuda
