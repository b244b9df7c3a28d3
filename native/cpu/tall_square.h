// The small squares of tall.cc, row-major, in double precision. A complex matrix is a real one of twice the order, each element
// [[a, b], [-b, a]]: so it multiplies rows whose parts lie side by side. `parts` is 2 for it: of a pair of rows the second says
// nothing new. LAPACK would do, but its threads cost more than the work, and on a busy machine far more.
#pragma once
#include <cstdint>

namespace lapwing {

// The upper triangle of G <- R, R^H R = G, zeros below. Of G the first row of each pair is read. false: not positive definite.
bool square_factor(double* g, int64_t n, int64_t parts);

// Y <- R^-1, upper triangles
void square_inverse(const double* r, double* y, int64_t n);

// C <- A B, A an upper triangle; `upper`: B too
void square_product(const double* a, const double* b, double* c, int64_t n, bool upper);

}  // namespace lapwing
