#include "gpu/eig.h"

#include <algorithm>
#include <string>

namespace lapwing::cuda {
namespace {

constexpr int64_t WARP = 32;

// LW_MODE and LW_GLOBAL of eig.cuh
enum Mode { VALUES, VECTORS, SCHUR_FORM };
enum Global { Z = 1, H = 2 };  // in global memory; may be both

Mode mode_of(const Frame& frame) { return frame.op == EIGVALS ? VALUES : frame.op == EIG ? VECTORS : SCHUR_FORM; }

// Eig in eig.cuh
struct Call {
  void *a, *w, *t, *z, *v, *info, *scratch;
  int64_t batch;
  int32_t n;
};

Call read(const Frame& frame) {
  void* const* at = frame.buffer;
  Call call{at[0], nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, frame.size[0], int32_t(frame.size[1])};
  switch (mode_of(frame)) {
    case VALUES: call.w = at[1], call.info = at[2]; break;
    case VECTORS: call.w = at[1], call.v = at[2], call.info = at[3]; break;
    case SCHUR_FORM: call.t = at[1], call.z = at[2], call.info = at[3]; break;
  }
  return call;
}

// How a problem is spread over threads and memory.
struct Shape {
  int lanes, threads, rows, global;  // LW_P, LW_THREADS, LW_ROWS, LW_GLOBAL
  int64_t blocks;
  size_t shared, scratch;
};

// Whether a thread has a matrix, else a warp. Of order 8 on an H200, float64: 1,000 matrices take 0.46 ms with a thread each and
// 0.15 ms with a warp each, 20,000 take 0.59 and 2.4 ms.
bool is_thread(int64_t n, int64_t batch) { return n <= 4 || (n <= 8 && batch >= 4000); }

// Bytes of shared memory of a block: the pieces that eig.cu takes from its Pool
size_t shared_bytes(const Frame& frame, const Shape& shape) {
  const int64_t n = frame.size[1], element = int64_t(size_of(frame.dtype)), real = frame.dtype >= C64 ? element / 2 : element;
  const int64_t groups = std::max<int64_t>(1, shape.lanes / WARP), stride = shape.lanes == 1 ? shape.threads + 1 : 1;
  const int64_t pitch = shape.lanes == 1 ? n : n | 1, matrix = n * pitch * stride * element;
  const int64_t lists = shape.lanes > WARP ? 2 : 1, mode = mode_of(frame);
  const int64_t per_row = mode == VECTORS ? std::max(3 * lists, 2 * groups) : 3 * lists;
  int64_t bytes = 0;
  auto take = [&](int64_t size) { bytes += (size + 15) / 16 * 16; };
  take(shape.global & H ? 0 : matrix);
  take(mode == VALUES || shape.global & Z ? 0 : matrix);
  take(n * per_row * stride * real);
  take(2 * n * stride * 4);
  take(shape.lanes > WARP ? 32 : 0);
  take(shape.lanes > WARP ? groups * real : 0);
  return size_t(bytes);
}

// Blocks that have room on the GPU at a time, by their shared memory
int64_t resident(const Shape& shape, const Properties& device) {
  return std::max<int64_t>(1, device.shared_per_block / int64_t(shape.shared)) * device.multiprocessors;
}

Shape shape_of(const Frame& frame, const Properties& device) {
  const int64_t batch = frame.size[0], n = frame.size[1];
  Shape shape{};
  if (is_thread(n, batch)) {
    shape.lanes = 1;
    shape.threads = int(WARP);
    shape.rows = int(n);
    shape.blocks = (batch + WARP - 1) / WARP;
    shape.shared = shared_bytes(frame, shape);
    if (shape.shared <= size_t(device.shared_per_block)) return shape;
    shape = {};
  }
  shape.lanes = shape.threads = n <= WARP ? int(WARP) : n <= 64 ? 128 : 256;
  shape.rows = n <= WARP ? 1 : n <= 64 ? 2 : 4;
  const bool has_z = mode_of(frame) != VALUES;
  shape.shared = shared_bytes(frame, shape);
  // Z leaves shared memory where H and Z fill it and matrices wait: 256 of order 64 in complex128 take 4.5 ms on an H200 instead
  // of 7.3. Where three of them have room (float64), all at a time are as fast with Z in shared memory.
  const bool crowded = has_z && batch > resident(shape, device) && 2 * shape.shared > size_t(device.shared_per_block);
  if (crowded) {
    shape.global = Z;
    shape.shared = shared_bytes(frame, shape);
  }
  for (int global : {has_z ? int(Z) : int(H), Z | H}) {
    if (shape.shared <= size_t(device.shared_per_block)) break;
    shape.global = global;
    shape.shared = shared_bytes(frame, shape);
  }
  shape.blocks = batch;
  if (shape.global) {  // no more blocks than have room at a time, so that the scratch memory stays small
    shape.blocks = std::min(batch, resident(shape, device));
    shape.scratch = size_t(shape.blocks * (shape.global & H ? 2 : 1) * n * n * int64_t(size_of(frame.dtype)));
  }
  return shape;
}

constexpr size_t ALIGNMENT = 256;

}  // namespace

int eig_batched(Frame& frame) {
  const Properties* device = properties(frame);
  if (!device) return 1;
  const Shape shape = shape_of(frame, *device);
  Call call = read(frame);
  if (shape.scratch) {
    char* room = scratch(frame, shape.scratch + ALIGNMENT);
    if (!room) return 1;
    call.scratch = reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(room) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
  }
  const std::string choice = options(frame.dtype, false, access_width({call.a, call.t, call.z}),
                                     " -DLW_MODE=%d -DLW_P=%d -DLW_THREADS=%d -DLW_ROWS=%d -DLW_GLOBAL=%d -DLW_N=%d",
                                     int(mode_of(frame)), shape.lanes, shape.threads, shape.rows, shape.global,
                                     shape.lanes == 1 ? int(call.n) : 0);
  return start(frame, "eig.cu", choice, "eig", grid_for(shape.blocks), unsigned(shape.threads), shape.shared, call);
}

size_t eig_batched_scratch(const Frame& frame, const Properties& device) {
  const size_t bytes = shape_of(frame, device).scratch;
  return bytes ? bytes + ALIGNMENT : 0;
}

bool eig_fits(const Frame& frame, const Properties& device) {
  return frame.size[1] <= EIG_LARGEST && shape_of(frame, device).shared <= size_t(device.shared_per_block);
}

}  // namespace lapwing::cuda
