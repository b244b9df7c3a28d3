// Compiles the kernels of cholesky_small.h for each instruction set and picks one at run time.
#include "cholesky_cpu.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstdlib>
#include <limits>
#include <new>
#include <utility>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace lapwing {
namespace {

// Above this order a matrix is factored by itself. See use_lanes.
constexpr int64_t LANES_LIMIT = 128;

// Memory of the calling thread, kept from call to call: a fresh block costs a page fault per 4 KB.
struct Memory {
  void* block = nullptr;
  size_t size = 0;
  ~Memory() { std::free(block); }
};

void* scratch(size_t bytes) {
  thread_local Memory memory;
  if (memory.size < bytes) {
    std::free(memory.block);
    memory.size = (bytes + 4095) / 4096 * 4096;
    memory.block = std::aligned_alloc(4096, memory.size);
    if (!memory.block) memory.size = 0;
    if (!memory.block) throw std::bad_alloc();
  }
  return memory.block;
}

template <class R>
bool is_good(R pivot) {
  return pivot > 0 && pivot < std::numeric_limits<R>::infinity();
}
template <class R>
void fill_nan(R* out, int64_t size) {
  for (int64_t i = 0; i < size; i++) out[i] = std::numeric_limits<R>::quiet_NaN();
}

}  // namespace
}  // namespace lapwing

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define LAPWING_X86_LEVELS
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
#include "simd.h"
#include "cholesky_small.h"
#undef LAPWING_ISA
#undef LAPWING_VECTOR
#undef LAPWING_REGISTERS
#undef LAPWING_FIXED

#ifdef LAPWING_X86_LEVELS
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#define LAPWING_ISA avx2
#define LAPWING_VECTOR 32
#define LAPWING_REGISTERS 16
#define LAPWING_FIXED 8
#include "simd.h"
#include "cholesky_small.h"
#undef LAPWING_ISA
#undef LAPWING_VECTOR
#undef LAPWING_REGISTERS
#undef LAPWING_FIXED
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx2,fma,avx512f,avx512vl,avx512dq,avx512bw,prefer-vector-width=512")
#define LAPWING_ISA avx512
#define LAPWING_VECTOR 64
#define LAPWING_REGISTERS 32
#define LAPWING_FIXED 8
#include "simd.h"
#include "cholesky_small.h"
#undef LAPWING_ISA
#undef LAPWING_VECTOR
#undef LAPWING_REGISTERS
#undef LAPWING_FIXED
#pragma GCC pop_options
#endif

namespace lapwing {
namespace {

int pick_level() {
#ifdef LAPWING_X86_LEVELS
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return 0;
  const bool wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                    __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw");
  return wide ? 2 : 1;
#else
  return 0;
#endif
}

#ifdef LAPWING_LEVEL  // for tests: the code of a lesser processor
const int level = std::min(pick_level(), LAPWING_LEVEL);
#else
const int level = pick_level();
#endif

template <class T>
struct Scalar {
  typedef T real;
  static constexpr int parts = 1;
};
template <class R>
struct Scalar<std::complex<R>> {
  typedef R real;
  static constexpr int parts = 2;
};

}  // namespace

template <class T>
void cholesky_batch(const T* a, T* out, int32_t* info, int64_t count, int64_t n, bool upper) {
  typedef typename Scalar<T>::real R;
  constexpr int P = Scalar<T>::parts;
  const R* from = reinterpret_cast<const R*>(a);
  R* to = reinterpret_cast<R*>(out);
#ifdef LAPWING_X86_LEVELS
  if (level == 2) return avx512::batch_either<R, P>(from, to, info, count, n, upper);
  if (level == 1) return avx2::batch_either<R, P>(from, to, info, count, n, upper);
#endif
  base::batch_either<R, P>(from, to, info, count, n, upper);
}

template <class T>
int64_t cholesky_group(int64_t n) {
  return n > LANES_LIMIT ? 1 : (16 << level) / sizeof(typename Scalar<T>::real);
}

#define LAPWING_INSTANTIATE(T)                                                                \
  template void cholesky_batch<T>(const T*, T*, int32_t*, int64_t, int64_t, bool);            \
  template int64_t cholesky_group<T>(int64_t);
LAPWING_INSTANTIATE(float)
LAPWING_INSTANTIATE(double)
LAPWING_INSTANTIATE(std::complex<float>)
LAPWING_INSTANTIATE(std::complex<double>)

}  // namespace lapwing
