#include "gpu/cholesky.h"

#include <algorithm>
#include <cstdio>
#include <string>

#include "gpu/cuda.h"

namespace lapwing::cuda {
namespace {

constexpr int64_t MAX_BLOCK_N = 128;      // cholesky_block keeps the triangle in shared memory
constexpr int64_t TILE = 64;              // of cholesky_tiled

struct Call {
  int64_t batch, n;
  int64_t element;  // bytes
  bool upper;
  void* a;
  void* out;
  int32_t* info;
};

Call read(const Frame& frame) {
  return {frame.size[0],
          frame.size[1],
          int64_t(size_of(frame.dtype)),
          bool(frame.flags & UPPER),
          frame.buffer[0],
          frame.buffer[1],
          static_cast<int32_t*>(frame.buffer[2])};
}

std::string options(const Frame& frame, int width, const char* more = "") {
  char text[160];
  std::snprintf(text, sizeof text, "-DLW_DTYPE=%d -DLW_UPPER=%d -DLW_V=%d%s", frame.dtype, bool(frame.flags & UPPER), width,
                more);
  return text;
}

// Rows of `bytes` bytes in shared memory start an odd number of access units apart: Stage in cholesky.cu.
int64_t staged(int64_t bytes) { return bytes % 16 ? bytes : (bytes / 16 | 1) * 16; }

int launch_thread(Frame& frame, Call call) {
  int64_t pitch = staged(call.n * call.n * call.element);
  int threads = pitch * 256 <= 36 * 1024 ? 256 : pitch * 128 <= 36 * 1024 ? 128 : 64;
  char more[80];
  std::snprintf(more, sizeof more, " -DLW_KERNEL=0 -DLW_N=%d -DLW_THREADS=%d", int(call.n), threads);
  size_t shared = size_t(pitch * threads);
  void* kernel = function(frame, "cholesky.cu", options(frame, access_width({call.a, call.out}, 16), more).c_str(), "cholesky_thread", shared);
  if (!kernel) return 1;
  void* arguments[] = {&call.a, &call.out, &call.info, &call.batch};
  return launch(frame, kernel, grid_for((call.batch + threads - 1) / threads), unsigned(threads), shared, arguments);
}

int launch_rows(Frame& frame, Call call) {
  constexpr int threads = 128;
  int lanes = 4;
  while (lanes < call.n) lanes *= 2;
  int matrices = threads / lanes;
  char more[80];
  std::snprintf(more, sizeof more, " -DLW_KERNEL=1 -DLW_N=%d -DLW_THREADS=%d", int(call.n), threads);
  size_t shared = size_t(matrices * call.n * staged(call.n * call.element));
  void* kernel = function(frame, "cholesky.cu", options(frame, access_width({call.a, call.out}, 16), more).c_str(), "cholesky_rows", shared);
  if (!kernel) return 1;
  void* arguments[] = {&call.a, &call.out, &call.info, &call.batch};
  return launch(frame, kernel, grid_for((call.batch + matrices - 1) / matrices), threads, shared, arguments);
}

// Shared memory of cholesky_block for n rounded up to `blocks` blocks of 32 rows.
int64_t triangle_bytes(int64_t blocks, int64_t element) {
  return 32 * (32 * blocks * (blocks + 1) / 2 * element + 16 * blocks);
}

int launch_block(Frame& frame, Call call) {
  int64_t blocks = (call.n + 31) / 32;
  unsigned threads = unsigned(32 * blocks);
  char more[80];
  // blocks on one multiprocessor, by dtype and n = 64, 96, 128: as many as registers and shared memory carry
  constexpr int resident[][3] = {{10, 6, 4}, {6, 4, 2}, {6, 4, 2}, {4, 2, 1}};
  std::snprintf(more, sizeof more, " -DLW_KERNEL=2 -DLW_N=%u -DLW_THREADS=%u -DLW_RESIDENT=%d", threads, threads,
                resident[frame.dtype][blocks - 2]);
  size_t shared = size_t(triangle_bytes(blocks, call.element));
  int width = access_width({call.a, call.out}, call.n * call.element);
  void* kernel = function(frame, "cholesky.cu", options(frame, width, more).c_str(), "cholesky_block", shared);
  if (!kernel) return 1;
  int n = int(call.n);
  void* arguments[] = {&call.a, &call.out, &call.info, &call.batch, &n};
  return launch(frame, kernel, grid_for(call.batch), threads, shared, arguments);
}

struct Progress {
  void *ticket, *rows, *failed;
};

constexpr size_t TICKET_BYTES = 16;

bool fits_block(const Call& call, const Properties& device) {
  return call.n <= MAX_BLOCK_N && triangle_bytes((call.n + 31) / 32, call.element) + 2048 <= device.shared_per_block;
}

// two 64 x 64 tiles, or two stages of two operands of 64 rows of 128 bytes and their padding
int64_t tiled_bytes(const Call& call, int32_t dtype) {
  return std::max(2 * TILE * (TILE * call.element + 16), 4 * TILE * (128 + (dtype == F64 ? 32 : 16)));
}

}  // namespace

int cholesky_batched(Frame& frame) {
  // the largest n whose matrix one thread holds in registers
  constexpr int64_t thread_limit[] = {8, 8, 8, 5};
  Call call = read(frame);
  if (call.n <= thread_limit[frame.dtype]) return launch_thread(frame, call);
  return call.n <= 32 ? launch_rows(frame, call) : launch_block(frame, call);
}

bool cholesky_batched_fits(const Frame& frame, const Properties& device) {
  const Call call = read(frame);
  return call.n <= 32 || fits_block(call, device);
}

bool cholesky_tiled_fits(const Frame& frame, const Properties& device) {
  return tiled_bytes(read(frame), frame.dtype) + 4096 <= device.shared_per_block;
}

size_t cholesky_tiled_scratch(const Frame& frame) {
  int64_t batch = frame.size[0], tiles = (frame.size[1] + TILE - 1) / TILE;
  return TICKET_BYTES + size_t(batch) * size_t(tiles + 1) * sizeof(int32_t);
}

int cholesky_tiled(Frame& frame) {
  Call call = read(frame);
  const Properties* device = properties(frame);
  if (!device) return 1;
  int64_t tiles = (call.n + TILE - 1) / TILE;
  size_t shared = size_t(tiled_bytes(call, frame.dtype));

  // Many matrices fill the GPU: what counts is how many tiles are under way. A few leave it waiting for the heads: what
  // counts is how fast one goes. H200, 2026-11-15: 4 warps x 4 blocks beat 8 x 2 and 4 x 5 by 20 % for float, not for double.
  bool many = call.batch * tiles >= 6 * device->multiprocessors;
  int warps = many && frame.dtype == F32 ? 4 : 8;
  int resident = warps == 4 ? 4 : frame.dtype == C128 ? 1 : 2;  // blocks on one multiprocessor
  char more[80];
  std::snprintf(more, sizeof more, " -DLW_RESIDENT=%d -DLW_WARPS=%d -DLW_EARLY=%d", resident, warps, !many);
  std::string choice = options(frame, access_width({call.a, call.out}, call.n * call.element), more);
  void* kernel = function(frame, "tiled.cu", choice.c_str(), "cholesky_tiled", shared);
  void* settle = function(frame, "tiled.cu", choice.c_str(), "cholesky_settle");
  if (!kernel || !settle) return 1;

  size_t bytes = cholesky_tiled_scratch(frame);
  char* work = scratch(frame, bytes);
  if (!work || fill(frame, work, 0, bytes)) return 1;
  auto* rows = reinterpret_cast<int32_t*>(work + TICKET_BYTES);
  Progress progress{work, rows, rows + call.batch * tiles};

  int64_t tasks = (1 + tiles * (tiles - 1) / 2) * call.batch;
  int64_t blocks = std::min<int64_t>(tasks, int64_t(device->multiprocessors) * resident);
  // matrices side by side: enough that one's waiting is always another's work
  int64_t group = std::clamp<int64_t>(12 * device->multiprocessors / tiles, 1, call.batch);
  void* arguments[] = {&call.a, &call.out, &call.batch, &call.n, &group, &progress};
  if (launch(frame, kernel, grid_for(blocks), unsigned(32 * warps), shared, arguments)) return 1;
  int64_t parts = std::clamp<int64_t>(call.n * call.n / 65536, 1, 64);
  void* last_arguments[] = {&call.out, &call.info, &call.batch, &call.n, &parts, &progress.failed};
  return launch(frame, settle, grid_for(call.batch * parts), 256, 0, last_arguments);
}

int finite(Frame& frame) {
  Call call = read(frame);
  call.out = call.a;  // only the input's alignment counts
  auto* flags = static_cast<int32_t*>(frame.buffer[1]);
  std::string choice = options(frame, access_width({call.a, call.out}, call.element));
  void* start = function(frame, "triangle.cu", choice.c_str(), "finite_start");
  bool small = call.n <= 64;
  void* kernel = function(frame, "triangle.cu", choice.c_str(), small ? "finite_small" : "finite_large");
  if (!start || !kernel) return 1;
  void* start_arguments[] = {&flags, &call.batch};
  if (launch(frame, start, grid_for((call.batch + 255) / 256), 256, 0, start_arguments)) return 1;
  if (call.n == 0) return 0;
  int n = int(call.n), count = int(std::max<int64_t>(1, 8192 / (call.n * call.n)));
  void* small_arguments[] = {&call.a, &flags, &call.batch, &n, &count};
  void* large_arguments[] = {&call.a, &flags, &call.batch, &call.n};
  int64_t blocks = small ? (call.batch + count - 1) / count : (call.batch * call.n + 7) / 8;
  return launch(frame, kernel, grid_for(blocks), 256, 0, small ? small_arguments : large_arguments);
}

namespace {

int64_t tile_pairs(const Call& call) {
  int64_t edge = call.element == 4 ? 64 : 32, tiles = (call.n + edge - 1) / edge;  // EDGE in triangle.cu
  return call.batch * (tiles * (tiles + 1) / 2);
}

}  // namespace

int transpose_in(Frame& frame) {
  Call call = read(frame);
  if (call.upper && call.a == call.out) return 0;
  void* kernel = function(frame, "triangle.cu", options(frame, access_width({call.a, call.out}, call.element)).c_str(), "transpose_in");
  if (!kernel) return 1;
  void* arguments[] = {&call.a, &call.out, &call.batch, &call.n};
  return launch(frame, kernel, grid_for(tile_pairs(call)), 256, 0, arguments);
}

int finish(Frame& frame) {
  Call call = read(frame);
  call.a = call.out;
  std::string choice = options(frame, access_width({call.a, call.out}, call.element));
  void* check = function(frame, "triangle.cu", choice.c_str(), "check_diagonal");
  void* kernel = function(frame, "triangle.cu", choice.c_str(), "finish");
  if (!check || !kernel) return 1;
  void* arguments[] = {&call.out, &call.info, &call.batch, &call.n};
  if (launch(frame, check, grid_for(call.batch), 1024, 0, arguments)) return 1;
  return launch(frame, kernel, grid_for(tile_pairs(call)), 256, 0, arguments);
}

}  // namespace lapwing::cuda
