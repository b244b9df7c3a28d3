// Structs of pointers into one block of memory. Their function take(shape..., take) lists every piece once, as
// `piece = take(Element(), count)`; so the size of the block and its parts cannot disagree.
#pragma once
#include <cstddef>
#include <cstdint>

namespace lapwing {

// Every piece begins at a multiple of 256 bytes.
template <class Element>
size_t piece_bytes(Element, int64_t count) {
  return (sizeof(Element) * size_t(count) + 255) / 256 * 256;
}

template <class Storage, class... Shape>
size_t storage_bytes(const Shape&... shape) {
  size_t total = 0;
  Storage().take(shape..., [&](auto zero, int64_t count) {
    total += piece_bytes(zero, count);
    return static_cast<decltype(zero)*>(nullptr);
  });
  return total;
}

template <class Storage, class... Shape>
void cut(char* block, Storage& storage, const Shape&... shape) {
  storage.take(shape..., [&](auto zero, int64_t count) {
    auto* piece = reinterpret_cast<decltype(zero)*>(block);
    block += piece_bytes(zero, count);
    return piece;
  });
}

}  // namespace lapwing
