// Large pieces of memory, aligned to pages.
#pragma once
#include <sys/mman.h>

#include <cstdlib>
#include <memory>
#include <new>

namespace lapwing {

using Pages = std::unique_ptr<char, void (*)(void*)>;

inline Pages pages_of(size_t bytes, size_t page = 4096) {
  Pages memory{static_cast<char*>(std::aligned_alloc(page, (bytes + page - 1) / page * page)), std::free};
  if (!memory) throw std::bad_alloc();
  return memory;
}

// First touching much memory in small pages takes as long as several passes over it.
inline Pages huge_pages_of(size_t bytes) {
  Pages memory = pages_of(bytes, size_t(1) << 21);
  madvise(memory.get(), bytes, MADV_HUGEPAGE);
  return memory;
}

}  // namespace lapwing
