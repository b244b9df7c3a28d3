// Our kernels around a library that solves or decomposes one column-major matrix: systems.cu. All of them only queue work on
// the frame's stream; 0, or 1 with a message in the frame. info is the status of one matrix, on the device: 0, or the smallest
// place that was reported.
#pragma once
#include "frame.h"

namespace lapwing::cuda {

// More work for `adjoint`: report elements that are not finite; write NaN if info is not 0; zeros below the diagonal.
enum AdjointFlag : int { CHECK = 1, SPOIL = 2, TRIANGLE = 4 };

// to (count x rows) <- the first `count` rows of from^H, from being rows x columns. In place only for one column.
int adjoint(Frame& frame, const void* from, void* to, int32_t* info, int64_t rows, int64_t columns, int64_t count, int flags);

// to <- from, and a report of elements that are not finite
int copy_checked(Frame& frame, const void* from, void* to, int32_t* info, int64_t rows, int64_t columns);

// a <- identity, only if info is not 0
int replace_failed(Frame& frame, void* a, const int32_t* info, int64_t rows, int64_t columns);

// a <- identity, its rows in the given order
int permutation(Frame& frame, void* a, const int32_t* order, int64_t n);

// x <- NaN if info is not 0; `count` real numbers
int spoil(Frame& frame, void* x, const int32_t* info, int64_t count);

// Reports the status of the library: a place counted from `offset` on, or for PLAIN any failure, which becomes 1.
constexpr int64_t PLAIN = -1;
int merge(Frame& frame, int32_t* info, const int32_t* other, int64_t offset);

// Reports the first pivot on the diagonal of a that is not finite or not as required; places count from `offset` on.
enum Pivots : int { NOT_ZERO, POSITIVE, ANY };
int check_pivots(Frame& frame, const void* a, int64_t ld, int32_t* info, int64_t n, int64_t offset, Pivots kind);

// Reports elements of a row-major triangle that are not finite, and a zero on its diagonal; `unit`: that is not read.
int check_triangle(Frame& frame, const void* a, int32_t* info, int64_t n, bool upper, bool unit);

// The same after a solve, with few solutions x (n x k): they show whether the triangle must be read at all. x <- NaN if it is bad.
int check_solution(Frame& frame, const void* a, void* x, int64_t k, int32_t* info, int64_t n, bool upper, bool unit);

// rows <- the order of the rows after the library's exchanges
int pivot_rows(Frame& frame, const int64_t* pivots, int32_t* rows, const int32_t* info, int64_t n);

// to[i] <- from[rows[i]], or back: to[rows[i]] <- from[i]; rows of k elements
int permute(Frame& frame, const void* from, void* to, const int32_t* rows, int32_t* info, int64_t n, int64_t k, bool back);

// The determinant of A from the library's factors of conj(A); no pivots: from its Cholesky factor. Without
// logabs the number itself, else its sign and logarithm.
int determinant(Frame& frame, const void* a, const int64_t* pivots, void* value, void* logabs, const int32_t* info, int64_t n);

// Diagonal blocks of a column-major lower triangle, LEAF x LEAF each, one behind the other; the last is filled up with ones.
constexpr int64_t LEAF = 512, LEAF_TILE = 32;
int lift(Frame& frame, const void* a, int64_t ld, void* leaves, int64_t n);

// Tiles of LEAF_TILE on the diagonals of the leaves <- their inverses
int invert_tiles(Frame& frame, void* leaves, int64_t count);

// to <- from, column-major blocks
int copy_block(Frame& frame, const void* from, int64_t from_ld, void* to, int64_t to_ld, int64_t rows, int64_t columns);

// float32 numbers as sums of two that tensor cores multiply exactly, high and low; a column-major block (for `turned` its
// transpose) becomes three of them, `step` elements apart: high, low, high, or for `second` high, high, low.
int split(Frame& frame, const void* from, int64_t from_ld, void* to, int64_t to_ld, int64_t step, int64_t rows, int64_t columns,
          bool second, bool turned);

}  // namespace lapwing::cuda
