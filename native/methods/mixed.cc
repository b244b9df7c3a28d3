#include "methods/mixed.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu/matrix.h"
#include "methods/mixed_space.h"
#include "run.h"

namespace lapwing::mixed {
namespace {

struct Outcome {
  int steps = 0;              // products with the factor's inverse; of a batch, the most
  double backward_error = 0;  // ||b - A x|| / (||A||_F ||x|| + ||b||), the worst column
  bool fell_back = false;     // the full-precision engine answered, for one matrix at least
  const char* reason = "";    // why it did
};

constexpr double ROUNDING = 0x1p-53;
// In units of ROUNDING ||A||_F ||x||. Full precision comes out at 0.08 to 0.3, and so does refinement once the estimate is
// well below: what is left is the rounding of the residual itself.
constexpr double GOAL = 0.2, ACCEPTED = 0.5, ESTIMATE = 0.02;
constexpr int TRIAL = 3;  // steps after which the rate decides
constexpr int64_t MOST_COLUMNS = 64;
constexpr int MOST_STEPS = 60;

// ---- whether to try ----------------------------------------------------------------------------------------------

// Times in units of the full factorisation of this matrix.
struct Costs {
  double step;
  double worth;      // what the steps may cost together
  int64_t smallest;  // order
};

// CPU: two threads of a 2.3 GHz AVX-512 machine, n = 4000, ms: full Cholesky 300, LU 700; the product 5 for every 16 columns of
// a Hermitian matrix, 8 and 23 for one and 8 of another; the triangular solves 4, 8 and 21 for one, 5 and 16, 8 to 22 by LU.
Costs costs_on_cpu(const Shape& s, bool complex) {
  const double k = double(s.columns);
  const double factor = s.positive ? 4.7e-3 : 11e-3, product = s.positive ? 0.35 * std::ceil(k / 16) : 0.4 + 0.14 * k;
  const double solves = (s.positive ? 0.3 + 0.08 * k : 0.4 + 0.12 * k) * (complex ? 1.6 : 1);
  return {(product + solves) / (factor * double(s.n)), 0.45, 1000};  // four times both for complex numbers
}

// H200: full Cholesky 302, 46 and 10 ms at n = 32768, 16384 and 8192; a step with one column 3.9 and 1.5 ms, at 32768 with 16
// and 64 columns 7 and 11. The low-precision factor takes 62 ms, a fifth; at 8192 it takes half.
Costs costs_on_gpu(const Shape& s, bool complex) {
  const double n = double(s.n), k = double(s.columns), parts = complex ? 4 : 1;
  const double factor = parts * (n * n * n / 3 / 42e12 + n * 0.7e-6);
  const double wide = s.columns > 1 ? 1.4e-12 + 8e-14 * k : 0;
  const double step = (complex ? 2 : 1) * n * n * (3e-12 + wide) + 0.6e-3;
  return {step / factor, 0.4, 8000};
}

Shape shape_of(const Frame& frame) {
  const int64_t columns = frame.size[2];
  return {frame.size[1], columns, std::clamp<int64_t>(512 / std::max<int64_t>(columns, 1), 8, 24), bool(frame.flags & POS),
          bool(frame.flags & UPPER)};
}

// Steps that pay.
int steps_worth(const Frame& frame) {
  const Costs costs = (frame.device == CUDA ? costs_on_gpu : costs_on_cpu)(shape_of(frame), frame.dtype == C128);
  return frame.size[1] < costs.smallest ? 0 : std::min(int(costs.worth / costs.step), MOST_STEPS);
}

// ---- refinement --------------------------------------------------------------------------------------------------

// One column's least squares problem min ||beta e1 - H y||, kept triangular by rotations.
template <class T>
struct Column {
  bool open = true;       // not yet good enough, by the true residual
  int64_t used = 0;       // steps of this cycle that count
  bool settled = false;   // in this cycle
  double size = 0;        // ||x||
  double beta = 0, left = 0, before = 0;  // the residual at the start of the cycle, its estimate, that of the step before
  double goal = 0;
  std::vector<T> r, g, c, y;
  std::vector<double> s, z;  // sines, and the norms of the directions

  void start(int64_t cycle, double norm) {
    beta = left = before = norm;
    used = 0;
    settled = !open;
    r.assign(size_t(cycle * cycle), T(0));
    g.assign(size_t(cycle + 1), T(0));
    g[0] = T(norm);
    c.assign(size_t(cycle), T(0));
    s.assign(size_t(cycle), 0);
    z.assign(size_t(cycle), 0);
  }

  // Column j of H is h[0..j] and the real number `next`.
  void step(int64_t cycle, int64_t j, T* h, double next, double direction) {
    for (int64_t i = 0; i < j; i++) {
      const T p = h[i], q = h[i + 1];
      h[i] = conjugated(c[size_t(i)]) * p + s[size_t(i)] * q;
      h[i + 1] = c[size_t(i)] * q - s[size_t(i)] * p;
    }
    const double hypotenuse = std::hypot(std::abs(h[j]), next);
    c[size_t(j)] = hypotenuse > 0 ? h[j] / hypotenuse : T(1);
    s[size_t(j)] = hypotenuse > 0 ? next / hypotenuse : 0;
    h[j] = T(hypotenuse);
    g[size_t(j + 1)] = -s[size_t(j)] * g[size_t(j)];
    g[size_t(j)] = conjugated(c[size_t(j)]) * g[size_t(j)];
    for (int64_t i = 0; i <= j; i++) r[size_t(j * cycle + i)] = h[i];
    z[size_t(j)] = direction;
    before = left;
    left = std::abs(g[size_t(j + 1)]);
    used = j + 1;
    solve(cycle);
  }

  void solve(int64_t cycle) {
    y.assign(size_t(used), T(0));
    for (int64_t i = used - 1; i >= 0; i--) {
      T sum = g[size_t(i)];
      for (int64_t l = i + 1; l < used; l++) sum -= r[size_t(l * cycle + i)] * y[size_t(l)];
      y[size_t(i)] = sum / r[size_t(i * cycle + i)];
    }
  }

  double largest_part() const {
    double most = size;
    for (size_t i = 0; i < y.size(); i++) most = std::max(most, std::abs(y[i]) * z[i]);
    return most;
  }
};

// Steps still to be taken, from the rate of the last step or of the cycle, whichever is better.
template <class T>
double steps_left(const std::vector<Column<T>>& columns) {
  double most = 0;
  for (const auto& q : columns) {
    if (q.settled) continue;
    const double rate = std::max(std::log(q.beta / q.left) / double(q.used), std::log(q.before / q.left));
    const double need = std::log(q.left / q.goal);
    most = std::max(most, need > 0 ? need / std::max(rate, 1e-6) : 0);
  }
  return most;
}

template <class T>
void norms(const std::vector<T>& squares, int64_t columns, std::vector<double>* out) {
  out->resize(size_t(columns));
  for (int64_t q = 0; q < columns; q++) (*out)[size_t(q)] = std::sqrt(std::max(0.0, std::real(squares[size_t(q)])));
}

template <class T>
class Refinement {
 public:
  Refinement(Frame& frame, Space<T>& space, const Shape& shape, int budget)
      : frame_(frame), space_(space), shape_(shape), budget_(budget), columns_(size_t(shape.columns)) {}

  Verdict run(const char** reason) {
    const T* start = space_.right_sides();
    double before = std::numeric_limits<double>::infinity();
    for (int cycle = 0;; cycle++) {
      if (!measure(start, cycle > 0)) return *reason = "the residual is not finite", UNFIT;
      if (!space_.ok()) return FAILED;
      if (worst_ <= GOAL) return GOOD;
      if (cycle > 1 && worst_ > before / 2) {
        *reason = "the residual no longer falls";
        return worst_ <= ACCEPTED ? GOOD : UNFIT;
      }
      if (cycle > 0) before = worst_;
      const Verdict verdict = gmres(start, reason);
      if (verdict != GOOD) return verdict;
      // R <- B - A X
      space_.multiply(space_.solution(), space_.residual());
      const std::vector<double> minus(columns_.size(), -1);
      space_.scale(space_.residual(), minus.data(), space_.residual());
      const std::vector<T> one(columns_.size(), T(1));
      space_.add(space_.right_sides(), 1, one.data(), space_.residual());
      start = space_.residual();
    }
  }

  int steps() const { return steps_; }
  double backward_error() const { return error_; }

 private:
  void norm_of(const T* block, std::vector<double>* out) {
    std::vector<T> squares(columns_.size());
    space_.inner(block, 1, block, squares.data());
    norms(squares, shape_.columns, out);
  }

  // What is left of every column, and how good that is.
  bool measure(const T* r, bool have_x) {
    std::vector<double> left, size(columns_.size(), 0), ratios(columns_.size(), 0);
    norm_of(r, &left);
    if (have_x) {
      norm_of(space_.solution(), &size);
      space_.true_ratios(r, space_.solution(), ratios.data());
    } else {
      sides_ = left;
    }
    worst_ = error_ = 0;
    for (size_t q = 0; q < columns_.size(); q++) {
      if (!std::isfinite(left[q]) || !std::isfinite(size[q])) return false;
      const double room = ROUNDING * space_.norm() * size[q];
      const double error = left[q] == 0 ? 0 : have_x ? std::max(left[q] / room, ratios[q] / ROUNDING) : 1 / ROUNDING;
      columns_[q].open = !(error <= GOAL);
      columns_[q].size = size[q];
      columns_[q].start(shape_.cycle, left[q]);
      worst_ = std::max(worst_, std::isnan(error) ? 1 / ROUNDING : error);
      if (left[q] > 0) error_ = std::max(error_, left[q] / (space_.norm() * size[q] + sides_[q]));
    }
    return true;
  }

  // X <- X + the correction that makes the residual smallest
  Verdict gmres(const T* start, const char** reason) {
    const size_t k = columns_.size();
    const int64_t cycle = shape_.cycle;
    std::vector<double> by(k), next, directions;
    for (size_t q = 0; q < k; q++) by[q] = columns_[q].open ? 1 / columns_[q].beta : 0;
    space_.scale(start, by.data(), space_.basis(0));
    int64_t j = 0;
    for (bool going = true; going && j < cycle; j++) {
      if (frame_.interrupted && frame_.interrupted()) return FAILED;
      T* w = space_.basis(j + 1);
      // z <- M^-1 v, w <- A z
      space_.precondition(space_.basis(j), space_.direction(j));
      space_.multiply(space_.direction(j), w);
      norm_of(space_.direction(j), &directions);
      // w <- w - V V^H w, twice
      std::vector<T> h(size_t(j + 1) * k, T(0)), part(h.size());
      for (int pass = 0; pass < 2; pass++) {
        space_.inner(space_.basis(0), j + 1, w, part.data());
        for (size_t e = 0; e < h.size(); e++) h[e] += part[e], part[e] = -part[e];
        space_.add(space_.basis(0), j + 1, part.data(), w);
      }
      norm_of(w, &next);
      if (!space_.ok()) return FAILED;
      steps_++;
      going = false;
      for (size_t q = 0; q < k; q++) {
        Column<T>& column = columns_[q];
        by[q] = 0;
        if (column.settled) continue;
        std::vector<T> mine(size_t(j + 2));
        for (int64_t i = 0; i <= j; i++) mine[size_t(i)] = h[size_t(i) * k + q];
        column.step(cycle, j, mine.data(), next[q], directions[q]);
        if (!std::isfinite(column.left) || !std::isfinite(column.largest_part()))
          return *reason = "the low-precision factor broke down", UNFIT;
        column.goal = ESTIMATE * ROUNDING * space_.norm() * column.largest_part();
        column.settled = column.left <= column.goal || next[q] == 0;
        if (column.settled) continue;
        by[q] = 1 / next[q];
        going = true;
      }
      if (!going) continue;
      if (steps_ >= TRIAL && steps_ + steps_left(columns_) > budget_)
        return *reason = "it converges too slowly to pay", UNFIT;
      space_.scale(w, by.data(), w);
    }
    std::vector<T> y(size_t(j) * k, T(0));
    for (size_t q = 0; q < k; q++)
      for (int64_t i = 0; columns_[q].open && i < columns_[q].used; i++) y[size_t(i) * k + q] = columns_[q].y[size_t(i)];
    space_.add(space_.direction(0), j, y.data(), space_.solution());
    return GOOD;
  }

  Frame& frame_;
  Space<T>& space_;
  Shape shape_;
  int budget_;
  std::vector<Column<T>> columns_;
  std::vector<double> sides_;  // ||b||
  int steps_ = 0;
  double worst_ = 0, error_ = 0;
};

// ---- a batch -----------------------------------------------------------------------------------------------------

int call_full(Frame& frame, Frame& one, const Direct& full) {
  one.flags &= ~uint32_t(ALLOW_MIXED);
  frame.engine = one.engine = full.engine;
  return full.run(one) ? fail_as(frame, one) : 0;
}

template <class T>
Verdict attempt(Frame& frame, Space<T>& space, const Frame& one, const Shape& shape, int budget, const char** reason,
                Outcome& outcome) {
  Verdict verdict = space.load(one);
  if (verdict == GOOD) verdict = space.factor();
  if (verdict == UNFIT) *reason = space.reason();
  if (verdict != GOOD) return verdict;
  Refinement<T> refinement(frame, space, shape, budget);
  verdict = refinement.run(reason);
  outcome.steps = std::max(outcome.steps, refinement.steps());
  if (verdict == GOOD) outcome.backward_error = std::max(outcome.backward_error, refinement.backward_error());
  return verdict;
}

template <class T>
int solve_as(Frame& frame, int budget, const Direct& full, Outcome& outcome) {
  const Shape shape = shape_of(frame);
  const auto owner = frame.device == CPU ? cpu_space(T(), frame, shape) : cuda_space(T(), frame, shape);
  Space<T>& space = *owner;
  for (int64_t m = 0; m < frame.size[0]; m++) {
    Frame one = part_of(frame, m, 1);
    const char* reason = "";
    const Verdict verdict = space.ok() ? attempt(frame, space, one, shape, budget, &reason, outcome) : FAILED;
    if (verdict == FAILED) return 1;
    if (verdict == GOOD) {
      space.write(one);
      if (!space.ok()) return 1;
      continue;
    }
    outcome.fell_back = true;
    outcome.reason = reason;
    if (call_full(frame, one, full)) return 1;
  }
  return 0;
}

}  // namespace

const char* refuses(const Frame& frame) {
  if (frame.op != SOLVE) return "mixed solves systems";
  if (frame.dtype != F64 && frame.dtype != C128) return "mixed is for float64 and complex128";
  if (frame.flags & (SYMMETRIC | SELF_ADJOINT)) return "mixed takes general and positive definite matrices";
  if (frame.size[2] > MOST_COLUMNS) return "mixed takes up to 64 right-hand sides";
  if (frame.device == CUDA && !(frame.flags & POS)) return "on a GPU mixed takes positive definite matrices";
  return nullptr;
}

bool pays(const Frame& frame) {
  // a random matrix takes three or four steps on the CPU, five by LU, five after tf32
  const int usual = frame.device == CUDA ? 6 : frame.flags & POS ? 4 : 5;
  return steps_worth(frame) >= usual;
}

int solve(Frame& frame, const Direct& full) {
  Outcome outcome;
  const int budget = frame.named ? MOST_STEPS : steps_worth(frame);
  const int status = (frame.dtype == F64 ? solve_as<double> : solve_as<std::complex<double>>)(frame, budget, full, outcome);
  if (status) return status;
  if (outcome.fell_back)
    note("solve: mixed precision gave way to full after %d steps: %s", outcome.steps, outcome.reason);
  else
    note("solve: mixed precision took %d steps, backward error %.1e", outcome.steps, outcome.backward_error);
  return 0;
}

int64_t scratch_bytes(const Frame& frame) {
  if (frame.device != CUDA) return 0;
  const Shape shape = shape_of(frame);
  return int64_t(frame.dtype == F64 ? cuda_bytes(0.0, shape) : cuda_bytes(std::complex<double>(), shape));
}

int64_t host_bytes(const Frame& frame) {
  if (frame.device != CPU) return 0;
  const Shape shape = shape_of(frame);
  return int64_t(frame.dtype == F64 ? cpu_bytes(0.0, shape) : cpu_bytes(std::complex<double>(), shape));
}

}  // namespace lapwing::mixed
