// A real triangle and a few right-hand sides.
#pragma once
#include <cstdint>

namespace lapwing {

// Right-hand sides it takes at most.
template <class R>
int64_t most_columns();

// x (n x k, row-major) <- L^-1 x, or L^-T x, L being row-major too, on several threads where that pays. Not from inside a `parallel` of
// more than one thread.
template <class R>
void solve_few_columns(const R* l, int64_t n, R* x, int64_t k, bool upper, bool turned, bool unit, int threads);

}  // namespace lapwing
