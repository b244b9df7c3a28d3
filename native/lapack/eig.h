// Eigenvalues of general matrices and Schur forms by LAPACK. EIG, EIGVALS and SCHUR frames.
#pragma once
#include <complex>

#include "frame.h"

namespace lapwing::lapack {

int eig(Frame& frame);
int64_t eig_host_bytes(const Frame& frame);

// Row-major vectors from the columns of v. A pair of conjugate eigenvalues has the real part of its first vector in one column,
// and the imaginary part in the next.
template <class R>
void unpack_pairs(const std::complex<R>* w, const R* v, std::complex<R>* out, int64_t n) {
  for (int64_t j = 0; j < n; j++) {
    const R* column = v + j * n;
    if (w[j].imag() == 0) {
      for (int64_t i = 0; i < n; i++) out[i * n + j] = column[i];
    } else {
      for (int64_t i = 0; i < n; i++) {
        out[i * n + j] = {column[i], column[n + i]};
        out[i * n + j + 1] = {column[i], -column[n + i]};
      }
      j++;
    }
  }
}

}  // namespace lapwing::lapack
