// Shared by the batched CPU kernels: memory, the choice of instruction set.
// Include it before the target of the code is widened.
#pragma once
#include <algorithm>
#include <complex>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <new>

#include "cpu/matrix.h"
#include "dtypes.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define LAPWING_X86_LEVELS
#endif

namespace lapwing {

// Memory of the calling thread, kept from call to call: a fresh block costs a page fault per 4 KB.
struct Memory {
  void* block = nullptr;
  size_t size = 0;
  ~Memory() { std::free(block); }
};

// PLACE: which of several blocks, for kernels that call others.
template <int PLACE = 0>
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

// 0: what every processor has, 1: AVX2 with FMA, 2: AVX-512.
inline int cpu_level() {
#ifdef LAPWING_X86_LEVELS
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return 0;
  const bool wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                    __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw");
  const int found = wide ? 2 : 1;
#else
  const int found = 0;
#endif
#ifdef LAPWING_LEVEL  // for tests: the code of a lesser processor
  return std::min(found, LAPWING_LEVEL);
#else
  return found;
#endif
}

inline const int level = cpu_level();

// The function of the widest instruction set that this processor has, among those that levels.h compiled.
#ifdef LAPWING_X86_LEVELS
#define LAPWING_WIDEST(...) (level == 2 ? avx512::__VA_ARGS__ : level == 1 ? avx2::__VA_ARGS__ : base::__VA_ARGS__)
#else
#define LAPWING_WIDEST(...) base::__VA_ARGS__
#endif

// Numbers in a vector register.
template <class T>
int64_t lanes() {
  return (16 << level) / int64_t(sizeof(RealOf<T>));
}
inline int64_t lanes_of(int32_t dtype) { return (16 << level) / (dtype == F32 || dtype == C64 ? 4 : 8); }

}  // namespace lapwing
