#include "solve_cuda.h"

namespace lapwing::cuda {

bool solve_fits(const Frame&, const Properties&) { return false; }

int solve_batched(Frame& frame) { return fail(frame, "engine batched cannot take this on a GPU"); }

size_t solve_batched_scratch(const Frame&, const Properties&) { return 0; }

}  // namespace lapwing::cuda
