// Compiles the loops of tall_square_rows.h for each instruction set and picks one at run time.
#include "cpu/tall_square.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "cpu/cpu.h"

#define LAPWING_KERNELS "cpu/tall_square_rows.h"
#include "cpu/levels.h"

namespace lapwing {
bool square_factor(double* g, int64_t n, int64_t parts) { return LAPWING_WIDEST(factor_square(g, n, parts)); }
void square_inverse(const double* r, double* y, int64_t n) { LAPWING_WIDEST(invert_square(r, y, n)); }
void square_product(const double* a, const double* b, double* c, int64_t n, bool upper) {
  LAPWING_WIDEST(multiply_square(a, b, c, n, upper));
}

}  // namespace lapwing
