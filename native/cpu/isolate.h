// An order of rows and columns that brings eigenvalues to the ends of the diagonal.
#pragma once
#include <algorithm>
#include <cstdint>

namespace lapwing {

// order <- rows with an eigenvalue that can be read off the diagonal, as far as possible, first and last; of a permuted triangle all
// of them. These eigenvalues are exact then, as LAPACK's are. The order of an upper triangle is its own. linked(i, j): whether
// element (i, j) is not zero. placed: room for n
template <class Linked>
void isolate(int64_t n, Linked linked, int64_t* order, bool* placed) {
  std::fill_n(placed, n, false);
  // whether nothing stands beside the diagonal in this row, or column, of those that remain
  const auto is_alone = [&](int64_t i, bool in_column) {
    for (int64_t j = 0; j < n; j++)
      if (j != i && !placed[j] && (in_column ? linked(j, i) : linked(i, j))) return false;
    return !placed[i];
  };
  int64_t first = 0, last = n;
  for (int64_t i = n - 1; i >= 0; i--)
    if (is_alone(i, false)) order[--last] = i, placed[i] = true, i = n;
  for (int64_t i = 0; i < n; i++)
    if (is_alone(i, true)) order[first++] = i, placed[i] = true, i = -1;
  for (int64_t i = 0; i < n; i++)
    if (!placed[i]) order[first++] = i;
}

}  // namespace lapwing
