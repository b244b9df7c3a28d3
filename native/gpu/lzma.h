// Decoder for raw LZMA streams, as Python's lzma module writes them.
#pragma once
#include <string>

namespace lapwing::lzma {

// The properties that the writer of kernel packs uses (src/lapwing/core/packs.py): machine code comes in words of four bytes.
constexpr int LITERAL_CONTEXT = 0, LITERAL_POSITION = 2, POSITION = 2;

// The `size` bytes that the stream holds, or "" if it is damaged.
std::string decode(const std::string& stream, size_t size);

}  // namespace lapwing::lzma
