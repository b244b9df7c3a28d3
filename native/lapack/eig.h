// Eigenvalues of general matrices and Schur forms by LAPACK. EIG, EIGVALS and SCHUR frames.
#pragma once
#include <algorithm>
#include <complex>

#include "frame.h"

namespace lapwing::lapack {

int eig(Frame& frame);
int64_t eig_host_bytes(const Frame& frame);

// Row-major vectors from the columns of v. A pair of conjugate eigenvalues has the real part of its first vector in one column,
// and the imaginary part in the next.
template <class R>
void unpack_pairs(const std::complex<R>* w, const R* v, std::complex<R>* out, int64_t n) {
  constexpr int64_t ROWS = 16;  // written side by side: each of them is a stream of its own
  for (int64_t first = 0; first < n; first += ROWS) {
    const int64_t last = std::min(first + ROWS, n);
    for (int64_t j = 0; j < n; j++) {
      const R* column = v + j * n;
      const bool pair = w[j].imag() != 0;
      for (int64_t i = first; i < last; i++) {
        out[i * n + j] = pair ? std::complex<R>(column[i], column[n + i]) : std::complex<R>(column[i]);
        if (pair) out[i * n + j + 1] = std::conj(out[i * n + j]);
      }
      j += pair;
    }
  }
}

}  // namespace lapwing::lapack
