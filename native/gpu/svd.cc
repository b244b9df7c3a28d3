#include "gpu/svd.h"

#include <algorithm>

#include "gpu/blocked_qr.h"
#include "gpu/reduce.h"
#include "gpu/svd_gram.h"

namespace lapwing::cuda {
namespace {

constexpr int SWEEPS = 40;         // as in svd_block.cu
constexpr int SPREAD_SWEEPS = 14;  // a sweep over many blocks of threads; later ones, which are rare, have one for a matrix
constexpr int64_t RESERVED = 1024;  // bytes of shared memory
// Values alone up to this order by a bidiagonal form: on an H200 200 of n = 100 in float64 take 0.91 ms. Rotations were about three times
// as slow; at n = 256 the two were not compared.
constexpr int64_t BIDIAGONAL_LARGEST = 256;
constexpr int MOST_THREADS = 512, THREADS = 256;
constexpr int64_t WARPS = THREADS / 32;

int64_t rounded(int64_t x, int64_t to) { return (x + to - 1) / to * to; }

// As in svd_block.cu.
struct Reading {
  const void* a;
  void* to;
  const void *order, *state;
  int64_t batch, stride;
  int32_t length, columns, ld, wide;
};
struct Lifted {
  const void* r;
  void* work;
  const void *sizes, *order, *state;
  int64_t batch, stride;
  int32_t ld, columns, rows, pitch;
};
struct Turns {
  void *work, *moved, *state, *smallest;
  int64_t batch;
  int32_t rows, v_rows, columns, width, blocks, sweep, round;
};
struct Settled {
  void *work, *s, *order, *info, *moved, *state, *smallest;
  int64_t batch;
  int32_t rows, v_rows, columns;
};
struct Bidiagonal {
  void* work;
  const void* state;
  void *d, *e, *up;
  int32_t* failed;
  int64_t batch;
  int32_t n, pitch;
};
struct Writing {
  const void* work;
  void* out;
  const void *order, *places, *info;
  int64_t batch, stride;
  int32_t pitch, rows, columns, length, adjoint;
};

struct Sizes {
  explicit Sizes(const Frame& frame)
      : batch(frame.size[0]), m(frame.size[1]), n(frame.size[2]), length(std::max(m, n)), columns(std::min(m, n)),
        element(int64_t(size_of(frame.dtype))), rows(rounded(columns, 16 / element)), vectors(frame.op == SVD),
        pitch(vectors ? 2 * rows : rows) {}
  int64_t batch, m, n, length, columns, element, rows;
  bool vectors;
  int64_t pitch;  // elements of a column of L and of V
  bool wide() const { return m < n; }
};

// Values alone by a bidiagonal form: a block of threads for each matrix, which is in shared memory, or beyond it in the L2 cache.
struct OneBlock {
  explicit OneBlock(const Sizes& at, const Properties& gpu) : threads(at.columns <= 48 ? 128 : at.columns <= 128 ? 256 : 512) {
    const auto numbers = [&] { return (5 + threads / 32) * at.columns + 2; };  // of the vectors
    while (threads > 128 && numbers() * at.element + RESERVED > gpu.shared_per_block) threads /= 2;
    const int64_t vectors = numbers(), whole = vectors + at.columns * (at.columns | 1);
    on_chip = whole * at.element + RESERVED <= gpu.shared_per_block;
    shared = (on_chip ? whole : vectors) * at.element;
  }
  int threads;
  bool on_chip;
  int64_t shared;
};

// How columns are spread over blocks of threads.
struct Shape {
  int64_t width = 0, blocks = 0;  // width 0: nothing fits
  int lanes = 8, threads = 64, held = 0;  // held: accesses of half a column in the registers of a lane, or 0
  int64_t shared = 0;
};

Shape shape_of(const Sizes& at, int64_t width) {
  Shape shape;
  shape.width = width;
  shape.blocks = rounded((at.columns + width - 1) / width, 2);
  shape.shared = 2 * width * at.pitch * at.element;
  const int64_t units = at.rows * at.element / 16;  // accesses of a column
  while (shape.lanes < 32 && units > 4 * shape.lanes && 2 * shape.lanes * width <= MOST_THREADS) shape.lanes *= 2;
  while (shape.threads < MOST_THREADS && shape.threads < shape.lanes * width) shape.threads *= 2;
  constexpr int HELD[] = {4, 8};  // each is a kernel of its own; more do not fit into registers
  if (shape.blocks > 2)
    for (int held : HELD)
      if (!shape.held && units <= held * shape.lanes) shape.held = held;
  return shape;
}

// Microseconds of a sweep, counted for the multiprocessor with most to do: a round takes the latency of one pair and the time
// of what is read and written in shared memory; rounds of blocks also the launch, of which sweeps after the last one have some
// too, and what goes in and out.
double cost_of(const Sizes& at, const Shape& shape, const Properties& gpu) {
  constexpr double LATENCY = 0.4, LAUNCH = 4.5, SHARED_BYTES = 2e5, GLOBAL_BYTES = 1e5, ALL_GLOBAL_BYTES = 5.5e6;  // bytes per microsecond
  const int64_t items = at.batch * (shape.blocks / 2), own = (items + gpu.multiprocessors - 1) / gpu.multiprocessors;
  const int64_t by_memory = gpu.shared_per_block / (shape.shared + RESERVED), by_threads = 1024 / shape.threads;
  const auto together = double(std::min(own, std::max<int64_t>(1, std::min(by_memory, by_threads))));
  const double passes = std::max(1.0, double(shape.lanes * shape.width) / shape.threads);
  const auto round = [&](double times) { return LATENCY * passes + together * double(shape.shared) * times / SHARED_BYTES; };
  const double global = std::min(GLOBAL_BYTES, ALL_GLOBAL_BYTES / double(std::min<int64_t>(items, gpu.multiprocessors)));
  const double outer = shape.blocks > 2 ? LAUNCH + together * 2 * double(shape.shared) / global : 0;
  const double inner = 2 * round(2.5) + double(shape.blocks - 2) * round(shape.held ? 1 : 2.5);  // the first meets all pairs
  return double(own) / together * (double(shape.width) * inner + double(shape.blocks - 1) * outer);
}

Shape choose(const Sizes& at, const Properties& gpu) {
  constexpr int64_t WIDTHS[] = {64, 48, 32, 24, 16, 12, 8, 4};
  Shape best;
  double least = 0;
  const auto offer = [&](int64_t width) {
    const Shape shape = shape_of(at, width);
    if (shape.shared + RESERVED > gpu.shared_per_block) return;
    const double cost = cost_of(at, shape, gpu);
    if (!best.width || cost < least) best = shape, least = cost;
  };
  offer((at.columns + 1) / 2);
  for (int64_t width : WIDTHS)
    if (2 * width < at.columns) offer(width);
  return best;
}

template <class... Arguments>
int queue(Frame& frame, const char* name, const void* array, int64_t blocks, int64_t shared, Arguments... arguments) {
  const int width = access_width({array}, int64_t(size_of(frame.dtype)));
  return start(frame, "svd_block.cu", options(frame.dtype, false, width, " -DLW_THREADS=%d -DLW_LANES=8 -DLW_HELD=0", THREADS), name,
               grid_for(blocks), unsigned(THREADS), size_t(shared), arguments...);
}

int64_t tile_bytes(const Frame& frame) { return 32 * 33 * int64_t(size_of(frame.dtype)); }
int64_t tiles_of(int64_t rows, int64_t columns) { return ((rows + 31) / 32) * ((columns + 31) / 32); }

int give_columns(Frame& frame, const Writing& writing) {
  return queue(frame, "svd_give_columns", writing.out, writing.batch * tiles_of(writing.rows, writing.columns), tile_bytes(frame), writing);
}

// Some matrices: the frame's sizes with `batch` of them.
class Decomposition {
 public:
  Decomposition(Frame& frame, const Properties& gpu, int64_t batch)
      : frame_(frame), gpu_(gpu), batch_(batch), at_(frame), bidiagonal_(!at_.vectors && at_.columns <= BIDIAGONAL_LARGEST), shape_(shape()),
        qr_(frame, gpu, batch, at_.length, at_.columns, at_.columns, 0, at_.vectors ? at_.columns : 0) {
    const auto take = [&](int64_t bytes) {
      const size_t start = total_;
      total_ += size_t(rounded(bytes, 256));
      return start;
    };
    factors_ = take(int64_t(qr_.bytes()));
    work_ = take(batch * at_.columns * at_.pitch * at_.element);
    left_ = take(at_.vectors && at_.wide() ? batch * at_.length * at_.columns * at_.element : 0);
    sizes_ = take(batch * at_.columns * 4), places_ = take(batch * at_.columns * 4), order_ = take(batch * at_.columns * 4);
    moved_ = take(batch * SWEEPS * 4), smallest_ = take(batch * 4);
    const int64_t numbers = bidiagonal_ ? batch * int64_t(size_of(frame.dtype % 2)) : 0;
    d_ = take(2 * at_.columns * numbers), e_ = take(2 * at_.columns * numbers), up_ = take(numbers), failed_ = take(batch * 4);
  }

  size_t bytes() const { return total_; }

  int run(char* block) {
    block_ = block;
    return take() || (bidiagonal_ ? values() : turn() || settle() || (at_.vectors && give()));
  }

 private:
  Shape shape() const {
    Frame own = frame_;
    own.size[0] = batch_;
    return choose(Sizes(own), gpu_);
  }
  char* at(size_t place) const { return block_ + place; }
  int32_t* integers(size_t place) const { return reinterpret_cast<int32_t*>(block_ + place); }
  void* info() const { return frame_.buffer[at_.vectors ? 4 : 2]; }

  // M P = Q R; work <- R^H
  int take() {
    const auto columns = int32_t(at_.columns), rows = int32_t(at_.rows), ld = int32_t(qr_.ld());
    const void* a = frame_.buffer[0];
    int32_t *sizes = integers(sizes_), *places = integers(places_);
    if (qr_.place(at(factors_))) return 1;
    if (at_.wide() ? queue(frame_, "svd_measure_rows", a, (batch_ * at_.m + WARPS - 1) / WARPS, 0, a, sizes, batch_ * at_.m, int32_t(at_.n))
                   : measure(frame_, a, sizes, batch_, at_.m, at_.n, true))
      return 1;
    const Reading reading{a, qr_.work(), places, qr_.state(0), batch_, qr_.stride(), int32_t(at_.length), columns, ld, at_.wide()};
    const Lifted lifted{qr_.work(), at(work_), sizes, places, qr_.state(0), batch_, qr_.stride(), ld, columns, rows, int32_t(at_.pitch)};
    return queue(frame_, "svd_order", nullptr, batch_, 0, static_cast<const int32_t*>(sizes), places, qr_.state(0),
                 integers(smallest_), batch_, columns) ||
           queue(frame_, "svd_take", a, batch_ * tiles_of(at_.length, ld), tile_bytes(frame_), reading) || qr_.factor(nullptr, false) ||
           queue(frame_, "svd_lift", nullptr, (batch_ * at_.columns + WARPS - 1) / WARPS, 0, lifted);
  }

  // The values of L by its bidiagonal form: the lower half of a spectrum of order 2 k, and its signs taken away
  int values() {
    const OneBlock block(at_, gpu_);
    const Bidiagonal call{at(work_), qr_.state(0), at(d_), at(e_), at(up_), integers(failed_), batch_, int32_t(at_.columns), int32_t(at_.pitch)};
    const std::string text = options(frame_.dtype, false, 16, " -DLW_THREADS=%d -DLW_ON_CHIP=%d", block.threads, int(block.on_chip));
    return start(frame_, "svd_bidiagonal.cu", text, "svd_bidiagonal", grid_for(batch_), unsigned(block.threads), size_t(block.shared), call) ||
           tridiagonal_values(frame_, gpu_, {batch_, 2 * at_.columns, 0, at_.columns, at(d_), at(e_), at(up_), integers(failed_), true},
                              frame_.buffer[1], static_cast<int32_t*>(info()));
  }

  int turn(Turns& call, int64_t blocks) {
    const std::string text = options(frame_.dtype, false, 16, " -DLW_THREADS=%d -DLW_LANES=%d -DLW_HELD=%d", shape_.threads, shape_.lanes,
                                     shape_.held);
    return start(frame_, "svd_block.cu", text, "svd_turn", grid_for(blocks), unsigned(shape_.threads), size_t(shape_.shared), call);
  }

  // L V = X S
  int turn() {
    if (fill(frame_, at(moved_), 0, size_t(batch_ * SWEEPS * 4))) return 1;
    Turns call{at(work_), at(moved_), qr_.state(0), at(smallest_), batch_, int32_t(at_.rows), int32_t(at_.pitch - at_.rows), int32_t(at_.columns),
               int32_t(shape_.width), int32_t(shape_.blocks), 0, 0};
    if (shape_.blocks > 2)
      for (call.sweep = 0; call.sweep < SPREAD_SWEEPS; call.sweep++)
        for (call.round = 0; call.round < shape_.blocks - 1; call.round++)
          if (turn(call, batch_ * (shape_.blocks / 2))) return 1;
    call.round = -1;
    return turn(call, batch_);
  }

  int settle() {
    const int64_t real = int64_t(size_of(frame_.dtype % 2)), shared = 2 * at_.columns * (at_.element + real) + (at_.columns + 1) * 4;
    const Settled settled{at(work_), frame_.buffer[at_.vectors ? 2 : 1], at_.vectors ? at(order_) : nullptr, info(), at(moved_),
                          qr_.state(0), at(smallest_), batch_, int32_t(at_.rows), int32_t(at_.pitch - at_.rows), int32_t(at_.columns)};
    return queue(frame_, "svd_settle", nullptr, batch_, shared, settled);
  }

  // M = (Q V) S (P X)^H
  int give() {
    const int64_t stride = at_.columns * at_.pitch;
    const auto k = int32_t(at_.columns), pitch = int32_t(at_.pitch), length = int32_t(at_.length);
    void *u = frame_.buffer[1], *vh = frame_.buffer[3], *q_v = at_.wide() ? at(left_) : u;
    const char *x = at(work_), *v = x + at_.rows * at_.element;
    const void *order = at(order_), *places = at(places_);
    if (give_columns(frame_, {v, q_v, order, nullptr, info(), batch_, stride, pitch, length, k, k, 0}) || qr_.apply(q_v, at_.columns, false))
      return 1;
    if (at_.wide())
      return give_columns(frame_, {x, u, order, places, info(), batch_, stride, pitch, k, k, k, 0}) ||
             give_columns(frame_, {q_v, vh, nullptr, nullptr, nullptr, batch_, at_.length * at_.columns, k, k, length, k, 1});
    const Writing right{x, vh, order, places, info(), batch_, stride, pitch, k, k, k, 0};
    return queue(frame_, "svd_give_rows", vh, (batch_ * at_.columns + WARPS - 1) / WARPS, 0, right);
  }

  Frame& frame_;
  const Properties& gpu_;
  const int64_t batch_;
  const Sizes at_;
  const bool bidiagonal_;
  const Shape shape_;
  BlockedQr qr_;
  size_t factors_ = 0, work_ = 0, left_ = 0, sizes_ = 0, places_ = 0, order_ = 0, moved_ = 0, smallest_ = 0, d_ = 0, e_ = 0, up_ = 0,
         failed_ = 0, total_ = 0;
  char* block_ = nullptr;
};

int64_t matrices_at_once(Frame& frame, const Properties& gpu) {
  return matrices_per_part(frame.size[0], int64_t(Decomposition(frame, gpu, 1).bytes()));
}

}  // namespace

bool svd_fits(const Frame& frame, const Properties& gpu) {
  const Sizes at(frame);
  if (at.columns > SVD_BLOCKS_LARGEST || at.length >= int64_t(1) << 30 || (at.vectors && frame.size[3] && at.m != at.n)) return false;
  return BlockedQr::fits(frame.dtype, at.length, gpu) && choose(at, gpu).width > 0;
}

// Against the vendor's solver, or the Gram matrix (svd_gram.cc). H200, 2026-11-16, one matrix in ms, here and there: float32 n = 128 1.3
// and 2.1, 256 3.2 and 2.6, 512 8.8 and 5.2; 4096 x 256 in float64 9.3 and 7.1. Batches, 2026-11-19, here and by the Gram matrix: float32
// 200 of n = 100 2.3 and 2.6, 100 of 128 1.9 and 1.9, 60 of 176 4.3 and 2.0, 32 of 256 4.0 and 1.9; complex64 400 of n = 64 1.9 and 2.4,
// 200 of 100 4.1 and 2.8; float64 400 of 64 2.1 and 2.2, 300 of 80 3.8 and 2.9, 100 of 128 4.6 and 2.2, one of 100 1.8 and 1.5; complex128
// 400 of 64 4.3 and 2.6, one of 64 1.1 and 1.0. Values alone: float32 200 of n = 100 0.67 and 2.0, 32 of 256, which do not fit into shared
// memory, 3.3 and 1.4; complex64 100 of n = 128 1.0 and 2.1; float64, where the Gram matrix takes as long as with vectors, 60 of 176 1.7
// and 2.5, 32 of 256 4.5 and 2.4, one of 256 4.1 and 1.6; complex128 60 of 176 2.8 and about 4, 32 of 256 6.7 and 3.4. The eigenvectors
// of n = 48 to 149 take half of that time since, which moved the limit of float32 from 128 down; that was not measured.
bool svd_pays(const Frame& frame, const Properties& gpu) {
  constexpr int64_t WITH_VECTORS = 64, VALUES_ALONE = 192;
  const Sizes at(frame);
  const bool single = frame.dtype % 2 == 0, tall = at.columns > 128 && at.length > 4 * at.columns;
  if (!single && svd_gram_fits(frame)) return at.vectors ? at.columns <= WITH_VECTORS && frame.dtype == F64 : at.columns <= VALUES_ALONE;
  if (frame.size[0] == 1) return at.columns <= (single ? 192 : 256) && !tall;
  if (single) return at.vectors ? at.columns <= (frame.dtype == F32 ? 112 : 80) : OneBlock(at, gpu).on_chip;
  return at.columns <= 256 || (at.columns <= 512 && frame.size[0] >= 4);
}

int64_t svd_scratch(Frame& frame) {
  const Properties* gpu = properties(frame);
  return gpu ? int64_t(Decomposition(frame, *gpu, matrices_at_once(frame, *gpu)).bytes()) : -1;
}

int svd_by_rotations(Frame& frame) {
  const Properties* gpu = properties(frame);
  if (!gpu) return 1;
  const int64_t batch = frame.size[0], step = matrices_at_once(frame, *gpu);
  char* block = scratch(frame, Decomposition(frame, *gpu, step).bytes());
  if (!block) return 1;
  for (int64_t first = 0; first < batch; first += step) {
    Frame part = part_of(frame, first, std::min(step, batch - first));
    if (Decomposition(part, *gpu, part.size[0]).run(block)) return fail_as(frame, part);
  }
  return 0;
}

}  // namespace lapwing::cuda
