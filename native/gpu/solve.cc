#include "gpu/solve.h"

#include <algorithm>
#include <cstdio>
#include <string>

#include "gpu/blocked.h"
#include "gpu/blocked_qr.h"
#include "gpu/svd.h"
#include "operations.h"

namespace lapwing::cuda {
namespace {

constexpr int64_t RESERVED = 16 * 1024;   // of a block's shared memory, for what solve_lanes.cu declares itself and the driver
constexpr int64_t MAX_LANES_N = 32;       // solve_lanes.cu has a warp for a matrix at most, with one row to a lane or
// two rows, as far as registers suffice. H200, 2026-11-19, ms, against a block for each matrix: float32 n = 33 (20000) 0.160 / 0.402, 48
// (5000) 0.080 / 0.141, 52 (4500) 0.095 / 0.158, 64 (4000) 0.169 / 0.178; float64 33 0.325 / 0.562, 40 (8000) 0.247 / 0.250; complex64
// 33 0.497 / 0.753, 40 0.382 / 0.345. LU: float32 33 0.271 / 0.465, 52 0.176 / 0.222, 60 (4000) 0.257 / 0.243; float64 40 0.297 / 0.309.
constexpr int64_t MAX_TWO_ROWS[] = {52, 40, 0, 0};
constexpr int64_t MAX_QR_M = 32, MAX_QR_N = 128;
constexpr int64_t MAX_SVD = 32;           // a column is in the registers of a lane
constexpr int64_t FEW = 4;  // right-hand sides for which an element per lane beats a column per lane
constexpr int64_t MAX_BLOCK_N = 256;      // solve_block.cu has a warp for a panel, eight rows to a lane at most

// Choices of solve.cuh.
enum Read { AS_IT_IS, ADJOINT_OF_IT, LOWER_OF_IT, UPPER_OF_IT };
enum Factor { NO_FACTOR, HERMITIAN_FACTOR, GENERAL_FACTOR };
enum Substitution { NONE, WITH_ONES, DIVIDING };
enum Rows { NO_ROWS, ROWS_BEFORE, ROWS_AFTER };
enum Give { GIVE_X, GIVE_INVERSE, GIVE_FACTOR, GIVE_DETERMINANT };

struct Plan {
  Read read;
  Factor factor;
  Substitution forward, backward;
  Rows rows;
  Give give;
};

Plan plan_of(const Frame& frame) {
  const bool upper = frame.flags & UPPER, adjoint = frame.flags & ADJOINT;
  const Read triangle = upper ? UPPER_OF_IT : LOWER_OF_IT;
  switch (frame.op) {
    case TRIANGULAR: {
      const Substitution kind = frame.flags & UNIT ? WITH_ONES : DIVIDING;
      const bool forward = upper == adjoint;  // the adjoint of an upper triangle is a lower one
      return {adjoint ? ADJOINT_OF_IT : AS_IT_IS, NO_FACTOR, forward ? kind : NONE, forward ? NONE : kind, NO_ROWS, GIVE_X};
    }
    case CHOLESKY_SOLVE: return {triangle, NO_FACTOR, DIVIDING, DIVIDING, NO_ROWS, GIVE_X};
    case LU_SOLVE:  // A = P^H L U, A^H = U^H L^H P
      if (adjoint) return {ADJOINT_OF_IT, NO_FACTOR, DIVIDING, WITH_ONES, ROWS_AFTER, GIVE_X};
      return {AS_IT_IS, NO_FACTOR, WITH_ONES, DIVIDING, ROWS_BEFORE, GIVE_X};
    default: break;
  }
  const Give give = frame.op == SOLVE     ? GIVE_X
                    : frame.op == INVERSE ? GIVE_INVERSE
                    : frame.op == LU      ? GIVE_FACTOR
                                          : GIVE_DETERMINANT;
  if (frame.op != LU && frame.flags & POS) return {triangle, HERMITIAN_FACTOR, DIVIDING, DIVIDING, NO_ROWS, give};
  return {AS_IT_IS, GENERAL_FACTOR, WITH_ONES, DIVIDING, ROWS_BEFORE, give};
}

// As in solve.cuh, solve_qr.cu and svd.cu.
struct Call {
  void *a, *b, *out, *logabs, *rows, *info;
  int64_t batch, k;
};
struct QrCall {
  void *a, *q, *r;
  int64_t batch, n, c;
  int32_t m, reflections;
};
struct SvdCall {
  void *a, *u, *s, *vh, *info;
  int64_t batch;
  int32_t m, n;
};

Call read(const Frame& frame) {
  void* const* at = frame.buffer;
  Call call{at[0], nullptr, at[1], nullptr, nullptr, nullptr, frame.size[0], 0};
  switch (frame.op) {
    case TRIANGULAR: case SOLVE:
      call.b = at[1], call.out = at[2], call.info = at[3], call.k = frame.size[2];
      call.logabs = at[4], call.rows = at[5];  // the factors of solve_keeping
      break;
    case INVERSE: call.info = at[2]; break;
    case LU: call.rows = at[2], call.info = at[3]; break;
    case LU_SOLVE: call.a = at[1], call.rows = at[2], call.b = at[3], call.out = at[4], call.k = frame.size[2]; break;
    case CHOLESKY_SOLVE: call.a = at[1], call.b = at[2], call.out = at[3], call.k = frame.size[2]; break;
    default: call.logabs = frame.op == SLOGDET ? at[2] : nullptr, call.info = at[status_place(frame.op)]; break;
  }
  return call;
}

// Bytes in shared memory of `lines` lines of `line` bytes: Stage in stage.cuh.
int64_t staged(int64_t line, int64_t lines) {
  if (line % 16) return line * lines;
  int64_t bytes = (line / 16 | 1) * 16 * lines;
  return lines > 1 && bytes % 32 == 0 ? bytes + 16 : bytes;
}

// How a problem is spread over threads.
struct Shape {
  int threads, lanes, together, resident;  // lanes of a matrix, right-hand sides together, blocks on one multiprocessor
  int64_t matrices;                        // of a block
  size_t shared;
  int rows, few, ahead, pitch;  // of solve_block.cu: LW_RT, LW_FEW, LW_AHEAD, elements between rows in shared memory
};

// Whether one thread holds a matrix in registers: all of it, or the triangle of a Hermitian one.
bool is_thread(const Frame& frame, const Plan& plan, int64_t n) {
  constexpr int64_t limit[] = {8, 8, 8, 5}, hermitian_limit[] = {16, 11, 11, 7};
  return n <= (plan.factor == HERMITIAN_FACTOR ? hermitian_limit : limit)[frame.dtype];
}

Shape thread_shape(Frame& frame, const Plan& plan, int64_t n, int64_t k) {
  const int64_t element = int64_t(size_of(frame.dtype));
  Shape shape{};
  shape.together = plan.give == GIVE_X ? int(std::min<int64_t>(k, element == 4 ? 8 : 4)) : 1;
  const int64_t bytes = staged(n * n * element, 1) + (plan.give == GIVE_X ? staged(n * shape.together * element, 1) : 0);
  shape.threads = bytes * 256 <= 36 * 1024 ? 256 : bytes * 128 <= 36 * 1024 ? 128 : 64;
  constexpr int64_t ALWAYS = 64000;  // bytes that every GPU has
  const Properties* gpu = bytes * shape.threads > ALWAYS ? properties(frame) : nullptr;
  while (gpu && shape.threads > 16 && bytes * shape.threads > gpu->shared_per_block) shape.threads /= 2;
  shape.lanes = shape.resident = 1;
  shape.matrices = shape.threads;
  shape.shared = size_t(bytes * shape.threads);
  return shape;
}

// As many rows in a lane as its registers hold without spilling: what is broadcast then serves more of them. H200, 2026-11-15.
Shape lanes_shape(const Frame& frame, const Plan& plan, int64_t n, int64_t k) {
  const int64_t element = int64_t(size_of(frame.dtype));
  const bool small = n <= 16, inverse = plan.give == GIVE_INVERSE, columns = plan.give == GIVE_X && k > FEW;
  Shape shape{};
  shape.together = plan.give == GIVE_X && !columns ? int(k) : 0;
  int rows = small && element < 16 ? 2 : 1;
  shape.threads = element == 16 ? 64 : 128;
  shape.resident = element == 16 ? 4 : element == 4 ? (small ? 6 : 8) : inverse && !small ? 3 : 5;
  if (n > MAX_LANES_N) {
    constexpr int64_t REGISTERS = 16 * 1024, OTHERS = 60;  // of a scheduler, of which there are four; of a thread, beside its rows
    rows = 2;
    if (element > 4) shape.threads = 64;
    const int64_t warps = REGISTERS / (32 * (2 * n * element / 4 + OTHERS));  // of a scheduler
    shape.resident = int(4 * warps / (shape.threads / 32));
  } else if (columns) {
    rows = 1;  // columns of a lane's own are read best by many lanes side by side
  } else if (plan.factor == HERMITIAN_FACTOR && element == 4) {
    rows = 4, shape.threads = 64, shape.resident = inverse ? 4 : 5;
  } else if (plan.factor == HERMITIAN_FACTOR && element == 8) {
    if (inverse && !small)
      rows = 2, shape.resident = 2;
    else
      rows = 4, shape.threads = 64, shape.resident = small ? 6 : 3;
  }
  shape.lanes = 4 * rows;
  while (shape.lanes < n) shape.lanes *= 2;
  shape.lanes /= rows;
  shape.matrices = shape.threads / shape.lanes;
  const int64_t bytes = staged(n * element, n) + (shape.together ? staged(n * shape.together * element, 1) : 0);
  shape.shared = size_t(bytes * shape.matrices);
  return shape;
}

// Whether a warp holds a matrix above 32 x 32 in registers. There is no room for more right-hand sides, or an inverse, beside it.
bool is_two_rows(const Frame& frame, const Plan& plan, int64_t n, int64_t k, const Properties& gpu) {
  if (n <= MAX_LANES_N || n > MAX_TWO_ROWS[frame.dtype] || plan.factor != GENERAL_FACTOR || plan.give == GIVE_INVERSE) return false;
  return (plan.give != GIVE_X || k == 1) && int64_t(lanes_shape(frame, plan, n, k).shared) + RESERVED <= gpu.shared_per_block;
}

// A row of a matrix of a block in shared memory: block.cuh.
struct BlockRows {
  int64_t panel, rounded, pitch;  // columns of a panel, and of a row with its zeros; elements between rows
  BlockRows(int32_t dtype, int64_t n) {
    const int64_t element = int64_t(size_of(dtype));
    panel = element == 16 ? 4 : 8;
    rounded = (n + panel - 1) / panel * panel;
    pitch = (rounded * element / 16 | 1) * 16 / element;
  }
};

// Blocks on one multiprocessor that shared memory allows and that leave each thread the registers its panel needs: `rows` rows
// of a panel beside what an update takes. From the compiler's reports for sm_90: fewer registers spill.
int resident_blocks(int32_t dtype, int rows, int threads, int64_t shared, const Properties& gpu) {
  constexpr int64_t REGISTERS = 64 * 1024, DRIVER = 1024;  // of a multiprocessor; bytes that the driver takes of each block
  constexpr int64_t few[] = {96, 128, 168, 168}, some[] = {128, 168, 168, 168};
  const int64_t each = rows <= 2 ? few[dtype] : rows <= 4 ? some[dtype] : 255;
  const int64_t by_memory = (gpu.shared_per_block + DRIVER) / (shared + DRIVER);
  return int(std::max<int64_t>(1, std::min(by_memory, REGISTERS / (each * threads))));
}

// A block per matrix, with a chunk of right-hand sides 128 bytes wide beside it, or, where they are few or there is no room, a
// warp for each. Panels are factored ahead where too few blocks share a multiprocessor to work while one of them waits.
Shape block_shape(const Frame& frame, const Plan& plan, int64_t n, int64_t k, const Properties& gpu) {
  const int64_t element = int64_t(size_of(frame.dtype)), room = gpu.shared_per_block, chunk = 128 / element;
  const auto [panel, rounded, pitch] = BlockRows(frame.dtype, n);
  const int64_t integers = 2 * panel + 2 + 2 * n;
  const int64_t bytes = (n * pitch + rounded + 2 * panel + panel * panel) * element + 4 * integers;
  const bool columns = (plan.give == GIVE_X && k > FEW) || (plan.give == GIVE_INVERSE && plan.factor == GENERAL_FACTOR);
  Shape shape{};
  shape.few = !columns || bytes + rounded * chunk * element > room;
  shape.together = shape.few ? 0 : int(chunk);
  shape.shared = size_t(bytes + rounded * shape.together * element);
  shape.ahead = int64_t(shape.shared) * 3 > room;
  shape.threads = n <= 64 ? 64 : n <= 128 && int64_t(shape.shared) * 2 <= room ? 128 : 256;
  shape.lanes = 32;
  shape.matrices = 1;
  shape.rows = int((n + 31) / 32);
  shape.resident = resident_blocks(frame.dtype, shape.rows, shape.threads, int64_t(shape.shared), gpu);
  shape.pitch = int(pitch);
  return shape;
}

// ---- positive definite systems with few right-hand sides: pos_block.cu -------------------------------------------

// As in pos_block.cu.
struct PosCall {
  void *a, *b, *x, *info;
  int64_t batch;
  int32_t n, k;
};

struct PosShape {
  int threads, row_blocks, resident;
  int64_t shared;
};

PosShape pos_shape(int32_t dtype, int64_t n, int64_t k, const Properties& gpu) {
  constexpr int64_t REGISTERS = 64 * 1024, DRIVER = 1024;  // of a multiprocessor; bytes that the driver takes of each block
  constexpr int64_t each[] = {128, 160, 160, 232};         // registers of a thread, from the compiler's reports for sm_90
  const int64_t element = int64_t(size_of(dtype)), pack = 16 / element, blocks = (n + 31) / 32, rows = (n + k + 31) / 32;
  const int64_t triangle = 32 * (32 * blocks * (blocks + 1) / 2 + pack * blocks);
  const int64_t below = rows > blocks ? 16 * (32 * (blocks + 1) + pack) : 0;
  PosShape shape{int(32 * blocks), int(rows), 1, 0};
  shape.shared = (triangle + below + 8 * 32) * element + 32 * blocks * int64_t(size_of(dtype % 2)) + 8;
  const int64_t by_memory = (gpu.shared_per_block + DRIVER) / (shape.shared + DRIVER);
  shape.resident = int(std::max<int64_t>(1, std::min(by_memory, REGISTERS / (each[dtype] * shape.threads))));
  return shape;
}

// Whether only the triangle is kept in shared memory. H200, 2026-11-16, ms, against all of the matrix: float32 n = 128 (1000) 0.087 /
// 0.138, 176 (600) 0.142 / 0.274; float64 64 (4000) 0.164 / 0.182, 100 (2000) 0.267 / 0.320; but complex64 64 0.269 / 0.216, 100
// 0.386 / 0.378, complex128 64 0.559 / 0.477.
bool is_triangle(const Frame& frame, const Plan& plan, int64_t n, int64_t k, const Properties& gpu) {
  constexpr int64_t MOST_SIDES = 16, LEAST[] = {128, 64, 105, 84};
  if (frame.op != SOLVE || plan.factor != HERMITIAN_FACTOR || n <= MAX_LANES_N || n > MAX_BLOCK_N || k > MOST_SIDES) return false;
  return n >= LEAST[frame.dtype] && pos_shape(frame.dtype, n, k, gpu).shared <= gpu.shared_per_block;
}

int launch_pos(Frame& frame, const Plan& plan, const PosShape& shape) {
  const int64_t n = frame.size[1], k = frame.size[2];
  void* const* at = frame.buffer;
  const PosCall call{at[0], at[1], at[2], at[3], frame.size[0], int32_t(n), int32_t(k)};
  const int width = access_width({at[0], at[1], at[2]}, n * int64_t(size_of(frame.dtype)));
  const std::string text = options(frame.dtype, plan.read == UPPER_OF_IT, width,
                                   " -DLW_N=%d -DLW_THREADS=%d -DLW_ROW_BLOCKS=%d -DLW_RESIDENT=%d", shape.threads, shape.threads,
                                   shape.row_blocks, shape.resident);
  return start(frame, "pos_block.cu", text, "pos_block", grid_for(call.batch), unsigned(shape.threads), size_t(shape.shared), call);
}

// ---- inverses of positive definite matrices: pos_inverse.cu -------------------------------------------------------

// As in pos_inverse.cu.
struct PosInverseCall {
  void *a, *out, *info;
  int64_t batch;
  int32_t n;
};

PosShape pos_inverse_shape(int32_t dtype, int64_t n, const Properties& gpu) {
  constexpr int64_t REGISTERS = 64 * 1024, DRIVER = 1024;  // of a multiprocessor; bytes that the driver takes of each block
  constexpr int64_t each[] = {168, 255, 255, 255};         // registers of a thread, from the compiler's reports for sm_90
  const int64_t element = int64_t(size_of(dtype)), blocks = (n + 31) / 32;
  PosShape shape{int(32 * blocks), int(blocks), 1, 0};
  shape.shared = 32 * (32 * blocks * (blocks + 1) / 2 + 16 / element * blocks) * element + 8 * 32 * element +
                 32 * blocks * int64_t(size_of(dtype % 2)) + 12;
  const int64_t by_memory = (gpu.shared_per_block + DRIVER) / (shape.shared + DRIVER);
  shape.resident = int(std::max<int64_t>(1, std::min(by_memory, REGISTERS / (each[dtype] * shape.threads))));
  return shape;
}

// Whether only the triangle is kept in shared memory. H200, 2026-11-16, ms, against all of the matrix, or panels: float64 n = 48 (5000)
// 0.250 / 0.199, 64 (4000) 0.217 / 0.298, 100 (2000) 0.428 / 0.541, 128 (1000) 0.236 / 0.638, 176 (600) 0.427 / 0.939; float32 128 0.180
// / 0.281, 176 0.429 / 0.501, 256 (500) 0.528 / 1.194; complex64 100 1.11 / 0.65, 128 0.628 / 0.739; complex128 64 0.98 / 0.80, 100 3.3
// / 1.6. Where n is far from a multiple of 32 the limits follow from these by the work, which is that of the next multiple.
bool is_packed_inverse(const Frame& frame, const Plan& plan, int64_t n, const Properties& gpu) {
  if (frame.op != INVERSE || plan.factor != HERMITIAN_FACTOR || n <= MAX_LANES_N || n > MAX_BLOCK_N) return false;
  const int64_t more = (n + 31) / 32 * 32 - n;
  const bool pays = frame.dtype == F32   ? n > 192 || (n >= 108 && more <= 20)
                    : frame.dtype == F64 ? n >= 72 || (n >= 58 && n <= 64)
                                         : frame.dtype == C64 && n >= 120 && n <= 128;
  return pays && pos_inverse_shape(frame.dtype, n, gpu).shared <= gpu.shared_per_block;
}

int launch_pos_inverse(Frame& frame, const Plan& plan, const PosShape& shape) {
  const int64_t n = frame.size[1];
  void* const* at = frame.buffer;
  const PosInverseCall call{at[0], at[1], at[2], frame.size[0], int32_t(n)};
  const int width = access_width({at[0], at[1]}, n * int64_t(size_of(frame.dtype)));
  const std::string text = options(frame.dtype, plan.read == UPPER_OF_IT, width, " -DLW_N=%d -DLW_THREADS=%d -DLW_RESIDENT=%d",
                                   32 * shape.row_blocks, shape.threads, shape.resident);
  return start(frame, "pos_inverse.cu", text, "pos_inverse", grid_for(call.batch), unsigned(shape.threads), size_t(shape.shared), call);
}

// ---- general matrices, a block column of them at a time in shared memory: lu_block.cu ----------------------------

struct ColumnsShape {
  int width, threads, resident, blocks;  // columns at a time; blocks: of threads, each with a place for the factors of one matrix
  int64_t shared, bytes;                 // bytes: of device memory for the factors
};

ColumnsShape columns_shape(const Frame& frame, int64_t n, const Properties& gpu) {
  constexpr int64_t REGISTERS = 64 * 1024, DRIVER = 1024;  // of a multiprocessor; bytes that the driver takes of each block
  constexpr int64_t each[] = {128, 168, 168, 168};         // registers of a thread, from the compiler's reports for sm_90
  const int64_t element = int64_t(size_of(frame.dtype)), width = element == 16 ? 16 : 32, rows = (n + width - 1) / width * width;
  ColumnsShape shape{int(width), int((n + 31) / 32 * 32), 1, 1, 0, 0};
  shape.shared = 2 * rows * (width * element + 16) + 2 * n * element + 4 * n;
  const int64_t by_memory = (gpu.shared_per_block + DRIVER) / (shape.shared + DRIVER);
  shape.resident = int(std::max<int64_t>(1, std::min(by_memory, REGISTERS / (each[frame.dtype] * shape.threads))));
  shape.blocks = int(std::min<int64_t>(frame.size[0], int64_t(shape.resident) * gpu.multiprocessors));
  shape.bytes = shape.blocks * n * rows * element;
  return shape;
}

// Whether only some columns of the matrix are kept in shared memory at a time: where that lets blocks share a multiprocessor, which
// the whole matrix does not. H200, 2026-11-16, solves, ms, against all of the matrix: float32 n = 128 (1000) 0.297 / 0.292, 176 (600)
// 0.588 / 0.668, 200 (600) 0.76 / 1.89; float64 100 (2000) 0.87 / 0.62, 128 (1000) 0.59 / 0.75; complex64 100 0.99 / 0.76; complex128
// 48 (5000) 0.60 / 0.45, 64 (4000) 0.77 / 0.78. Not for inverses: 1000 of n = 128 in float64 took 1.97, by panels 1.13.
bool is_by_columns(const Frame& frame, const Plan& plan, int64_t n, const Properties& gpu) {
  constexpr int64_t LEAST[] = {129, 119, 119, 64};
  if (plan.factor != GENERAL_FACTOR || plan.give == GIVE_INVERSE || n <= MAX_LANES_N || n > MAX_BLOCK_N) return false;
  return n >= LEAST[frame.dtype] && columns_shape(frame, n, gpu).resident > 1;
}

int launch_columns(Frame& frame, const Plan& plan, const ColumnsShape& shape) {
  const Call call = read(frame);
  const int64_t n = frame.size[1];
  void* work = scratch(frame, size_t(shape.bytes));
  if (!work) return 1;
  const int width = access_width({call.a, call.b, call.out}, n * int64_t(size_of(frame.dtype)));
  const std::string text = options(frame.dtype, false, width,
                                   " -DLW_RT=1 -DLW_W=%d -DLW_THREADS=%d -DLW_RESIDENT=%d -DLW_LANES=32 -DLW_FACTOR=2 -DLW_GIVE=%d",
                                   shape.width, shape.threads, shape.resident, plan.give);
  return start(frame, "lu_block.cu", text, "lu_block", grid_for(shape.blocks), unsigned(shape.threads), size_t(shape.shared), call, work,
               int32_t(n));
}

// own: the options of this source alone
int launch_solve(Frame& frame, const char* source, const char* name, const Plan& plan, const Shape& shape,
                 const std::string& own) {
  Call call = read(frame);
  int32_t n = int32_t(frame.size[1]), pitch = shape.pitch;
  char text[320];
  std::snprintf(text, sizeof text,
                "-DLW_DTYPE=%d -DLW_V=%d%s -DLW_K=%d -DLW_THREADS=%d -DLW_LANES=%d -DLW_RESIDENT=%d -DLW_READ=%d "
                "-DLW_FACTOR=%d -DLW_FORWARD=%d -DLW_BACKWARD=%d -DLW_ROWS=%d -DLW_GIVE=%d",
                frame.dtype, access_width({call.a, call.b, call.out}, pitch ? n * int64_t(size_of(frame.dtype)) : 0), own.c_str(),
                shape.together, shape.threads, shape.lanes, shape.resident, plan.read, plan.factor, plan.forward, plan.backward,
                plan.rows, plan.give);
  // what a kernel declares itself counts against the 48 KB that are free to all, so ask for more before they are full
  void* kernel = function(frame, source, text, name, shape.shared + (pitch ? 0 : RESERVED));
  void* arguments[] = {&call, &n, &pitch};  // a kernel compiled for its order reads the first alone
  const Grid grid = grid_for((call.batch + shape.matrices - 1) / shape.matrices);
  return kernel ? launch(frame, kernel, grid, unsigned(shape.threads), shape.shared, arguments) : 1;
}

// ---- QR: solve_qr.cu, qr_block.cu --------------------------------------------------------------------------------

bool is_small_qr(const Frame& frame) { return frame.size[1] <= MAX_QR_M && frame.size[2] <= MAX_QR_N; }

// rows: m rounded up, or LW_RT of qr_block.cu; lanes: of a matrix; pitch: elements between rows in shared memory
struct QrShape {
  int rows, lanes, threads, pitch;
  size_t shared;
};

QrShape qr_shape(const Frame& frame) {
  const int64_t m = frame.size[1], n = frame.size[2], c = frame.size[3], element = int64_t(size_of(frame.dtype));
  QrShape shape{};
  if (is_small_qr(frame)) {
    shape.rows = int((m + 3) / 4 * 4);
    shape.lanes = 4;
    while (shape.lanes < 32 && shape.lanes < std::max(n, c)) shape.lanes *= 2;
    shape.threads = element == 16 ? 64 : 128;
    const int64_t pitch = ((shape.rows * element + 15) / 16 | 1) * 16;
    shape.shared = size_t((std::min(m, n) * (pitch + element) + 15) / 16 * 16 * (shape.threads / shape.lanes));
    return shape;
  }
  const BlockRows rows(frame.dtype, std::max(n, c));
  const int64_t panel = rows.panel, reflections = (std::min(m, n) + panel - 1) / panel * panel;
  shape.rows = int((m + 31) / 32);
  shape.pitch = int(rows.pitch);
  shape.shared = size_t((m * rows.pitch + m * panel + panel * rows.pitch + reflections * panel + 4 * panel) * element + 8);
  shape.threads = std::max(m, n) <= 64 ? 64 : std::max(m, n) <= 128 ? 128 : 256;
  shape.lanes = shape.threads;
  return shape;
}

int launch_qr(Frame& frame) {
  const QrShape shape = qr_shape(frame);
  const int64_t m = frame.size[1], n = frame.size[2], matrices = shape.threads / shape.lanes;
  const bool small = is_small_qr(frame);
  QrCall call{frame.buffer[0], frame.buffer[1], frame.buffer[2], frame.size[0], n, frame.size[3], int32_t(m),
              int32_t(std::min(m, n))};
  const int width = access_width({call.a, call.q, call.r}, small ? 0 : n * int64_t(size_of(frame.dtype)));
  char text[160];
  std::snprintf(text, sizeof text, small ? "-DLW_DTYPE=%d -DLW_V=%d -DLW_THREADS=%d -DLW_M=%d -DLW_LANES=%d"
                                         : "-DLW_DTYPE=%d -DLW_V=%d -DLW_THREADS=%d -DLW_RT=%d -DLW_RESIDENT=1",
                frame.dtype, width, shape.threads, shape.rows, shape.lanes);
  return start(frame, small ? "solve_qr.cu" : "qr_block.cu", text, small ? "solve_qr" : "qr_block",
               grid_for((call.batch + matrices - 1) / matrices), unsigned(shape.threads), shape.shared, call, shape.pitch);
}

// ---- SVD: svd.cu -------------------------------------------------------------------------------------------------

bool is_svd(const Frame& frame) { return frame.op == SVD || frame.op == SVDVALS; }
bool is_small_svd(const Frame& frame) { return std::max(frame.size[1], frame.size[2]) <= MAX_SVD; }

int rounded(int64_t x) { return int((x + 3) / 4 * 4); }

int launch_svd(Frame& frame) {
  const int64_t m = frame.size[1], n = frame.size[2], k = std::min(m, n), element = int64_t(size_of(frame.dtype));
  const bool vectors = frame.op == SVD;
  void* const* at = frame.buffer;
  const SvdCall call{at[0], vectors ? at[1] : nullptr, at[vectors ? 2 : 1], vectors ? at[3] : nullptr, at[vectors ? 4 : 2],
                     frame.size[0], int32_t(m), int32_t(n)};
  int lanes = 2;
  while (lanes < k) lanes *= 2;
  const int threads = element == 16 ? 64 : 128;
  char text[160];
  std::snprintf(text, sizeof text, "-DLW_DTYPE=%d -DLW_V=%d -DLW_M=%d -DLW_K=%d -DLW_LANES=%d -DLW_THREADS=%d -DLW_VECTORS=%d",
                frame.dtype, access_width({call.a, call.u, call.vh}), rounded(std::max(m, n)), rounded(k), lanes, threads,
                int(vectors));
  const int64_t matrices = threads / lanes;
  return start(frame, "svd.cu", text, "svd_lanes", grid_for((call.batch + matrices - 1) / matrices), unsigned(threads),
               vectors ? size_t(rounded(k) * element * threads) : 0, call);
}

// Whether a kernel holds a whole matrix in registers or shared memory.
bool fits_kernel(const Frame& frame, const Properties& gpu) {
  const Plan plan = plan_of(frame);
  const int64_t n = frame.size[1], k = plan.give == GIVE_X ? frame.size[2] : 0;
  if (is_thread(frame, plan, n)) return true;
  if (n <= MAX_LANES_N) return int64_t(lanes_shape(frame, plan, n, k).shared) + RESERVED <= gpu.shared_per_block;
  if (is_two_rows(frame, plan, n, k, gpu)) return true;
  if (is_triangle(frame, plan, n, k, gpu) || is_packed_inverse(frame, plan, n, gpu) || is_by_columns(frame, plan, n, gpu)) return true;
  // An inverse without room for a second block is faster by panels: n = 128 in 1.13 ms instead of 1.49. With room it is not: n = 100
  // by panels in 1.67 ms instead of 1.28.
  const bool alone = 2 * n * n * int64_t(size_of(frame.dtype)) > gpu.shared_per_block;
  if (plan.give == GIVE_INVERSE && plan.factor == GENERAL_FACTOR && frame.dtype != F32 && alone) return false;
  return n <= MAX_BLOCK_N && int64_t(block_shape(frame, plan, n, k, gpu).shared) <= gpu.shared_per_block;
}

}  // namespace

bool qr_is_blocked(const Frame& frame, const Properties& gpu) {
  if (frame.op != QR || frame.size[1] > MAX_BLOCK_N) return true;
  return int64_t(qr_shape(frame).shared) + (is_small_qr(frame) ? RESERVED : 0) > gpu.shared_per_block;
}

bool solve_fits(const Frame& frame, const Properties& gpu) {
  const int64_t n = frame.size[1];
  if (is_svd(frame)) return (is_small_svd(frame) && !(frame.op == SVD && frame.size[3] && n != frame.size[2])) || svd_fits(frame, gpu);
  if (is_qr(frame.op) || frame.op == LSTSQ) return !qr_is_blocked(frame, gpu) || blocked_qr_fits(frame, gpu);
  return fits_kernel(frame, gpu) || blocked_fits(frame, gpu);
}

bool solve_is_blocked(const Frame& frame, const Properties& gpu) {
  if (is_svd(frame)) return !is_small_svd(frame);  // with a QR first
  return !is_rectangular(frame.op) && !fits_kernel(frame, gpu);
}

int64_t solve_bytes(Frame& frame, const Properties& gpu) {
  if (is_svd(frame)) return is_small_svd(frame) ? 0 : svd_scratch(frame);
  if (is_rectangular(frame.op)) return 0;
  if (!fits_kernel(frame, gpu)) return int64_t(blocked_scratch(frame));
  return is_by_columns(frame, plan_of(frame), frame.size[1], gpu) ? columns_shape(frame, frame.size[1], gpu).bytes : 0;
}

int64_t solve_largest(const Frame& frame, const Properties& gpu) {
  Frame other = frame;
  other.size[1] = BLOCKED_LARGEST;
  while (other.size[1] > 1 && !solve_fits(other, gpu)) other.size[1]--;
  return other.size[1];
}

// Measured against the vendor's solver, one matrix after the other (H200, 2026-11-16, benchmarks/blocks.py and qr_blocks.py): a
// block holds one matrix faster than the vendor's solver has it in every order and dtype, but for one inverse whose columns find
// no room beside it. By panels one matrix is faster too up to MEASURED; positive definite systems and triangles with few right-hand
// sides, which are bound by the memory that one block reads, up to fewer. Many right-hand sides of one matrix keep too few blocks busy.
bool solve_pays(const Frame& frame, const Properties& gpu) {
  constexpr int64_t MEASURED = 2048, FEWER_POSITIVE = 512, FEWER_TRIANGLE = 1024, SOME = 8, MANY = 16;
  // one matrix in us, here and by the vendor's solver: float32 n = 352 25.4 and 28.8, 512 37.5 and 36.3; float64 256 28.1 and 26.7
  constexpr int64_t ONE_TRIANGLE[] = {400, 224, 256, 256};
  const int64_t batch = frame.size[0], n = frame.size[1];
  if (is_qr(frame.op) || frame.op == LSTSQ) {  // panels of many rows are narrow
    const int64_t longer = std::max(n, frame.size[2]), one = frame.dtype == F32 ? MEASURED : MEASURED / 2;
    return !qr_is_blocked(frame, gpu) || longer <= one || (batch > 1 && longer <= 2 * MEASURED) || batch >= MANY;
  }
  if (is_svd(frame)) return is_small_svd(frame) || svd_pays(frame, gpu);
  if (n <= MAX_LANES_N) return true;
  const Plan plan = plan_of(frame);
  const int64_t columns = plan.give == GIVE_X ? frame.size[2] : plan.give == GIVE_INVERSE ? n : 0;
  if (!fits_kernel(frame, gpu)) {
    if (plan.factor == NO_FACTOR && columns <= FEW) {
      return n <= (batch == 1 ? ONE_TRIANGLE[frame.dtype] : batch < SOME ? FEWER_TRIANGLE : MEASURED) || batch >= MANY;
    }
    const bool positive = plan.factor == HERMITIAN_FACTOR && plan.give == GIVE_X;
    return batch > 1 || (n <= (positive ? FEWER_POSITIVE : MEASURED) && columns <= n);
  }
  const bool room = columns <= FEW || plan.factor == HERMITIAN_FACTOR || !block_shape(frame, plan, n, columns, gpu).few;
  return batch > 1 || (room && columns <= n);
}

bool solve_keeps(const Frame& frame, const Properties& gpu) {
  const Plan plan = plan_of(frame);
  const int64_t n = frame.size[1], k = frame.size[2];
  if (plan.factor != GENERAL_FACTOR || is_thread(frame, plan, n) || !fits_kernel(frame, gpu)) return false;
  return n <= MAX_LANES_N ? k > 0 && k <= FEW : !is_by_columns(frame, plan, n, gpu);
}

int solve_batched(Frame& frame) {
  if (is_qr(frame.op)) {
    const Properties* gpu = properties(frame);
    return !gpu ? 1 : qr_is_blocked(frame, *gpu) ? blocked_qr(frame) : launch_qr(frame);
  }
  if (is_svd(frame)) return is_small_svd(frame) ? launch_svd(frame) : svd_by_rotations(frame);
  const Plan plan = plan_of(frame);
  const int64_t n = frame.size[1], k = plan.give == GIVE_X ? frame.size[2] : 0;
  const std::string keep = frame.op == SOLVE && plan.factor == GENERAL_FACTOR && frame.buffer[4] ? " -DLW_KEEP=1" : "";
  const std::string order = " -DLW_N=" + std::to_string(n) + keep;
  if (is_thread(frame, plan, n))
    return launch_solve(frame, "solve_thread.cu", "solve_thread", plan, thread_shape(frame, plan, n, k), order);
  const auto by_lanes = [&] {
    return launch_solve(frame, "solve_lanes.cu", "solve_lanes", plan, lanes_shape(frame, plan, n, k), order);
  };
  if (n <= MAX_LANES_N) return by_lanes();
  const Properties* gpu = properties(frame);
  if (!gpu) return 1;
  if (is_two_rows(frame, plan, n, k, *gpu)) return by_lanes();
  if (!fits_kernel(frame, *gpu)) return blocked(frame);
  if (is_by_columns(frame, plan, n, *gpu)) return launch_columns(frame, plan, columns_shape(frame, n, *gpu));
  if (is_triangle(frame, plan, n, k, *gpu)) return launch_pos(frame, plan, pos_shape(frame.dtype, n, k, *gpu));
  if (is_packed_inverse(frame, plan, n, *gpu)) return launch_pos_inverse(frame, plan, pos_inverse_shape(frame.dtype, n, *gpu));
  const Shape shape = block_shape(frame, plan, n, k, *gpu);
  char own[64];
  std::snprintf(own, sizeof own, " -DLW_RT=%d -DLW_FEW=%d -DLW_AHEAD=%d%s", shape.rows, shape.few, shape.ahead, keep.c_str());
  return launch_solve(frame, "solve_block.cu", "solve_block", plan, shape, own);
}

}  // namespace lapwing::cuda
