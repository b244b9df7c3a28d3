#include "gpu/svd.h"

#include <algorithm>
#include <cstdio>

namespace lapwing::cuda {
namespace {

constexpr int64_t LARGEST = 32;           // a column is in the registers of a lane

// As in svd.cu.
struct Call {
  void *a, *u, *s, *vh, *info;
  int64_t batch;
  int32_t m, n;
};

int rounded(int64_t x) { return int((x + 3) / 4 * 4); }

}  // namespace

bool svd_fits(const Frame& frame) {
  const int64_t m = frame.size[1], n = frame.size[2];
  return std::max(m, n) <= LARGEST && !(frame.op == SVD && frame.size[3] && m != n);
}

int svd_batched(Frame& frame) {
  const int64_t m = frame.size[1], n = frame.size[2], k = std::min(m, n), element = int64_t(size_of(frame.dtype));
  const bool vectors = frame.op == SVD;
  void* const* at = frame.buffer;
  Call call{at[0], vectors ? at[1] : nullptr, at[vectors ? 2 : 1], vectors ? at[3] : nullptr, at[vectors ? 4 : 2],
            frame.size[0], int32_t(m), int32_t(n)};
  int lanes = 2;
  while (lanes < k) lanes *= 2;
  const int threads = element == 16 ? 64 : 128;
  char text[160];
  std::snprintf(text, sizeof text, "-DLW_DTYPE=%d -DLW_V=%d -DLW_M=%d -DLW_K=%d -DLW_LANES=%d -DLW_THREADS=%d -DLW_VECTORS=%d",
                frame.dtype, access_width({call.a, call.u, call.vh}), rounded(std::max(m, n)), rounded(k), lanes, threads,
                int(vectors));
  const size_t shared = vectors ? size_t(rounded(k) * element * threads) : 0;
  void* kernel = function(frame, "svd.cu", text, "svd_lanes", shared);
  if (!kernel) return 1;
  void* arguments[] = {&call};
  const int64_t matrices = threads / lanes, blocks = (call.batch + matrices - 1) / matrices;
  return launch(frame, kernel, grid_for(blocks), unsigned(threads), shared, arguments);
}

}  // namespace lapwing::cuda
