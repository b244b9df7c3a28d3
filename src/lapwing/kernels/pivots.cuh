// Exchanges of rows, as LAPACK has them, from their order.
#pragma once
#include "common.cuh"

// One thread: where the row that comes to place i is when its turn comes, counted from one. A row before i has left its place for
// that of the row that came there.
LW_INLINE int pivot_of(const int* order, int n, int i) {
  int at = order[i];
  for (int steps = 0; at < i && steps < n; steps++) at = order[at];
  return at + 1;
}
