// One small system by division, where a pivot is so small that one over it is too large a number for its type.
#pragma once
#include <cstdint>

#include "frame.h"

namespace lapwing {

// Where the elements of a matrix are, counted in reals.
template <class R>
struct Spread {
  R* first;
  int64_t down, right, part;
};

// x <- columns `first` .. `first + columns` of the solution for matrix number `which` of a SOLVE, INVERSE, LU_SOLVE,
// CHOLESKY_SOLVE or TRIANGULAR frame. Returns 0, or the place of the first pivot that is zero or not finite.
template <class R>
int32_t solve_carefully(const Frame& frame, int64_t which, int64_t first, int64_t columns, const Spread<R>& x);

}  // namespace lapwing
