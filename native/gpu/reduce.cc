#include "gpu/reduce.h"

#include <algorithm>

#include "gpu/divide.h"
#include "gpu/vendor.h"

namespace lapwing::cuda {
namespace {

constexpr int64_t RESERVED = 1024;      // of a block's shared memory, for the driver
constexpr int64_t MEASURE_ROWS = 64;    // that a block of tridiagonal_measure has
constexpr int64_t VALUE_THREADS = 256;
constexpr size_t ALIGNED = 256;  // places in the working memory

int64_t rounded(int64_t x, int64_t to) { return (x + to - 1) / to * to; }
int64_t divided(int64_t x, int64_t by) { return (x + by - 1) / by; }
int64_t power_of_two(int64_t at_least) {
  int64_t p = 1;
  while (p < at_least) p *= 2;
  return p;
}

// Shared memory of tridiagonal_factor
int64_t factor_bytes(int64_t width, int64_t element) { return width * (width + 2) * element; }

// As in the kernels.
struct Call {
  const void* a;
  void *v, *d, *e, *tau, *up;
  int32_t* info;
  const int32_t* state;
  void *mail, *rest;
  int64_t batch;
  int32_t n, pitch, v_rows, shared_sets, sets;
};
struct ValuesCall {
  const void *d, *e, *up;
  const int32_t* reduced;
  void* values;
  int32_t* info;
  int64_t batch;
  int32_t n, first, count;
};
struct Answer {
  const void *w, *up, *z;
  const int32_t *reduced, *divided;
  void *values, *vectors;
  int32_t* info;
  int64_t batch;
  int32_t n, first, count;
};

// A team of `team` blocks for matrices of order n; all_sets is 0 where a block does not get that many.
TeamShape shape_with(int32_t dtype, int64_t n, int64_t team, const Properties& gpu) {
  const int64_t vec = 16 / int64_t(size_of(dtype)), units = divided(n, 32 * vec), columns = divided(n, team);
  // H200, 2026-11-16, one matrix, float, ms: n = 512, 8 warps 1.14, 16 1.33; 4096 53 and 66; 60 of n = 1024, 8 warps 28, 16 26
  const bool few = (columns <= 16 && units <= 8) || n > 2048;
  const int64_t warps = few ? std::min<int64_t>(8, std::max<int64_t>(power_of_two(units), 4)) : 16;
  const int64_t registers = n > 2048 ? 40 : 16;  // accesses of 16 bytes that a thread holds on to
  TeamShape s{};
  s.team = int(team);
  // few columns: all warps along the rows, so that vectors are read once
  s.rw = int(std::min<int64_t>(warps, power_of_two(columns <= 32 ? units : divided(units, 4))));
  s.cw = int(warps / s.rw);
  s.q = int(divided(units, s.rw));
  s.c = 8;
  while ((s.c > 2 && s.c * s.q > 8) || (s.c > 1 && (s.c * s.q > 12 || s.c * s.cw >= 2 * columns))) s.c /= 2;
  s.all_sets = int(divided(columns, s.cw * s.c));
  s.sets = int(std::min<int64_t>(s.all_sets, std::max<int64_t>(registers / (s.c * s.q), 1)));
  s.shared_sets = s.all_sets - s.sets;
  while (s.shared_sets > 0 && s.shared_bytes(dtype, n) + RESERVED > gpu.shared_per_block) s.shared_sets--;
  const bool fits = s.shared_bytes(dtype, n) + RESERVED <= gpu.shared_per_block;
  if (!fits || (s.rw > 1 && columns > s.threads())) s.all_sets = 0;
  return s;
}

// Microseconds of one step, about: a part that only waits, the vectors, the block's elements, and columns in global memory, which
// are needed for the shortest time. H200, 2026-11-16, measured and so, float: 176 by 3 blocks 2.2 and 2.2, 352 by 3 3.3 and 3.0,
// 512 by 32 2.2 and 2.4, 1024 by 13 4.3 and 4.3, 2048 by 66 4.8 and 4.6; double: 512 by 8 4.2 and 4.3, 1024 by 128 3.9 and 4.0.
double step_time(const TeamShape& s, int32_t dtype, int64_t n) {
  constexpr double WAITS[] = {1.9, 2.4, 2.4, 3}, VECTORS[] = {6e-4, 1.2e-3, 1.2e-3, 2.4e-3}, OWN[] = {2.2e-5, 4e-5, 6e-5, 1.2e-4};
  const double own = double(n) * double(divided(n, s.team)), far = 1 - double(s.sets + s.shared_sets) / s.all_sets;
  const double moved = own * far * (far / 2 - far * far / 6) * 2 * double(size_of(dtype));
  return WAITS[dtype] + VECTORS[dtype] * double(n) + OWN[dtype] * own + (moved > 0 ? 1 + moved / 15000 : 0);
}

// The fastest team: more blocks of a matrix have less to do, but fewer matrices are in work at the same time.
TeamShape shape_for(int32_t dtype, int64_t batch, int64_t n, const Properties& gpu, double* time = nullptr) {
  const int64_t most = gpu.multiprocessors, largest = gpu.together ? std::max<int64_t>(n / (n < 1024 ? 16 : 8), 1) : 1;
  TeamShape best{};
  double least = 0;
  for (int64_t teams = 1; teams <= most; teams++) {
    if (teams < most && most / teams == most / (teams + 1)) continue;  // more of the same teams fit
    TeamShape shape = shape_with(dtype, n, std::min(most / teams, largest), gpu);
    if (!shape.all_sets) continue;
    shape.teams = int(std::min(batch, teams));
    const double all = double(n) * double(divided(batch, teams)) * step_time(shape, dtype, n);
    if (best.all_sets && all >= least) continue;
    best = shape;
    least = all;
  }
  if (time) *time = least;
  return best;
}

}  // namespace

int64_t TeamShape::shared_bytes(int32_t dtype, int64_t n) const {
  const int64_t element = int64_t(size_of(dtype)), vec = 16 / element, columns = int64_t(cw) * c * all_sets;
  const int64_t length = std::max(32 * vec * rw * q, team * columns), real = dtype >= C64 ? element / 2 : element;
  return int64_t(shared_sets) * c * q * threads() * 16 + (team == 1 ? 4 * n * element : 0) +
         (3 * length + columns + (rw > 1 ? rw * columns : 0) + 2) * element + 2 * rw * cw * real;
}
int64_t TeamShape::rest_bytes() const {
  return int64_t(teams) * team * (all_sets - sets - shared_sets) * c * q * threads() * 16;
}
int64_t TeamShape::mail_bytes(int32_t dtype, int64_t n) const {
  return team == 1 ? 0 : teams * 16 * n * int64_t(size_of(dtype));
}

Tridiagonal::Tridiagonal(Frame& frame, const Properties& gpu, int64_t batch, int64_t n, bool vectors, bool by_team)
    : frame_(frame), gpu_(gpu), batch_(batch), n_(n), element_(int64_t(size_of(frame.dtype))),
      real_(frame.dtype >= C64 ? element_ / 2 : element_), pitch_(rounded(n, 16 / element_)),
      width_(n < 1024 || frame.dtype >= C64 || factor_bytes(128, element_) > gpu.shared_per_block ? 64 : 128), blocks_(divided(n, width_)),
      real_dtype_(frame.dtype >= C64 ? frame.dtype - 2 : frame.dtype), shape_(shape_for(frame.dtype, batch, n, gpu)) {
  const auto take = [&](int64_t bytes) {
    const size_t start = total_;
    total_ += size_t(rounded(bytes, int64_t(ALIGNED)));
    return start;
  };
  state_ = take(batch * 4);
  mail_ = take(by_team ? shape_.mail_bytes(frame.dtype, n) : 0);  // cleared together with the states and with what follows
  reduced_ = take(batch * 4);
  rest_ = take(by_team ? shape_.rest_bytes() : 0);
  d_ = take(batch * n * real_);
  e_ = take(batch * n * real_);
  up_ = take(batch * real_);
  const int64_t rows = blocks_ * width_;
  tau_ = take(batch * rows * element_);
  if (!by_team) block_tau_ = take(batch * n * element_);
  if (vectors || !by_team) y_ = take(batch * rows * pitch_ * element_);
  if (!vectors) return;
  divided_ = take(batch * 4);
  v_ = take(batch * rows * pitch_ * element_);
  gram_ = take(batch * rows * width_ * element_);
  factor_ = take(batch * rows * width_ * element_);
  w_ = take(batch * n * real_);
  z_ = take(batch * n * n * real_);
  wide_ = frame.dtype >= C64 ? take(batch * n * n * element_) : z_;
  product_ = take(batch * width_ * n * element_);
  divide_ = take(divide_bytes(batch, n, real_dtype_));
}

bool Tridiagonal::fits(int32_t dtype, int64_t n, const Properties& gpu) {
  // the reflections of a block of columns, the sequence of all values, and two lists of them that are merged
  const int64_t needed = std::max({factor_bytes(64, int64_t(size_of(dtype))), (2 * rounded(n, 8) + VALUE_THREADS / 32) * 8, 25 * n + 512});
  return shape_for(dtype, 1, n, gpu).all_sets > 0 && n <= DIVIDE_MOST && needed <= gpu.shared_per_block;
}

int Tridiagonal::place(char* block) {
  block_ = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(block) + ALIGNED - 1) / ALIGNED * ALIGNED);
  if (!v_) return 0;
  for (const vendor::Library library : {vendor::blas, vendor::dense_blas})
    if (const char* reason = vendor::missing(library)) return fail(frame_, "engine batched: %s", reason);
  blas_.emplace(frame_);
  return !blas_->ok();
}

// A = Q T Q^H with Q = H_0 H_1 ..., H_k = I - tau_k v_k v_k^H
int Tridiagonal::reduce(const void* a) {
  const bool upper = frame_.flags & UPPER;
  const TeamShape& s = shape_;
  const std::string text =
      options(frame_.dtype, upper, access_width({a}),
              " -DLW_RW=%d -DLW_CW=%d -DLW_Q=%d -DLW_C=%d -DLW_SETS=%d -DLW_TEAM=%d -DLW_FAR=%d", s.rw, s.cw, s.q, s.c, s.sets, s.team,
              s.all_sets > s.sets + s.shared_sets);
  const Call call{a,           v_ ? at(v_) : nullptr, at(d_),         at(e_),          at(tau_),
                  at(up_),     at<int32_t>(reduced_), at<int32_t>(state_), at(mail_),  at(rest_),
                  batch_,      int32_t(n_),           int32_t(pitch_), int32_t(blocks_ * width_), s.shared_sets,
                  s.all_sets};
  return fill(frame_, at(state_), 0, reduced_ + batch_ * sizeof(int32_t) - state_) ||
         start(frame_, "tridiagonal.cu", text, "tridiagonal_measure", grid_for(batch_ * divided(n_, MEASURE_ROWS)), 256, 0, a,
               at<int32_t>(state_), batch_, int32_t(n_), int32_t(MEASURE_ROWS)) ||
         (s.team == 1 ? start<Call> : start_together<Call>)(frame_, "tridiagonal.cu", text, "tridiagonal",
                                                       Grid{unsigned(s.team * s.teams)}, unsigned(s.threads()),
                                                       size_t(s.shared_bytes(frame_.dtype, n_)), call);
}

double Tridiagonal::team_time(int32_t dtype, int64_t batch, int64_t n, const Properties& gpu) {
  double time = 0;
  shape_for(dtype, batch, n, gpu, &time);
  return time;
}

int Tridiagonal::take() {
  if (!v_) return 0;
  const int64_t rows = blocks_ * width_;
  return start(frame_, "tridiagonal_back.cu", options(frame_.dtype, false, 16, " -DLW_WIDTH=%d", int(width_)), "tridiagonal_take",
               grid_for(std::min<int64_t>(batch_ * rows, 1 << 20)), 256, 0, at(y_), at(block_tau_), at(v_), at(tau_), batch_,
               int32_t(n_), int32_t(pitch_), int32_t(rows));
}

int Tridiagonal::values(void* w, int32_t* info, int64_t first, int64_t count) {
  // several lanes for each value only as long as threads would be idle
  const int64_t threads = int64_t(gpu_.multiprocessors) * 1024;
  int64_t lanes = 32;
  while (lanes > 1 && lanes * batch_ * count > threads) lanes /= 2;
  const ValuesCall call{at(d_), at(e_), at(up_), at<int32_t>(reduced_), w, info, batch_, int32_t(n_), int32_t(first), int32_t(count)};
  return start(frame_, "tridiagonal_values.cu", options(real_dtype_, false, 16, " -DLW_LANES=%d", int(lanes)),
               "tridiagonal_values", grid_for(batch_ * divided(count, VALUE_THREADS / lanes)), unsigned(VALUE_THREADS),
               size_t((rounded(n_, 8) * 2 + VALUE_THREADS / 32) * 8), call);
}

// Z <- (I - Y_0 V_0^H) (I - Y_1 V_1^H) ... Z, where I - Y V^H is the product of `width` reflections
int Tridiagonal::back() {
  const int64_t rows = blocks_ * width_;
  const Operand v{at(v_), pitch_, width_ * pitch_}, y{at(y_), pitch_, width_ * pitch_}, gram{at(gram_), width_, width_ * width_},
      factor{at(factor_), width_, width_ * width_};
  const std::string text = options(frame_.dtype, false, 16, " -DLW_WIDTH=%d", int(width_));
  if (blas_->gemm_many(vendor::OP_ADJOINT, vendor::OP_NONE, width_, width_, n_, 1, v, v, 0, gram, batch_ * blocks_) ||
      start(frame_, "tridiagonal_back.cu", text, "tridiagonal_factor", grid_for(batch_ * blocks_), unsigned(4 * width_),
            size_t(factor_bytes(width_, element_)), at(gram_), at(tau_), at(factor_), batch_ * blocks_) ||
      blas_->gemm_many(vendor::OP_NONE, vendor::OP_NONE, n_, width_, width_, 1, v, factor, 0, y, batch_ * blocks_))
    return 1;
  if (frame_.dtype >= C64 &&
      start(frame_, "tridiagonal_back.cu", text, "tridiagonal_widen", grid_for(std::min<int64_t>(divided(batch_ * n_ * n_, 1024), 1 << 16)),
            256, 0, at(z_), at(wide_), batch_ * n_ * n_))
    return 1;
  for (int64_t block = blocks_ - 1; block >= 0; block--) {
    const int64_t top = block * width_, left = n_ - top;
    const auto part = [&](size_t place) {
      return Operand{at<char>(place) + (top * pitch_ + top) * element_, pitch_, rows * pitch_};
    };
    const Operand z{at<char>(wide_) + top * element_, n_, n_ * n_}, product{at(product_), width_, width_ * n_};
    // Z <- Z - Y (V^H Z)
    if (blas_->gemm_many(vendor::OP_ADJOINT, vendor::OP_NONE, width_, n_, left, 1, part(v_), z, 0, product, batch_) ||
        blas_->gemm_many(vendor::OP_NONE, vendor::OP_NONE, left, n_, width_, -1, part(y_), product, 1, z, batch_))
      return 1;
  }
  return 0;
}

int Tridiagonal::vectors(void* w, void* v, int32_t* info, int64_t first, int64_t count) {
  if (divide(frame_, batch_, n_, real_dtype_, at(d_), at(e_), at(w_), at(z_), at(divide_), at<int32_t>(divided_),
             gpu_.shared_per_block) ||
      back())
    return 1;
  const Answer answer{at(w_), at(up_), at(wide_), at<int32_t>(reduced_), at<int32_t>(divided_), w, v, info, batch_, int32_t(n_),
                      int32_t(first), int32_t(count)};
  const int64_t tiles = divided(n_, 32) * divided(count, 32);
  return start(frame_, "tridiagonal_back.cu",
               options(frame_.dtype, false, access_width({v}, element_), " -DLW_WIDTH=%d", int(width_)), "tridiagonal_give",
               grid_for(std::min<int64_t>(batch_ * tiles, 1 << 20)), 256, size_t(32 * 33 * element_), answer);
}

}  // namespace lapwing::cuda
