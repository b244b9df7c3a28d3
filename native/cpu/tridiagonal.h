// The eigenvalues and eigenvectors of one symmetric matrix, on several threads, but for those of its tridiagonal form.
#pragma once
#include <cstdint>
#include <functional>

namespace lapwing {

// d <- the eigenvalues of a tridiagonal matrix, ascending, from its diagonals d and e; the columns of z, `ld` apart, <- its vectors,
// unless z is null. 0, or it failed.
template <class R>
using TridiagonalSolver = std::function<int64_t(int64_t n, R* d, R* e, R* z, int64_t ld)>;

// Reads the named triangle of a row-major matrix. vectors: null, or the row-major result, which may be in the memory of a. 0, or what
// failed: an element is not finite, or `solve`. Not from inside a `parallel` of more than one thread, unless threads is 1.
template <class R>
int64_t eigh_by_tridiagonal(const R* a, int64_t n, bool upper, R* values, R* vectors, int threads, const TridiagonalSolver<R>& solve);

// Memory that it takes, in bytes, without that of `solve`
template <class R>
int64_t tridiagonal_bytes(int64_t n, bool vectors) {
  return int64_t(sizeof(R)) * (n + 16) * (n * (vectors ? 2 : 1) + 136);
}

}  // namespace lapwing
