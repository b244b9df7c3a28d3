// Runs a device source as host code. The machine it stands for is AMD's as lanes.cuh sees it, with LW_WAVE = 32 or 64 lanes: so the
// paths for AMD run, and everything that has no instruction of its own there goes by the plain path.
//
// Each thread is a fiber that runs until the next barrier of its block or its warp; blocks run one after the other, and blocks that
// wait for each other (LW_TEAM of them) in turns. What hides mistakes on one GPU and shows them on another is made to show:
//   - between barriers threads run in a random order (EMULATE_SEED)
//   - what the other half of a wave of 64 contributes to a ballot is random, and a shuffle from there brings NaN
//   - all threads of a wave must meet the same __syncthreads()
//   - shared memory is full of NaN when a block begins
//   - estimates of 1/x and 1/sqrt(x) have 20 bits
//   - compiled with -fsanitize=thread (EMULATE_RACES), each access to shared memory comes by here: two threads that use the same word
//     without a barrier between them, one of them to write, are a fault, and so is an access past the end
#pragma once
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#define __HIP__ 1
#define __device__
#define __global__
#define __shared__ static __attribute__((section("lw_shared")))
#define __forceinline__ inline __attribute__((always_inline))
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __launch_bounds__(...)
#define EMULATOR inline __attribute__((no_sanitize("thread", "address", "undefined")))

using std::fabs;
using std::fma;
using std::fmax;
using std::fmin;
using std::hypot;
using std::ilogb;
using std::ldexp;
using std::log;
using std::scalbn;
using std::sqrt;

#if !defined(__x86_64__)
#error "the emulator switches between threads in x86-64 code"
#endif
// Saves the registers that a function must keep, and goes on where another fiber left off.
asm(R"(
.text
.local emulator_switch
.type emulator_switch, @function
emulator_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size emulator_switch, .-emulator_switch
)");
extern "C" __attribute__((visibility("hidden"))) void emulator_switch(void** save, void* to);

// Where the static shared memory of the kernels lies. The compiler leaves that of templates out of the section; it is in .bss, where
// kernels write nothing else.
extern "C" __attribute__((visibility("hidden"))) char __bss_start, _end;
extern "C" __attribute__((visibility("hidden"), weak)) char __start_lw_shared, __stop_lw_shared;

namespace emulator {

constexpr int MOST_THREADS = 1024, MOST_TOGETHER = 16, MEMORY = 256 * 1024, GUARD = 4096;
constexpr size_t STACK = 256 * 1024;

struct Index {
  unsigned x = 0, y = 0, z = 0;
};

struct Gate {
  int arrived = 0, generation = 0, need = 0;
};

// 32 threads
struct Warp {
  Gate gate;
  uint64_t slot[2][32];
  unsigned epoch;  // a new number after each sync_warp
};

struct Wave {
  Gate gate;       // of the matrix instructions
  int met;         // lanes at the barrier of the block
  unsigned site;   // which one
};

// A block of threads and, while another one runs, its shared memory: dynamic and static.
struct Block {
  Gate gate;
  Warp warps[MOST_THREADS / 32];
  Wave waves[MOST_THREADS / 64];
  Index index;
  unsigned epoch;  // a new number after each __syncthreads
  int sum;
  char *memory, *statics;
  struct Use* uses;
};

struct Fiber {
  void* stack_pointer = nullptr;
  char* stack = nullptr;
  Index index;
  bool done = true;
  int exchanges = 0;
};

// Who used a word of shared memory last
struct Use {
  unsigned written, written_warp;  // epochs
  unsigned read, read_warp;        // epochs
  unsigned warps, lanes;           // that read it in these: warps of the block, lanes of the last of them
  unsigned short writer, reading_warp;
  unsigned char atomic;  // 0: a plain write; else atomic operations of 1: the writer, 2: its warp, 3: several warps
};

struct State {
  Fiber fibers[MOST_TOGETHER][MOST_THREADS];
  Block blocks[MOST_TOGETHER];
  void* scheduler;
  Index grid, block_size;
  int progress, fault;
  unsigned epochs, shared;
  uint64_t random;
  void (*body)();
  char text[400];
};

inline State* const state = static_cast<State*>(std::calloc(1, sizeof(State)));
alignas(16) inline char memory[MEMORY];
inline Block* block = state->blocks;  // the one that runs
inline Fiber* current = nullptr;

EMULATOR size_t static_bytes() { return size_t(&__stop_lw_shared - &__start_lw_shared); }

// AddressSanitizer looks at each call of memcpy; these also touch what it keeps between variables
EMULATOR void copy_bytes(void* to, const void* from, size_t bytes) {
  asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes)::"memory");
}
EMULATOR void fill_bytes(void* to, int byte, size_t bytes) {
  asm volatile("rep stosb" : "+D"(to), "+c"(bytes) : "a"(byte) : "memory");
}

EMULATOR uint64_t random_bits() {
  uint64_t& x = state->random;
  x ^= x << 13, x ^= x >> 7, x ^= x << 17;
  return x;
}

enum Fault { CANNOT = 1, STUCK, PAST_END, PARTED, RACE };

template <class... A>
EMULATOR void report(Fault fault, const char* format, A... values) {
  if (state->fault) return;
  state->fault = fault;
  std::snprintf(state->text, sizeof state->text, format, values...);
}

EMULATOR void leave() { emulator_switch(&current->stack_pointer, state->scheduler); }

EMULATOR int own_thread() { return int(current->index.x); }
EMULATOR Warp& own_warp() { return block->warps[current->index.x / 32]; }

// True for the thread that comes last and opens the gate.
EMULATOR bool wait(Gate& gate) {
  const int generation = gate.generation;
  state->progress++;
  if (++gate.arrived == gate.need) {
    gate.arrived = 0;
    gate.generation++;
    return true;
  }
  while (gate.generation == generation) leave();
  return false;
}

// A thread that looks for what another one writes lets the others run.
EMULATOR void pause() { leave(); }

EMULATOR void block_barrier(unsigned site) {
  if (LW_WAVE == 64) {  // lanes of a wave come together
    Wave& wave = block->waves[own_thread() / 64];
    const int left = block->gate.need - own_thread() / 64 * 64;
    if (wave.met == 0) wave.site = site;
    if (wave.site != site)
      report(PARTED, "the lanes of a wave meet different barriers: lines %u and %u", wave.site % 100000, site % 100000);
    if (++wave.met == (left < 64 ? left : 64)) wave.met = 0;
  }
  Block* own = block;
  if (wait(own->gate)) own->epoch = ++state->epochs;
}

// f(all 32 values) after every lane of the warp has brought its own. Two sets of slots: nobody is two exchanges ahead.
template <class V, class F>
EMULATOR auto exchange(V value, F f) {
  Warp& warp = own_warp();
  uint64_t* slots = warp.slot[current->exchanges++ % 2];
  std::memcpy(&slots[own_thread() % 32], &value, sizeof value);
  wait(warp.gate);  // lanes that exchange something are in step, but the compiler may move what they read and write
  return f([slots](int lane) {
    V x;
    std::memcpy(&x, &slots[lane], sizeof x);
    return x;
  });
}

EMULATOR void start() {
  state->body();
  current->done = true;
  state->progress++;
  leave();
}

EMULATOR void prepare(Block& own, Fiber* fibers, int threads) {
  own.gate = {0, 0, threads};
  own.epoch = ++state->epochs;
  for (int w = 0; w < threads / 32; w++) own.warps[w].gate = {0, 0, 32}, own.warps[w].epoch = ++state->epochs;
  for (int w = 0; w < MOST_THREADS / 64; w++) own.waves[w].gate = {0, 0, 64}, own.waves[w].met = 0;
  for (int t = 0; t < threads; t++) {
    Fiber& fiber = fibers[t];
    if (!fiber.stack) fiber.stack = static_cast<char*>(std::malloc(STACK));
    fiber.index.x = unsigned(t);
    fiber.done = false;
    fiber.exchanges = 0;
    // as a call leaves it: the return address, with the stack 16-byte aligned before it
    auto* top = reinterpret_cast<void**>(reinterpret_cast<uintptr_t>(fiber.stack + STACK) / 16 * 16 - 64);
    top[0] = reinterpret_cast<void*>(start);
    fiber.stack_pointer = top - 6;
  }
}

// Runs each thread of a block until it waits; whether one of them is not done.
EMULATOR bool run_threads(Fiber* fibers, int threads) {
  static unsigned short order[MOST_THREADS];
  bool open = false;
  for (int k = 0; k < threads; k++) {
    const int other = int(random_bits() % unsigned(k + 1));
    order[k] = order[other];
    order[other] = static_cast<unsigned short>(k);
  }
  for (int k = 0; k < threads && !state->fault; k++) {
    if (fibers[order[k]].done) continue;
    open = true;
    current = &fibers[order[k]];
    emulator_switch(&state->scheduler, current->stack_pointer);
    current = nullptr;
  }
  return open;
}

EMULATOR void run_blocks(int count, unsigned first, unsigned y, int threads, unsigned shared) {
  for (int b = 0; b < count; b++) {
    Block& own = state->blocks[b];
    if (!own.memory) own.memory = static_cast<char*>(std::malloc(MEMORY)), own.statics = static_cast<char*>(std::malloc(static_bytes() + 1));
    own.index = {first + unsigned(b), y, 0};
    fill_bytes(own.memory, 0xff, shared);
    fill_bytes(own.memory + shared, 0xa5, GUARD);
    fill_bytes(own.statics, 0xff, static_bytes());
    prepare(own, state->fibers[b], threads);
  }
  const auto enter = [&] {
    copy_bytes(memory, block->memory, shared + GUARD);
    copy_bytes(&__start_lw_shared, block->statics, static_bytes());
  };
  const auto exit = [&] {
    copy_bytes(block->memory, memory, shared + GUARD);
    copy_bytes(block->statics, &__start_lw_shared, static_bytes());
  };
  if (count == 1) block = state->blocks, enter();
  int idle = 0;  // rounds in which no thread came to or through a barrier
  for (bool open = true; open && !state->fault;) {
    const int before = state->progress;
    open = false;
    for (int b = 0; b < count && !state->fault; b++) {
      block = &state->blocks[b];
      if (count > 1) enter();
      open = run_threads(state->fibers[b], threads) || open;
      for (int i = 0; i < GUARD; i++)
        if (memory[shared + unsigned(i)] != char(0xa5)) report(PAST_END, "written past the shared memory, %d bytes", i);
      if (count > 1) exit();
    }
    idle = state->progress == before ? idle + 1 : 0;
    if (open && idle == 1000) report(STUCK, "threads wait for each other");
  }
}

template <class... A, size_t... I>
void call(void (*kernel)(A...), void** arguments, std::index_sequence<I...>) {
  kernel(*static_cast<A*>(arguments[I])...);
}

template <class... A>
int launch(void (*kernel)(A...), void** arguments, unsigned blocks, unsigned rows, unsigned threads, unsigned shared,
           unsigned together) {
  static void (*target)(A...);
  static void** values;
  target = kernel, values = arguments;
  state->body = [] { call(target, values, std::index_sequence_for<A...>()); };
  state->fault = 0;
  state->shared = shared;
  const char* seed = std::getenv("EMULATE_SEED");
  if (!state->random) state->random = 0x9e3779b97f4a7c15 * uint64_t(2 * (seed ? std::atoll(seed) : 0) + 1);
  if (threads % 32 || threads > MOST_THREADS || shared + GUARD > MEMORY || together > MOST_TOGETHER) {
    report(CANNOT, "a launch that the emulator cannot run");
    return state->fault;
  }
  if (together == 0)
    together = blocks < MOST_TOGETHER ? blocks : MOST_TOGETHER;
  else if (blocks % together)
    together = 1;  // a kernel of the same source that has no teams
  state->grid = {blocks, rows, 1};
  state->block_size = {threads, 1, 1};
  for (unsigned y = 0; y < rows; y++)
    for (unsigned b = 0; b < blocks && !state->fault; b += together)
      run_blocks(int(blocks - b < together ? blocks - b : together), b, y, int(threads), shared);
  return state->fault;
}

// The kernels of the source
struct Entry {
  const char* name;
  int (*run)(void**, unsigned, unsigned, unsigned, unsigned, unsigned);
  const Entry* next;
};
inline const Entry* entries = nullptr;

template <auto KERNEL>
struct Registered : Entry {
  explicit Registered(const char* of) : Entry{of, run_it, entries} { entries = this; }
  static int run_it(void** arguments, unsigned blocks, unsigned rows, unsigned threads, unsigned shared, unsigned together) {
    return launch(KERNEL, arguments, blocks, rows, threads, shared, together);
  }
};

inline int run(const char* name, void** arguments, unsigned blocks, unsigned rows, unsigned threads, unsigned shared, unsigned together) {
  for (const Entry* entry = entries; entry; entry = entry->next)
    if (!std::strcmp(entry->name, name)) return entry->run(arguments, blocks, rows, threads, shared, together);
  std::snprintf(state->text, sizeof state->text, "no such kernel");
  return CANNOT;
}

// ---- accesses to shared memory -----------------------------------------------------------------------------------

enum Access { READ, WRITE, ATOMIC };

EMULATOR void use(const void* where, size_t bytes, Access access, void* code) {
  if (!current || state->fault) return;
  const bool writes = access != READ;
  auto* at = static_cast<const char*>(where);
  size_t place;
  if (at >= memory && at < memory + MEMORY) {
    place = size_t(at - memory);
    if (place + bytes > state->shared) {
      report(PAST_END, "thread %d: %zu bytes at place %zu of %u bytes of shared memory", own_thread(), bytes, place, state->shared);
      return;
    }
  } else if (at >= &__start_lw_shared && at < &__stop_lw_shared) {
    place = MEMORY + size_t(at - &__start_lw_shared);
  } else if (at >= &__bss_start && at < &_end) {
    place = MEMORY + static_bytes() / 8 * 8 + 8 + size_t(at - &__bss_start);
  } else {
    return;
  }
  if (!block->uses)
    block->uses = static_cast<Use*>(std::calloc((MEMORY + static_bytes() + size_t(&_end - &__bss_start)) / 4 + 8, sizeof(Use)));
  const int thread = own_thread(), warp = thread / 32;
  const unsigned now = block->epoch, warp_now = own_warp().epoch, lane = 1u << thread % 32;
  for (size_t word = place / 4; word <= (place + bytes - 1) / 4; word++) {
    Use& u = block->uses[word];
    const char* what = nullptr;
    int other = 0;
    const bool near = u.writer / 32 == warp, step = near && u.written_warp == warp_now;  // no barrier of the warp since then
    if (u.written == now && !(access == ATOMIC && u.atomic) &&
        (!near || u.atomic == 3 || (step && (u.writer != thread || u.atomic == 2))))
      what = writes ? "write" : "write and read", other = u.writer;
    if (writes && u.read == now) {
      if (u.warps & ~(1u << warp)) what = "read and write", other = 32 * __builtin_ctz(u.warps & ~(1u << warp));
      if (u.reading_warp == warp && u.read_warp == warp_now && u.lanes & ~lane)
        what = "read and write", other = 32 * warp + __builtin_ctz(u.lanes & ~lane);
    }
    if (what) {
      report(RACE, "threads %d and %d %s place %zu of shared memory without a barrier between (code at %p)", other, thread, what,
             4 * word, (void*)((char*)code - (char*)&__bss_start));
      return;
    }
    if (writes) {
      const bool joins = access == ATOMIC && u.written == now && u.atomic;
      u.atomic = access != ATOMIC ? 0 : !joins ? 1 : u.atomic == 3 || !near ? 3 : step && u.writer != thread ? 2 : step ? u.atomic : 1;
      u.written = now, u.written_warp = warp_now, u.writer = static_cast<unsigned short>(thread);
    } else {
      if (u.read != now) u.read = now, u.warps = 0, u.lanes = 0;
      u.warps |= 1u << warp;
      if (u.reading_warp != warp || u.read_warp != warp_now)
        u.reading_warp = static_cast<unsigned short>(warp), u.read_warp = warp_now, u.lanes = 0;
      u.lanes |= lane;
    }
  }
}

}  // namespace emulator

#define threadIdx (emulator::current->index)
#define blockIdx (emulator::block->index)
#define gridDim (emulator::state->grid)
#define blockDim (emulator::state->block_size)

#ifdef EMULATE_RACES
#define LW_HOOK(name, bytes)                                                                             \
  extern "C" void __tsan_read##name(void* at) { emulator::use(at, bytes, emulator::READ, __builtin_return_address(0)); }                        \
  extern "C" void __tsan_write##name(void* at) { emulator::use(at, bytes, emulator::WRITE, __builtin_return_address(0)); }                        \
  extern "C" void __tsan_unaligned_read##name(void* at) { emulator::use(at, bytes, emulator::READ, __builtin_return_address(0)); }              \
  extern "C" void __tsan_unaligned_write##name(void* at) { emulator::use(at, bytes, emulator::WRITE, __builtin_return_address(0)); }
LW_HOOK(1, 1)
LW_HOOK(2, 2)
LW_HOOK(4, 4)
LW_HOOK(8, 8)
LW_HOOK(16, 16)
extern "C" void __tsan_read_range(void* at, size_t bytes) { emulator::use(at, bytes, emulator::READ, __builtin_return_address(0)); }
extern "C" void __tsan_write_range(void* at, size_t bytes) { emulator::use(at, bytes, emulator::WRITE, __builtin_return_address(0)); }
extern "C" void __tsan_vptr_update(void*, void*) {}
extern "C" void __tsan_func_entry(void*) {}
extern "C" void __tsan_func_exit() {}
extern "C" void __tsan_init() {}
#endif

// ---- what the sources use ----------------------------------------------------------------------------------------

EMULATOR void __syncthreads(unsigned line = __builtin_LINE(), const char* file = __builtin_FILE()) {
  unsigned hash = 0;
  for (; *file; file++) hash = hash * 31 + static_cast<unsigned char>(*file);
  emulator::block_barrier(hash % 40000 * 100000 + line);
}
EMULATOR int __syncthreads_count(int value, unsigned line = __builtin_LINE(), const char* file = __builtin_FILE()) {
  auto* own = emulator::block;
  __syncthreads(line, file);
  own->sum = 0;
  __syncthreads(line, file);
  own->sum += value != 0;
  __syncthreads(line, file);
  return own->sum;
}
EMULATOR int __syncthreads_and(int value, unsigned line = __builtin_LINE(), const char* file = __builtin_FILE()) {
  return __syncthreads_count(!value, line, file) == 0;
}
EMULATOR void __builtin_amdgcn_wave_barrier() {
  auto& warp = emulator::own_warp();
  if (emulator::wait(warp.gate)) warp.epoch = ++emulator::state->epochs;
}
#define __builtin_amdgcn_fence(...)
EMULATOR void __builtin_amdgcn_s_sleep(int) { emulator::pause(); }
#define __HIP_MEMORY_SCOPE_AGENT 4
template <class V>
EMULATOR V __hip_atomic_load(const V* from, int order, int) {
  const V x = *from;
  if (order != __ATOMIC_RELAXED) emulator::pause();
  return x;
}
template <class V, class W>
EMULATOR void __hip_atomic_store(V* to, W x, int, int) {
  *to = V(x);
}
template <class V, class W>
EMULATOR V __hip_atomic_fetch_add(V* to, W x, int, int) {
  return std::exchange(*to, V(*to + x));
}

// A lane of the other half of the wave brings nothing that may be used.
template <class V, class F>
EMULATOR V from_lane_of_wave(V x, F choose) {
  const int self = emulator::own_thread() % LW_WAVE, lane = choose(self);
  return emulator::exchange(x, [&](auto of) {
    V y;
    std::memset(&y, 0xff, sizeof y);
    return lane / 32 == self / 32 ? of(lane % 32) : y;
  });
}
template <class V>
EMULATOR V __shfl(V x, int lane, int width = LW_WAVE) {
  return from_lane_of_wave(x, [&](int self) { return self / width * width + (lane & (width - 1)); });
}
template <class V>
EMULATOR V __shfl_xor(V x, int step, int width = LW_WAVE) {
  return from_lane_of_wave(x, [&](int self) { return (self ^ step) / width == self / width ? self ^ step : self; });
}
EMULATOR unsigned long long __ballot(int x) {
  return emulator::exchange(x, [](auto of) {
    unsigned long long all = 0;
    for (int lane = 0; lane < 32; lane++) all |= (unsigned long long)(of(lane) != 0) << lane;
    if (LW_WAVE == 32) return all;
    const unsigned long long other = emulator::random_bits() & 0xffffffff;
    return emulator::own_thread() % 64 < 32 ? other << 32 | all : all << 32 | other;
  });
}

// plain accesses to the same word need a barrier between, atomic ones none
EMULATOR void atomically(const void* at, size_t bytes) {
#ifdef EMULATE_RACES
  emulator::use(at, bytes, emulator::ATOMIC, __builtin_return_address(0));
#endif
}
#define LW_ATOMIC(name, type, result)                         \
  EMULATOR type name(type* to, type x) {                      \
    atomically(to, sizeof(type));                             \
    const type old = *to;                                     \
    *to = result;                                             \
    return old;                                               \
  }
LW_ATOMIC(atomicOr, int, old | x)
LW_ATOMIC(atomicAdd, int, old + x)
LW_ATOMIC(atomicMax, int, old > x ? old : x)
LW_ATOMIC(atomicMin, int, old < x ? old : x)
LW_ATOMIC(atomicAdd, unsigned long long, old + x)
LW_ATOMIC(atomicMax, unsigned long long, old > x ? old : x)
EMULATOR int atomicCAS(int* to, int expected, int x) {
  atomically(to, sizeof(int));
  const int old = *to;
  if (old == expected) *to = x;
  return old;
}

template <class V>
V min(V a, V b) {
  return a < b ? a : b;
}
template <class V>
V max(V a, V b) {
  return a > b ? a : b;
}
inline int min(int a, int b) { return a < b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }
inline long long min(long long a, int b) { return a < b ? a : b; }
inline long long min(int a, long long b) { return a < b ? a : b; }
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
inline float __uint_as_float(unsigned x) { return bits_of<float>(x); }
inline long long __double_as_longlong(double x) { return bits_of<long long>(x); }
inline double __longlong_as_double(long long x) { return bits_of<double>(x); }
// an estimate: the last 32 bits of 52 are off
inline double estimate(double x) { return x - x == 0 ? bits_of<double>(bits_of<uint64_t>(x) ^ 0x55555555) : x; }
inline double __builtin_amdgcn_rcp(double x) { return estimate(1 / x); }
inline double __builtin_amdgcn_rsq(double x) { return estimate(1 / std::sqrt(x)); }
inline float __builtin_amdgcn_rsqf(float x) { return 1 / std::sqrt(x); }

#include "matrix.h"
