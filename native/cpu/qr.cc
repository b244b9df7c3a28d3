// Compiles the kernel of qr_small.h for each instruction set and picks one at run time.
#include "cpu/qr.h"

#include <algorithm>
#include <limits>
#include <type_traits>

#include "cpu/cpu.h"

#define LAPWING_KERNELS "cpu/qr_small.h"
#include "cpu/levels.h"

namespace lapwing {

template <class R>
bool qr_small(R* a, int64_t m, int64_t n, int64_t columns, int64_t ld, R* tau) {
  R* room = static_cast<R*>(scratch(sizeof(R) * size_t(4 * ld)));
  return LAPWING_WIDEST(qr_one<R>(a, m, n, columns, ld, tau, room));
}

template <class R>
void apply_q_small(const R* a, int64_t m, int64_t n, int64_t ld, const R* tau, R* b) {
  LAPWING_WIDEST(apply_q_one<R>(a, m, n, ld, tau, b));
}

template bool qr_small<float>(float*, int64_t, int64_t, int64_t, int64_t, float*);
template bool qr_small<double>(double*, int64_t, int64_t, int64_t, int64_t, double*);
template void apply_q_small<float>(const float*, int64_t, int64_t, int64_t, const float*, float*);
template void apply_q_small<double>(const double*, int64_t, int64_t, int64_t, const double*, double*);

}  // namespace lapwing
