// Our kernels around an eigensolver: spectrum.cu. All of them only queue work on the frame's stream.
#pragma once
#include "frame.h"

namespace lapwing::cuda {

// flags[m] <- 1 when the named triangle of matrix m of buffer[0] is finite, else 0.
int finite(Frame& frame, int32_t* flags);

// out <- both triangles of the Hermitian matrices of which `a` has the named one; zero if finite[m] is 0 (finite may be
// nullptr). a == out is allowed.
int hermitian(Frame& frame, const void* a, void* out, const int32_t* finite, int64_t matrices);

// A solver's eigenvalues, n to a matrix, -> the `count` from `skip` on; NaN, and info 1, where the matrix was not finite or the
// solver failed. from == to is allowed when count == n.
struct Values {
  const void* from;
  void* to;
  int32_t* info;
  const int32_t* finite;
  int64_t matrices, n, skip, count;
};
int settle(Frame& frame, const Values& values);

// A solver's eigenvectors, conjugated and one to a row of n, -> the columns of n x count matrices; NaN where info is not 0.
// from == to is allowed when count == n.
int turn(Frame& frame, const void* from, void* to, const int32_t* info, int64_t matrices, int64_t n, int64_t skip,
         int64_t count);

}  // namespace lapwing::cuda
