#include "gpu/blocked_qr.h"

#include <algorithm>

#include "gpu/vendor.h"

namespace lapwing::cuda {
namespace {

// Columns whose reflections are applied to the rest together, by dtype: enough for products that are not bound by memory.
constexpr int64_t BLOCKS[] = {64, 128, 64, 64};
constexpr int64_t WIDE_PANEL = 64;    // the last columns, where few are left
constexpr int64_t FOLLOWERS = 64;     // columns without reflections that follow the last block panel by panel
constexpr int64_t MOVE_THREADS = 256, MOVE_ELEMENTS = 4096;  // of a block of threads that copies
constexpr int64_t MOST_REGISTERS = 256;  // bytes of a panel in the registers of a thread: more of them spill
constexpr int64_t BUSY_THREADS = 512;    // of a multiprocessor

int64_t rounded(int64_t x, int64_t to) { return (x + to - 1) / to * to; }
int64_t padded(int64_t columns, int32_t dtype) { return rounded(columns, 16 / int64_t(size_of(dtype))); }

// As in qr_panel.cu.
struct Call {
  void *a, *v, *y, *tau;
  int64_t batch, stride, v_stride, tau_stride;
  int32_t ld, v_ld, rows, columns, reflections, above, whole;
};

// How qr_panel.cu does a panel of m rows.
struct PanelShape {
  int nb, threads, rows = 1, pitch;  // LW_NB, LW_THREADS, LW_RT; elements between rows in shared memory
  int64_t shared, registers;         // bytes of a block, and of the NB columns that a thread holds

  PanelShape(int32_t dtype, int64_t nb, int threads, int64_t m, int64_t columns, int64_t reflections, bool vectors)
      : nb(int(nb)), threads(threads) {
    const int64_t element = int64_t(size_of(dtype)), warps = threads / 32;
    while (int64_t(rows) * threads < m) rows *= 2;
    const int64_t between = (rounded(columns, nb) * element / 16 | 1) * 16 / element;
    pitch = int(between);
    registers = rows * nb * element;
    shared = element * (m * between + 2 * nb * nb + (1 + warps) * nb * between + 2 * (warps + 1) * nb +
                        (vectors ? rounded(reflections, nb) * between : 0));
  }
  bool fits(const Properties& gpu) const { return shared <= gpu.shared_per_block && registers <= MOST_REGISTERS; }
};

// Every column waits for all threads of its block, so few of them have many rows each, unless too few blocks would share a
// multiprocessor to keep it busy.
PanelShape shape_for(int32_t dtype, int64_t nb, int64_t batch, int64_t m, int64_t columns, int64_t reflections, bool vectors,
                     const Properties& gpu) {
  const int64_t blocks = (batch + gpu.multiprocessors - 1) / gpu.multiprocessors;
  for (int threads : {64, 128, 256}) {
    const PanelShape shape(dtype, nb, threads, m, columns, reflections, vectors);
    if (!shape.fits(gpu) || 2 * shape.registers > MOST_REGISTERS) continue;
    const int64_t resident = std::min(gpu.shared_per_block / shape.shared, blocks);
    if (resident * threads >= BUSY_THREADS || threads >= m) return shape;
  }
  return {dtype, nb, 512, m, columns, reflections, vectors};
}

int64_t usual_nb(int32_t dtype) { return dtype == C128 ? 4 : 8; }

struct Panel {
  int64_t width, nb;  // width 0: nothing fits
};

// The next panel of `rows` rows, where `left` columns wait for reflections.
Panel panel_for(int32_t dtype, int64_t batch, int64_t rows, int64_t left, const Properties& gpu) {
  const auto with = [&](int64_t nb, int64_t width) { return shape_for(dtype, nb, batch, rows, width, width, true, gpu); };
  const int64_t nb = usual_nb(dtype), narrow = 4;
  if (left <= WIDE_PANEL && with(nb, left).fits(gpu) && 2 * with(nb, left).shared <= gpu.shared_per_block) return {left, nb};
  for (int64_t width = 32; width >= nb; width /= 2)
    if (with(nb, width).fits(gpu)) return {std::min(width, left), nb};
  return {with(narrow, narrow).fits(gpu) ? std::min(narrow, left) : 0, narrow};
}

// ---- copies --------------------------------------------------------------------------------------------------------------

template <class... Arguments>
int move(Frame& frame, const char* name, const void* array, int64_t blocks, size_t shared, Arguments... arguments) {
  const int width = access_width({array}, int64_t(size_of(frame.dtype)));
  const std::string text = options(frame.dtype, false, width, " -DLW_THREADS=%d -DLW_RT=1", int(MOVE_THREADS));
  return start(frame, "qr_moves.cu", text, name, grid_for(blocks), unsigned(MOVE_THREADS), shared, arguments...);
}

// Rows of `columns` elements that a block of threads copies, and how many blocks that makes.
struct Rows {
  int32_t each;
  int64_t blocks;
  Rows(int64_t batch, int64_t rows, int64_t columns)
      : each(int32_t(std::clamp<int64_t>(MOVE_ELEMENTS / std::max<int64_t>(columns, 1), 1, rows))),
        blocks(batch * ((rows + each - 1) / each)) {}
};

}  // namespace

int64_t matrices_per_part(int64_t batch, int64_t bytes) {
  constexpr int64_t MOST_BYTES = int64_t(1) << 32, MOST = 65535;  // of working copies; the library's limit for batches
  const int64_t most = std::clamp<int64_t>(MOST_BYTES / bytes, 1, MOST), parts = (batch + most - 1) / most;
  return (batch + parts - 1) / parts;
}

int measure(Frame& frame, const void* a, int32_t* state, int64_t batch, int64_t rows, int64_t columns, bool apart) {
  const Rows in(batch, rows, columns);
  return fill(frame, state, 0x80, sizeof(int32_t) * size_t(batch * (apart ? columns : 1))) ||
         move(frame, "qr_measure", a, in.blocks, 0, a, state, batch, int32_t(rows), int32_t(columns), in.each, int32_t(apart));
}

int take_scaled(Frame& frame, const void* a, const int32_t* state, int64_t batch, int64_t rows, int64_t columns, Copies copies,
                bool turned, bool spoils, bool apart) {
  const Rows out(batch, rows, copies.end);
  return move(frame, "qr_take", a, out.blocks, 0, a, copies.to, state, batch, copies.stride, int32_t(rows), int32_t(columns),
              int32_t(copies.end), int32_t(copies.ld), out.each, int32_t(turned), int32_t(spoils), int32_t(apart));
}

BlockedQr::BlockedQr(Frame& frame, const Properties& gpu, int64_t batch, int64_t rows, int64_t columns, int64_t reflections,
                     int64_t room, int64_t q_columns)
    : frame_(frame), gpu_(gpu), batch_(batch), rows_(rows), columns_(columns), reflections_(reflections), q_columns_(q_columns),
      element_(int64_t(size_of(frame.dtype))), block_columns_(BLOCKS[frame.dtype]), ld_(padded(columns + room, frame.dtype)),
      v_ld_(padded(reflections, frame.dtype)), w_ld_(padded(std::max({columns, q_columns, block_columns_}), frame.dtype)) {
  const auto take = [&](int64_t bytes) {
    const size_t start = total_;
    total_ += size_t(rounded(bytes, 256));
    return start;
  };
  work_ = take(batch * rows * ld_ * element_);
  v_ = take(batch * rows * v_ld_ * element_);
  y_ = take(batch * rows * v_ld_ * element_);
  w_ = take(batch * std::min(block_columns_, reflections) * w_ld_ * element_);
  state_ = take((1 + columns + room - reflections) * batch * int64_t(sizeof(int32_t)));
}

bool BlockedQr::fits(int32_t dtype, int64_t rows, const Properties& gpu) {
  return panel_for(dtype, 1, rows, rows, gpu).width > 0;
}

int BlockedQr::place(char* block) {
  block_ = block;
  blas_.emplace(frame_);
  return !blas_->ok();
}

BlockedQr::Operand BlockedQr::at(size_t place, int64_t ld, int64_t row, int64_t column) const {
  return {block_ + place + size_t((row * ld + column) * element_), ld, rows_ * ld};
}

// ---- the reflections ---------------------------------------------------------------------------------------------------

int BlockedQr::panel(int64_t j, int64_t width, int64_t columns, int64_t above, bool vectors, void* tau, bool keeps) {
  const int64_t rows = rows_ - j, nb = panel_for(frame_.dtype, batch_, rows, width, gpu_).nb;
  const PanelShape shape = shape_for(frame_.dtype, nb, batch_, rows, columns, width, vectors, gpu_);
  const auto address = [](const Operand& operand) { return const_cast<void*>(operand.at); };
  const Call call{address(work(j, j)), vectors ? address(v(j, j)) : nullptr, vectors ? address(y(j, j)) : nullptr,
                  tau ? static_cast<char*>(tau) + j * element_ : nullptr, batch_, stride(), rows_ * v_ld_, reflections_,
                  int32_t(ld_), int32_t(v_ld_), int32_t(rows), int32_t(columns), int32_t(width), int32_t(above), keeps};
  const std::string text = options(frame_.dtype, false, 16, " -DLW_THREADS=%d -DLW_RT=%d -DLW_NB=%d", shape.threads, shape.rows,
                                   shape.nb);
  return start(frame_, "qr_panel.cu", text, "qr_panel", grid_for(batch_), unsigned(shape.threads), size_t(shape.shared), call,
               shape.pitch);
}

// To the library a row-major matrix is its transpose: W^T <- C^T conj(first), C2^T <- C2^T - W^T second^T.
int BlockedQr::apply(const Product& p) {
  if (!p.columns || !p.width) return 0;
  const Operand w{block_ + w_, w_ld_, std::min(block_columns_, reflections_) * w_ld_};
  return blas_->gemm_many(vendor::OP_NONE, vendor::OP_ADJOINT, p.columns, p.width, p.rows, 1, p.c, p.first, 0, w, batch_) ||
         blas_->gemm_many(vendor::OP_NONE, vendor::OP_NONE, p.columns, p.rows2, p.width, -1, w, p.second, 1, p.c2, batch_);
}

// The panels of columns `first` to `end`; the columns from there up to `follow` follow panel by panel. `keeps_vectors`: V and Y
// of the whole block are wanted.
int BlockedQr::factor_block(int64_t first, int64_t end, int64_t follow, bool keeps_vectors, void* tau, bool keeps) {
  for (int64_t j = first, width; j < end; j += width) {
    width = panel_for(frame_.dtype, batch_, rows_ - j, end - j, gpu_).width;
    const int64_t rows = rows_ - j;
    int64_t rest = follow - (j + width);
    const bool last = j + width == end;
    // followers of the last panel are taken along where there is room
    const int64_t nb = panel_for(frame_.dtype, batch_, rows, width, gpu_).nb;
    const bool together = last && rest > 0 && shape_for(frame_.dtype, nb, batch_, rows, width + rest, width, true, gpu_).fits(gpu_);
    const int64_t columns = together ? width + rest : width;
    if (together) rest = 0;
    if (panel(j, width, columns, keeps_vectors ? j - first : 0, keeps_vectors || rest > 0, tau, keeps)) return 1;
    // A <- (I - V Y^H) A right of the panel
    if (rest > 0 && apply({y(j, j), v(j, j), width, work(j, j + width), rows, work(j, j + width), rows, rest})) return 1;
    // (I - Y V^H)(I - Y' V'^H) = I - (Y, Y' - Y V^H Y') (V, V')^H
    if (keeps_vectors && apply({v(j, first), y(first, first), j - first, y(j, j), rows, y(first, j), rows_ - first, width})) return 1;
  }
  return 0;
}

int BlockedQr::factor(void* tau, bool keeps) {
  for (int64_t first = 0; first < reflections_; first += block_columns_) {
    const int64_t end = std::min(first + block_columns_, reflections_), width = end - first;
    const int64_t follow = end == reflections_ && columns_ - end <= FOLLOWERS ? columns_ : end;
    if (factor_block(first, end, follow, q_columns_ > 0 || follow < columns_, tau, keeps)) return 1;
    if (follow < columns_) {
      const Operand rest = work(first, follow);
      if (apply({y(first, first), v(first, first), width, rest, rows_ - first, rest, rows_ - first, columns_ - follow})) return 1;
    }
  }
  return 0;
}

int BlockedQr::apply(void* x, int64_t columns, bool unit) {
  for (int64_t first = (reflections_ - 1) / block_columns_ * block_columns_; first >= 0; first -= block_columns_) {
    const int64_t width = std::min(block_columns_, reflections_ - first), left = unit ? first : 0;
    const Operand c{static_cast<char*>(x) + (first * columns + left) * element_, columns, rows_ * columns};
    // x <- (I - Y V^H) x below row `first`
    if (apply({v(first, first), y(first, first), width, c, rows_ - first, c, rows_ - first, columns - left})) return 1;
  }
  return 0;
}

// ---- in and out --------------------------------------------------------------------------------------------------------

int BlockedQr::take(const void* a, int64_t rows, int64_t first, int64_t columns, int64_t end, int which, bool turned, bool spoils) {
  const Copies copies{work() + first * element_, ld_, stride(), end - first};
  return measure(frame_, a, state(which), batch_, turned ? columns : rows, turned ? rows : columns, which == 1) ||
         take_scaled(frame_, a, state(which), batch_, rows, columns, copies, turned, spoils, which == 1);
}

int BlockedQr::give_r(void* r, int64_t rows) {
  const Rows out(batch_, rows, columns_);
  return move(frame_, "qr_give_r", r, out.blocks, 0, static_cast<const void*>(work()), r, static_cast<const int32_t*>(state(0)), batch_,
              stride(), int32_t(rows), int32_t(columns_), int32_t(ld_), out.each);
}

int BlockedQr::give_raw(void* h) {
  const int64_t tiles = ((rows_ + 31) / 32) * ((columns_ + 31) / 32);
  return move(frame_, "qr_give_raw", h, batch_ * tiles, size_t(32 * 33 * element_), static_cast<const void*>(work()), h,
              static_cast<const int32_t*>(state(0)), batch_, stride(), int32_t(rows_), int32_t(columns_), int32_t(ld_));
}

int BlockedQr::identity(void* q, int64_t columns) {
  const Rows out(batch_, rows_, columns);
  return move(frame_, "qr_identity", q, out.blocks, 0, q, batch_, int32_t(rows_), int32_t(columns), out.each);
}

// ---- the operations ----------------------------------------------------------------------------------------------------

namespace {

BlockedQr blocked(Frame& frame, const Properties& gpu, int64_t batch) {
  const int64_t m = frame.size[1], n = frame.size[2];
  return {frame, gpu, batch, m, n, std::min(m, n), 0, frame.op == QR ? frame.size[3] : 0};
}

int64_t matrices_at_once(Frame& frame, const Properties& gpu) {
  return matrices_per_part(frame.size[0], int64_t(blocked(frame, gpu, 1).bytes()));
}

int run_part(Frame& frame, const Properties& gpu, char* block) {
  const int64_t m = frame.size[1], n = frame.size[2];
  const bool raw = frame.op == QR_RAW;
  BlockedQr qr = blocked(frame, gpu, frame.size[0]);
  if (qr.place(block) || qr.take(frame.buffer[0], m, 0, n, qr.ld(), 0, false, true) ||
      qr.factor(raw ? frame.buffer[2] : nullptr, raw))
    return 1;
  if (raw) return qr.give_raw(frame.buffer[1]);
  if (frame.op == QR_R) return qr.give_r(frame.buffer[1], std::min(m, n));
  const int64_t c = frame.size[3];
  return qr.give_r(frame.buffer[2], c) || qr.identity(frame.buffer[1], c) || qr.apply(frame.buffer[1], c, true);
}

}  // namespace

bool blocked_qr_fits(const Frame& frame, const Properties& gpu) {
  const int64_t longer = std::max(frame.size[1], frame.size[2]);
  return longer < int64_t(1) << 30 && BlockedQr::fits(frame.dtype, frame.op == LSTSQ ? longer : frame.size[1], gpu);
}

int64_t blocked_qr_scratch(Frame& frame) {
  const Properties* gpu = properties(frame);
  return gpu ? int64_t(blocked(frame, *gpu, matrices_at_once(frame, *gpu)).bytes()) : -1;
}

int blocked_qr(Frame& frame) {
  const Properties* gpu = properties(frame);
  if (!gpu) return 1;
  const int64_t batch = frame.size[0], step = matrices_at_once(frame, *gpu);
  char* block = scratch(frame, blocked(frame, *gpu, step).bytes());
  if (!block) return 1;
  for (int64_t first = 0; first < batch; first += step) {
    Frame part = part_of(frame, first, std::min(step, batch - first));
    if (run_part(part, *gpu, block)) return fail_as(frame, part);
  }
  return 0;
}

}  // namespace lapwing::cuda
