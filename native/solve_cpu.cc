#include "solve_cpu.h"

namespace lapwing {

bool solve_fits(const Frame&) { return false; }

int solve_batched(Frame& frame) { return fail(frame, "engine batched cannot take this on the CPU"); }

}  // namespace lapwing
