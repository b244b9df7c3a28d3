#include "gpu/systems.h"

#include <algorithm>
#include <initializer_list>

#include "gpu/cuda.h"

namespace lapwing::cuda {
namespace {

constexpr unsigned THREADS = 256;
constexpr int64_t MAX_BLOCKS = 1 << 20;  // the kernels stride over what is left
constexpr int64_t ELEMENTS = 4 * THREADS;  // that a block may take one after the other

int64_t blocks_for(int64_t elements) { return std::clamp<int64_t>((elements + ELEMENTS - 1) / ELEMENTS, 1, MAX_BLOCKS); }

template <class... Arguments>
int queue(Frame& frame, const char* name, int64_t blocks, std::initializer_list<const void*> arrays, size_t shared,
          Arguments... arguments) {
  // the accesses are of one element; a pointer that is not aligned to it takes them in parts
  const int width = access_width(arrays, int64_t(size_of(frame.dtype)));
  return start(frame, "systems.cu", options(frame.dtype, false, width), name, {unsigned(blocks)}, THREADS, shared, arguments...);
}

}  // namespace

int adjoint(Frame& frame, const void* from, void* to, int32_t* info, int64_t rows, int64_t columns, int64_t count, int flags) {
  const int64_t edge = size_of(frame.dtype) == 4 ? 64 : 32;  // EDGE in squares.cuh
  const int64_t tiles = ((rows + edge - 1) / edge) * ((count + edge - 1) / edge);
  return queue(frame, "adjoint", std::clamp<int64_t>(tiles, 1, MAX_BLOCKS), {from, to}, 0, from, to, info, rows, columns, count, flags);
}

int copy_checked(Frame& frame, const void* from, void* to, int32_t* info, int64_t rows, int64_t columns) {
  return queue(frame, "copy_checked", blocks_for(rows * columns), {from, to}, 0, from, to, info, rows, columns);
}

int replace_failed(Frame& frame, void* a, const int32_t* info, int64_t rows, int64_t columns) {
  return queue(frame, "identity", blocks_for(rows * columns), {a}, 0, a, info, static_cast<const int32_t*>(nullptr), rows, columns);
}

int permutation(Frame& frame, void* a, const int32_t* order, int64_t n) {
  return queue(frame, "identity", blocks_for(n * n), {a}, 0, a, static_cast<const int32_t*>(nullptr), order, n, n);
}

int spoil(Frame& frame, void* x, const int32_t* info, int64_t count) {
  return queue(frame, "spoil", blocks_for(count), {}, 0, x, info, count);
}

int merge(Frame& frame, int32_t* info, const int32_t* other, int64_t offset) {
  return queue(frame, "merge", 1, {}, 0, info, other, offset);
}

int check_pivots(Frame& frame, const void* a, int64_t ld, int32_t* info, int64_t n, int64_t offset, Pivots kind) {
  return queue(frame, "check_pivots", blocks_for(n), {a}, 0, a, ld, info, n, offset, int(kind));
}

int check_triangle(Frame& frame, const void* a, int32_t* info, int64_t n, bool upper, bool unit) {
  return queue(frame, "check_triangle", std::clamp<int64_t>((n + 7) / 8, 1, MAX_BLOCKS), {a}, 0, a, info, n, int(upper), int(unit));
}

int check_solution(Frame& frame, const void* a, void* x, int64_t k, int32_t* info, int64_t n, bool upper, bool unit) {
  return queue(frame, "check_solution", 1, {a, x}, 0, a, x, n * k, info, n, int(upper), int(unit));
}

int pivot_rows(Frame& frame, const int64_t* pivots, int32_t* rows, const int32_t* info, int64_t n) {
  const Properties* device = properties(frame);
  if (!device) return 1;
  const size_t wanted = sizeof(int32_t) * size_t(n);
  int far = int64_t(wanted) + 4096 > device->shared_per_block;
  return queue(frame, "pivot_rows", 1, {}, far ? 0 : wanted, pivots, rows, info, n, far);
}

int permute(Frame& frame, const void* from, void* to, const int32_t* rows, int32_t* info, int64_t n, int64_t k, bool back) {
  return queue(frame, "permute", blocks_for(n * k), {from, to}, 0, from, to, rows, info, n, k, int(back));
}

int determinant(Frame& frame, const void* a, const int64_t* pivots, void* value, void* logabs, const int32_t* info, int64_t n) {
  return queue(frame, "determinant", 1, {a, value}, 0, a, pivots, value, logabs, info, n);
}

int lift(Frame& frame, const void* a, int64_t ld, void* leaves, int64_t n) {
  return queue(frame, "lift", blocks_for((n + LEAF - 1) / LEAF * LEAF * LEAF), {a, leaves}, 0, a, ld, leaves, n);
}

int invert_tiles(Frame& frame, void* leaves, int64_t count) {
  int64_t tiles = count * (LEAF / LEAF_TILE);
  return queue(frame, "invert_tiles", std::min(tiles, MAX_BLOCKS), {leaves}, 0, leaves, tiles);
}

int copy_block(Frame& frame, const void* from, int64_t from_ld, void* to, int64_t to_ld, int64_t rows, int64_t columns) {
  return queue(frame, "copy_block", blocks_for(rows * columns), {from, to}, 0, from, from_ld, to, to_ld, rows, columns);
}

int split(Frame& frame, const void* from, int64_t from_ld, void* to, int64_t to_ld, int64_t step, int64_t rows, int64_t columns,
          bool second, bool turned) {
  constexpr int64_t edge = 64;  // EDGE in squares.cuh
  const int64_t tiles = ((rows + edge - 1) / edge) * ((columns + edge - 1) / edge);
  return queue(frame, "split", std::clamp<int64_t>(tiles, 1, MAX_BLOCKS), {from, to}, 0, from, from_ld, to, to_ld, step, rows,
               columns, int(second), int(turned));
}

}  // namespace lapwing::cuda
