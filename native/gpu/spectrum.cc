#include "gpu/spectrum.h"

#include <algorithm>
#include <cstdio>
#include <string>

#include "gpu/cholesky.h"
#include "gpu/cuda.h"

namespace lapwing::cuda {
namespace {

constexpr unsigned THREADS = 256;

int64_t tiles_of(const Frame& frame, int64_t n) {
  int64_t edge = size_of(frame.dtype) == 4 ? 64 : 32;  // EDGE in squares.cuh
  return (n + edge - 1) / edge;
}

// The accesses are of one element; a pointer that is not aligned to it takes them in parts.
std::string options(const Frame& frame, const void* first, const void* second) {
  auto bits = reinterpret_cast<uintptr_t>(first) | reinterpret_cast<uintptr_t>(second) | uintptr_t(size_of(frame.dtype));
  char text[96];
  std::snprintf(text, sizeof text, "-DLW_DTYPE=%d -DLW_UPPER=%d -DLW_V=%d", frame.dtype, bool(frame.flags & UPPER),
                bits % 16 == 0 ? 16 : bits % 8 == 0 ? 8 : 4);
  return text;
}

}  // namespace

int finite(Frame& frame, int32_t* flags) {
  Frame ask = frame;
  ask.buffer[1] = flags;
  if (finite(ask)) return fail(frame, "%s", ask.error);
  return 0;
}

int hermitian(Frame& frame, const void* a, void* out, const int32_t* finite, int64_t matrices) {
  void* kernel = function(frame, "spectrum.cu", options(frame, a, out).c_str(), "hermitian");
  if (!kernel) return 1;
  int64_t n = frame.size[1], tiles = tiles_of(frame, n);
  void* arguments[] = {&a, &out, &finite, &matrices, &n};
  return launch(frame, kernel, grid_for(matrices * (tiles * (tiles + 1) / 2)), THREADS, 0, arguments);
}

int settle(Frame& frame, const Values& values) {
  Values v = values;
  void* kernel = function(frame, "spectrum.cu", options(frame, nullptr, nullptr).c_str(), "settle");
  if (!kernel) return 1;
  void* arguments[] = {&v.from, &v.to, &v.info, &v.finite, &v.matrices, &v.n, &v.skip, &v.count};
  return launch(frame, kernel, grid_for(v.count >= 256 ? v.matrices : (v.matrices + 7) / 8), THREADS, 0, arguments);
}

int turn(Frame& frame, const void* from, void* to, const int32_t* info, int64_t matrices, int64_t n, int64_t skip,
         int64_t count) {
  const bool in_place = from == to;
  void* kernel = function(frame, "spectrum.cu", options(frame, from, to).c_str(), in_place ? "turn_in_place" : "turn");
  if (!kernel) return 1;
  int64_t tiles = tiles_of(frame, n), across = tiles_of(frame, count);
  void* arguments[] = {&from, &to, &info, &matrices, &n, &skip, &count};
  int64_t blocks = in_place ? tiles * (tiles + 1) / 2 : tiles * across;
  return launch(frame, kernel, grid_for(matrices * blocks), THREADS, 0, arguments);
}

}  // namespace lapwing::cuda
