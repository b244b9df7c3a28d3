// One instruction set of levels.h. Not guarded: it is included once for each.
#include "cpu/simd.h"
#include LAPWING_KERNELS
#undef LAPWING_ISA
#undef LAPWING_VECTOR
#undef LAPWING_REGISTERS
#undef LAPWING_FIXED
