#include "frame.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "operations.h"

namespace lapwing {
int fail(Frame& frame, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(frame.error, sizeof frame.error, format, arguments);
  va_end(arguments);
  return 1;
}

int fail_as(Frame& frame, const Frame& other) {
  std::memcpy(frame.error, other.error, sizeof frame.error);
  frame.out_of_memory = other.out_of_memory;
  return 1;
}

Frame part_of(const Frame& frame, int64_t first, int64_t count) {
  Frame part = frame;
  const Operation& operation = OPERATIONS[frame.op];
  void** buffer = part.buffer;
  const auto move = [&](const Argument& argument) {
    const size_t bytes = size_t(first * elements(frame, argument)) * size_of(frame, argument);
    if (*buffer) *buffer = static_cast<char*>(*buffer) + bytes;
    buffer++;
  };
  std::for_each_n(operation.inputs, count_of(operation.inputs), move);
  std::for_each_n(operation.outputs, count_of(operation.outputs), move);
  part.size[0] = count;
  if (part.exponents) part.exponents += first;
  return part;
}

}  // namespace lapwing
