// The handle that the stand-ins of librocblas and librocsolver share, and how AMD's enums are read.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "mock.h"

namespace mock {

constexpr int ROC_HANDLE = 1, ROC_POINTER = 3, ROC_SIZE = 4, ROC_MEMORY = 5, ROC_INTERNAL = 6, ROC_QUERY = 8, ROC_INCREASED = 9,
              ROC_UNCHANGED = 10, ROC_VALUE = 11;

struct RocHandle {
  uint64_t magic = 0x40c;
  int number;
  void* stream = nullptr;
  bool asking = false;    // routines only say how much memory they take
  size_t asked = 0;
  char* work = nullptr;   // the caller's memory; without it the library allocates
  size_t bytes = 0;
  std::atomic<bool> busy{false};
};

inline RocHandle* roc(void* handle) {
  auto* h = static_cast<RocHandle*>(handle);
  return h && h->magic == RocHandle().magic ? h : nullptr;
}

// AMD's numbers as NVIDIA's; -1: not one of AMD's
inline int op_of(int op) { return op >= 111 && op <= 113 ? op - 111 : -1; }
inline int fill_of(int fill) { return fill == 122 ? 0 : fill == 121 ? 1 : -1; }
inline int diagonal_of(int diagonal) { return diagonal == 131 || diagonal == 132 ? diagonal - 131 : -1; }
inline int side_of(int side) { return side == 141 || side == 142 ? side - 141 : -1; }

}  // namespace mock
