// What GPUs do with instructions of their own, behind one name each: a kernel names nothing else that only one vendor has.
//
// A "warp" in these sources is a group of 32 threads. NVIDIA's hardware runs such a group in step; AMD's runs LW_WAVE = 64 threads
// in step, two groups. Everything below concerns the 32 threads of the own group alone, so it holds wherever these 32 are at the
// same place, even while the other half of the wave is elsewhere. Two rules follow for kernels:
//   - no thread waits for one of its own block in a loop: the two may lie in one wave
//   - all threads of a block meet the same __syncthreads(), as hardware with wider waves counts waves and not threads
#pragma once

#if defined(__HIPCC_RTC__) || defined(__HIP__)
#define LW_AMD 1
// `#pragma unroll(...)` is how NVRTC wants it
#pragma clang diagnostic ignored "-Wcuda-compat"
#else
#define LW_AMD 0
#endif
#ifndef LW_WAVE
#if LW_AMD
#define LW_WAVE __AMDGCN_WAVEFRONT_SIZE
#else
#define LW_WAVE 32
#endif
#endif

#define LW_INLINE __device__ __forceinline__

#if LW_AMD
// The second bound of a kernel is the blocks that a multiprocessor has at once. HIP takes it for the waves of each of the four units
// of one, and would leave a thread a fraction of the registers.
#undef __launch_bounds__
#define __launch_bounds__(...) LW_BOUNDS(__VA_ARGS__, 1)
#define LW_BOUNDS(threads, blocks, ...)                         \
  __attribute__((amdgpu_flat_work_group_size(1, (threads)), \
                 amdgpu_waves_per_eu(((blocks) * (threads) + 4 * LW_WAVE - 1) / (4 * LW_WAVE))))
#endif

// ---- the lanes of a warp -----------------------------------------------------------------------------------------

#if LW_AMD || LW_WAVE != 32
#if LW_WAVE == 64
typedef unsigned long long lane_mask;
#else
typedef unsigned lane_mask;
#endif
// Nothing moves across this place: threads of one wave write and read shared memory in the order of the program.
LW_INLINE void sync_warp() {
  __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "wavefront");
  __builtin_amdgcn_wave_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "wavefront");
}
LW_INLINE void in_step() { sync_warp(); }
template <typename V>
LW_INLINE V shuffle(V x, int lane, int width = 32) {
  return __shfl(x, lane, width);
}
template <typename V>
LW_INLINE V shuffle_xor(V x, int step) {
  return __shfl_xor(x, step, 32);
}
// Bit l: whether x holds in lane l of the own warp
LW_INLINE unsigned ballot(bool x) {
  const lane_mask wave = __ballot(x);
  return (unsigned)(wave >> (threadIdx.x % LW_WAVE / 32 * 32));
}
LW_INLINE bool any_lane(bool x) { return ballot(x) != 0; }
template <typename V>
LW_INLINE V most_of_lanes(V x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x = max(x, shuffle_xor(x, step));
  return x;
}
template <typename V>
LW_INLINE V least_of_lanes(V x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x = min(x, shuffle_xor(x, step));
  return x;
}
#else
LW_INLINE void sync_warp() { __syncwarp(); }
// Lanes come here from a shuffle, which keeps them in step but orders no memory. That is enough before a lane overwrites what others
// have read, if they do not use it or if what they made of it went into the shuffle.
LW_INLINE void in_step() {}
template <typename V>
LW_INLINE V shuffle(V x, int lane, int width = 32) {
  return __shfl_sync(0xffffffff, x, lane, width);
}
template <typename V>
LW_INLINE V shuffle_xor(V x, int step) {
  return __shfl_xor_sync(0xffffffff, x, step);
}
LW_INLINE unsigned ballot(bool x) { return __ballot_sync(0xffffffff, x); }
LW_INLINE bool any_lane(bool x) { return __any_sync(0xffffffff, x); }
template <typename V>
LW_INLINE V most_of_lanes(V x) {
  return __reduce_max_sync(0xffffffff, x);
}
template <typename V>
LW_INLINE V least_of_lanes(V x) {
  return __reduce_min_sync(0xffffffff, x);
}
#endif

// ---- numbers -----------------------------------------------------------------------------------------------------

// 1 / x and 1 / sqrt(x) as the hardware estimates them, to 20 bits or more in double precision. What is subnormal may count as zero.
#if LW_AMD
LW_INLINE double estimated_inverse(double x) { return __builtin_amdgcn_rcp(x); }
LW_INLINE double estimated_root(double x) { return __builtin_amdgcn_rsq(x); }
LW_INLINE float estimated_root(float x) { return __builtin_amdgcn_rsqf(x); }
// to the last bit or so, subnormal numbers too
LW_INLINE float quick_inverse(float x) { return 1 / x; }
#else
LW_INLINE double estimated_inverse(double x) {
  double y;
  asm("rcp.approx.ftz.f64 %0, %1;" : "=d"(y) : "d"(x));
  return y;
}
LW_INLINE double estimated_root(double x) {
  double y;
  asm("rsqrt.approx.ftz.f64 %0, %1;" : "=d"(y) : "d"(x));
  return y;
}
LW_INLINE float estimated_root(float x) {
  float y;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
LW_INLINE float quick_inverse(float x) {
  float y;
  asm("rcp.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
#endif

// ---- copies to shared memory that run beside the program ---------------------------------------------------------

#if LW_AMD
// A plain path: the copy is done when the function returns.
template <int BYTES>
LW_INLINE void copy_async(void* shared, const void* global, bool inside = true) {
  struct alignas(BYTES) Part {
    unsigned words[BYTES / 4];
  };
  *(Part*)shared = inside ? *(const Part*)global : Part{};
}
LW_INLINE void commit_copies() {}
template <int PENDING>
LW_INLINE void wait_copies() {}
#else
LW_INLINE unsigned shared_address(const void* where) {
  unsigned address;
  asm("{ .reg .u64 wide; cvta.to.shared.u64 wide, %1; cvt.u32.u64 %0, wide; }" : "=r"(address) : "l"(where));
  return address;
}

// Starts a copy of BYTES bytes to shared memory; writes zeros instead where `inside` is false.
template <int BYTES>
LW_INLINE void copy_async(void* shared, const void* global, bool inside = true) {
  int from = inside ? BYTES : 0;
  if (BYTES == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global), "r"(from)
                 : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared_address(shared)), "l"(global), "n"(BYTES),
                 "r"(from)
                 : "memory");
}

LW_INLINE void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most PENDING of this thread's committed groups are still on their way.
template <int PENDING>
LW_INLINE void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}
#endif

LW_INLINE void finish_copies() {
  commit_copies();
  wait_copies<0>();
}

// ---- what other blocks write meanwhile ---------------------------------------------------------------------------

// `acquire` sees all that came before a `release`. After a barrier, a release also covers what the other threads of the block
// wrote, if each of them called `finish_writes` before the barrier: AMD's waves come to a barrier with stores still on their
// way, and a release waits for those of its own wave alone. `tell_far` and `look` order nothing: each word says itself whether it is the one that is waited for. `arrive` counts the own
// block, with all that it wrote and finished so, at a gate; `see_all`, after `arrived` gave the count of all blocks, sees what they wrote.
#if LW_AMD
LW_INLINE int acquire(const int* from) { return __hip_atomic_load(from, __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_AGENT); }
LW_INLINE void release(int* to, int value) { __hip_atomic_store(to, value, __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_AGENT); }
LW_INLINE void finish_writes() { __builtin_amdgcn_fence(__ATOMIC_RELEASE, "agent"); }
LW_INLINE void tell_far(unsigned long long* to, unsigned long long one, unsigned long long two) {
  __hip_atomic_store(to, one, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
  __hip_atomic_store(to + 1, two, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
LW_INLINE void look(const unsigned long long* from, unsigned long long& one, unsigned long long& two) {
  one = __hip_atomic_load(from, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
  two = __hip_atomic_load(from + 1, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
LW_INLINE void arrive(int* gate) { __hip_atomic_fetch_add(gate, 1, __ATOMIC_ACQ_REL, __HIP_MEMORY_SCOPE_AGENT); }
LW_INLINE int arrived(const int* gate) { return __hip_atomic_load(gate, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT); }
LW_INLINE void see_all() { __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "agent"); }
LW_INLINE void pause() { __builtin_amdgcn_s_sleep(1); }
LW_INLINE void pause_briefly() { __builtin_amdgcn_s_sleep(1); }
#else
LW_INLINE int acquire(const int* from) {
  int value;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}
LW_INLINE void release(int* to, int value) {
  asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}
LW_INLINE void finish_writes() {}  // a barrier orders them here
LW_INLINE void tell_far(unsigned long long* to, unsigned long long one, unsigned long long two) {
  asm volatile("st.relaxed.gpu.global.v2.u64 [%0], {%1, %2};" ::"l"(to), "l"(one), "l"(two) : "memory");
}
LW_INLINE void look(const unsigned long long* from, unsigned long long& one, unsigned long long& two) {
  asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];" : "=l"(one), "=l"(two) : "l"(from) : "memory");
}
LW_INLINE void arrive(int* gate) {
  asm volatile("fence.acq_rel.gpu; red.relaxed.gpu.global.add.s32 [%0], 1;" ::"l"(gate) : "memory");
}
LW_INLINE int arrived(const int* gate) {
  int count;
  asm volatile("ld.relaxed.gpu.global.s32 %0, [%1];" : "=r"(count) : "l"(gate) : "memory");
  return count;
}
LW_INLINE void see_all() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }
LW_INLINE void pause() {}  // whoever looks for what is written soon does not sleep
LW_INLINE void pause_briefly() { __nanosleep(20); }
#endif

// The block's place on its multiprocessor, counted in blocks of `warps` warps. Warps are spread over four schedulers by
// number, so blocks that always gave the long chains to warp 0 would crowd one of them. Only speed depends on the answer.
#if LW_AMD
LW_INLINE int block_slot(int) { return 0; }
#else
LW_INLINE int block_slot(int warps) {
  unsigned slot;
  asm volatile("mov.u32 %0, %%warpid;" : "=r"(slot));
  return slot / warps;
}
#endif
