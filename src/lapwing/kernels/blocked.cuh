// Shared by the kernels of blocked systems: matrices too large for the shared memory of a block, a piece of them at a time.
//
// Matrices are row-major, `ld` elements from row to row and `stride` from matrix to matrix.
#pragma once
#include "solve.cuh"

constexpr int BLOCK = 64;  // columns that are factored before the rest of the matrix is updated; in native/gpu/blocked.cc too

// The exchanges of rows of some columns: row first + i takes row source[i], row target[i] takes row old[i] for i < count.
// All of them name rows as they were before.
struct Moves {
  int source[BLOCK], target[BLOCK], old[BLOCK], count;
};

struct Matrix {
  T* at;
  i64 ld, stride;
};
