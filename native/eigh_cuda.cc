#include "eigh_cuda.h"

#include <algorithm>
#include <cstdio>
#include <string>

namespace lapwing::cuda {
namespace {

constexpr int64_t MAX_GRID = 2147483647;      // the kernels stride over what does not fit
constexpr int64_t SCRATCH_GOAL = 512LL << 20;  // a larger batch goes in parts that need about this much
constexpr int64_t RESERVED = 2048;             // of a block's shared memory, for the compiler and the driver

struct Call {
  int64_t batch, n, first, count;
  int64_t element, real;  // bytes
  int32_t dtype, real_dtype;
  bool upper, vectors;
  char* a;
  char* w;
  char* v;
  int32_t* info;
};

Call read(const Frame& frame) {
  bool vectors = frame.op == EIGH, is_complex = frame.dtype >= C64;
  Call call{};
  call.batch = frame.size[0];
  call.n = frame.size[1];
  call.first = frame.size[2];
  call.count = frame.size[3];
  call.element = int64_t(size_of(frame.dtype));
  call.real = is_complex ? call.element / 2 : call.element;
  call.dtype = frame.dtype;
  call.real_dtype = is_complex ? frame.dtype - 2 : frame.dtype;
  call.upper = frame.flags & UPPER;
  call.vectors = vectors;
  call.a = static_cast<char*>(frame.buffer[0]);
  call.w = static_cast<char*>(frame.buffer[1]);
  call.v = vectors ? static_cast<char*>(frame.buffer[2]) : nullptr;
  call.info = static_cast<int32_t*>(frame.buffer[vectors ? 3 : 2]);
  return call;
}

int64_t power_of_two(int64_t at_least) {
  int64_t p = 1;
  while (p < at_least) p *= 2;
  return p;
}

Grid grid_for(int64_t blocks) { return {unsigned(std::clamp<int64_t>(blocks, 1, MAX_GRID))}; }

// The widest access, in bytes, that an address allows.
int access_width(const void* a, const void* b = nullptr) {
  auto bits = reinterpret_cast<uintptr_t>(a) | reinterpret_cast<uintptr_t>(b);
  return bits % 16 == 0 ? 16 : bits % 8 == 0 ? 8 : 4;
}

std::string options(int dtype, bool upper, int width, const char* more) {
  char text[200];
  std::snprintf(text, sizeof text, "-DLW_DTYPE=%d -DLW_UPPER=%d -DLW_V=%d %s", dtype, upper, width, more);
  return text;
}

// ---- a thread per matrix: eigh_small.cu --------------------------------------------------------------------------

// The largest n whose matrix and vectors one thread holds in registers.
bool is_small(const Call& call) {
  constexpr int64_t limit[] = {8, 6, 5, 4};
  return call.n <= limit[call.dtype];
}

int launch_small(Frame& frame, const Call& call) {
  int64_t bytes = call.n * call.n * call.element, pitch = bytes % 16 ? bytes : (bytes / 16 | 1) * 16;  // PITCH
  int threads = pitch * 128 <= 20 * 1024 ? 128 : 64;
  size_t shared = size_t(threads * (pitch + call.n * call.real));
  char more[80];
  std::snprintf(more, sizeof more, "-DLW_N=%d -DLW_THREADS=%d -DLW_VECTORS=%d", int(call.n), threads, call.vectors);
  std::string choice = options(call.dtype, call.upper, access_width(call.a, call.v), more);
  void* kernel = function(frame, "eigh_small.cu", choice.c_str(), "eigh_small", shared);
  if (!kernel) return 1;
  int64_t batch = call.batch;
  int first = int(call.first), count = int(call.count);
  const void *a = call.a, *w = call.w, *v = call.v, *info = call.info;
  void* arguments[] = {&a, &w, &v, &info, &batch, &first, &count};
  return launch(frame, kernel, grid_for((batch + threads - 1) / threads), unsigned(threads), shared, arguments);
}

// ---- three stages: eigh.cu, eigh_vectors.cu ----------------------------------------------------------------------

// How a problem is spread over threads and memory.
struct Shape {
  int reduce_lanes, reduce_threads;
  bool reduce_global;  // the matrix does not fit in shared memory
  size_t reduce_shared;
  int value_lanes;  // matrices of a warp
  size_t value_shared;
  int vector_lanes, together, reflectors, vector_threads;
  bool vector_global;
  size_t vector_shared;
};

constexpr int VALUE_THREADS = 32;

Shape shape_of(const Call& call, const Properties& device) {
  Shape s{};
  int64_t n = call.n, vec = 16 / call.element, columns = (n + vec - 1) / vec;

  s.reduce_lanes = int(std::clamp<int64_t>(n > 128 ? 2 * power_of_two(n) : power_of_two(n), 8, 1024));
  auto reduce_bytes = [&](bool global) {
    int64_t lanes = s.reduce_lanes, matrix = global ? 0 : n * (columns | 1) * vec;
    int64_t one = (matrix + 3 * columns * vec + (lanes + 1) * vec) * call.element;
    return lanes <= 32 ? one * (s.reduce_threads / lanes) : one + 4 * (lanes / 32) * call.real;
  };
  s.reduce_threads = std::max(s.reduce_lanes, 64);
  s.reduce_global = reduce_bytes(false) + RESERVED > device.shared_per_block;
  s.reduce_shared = size_t(reduce_bytes(s.reduce_global));

  // a lane per matrix, but enough warps to fill the GPU and hide each other's waiting
  int64_t lanes = power_of_two(call.batch / (8 * device.multiprocessors));
  int64_t most = std::max<int64_t>(1, 32 * 1024 / (2 * n * call.real));
  while (lanes > most || lanes > 32) lanes /= 2;
  s.value_lanes = int(lanes);
  s.value_shared = size_t(2 * n * lanes * call.real);

  s.vector_lanes = n <= 8 ? 8 : n <= 16 ? 16 : 32;
  s.together = n <= 64 ? 4 : 8;
  s.reflectors = 4;
  s.vector_threads = 64;
  auto vector_bytes = [&](bool global) {
    int64_t stage = 32 * std::max<int64_t>(s.together * 2 * call.real, s.reflectors * call.element);
    int64_t one = stage + (global ? 32 : n) * 33 * call.element;
    return (one + 15) / 16 * 16 * (s.vector_threads / 32);
  };
  s.vector_global = vector_bytes(false) > 36 * 1024 * s.vector_threads / 32;
  s.vector_shared = size_t(vector_bytes(s.vector_global));
  return s;
}

// What one part of the batch needs between the stages.
struct Layout {
  int64_t matrices;  // of a part
  int64_t rotations, sweeps, pitch, parts;
  size_t reflectors, factors, diagonal, off, scale, rotation, sweep, sweep_count, order, rows;  // offsets
  size_t bytes = 0;

  Layout(const Call& call, const Shape& shape, const Properties& device) {
    int64_t n = call.n, vec = 16 / call.element;
    pitch = (n + vec - 1) / vec * vec;
    parts = (n + 31) / 32;
    // about 0.8 n^2 rotations in 1.7 n sweeps are the rule
    rotations = n * n + n * n / 2 + 32 * n;
    sweeps = 6 * n + 32;
    layout(call, shape, 1);
    int64_t least = std::min<int64_t>(call.batch, device.multiprocessors);
    int64_t fit = std::clamp<int64_t>(SCRATCH_GOAL / int64_t(bytes), least, call.batch), rounds = (call.batch + fit - 1) / fit;
    layout(call, shape, (call.batch + rounds - 1) / rounds);
  }

 private:
  void layout(const Call& call, const Shape& shape, int64_t count) {
    matrices = count;
    bytes = 256;  // to align the start
    auto take = [&](int64_t size) {
      size_t at = bytes - 256;
      bytes += size_t((size * count + 255) / 256 * 256);
      return at;
    };
    int64_t n = call.n, vectors = call.vectors;
    reflectors = take(vectors || shape.reduce_global ? n * pitch * call.element : 0);
    factors = take(n * call.element);
    diagonal = take(n * call.real);
    off = take(n * call.real);
    scale = take(call.real);
    rotation = take(vectors * rotations * 2 * call.real);
    sweep = take(vectors * sweeps * 16);
    sweep_count = take(vectors * 4);
    order = take(vectors * n * 4);
    rows = take(vectors && shape.vector_global ? parts * n * 32 * call.element : 0);
  }
};

// The matrices from `start` on that one part has room for.
int launch_part(Frame& frame, const Call& call, const Shape& shape, const Layout& scratch, char* room, int64_t start) {
  int64_t batch = std::min(scratch.matrices, call.batch - start);
  int n = int(call.n), first = int(call.first), count = int(call.count), pitch = int(scratch.pitch), keep = call.vectors;
  int sweep_room = int(scratch.sweeps);
  int64_t rotation_room = scratch.rotations;
  char more[120];
  auto at = [&](size_t offset) { return static_cast<void*>(room + offset); };
  void *reflectors = at(scratch.reflectors), *factors = at(scratch.factors), *diagonal = at(scratch.diagonal);
  void *off = at(scratch.off), *scale = at(scratch.scale), *rotation = nullptr, *sweep = nullptr, *sweep_count = nullptr;
  void *order = nullptr, *rows = at(scratch.rows);
  if (call.vectors) {
    rotation = at(scratch.rotation);
    sweep = at(scratch.sweep);
    sweep_count = at(scratch.sweep_count);
    order = at(scratch.order);
  }
  void* a = call.a + start * call.n * call.n * call.element;
  void* w = call.w + start * call.count * call.real;
  void* info = call.info + start;

  std::snprintf(more, sizeof more, "-DLW_KERNEL=0 -DLW_P=%d -DLW_THREADS=%d -DLW_GLOBAL=%d", shape.reduce_lanes,
                shape.reduce_threads, shape.reduce_global);
  std::string choice = options(call.dtype, call.upper, access_width(call.a), more);
  void* reduce = function(frame, "eigh.cu", choice.c_str(), "eigh_reduce", shape.reduce_shared);
  std::snprintf(more, sizeof more, "-DLW_KERNEL=1 -DLW_M=%d -DLW_THREADS=%d", shape.value_lanes, VALUE_THREADS);
  choice = options(call.real_dtype, false, 16, more);
  void* values = function(frame, "eigh.cu", choice.c_str(), "eigh_values", shape.value_shared);
  if (!reduce || !values) return 1;

  void* reduce_arguments[] = {&a, &reflectors, &diagonal, &off, &factors, &scale, &info, &batch, &n, &pitch, &keep};
  int64_t matrices = shape.reduce_threads / shape.reduce_lanes;
  if (launch(frame, reduce, grid_for((batch + matrices - 1) / matrices), unsigned(shape.reduce_threads), shape.reduce_shared,
             reduce_arguments))
    return 1;
  void* value_arguments[] = {&diagonal, &off,   &scale, &rotation, &sweep, &sweep_count,   &order,     &w,
                             &info,     &batch, &n,     &first,    &count, &rotation_room, &sweep_room};
  if (launch(frame, values, grid_for((batch + shape.value_lanes - 1) / shape.value_lanes), VALUE_THREADS, shape.value_shared,
             value_arguments))
    return 1;
  if (!call.vectors) return 0;

  void* v = call.v + start * call.n * call.count * call.element;
  std::snprintf(more, sizeof more, "-DLW_P=%d -DLW_K=%d -DLW_B=%d -DLW_THREADS=%d -DLW_GLOBAL=%d", shape.vector_lanes,
                shape.together, shape.reflectors, shape.vector_threads, shape.vector_global);
  choice = options(call.dtype, false, access_width(call.v), more);
  void* vectors = function(frame, "eigh_vectors.cu", choice.c_str(), "eigh_vectors", shape.vector_shared);
  if (!vectors) return 1;
  void* vector_arguments[] = {&reflectors, &factors, &rotation, &sweep, &sweep_count, &order, &info,          &rows,
                              &v,          &batch,   &n,        &first, &count,       &pitch, &rotation_room, &sweep_room};
  int64_t units = n <= 16 ? (batch * shape.vector_lanes + 31) / 32 : batch * scratch.parts, warps = shape.vector_threads / 32;
  return launch(frame, vectors, grid_for((units + warps - 1) / warps), unsigned(shape.vector_threads), shape.vector_shared,
                vector_arguments);
}

}  // namespace

int eigh_batched(Frame& frame) {
  Call call = read(frame);
  if (call.batch == 0 || call.n == 0 || call.count == 0) return 0;
  const Properties* device = properties(frame);
  if (!device) return 1;
  if (!eigh_fits(frame, *device)) return fail(frame, "engine batched: n = %lld is too large for this GPU", (long long)call.n);
  if (is_small(call)) return launch_small(frame, call);
  Shape shape = shape_of(call, *device);
  Layout scratch(call, shape, *device);
  char* room = frame.scratch.get ? static_cast<char*>(frame.scratch.get(frame.scratch.self, scratch.bytes)) : nullptr;
  if (!room) return fail(frame, "no GPU memory for a workspace of %zu bytes", scratch.bytes);
  room = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(room) + 255) / 256 * 256);
  for (int64_t start = 0; start < call.batch; start += scratch.matrices)
    if (launch_part(frame, call, shape, scratch, room, start)) return 1;
  return 0;
}

size_t eigh_batched_scratch(const Frame& frame, const Properties& device) {
  Call call = read(frame);
  if (call.batch == 0 || call.n == 0 || call.count == 0 || is_small(call)) return 0;
  return Layout(call, shape_of(call, device), device).bytes;
}

bool eigh_fits(const Frame& frame, const Properties& device) {
  Call call = read(frame);
  if (is_small(call)) return true;
  if (call.n > EIGH_LARGEST) return false;
  Shape shape = shape_of(call, device);
  size_t most = size_t(device.shared_per_block - RESERVED);
  return shape.reduce_shared <= most && shape.value_shared <= most && shape.vector_shared <= most;
}

}  // namespace lapwing::cuda
