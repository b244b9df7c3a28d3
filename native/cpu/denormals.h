// Arithmetic with subnormal numbers, whatever the caller's thread is set to.
#pragma once
#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace lapwing {

// XLA and TensorFlow set their threads to flush subnormal numbers to zero: a matrix of them would be another matrix to us.
// While this object lives its thread computes with them; afterwards it is as it was.
class KeepDenormals {
 public:
  KeepDenormals() : before_(read()) {
    if (before_ & FLUSHES) write(before_ & ~FLUSHES);
  }
  ~KeepDenormals() {
    if (before_ & FLUSHES) write(before_);
  }
  KeepDenormals(const KeepDenormals&) = delete;
  KeepDenormals& operator=(const KeepDenormals&) = delete;

 private:
#if defined(__x86_64__)
  static constexpr uint64_t FLUSHES = 0x8040;  // MXCSR: flush to zero, denormals are zero
  static uint64_t read() { return _mm_getcsr(); }
  static void write(uint64_t state) { _mm_setcsr(uint32_t(state)); }
#elif defined(__aarch64__)
  static constexpr uint64_t FLUSHES = uint64_t(1) << 24;  // FPCR: FZ
  static uint64_t read() {
    uint64_t state;
    __asm__ volatile("mrs %0, fpcr" : "=r"(state));
    return state;
  }
  static void write(uint64_t state) { __asm__ volatile("msr fpcr, %0" : : "r"(state)); }
#else
  static constexpr uint64_t FLUSHES = 0;
  static uint64_t read() { return 0; }
  static void write(uint64_t) {}
#endif

  uint64_t before_;
};

}  // namespace lapwing
