// Compiles the file named by LAPWING_KERNELS once for each instruction set, in the namespaces base, avx2 and avx512.
// cpu_level() of cpu.h says which of them this processor has. Not guarded: it may be included once per file of kernels.
//   LAPWING_VECTOR     bytes of a vector register
//   LAPWING_REGISTERS  how many there are
//   LAPWING_FIXED      the largest order with code of its own
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define LAPWING_ISA base
#define LAPWING_VECTOR 16
#ifdef __aarch64__
#define LAPWING_REGISTERS 32
#define LAPWING_FIXED 8
#else
#define LAPWING_REGISTERS 16
#define LAPWING_FIXED 0  // hardly a processor is left without AVX2: not worth the time to compile
#endif
#include "cpu/level.h"

#ifdef LAPWING_X86_LEVELS
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#define LAPWING_ISA avx2
#define LAPWING_VECTOR 32
#define LAPWING_REGISTERS 16
#define LAPWING_FIXED 8
#include "cpu/level.h"
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx2,fma,avx512f,avx512vl,avx512dq,avx512bw,prefer-vector-width=512")
#define LAPWING_ISA avx512
#define LAPWING_VECTOR 64
#define LAPWING_REGISTERS 32
#define LAPWING_FIXED 8
#include "cpu/level.h"
#pragma GCC pop_options
#endif
#undef LAPWING_KERNELS
