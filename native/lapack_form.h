// Converts factors to LAPACK's form and back: column-major, with the exchanges of rows one after the other.
#pragma once
#include "frame.h"

namespace lapwing {

// How the n integers of each matrix are converted:
//   TO_PIVOTS  the order of the rows (row i of L U is row order[i] of the matrix) becomes LAPACK's pivots: row i was exchanged with
//              row pivots[i] - 1, in turns from the first row to the last
//   TO_ROWS    the reverse
enum Exchanges : int32_t { NO_EXCHANGES, TO_PIVOTS, TO_ROWS };

// For matrices of order size[1]: buffer[1] <- the transposes of buffer[0], which may be the same memory; buffer[2]: the integers,
// which are converted in place. On a GPU the work is queued on the frame's stream.
int lapack_form(Frame& frame, Exchanges exchanges);

namespace cuda {
int lapack_form(Frame& frame, Exchanges exchanges);
}

}  // namespace lapwing
