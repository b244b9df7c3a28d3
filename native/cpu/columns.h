// A triangle and a few right-hand sides.
#pragma once
#include <cstdint>

namespace lapwing {

// Right-hand sides it takes at most.
template <class T>
int64_t most_columns();

// x (n x k, row-major) <- L^-1 x, or L^-T x, L being row-major too, on several threads where that pays. Not from inside a `parallel` of
// more than one thread.
template <class T>
void solve_few_columns(const T* l, int64_t n, T* x, int64_t k, bool upper, bool turned, bool unit, int threads);

}  // namespace lapwing
