#include "gpu/systems.h"

#include <algorithm>
#include <cstdio>
#include <initializer_list>

#include "gpu/cuda.h"

namespace lapwing::cuda {
namespace {

constexpr unsigned THREADS = 256;
constexpr int64_t MAX_BLOCKS = 1 << 20;  // the kernels stride over what is left
constexpr int64_t ELEMENTS = 4 * THREADS;  // that a block may take one after the other

int64_t blocks_for(int64_t elements) { return std::clamp<int64_t>((elements + ELEMENTS - 1) / ELEMENTS, 1, MAX_BLOCKS); }

int start(Frame& frame, const char* name, int64_t blocks, std::initializer_list<const void*> arrays, void** arguments,
          size_t shared = 0) {
  // the accesses are of one element; a pointer that is not aligned to it takes them in parts
  auto bits = uintptr_t(size_of(frame.dtype));
  for (const void* array : arrays) bits |= reinterpret_cast<uintptr_t>(array);
  char options[96];
  std::snprintf(options, sizeof options, "-DLW_DTYPE=%d -DLW_UPPER=0 -DLW_V=%d", frame.dtype,
                bits % 16 == 0 ? 16 : bits % 8 == 0 ? 8 : 4);
  void* kernel = function(frame, "systems.cu", options, name, shared);
  return kernel ? launch(frame, kernel, {unsigned(blocks)}, THREADS, shared, arguments) : 1;
}

}  // namespace

int adjoint(Frame& frame, const void* from, void* to, int32_t* info, int64_t rows, int64_t columns, int64_t count, int flags) {
  const int64_t edge = size_of(frame.dtype) == 4 ? 64 : 32;  // EDGE in squares.cuh
  const int64_t tiles = ((rows + edge - 1) / edge) * ((count + edge - 1) / edge);
  void* arguments[] = {&from, &to, &info, &rows, &columns, &count, &flags};
  return start(frame, "adjoint", std::clamp<int64_t>(tiles, 1, MAX_BLOCKS), {from, to}, arguments);
}

int copy_checked(Frame& frame, const void* from, void* to, int32_t* info, int64_t rows, int64_t columns) {
  void* arguments[] = {&from, &to, &info, &rows, &columns};
  return start(frame, "copy_checked", blocks_for(rows * columns), {from, to}, arguments);
}

int replace_failed(Frame& frame, void* a, const int32_t* info, int64_t rows, int64_t columns) {
  const int32_t* order = nullptr;
  void* arguments[] = {&a, &info, &order, &rows, &columns};
  return start(frame, "identity", blocks_for(rows * columns), {a}, arguments);
}

int permutation(Frame& frame, void* a, const int32_t* order, int64_t n) {
  const int32_t* info = nullptr;
  void* arguments[] = {&a, &info, &order, &n, &n};
  return start(frame, "identity", blocks_for(n * n), {a}, arguments);
}

int spoil(Frame& frame, void* x, const int32_t* info, int64_t count) {
  void* arguments[] = {&x, &info, &count};
  return start(frame, "spoil", blocks_for(count), {}, arguments);
}

int merge(Frame& frame, int32_t* info, const int32_t* other, int64_t offset) {
  void* arguments[] = {&info, &other, &offset};
  return start(frame, "merge", 1, {}, arguments);
}

int check_pivots(Frame& frame, const void* a, int64_t ld, int32_t* info, int64_t n, int64_t offset, Pivots kind) {
  int number = kind;
  void* arguments[] = {&a, &ld, &info, &n, &offset, &number};
  return start(frame, "check_pivots", blocks_for(n), {a}, arguments);
}

int check_triangle(Frame& frame, const void* a, int32_t* info, int64_t n, bool upper, bool unit) {
  int is_upper = upper, is_unit = unit;
  void* arguments[] = {&a, &info, &n, &is_upper, &is_unit};
  return start(frame, "check_triangle", std::clamp<int64_t>((n + 7) / 8, 1, MAX_BLOCKS), {a}, arguments);
}

int pivot_rows(Frame& frame, const int64_t* pivots, int32_t* rows, const int32_t* info, int64_t n) {
  const Properties* device = properties(frame);
  if (!device) return 1;
  const size_t wanted = sizeof(int32_t) * size_t(n);
  int far = int64_t(wanted) + 4096 > device->shared_per_block;
  void* arguments[] = {&pivots, &rows, &info, &n, &far};
  return start(frame, "pivot_rows", 1, {}, arguments, far ? 0 : wanted);
}

int permute(Frame& frame, const void* from, void* to, const int32_t* rows, int32_t* info, int64_t n, int64_t k, bool back) {
  int is_back = back;
  void* arguments[] = {&from, &to, &rows, &info, &n, &k, &is_back};
  return start(frame, "permute", blocks_for(n * k), {from, to}, arguments);
}

int determinant(Frame& frame, const void* a, const int64_t* pivots, void* value, void* logabs, const int32_t* info, int64_t n) {
  void* arguments[] = {&a, &pivots, &value, &logabs, &info, &n};
  return start(frame, "determinant", 1, {a, value}, arguments);
}

int lift(Frame& frame, const void* a, int64_t ld, void* leaves, int64_t n) {
  void* arguments[] = {&a, &ld, &leaves, &n};
  return start(frame, "lift", blocks_for((n + LEAF - 1) / LEAF * LEAF * LEAF), {a, leaves}, arguments);
}

int invert_tiles(Frame& frame, void* leaves, int64_t count) {
  int64_t tiles = count * (LEAF / LEAF_TILE);
  void* arguments[] = {&leaves, &tiles};
  return start(frame, "invert_tiles", std::min(tiles, MAX_BLOCKS), {leaves}, arguments);
}

int copy_block(Frame& frame, const void* from, int64_t from_ld, void* to, int64_t to_ld, int64_t rows, int64_t columns) {
  void* arguments[] = {&from, &from_ld, &to, &to_ld, &rows, &columns};
  return start(frame, "copy_block", blocks_for(rows * columns), {from, to}, arguments);
}

}  // namespace lapwing::cuda
