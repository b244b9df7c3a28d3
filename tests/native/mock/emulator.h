// Runs a device source as host code: one block after the other, each thread a fiber that runs until the next barrier of its
// block or its warp. The fibers run in a random order, so that an answer that depends on the order shows up as a wrong answer.
// Blocks that wait for each other (LW_TEAM of them) run in turns, each with its own shared memory.
// Only what the sources use is here, and only dynamic shared memory.
#pragma once
#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#define __device__
#define __global__
#define __shared__
#define __forceinline__ inline __attribute__((always_inline))
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __launch_bounds__(...)
#define __CUDA_ARCH__ 800

using std::fabs;
using std::fma;
using std::fmax;
using std::ilogb;
using std::log;
using std::scalbn;
using std::sqrt;

namespace emulator {

constexpr int MOST_THREADS = 1024, MOST_TOGETHER = 16, MEMORY = 256 * 1024, GUARD = 4096;
struct Index {
  unsigned x = 0, y = 0, z = 0;
};

struct Gate {
  int arrived = 0, generation = 0, need = 0;
};

struct Warp {
  Gate gate;
  uint64_t slot[2][32];
};

// A block of threads and, while another one runs, its shared memory.
struct Block {
  Gate gate;
  Warp warps[MOST_THREADS / 32];
  Index index;
  std::vector<char> memory;
};

struct Fiber {
  ucontext_t context;
  std::unique_ptr<char[]> stack;
  Index index;
  bool done = true;
  int exchanges = 0;
};

inline Fiber fibers[MOST_TOGETHER][MOST_THREADS];
inline Block blocks_together[MOST_TOGETHER];
inline Block* block = blocks_together;  // the one that runs
inline Fiber* current = nullptr;
inline ucontext_t scheduler;
inline Index grid_size;
inline int progress = 0;
inline void (*body)() = nullptr;

inline void wait(Gate& gate) {
  const int generation = gate.generation;
  progress++;
  if (++gate.arrived == gate.need) {
    gate.arrived = 0;
    gate.generation++;
    return;
  }
  while (gate.generation == generation) swapcontext(&current->context, &scheduler);
}

// A thread that looks for what another one writes lets the others run.
inline void pause() { swapcontext(&current->context, &scheduler); }

inline Warp& own_warp() { return block->warps[current->index.x / 32]; }

// f(all 32 values) after every lane has brought its own. Two sets of slots: nobody is two exchanges ahead.
template <class V, class F>
auto exchange(V value, F f) {
  Warp& warp = own_warp();
  uint64_t* slots = warp.slot[current->exchanges++ % 2];
  std::memcpy(&slots[current->index.x % 32], &value, sizeof value);
  wait(warp.gate);
  return f([slots](int lane) {
    V x;
    std::memcpy(&x, &slots[lane], sizeof x);
    return x;
  });
}

inline void start() {
  body();
  current->done = true;
  progress++;
  swapcontext(&current->context, &scheduler);
}

inline void prepare(Block& block, Fiber* fibers, int threads) {
  constexpr size_t STACK = 128 * 1024;
  block.gate = {0, 0, threads};
  for (int w = 0; w < threads / 32; w++) block.warps[w].gate = {0, 0, 32};
  for (int t = 0; t < threads; t++) {
    Fiber& fiber = fibers[t];
    if (!fiber.stack) fiber.stack.reset(new char[STACK]);
    fiber.index.x = unsigned(t);
    fiber.done = false;
    fiber.exchanges = 0;
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.get();
    fiber.context.uc_stack.ss_size = STACK;
    fiber.context.uc_link = &scheduler;
    makecontext(&fiber.context, start, 0);
  }
}

// Runs each thread of a block until it waits; whether one of them is not done.
inline bool run_threads(Fiber* fibers, int threads) {
  bool open = false;
  // an odd step meets each number below a power of two once
  const int first = std::rand() % threads, step = 2 * (std::rand() % 64) + 1;
  int size = 1;
  while (size < threads) size *= 2;
  for (int k = 0; k < size; k++) {
    const int t = (first + k * step) % size;
    if (t >= threads || fibers[t].done) continue;
    open = true;
    current = &fibers[t];
    swapcontext(&scheduler, &current->context);
  }
  return open;
}

// Runs blocks to their end; 2 where threads wait for each other for ever, 3 where one wrote past its shared memory.
inline int run_blocks(int count, unsigned first, int threads, unsigned shared, char* memory) {
  std::memset(memory, 0xff, shared);
  std::memset(memory + shared, 0xa5, GUARD);
  for (int b = 0; b < count; b++) {
    blocks_together[b].index.x = first + unsigned(b);
    blocks_together[b].memory.assign(memory, memory + shared + GUARD);
    prepare(blocks_together[b], fibers[b], threads);
  }
  for (bool open = true; open;) {
    const int before = progress;
    open = false;
    for (int b = 0; b < count; b++) {
      block = &blocks_together[b];
      if (count > 1) std::memcpy(memory, block->memory.data(), shared + GUARD);
      open = run_threads(fibers[b], threads) || open;
      for (int i = 0; i < GUARD; i++)
        if (memory[shared + unsigned(i)] != char(0xa5)) return 3;
      if (count > 1) std::memcpy(block->memory.data(), memory, shared + GUARD);
    }
    if (open && progress == before) return 2;
  }
  return 0;
}

template <class... A, size_t... I>
void call(void (*kernel)(A...), void** arguments, std::index_sequence<I...>) {
  kernel(*static_cast<A*>(arguments[I])...);
}

template <class... A>
int launch(void (*kernel)(A...), void** arguments, unsigned blocks, unsigned threads, unsigned shared, char* memory,
           unsigned together) {
  static void (*target)(A...);
  static void** values;
  target = kernel, values = arguments;
  body = [] { call(target, values, std::index_sequence_for<A...>()); };
  if (threads % 32 || threads > MOST_THREADS || shared + GUARD > MEMORY || together > MOST_TOGETHER) return 1;
  if (blocks % together) together = 1;  // a kernel of the same source that has no teams
  grid_size.x = blocks;
  for (unsigned b = 0; b < blocks; b += together)
    if (const int status = run_blocks(int(together), b, int(threads), shared, memory)) return status;
  return 0;
}

}  // namespace emulator

#define threadIdx (emulator::current->index)
#define blockIdx (emulator::block->index)
#define gridDim emulator::grid_size

inline void __syncthreads() { emulator::wait(emulator::block->gate); }
inline void __syncwarp() { emulator::wait(emulator::own_warp().gate); }
inline int __syncthreads_count(int value) {
  static int sum;
  emulator::wait(emulator::block->gate);
  sum = 0;
  emulator::wait(emulator::block->gate);
  sum += value != 0;
  emulator::wait(emulator::block->gate);
  return sum;
}
template <class V>
V __shfl_sync(unsigned, V x, int lane, int width = 32) {
  const int first = int(threadIdx.x) % 32 / width * width;
  return emulator::exchange(x, [&](auto of) { return of(first + lane % width); });
}
template <class V>
V __shfl_xor_sync(unsigned, V x, int step) {
  return emulator::exchange(x, [&](auto of) { return of(int(threadIdx.x) % 32 ^ step); });
}
inline unsigned __ballot_sync(unsigned, int x) {
  return emulator::exchange(x, [](auto of) {
    unsigned all = 0;
    for (int lane = 0; lane < 32; lane++) all |= unsigned(of(lane) != 0) << lane;
    return all;
  });
}
inline int __any_sync(unsigned all, int x) { return __ballot_sync(all, x) != 0; }
inline unsigned __reduce_max_sync(unsigned, unsigned x) {
  return emulator::exchange(x, [](auto of) {
    unsigned most = 0;
    for (int lane = 0; lane < 32; lane++) most = of(lane) > most ? of(lane) : most;
    return most;
  });
}
inline int atomicOr(int* to, int x) { return std::exchange(*to, *to | x); }
inline int atomicAdd(int* to, int x) { return std::exchange(*to, *to + x); }
inline int atomicMax(int* to, int x) { return std::exchange(*to, *to > x ? *to : x); }
inline int min(int a, int b) { return a < b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }
inline int __ffs(unsigned x) { return __builtin_ffs(int(x)); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline float rsqrtf(float x) { return 1 / std::sqrt(x); }
template <class To, class From>
To bits_of(From x) {
  To y;
  std::memcpy(&y, &x, sizeof y);
  return y;
}
inline int __double2hiint(double x) { return int(bits_of<uint64_t>(x) >> 32); }
inline double __hiloint2double(int high, int low) { return bits_of<double>(uint64_t(unsigned(high)) << 32 | unsigned(low)); }
inline unsigned __float_as_uint(float x) { return bits_of<unsigned>(x); }
inline float __int_as_float(int x) { return bits_of<float>(x); }
inline long long __double_as_longlong(double x) { return bits_of<long long>(x); }
