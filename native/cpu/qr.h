// QR of one small real matrix on one CPU thread: R and the reflections, Q is not formed.
#pragma once
#include <cstdint>

namespace lapwing {

// Columns of this many numbers fill whole vectors: the stride of a column of m, which is padded with zeros.
template <class R>
int64_t padded(int64_t m) {
  constexpr int64_t lanes = 64 / sizeof(R);
  return (m + lanes - 1) / lanes * lanes;
}

// a (column-major, m x columns, columns `ld` = padded(m) apart, padded with zeros): the first n columns <- R, and below it the
// vectors of the reflections; the others <- Q^T times them. false: squares left the range, or a number is not finite.
template <class R>
bool qr_small(R* a, int64_t m, int64_t n, int64_t columns, int64_t ld, R* tau);

// b <- Q b for one column of that layout
template <class R>
void apply_q_small(const R* a, int64_t m, int64_t n, int64_t ld, const R* tau, R* b);

}  // namespace lapwing
