// Staging of whole matrices in shared memory, by a block of LW_THREADS threads.
#pragma once
#include "common.cuh"

// Matrices of LINES lines of LINE bytes, one after the other in memory. In shared memory neighbouring lines start an odd
// number of access units apart, so that lanes that read one line each meet no bank conflict, and so do matrices.
// Index, int or unsigned, decides how places are divided: each kernel has the one that it was measured with.
template <int LINE, int LINES = 1, typename Index = int>
struct Stage {
  static constexpr int UNIT = LINE % 16 == 0 ? 16 : LINE % 8 == 0 ? 8 : 4;
  static constexpr int PITCH = UNIT == 16 ? (LINE / 16 | 1) * 16 : LINE;
  static constexpr int EXTRA = UNIT == 16 && LINES > 1 && PITCH * LINES % 32 == 0 ? 16 : 0;
  static constexpr int MATRIX = PITCH * LINES + EXTRA;

  LW_INLINE static Index place(Index byte) {
    return UNIT == 16 ? byte / LINE * PITCH + byte % LINE + (EXTRA ? byte / (LINE * LINES) * EXTRA : 0) : byte;
  }

  // Only starts the copies.
  LW_INLINE static void load(char* to, const void* from, Index bytes) {
    Index whole = bytes / LW_V * LW_V;
    for (Index byte = threadIdx.x * LW_V; byte < whole; byte += LW_THREADS * LW_V)
      copy_async<LW_V>(to + place(byte), (const char*)from + byte);
    for (Index byte = whole + threadIdx.x * 4; byte < bytes; byte += LW_THREADS * 4)
      copy_async<4>(to + place(byte), (const char*)from + byte);
  }

  LW_INLINE static void store(void* to, const char* from, Index bytes) {
    typedef Pack<float, LW_V / 4> Access;
    Index whole = bytes / LW_V * LW_V;
#pragma unroll 4
    for (Index byte = threadIdx.x * LW_V; byte < whole; byte += LW_THREADS * LW_V)
      *(Access*)((char*)to + byte) = *(const Access*)(from + place(byte));
    for (Index byte = whole + threadIdx.x * 4; byte < bytes; byte += LW_THREADS * 4)
      *(float*)((char*)to + byte) = *(const float*)(from + place(byte));
  }
};
