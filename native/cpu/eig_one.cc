// Compiles the kernels of eig_one_small.h for each instruction set and picks one at run time.
#include "cpu/eig_one.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <limits>
#include <type_traits>
#include <vector>

#include "cpu/cpu.h"
#include "cpu/standard_block.h"

#define LAPWING_KERNELS "cpu/eig_one_small.h"
#include "cpu/levels.h"

namespace lapwing {
namespace {

// An order of rows and columns in which those with an eigenvalue that can be read off the diagonal come first and last, for a permuted
// triangle all of them: these eigenvalues are exact, as LAPACK's are. The order of an upper triangle is its own.
template <class R>
std::vector<int64_t> isolate(int64_t n, const R* a) {
  std::vector<int64_t> order(n);
  std::vector<char> placed(n);
  // whether nothing stands beside the diagonal in this row or column of those that remain
  const auto is_alone = [&](int64_t i, int64_t down, int64_t right) {
    for (int64_t j = 0; j < n; j++)
      if (j != i && !placed[j] && a[i * down + j * right] != 0) return false;
    return !placed[i];
  };
  int64_t first = 0, last = n;
  for (int64_t i = n - 1; i >= 0; i--)
    if (is_alone(i, n, 1)) order[--last] = i, placed[i] = true, i = n;
  for (int64_t i = 0; i < n; i++)
    if (is_alone(i, 1, n)) order[first++] = i, placed[i] = true, i = -1;
  for (int64_t i = 0; i < n; i++)
    if (!placed[i]) order[first++] = i;
  return order;
}

}  // namespace

template <class R>
bool eig_one(int64_t n, const R* a, std::complex<R>* w, std::complex<R>* v) {
  return LAPWING_WIDEST(solve_eig_one<R>(n, a, isolate(n, a).data(), w, v, nullptr, nullptr));
}

template <class R>
bool schur_one(int64_t n, const R* a, R* t, R* z) {
  std::vector<std::complex<R>> w(static_cast<size_t>(n));
  return LAPWING_WIDEST(solve_eig_one<R>(n, a, isolate(n, a).data(), w.data(), nullptr, t, z));
}

#define LAPWING_INSTANTIATE(R)                                                         \
  template bool eig_one<R>(int64_t, const R*, std::complex<R>*, std::complex<R>*); \
  template bool schur_one<R>(int64_t, const R*, R*, R*);
LAPWING_INSTANTIATE(float)
LAPWING_INSTANTIATE(double)

}  // namespace lapwing
