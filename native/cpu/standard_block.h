// The standard form of a real 2 x 2 block on the diagonal of a Schur form.
#pragma once
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace lapwing {

// (a b; c d) <- the standard form of a 2 x 2 block: triangular, or a = d and b c < 0; the rotation that does it. As LAPACK's lanv2.
template <class R>
inline void standard_block(R& a, R& b, R& c, R& d, R& cs, R& sn) {
  cs = 1, sn = 0;
  if (c == 0) return;
  if (b == 0) {
    cs = 0, sn = 1;
    std::swap(a, d);
    b = -c, c = 0;
    return;
  }
  if (a - d == 0 && std::signbit(b) != std::signbit(c)) return;
  const R gap = a - d, p = gap / 2, most = std::max(std::abs(b), std::abs(c));
  const R least = std::min(std::abs(b), std::abs(c)) * std::copysign(R(1), b) * std::copysign(R(1), c);
  const R size = std::max(std::abs(p), most);
  R z = (p / size) * p + (most / size) * least;
  if (z >= 4 * std::numeric_limits<R>::epsilon()) {  // two real eigenvalues
    z = p + std::copysign(std::sqrt(size) * std::sqrt(z), p);
    a = d + z;
    d -= (most / z) * least;
    const R norm = std::hypot(c, z);
    cs = z / norm, sn = c / norm;
    b -= c, c = 0;
    return;
  }
  // complex, or nearly equal: make the diagonal equal
  const R sigma = b + c, norm = std::hypot(sigma, gap);
  cs = std::sqrt((1 + std::abs(sigma) / norm) / 2);
  sn = -(p / (norm * cs)) * std::copysign(R(1), sigma);
  const R aa = a * cs + b * sn, bb = -a * sn + b * cs, cc = c * cs + d * sn, dd = -c * sn + d * cs;
  a = aa * cs + cc * sn, b = bb * cs + dd * sn, c = -aa * sn + cc * cs, d = -bb * sn + dd * cs;
  const R middle = (a + d) / 2;
  a = d = middle;
  if (c == 0) return;
  if (b == 0) {
    b = -c, c = 0;
    const R before = cs;
    cs = -sn, sn = before;
  } else if (std::signbit(b) == std::signbit(c)) {
    const R rb = std::sqrt(std::abs(b)), rc = std::sqrt(std::abs(c)), root = std::copysign(rb * rc, c);
    const R over = 1 / std::sqrt(std::abs(b + c));
    a = middle + root, d = middle - root;
    b -= c, c = 0;
    const R c1 = rb * over, s1 = rc * over, before = cs;
    cs = cs * c1 - sn * s1, sn = before * s1 + sn * c1;
  }
}

}  // namespace lapwing
