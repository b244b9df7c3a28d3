// LU of one small matrix on one CPU thread.
#pragma once
#include <cstdint>

namespace lapwing {

// a (column-major, n x n, packed) <- L U of P A by partial pivoting; row k was exchanged with row pivots[k] >= k, counted from
// 0. R: float, double. For orders that fit a core's nearest cache; a library's threads and blocks pay above.
template <class R>
void lu_small(R* a, int64_t n, int32_t* pivots);

}  // namespace lapwing
