#include "gpu/eigh.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "gpu/blocked_qr.h"
#include "gpu/reduce.h"
#include "gpu/vendor.h"

namespace lapwing::cuda {
namespace {

constexpr int64_t SCRATCH_GOAL = 1LL << 30;  // a larger batch goes in parts that need about this much
constexpr int64_t RESERVED = 2048;           // of a block's shared memory, for the compiler and the driver

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

// ---- a thread per matrix: eigh_small.cu --------------------------------------------------------------------------

// The largest n whose matrix and vectors one thread holds in registers. H200, 2026-11-15: 100,000 of n = 8 take 0.09 ms in
// float and 0.17 in double, by stages 0.59 and 0.82.
bool is_small(const Call& call) {
  constexpr int64_t limit[] = {8, 8, 6, 4};
  return call.n <= limit[call.dtype];
}

int launch_small(Frame& frame, const Call& call) {
  const int64_t bytes = call.n * call.n * call.element, pitch = bytes % 16 ? bytes : (bytes / 16 | 1) * 16;  // PITCH
  const int threads = pitch * 128 <= 20 * 1024 ? 128 : 64;
  const std::string choice = options(call.dtype, call.upper, access_width({call.a, call.v}),
                                     " -DLW_N=%d -DLW_THREADS=%d -DLW_VECTORS=%d", int(call.n), threads, call.vectors);
  return start(frame, "eigh_small.cu", choice, "eigh_small", grid_for((call.batch + threads - 1) / threads), unsigned(threads),
               size_t(threads * (pitch + call.n * call.real)), call.a, call.w, call.v, call.info, call.batch, int(call.first),
               int(call.count));
}

// ---- three stages: eigh.cu, eigh_vectors.cu ----------------------------------------------------------------------

// How a problem is spread over threads and memory.
struct Shape {
  int reduce_lanes, reduce_threads;
  bool reduce_global;  // the matrix does not fit in shared memory: eigh_panel.cu
  int panel, readers, resident;
  size_t reduce_shared;
  int value_lanes;  // matrices of a warp
  size_t value_shared;
  int vector_lanes, together, reflectors, vector_threads;
  bool vector_global;
  size_t vector_shared;
};

constexpr int VALUE_THREADS = 32;
constexpr int64_t LARGEST_OF_ROTATIONS = 512;
constexpr int64_t EIGH_SHARED = 192;  // beyond it the shared memory of a multiprocessor holds one matrix at best

Shape shape_of(const Call& call, const Properties& device) {
  Shape s{};
  int64_t n = call.n, vec = 16 / call.element, columns = (n + vec - 1) / vec;

  s.reduce_lanes = int(std::max<int64_t>(8, power_of_two(n)));
  if (n > 32 && call.element > 4) s.reduce_lanes *= 2;
  s.reduce_threads = std::max(s.reduce_lanes, 64);
  int64_t vectors = n * (columns | 1) + 3 * columns + s.reduce_lanes + 2;
  s.reduce_shared = size_t(vectors * 16 * (s.reduce_lanes <= 32 ? s.reduce_threads / s.reduce_lanes : 1));
  if (s.reduce_lanes > 32) s.reduce_shared += size_t(4 * (s.reduce_lanes / 32) * call.real);
  s.reduce_global = n > EIGH_SHARED || int64_t(s.reduce_shared) + RESERVED > device.shared_per_block;
  if (s.reduce_global) {
    s.reduce_threads = s.reduce_lanes = n <= 256 ? 256 : 512;
    s.resident = n <= 256 ? 2 : 1;
    s.panel = call.element == 16 ? 8 : 16;
    s.readers = call.element == 16 ? 8 : s.reduce_threads / 32;
    int64_t length = (n + 7) / 8 * 8;
    s.reduce_shared = size_t(((2 * s.panel + 1 + s.readers) * length + 2 * s.panel + vec) * call.element +
                             2 * (s.reduce_threads / 32) * call.real);
  }

  // a lane per matrix, but enough warps to fill the GPU and hide each other's waiting
  int64_t warps = 5 * device.multiprocessors, lanes = power_of_two((call.batch + warps / 2) / warps);
  auto value_bytes = [&](int64_t m) {
    int64_t kept = call.vectors ? 2 * n * (m == 1 ? 1 : m + 1) : 0;
    return ((2 + 2 * n) * m + kept) * call.real;
  };
  while (lanes > 1 && (lanes > 16 || value_bytes(lanes) > 32 * 1024)) lanes /= 2;
  s.value_lanes = int(lanes);
  s.value_shared = size_t(value_bytes(lanes));

  s.vector_lanes = n <= 8 ? 8 : n <= 16 ? 16 : 32;
  // wider passes cost registers and time to compile
  bool is_complex = call.dtype >= C64;
  s.together = n < 64 ? 4 : n < 256 || is_complex ? 8 : 16;
  s.reflectors = n < 128 || is_complex ? 4 : 8;
  s.vector_threads = n * call.element <= 512 ? 64 : 32;
  auto vector_bytes = [&](bool global) {
    int64_t stage = 32 * std::max<int64_t>(s.together * 2 * call.real, s.reflectors * call.element);
    int64_t one = stage + (global ? 32 : n) * 33 * call.element;
    return (one + 15) / 16 * 16 * (s.vector_threads / 32);
  };
  s.vector_global = vector_bytes(false) > 73 * 1024;  // three warps on a multiprocessor, at least
  s.vector_shared = size_t(vector_bytes(s.vector_global));
  return s;
}

// What one part of the batch needs between the stages.
struct Layout {
  int64_t matrices;  // of a part
  int64_t rotations, sweeps, pitch, parts;
  size_t sweep_count, reflectors, factors, diagonal, off, scale, rotation, sweep, order, rows;  // offsets
  size_t bytes = 0;

  Layout(const Call& call, const Shape& shape, const Properties& device) {
    int64_t n = call.n, vec = 16 / call.element;
    pitch = (n + vec - 1) / vec * vec;
    parts = (n + 31) / 32;
    // 1.15 n^2 rotations in 2.2 n sweeps are the most that double precision was seen to take, float a fifth less
    rotations = 2 * n * n + 16 * n;
    sweeps = 5 * n + 32;
    layout(call, shape, 1);
    int64_t least = std::min<int64_t>(call.batch, 2 * device.multiprocessors);
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
    sweep_count = take(vectors * 4);
    reflectors = take(vectors || shape.reduce_global ? n * pitch * call.element : 0);
    factors = take(n * call.element);
    diagonal = take(n * call.real);
    off = take(n * call.real);
    scale = take(call.real);
    rotation = take(vectors * rotations * 2 * call.real);
    sweep = take(vectors * sweeps * 8);
    order = take(vectors * n * 4);
    rows = take(vectors && shape.vector_global ? parts * n * 32 * call.element : 0);
  }
};

// As in eigh_ql.cuh and eigh_vectors.cu.
struct Values {
  void *d, *e, *up, *rotations, *sweeps, *sweep_count, *order, *w, *info;
  int64_t room;
  int sweep_room, n, first, count;
};
struct Vectors {
  void *h, *tau, *rotations, *sweeps, *sweep_count, *order, *info, *z, *v;
  int64_t room;
  int sweep_room, n, first, count, h_pitch;
};

int launch_reduce(Frame& frame, const Call& call, const Shape& shape, const Values& to, const Vectors& vectors, void* a,
                  int64_t batch) {
  const int width = access_width({call.a});
  const std::string choice =
      shape.reduce_global
          ? options(call.dtype, call.upper, width, " -DLW_THREADS=%d -DLW_NB=%d -DLW_READERS=%d -DLW_RESIDENT=%d",
                    shape.reduce_threads, shape.panel, shape.readers, shape.resident)
          : options(call.dtype, call.upper, width, " -DLW_KERNEL=0 -DLW_P=%d -DLW_THREADS=%d", shape.reduce_lanes,
                    shape.reduce_threads);
  const int64_t matrices = shape.reduce_threads / shape.reduce_lanes;
  return start(frame, shape.reduce_global ? "eigh_panel.cu" : "eigh.cu", choice,
               shape.reduce_global ? "eigh_panel" : "eigh_reduce", grid_for((batch + matrices - 1) / matrices),
               unsigned(shape.reduce_threads), shape.reduce_shared, a, vectors.h, to.d, to.e, vectors.tau, to.up, to.info, batch,
               int(call.n), vectors.h_pitch, int(call.vectors));
}

int launch_values(Frame& frame, const Call& call, const Shape& shape, const Values& values, int64_t batch) {
  const std::string choice = options(call.real_dtype, false, 16, " -DLW_KERNEL=1 -DLW_M=%d -DLW_THREADS=%d -DLW_VECTORS=%d",
                                     shape.value_lanes, VALUE_THREADS, call.vectors);
  return start(frame, "eigh.cu", choice, "eigh_values", grid_for((batch + shape.value_lanes - 1) / shape.value_lanes),
               VALUE_THREADS, shape.value_shared, values, batch);
}

int launch_vectors(Frame& frame, const Call& call, const Shape& shape, const Vectors& vectors, int64_t batch, int64_t parts) {
  const std::string choice = options(call.dtype, false, access_width({call.v}),
                                     " -DLW_P=%d -DLW_K=%d -DLW_B=%d -DLW_THREADS=%d -DLW_GLOBAL=%d",
                                     shape.vector_lanes, shape.together, shape.reflectors, shape.vector_threads,
                                     shape.vector_global);
  const int64_t warps = shape.vector_threads / 32;
  const int64_t units = call.n <= 16 ? (batch * shape.vector_lanes + 31) / 32 : batch * parts;
  return start(frame, "eigh_vectors.cu", choice, "eigh_vectors", grid_for((units + warps - 1) / warps),
               unsigned(shape.vector_threads), shape.vector_shared, vectors, batch);
}

// The matrices from `start` on that one part has room for.
int launch_part(Frame& frame, const Call& call, const Shape& shape, const Layout& scratch, char* room, int64_t start) {
  int64_t batch = std::min(scratch.matrices, call.batch - start);
  int sweeps = int(scratch.sweeps), n = int(call.n), first = int(call.first), count = int(call.count);
  auto at = [&](size_t offset) { return static_cast<void*>(room + offset); };
  auto kept = [&](size_t offset) { return call.vectors ? at(offset) : nullptr; };
  Values values{at(scratch.diagonal),    at(scratch.off),
                at(scratch.scale),       kept(scratch.rotation),
                kept(scratch.sweep),     kept(scratch.sweep_count),
                kept(scratch.order),     call.w + start * call.count * call.real,
                call.info + start,       scratch.rotations,
                sweeps,                  n,
                first,                   count};
  Vectors vectors{at(scratch.reflectors), at(scratch.factors), values.rotations,
                  values.sweeps,          values.sweep_count,  values.order,
                  values.info,            at(scratch.rows),    call.v + start * call.n * call.count * call.element,
                  scratch.rotations,      sweeps,              n,
                  first,                  count,               int(scratch.pitch)};
  void* a = call.a + start * call.n * call.n * call.element;
  if (launch_reduce(frame, call, shape, values, vectors, a, batch)) return 1;
  if (launch_values(frame, call, shape, values, batch)) return 1;
  return call.vectors ? launch_vectors(frame, call, shape, vectors, batch, scratch.parts) : 0;
}

// ---- by way of a tridiagonal matrix: reduce.h --------------------------------------------------------------------

// Which kernel reduces: a block for each matrix, as above, or teams of blocks.
struct Reduction {
  Shape shape;
  bool by_team, by_panels;

  Reduction(const Call& call, const Properties& gpu)
      : shape(shape_of(call, gpu)), by_panels(Tridiagonal::by_panels(call.dtype, call.batch, call.n, gpu)) {
    const bool fits = call.n <= LARGEST_OF_ROTATIONS && int64_t(shape.reduce_shared) + RESERVED <= gpu.shared_per_block;
    // H200, 2026-11-16, float, ms: 40 of n = 176 0.29, by teams 0.37; 40 of 352 2.2 and 1.15, 640 of 512 30 and 35; double: 40 of
    // 352 3.0 and 2.6
    constexpr double BY[] = {1, 1.4, 1.4, 3};
    const int64_t at_once = gpu.multiprocessors * std::max(shape.resident, 1), rounds = (call.batch + at_once - 1) / at_once;
    const double blocks_time = 5950 * BY[call.dtype] * std::pow(double(call.n) / 512, 2.6) * double(rounds);
    by_team = !fits || by_panels || (shape.reduce_global && blocks_time > Tridiagonal::team_time(call.dtype, call.batch, call.n, gpu));
  }
};

// The most matrices for which divide and conquer, or bisection, is faster than rotations: it waits less, and has more to do for each
// matrix. H200, 2026-11-19, ms, so and by rotations, with vectors: float32 one of n = 48 0.33 / 0.35, 512 of them 0.50 / 0.38; one of 100
// 0.46 / 0.87, 512 1.18 / 1.27; one of 144 0.56 / 1.50, 512 2.27 / 2.51; float64 one of 40 0.35 / 0.41, 512 0.58 / 0.46; one of 100
// 0.55 / 1.39, 512 1.66 / 2.42; complex128 one of 144 0.97 / 4.06, 512 6.2 / 11.1. Values alone: float64 one of 33 0.17 / 0.25, 512 of 64
// 0.42 / 0.61, 4096 2.26 / 1.29, 512 of 144 1.8 / 3.1. Before, from n = 150 on: float32 640 of 512 42 / 118.
int64_t most_reduced(const Call& call) {
  struct Limit {
    int64_t n, most;
  };
  constexpr int64_t ANY = std::numeric_limits<int64_t>::max();
  constexpr Limit SINGLE[] = {{150, ANY}, {128, 700}, {96, 512}, {64, 200}, {48, 120}, {0, 0}};
  constexpr Limit DOUBLE[] = {{100, ANY}, {80, 750}, {64, 400}, {48, 200}, {40, 64}, {0, 0}};
  constexpr Limit VALUES[] = {{150, ANY}, {100, 4000}, {80, 1800}, {48, 1000}, {33, 400}, {0, 0}};
  const Limit* limit = !call.vectors ? VALUES : call.dtype % 2 ? DOUBLE : SINGLE;
  while (call.n < limit->n) limit++;
  return limit->most;
}

bool is_reduced(const Call& call, const Properties& gpu) {
  return call.batch <= most_reduced(call) && call.n <= EIGH_LARGEST && Tridiagonal::fits(call.dtype, call.n, call.vectors, gpu);
}

Tridiagonal tridiagonal(Frame& frame, const Call& call, const Properties& gpu, int64_t batch) {
  const Reduction how(call, gpu);
  return {frame, gpu, batch, call.n, call.vectors, how.by_team, how.by_panels};
}

int64_t matrices_at_once(Frame& frame, const Call& call, const Properties& gpu) {
  const int64_t several = std::min<int64_t>(call.batch, gpu.multiprocessors);
  if (Reduction(call, gpu).by_panels) return 1;
  const int64_t each = int64_t(tridiagonal(frame, call, gpu, several).bytes()) / several, most = matrices_per_part(call.batch, each);
  return call.n > EIGH_SHARED ? most : std::min(most, SCRATCH_GOAL / each);  // so many small ones fill the GPU
}

// The last part has fewer matrices, but perhaps larger teams.
size_t reduced_bytes(Frame& frame, const Call& call, const Properties& gpu) {
  const int64_t step = matrices_at_once(frame, call, gpu), last = (call.batch - 1) % step + 1;
  return std::max(tridiagonal(frame, call, gpu, step).bytes(), tridiagonal(frame, call, gpu, last).bytes());
}

int reduce(Frame& frame, const Call& call, const Reduction& how, Tridiagonal& part, void* a, int64_t batch) {
  if (how.by_team) return part.reduce(a);
  const Tridiagonal::Places to = part.places();
  Values values{};
  values.d = to.d, values.e = to.e, values.up = to.up, values.info = to.info;
  Vectors vectors{};
  vectors.h = to.h, vectors.tau = to.tau, vectors.h_pitch = int(part.pitch());
  return launch_reduce(frame, call, how.shape, values, vectors, a, batch) || part.take();
}

int run_reduced(Frame& frame, const Call& call, const Properties& gpu) {
  const Reduction how(call, gpu);
  const int64_t step = matrices_at_once(frame, call, gpu);
  char* room = scratch(frame, reduced_bytes(frame, call, gpu));
  if (!room) return 1;
  for (int64_t first = 0; first < call.batch; first += step) {
    const int64_t count = std::min(step, call.batch - first);
    Tridiagonal part = tridiagonal(frame, call, gpu, count);
    char* w = call.w + first * call.count * call.real;
    if (part.place(room) || reduce(frame, call, how, part, call.a + first * call.n * call.n * call.element, count)) return 1;
    if (call.vectors ? part.vectors(w, call.v + first * call.n * call.count * call.element, call.info + first, call.first, call.count)
                     : part.values(w, call.info + first, call.first, call.count))
      return 1;
  }
  return 0;
}

}  // namespace

int64_t eigh_chosen(const Frame& frame) {
  // H200, 2026-11-16, ms with vectors, ours / cuSOLVER 12.0.4 (12.3.5): float32 n = 2048 10.9 / 24.8, 4096 42 / 89 (80), 8192 199 / 480
  // (316), 16384 1340 / 2029 (1446); float64 2048 16.5 / 27.1, 4096 61 / 109 (105), 8192 331 / 549 (401), 16384 2263 / 3190 (1996);
  // complex64 4096 74 / 120; complex128 2048 31 / 37, 4096 150 / 184. Values alone: float32 8192 163 / 433 (193), 16384 less than with
  // vectors / 1737 (583); float64 4096 57 / 100 (92), 8192 298 / 496 (214), 16384 less than with vectors / 2822 (617).
  constexpr int64_t CHOSEN[] = {16384, 16384, 4096, 4096};
  constexpr int64_t BESIDE_NEWEST[] = {16384, 8192}, VALUES_BESIDE_NEWEST[] = {8192, 5120};
  const bool always = frame.dtype > F64 || frame.size[1] <= VALUES_BESIDE_NEWEST[F64];  // where both copies lose
  if (always || vendor::missing(vendor::newest_solver)) return CHOSEN[frame.dtype];
  return (frame.op == EIGH ? BESIDE_NEWEST : VALUES_BESIDE_NEWEST)[frame.dtype];
}

bool eigh_is_reduced(const Frame& frame, const Properties& device) { return is_reduced(read(frame), device); }

int eigh_batched(Frame& frame) {
  Call call = read(frame);
  const Properties* device = properties(frame);
  if (!device) return 1;
  if (is_small(call)) return launch_small(frame, call);
  if (is_reduced(call, *device)) return run_reduced(frame, call, *device);
  Shape shape = shape_of(call, *device);
  Layout layout(call, shape, *device);
  char* room = scratch(frame, layout.bytes);
  if (!room) return 1;
  room = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(room) + 255) / 256 * 256);
  for (int64_t start = 0; start < call.batch; start += layout.matrices)
    if (launch_part(frame, call, shape, layout, room, start)) return 1;
  return 0;
}

size_t eigh_batched_scratch(const Frame& frame, const Properties& device) {
  Call call = read(frame);
  if (call.batch == 0 || call.n == 0 || call.count == 0 || is_small(call)) return 0;
  if (is_reduced(call, device)) {
    Frame own = frame;
    return reduced_bytes(own, call, device);
  }
  return Layout(call, shape_of(call, device), device).bytes;
}

bool eigh_needs_products(const Frame& frame, const Properties& device) {
  const Call call = read(frame);
  return is_reduced(call, device) && (call.vectors || Reduction(call, device).by_panels);
}

bool eigh_fits(const Frame& frame, const Properties& device) {
  Call call = read(frame);
  if (is_small(call)) return true;
  if (is_reduced(call, device)) return true;
  if (call.n > LARGEST_OF_ROTATIONS) return false;
  Shape shape = shape_of(call, device);
  size_t most = size_t(device.shared_per_block - RESERVED);
  return shape.reduce_shared <= most && shape.value_shared <= most && shape.vector_shared <= most;
}

}  // namespace lapwing::cuda
