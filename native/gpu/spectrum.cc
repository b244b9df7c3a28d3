#include "gpu/spectrum.h"

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
  return cuda::options(frame.dtype, frame.flags & UPPER, access_width({first, second}, int64_t(size_of(frame.dtype))));
}

}  // namespace

int finite(Frame& frame, int32_t* flags) {
  Frame ask = frame;
  ask.buffer[1] = flags;
  return finite(ask) ? fail_as(frame, ask) : 0;
}

int hermitian(Frame& frame, const void* a, void* out, const int32_t* finite, int64_t matrices) {
  const int64_t n = frame.size[1], tiles = tiles_of(frame, n);
  if (tiles == 1 && n > 0) {
    const int count = int((4096 + n * n - 1) / (n * n));
    return start(frame, "spectrum.cu", options(frame, a, out), "hermitian_small", grid_for((matrices + count - 1) / count), THREADS, 0,
                 a, out, finite, matrices, int(n), count);
  }
  return start(frame, "spectrum.cu", options(frame, a, out), "hermitian", grid_for(matrices * (tiles * (tiles + 1) / 2)), THREADS,
               0, a, out, finite, matrices, n);
}

int settle(Frame& frame, const Values& v) {
  return start(frame, "spectrum.cu", options(frame, nullptr, nullptr), "settle",
               grid_for(v.count >= 256 ? v.matrices : (v.matrices + 7) / 8), THREADS, 0, v.from, v.to, v.info, v.finite,
               v.matrices, v.n, v.skip, v.count);
}

int turn(Frame& frame, const void* from, void* to, const int32_t* info, int64_t matrices, int64_t n, int64_t skip,
         int64_t count) {
  const bool in_place = from == to;
  const int64_t tiles = tiles_of(frame, n), blocks = in_place ? tiles * (tiles + 1) / 2 : tiles * tiles_of(frame, count);
  return start(frame, "spectrum.cu", options(frame, from, to), in_place ? "turn_in_place" : "turn", grid_for(matrices * blocks),
               THREADS, 0, from, to, info, matrices, n, skip, count);
}

}  // namespace lapwing::cuda
