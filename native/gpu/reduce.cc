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

// Shared memory of tridiagonal_values with this many lines
int64_t values_bytes(int64_t lines) { return (rounded(lines, 8) * 2 + VALUE_THREADS / 32) * 8; }

// Shared memory of tridiagonal_factor
int64_t factor_bytes(int64_t width, int64_t element) { return width * (width + 2) * element; }

// As in the kernels.
struct Call {
  const void* a;
  void *v, *d, *e, *tau, *up;
  int32_t* info;
  const int32_t* state;
  void *mail, *rest, *left;
  int64_t batch, size;
  int32_t n, pitch, ld, order, v_rows, rows, line, until, shared_sets, sets;
};
struct PanelCall {
  void *a, *v, *left, *right, *x, *rows, *columns, *dots, *forms, *squares, *d, *e, *tau;
  int32_t* gate;
  int32_t gate_from, n, pitch, first, chunk, most_strips, kept;
};
struct ValuesCall {
  const void *d, *e, *up;
  const int32_t* reduced;
  void* values;
  int32_t* info;
  int64_t batch;
  int32_t n, first, count, positive;
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
// The mean of all steps, or of those until `left` columns are left: (1 - x)^2 of the elements live after a part x of the columns.
double step_time(const TeamShape& s, int32_t dtype, int64_t n, int64_t left = 0) {
  constexpr double WAITS[] = {1.9, 2.4, 2.4, 3}, VECTORS[] = {6e-4, 1.2e-3, 1.2e-3, 2.4e-3}, OWN[] = {2.2e-5, 4e-5, 6e-5, 1.2e-4};
  const double own = double(n) * double(divided(n, s.team)), far = 1 - double(s.sets + s.shared_sets) / s.all_sets;
  const double moved = own * far * (far / 2 - far * far / 6) * 2 * double(size_of(dtype));
  const double share = double(left) / double(n), live = (1 - share * share * share) / (1 - share);
  return WAITS[dtype] + VECTORS[dtype] * double(n) + OWN[dtype] * live * own + (moved > 0 ? (1 + moved / 15000) / (1 - share) : 0);
}

// The shapes of teams for matrices of order n, from few large teams to many small ones
std::vector<TeamShape> shapes_of(int32_t dtype, int64_t batch, int64_t n, const Properties& gpu) {
  const int64_t most = gpu.multiprocessors, largest = gpu.together ? std::max<int64_t>(n / (n < 1024 ? 16 : 8), 1) : 1;
  std::vector<TeamShape> found;
  for (int64_t teams = 1; teams <= most; teams++) {
    if (teams < most && most / teams == most / (teams + 1)) continue;  // more of the same teams fit
    TeamShape shape = shape_with(dtype, n, std::min(most / teams, largest), gpu);
    if (!shape.all_sets) continue;
    shape.teams = int(std::min(batch, teams));
    found.push_back(shape);
  }
  return found;
}

// The fastest team that reduces all of a matrix: more blocks of a matrix have less to do, but fewer matrices are in work at the same
// time.
TeamShape shape_for(int32_t dtype, int64_t batch, int64_t n, const Properties& gpu) {
  TeamShape best{};
  double least = 0;
  for (const TeamShape& shape : shapes_of(dtype, batch, n, gpu)) {
    const double all = double(divided(batch, shape.teams)) * step_time(shape, dtype, n);
    if (best.all_sets && all >= least) continue;
    best = shape;
    least = all;
  }
  return best;
}

// ---- parts: as matrices become smaller, smaller teams take more of them at the same time -------------------------------

constexpr int64_t CUTS[] = {1536, 1024, 512, 256, 128};  // orders where the team may change; a multiple of 32 columns is done then
constexpr double PART_STARTS = 50;  // microseconds that a part must save: launches, and one more kernel to compile
constexpr double PART_MOVES = 3e6;  // bytes in a microsecond, to and from all blocks

// The parts of the fastest way, and its microseconds
std::pair<std::vector<TeamPart>, double> parts_for(int32_t dtype, int64_t batch, int64_t n, const Properties& gpu) {
  std::vector<int64_t> orders{n};
  for (const int64_t cut : CUTS)
    if (cut < n && gpu.together) orders.push_back(n - rounded(n - cut, 32));
  std::vector<std::pair<std::vector<TeamPart>, double>> best(orders.size());  // from each order on
  for (size_t from = orders.size(); from-- > 0;) {
    const int64_t m = orders[from];
    for (const TeamShape& shape : shapes_of(dtype, batch, m, gpu)) {
      const double rounds = double(divided(batch, shape.teams));
      for (size_t to = from + 1; to <= orders.size(); to++) {
        const bool last = to == orders.size();
        if (!last && best[to].first.empty()) continue;
        const int64_t left = last ? 0 : orders[to];
        double all = rounds * double(m - left) * step_time(shape, dtype, m, left) + (last ? 0 : best[to].second);
        if (from > 0)
          all += PART_STARTS + rounds * double(m) * double(m) * 2 * double(size_of(dtype)) * double(gpu.multiprocessors) / double(shape.team) / PART_MOVES;
        if (!best[from].first.empty() && all >= best[from].second) continue;
        best[from] = {{{shape, m, m - left}}, all};
        if (!last) best[from].first.insert(best[from].first.end(), best[to].first.begin(), best[to].first.end());
      }
    }
  }
  return best[0];
}

// ---- panels of columns: tridiagonal_panel.cu ---------------------------------------------------------------------

constexpr int64_t PANEL_WARPS = 16, PANEL_THREADS = 32 * PANEL_WARPS, STRIP = 8 * PANEL_WARPS;  // as there

// How tridiagonal_panel.cu spreads the n - first last columns of a matrix over blocks
struct PanelShape {
  int64_t blocks, width, rows;       // width: columns of a panel; rows: of a vector that a block has, and one more
  int64_t strips, most, most_strips;  // most: tiles of a block at most; most_strips: that these lie in
  int64_t chunks, chunk;              // parts of a dot product, and their rows
  int64_t kept;                       // tiles of a block in shared memory
  size_t shared;

  PanelShape(int32_t dtype, int64_t n, int64_t m, const Properties& gpu) {
    const int64_t element = int64_t(size_of(dtype)), tall = 32 * 16 / element, real = dtype >= C64 ? element / 2 : element;
    blocks = gpu.multiprocessors;
    width = 32;
    while (width > 8 && PANEL_WARPS * blocks < 2 * width) width /= 2;
    rows = power_of_two(divided(n, blocks) + 1);  // the same for all panels: one kernel
    strips = divided(m, STRIP);
    const int64_t tiles = strips * divided(m, tall) - STRIP / tall * (strips * (strips - 1) / 2);
    most = divided(tiles, blocks);
    // the last strips are the shortest
    most_strips = 1;
    for (int64_t sum = 0; most_strips < strips && sum + 1 < most; most_strips++) sum += divided(m - (strips - most_strips) * STRIP, tall);
    most_strips = std::min(most_strips + 1, strips);
    const int64_t most_chunks = std::min<int64_t>(PANEL_WARPS * blocks / (2 * width), 32);
    chunk = rounded(divided(m, most_chunks), tall);
    chunks = divided(m, chunk);
    const int64_t tile = 8 * PANEL_THREADS * 16;
    shared = size_t(most * 512 + most_strips * STRIP * element + 2 * PANEL_WARPS * 512 + (2 * width + 2) * element + (PANEL_WARPS + 2) * real +
                    8 * most + 4 * strips);
    kept = std::clamp<int64_t>((gpu.shared_per_block - RESERVED - int64_t(shared)) / tile, 0, most);
    shared += size_t(kept * tile);
  }
  bool fits(const Properties& gpu) const {
    return rows <= PANEL_THREADS && int64_t(shared) + RESERVED <= gpu.shared_per_block && chunk > 0 &&
           2 * width * chunks <= PANEL_WARPS * blocks;
  }
};

// Panels are used for larger matrices, and where more of a team's columns are in global memory. H200, 2026-11-16, ms with vectors,
// panels and the team alone: float32 n = 3072 24.6 and 32.9, 4096 42 and 61; float64 1536 10.4 and 12.6, 2048 16.5 and 18.2; complex64
// 2048 17.7 and 19.1. Several teams work on a batch at the same time, panels on one matrix after the other.
constexpr int64_t TEAM_LARGEST[] = {2048, 1024, 1024, 1024}, TEAMS_LARGEST[] = {2048, 2048, 2048, 1024};
constexpr double FAR_MOST = 0.4;

double far_share(const TeamShape& s) { return s.all_sets ? 1 - double(s.sets + s.shared_sets) / s.all_sets : 1; }

// The order from which on the team reduces what panels leave of a matrix: all of it is on the chip
int64_t chip_order(int32_t dtype, const Properties& gpu) {
  constexpr int64_t LARGEST[] = {2048, 1024, 1024, 1024};
  for (int64_t n = LARGEST[dtype]; n >= 64; n -= 32)
    if (far_share(shape_for(dtype, 1, n, gpu)) == 0) return n;
  return 0;
}

// Columns of a matrix that are reduced in panels, 0 where the team reduces all of it
int64_t panel_columns(int32_t dtype, int64_t batch, int64_t n, const Properties& gpu) {
  if (!gpu.together) return 0;
  if (n <= (batch > 1 ? TEAMS_LARGEST : TEAM_LARGEST)[dtype] && far_share(shape_for(dtype, 1, n, gpu)) <= FAR_MOST) return 0;
  const int64_t rest = chip_order(dtype, gpu);
  const PanelShape shape(dtype, n, n, gpu);
  return n > rest && rest > 0 && shape.fits(gpu) ? rounded(n - rest, shape.width) : 0;
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

Tridiagonal::Tridiagonal(Frame& frame, const Properties& gpu, int64_t batch, int64_t n, bool vectors, bool by_team, bool by_panels)
    : frame_(frame), gpu_(gpu), batch_(batch), n_(n), element_(int64_t(size_of(frame.dtype))),
      real_(frame.dtype >= C64 ? element_ / 2 : element_), panels_(by_panels ? panel_columns(frame.dtype, 1, n, gpu) : 0),
      pitch_(rounded(n, panels_ ? 32 : 16 / element_)),
      width_(n < 1024 || frame.dtype >= C64 || factor_bytes(128, element_) > gpu.shared_per_block ? 64 : 128), blocks_(divided(n, width_)),
      real_dtype_(frame.dtype >= C64 ? frame.dtype - 2 : frame.dtype),
      parts_(by_team ? parts_for(frame.dtype, batch, n - panels_, gpu).first : std::vector<TeamPart>()) {
  const bool several = parts_.size() > 1;
  int64_t mail = 0, rest = 0;
  for (const TeamPart& part : parts_) {
    mail = std::max(mail, part.shape.mail_bytes(frame.dtype, part.n));
    rest = std::max(rest, part.shape.rest_bytes());
  }
  const auto take = [&](int64_t bytes) {
    const size_t start = total_;
    total_ += size_t(rounded(bytes, int64_t(ALIGNED)));
    return start;
  };
  state_ = take(batch * 4);
  gate_ = take(panels_ ? 4 : 0);
  mail_ = take(mail);  // cleared together with the states and with what follows
  reduced_ = take(batch * 4);
  rest_ = take(rest);
  d_ = take(batch * n * real_);
  e_ = take(batch * n * real_);
  up_ = take(batch * real_);
  const int64_t rows = blocks_ * width_;
  tau_ = take(batch * rows * element_);
  if (!by_team) block_tau_ = take(batch * n * element_);
  if (vectors || !by_team || panels_ || several) y_ = take(batch * rows * pitch_ * element_);
  if (vectors || panels_) v_ = take(batch * rows * pitch_ * element_);
  if (panels_) {
    const PanelShape shape(frame.dtype, n, n, gpu);
    scaled_ = take(ALIGNED + real_);
    next_ = take(pitch_ * element_);
    sides_ = take(4 * shape.width * pitch_ * element_);
    sums_ = take(((shape.strips + shape.blocks) * pitch_ + PANEL_WARPS * shape.blocks) * element_ +
                 (1 + divided(shape.rows, 32)) * shape.blocks * real_);
  }
  if (!vectors) return;
  divided_ = take(batch * 4);
  gram_ = take(batch * rows * width_ * element_);
  factor_ = take(batch * rows * width_ * element_);
  w_ = take(batch * n * real_);
  z_ = take(batch * n * n * real_);
  wide_ = frame.dtype >= C64 ? take(batch * n * n * element_) : z_;
  product_ = take(batch * width_ * n * element_);
  divide_ = take(divide_bytes(batch, n, real_dtype_));
}

bool Tridiagonal::fits(int32_t dtype, int64_t n, bool vectors, const Properties& gpu) {
  // bisection in parts was not measured yet, so values of larger matrices are left to the solver
  if (!vectors && values_bytes(n) + RESERVED > gpu.shared_per_block) return false;
  if (factor_bytes(64, int64_t(size_of(dtype))) > gpu.shared_per_block) return false;
  return (shape_for(dtype, 1, n, gpu).all_sets > 0 || by_panels(dtype, 1, n, gpu)) &&
         divide_fits(n, dtype >= C64 ? dtype - 2 : dtype, gpu.shared_per_block);
}

bool Tridiagonal::by_panels(int32_t dtype, int64_t batch, int64_t n, const Properties& gpu) {
  return panel_columns(dtype, batch, n, gpu) > 0;
}

int Tridiagonal::place(char* block) {
  block_ = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(block) + ALIGNED - 1) / ALIGNED * ALIGNED);
  if (!v_) return 0;  // no products
  for (const vendor::Library library : {vendor::blas, vendor::dense_blas})
    if (const char* reason = vendor::missing(library)) return fail(frame_, "engine batched: %s", reason);
  blas_.emplace(frame_);
  return !blas_->ok();
}

// A = Q T Q^H with Q = H_0 H_1 ..., H_k = I - tau_k v_k v_k^H
int Tridiagonal::reduce(const void* a) {
  const bool upper = frame_.flags & UPPER;
  return fill(frame_, at(state_), 0, reduced_ + batch_ * sizeof(int32_t) - state_) ||
         start(frame_, "tridiagonal_measure.cu", options(frame_.dtype, upper, access_width({a})), "tridiagonal_measure",
               grid_for(batch_ * divided(n_, MEASURE_ROWS)), 256, 0, a, at<int32_t>(state_), batch_, int32_t(n_), int32_t(MEASURE_ROWS)) ||
         (panels_ ? reduce_panels(a) : reduce_rest(a, n_ * n_, at<int32_t>(state_), at(up_), 0, upper, false));
}

// The rows and columns from `first` on, which begin at `a`, `size` elements from matrix to matrix. What a part leaves is in the place of Y.
int Tridiagonal::reduce_rest(const void* a, int64_t size, const int32_t* state, void* up, int64_t first, bool upper, bool flip) {
  const int64_t rows = blocks_ * width_;
  if (v_ && parts_.size() > 1 && !panels_ && fill(frame_, at(v_), 0, size_t(batch_ * rows * pitch_ * element_))) return 1;
  for (size_t p = 0; p < parts_.size(); p++) {
    const auto& [s, n, until] = parts_[p];
    const bool whole = p > 0, left = until < n;
    const int64_t corner = first * (pitch_ + 1) * element_;
    const std::string text = options(
        frame_.dtype, upper, whole ? 16 : access_width({a}),
        " -DLW_RW=%d -DLW_CW=%d -DLW_Q=%d -DLW_C=%d -DLW_SETS=%d -DLW_TEAM=%d -DLW_FAR=%d -DLW_FLIP=%d -DLW_WHOLE=%d -DLW_LEFT=%d", s.rw,
        s.cw, s.q, s.c, s.sets, s.team, s.all_sets > s.sets + s.shared_sets, flip && !whole, whole, left);
    const Call call{whole ? at<char>(y_) + corner : a,
                    v_ ? at<char>(v_) + corner : nullptr,
                    at<char>(d_) + first * real_,
                    at<char>(e_) + first * real_,
                    at<char>(tau_) + first * element_,
                    whole ? nullptr : up,
                    at<int32_t>(reduced_),
                    whole ? nullptr : state,
                    at(mail_),
                    at(rest_),
                    left ? at<char>(y_) + corner : nullptr,
                    batch_,
                    whole ? rows * pitch_ : size,
                    int32_t(n),
                    int32_t(pitch_),
                    int32_t(first || whole ? pitch_ : n_),
                    int32_t(n_),
                    int32_t(rows),
                    int32_t(rows - first),
                    int32_t(pitch_ - first),
                    int32_t(until),
                    s.shared_sets,
                    s.all_sets};
    const size_t mail = p > 0 ? size_t(s.mail_bytes(frame_.dtype, n)) : 0;
    if ((mail && fill(frame_, at(mail_), 0, mail)) ||
        (s.team == 1 ? start<Call> : start_together<Call>)(frame_, "tridiagonal.cu", text, "tridiagonal", Grid{unsigned(s.team * s.teams)},
                                                        unsigned(s.threads()), size_t(s.shared_bytes(frame_.dtype, n)), call))
      return 1;
    first += until;
  }
  return 0;
}

// The first panels_ columns in panels, with products in between, then the rest on the chip
int Tridiagonal::reduce_panels(const void* a) {
  const bool upper = frame_.flags & UPPER;
  const PanelShape all(frame_.dtype, n_, n_, gpu_);
  const std::string text = options(frame_.dtype, false, 16, " -DLW_TEAM=%d -DLW_PANEL=%d -DLW_ROWS=%d", int(all.blocks),
                                   int(all.width), int(all.rows));
  char *matrix = at<char>(y_), *left = at<char>(sides_), *right = left + 2 * all.width * pitch_ * element_, *sums = at<char>(sums_);
  const auto part = [&](int64_t elements, int64_t size) {
    char* place = sums;
    sums += elements * size;
    return place;
  };
  char *rows = part(all.strips * pitch_, element_), *columns = part(all.blocks * pitch_, element_),
       *dots = part(PANEL_WARPS * all.blocks, element_), *forms = part(all.blocks, real_), *squares = sums;
  int32_t* scaled = at<int32_t>(scaled_);
  if (fill(frame_, at(v_), 0, size_t(blocks_ * width_ * pitch_ * element_)) ||
      fill(frame_, left, 0, size_t(4 * all.width * pitch_ * element_)) || fill(frame_, at(next_), 0, size_t(pitch_ * element_)) ||
      start(frame_, "tridiagonal_measure.cu", options(frame_.dtype, upper, access_width({a})), "tridiagonal_copy", grid_for(divided(pitch_, 32) * divided(n_, 32)), 256,
            size_t(32 * 33 * element_), a, at<int32_t>(state_), matrix, at(up_), scaled, int32_t(n_), int32_t(pitch_)))
    return 1;
  for (int64_t first = 0; first < panels_; first += all.width) {
    const PanelShape shape(frame_.dtype, n_, n_ - first, gpu_);
    const PanelCall call{matrix,  at(v_), left,   right, at(next_), rows, columns, dots, forms, squares, at(d_), at(e_), at(tau_),
                         at<int32_t>(gate_), int32_t(2 * first * shape.blocks), int32_t(n_), int32_t(pitch_), int32_t(first),
                         int32_t(shape.chunk), int32_t(shape.most_strips), int32_t(shape.kept)};
    if (start_together(frame_, "tridiagonal_panel.cu", text, "tridiagonal_panel", Grid{unsigned(shape.blocks)}, unsigned(PANEL_THREADS),
                       shape.shared, call))
      return 1;
    // the lower triangle of A <- A - [V W] [W V]^H
    const int64_t step = std::max<int64_t>(512, rounded(divided(n_ - first, 6), 64));
    for (int64_t begin = first + all.width; begin < n_; begin += step)
      if (blas_->gemm(vendor::OP_NONE, vendor::OP_ADJOINT, n_ - begin, std::min(step, n_ - begin), 2 * all.width, -1,
                      left + begin * element_, pitch_, right + begin * element_, pitch_, 1,
                      matrix + begin * (pitch_ + 1) * element_, pitch_))
        return 1;
  }
  return reduce_rest(matrix + panels_ * (pitch_ + 1) * element_, 0, scaled, at<char>(scaled_) + ALIGNED, panels_, true,
                     frame_.dtype >= C64);
}

double Tridiagonal::team_time(int32_t dtype, int64_t batch, int64_t n, const Properties& gpu) {
  return parts_for(dtype, batch, n, gpu).second;
}

int Tridiagonal::take() {
  if (!v_) return 0;
  const int64_t rows = blocks_ * width_;
  return start(frame_, "tridiagonal_back.cu", options(frame_.dtype, false, 16, " -DLW_WIDTH=%d", int(width_)), "tridiagonal_take",
               grid_for(std::min<int64_t>(batch_ * rows, 1 << 20)), 256, 0, at(y_), at(block_tau_), at(v_), at(tau_), batch_,
               int32_t(n_), int32_t(pitch_), int32_t(rows));
}

int Tridiagonal::values(void* w, int32_t* info, int64_t first, int64_t count) {
  return tridiagonal_values(frame_, gpu_, spectrum(first, count), w, info);
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
  return tridiagonal_vectors(frame_, spectrum(first, count), at(w_), at(wide_), at<int32_t>(divided_), w, v, info, width_);
}

// ---- answers -----------------------------------------------------------------------------------------------------

int tridiagonal_values(Frame& frame, const Properties& gpu, const Spectrum& of, void* w, int32_t* info) {
  // several lanes for each value only as long as threads would be idle
  const int64_t threads = int64_t(gpu.multiprocessors) * 1024;
  int64_t lanes = 32;
  while (lanes > 1 && lanes * of.batch * of.count > threads) lanes /= 2;
  // all lines at once, or as many as fit
  const int64_t room = ((gpu.shared_per_block - RESERVED) / 16 - VALUE_THREADS / 64) / 8 * 8, lines = std::min(of.n, room);
  const std::string part = lines < of.n ? " -DLW_PART=" + std::to_string(lines) : "";
  const int32_t real_dtype = frame.dtype >= C64 ? frame.dtype - 2 : frame.dtype;
  const ValuesCall call{of.d, of.e, of.up, of.reduced, w, info, of.batch, int32_t(of.n), int32_t(of.first), int32_t(of.count),
                        int32_t(of.positive)};
  return start(frame, "tridiagonal_values.cu", options(real_dtype, false, 16, " -DLW_LANES=%d%s", int(lanes), part.c_str()), "tridiagonal_values",
               grid_for(of.batch * divided(of.count, VALUE_THREADS / lanes)), unsigned(VALUE_THREADS), size_t(values_bytes(lines)), call);
}

int tridiagonal_vectors(Frame& frame, const Spectrum& of, const void* values, const void* z, const int32_t* divided_info, void* w, void* v,
                        int32_t* info, int64_t width) {
  const int64_t element = int64_t(size_of(frame.dtype)), tiles = divided(of.n, 32) * divided(of.count, 32);
  const Answer answer{values, of.up, z, of.reduced, divided_info, w, v, info, of.batch, int32_t(of.n), int32_t(of.first), int32_t(of.count)};
  return start(frame, "tridiagonal_back.cu", options(frame.dtype, false, access_width({v}, element), " -DLW_WIDTH=%d", int(width)),
               "tridiagonal_give", grid_for(std::min<int64_t>(of.batch * tiles, 1 << 20)), 256, size_t(32 * 33 * element), answer);
}

}  // namespace lapwing::cuda
