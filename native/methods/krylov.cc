#include "methods/krylov.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "cpu/hermitian_product.h"
#include "dtypes.h"
#include "methods/krylov_space.h"
#include "lapack/lapack.h"
#include "methods/storage.h"
#include "run.h"

namespace lapwing::krylov {
namespace {

// ---- sizes -------------------------------------------------------------------------------------------------------

struct Shape {
  int64_t n, wanted;
  int64_t block;  // columns of one step
  int64_t keep;   // Ritz vectors that survive a restart
  int64_t basis;  // vectors before a restart
  int degree;     // of the polynomial in A that takes one block to the next; 1: A itself
  bool fits;
};

// Small matrices on a GPU, where a product takes microseconds and a step of the iteration a tenth of a millisecond. H200, 16
// largest, float64, ms with the filter and without it (2026-11-16): Wishart n = 2048 9.6 / 30; 3072 13.6 where 4096 takes 32 without.
constexpr int MOST_DEGREE = 12;
constexpr double FILTER_BYTES = 3e8;     // of the matrix
constexpr int64_t FILTER_VALUES = 24;    // more of them need a longer basis, and are not found sooner
int filter_degree(const Frame& frame) {
  const double bytes = double(frame.size[1]) * double(frame.size[1]) * double(size_of(frame.dtype));
  return frame.device != CPU && bytes < FILTER_BYTES && frame.size[3] <= FILTER_VALUES ? MOST_DEGREE : 1;
}

int64_t round_up(int64_t x, int64_t to) { return (x + to - 1) / to * to; }

// A product is bound by reading A up to about 16 columns, so narrower blocks save nothing. Wider ones take more columns to
// converge: for the 16 largest of a Wishart matrix of order 16384, 2080 with blocks of 16 and 3536 with blocks of 32.
//
// Where products cost less than what is around them, Chebyshev polynomials of A take the place of A, and the basis is small: it
// is as long as the one small problem that is solved before each restart, which the host then does.
Shape choose_shape(const Frame& frame, bool is_operator) {
  Shape s{frame.size[1], frame.size[3], 0, 0, 0, is_operator ? 1 : filter_degree(frame), false};
  const int64_t room = s.n / 2;  // a basis near the whole space is no longer orthogonal to a random vector
  for (s.block = std::clamp<int64_t>(round_up(s.wanted / 4, 8), 16, 256); s.block >= 4; s.block /= 2) {
    // deep for few pairs, where restarts cost convergence; shallow for many, where the basis costs flops
    s.basis = std::min(s.wanted + (s.degree > 1 ? 4 : s.block <= 16 ? 15 : s.block <= 64 ? 10 : 6) * s.block, room);
    // a third of the rest stays: at a dense edge that takes a quarter fewer steps than two blocks
    s.keep = s.wanted + std::max((s.basis - s.wanted) / 3, int64_t(1));
    if ((s.fits = s.basis >= s.keep + 2 * s.block && (s.degree == 1 || s.keep >= s.block))) break;
  }
  s.fits = s.fits && s.wanted > 0;
  return s;
}

template <class T>
struct Storage {
  T *a, *v, *av, *y, *ay, *room, *h, *c, *s, *gram;
  int64_t room_elements;  // from y to the end of room: free while the small problem is solved
  int32_t *dead, *bad;
  double* numbers;

  template <class Take>
  void take(const Shape& shape, bool full_copy, Take take) {
    const int64_t n = shape.n, m = shape.basis;
    a = full_copy ? take(T(), n * n) : nullptr;
    v = take(T(), n * (m + shape.block));  // the block that would come next is written before a restart is known
    av = take(T(), n * m);
    y = take(T(), n * shape.keep);
    ay = take(T(), n * shape.keep);
    // a GPU's solver wants about 7 m^2 for a small matrix, 4 m^2 for a large one
    const int64_t more = full_copy ? std::max<int64_t>(0, 9 * m * m - 2 * n * shape.keep) : 0;
    room = take(T(), more);
    room_elements = room - y + more;
    h = take(T(), m * m);
    c = take(T(), m * std::max(shape.block, PANEL));
    s = take(T(), m * shape.keep);
    gram = take(T(), PANEL * PANEL);
    dead = take(int32_t(), m + shape.block);
    bad = take(int32_t(), PANEL);
    numbers = take(double(), 2 * shape.keep);
  }
};

// ---- the algorithm -----------------------------------------------------------------------------------------------

constexpr int MOST_RESTARTS = 2000;

// Shares of the direct routine's time. TRIAL is spent before anything is known of the spectrum, so a hard one costs 1.2 times
// the direct routine. More than that is spent only where the residuals predict an end before MOST; beyond BLIND they must
// predict it within LAST_LEG, as a prediction from few checks may be wrong. H200, 16 largest of n = 4096,
// float64 (2026-11-16): evenly spaced spectrum 1.1, Wishart 0.35, Gaussian kernel 0.1 times cuSOLVER.
constexpr double TRIAL = 0.2, BLIND = 0.3, MOST = 0.6, LAST_LEG = 0.3;
// With a filter the gain at the cut predicts the end to about two cycles, from the second one on.
constexpr double MOST_FILTERED = 0.8;
constexpr double VALUES_SHARE = 0.65;  // the direct routine's time for values alone, relative to values and vectors

enum class Result { CONVERGED, GAVE_UP, BAD_INPUT, ERROR };

// V holds an orthonormal basis, AV = A V, and H = V^H A V. Both are stored, so that the residuals at a restart are explicit
// ones and nothing has to be trusted that a recurrence says.
template <class T>
class Solver {
  using Real = RealOf<T>;

 public:
  Solver(Frame& frame, Space<T>& space, const Shape& shape, double patience)
      : frame_(frame), space_(space), shape_(shape), largest_(frame.size[2] != 0 || frame.size[3] == frame.size[1]),
        asked_(tolerance_of(frame)), patience_(patience) {}

  int prepare(bool dense) {
    const bool full_copy = dense && space_.copies_matrix();
    char* block = space_.reserve(full_copy ? scratch_bytes(frame_) : storage_bytes<Storage<T>>(shape_, full_copy));
    if (!block) return 1;
    cut(block, at_, shape_, full_copy);
    space_.lend(at_.numbers, at_.bad);
    return 0;
  }
  T* matrix() { return at_.a; }

  Result solve() {
    reset();
    space_.random(at_.v, shape_.block, seed_++);
    for (;;) {
      if (!grow(next_check_)) return Result::ERROR;
      if (!rayleigh_ritz()) return !space_.ok() ? Result::ERROR : unsolved_ ? Result::GAVE_UP : Result::BAD_INPUT;
      choose_filter();
      if (!converged()) {
        if (!worth_going_on()) return Result::GAVE_UP;
        if (full()) restart_with_residuals();
        schedule();
        continue;
      }
      restart();
      if (!verified()) {
        if (++refinements_ > 3) return Result::GAVE_UP;
        continue_with_residuals();
        next_check_ = size_ + 2 * shape_.block;
        continue;
      }
      if (complete()) return space_.ok() ? Result::CONVERGED : Result::ERROR;
      if (interrupted_ || !space_.ok()) return Result::ERROR;
      if (restarts_ > MOST_RESTARTS || (patience_ > 0 && work_ > patience_ * space_.direct_cost())) return Result::GAVE_UP;
      // a value came up beyond the cut: the space it came from stays, and the solve goes on with it
      last_worst_ = restart_worst_ = -1;
      if (full()) restart_with_residuals();
      schedule();
    }
  }

  const T* vectors() const { return at_.v; }
  const std::vector<double>& values() const { return final_; }
  bool largest() const { return largest_; }
  bool repeated_at_cut() const { return repeated_; }
  double worst_residual() const { return true_worst_ / (norm_ > 0 ? norm_ : 1); }
  int64_t products() const { return products_; }
  int restarts() const { return restarts_; }

  // A trial product with a random block, for the scale of a matrix that is only known by its product.
  double probe() {
    space_.random(at_.v, shape_.block, 0);
    orthonormalise(0, shape_.block, nullptr, 0);
    space_.multiply(at_.v, at_.av, shape_.block);
    return space_.largest_of(at_.av, shape_.block);
  }

 private:
  T* v(int64_t j) { return at_.v + j * shape_.n; }
  T* av(int64_t j) { return at_.av + j * shape_.n; }
  T* h(int64_t i, int64_t j) { return at_.h + i + j * shape_.basis; }
  bool full() const { return size_ + shape_.block > shape_.basis; }
  double eps() const { return std::numeric_limits<Real>::epsilon(); }
  // Residuals relative to the norm: what the iteration aims at, and what a fresh product must confirm.
  double tolerance() const { return asked_ > 0 ? asked_ / 2 : std::max(shape_.n / 8.0, 32.0) * eps(); }
  double loosest() const { return asked_ > 0 ? asked_ : std::max(shape_.n / 1.0, 32.0) * eps(); }

  void reset() {
    size_ = products_ = last_products_ = restarts_ = refinements_ = stalled_ = 0;
    pending_ = shape_.block;
    known_ = nullptr;
    seed_ = 1;
    work_ = 0;
    norm_ = 0;
    last_worst_ = restart_worst_ = -1;
    last_work_ = 0;
    degree_ = 1;
    far_is_known_ = false;
    repeated_ = false;
    space_.clear(at_.dead, shape_.basis);
    next_check_ = std::max(5 * shape_.block, shape_.wanted + 2 * shape_.block);
  }

  // V <- [V, X], X the next Krylov block, until V has `target` columns or the next block would not fit.
  bool grow(int64_t target) {
    do {
      if (frame_.device == CPU && frame_.interrupted && (interrupted_ = frame_.interrupted())) return false;
      const int64_t c = pending_;
      work_ += space_.step_cost(c, size_);
      orthonormalise(size_, c, known_, shape_.basis);
      // AX <- A X, and the new columns of H = V^H A V
      space_.multiply(v(size_), av(size_), c);
      space_.inner(at_.v, size_ + c, av(size_), c, h(0, size_), shape_.basis);
      products_ += c;
      known_ = h(0, size_);
      size_ += c;
      pending_ = shape_.block;
      if (degree_ > 1 && size_ < target && !full()) {
        filter(v(size_ - c), av(size_ - c), c);
        known_ = nullptr;
      } else {
        space_.copy(v(size_), av(size_ - c), c);
      }
      if (c < pending_) space_.random(v(size_ + c), pending_ - c, seed_++), known_ = nullptr;
      if (!space_.ok()) return false;
    } while (size_ < target && !full());
    return true;
  }

  // The Chebyshev polynomial that is small where the unwanted Ritz values are, of the highest degree that leaves the leading one
  // within AMPLIFICATION: components that it would hide are still to be found.
  void choose_filter() {
    if (shape_.degree == 1) return;
    const auto live = int64_t(host_w_.size()), place = std::min(live * 3 / 4, shape_.wanted + shape_.block);
    const auto value = [&](int64_t j) { return double(host_w_[size_t(largest_ ? live - 1 - j : j)]); };
    // the far end of the spectrum as the first bases saw it: later ones hold little of it
    far_ = far_is_known_ ? largest_ ? std::min(far_, value(live - 1)) : std::max(far_, value(live - 1)) : value(live - 1);
    far_is_known_ = true;
    const double near = value(place), far = far_, half = std::fabs(near - far) / 2;
    degree_ = 1;
    if (!(half > 100 * eps() * norm_)) return;
    center_ = (near + far) / 2, half_ = half;
    const double lead = std::acosh(std::max(std::fabs(value(0) - center_) / half_, 1 + 1e-9));
    const double amplification = sizeof(Real) == 8 ? 1e8 : 1e4;
    degree_ = int(std::clamp(std::acosh(amplification) / lead, 1.0, double(shape_.degree)));
    gain_ = std::cosh(degree_ * lead);
  }
  // |p(theta)|, at least 1
  double gain(double theta) const { return std::cosh(degree_ * std::acosh(std::max(std::fabs(theta - center_) / half_, 1.0))); }

  // The next block <- p(A) X, where AX is known; X and AX may be Y and AY
  void filter(const T* x, const T* ax, int64_t columns) {
    T *current = v(size_), *before = at_.y;
    const auto by = [&](int degree) { return degree == degree_ ? norm_ / gain_ : 1.0; };  // the result is as large as A X
    // T1 = (A - center) X / half; T(j+1) = 2 (A - center) Tj / half - T(j-1)
    space_.recur(current, ax, x, by(1) / half_, -by(1) * center_ / half_, 0, columns);
    if (x != before) space_.copy(before, x, columns);
    for (int degree = 2; degree <= degree_; degree++) {
      space_.multiply(current, at_.ay, columns);
      space_.recur(before, at_.ay, current, 2 * by(degree) / half_, -2 * by(degree) * center_ / half_, -by(degree), columns);
      std::swap(current, before);
    }
    if (current != v(size_)) space_.copy(v(size_), current, columns);
    products_ += (degree_ - 1) * columns;
    work_ += (degree_ - 1) * space_.product_cost(columns);
  }

  // X = V[first, first + columns) <- an orthonormal basis of (I - V V^H) X, V the columns before it. `known` is V^H X where
  // it has been computed already. Twice, as rounding leaves the first result orthogonal only to what cancelled.
  void orthonormalise(int64_t first, int64_t columns, const T* known, int64_t ldc) {
    T* x = v(first);
    if (first > 0) {
      if (!known) space_.inner(at_.v, first, x, columns, at_.c, ldc = shape_.basis);
      space_.subtract(at_.v, first, known ? known : at_.c, ldc, x, columns);
    }
    // what is left of a column after cancellation is noise below the first; a random vector keeps half of itself at least
    const double noise = 16 * eps() * std::max(1.0, norm_);
    const Rank<Real> loose{Real(noise * noise), Real(100 * eps())}, strict{Real(0.2), Real(0.2)};
    for (int64_t p = 0; p < columns; p += PANEL) {
      const int64_t width = std::min(PANEL, columns - p), before = first + p;
      if (p > 0) {
        space_.inner(x, p, v(before), width, at_.c, shape_.basis);
        space_.subtract(x, p, at_.c, shape_.basis, v(before), width);
      }
      space_.normalise(v(before), width, at_.gram, loose, seed_++, nullptr);
      if (before > 0) {
        space_.inner(at_.v, before, v(before), width, at_.c, shape_.basis);
        space_.subtract(at_.v, before, at_.c, shape_.basis, v(before), width);
      }
      // a column that lost most of itself again is given up: it stays zero, and rayleigh_ritz passes over it
      space_.normalise(v(before), width, at_.gram, strict, 0, at_.dead + before);
    }
  }

  // H S = S Theta; the residuals of the leading pairs go to AY. false: H is not finite, or the small problem failed.
  bool rayleigh_ritz() {
    const int64_t m = shape_.basis;
    host_h_.resize(size_t(m * size_));
    host_dead_.resize(size_t(size_));
    space_.download(host_h_.data(), at_.h, sizeof(T) * host_h_.size());
    space_.download(host_dead_.data(), at_.dead, sizeof(int32_t) * host_dead_.size());
    if (!space_.ok()) return false;
    live_.clear();
    for (int64_t j = 0; j < size_; j++)
      if (!host_dead_[size_t(j)]) live_.push_back(j);
    const int64_t live = int64_t(live_.size());
    host_s_.assign(size_t(live * live), T(0));
    for (int64_t j = 0; j < live; j++)
      for (int64_t i = 0; i <= j; i++) {
        const T x = host_h_[size_t(live_[size_t(i)] + m * live_[size_t(j)])];
        if (!std::isfinite(std::abs(x))) return false;
        host_s_[size_t(i + live * j)] = x;
      }
    host_w_.resize(size_t(live));
    unsolved_ = live == 0 || space_.eigh_small(live, host_s_.data(), host_w_.data(), at_.y, at_.room_elements);
    if (unsolved_) return false;
    work_ += space_.ritz_cost(live);
    norm_ = std::max(double(std::abs(host_w_.front())), double(std::abs(host_w_.back())));

    // Y <- V S, AY <- AV S, R <- AY - Y Theta for the pairs that are wanted
    held_ = std::min(shape_.keep, live);
    theta_.resize(size_t(held_));
    host_u_.assign(size_t(m * held_), T(0));
    for (int64_t j = 0; j < held_; j++) {
      const int64_t from = largest_ ? live - 1 - j : j;
      theta_[size_t(j)] = double(host_w_[size_t(from)]);
      for (int64_t i = 0; i < live; i++) host_u_[size_t(live_[size_t(i)] + m * j)] = host_s_[size_t(i + live * from)];
    }
    space_.upload(at_.s, host_u_.data(), sizeof(T) * host_u_.size());
    const int64_t columns = std::min(held_, shape_.wanted + 1);  // one more, to see whether it belongs to the last
    space_.combine(at_.v, size_, at_.s, m, at_.y, columns);
    space_.combine(at_.av, size_, at_.s, m, at_.ay, columns);
    residuals_.resize(size_t(columns));
    space_.residual(at_.y, at_.ay, theta_, columns, residuals_.data());
    return space_.ok();
  }

  double worst(const std::vector<double>& norms) const {
    return *std::max_element(norms.begin(), norms.begin() + std::min(int64_t(norms.size()), shape_.wanted));
  }

  bool converged() {
    worst_ = worst(residuals_);
    if (held_ <= shape_.wanted) return false;
    if (worst_ <= tolerance() * norm_) return true;
    if (full()) stalled_ = restart_worst_ >= 0 && worst_ > 0.9 * restart_worst_ ? stalled_ + 1 : 0;
    return stalled_ >= 2 && worst_ <= loosest() * norm_;  // rounding in the products stands in the way of more
  }

  // The residual falls about geometrically: the steps it still takes follow from the two latest checks.
  double steps_to_go() const {
    if (last_worst_ < 0 || !(worst_ < last_worst_) || size_t(products_) <= size_t(last_products_)) return -1;
    const double steps = double(products_ - last_products_) / double(shape_.block);
    return std::log(worst_ / (tolerance() * norm_)) * steps / std::log(last_worst_ / worst_);
  }

  // The first cycles with a filter say little, as their interval is still off. Later a cycle divides the residual by the gain
  // at the cut to the power of 1.5 to 2; where it does not, the gain goes on falling, and what was gained is the better guess.
  double cycles_to_go() const {
    double gained = 1.5 * std::log(gain(theta_[size_t(shape_.wanted - 1)]));
    if (restarts_ >= 6 && last_worst_ > 0) gained = std::min(gained, std::log(last_worst_ / worst_));
    return gained > 0 ? std::max(std::log(worst_ / (tolerance() * norm_)) / gained, 0.0) : 1e9;
  }

  // Stops in time where the direct routine will be faster.
  bool worth_going_on() {
    // without a direct routine to compare with: as long as the residual falls, and not for ever
    if (patience_ == 0) return stalled_ < 20 && products_ < 30 * shape_.n + 10000;
    const double share = frame_.op == EIGVALSH ? VALUES_SHARE : 1;
    const double direct = share * patience_ * space_.direct_cost(), to_go = steps_to_go();
    if (degree_ > 1) return restarts_ < 2 || work_ + cycles_to_go() * (work_ - last_work_) < MOST_FILTERED * direct;
    const double step = space_.step_cost(shape_.block, (shape_.keep + shape_.basis) / 2);
    // with its small problems, as the part since the latest check
    const double each = (work_ - last_work_) * double(shape_.block) / double(std::max<int64_t>(products_ - last_products_, 1));
    const double left = to_go < 0 ? direct : to_go * each, total = work_ + left;
    if (work_ > TRIAL / 2 * direct && restarts_ >= 3 && total > 2 * direct) return false;
    const double next = work_ + 3 * step + space_.ritz_cost(std::min(size_ + 3 * shape_.block, shape_.basis));
    if (next < TRIAL * direct) return true;
    return total < MOST * direct && next < MOST * direct && (next < BLIND * direct || left < LAST_LEG * direct);
  }

  void schedule() {
    const double to_go = steps_to_go();
    const int64_t least = std::max(3 * shape_.block, size_ / 6);
    next_check_ = size_ + std::max(least, int64_t(to_go < 0 ? 0 : 0.8 * to_go) * shape_.block);
    if (shape_.degree > 1) next_check_ = shape_.basis;
    last_worst_ = worst_;
    last_products_ = products_;
    last_work_ = work_;
  }

  // V <- Y, AV <- A Y, H <- Theta
  void restart() {
    const int64_t m = shape_.basis, keep = held_;
    space_.combine(at_.v, size_, at_.s, m, at_.y, keep);
    space_.combine(at_.av, size_, at_.s, m, at_.ay, keep);
    space_.copy(at_.v, at_.y, keep);
    space_.copy(at_.av, at_.ay, keep);
    host_u_.assign(size_t(m * keep), T(0));
    for (int64_t j = 0; j < keep; j++) host_u_[size_t(j + m * j)] = T(Real(theta_[size_t(j)]));
    space_.upload(at_.h, host_u_.data(), sizeof(T) * host_u_.size());
    space_.clear(at_.dead, m);
    size_ = keep;
    restarts_++;
  }

  void restart_with_residuals() {
    restart_worst_ = worst_;
    restart();
    // the residuals again: the products in AY were needed for AV
    std::vector<double> norms(size_t(held_), 0.0);
    space_.residual(at_.y, at_.ay, theta_, held_, norms.data());
    choose_block(norms);
  }

  // X <- the residuals of the leading pairs that have not converged: with those of all pairs this is the block that the
  // Krylov recurrence would go on with. Or, with a filter, p(A) times the Ritz vectors of these pairs. What is left of the block
  // is random.
  void choose_block(const std::vector<double>& norms) {
    int64_t c = 0;
    for (int64_t j = 0; j < held_ && c < shape_.block; j++) {
      if (!(norms[size_t(j)] > tolerance() / 4 * norm_)) continue;
      if (degree_ > 1) {
        // every column comes out with the same length, or what is new in some would count as rounding errors
        const double by = gain_ / gain(theta_[size_t(j)]);
        space_.recur(at_.y + c * shape_.n, v(j), v(j), by, 0, 0, 1);
        space_.recur(at_.ay + c * shape_.n, av(j), av(j), by, 0, 0, 1);
      } else {
        space_.copy(v(size_ + c), at_.ay + j * shape_.n, 1);
      }
      c++;
    }
    if (degree_ > 1 && c > 0) filter(at_.y, at_.ay, c);
    if (c < shape_.block) space_.random(v(size_ + c), shape_.block - c, seed_++);
    pending_ = shape_.block;
    known_ = nullptr;
  }

  // The residuals by a fresh product, after a restart: AV[0, wanted) <- A V
  bool verified() {
    for (int64_t j = 0; j < shape_.wanted; j += shape_.block)
      space_.multiply(v(j), av(j), std::min(shape_.block, shape_.wanted - j));
    products_ += shape_.wanted;
    space_.copy(at_.ay, at_.av, held_);
    true_residuals_.resize(size_t(held_));
    space_.residual(at_.v, at_.ay, theta_, held_, true_residuals_.data());
    true_worst_ = worst(true_residuals_);
    return true_worst_ <= loosest() * norm_;
  }
  void continue_with_residuals() { choose_block(true_residuals_); }

  // How far the first value outside the cut may still move: the second-order estimate r^2 / gap, at most r.
  double missing() const {
    const double r = residuals_[size_t(shape_.wanted)];
    const size_t at = size_t(shape_.wanted);
    const double gap = held_ > shape_.wanted + 1 ? std::fabs(theta_[at] - theta_[at + 1]) : 0;
    return gap > r ? r * r / gap : r;
  }

  // Takes a random block through a few steps beside the found vectors; false when a value came up beyond the cut.
  bool complete() {
    const int64_t wanted = shape_.wanted, room = (shape_.basis - size_) / shape_.block;
    const int64_t steps = std::clamp(products_ / shape_.block / 6, std::min<int64_t>(2, room), room);
    const std::vector<double> found(theta_.begin(), theta_.begin() + wanted);
    const double next = theta_[size_t(wanted)];
    space_.random(v(size_), shape_.block, seed_++);
    pending_ = shape_.block;
    known_ = nullptr;
    if (!grow(size_ + steps * shape_.block) || !rayleigh_ritz()) return false;
    if (held_ <= wanted) return false;
    const double seen = tolerance() * norm_, same = 10 * double(shape_.n) * eps() * norm_;
    auto beyond = [&](double a, double b) { return largest_ ? a - b : b - a; };
    for (int64_t j = 0; j < wanted; j++)
      if (beyond(theta_[size_t(j)], found[size_t(j)]) > seen) {
        worst_ = worst(residuals_);
        return false;
      }
    repeated_ = beyond(found.back(), next) <= same || beyond(found.back(), theta_[size_t(wanted)]) <= same + missing();
    final_ = found;
    return true;
  }

  Frame& frame_;
  Space<T>& space_;
  Shape shape_;
  bool largest_;
  double asked_;          // the caller's tolerance; 0: the default
  double patience_;       // factor on the time that may be spent; 0: there is no direct routine to compare with
  Storage<T> at_{};

  int64_t size_ = 0;      // columns of V
  int64_t pending_ = 0;   // columns behind them that are to be orthonormalised and multiplied next
  const T* known_ = nullptr;  // V^H times those, where known
  uint64_t seed_ = 1;
  int64_t next_check_ = 0, products_ = 0, last_products_ = 0;
  int restarts_ = 0, refinements_ = 0, stalled_ = 0;
  int64_t held_ = 0;      // Ritz pairs of the latest check that a restart would keep
  double norm_ = 0;       // of A, as far as the Ritz values know
  double work_ = 0, last_work_ = 0;  // in the unit of the space's costs
  int degree_ = 1;        // of the filter; 1: there is none yet
  double far_ = 0;        // the Ritz value farthest from those wanted, of all checks
  bool far_is_known_ = false;
  double center_ = 0, half_ = 1, gain_ = 1;  // of the filter: the interval in which it is small, its value at the leading pair
  double worst_ = 0, last_worst_ = -1, restart_worst_ = -1, true_worst_ = 0;
  bool repeated_ = false, interrupted_ = false, unsolved_ = false;
  std::vector<double> theta_, residuals_, true_residuals_, final_;
  std::vector<T> host_h_, host_s_, host_u_;
  std::vector<Real> host_w_;
  std::vector<int32_t> host_dead_;
  std::vector<int64_t> live_;
};

// ---- one call ----------------------------------------------------------------------------------------------------

// A power of two that brings `largest` to about 1, so that squares neither overflow nor vanish in single precision.
double scale_for(double largest) {
  if (!(largest > 0)) return 1;
  int exponent = 0;
  std::frexp(largest, &exponent);
  return std::ldexp(1.0, -exponent);
}

template <class T>
int solve_all(Frame& frame, const Product* product, double patience, Outcome* outcome) {
  *outcome = {};
  const int64_t batch = frame.size[0], n = frame.size[1];
  const Shape shape = choose_shape(frame, product != nullptr);
  if (!shape.fits) return 0;
  const auto owner = frame.device == CPU ? cpu_space(T(), frame, product) : cuda_space(T(), frame, product);
  Space<T>& space = *owner;
  Solver<T> solver(frame, space, shape, patience);
  if (!space.ok() || solver.prepare(product == nullptr)) return 1;
  for (int64_t m = 0; m < batch; m++) {
    const T* a = static_cast<const T*>(frame.buffer[0]) + m * n * n;
    const double largest = product ? solver.probe() : space.largest(a);
    if (!space.ok()) return 1;
    const double scale = scale_for(largest);
    Result result = Result::BAD_INPUT;
    if (std::isfinite(largest)) {
      if (product)
        space.rescale(scale);
      else
        space.load(a, solver.matrix(), scale);
      result = solver.solve();
    }
    if (result == Result::ERROR || !space.ok()) return 1;
    outcome->products += solver.products();
    outcome->restarts += solver.restarts();
    if (result == Result::GAVE_UP) return 0;
    if (result == Result::BAD_INPUT) {
      space.write(m, nullptr, {}, false);
      continue;
    }
    std::vector<double> w = solver.values();
    for (double& x : w) x /= scale;
    space.write(m, solver.vectors(), w, solver.largest());
    outcome->repeated_at_cut |= solver.repeated_at_cut();
    outcome->residual = std::max(outcome->residual, solver.worst_residual());
    if (!space.ok()) return 1;
  }
  outcome->converged = true;
  return 0;
}

// An engine asked for by name gets a larger budget.
constexpr double PATIENCE_IF_NAMED = 20;

// 0 with converged = false: it would not pay, or the subspace does not fit beside n; w, v and info are then as they were,
// except for matrices of the batch before the one that failed. `patience` is a factor on the time it may take.
int solve(Frame& frame, const Product* product, double patience, Outcome* outcome) {
  const int64_t n = frame.size[1], first = frame.size[2], count = frame.size[3];
  if (count < 1 || first < 0 || (first != 0 && first + count != n) || first + count > n)
    return fail(frame, "engine krylov: only values at one end of the spectrum, not %lld to %lld of %lld", (long long)first,
                (long long)(first + count - 1), (long long)n);
  if (!lapack::has_dense(frame.dtype)) return fail(frame, "engine krylov: no LAPACK library was found");
  return by_dtype(frame.dtype, [&](auto zero) { return solve_all<decltype(zero)>(frame, product, patience, outcome); });
}

}  // namespace

bool at_an_end(const Frame& frame) {
  const int64_t n = frame.size[1], first = frame.size[2], count = frame.size[3];
  return count < n && (first == 0 || first + count == n);
}

double tolerance_of(const Frame& frame) {
  const auto bits = uint32_t(frame.size[4]);
  float tolerance = 0;
  std::memcpy(&tolerance, &bits, sizeof tolerance);
  return double(tolerance);
}

int eigh(Frame& frame, const Direct& direct) {
  Outcome outcome;
  if (solve(frame, nullptr, frame.named ? PATIENCE_IF_NAMED : 1, &outcome)) return 1;
  if (!outcome.converged) {
    note("eigh: krylov stopped after %lld products, as the direct routine will be faster", (long long)outcome.products);
    frame.engine = direct.engine;
    return direct.run(frame);
  }
  note("eigh: krylov took %lld products and %d restarts, largest residual %.1e of the norm", (long long)outcome.products,
       outcome.restarts, outcome.residual);
  if (outcome.repeated_at_cut)
    note("eigh: a value is repeated across the cut, so that which of its vectors are returned is arbitrary");
  return 0;
}

int eigh_operator(Frame& frame, const Product& a, Outcome* outcome) { return solve(frame, &a, 0, outcome); }

size_t scratch_bytes(const Frame& frame) {
  if (frame.device == CPU) return 0;
  size_t most = 0;
  for (const bool is_operator : {false, true}) {
    const Shape shape = choose_shape(frame, is_operator);
    const auto bytes = by_dtype(frame.dtype, [&](auto zero) { return storage_bytes<Storage<decltype(zero)>>(shape, true); });
    if (shape.fits) most = std::max(most, bytes);
  }
  return most;
}

size_t host_bytes(const Frame& frame) {
  const Shape shape = choose_shape(frame, false);
  if (!shape.fits) return 0;
  const size_t small = 5 * size_of(frame.dtype) * size_t(shape.basis) * size_t(shape.basis);  // H, S and LAPACK's workspace
  if (frame.device == CUDA) return small;
  return by_dtype(frame.dtype, [&](auto zero) {
    using T = decltype(zero);
    return small + HermitianProduct<T>::bytes(shape.n, shape.block) + storage_bytes<Storage<T>>(shape, false);
  });
}

}  // namespace lapwing::krylov
