#include "gpu/lstsq.h"

#include <algorithm>
#include <vector>

#include "gpu/blocked_qr.h"
#include "gpu/cuda.h"
#include "gpu/rest.h"
#include "gpu/vendor.h"
#include "methods/lstsq.h"

namespace lapwing::cuda {
namespace {

constexpr int64_t SVD_BYTES = int64_t(1) << 26;  // of matrices at a time, or one
constexpr int64_t TILE = 32;

// As in lstsq.cu.
struct Call {
  const void *r, *right;
  void *x, *residuals, *rank, *info;
  const int32_t *a_state, *b_state;
  int64_t batch, r_stride, right_stride;
  int32_t r_ld, right_ld, right_rows, order, k, x_rows, adjoint;
};

struct Sizes {
  explicit Sizes(const Frame& frame)
      : batch(frame.size[0]), m(frame.size[1]), n(frame.size[2]), k(frame.size[3]), least(std::min(m, n)),
        element(int64_t(size_of(frame.dtype))), real(int64_t(size_of(frame.dtype % 2))) {}
  int64_t batch, m, n, k, least, element, real;
  bool wide() const { return m < n; }
};

template <class... Arguments>
int queue(Frame& frame, const char* name, int64_t order, int64_t blocks, size_t shared, Arguments... arguments) {
  const int threads = order <= 64 ? 64 : order < 512 ? 256 : 1024;
  const int width = access_width({frame.buffer[2]}, int64_t(size_of(frame.dtype)));
  return start(frame, "lstsq.cu", options(frame.dtype, false, width, " -DLW_THREADS=%d", threads), name, grid_for(blocks),
               unsigned(threads), shared, arguments...);
}

}  // namespace

int64_t triangles_shared(const Frame& frame) {
  const Sizes at(frame);
  return ((TILE + 1) * TILE + TILE + at.least) * at.element + 32 * at.real;
}

int solve_by_triangles(Frame& frame, const Triangles& t) {
  const Sizes at(frame);
  const Call call{t.r, t.right, frame.buffer[2], frame.buffer[3], frame.buffer[4], frame.buffer[5], t.a_state, t.b_state, at.batch,
                  t.r_stride, t.right_stride, int32_t(t.r_ld), int32_t(t.right_ld), int32_t(at.m), int32_t(at.least),
                  int32_t(at.k), int32_t(at.n), at.wide()};
  const auto shared = size_t(triangles_shared(frame));
  return queue(frame, "lstsq_rank", at.least, at.batch, shared, call, rcond_of(frame)) ||
         (at.k && queue(frame, "lstsq_solve", at.least, at.batch * at.k, shared, call));
}

// ---- by the SVD ------------------------------------------------------------------------------------------------------------

namespace {

// Copies of some matrices and their SVD.
struct SvdPlaces {
  size_t a, b, left, u, s, vh, y, failed, states, work, total = 0;

  SvdPlaces(const Sizes& at, int64_t count, int64_t svd_bytes) {
    const auto take = [&](int64_t bytes) {
      const size_t start = total;
      total += size_t((bytes + 255) / 256 * 256);
      return start;
    };
    a = take(count * at.m * at.n * at.element), b = take(count * at.m * at.k * at.element);
    left = take(count * at.m * at.k * at.element), u = take(count * at.m * at.least * at.element);
    s = take(count * at.least * at.real), vh = take(count * at.least * at.n * at.element);
    y = take(count * at.least * at.k * at.element), failed = take(count * 4), states = take((1 + at.k) * count * 4);
    work = take(svd_bytes);
  }
};

int64_t matrices_for_svd(const Sizes& at) {
  return std::clamp<int64_t>(SVD_BYTES / (at.m * at.n * at.element), 1, at.batch);
}

// The SVD frame of `count` matrices; `memory` becomes its scratch memory
Frame svd_frame(const Frame& frame, int64_t count, Rest* memory) {
  Frame inner = frame;
  inner.op = SVD, inner.engine = AUTO, inner.flags = 0;
  const int64_t size[] = {count, frame.size[1], frame.size[2], 0, 0, 0};
  std::copy_n(size, 6, inner.size);
  std::fill_n(inner.buffer, 8, nullptr);
  inner.scratch = {memory, Rest::get};
  return inner;
}

// x <- V S^+ U^H b for all matrices of the frame
int solve_some(Frame& frame, const ChosenEngine& svd, const SvdPlaces& places, char* block) {
  const Sizes at(frame);
  using Operand = cublas::Dense::Operand;
  void* x = frame.buffer[2];
  auto* states = reinterpret_cast<int32_t*>(block + places.states);
  auto* failed = reinterpret_cast<int32_t*>(block + places.failed);
  void *a = block + places.a, *b = block + places.b, *left = block + places.left, *y = block + places.y;
  Rest rest{block + places.work, block + places.total, frame.scratch};
  Frame inner = svd_frame(frame, at.batch, &rest);
  void* buffer[] = {a, block + places.u, block + places.s, block + places.vh, failed};
  std::copy_n(buffer, 5, inner.buffer);
  cublas::Dense blas(frame);
  if (!blas.ok() || measure(frame, frame.buffer[0], states, at.batch, at.m, at.n, false) ||
      take_scaled(frame, frame.buffer[0], states, at.batch, at.m, at.n, {a, at.n, at.m * at.n, at.n}, false, false, false))
    return 1;
  if (svd.run(inner)) return fail_as(frame, inner);
  int32_t* b_states = states + at.batch;
  if (at.k && (measure(frame, frame.buffer[1], b_states, at.batch, at.m, at.k, true) ||
               take_scaled(frame, frame.buffer[1], b_states, at.batch, at.m, at.k, {b, at.k, at.m * at.k, at.k}, false, false, true)))
    return 1;
  const Operand rows_a{a, at.n, at.m * at.n}, rows_b{b, at.k, at.m * at.k}, rows_left{left, at.k, at.m * at.k};
  const Operand rows_u{buffer[1], at.least, at.m * at.least}, rows_v{buffer[3], at.n, at.least * at.n};
  const Operand rows_y{y, at.k, at.least * at.k}, rows_x{x, at.k, at.n * at.k};
  const int none = vendor::OP_NONE, adjoint = vendor::OP_ADJOINT;
  // to the library every row-major matrix is its transpose: y^T <- b^T conj(U)
  if (at.k && blas.gemm_many(none, adjoint, at.k, at.least, at.m, 1, rows_b, rows_u, 0, rows_y, at.batch)) return 1;
  if (queue(frame, "lstsq_weigh", at.least, at.batch, 0, y, static_cast<const void*>(buffer[2]), frame.buffer[4], frame.buffer[5],
            static_cast<const int32_t*>(failed), at.batch, int32_t(at.least), int32_t(at.k), rcond_of(frame)))
    return 1;
  if (!at.k) return 0;
  // x^T <- y^T conj(V^H); left^T <- b^T - x^T A^T
  return blas.gemm_many(none, adjoint, at.k, at.n, at.least, 1, rows_y, rows_v, 0, rows_x, at.batch) ||
         copy(frame, left, b, size_t(at.batch * at.m * at.k * at.element)) ||
         blas.gemm_many(none, none, at.k, at.m, at.n, -1, rows_x, rows_a, 1, rows_left, at.batch) ||
         queue(frame, "lstsq_settle", at.least, at.batch * at.k, size_t(32 * at.real), static_cast<const void*>(left), x,
               frame.buffer[3], static_cast<const int32_t*>(states), static_cast<const int32_t*>(b_states), at.batch, int32_t(at.m),
               int32_t(at.n), int32_t(at.k));
}

}  // namespace

int read_ranks(Frame& frame, int32_t* rank) { return download(frame, rank, frame.buffer[4], sizeof(int32_t) * size_t(frame.size[0])); }

int64_t lstsq_svd_bytes(Frame& frame, const ChosenEngine& svd) {
  const Sizes at(frame);
  const int64_t count = matrices_for_svd(at);
  Frame inner = svd_frame(frame, count, nullptr);
  const int64_t svd_bytes = svd.bytes(inner);
  if (svd_bytes < 0) return fail_as(frame, inner), -1;
  return int64_t(SvdPlaces(at, count, svd_bytes).total);
}

int lstsq_by_svd(Frame& frame, const ChosenEngine& svd, char* block, const int32_t* doubtful) {
  const Sizes at(frame);
  int32_t count = 1;
  if (doubtful && download(frame, &count, doubtful, sizeof count)) return 1;
  if (count == 0) return 0;
  std::vector<int32_t> rank(size_t(at.batch));
  if (read_ranks(frame, rank.data())) return 1;
  if (std::find(rank.begin(), rank.end(), UNPROVEN) == rank.end()) return 0;
  if (!block) {
    const int64_t bytes = lstsq_svd_bytes(frame, svd);
    block = bytes < 0 ? nullptr : scratch(frame, size_t(bytes));
    if (!block) return 1;
  }
  const int64_t most = matrices_for_svd(at);
  Frame largest = svd_frame(frame, most, nullptr);
  const int64_t svd_bytes = svd.bytes(largest);
  if (svd_bytes < 0) return fail_as(frame, largest);
  const SvdPlaces places(at, most, svd_bytes);  // of lstsq_svd_bytes(): runs of fewer matrices use less of each
  for (int64_t first = 0, end; first < at.batch; first = end + 1) {
    for (end = first; end < at.batch && end - first < most && rank[size_t(end)] == UNPROVEN;) end++;
    if (end == first) continue;
    Frame part = part_of(frame, first, end - first);
    if (solve_some(part, svd, places, block)) return fail_as(frame, part);
    if (end < at.batch && rank[size_t(end)] == UNPROVEN) end--;  // the next run begins here
  }
  return 0;
}

// ---- with the QR of blocked_qr.h ---------------------------------------------------------------------------------------------

namespace {

BlockedQr blocked(Frame& frame, const Properties& gpu, int64_t batch) {
  const Sizes at(frame);
  if (at.wide()) return {frame, gpu, batch, at.n, at.m, at.m, at.k, at.k};
  return {frame, gpu, batch, at.m, at.n + at.k, at.n, 0, 0};
}

int64_t matrices_at_once(Frame& frame, const Properties& gpu) {
  return matrices_per_part(frame.size[0], int64_t(blocked(frame, gpu, 1).bytes()));
}

int solve_part(Frame& frame, const Properties& gpu, char* block) {
  const Sizes at(frame);
  BlockedQr qr = blocked(frame, gpu, at.batch);
  void *a = frame.buffer[0], *b = frame.buffer[1];
  const int64_t longer = std::max(at.m, at.n);
  // the working copy is (A, b), of which A gets reflections, or A^H, with b behind it
  if (qr.place(block) || qr.take(a, longer, 0, at.least, at.k ? at.least : qr.ld(), 0, at.wide(), true) ||
      (at.k && qr.take(b, at.m, at.least, at.k, qr.ld(), 1, false, false)) || qr.factor(nullptr, false))
    return 1;
  const Triangles triangles{qr.work(), qr.ld(), qr.stride(), qr.work() + at.least * at.element, qr.ld(), qr.stride(), qr.state(0),
                            qr.state(1)};
  return solve_by_triangles(frame, triangles) || (at.wide() && qr.apply(frame.buffer[2], at.k, false));
}

// ---- in one kernel: lstsq_block.cu -------------------------------------------------------------------------------------------

constexpr int64_t MANY = 4096;  // matrices: from here on their doubtful ones are counted, and ranks are read only if there are such
constexpr int64_t COUNTER = 256;  // bytes of that count, as Rest deals them out

// As in lstsq_block.cuh.
struct BlockCall {
  const void *a, *b;
  void *x, *residuals, *rank, *info;
  int64_t batch;
  int32_t m, n, k;
  void* doubtful;
};

// How A and b are spread over the registers of a block: LW_G, LW_C, LW_RT, LW_THREADS, LW_HOLD, LW_RESIDENT, LW_PIECES.
struct BlockShape {
  int lanes, columns, rows, threads, hold, resident, pieces;
  int64_t shared;
};

// The fewest lanes to a column whose registers hold it, and as many blocks on a multiprocessor as leave a thread the registers
// that it needs for other things: from the compiler's reports for sm_90. threads is 0 where nothing fits.
BlockShape block_shape(const Sizes& at, const Properties& gpu) {
  constexpr int64_t COLUMNS = 2, OTHER = 32, MOST_BLOCKS = 16, DRIVER = 1024;
  const int64_t words = at.element / 4, columns = at.n + at.k, pack = 16 / at.element, limit = words == 1 ? 64 : 96;
  BlockShape shape{};
  for (int64_t lanes = 4; lanes <= 32; lanes *= 2) {
    const int64_t rows = (at.m + lanes - 1) / lanes, warps = ((columns + COLUMNS - 1) / COLUMNS * lanes + 31) / 32;
    if (COLUMNS * rows * words > limit) continue;
    // a multiprocessor has four schedulers, each with registers for 512 lanes of a warp
    const auto registers = [&](int64_t blocks) { return std::min<int64_t>(255, 512 / ((blocks * warps + 3) / 4) / 8 * 8); };
    const int64_t need = COLUMNS * rows * words + OTHER, padded = (rows + pack - 1) / pack * pack;
    const int64_t shared = (2 * lanes * padded + 4 + at.n * (columns | 1)) * at.element + 4 * (1 + at.k);
    if (warps > 32 || registers(1) < need || shared > gpu.shared_per_block) return shape;
    int64_t resident = std::min(MOST_BLOCKS, (gpu.shared_per_block + DRIVER) / (shared + DRIVER));
    while (resident > 1 && registers(resident) < need) resident--;
    return {int(lanes), int(COLUMNS), int(rows), int(32 * warps), 0, int(resident), int((at.n + 31) / 32), shared};
  }
  return shape;
}

// ---- by A^T A where that is as exact: lstsq_gram.cu --------------------------------------------------------------------------

// LW_GROUPS, LW_THREADS, LW_RESIDENT. threads is 0 where it does not pay.
struct GramShape {
  int groups, threads, resident;
  int64_t shared;
};

// Matrices with fewer rows than twice their columns are too often ill-conditioned.
GramShape gram_shape(const Sizes& at, int32_t dtype, const Properties& gpu) {
  constexpr int64_t LEAST = 17, MOST = 64, MOST_SIDES = 16, REGISTERS = 64 * 1024, DRIVER = 1024;
  GramShape shape{};
  if (dtype > F64 || gpu.compute_capability < 90 || at.n < LEAST || at.n > MOST || at.m < 2 * at.n || at.k > MOST_SIDES) return shape;
  const int64_t pack = 16 / at.element, groups = (at.n + 7) / 8, rows = (at.m + 7) / 8 * 8;
  // threads, and registers of each; H200, 2026-11-16
  const int64_t threads = groups <= (dtype == F32 ? 5 : 4) ? 64 : dtype == F64 && groups > 6 ? 256 : 128, warps = threads / 32;
  const int64_t each = dtype == F32 ? (groups <= 5 ? 96 : 128) : groups <= 5 ? 128 : 248;
  const int64_t elements = (rows * at.n + 8 * groups + pack - 1) / pack * pack + at.n * (at.n | 1) + rows + (warps + 4) * 8 * groups + warps;
  if (elements * at.element > gpu.shared_per_block) return shape;
  const int64_t by_memory = (gpu.shared_per_block + DRIVER) / (elements * at.element + DRIVER);
  const int64_t resident = std::max<int64_t>(1, std::min(by_memory, REGISTERS / (each * threads)));
  return {int(groups), int(threads), int(resident), elements * at.element};
}

// ---- several matrices to a warp: lstsq_small.cu ------------------------------------------------------------------------------

// LW_LANES, LW_RT. lanes is 0 where the registers do not suffice.
struct SmallShape {
  int lanes, rows;
};

// The fewest lanes whose registers hold a matrix, their rows of R^-1, and two rows while a reflection is applied: from the compiler's
// reports for sm_90.
SmallShape small_shape(const Sizes& at) {
  constexpr int64_t MOST = 16, MOST_SIDES = 4, MOST_ROWS = 16;
  if (at.wide() || at.n > MOST || at.k < 1 || at.k > MOST_SIDES) return {};
  const int64_t words = at.element / 4, limit = words == 1 ? 96 : 144;
  for (int64_t lanes = 4; lanes <= 32; lanes *= 2) {
    const int64_t rows = (at.m + lanes - 1) / lanes, of_inverse = (at.n + lanes - 1) / lanes;
    if (rows <= MOST_ROWS && ((rows + 2) * (at.n + at.k) + of_inverse * at.n) * words <= limit) return {int(lanes), int(rows)};
  }
  return {};
}

int solve_in_one_kernel(Frame& frame, const Properties& gpu, int32_t* doubtful) {
  constexpr int64_t SMALL_THREADS = 128;
  const Sizes at(frame);
  void* const* to = frame.buffer;
  const BlockCall call{to[0], to[1], to[2], to[3], to[4], to[5], at.batch, int32_t(at.m), int32_t(at.n), int32_t(at.k), doubtful};
  if (doubtful && fill(frame, doubtful, 0, sizeof *doubtful)) return 1;
  if (const SmallShape small = small_shape(at); small.lanes > 0) {
    const std::string text = options(frame.dtype, false, access_width({to[0], to[1], to[2]}),
                                     " -DLW_N=%d -DLW_K=%d -DLW_LANES=%d -DLW_RT=%d -DLW_THREADS=%d", int(at.n), int(at.k), small.lanes,
                                     small.rows, int(SMALL_THREADS));
    const int64_t matrices = SMALL_THREADS / small.lanes;  // of a block
    return start(frame, "lstsq_small.cu", text, "lstsq_small", grid_for((at.batch + matrices - 1) / matrices), unsigned(SMALL_THREADS), 0,
                 call, rcond_of(frame));
  }
  const BlockShape shape = block_shape(at, gpu);
  const GramShape gram = gram_shape(at, frame.dtype, gpu);
  const int width = access_width({to[0], to[1], to[2]}, at.element);
  if (gram.threads > 0) {
    const int whole = access_width({to[0]}, at.m * at.n * at.element) == 16 ? 16 : width;  // A is copied as it lies there
    const std::string text = options(frame.dtype, false, whole, " -DLW_GROUPS=%d -DLW_THREADS=%d -DLW_RESIDENT=%d", gram.groups,
                                     gram.threads, gram.resident);
    if (start(frame, "lstsq_gram.cu", text, "lstsq_gram", grid_for(at.batch), unsigned(gram.threads), size_t(gram.shared), call,
              rcond_of(frame)))
      return 1;
  }
  const std::string text = options(frame.dtype, false, width,
                                   " -DLW_G=%d -DLW_C=%d -DLW_RT=%d -DLW_THREADS=%d -DLW_HOLD=%d -DLW_RESIDENT=%d -DLW_PIECES=%d",
                                   shape.lanes, shape.columns, shape.rows, shape.threads, shape.hold, shape.resident, shape.pieces);
  // after the other kernel most blocks find nothing to do
  const int64_t blocks = gram.threads > 0 ? std::min<int64_t>(at.batch, shape.resident * gpu.multiprocessors) : at.batch;
  return start(frame, "lstsq_block.cu", text, "lstsq_block", grid_for(blocks), unsigned(shape.threads), size_t(shape.shared), call,
               rcond_of(frame), int32_t(gram.threads > 0));
}

}  // namespace

bool lstsq_is_one_kernel(const Frame& frame, const Properties& gpu) {
  const Sizes at(frame);
  return !at.wide() && at.least > 0 && at.m < 2048 && at.k < 1024 &&
         (small_shape(at).lanes > 0 || block_shape(at, gpu).threads > 0);
}

int64_t blocked_lstsq_scratch(Frame& frame, const ChosenEngine& svd) {
  const Properties* gpu = properties(frame);
  const int64_t more = gpu ? lstsq_svd_bytes(frame, svd) : -1;
  if (more < 0) return more;
  if (lstsq_is_one_kernel(frame, *gpu)) return more + (frame.size[0] < MANY ? 0 : COUNTER);
  return int64_t(blocked(frame, *gpu, matrices_at_once(frame, *gpu)).bytes()) + more;
}

int blocked_lstsq(Frame& frame, const ChosenEngine& svd) {
  const Properties* gpu = properties(frame);
  if (!gpu) return 1;
  if (lstsq_is_one_kernel(frame, *gpu)) {
    int32_t* doubtful = nullptr;
    if (frame.size[0] >= MANY && !(doubtful = reinterpret_cast<int32_t*>(scratch(frame, COUNTER)))) return 1;
    return solve_in_one_kernel(frame, *gpu, doubtful) || lstsq_by_svd(frame, svd, nullptr, doubtful);
  }
  const int64_t total = blocked_lstsq_scratch(frame, svd);
  char* block = total < 0 ? nullptr : scratch(frame, size_t(total));
  if (!block) return 1;
  const int64_t batch = frame.size[0], step = matrices_at_once(frame, *gpu);
  for (int64_t first = 0; first < batch; first += step) {
    Frame part = part_of(frame, first, std::min(step, batch - first));
    if (solve_part(part, *gpu, block)) return fail_as(frame, part);
  }
  return lstsq_by_svd(frame, svd, block + blocked(frame, *gpu, step).bytes());
}

}  // namespace lapwing::cuda
