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

// The same, but the calling thread keeps up to 16 MB for its next call, which then finds its pages.
inline Pages kept_pages_of(size_t bytes) {
  constexpr size_t MOST = size_t(16) << 20;
  thread_local Pages kept{nullptr, std::free};
  thread_local size_t size = 0;
  if (bytes > MOST) return huge_pages_of(bytes);
  if (size < bytes) {
    kept.reset();
    size = 0;
    kept = huge_pages_of(bytes);
    size = bytes;
  }
  return Pages{kept.get(), [](void*) {}};
}

}  // namespace lapwing
