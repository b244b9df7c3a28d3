// From the shapes of the inputs to the sizes of a frame, for front ends that see shapes only when a call runs.
#pragma once
#include <algorithm>

#include "frame.h"

namespace lapwing {

// `first` and `last` are the shapes of the first and the last input, `one` and `two` the operation's own parameters.
// nullptr, or what is wrong.
inline const char* set_sizes(Frame& frame, const int64_t* first, int64_t first_rank, const int64_t* last, int64_t last_rank,
                             int64_t one, int64_t two) {
  if (first_rank < 2) return "expected matrices";
  const int64_t rows = first[first_rank - 2], columns = first[first_rank - 1];
  int64_t* size = frame.size;
  size[0] = 1;
  for (int64_t i = 0; i + 2 < first_rank; i++) size[0] *= first[i];
  size[1] = rows;
  switch (frame.op) {
    case QR:
      size[2] = columns, size[3] = one ? rows : std::min(rows, columns);
      return nullptr;
    case SVD:
    case SVDVALS:
    case SVD_PART:
      size[2] = columns, size[3] = one;
      return nullptr;
    case QR_R:
    case QR_RAW:
      size[2] = columns;
      return nullptr;
    case LSTSQ:
    case TRIANGULAR:
    case SOLVE:
    case LU_SOLVE:
    case CHOLESKY_SOLVE: {
      if (last_rank != first_rank || last[last_rank - 2] != rows) return "the right-hand side must have as many rows as the matrix";
      for (int64_t i = 0; i + 2 < first_rank; i++)
        if (first[i] != last[i]) return "matrix and right-hand side must have the same batch";
      size[2] = last[last_rank - 1];
      if (frame.op != LSTSQ) break;
      size[3] = size[2], size[2] = columns, size[4] = one;
      return nullptr;
    }
    default: size[2] = one, size[3] = two;
  }
  return rows == columns ? nullptr : "the matrices must be square";
}

}  // namespace lapwing
