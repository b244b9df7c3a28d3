#include "lapack_form.h"

#include <algorithm>

#include "gpu/cuda.h"

namespace lapwing::cuda {
namespace {

constexpr unsigned THREADS = 256;
constexpr int64_t ROOM = 16 * 1024, MOST_MATRICES = 64;  // of shared memory for the matrices of a block; matrices

}  // namespace

int lapack_form(Frame& frame, Exchanges exchanges) {
  const int64_t batch = frame.size[0], n = frame.size[1], element = int64_t(size_of(frame.dtype));
  if (!batch || !n) return 0;
  Guard guard(frame);
  if (!guard.ok()) return 1;
  const Properties* gpu = properties(frame);
  if (!gpu) return 1;
  const int64_t most = gpu->shared_per_block / int64_t(sizeof(int32_t));  // an order of rows is in the shared memory of a block
  if (exchanges != NO_EXCHANGES && n > most)
    return fail(frame, "LAPACK's form of factors: order %lld is too large, at most %lld on this GPU\nhint: use lapwing.factor",
                (long long)n, (long long)most);
  void *from = frame.buffer[0], *to = frame.buffer[1], *integers = frame.buffer[2];
  const std::string text = options(frame.dtype, false, access_width({from, to}, element));
  if (n * n * element <= ROOM) {
    const int64_t count = std::clamp<int64_t>(ROOM / (n * n * element), 1, MOST_MATRICES), elements = count * n * n;
    const size_t shared = size_t((elements + elements / 32 + 1) * element + 2 * count * n * 4);
    return start(frame, "lapack_form.cu", text, "form_small", grid_for((batch + count - 1) / count), THREADS, shared, from, to, integers,
                 batch, int(n), int(count), int(exchanges));
  }
  const int64_t edge = element == 4 ? 64 : 32, tiles = (n + edge - 1) / edge;  // EDGE in squares.cuh
  if (start(frame, "lapack_form.cu", text, "form", grid_for(batch * (tiles * (tiles + 1) / 2)), THREADS,
            size_t(2 * edge * (edge + 1) * element), from, to, batch, n))
    return 1;
  if (exchanges == NO_EXCHANGES) return 0;
  const int64_t order = n * int64_t(sizeof(int32_t));
  return start(frame, "lapack_form.cu", text, "exchanges", grid_for(batch), THREADS, size_t(order), integers, batch, int(n), int(exchanges));
}

}  // namespace lapwing::cuda
