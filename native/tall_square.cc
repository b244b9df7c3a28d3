// Compiles the loops of tall_square_rows.h for each instruction set and picks one at run time.
#include "tall_square.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "cpu.h"

#define LAPWING_KERNELS "tall_square_rows.h"
#include "levels.h"

namespace lapwing {
namespace {
const int level = cpu_level();
}

#ifdef LAPWING_X86_LEVELS
#define LAPWING_CALL(function, ...)                          \
  if (level == 2) return avx512::function(__VA_ARGS__);      \
  if (level == 1) return avx2::function(__VA_ARGS__);        \
  return base::function(__VA_ARGS__)
#else
#define LAPWING_CALL(function, ...) return base::function(__VA_ARGS__)
#endif

bool square_factor(double* g, int64_t n, int64_t parts) { LAPWING_CALL(factor_square, g, n, parts); }
void square_inverse(const double* r, double* y, int64_t n) { LAPWING_CALL(invert_square, r, y, n); }
void square_product(const double* a, const double* b, double* c, int64_t n, bool upper) {
  LAPWING_CALL(multiply_square, a, b, c, n, upper);
}

}  // namespace lapwing
