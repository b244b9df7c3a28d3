#include "gpu/divide.h"

#include <algorithm>
#include <string>
#include <utility>

#include "gpu/cuda.h"

namespace lapwing::cuda {
namespace {

constexpr int64_t RESERVED = 1024;  // of a block's shared memory, for the driver
constexpr int64_t LEAF = 32;  // rows of a leaf at most, as in divide_leaf.cu
constexpr int LEAF_THREADS = 64, ROOT_THREADS = 256;
constexpr int32_t COPIED = 32;  // deflated eigenvectors that a block copies
// Sizes of a level from which a GPU is busy with less parallel shapes. H200, 2026-11-16.
constexpr int64_t MANY_LEAVES = 4000;                      // several leaves to a warp
constexpr int64_t FEW_ROOTS = 15000, MANY_ROOTS = 200000;  // fewer lanes to a root
constexpr int64_t FEW_TILES = 264;                         // large tiles of a product

int64_t rounded(int64_t x, int64_t to) { return (x + to - 1) / to * to; }
int64_t parts_of(int64_t x, int64_t each) { return (x + each - 1) / each; }

// As in divide.cuh.
int64_t cut(int64_t index, int64_t count, int64_t n) { return index == count ? n : index * n / count & ~int64_t(3); }

int64_t largest(int64_t parts, int64_t n) {
  int64_t most = 0;
  for (int64_t t = 0; t < parts; t++) most = std::max(most, cut(t + 1, parts, n) - cut(t, parts, n));
  return most;
}

int64_t leaves_of(int64_t n) {
  int64_t leaves = 1;
  while (largest(leaves, n) > LEAF) leaves *= 2;
  return leaves;
}

// As in divide.cuh.
struct Call {
  void *d, *e, *values, *joined, *pole, *weight, *base, *offset, *squares, *rho, *turns, *turned, *row, *place, *rank, *head, *up;
  void *from, *to, *u, *w, *info, *room;
  int64_t batch;
  int32_t n, pitch, pairs, parts;
};

// Places in the scratch memory; with `block` null only their size.
struct Layout {
  Call call{};
  void* other;  // eigenvectors, of every other level
  void* room;   // of large merges
  int64_t bytes = 0;

  Layout(int64_t batch, int64_t n, int64_t real, char* block) {
    const auto take = [&](int64_t size) {
      void* at = block ? block + bytes : nullptr;
      bytes += rounded(batch * size, 256);
      return at;
    };
    const auto pitch = rounded(n, 4);
    for (void** list : {&call.values, &call.joined, &call.pole, &call.weight, &call.base, &call.offset, &call.rho})
      *list = take(8 * n);
    for (void** list : {&call.row, &call.place, &call.rank}) *list = take(4 * n);
    call.parts = batch * n >= FEW_ROOTS ? 1 : 8;
    call.squares = take(8 * n * call.parts);
    call.turned = take(8 * n);
    call.head = take(16 * n);
    call.turns = take(2 * real * n);
    call.up = take(real);
    room = take(26 * n + 8192);
    other = take(n * n * real);
    call.u = take(n * pitch * real);
    call.batch = batch;
    call.n = int32_t(n);
    call.pitch = int32_t(pitch);
  }
};

char* aligned(void* block) { return reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(block) + 255) / 256 * 256); }

// Shared memory of divide_product.cu: STAGES * STAGE there, and two lists
int64_t product_shared(int32_t dtype, int64_t size, int64_t side) {
  const int64_t real = dtype ? 8 : 4;
  return 3 * 2 * 16 * (side + (dtype ? 4 : 8)) * real + side * real + 4 * size;
}

// One level: the parts in call.values and call.from are joined to call.pairs pairs in call.joined and call.to.
int join(Frame& frame, int32_t dtype, int width, Call call, void* room, int64_t shared_per_block) {
  const int64_t pairs = call.batch * call.pairs, size = largest(call.pairs, call.n), half = largest(2 * call.pairs, call.n);

  const int32_t threads = int32_t(std::clamp<int64_t>(rounded(size / 2, 32), 64, 512));
  const int64_t even = rounded(size, 2), merge_shared = 256 + 16 * size + 8 * even + 4 * parts_of(size, 32);
  const bool on_chip = merge_shared + RESERVED <= shared_per_block;
  call.room = on_chip ? nullptr : room;
  if (start(frame, "divide_merge.cu", options(dtype, false, 16), "divide_merge", grid_for(pairs), unsigned(threads),
            size_t(on_chip ? merge_shared : 0), call, threads))
    return 1;

  const int64_t all = call.batch * call.n;
  const int lanes = all >= MANY_ROOTS ? 4 : all >= FEW_ROOTS ? 8 : 32;
  const std::string choice = options(dtype, false, 16, " -DLW_THREADS=%d -DLW_LANES=%d", ROOT_THREADS, lanes);
  const auto root_blocks = int32_t(parts_of(size, ROOT_THREADS / lanes)), turn_blocks = int32_t(parts_of(size, ROOT_THREADS));
  const auto vector_blocks = int32_t(parts_of(size, 32) * call.parts), copy_blocks = int32_t(parts_of(size, COPIED));
  const auto roots = [&](const char* name, int64_t blocks, size_t shared, auto... counts) {
    return start(frame, "divide_roots.cu", choice, name, grid_for(pairs * blocks), unsigned(ROOT_THREADS), shared, call, counts...);
  };
  if (roots("divide_roots", root_blocks + turn_blocks, 0, root_blocks, turn_blocks) ||
      roots("divide_weights", root_blocks, 0, root_blocks) ||
      roots("divide_vectors", vector_blocks + copy_blocks, ROOT_THREADS * 8, vector_blocks, copy_blocks, COPIED))
    return 1;

  const auto tiles = [&](int64_t side) { return parts_of(size, side) * 2 * parts_of(half, side); };
  const int side = half <= 64 || pairs * tiles(128) < FEW_TILES || product_shared(dtype, size, 128) > shared_per_block ? 64 : 128;
  const int product_threads = side == 64 ? 128 : 256;
  const int resident = dtype ? 1 : side == 64 ? 4 : 2;
  const std::string product =
      options(dtype, false, width, " -DLW_THREADS=%d -DLW_TILE=%d -DLW_RESIDENT=%d", product_threads, side, resident);
  return start(frame, "divide_product.cu", product, "divide_product", grid_for(pairs * tiles(side)), unsigned(product_threads),
               size_t(product_shared(dtype, size, side)), call, int32_t(parts_of(size, side)), int32_t(parts_of(half, side)));
}

}  // namespace

bool divide_fits(int64_t n, int32_t real_dtype, int64_t shared_per_block) {
  return n <= DIVIDE_MOST && product_shared(real_dtype, n, 64) + RESERVED <= shared_per_block;
}

int64_t divide_bytes(int64_t batch, int64_t n, int32_t real_dtype) {
  return 256 + Layout(batch, n, int64_t(size_of(real_dtype)), nullptr).bytes;
}

int divide(Frame& frame, int64_t batch, int64_t n, int32_t real_dtype, void* d, void* e, void* w, void* z, void* scratch,
           int32_t* info, int64_t shared_per_block) {
  if (!batch || !n) return 0;
  const auto real = int64_t(size_of(real_dtype));
  const Layout layout(batch, n, real, aligned(scratch));
  const int64_t leaves = leaves_of(n);
  const int width = access_width({z}, n * real);
  Call call = layout.call;
  call.d = d;
  call.e = e;
  call.info = info;
  call.pairs = int32_t(leaves);
  // the last level writes to z
  call.to = z;
  call.from = layout.other;
  for (int64_t parts = leaves; parts > 1; parts /= 2) std::swap(call.to, call.from);
  call.w = leaves == 1 ? w : nullptr;

  // a lane for each leaf makes its rotations: several leaves share a warp where there are many
  const int64_t together = batch * leaves < MANY_LEAVES ? 1 : real_dtype ? 2 : 4;
  const std::string choice =
      options(real_dtype, false, 16, " -DLW_THREADS=%d -DLW_M=%d -DLW_VECTORS=1", LEAF_THREADS, int(together));
  const int64_t warps = LEAF_THREADS / 32, gap = together == 1 ? 1 : together + 1;
  const int64_t warp_room = (2 + 2 * LEAF) * together + 2 * LEAF * gap + together * LEAF * LEAF;
  if (start(frame, "divide_leaf.cu", choice, "divide_start", grid_for(batch), unsigned(LEAF_THREADS), size_t(warps * real), call) ||
      start(frame, "divide_leaf.cu", choice, "divide_leaf", grid_for(parts_of(batch * leaves, warps * together)),
            unsigned(LEAF_THREADS), size_t(warps * warp_room * real), call))
    return 1;
  while (call.pairs > 1) {
    std::swap(call.to, call.from);
    std::swap(call.values, call.joined);
    call.pairs /= 2;
    call.w = call.pairs == 1 ? w : nullptr;
    if (join(frame, real_dtype, width, call, layout.room, shared_per_block)) return 1;
  }
  return 0;
}

}  // namespace lapwing::cuda
