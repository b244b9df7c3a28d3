#include "gpu/cholesky.h"

#include <algorithm>
#include <string>

#include "gpu/cuda.h"

namespace lapwing::cuda {
namespace {

constexpr int64_t MAX_BLOCK_N = 128;      // cholesky_block keeps the triangle in shared memory
constexpr int64_t TILE = 64;              // of cholesky_tiled

struct Call {
  explicit Call(const Frame& frame)
      : batch(frame.size[0]), n(frame.size[1]), element(int64_t(size_of(frame.dtype))), dtype(frame.dtype),
        upper(frame.flags & UPPER), a(frame.buffer[0]), out(frame.buffer[1]), info(static_cast<int32_t*>(frame.buffer[2])) {}

  // For accesses at addresses `stride` bytes apart
  template <class... More>
  std::string options(int64_t stride, const char* more = "", More... values) const {
    return cuda::options(dtype, upper, access_width({a, out}, stride), more, values...);
  }

  int64_t batch, n;
  int64_t element;  // bytes
  int32_t dtype;
  bool upper;
  void* a;
  void* out;
  int32_t* info;
};

// Rows of `bytes` bytes in shared memory start an odd number of access units apart: Stage in cholesky.cu.
int64_t staged(int64_t bytes) { return bytes % 16 ? bytes : (bytes / 16 | 1) * 16; }

int launch_thread(Frame& frame, const Call& call) {
  const int64_t pitch = staged(call.n * call.n * call.element);
  const int threads = pitch * 256 <= 36 * 1024 ? 256 : pitch * 128 <= 36 * 1024 ? 128 : 64;
  const std::string choice = call.options(16, " -DLW_KERNEL=0 -DLW_N=%d -DLW_THREADS=%d", int(call.n), threads);
  return start(frame, "cholesky.cu", choice, "cholesky_thread", grid_for((call.batch + threads - 1) / threads),
               unsigned(threads), size_t(pitch * threads), call.a, call.out, call.info, call.batch);
}

int launch_rows(Frame& frame, const Call& call) {
  int threads = 128, lanes = 4;
  while (lanes < call.n) lanes *= 2;
  const int64_t each = call.n * staged(call.n * call.element);
  constexpr int64_t ALWAYS = 64000;  // bytes that every GPU has
  if (threads / lanes * each > ALWAYS) {
    const Properties* device = properties(frame);
    while (device && threads > lanes && threads / lanes * each > device->shared_per_block) threads /= 2;
  }
  const int matrices = threads / lanes;
  const size_t shared = size_t(matrices * each);
  const std::string choice = call.options(16, " -DLW_KERNEL=1 -DLW_N=%d -DLW_THREADS=%d", int(call.n), threads);
  return start(frame, "cholesky.cu", choice, "cholesky_rows", grid_for((call.batch + matrices - 1) / matrices),
               unsigned(threads), shared,
               call.a, call.out, call.info, call.batch);
}

// Shared memory of cholesky_block for n rounded up to `blocks` blocks of 32 rows.
int64_t triangle_bytes(int64_t blocks, int64_t element) {
  return 32 * (32 * blocks * (blocks + 1) / 2 * element + 16 * blocks);
}

int launch_block(Frame& frame, const Call& call) {
  const int64_t blocks = (call.n + 31) / 32;
  const int threads = int(32 * blocks);
  // blocks on one multiprocessor, by dtype and n = 64, 96, 128: as many as registers and shared memory carry
  constexpr int resident[][3] = {{10, 6, 4}, {6, 4, 2}, {6, 4, 2}, {4, 2, 1}};
  const std::string choice =
      call.options(call.n * call.element, " -DLW_KERNEL=2 -DLW_N=%d -DLW_THREADS=%d -DLW_RESIDENT=%d", threads, threads,
                   resident[frame.dtype][blocks - 2]);
  return start(frame, "cholesky.cu", choice, "cholesky_block", grid_for(call.batch), unsigned(threads),
               size_t(triangle_bytes(blocks, call.element)), call.a, call.out, call.info, call.batch, int(call.n));
}

struct Progress {
  void *ticket, *rows, *failed;
};

constexpr size_t TICKET_BYTES = 16;

bool fits_block(const Call& call, const Properties& device) {
  return call.n <= MAX_BLOCK_N && triangle_bytes((call.n + 31) / 32, call.element) + 2048 <= device.shared_per_block;
}

// two 64 x 64 tiles, or two stages of two operands of 64 rows of 128 bytes and their padding
int64_t tiled_bytes(const Call& call) {
  return std::max(2 * TILE * (TILE * call.element + 16), 4 * TILE * (128 + (call.dtype == F64 ? 32 : 16)));
}

}  // namespace

int cholesky_batched(Frame& frame) {
  // the largest n whose matrix one thread holds in registers
  constexpr int64_t thread_limit[] = {8, 8, 8, 5};
  const Call call(frame);
  if (call.n <= thread_limit[frame.dtype]) return launch_thread(frame, call);
  return call.n <= 32 ? launch_rows(frame, call) : launch_block(frame, call);
}

bool cholesky_batched_fits(const Frame& frame, const Properties& device) {
  const Call call(frame);
  return call.n <= 32 || fits_block(call, device);
}

bool cholesky_tiled_fits(const Frame& frame, const Properties& device) {
  return tiled_bytes(Call(frame)) + 4096 <= device.shared_per_block;
}

size_t cholesky_tiled_scratch(const Frame& frame) {
  int64_t batch = frame.size[0], tiles = (frame.size[1] + TILE - 1) / TILE;
  return TICKET_BYTES + size_t(batch) * size_t(tiles + 1) * sizeof(int32_t);
}

int cholesky_tiled(Frame& frame) {
  const Call call(frame);
  const Properties* device = properties(frame);
  if (!device) return 1;
  const int64_t tiles = (call.n + TILE - 1) / TILE;

  // Many matrices fill the GPU: what counts is how many tiles are under way. A few leave it waiting for the heads: what
  // counts is how fast one goes. H200, 2026-11-15: 4 warps x 4 blocks beat 8 x 2 and 4 x 5 by 20 % for float, not for double.
  const bool many = call.batch * tiles >= 6 * device->multiprocessors;
  const int warps = many && frame.dtype == F32 ? 4 : 8;
  const int resident = warps == 4 ? 4 : frame.dtype == C128 ? 1 : 2;  // blocks on one multiprocessor
  const std::string choice = call.options(call.n * call.element, " -DLW_RESIDENT=%d -DLW_WARPS=%d -DLW_EARLY=%d", resident,
                                          warps, int(!many));
  const size_t bytes = cholesky_tiled_scratch(frame);
  char* work = scratch(frame, bytes);
  if (!work || fill(frame, work, 0, bytes)) return 1;
  auto* rows = reinterpret_cast<int32_t*>(work + TICKET_BYTES);
  const Progress progress{work, rows, rows + call.batch * tiles};

  const int64_t tasks = (1 + tiles * (tiles - 1) / 2) * call.batch;
  const int64_t blocks = std::min<int64_t>(tasks, int64_t(device->multiprocessors) * resident);
  // matrices side by side: enough that there is work on another one while one waits
  const int64_t group = std::clamp<int64_t>(12 * device->multiprocessors / tiles, 1, call.batch);
  const int64_t parts = std::clamp<int64_t>(call.n * call.n / 65536, 1, 64);
  return start(frame, "tiled.cu", choice, "cholesky_tiled", grid_for(blocks), unsigned(32 * warps), size_t(tiled_bytes(call)),
               call.a, call.out, call.batch, call.n, group, progress) ||
         start(frame, "tiled.cu", choice, "cholesky_settle", grid_for(call.batch * parts), 256, 0, call.out, call.info,
               call.batch, call.n, parts, progress.failed);
}

int finite(Frame& frame) {
  Call call(frame);
  call.out = call.a;  // only the input's alignment counts
  auto* flags = static_cast<int32_t*>(frame.buffer[1]);
  const std::string choice = call.options(call.element);
  if (start(frame, "triangle.cu", choice, "finite_start", grid_for((call.batch + 255) / 256), 256, 0, flags, call.batch))
    return 1;
  if (call.n == 0) return 0;
  const int count = int(std::max<int64_t>(1, 8192 / (call.n * call.n)));
  if (call.n <= 64)
    return start(frame, "triangle.cu", choice, "finite_small", grid_for((call.batch + count - 1) / count), 256, 0, call.a, flags,
                 call.batch, int(call.n), count);
  return start(frame, "triangle.cu", choice, "finite_large", grid_for((call.batch * call.n + 7) / 8), 256, 0, call.a, flags,
               call.batch, call.n);
}

namespace {

int64_t tile_pairs(const Call& call) {
  const int64_t edge = call.element == 4 ? 64 : 32, tiles = (call.n + edge - 1) / edge;  // EDGE in triangle.cu
  return call.batch * (tiles * (tiles + 1) / 2);
}

}  // namespace

int transpose_in(Frame& frame) {
  const Call call(frame);
  if (call.upper && call.a == call.out) return 0;
  return start(frame, "triangle.cu", call.options(call.element), "transpose_in", grid_for(tile_pairs(call)), 256, 0, call.a,
               call.out, call.batch, call.n);
}

int finish(Frame& frame) {
  Call call(frame);
  call.a = call.out;
  const std::string choice = call.options(call.element);
  return start(frame, "triangle.cu", choice, "check_diagonal", grid_for(call.batch), 1024, 0, call.out, call.info, call.batch,
               call.n) ||
         start(frame, "triangle.cu", choice, "finish", grid_for(tile_pairs(call)), 256, 0, call.out, call.info, call.batch,
               call.n);
}

}  // namespace lapwing::cuda
