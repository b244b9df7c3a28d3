#include "methods/tall.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <vector>

#include "dtypes.h"
#include "methods/tall_pass.h"
#include "cpu/tall_square.h"
#include "lapack/fortran.h"

namespace lapwing {
namespace {

// Below these sizes the direct routine is as fast, or no slower than matters. One core of Sapphire Rapids (2026-11), QR in
// float64 against OpenBLAS: 512 x 64 0.47 to 1.23 ms, 4096 x 8 0.17 to 0.35, but 8192 x 4 0.34 to 0.24. On an H200 20000 x 64
// takes 0.46 ms against 1.5 by cuSOLVER, which does not make the host wait.
constexpr int64_t LEAST_ELEMENTS_CPU = 1 << 15, LEAST_COLUMNS_CPU = 8, LEAST_ELEMENTS_GPU = 1 << 20;
constexpr int64_t RATIO = 8;            // rows to columns
// H200, 2026-11-16, benchmarks/qr_blocks.py --engines: 4096 x 256 takes 3.1 ms, with cuSOLVER 1.7; 65536 x 256 3.3, with cuSOLVER 6.9
constexpr int64_t NARROW_GPU = 128, LONG_GPU = 1 << 15;
constexpr int64_t MOST_COLUMNS = 512;   // R is decomposed on the host

constexpr int MOST_ROUNDS = 7;  // 2 are usual, 3 at a condition of 1e10, 4 or 5 where A is singular
constexpr double EPS = std::numeric_limits<double>::epsilon();
constexpr double NOISE = 4;  // units in the last place of a column of length one

enum Outcome { DONE, LEFT, FAILED };
enum Kind { ORTHOGONAL, SAFE, SHIFTED, HOPELESS };

// One matrix. G, R and all that is small are in double precision also where the rows are not: G then sees angles down to the
// precision of the rows, and the first R is nearly the last.
template <class T>
class Tall {
  using R = decltype(std::real(T()));
  using Small = std::vector<double>;  // a square of tall_square.h
  static constexpr int64_t PARTS = sizeof(T) / sizeof(R);
  static constexpr double ROW_EPS = std::numeric_limits<R>::epsilon();
  // Powers of two a column may be scaled by: its quotients by pivots should not overflow. Where one does, G will show it.
  static constexpr int MOST_EXPONENT = sizeof(R) == 8 ? 900 : 120;

 public:
  Tall(Frame& frame, TallRows<R>& rows) : frame_(frame), rows_(rows), m_(frame.size[1]), n_(frame.size[2] * PARTS) {}

  Outcome run(int64_t matrix) {
    from_ = static_cast<const R*>(frame_.buffer[0]) + matrix * m_ * n_;
    R* out = frame_.op == SVDVALS ? nullptr : static_cast<R*>(frame_.buffer[1]) + matrix * m_ * n_;
    Small g = square(), total = identity();
    TallPass<R> sum = pass(nullptr);
    sum.gram = g.data();
    if (!rows_.pass(sum)) return FAILED;
    if (const Outcome outcome = scale_columns(g); outcome != DONE) return outcome;
    for (int round = 0; round < MOST_ROUNDS; round++) {
      const bool first = round == 0, replaced = first && std::count(zero_.begin(), zero_.end(), true);
      const Kind kind = factor(g);
      if (kind == HOPELESS) return LEFT;
      total = multiply(last_, total, true);
      if (kind == ORTHOGONAL && !replaced) return finish(matrix, first, total, out);
      if (!from_) return LEFT;
      // X <- (X + noise) R^-1, and its G; the singular values need no more than that G if it is the last
      const bool seen = frame_.op == SVDVALS && kind == SAFE && !replaced && rows_.may_forget();
      const Small r = first ? unscaled(last_) : last_, noise = noise_of(first);
      R* kept = seen ? nullptr : rows_.room(out);
      TallPass<R> solve = pass(kept);
      solve.factor = r.data();
      solve.noise = kind == SHIFTED || replaced ? noise.data() : nullptr;
      solve.gram = g.data();
      if (!rows_.pass(solve)) return FAILED;
      from_ = kept;
      add_parts(g);
    }
    return LEFT;
  }

 private:
  Small square() const { return Small(size_t(n_ * n_)); }
  Small identity() const {
    Small made = square();
    for (int64_t j = 0; j < n_; j++) made[size_t(j * n_ + j)] = 1;
    return made;
  }
  Small multiply(const Small& a, const Small& b, bool upper) const {
    Small made = square();
    square_product(a.data(), b.data(), made.data(), n_, upper);
    return made;
  }
  double& at(Small& s, int64_t i, int64_t j) const { return s[size_t(i * n_ + j)]; }

  TallPass<R> pass(R* to) const {
    TallPass<R> made;
    made.rows = m_, made.columns = n_, made.from = from_, made.to = to;
    return made;
  }

  // The products of the parts, X^T X, become those of the complex columns, in the first row of each pair
  void add_parts(Small& g) const {
    for (int64_t i = 0; PARTS == 2 && i < n_; i += 2)
      for (int64_t j = i; j < n_; j += 2) {
        at(g, i, j) += at(g, i + 1, j + 1);
        at(g, i, j + 1) = i == j ? 0 : at(g, i, j + 1) - at(g, i + 1, j);
      }
  }

  // G <- D G D with D of powers of two and lengths from 1 to 2; a column of zeros gets a one, noise will fill it.
  Outcome scale_columns(Small& g) {
    const double least = std::ldexp(1.0, -MOST_EXPONENT), most = std::ldexp(1.0, MOST_EXPONENT);
    exponent_.assign(size_t(n_), 0);
    zero_.assign(size_t(n_), false);
    add_parts(g);
    bool extreme = false;
    for (int64_t j = 0; j < n_; j += PARTS) extreme = extreme || !(at(g, j, j) > least && at(g, j, j) < most);
    if (extreme && sizeof(R) == 8) {  // squares of doubles may over- or underflow
      if (const Outcome outcome = sum_scaled(g); outcome != DONE) return outcome;
    }
    std::vector<int> more(size_t(n_), 0);
    for (int64_t j = 0; j < n_; j += PARTS) {
      double& length = at(g, j, j);
      if (!std::isfinite(length)) return LEFT;
      std::fill_n(zero_.begin() + j, PARTS, length == 0);
      if (length == 0) length = 1;
      std::fill_n(more.begin() + j, PARTS, int(std::floor(std::ilogb(length) / 2.0)));
    }
    for (int64_t i = 0; i < n_; i++) {
      exponent_[size_t(i)] += more[size_t(i)];
      if (std::abs(exponent_[size_t(i)]) > MOST_EXPONENT) return LEFT;
      for (int64_t j = i; j < n_; j++) at(g, i, j) = std::ldexp(at(g, i, j), -more[size_t(i)] - more[size_t(j)]);
    }
    return DONE;
  }

  // G of columns whose largest element is scaled to 1 to 2
  Outcome sum_scaled(Small& g) {
    std::vector<double> largest(size_t(n_), 0.0), by(size_t(n_), 1.0);
    if (!rows_.largest(pass(nullptr), largest.data())) return FAILED;
    for (int64_t j = 0; j < n_; j += PARTS) {
      const double size = *std::max_element(largest.begin() + j, largest.begin() + j + PARTS);
      if (!std::isfinite(size)) return LEFT;
      const int exponent = size == 0 ? 0 : std::ilogb(size);
      if (std::abs(exponent) > MOST_EXPONENT) return LEFT;
      std::fill_n(exponent_.begin() + j, PARTS, exponent);
      std::fill_n(by.begin() + j, PARTS, std::ldexp(1.0, -exponent));
    }
    TallPass<R> sum = pass(nullptr);
    sum.scale = by.data(), sum.gram = g.data();
    if (!rows_.pass(sum)) return FAILED;
    add_parts(g);
    return DONE;
  }

  // R D^-1: the factor for the columns as they came
  Small unscaled(Small r) const {
    for (int64_t i = 0; i < n_; i++)
      for (int64_t j = i; j < n_; j++) at(r, i, j) = std::ldexp(at(r, i, j), exponent_[size_t(j)]);
    return r;
  }

  std::vector<double> noise_of(bool first) const {
    const double unit = 1 / std::sqrt(double(m_ * PARTS)), little = NOISE * ROW_EPS * unit;
    std::vector<double> noise(size_t(n_), little);
    for (int64_t j = 0; first && j < n_; j++)
      noise[size_t(j)] = std::ldexp(zero_[size_t(j)] ? unit : little, exponent_[size_t(j)]);
    return noise;
  }

  // R with R^H R = G, or G + shift, and R^-1 if it is close to the identity. What G is told apart by is |R^-1|^2, the sum of
  // the reciprocal eigenvalues: times the few eps that G is off by, it is the loss of orthogonality after this step.
  Kind factor(const Small& g) {
    const double fine = 2.0 * double(n_), safe = std::min(1 / (256 * EPS), std::pow(0.02 / ROW_EPS, 2));
    double most = 0, sum = 0;
    for (int64_t i = 0; i < n_; i += PARTS) {
      most = std::max(most, g[size_t(i * n_ + i)]);
      for (int64_t j = i; j < n_; j++) sum += g[size_t(i * n_ + j)] * 0;
    }
    if (sum != 0) return HOPELESS;  // NaN or Inf
    last_ = g;
    if (square_factor(last_.data(), n_, PARTS)) {
      inverse_.resize(last_.size());
      square_inverse(last_.data(), inverse_.data(), n_);
      double size = 0;
      for (double x : inverse_) size += x * x;
      if (size <= safe) return size <= fine ? ORTHOGONAL : SAFE;
    }
    double shift = 16.0 * double(n_) * EPS * most;
    for (int attempt = 0; attempt < 4; attempt++, shift *= 100) {
      last_ = g;
      for (int64_t j = 0; j < n_; j += PARTS) at(last_, j, j) += shift;
      if (square_factor(last_.data(), n_, PARTS)) return SHIFTED;
    }
    return HOPELESS;
  }

  Outcome finish(int64_t matrix, bool first, const Small& total, R* out) {
    Small r = unscaled(total);
    for (int64_t i = 0; i < n_; i++)
      for (int64_t j = i; j < n_; j++)
        if (zero_[size_t(j)]) at(r, i, j) = 0;
    TallPass<R> last = pass(out);
    if (frame_.op == QR) {
      // Q <- X R^-1
      const Small factor = first ? unscaled(last_) : last_;
      last.factor = factor.data();
      return rows_.pass(last) && write(2, matrix, r) ? DONE : FAILED;
    }
    const int64_t order = n_ / PARTS;
    const bool vectors = frame_.op == SVD;
    std::vector<Element> a = turned(r), u(vectors ? a.size() : 0), vh(u.size());
    std::vector<double> s(static_cast<size_t>(order));
    if (lapack::gesdd(vectors ? 'S' : 'N', order, order, a.data(), s.data(), u.data(), vh.data(), order)) return LEFT;
    Small w;  // outlives the pass
    if (vectors) {
      // U <- X (R^-1 U of R): this R is close to the identity, so nothing is lost
      w = multiply(inverse_, turned_back(u), false);
      for (int64_t i = 0; first && i < n_; i++)
        for (int64_t j = 0; j < n_; j++) at(w, i, j) = std::ldexp(at(w, i, j), -exponent_[size_t(i)]);
      last.product = w.data();
      if (!rows_.pass(last) || !write(3, matrix, turned_back(vh))) return FAILED;
    }
    const std::vector<R> values(s.begin(), s.end());
    const int32_t good = 0;
    R* to = static_cast<R*>(frame_.buffer[vectors ? 2 : 1]) + matrix * order;
    int32_t* info = static_cast<int32_t*>(frame_.buffer[vectors ? 4 : 2]) + matrix;
    return rows_.write(to, values.data(), sizeof(R) * values.size()) && rows_.write(info, &good, sizeof good) ? DONE : FAILED;
  }

  // Between a square and LAPACK's column-major matrix
  using Element = std::conditional_t<PARTS == 2, std::complex<double>, double>;
  std::vector<Element> turned(const Small& s) const {
    const int64_t order = n_ / PARTS;
    std::vector<Element> made(static_cast<size_t>(order * order));
    for (int64_t i = 0; i < order; i++)
      for (int64_t j = 0; j < order; j++) {
        const double* from = s.data() + i * PARTS * n_ + j * PARTS;
        if constexpr (PARTS == 1)
          made[size_t(i + j * order)] = from[0];
        else
          made[size_t(i + j * order)] = {from[0], from[1]};
      }
    return made;
  }
  Small turned_back(const std::vector<Element>& a) const {
    const int64_t order = n_ / PARTS;
    Small made = square();
    for (int64_t i = 0; i < order; i++)
      for (int64_t j = 0; j < order; j++) {
        const Element x = a[size_t(i + j * order)];
        double* to = made.data() + i * PARTS * n_ + j * PARTS;
        to[0] = std::real(x);
        if constexpr (PARTS == 2) to[1] = std::imag(x), to[n_] = -std::imag(x), to[n_ + 1] = std::real(x);
      }
    return made;
  }

  // Output `place` of this matrix <- the square
  bool write(int place, int64_t matrix, const Small& s) {
    std::vector<R> made;
    for (int64_t i = 0; i < n_; i += PARTS) made.insert(made.end(), s.begin() + i * n_, s.begin() + (i + 1) * n_);
    R* to = static_cast<R*>(frame_.buffer[place]) + matrix * int64_t(made.size());
    return rows_.write(to, made.data(), sizeof(R) * made.size());
  }

  Frame& frame_;
  TallRows<R>& rows_;
  int64_t m_, n_;              // n_ counts parts
  const R* from_ = nullptr;    // the rows as they are now
  Small last_, inverse_;       // R of the last round
  std::vector<int> exponent_;  // a column of A is 2^exponent times one of length 1 to 2
  std::vector<bool> zero_;
};

template <class T>
int tall_as(Frame& frame, const Direct& direct) {
  using R = decltype(std::real(T()));
  const auto rows = frame.device == CPU ? cpu_rows(R(), frame) : cuda_rows(R(), frame);
  if (!rows->ok()) return 1;
  for (int64_t matrix = 0; matrix < frame.size[0]; matrix++) {
    const Outcome outcome = Tall<T>(frame, *rows).run(matrix);
    if (outcome == FAILED) return 1;
    if (outcome == DONE) continue;
    Frame one = part_of(frame, matrix, 1);
    frame.engine = one.engine = direct.engine;
    if (direct.run(one)) return fail_as(frame, one);
  }
  return 0;
}

}  // namespace

const char* tall_refuses(const Frame& frame) {
  const int64_t m = frame.size[1], n = frame.size[2];
  if (frame.op == QR ? frame.size[3] != n : frame.op == SVD ? frame.size[3] != 0 : frame.op != SVDVALS && frame.op != LSTSQ)
    return "tall gives the reduced QR and the thin SVD of matrices with more rows than columns";
  if (m < n) return "tall takes matrices with more rows than columns";
  if (n > MOST_COLUMNS) return "tall takes up to 512 columns";
  if (m > INT32_MAX / 2) return "tall takes up to 2^30 rows";
  if (frame.op != LSTSQ && frame.buffer[0] && frame.buffer[0] == frame.buffer[1]) return "tall does not work in place";
  return nullptr;
}

bool tall_pays(const Frame& frame) {
  const int64_t m = frame.size[1], n = frame.size[2], width = frame.dtype >= C64 ? 2 * n : n;
  const int64_t least = frame.device == CPU ? LEAST_ELEMENTS_CPU : LEAST_ELEMENTS_GPU;
  if (frame.device == CPU && width < LEAST_COLUMNS_CPU) return false;
  if (frame.device != CPU && width > NARROW_GPU && m < LONG_GPU) return false;
  return m >= RATIO * n && m * width >= least;
}

int tall(Frame& frame, const Direct& direct) {
  return by_dtype(frame.dtype, [&](auto zero) { return tall_as<decltype(zero)>(frame, direct); });
}

int64_t tall_scratch(const Frame& frame) { return tall_device_bytes(frame); }

int64_t tall_host_bytes(const Frame& frame) {
  const int64_t n = frame.size[2], width = frame.dtype >= C64 ? 2 * n : n;
  const int64_t kept = frame.op == SVDVALS || frame.op == LSTSQ ? frame.size[1] * n * int64_t(size_of(frame.dtype)) : 0;
  return frame.device == CPU ? kept + 40 * 8 * width * width : 0;
}

}  // namespace lapwing
