#include "tall.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <vector>

#include "dtypes.h"
#include "tall_cuda.h"
#include "tall_pass.h"
#include "tall_small.h"
#include "vendor.h"

namespace lapwing {
namespace {

using tall_small::Square;

// Below these sizes the direct routine is as fast. Measured on two cores of Sapphire Rapids (2026-11).
constexpr int64_t LEAST_ELEMENTS_CPU = 1 << 15, LEAST_ELEMENTS_GPU = 1 << 20;
constexpr int64_t RATIO = 8;            // rows to columns
constexpr int64_t MOST_COLUMNS = 512;   // R is decomposed on the host

constexpr int MOST_ROUNDS = 7;  // 2 are usual, 3 at a condition of 1e10, 4 or 5 where A is singular
constexpr double EPS = std::numeric_limits<double>::epsilon();
constexpr double NOISE = 4;  // units in the last place of a column of length one

enum Outcome { DONE, LEFT, FAILED };
enum Kind { ORTHOGONAL, SAFE, SHIFTED, HOPELESS };

double scaled(double x, int exponent) { return std::ldexp(x, exponent); }
std::complex<double> scaled(std::complex<double> x, int exponent) {
  return {std::ldexp(x.real(), exponent), std::ldexp(x.imag(), exponent)};
}

// One matrix. G, R and all that is small are in double precision also where the rows are not: G then sees angles down to the
// precision of the rows, and the first R is nearly the last.
template <class T>
class Tall {
  using R = decltype(std::real(T()));
  static constexpr int64_t PARTS = sizeof(T) / sizeof(R);
  using C = std::conditional_t<PARTS == 2, std::complex<double>, double>;
  using Small = Square<C>;
  static constexpr double ROW_EPS = std::numeric_limits<R>::epsilon();
  // Powers of two a column may be scaled by, such that its quotients by pivots stay clear of over- and underflow.
  static constexpr int MOST_EXPONENT = sizeof(R) == 8 ? 900 : 100;

 public:
  Tall(Frame& frame, TallRows<R>& rows) : frame_(frame), rows_(rows), m_(frame.size[1]), n_(frame.size[2]), last_(n_), inverse_(n_) {}

  Outcome run(int64_t matrix) {
    const int64_t elements = m_ * n_ * PARTS;
    from_ = static_cast<const R*>(frame_.buffer[0]) + matrix * elements;
    R* out = frame_.op == SVDVALS ? nullptr : static_cast<R*>(frame_.buffer[1]) + matrix * elements;
    R* kept = rows_.room(out);
    std::vector<double> sums(size_t(n_ * n_ * PARTS * PARTS));
    TallPass<R> sum = pass(nullptr);
    sum.gram = sums.data();
    if (!rows_.pass(sum)) return FAILED;
    Small g = gram_of(sums), total = tall_small::identity<C>(n_);
    if (const Outcome outcome = scale_columns(g, sums); outcome != DONE) return outcome;
    for (int round = 0; round < MOST_ROUNDS; round++) {
      const bool first = round == 0, replaced = first && std::count(zero_.begin(), zero_.end(), true);
      const Kind kind = factor(g);
      if (kind == HOPELESS) return LEFT;
      total = last_ * total;
      if (kind == ORTHOGONAL && !replaced) return finish(matrix, first, total, out);
      // X <- (X + noise) R^-1, and its G
      const std::vector<double> r = embedded(first ? unscaled(last_) : last_), noise = noise_of(first);
      TallPass<R> solve = pass(kept);
      solve.factor = r.data();
      solve.noise = kind == SHIFTED || replaced ? noise.data() : nullptr;
      solve.gram = sums.data();
      if (!rows_.pass(solve)) return FAILED;
      from_ = kept;
      g = gram_of(sums);
    }
    return LEFT;
  }

 private:
  TallPass<R> pass(R* to) const {
    TallPass<R> made;
    made.rows = m_, made.columns = n_ * PARTS, made.from = from_, made.to = to;
    return made;
  }

  // The upper triangle of X^H X from that of the real matrix with the parts side by side
  Small gram_of(const std::vector<double>& sums) const {
    const int64_t width = n_ * PARTS;
    auto sum = [&](int64_t i, int64_t j) { return sums[size_t(i * width + j)]; };
    Small g(n_);
    for (int64_t j = 0; j < n_; j++)
      for (int64_t i = 0; i <= j; i++) {
        if constexpr (PARTS == 1)
          g(i, j) = sum(i, j);
        else if (i == j)
          g(i, j) = sum(2 * i, 2 * i) + sum(2 * i + 1, 2 * i + 1);
        else
          g(i, j) = {sum(2 * i, 2 * j) + sum(2 * i + 1, 2 * j + 1), sum(2 * i, 2 * j + 1) - sum(2 * i + 1, 2 * j)};
      }
    return g;
  }

  // The square that multiplies rows with the parts side by side as S multiplies complex ones; row-major
  static std::vector<double> embedded(const Small& s) {
    const int64_t width = s.n * PARTS;
    std::vector<double> made(size_t(width * width));
    for (int64_t i = 0; i < s.n; i++)
      for (int64_t j = 0; j < s.n; j++) {
        double* at = made.data() + i * PARTS * width + j * PARTS;
        at[0] = std::real(s(i, j));
        if constexpr (PARTS == 2) at[1] = s(i, j).imag(), at[width] = -s(i, j).imag(), at[width + 1] = s(i, j).real();
      }
    return made;
  }

  // G <- D G D with D of powers of two and lengths from 1 to 2; a column of zeros gets a one, noise will fill it.
  Outcome scale_columns(Small& g, std::vector<double>& sums) {
    exponent_.assign(size_t(n_), 0);
    zero_.assign(size_t(n_), false);
    const double least = std::ldexp(1.0, -MOST_EXPONENT), most = std::ldexp(1.0, MOST_EXPONENT);
    bool extreme = false;
    for (int64_t j = 0; j < n_; j++) extreme = extreme || !(std::real(g(j, j)) > least && std::real(g(j, j)) < most);
    if (extreme && sizeof(R) == 8) {  // squares of doubles may over- or underflow
      std::vector<double> largest(size_t(n_ * PARTS)), by(size_t(n_ * PARTS), 1.0);
      if (!rows_.largest(pass(nullptr), largest.data())) return FAILED;
      for (int64_t j = 0; j < n_; j++) {
        const double size = *std::max_element(largest.begin() + j * PARTS, largest.begin() + (j + 1) * PARTS);
        if (!std::isfinite(size)) return LEFT;
        if (size == 0) continue;
        const int exponent = std::ilogb(size);
        if (std::abs(exponent) > MOST_EXPONENT) return LEFT;
        exponent_[size_t(j)] = exponent;
        std::fill_n(by.begin() + j * PARTS, PARTS, std::ldexp(1.0, -exponent));
      }
      TallPass<R> sum = pass(nullptr);
      sum.scale = by.data(), sum.gram = sums.data();
      if (!rows_.pass(sum)) return FAILED;
      g = gram_of(sums);
    }
    std::vector<int> more(size_t(n_), 0);
    for (int64_t j = 0; j < n_; j++) {
      const double square = std::real(g(j, j));
      if (!std::isfinite(square)) return LEFT;
      zero_[size_t(j)] = square == 0;
      if (square == 0) {
        g(j, j) = C(1);
        continue;
      }
      more[size_t(j)] = int(std::floor(std::ilogb(square) / 2.0));
      exponent_[size_t(j)] += more[size_t(j)];
      if (std::abs(exponent_[size_t(j)]) > MOST_EXPONENT) return LEFT;
    }
    for (int64_t j = 0; j < n_; j++)
      for (int64_t i = 0; i <= j; i++) g(i, j) = scaled(g(i, j), -more[size_t(i)] - more[size_t(j)]);
    return DONE;
  }

  // R D^-1: the factor for the columns as they came
  Small unscaled(Small r) const {
    for (int64_t j = 0; j < n_; j++)
      for (int64_t i = 0; i < n_; i++) r(i, j) = scaled(r(i, j), exponent_[size_t(j)]);
    return r;
  }

  std::vector<double> noise_of(bool first) const {
    const double unit = 1 / std::sqrt(double(m_ * PARTS));
    std::vector<double> noise(size_t(n_ * PARTS), NOISE * ROW_EPS * unit);
    for (int64_t j = 0; first && j < n_; j++)
      std::fill_n(noise.begin() + j * PARTS, PARTS, std::ldexp(zero_[size_t(j)] ? unit : NOISE * ROW_EPS * unit, exponent_[size_t(j)]));
    return noise;
  }

  // R with R^H R = G, or G + shift, and R^-1. What G is told apart by is |R^-1|^2, the sum of the reciprocal eigenvalues.
  Kind factor(const Small& g) {
    for (const C& x : g.data)
      if (!std::isfinite(std::real(x)) || !std::isfinite(std::imag(x))) return HOPELESS;
    double most = 0;
    for (int64_t j = 0; j < n_; j++) most = std::max(most, std::real(g(j, j)));
    // G is off by a few eps: |R^-1|^2 times that is the loss of orthogonality after this step
    const double fine = 2.0 * double(n_), safe = std::min(1 / (256 * EPS), std::pow(0.02 / ROW_EPS, 2));
    last_ = g;
    Kind kind = SHIFTED;
    if (last_.factor()) {
      invert();
      double size = 0;
      for (const C& x : inverse_.data) size += std::norm(x);
      kind = size <= fine ? ORTHOGONAL : size <= safe ? SAFE : SHIFTED;
    }
    double shift = 16.0 * double(n_) * EPS * most;
    for (int attempt = 0; kind == SHIFTED; attempt++, shift *= 100) {
      last_ = g;
      for (int64_t j = 0; j < n_; j++) last_(j, j) += shift;
      if (last_.factor()) break;
      if (attempt == 3) return HOPELESS;
    }
    return kind;
  }

  // R is what the rows will meet, rounded as they are.
  void invert() {
    inverse_ = tall_small::inverse(last_);
  }

  Outcome finish(int64_t matrix, bool first, const Small& total, R* out) {
    Small r = unscaled(total);
    for (int64_t j = 0; j < n_; j++)
      for (int64_t i = 0; zero_[size_t(j)] && i <= j; i++) r(i, j) = C(0);
    TallPass<R> last = pass(out);
    if (frame_.op == QR) {
      // Q <- X R^-1
      const std::vector<double> square = embedded(first ? unscaled(last_) : last_);
      last.factor = square.data();
      if (!rows_.pass(last)) return FAILED;
      return write<T>(2, matrix, r, n_ * n_) ? DONE : FAILED;
    }
    const bool vectors = frame_.op == SVD;
    std::vector<double> s(size_t(n_), 0.0);
    Small u(vectors ? n_ : 0), vh(vectors ? n_ : 0);
    if (tall_small::svd(n_, r.data.data(), s.data(), vectors ? u.data.data() : nullptr, vectors ? vh.data.data() : nullptr))
      return LEFT;
    if (vectors) {
      // U <- X (R^-1 U of R): this R is close to the identity, so nothing is lost
      Small w = inverse_ * u;
      for (int64_t j = 0; first && j < n_; j++)
        for (int64_t i = 0; i < n_; i++) w(i, j) = scaled(w(i, j), -exponent_[size_t(i)]);
      const std::vector<double> square = embedded(w);
      last.product = square.data();
      if (!rows_.pass(last) || !write<T>(3, matrix, vh, n_ * n_)) return FAILED;
    }
    return write_values(vectors ? 2 : 1, matrix, s) ? DONE : FAILED;
  }

  // Output `place` of this matrix <- S, row-major
  template <class E>
  bool write(int place, int64_t matrix, const Small& s, int64_t count) {
    std::vector<E> made(static_cast<size_t>(count));
    for (int64_t i = 0; i < n_; i++)
      for (int64_t j = 0; j < n_; j++) {
        if constexpr (PARTS == 1)
          made[size_t(i * n_ + j)] = E(s(i, j));
        else
          made[size_t(i * n_ + j)] = E(R(s(i, j).real()), R(s(i, j).imag()));
      }
    return rows_.write(static_cast<E*>(frame_.buffer[place]) + matrix * count, made.data(), sizeof(E) * size_t(count));
  }

  bool write_values(int place, int64_t matrix, const std::vector<double>& s) {
    const std::vector<R> made(s.begin(), s.end());
    const int32_t good = 0;
    return rows_.write(static_cast<R*>(frame_.buffer[place]) + matrix * n_, made.data(), sizeof(R) * made.size()) &&
           rows_.write(static_cast<int32_t*>(frame_.buffer[frame_.op == SVD ? 4 : 2]) + matrix, &good, sizeof good);
  }

  Frame& frame_;
  TallRows<R>& rows_;
  int64_t m_, n_;
  const R* from_ = nullptr;      // the rows as they are now
  Small last_, inverse_;         // of the last round
  std::vector<int> exponent_;    // a column of A is 2^exponent times one of length 1 to 2
  std::vector<bool> zero_;
};

// The frame of one matrix of a batch
Frame frame_of(const Frame& frame, int64_t matrix) {
  Frame one = frame;
  const size_t size = size_of(frame.dtype), real = frame.dtype >= C64 ? size / 2 : size;
  const size_t m = size_t(frame.size[1]), n = size_t(frame.size[2]);
  auto skip = [&](int place, size_t bytes) { one.buffer[place] = static_cast<char*>(one.buffer[place]) + bytes * size_t(matrix); };
  one.size[0] = 1;
  skip(0, m * n * size);
  if (frame.op != SVDVALS) skip(1, m * n * size);
  if (frame.op == QR) skip(2, n * n * size);
  if (frame.op == SVD) skip(2, n * real), skip(3, n * n * size), skip(4, 4);
  if (frame.op == SVDVALS) skip(1, n * real), skip(2, 4);
  return one;
}

template <class T>
int tall_as(Frame& frame, int (*direct)(Frame&)) {
  TallRows<decltype(std::real(T()))> rows(frame);
  if (!rows.ok()) return 1;
  for (int64_t matrix = 0; matrix < frame.size[0]; matrix++) {
    const Outcome outcome = Tall<T>(frame, rows).run(matrix);
    if (outcome == FAILED) return 1;
    if (outcome == DONE) continue;
    Frame one = frame_of(frame, matrix);
    if (!direct(one)) continue;
    frame.out_of_memory = one.out_of_memory;
    return fail(frame, "%s", one.error);
  }
  return 0;
}

}  // namespace

bool tall_fits(const Frame& frame) {
  const int64_t m = frame.size[1], n = frame.size[2], width = frame.dtype >= C64 ? 2 * n : n;
  const int64_t least = frame.device == CPU ? LEAST_ELEMENTS_CPU : LEAST_ELEMENTS_GPU;
  if (m < RATIO * n || m * width < least || n > MOST_COLUMNS || m > INT32_MAX / 2) return false;
  if (frame.op == QR ? frame.size[3] != n : frame.op == SVD ? frame.size[3] != 0 : frame.op != SVDVALS) return false;
  if (frame.buffer[0] && frame.buffer[0] == frame.buffer[1]) return false;
  if (frame.device == CUDA && (vendor::missing(vendor::blas) || vendor::missing(vendor::compiler))) return false;
  return tall_small::has_routines(frame.dtype >= C64 ? C128 : F64);
}

int tall(Frame& frame, int (*direct)(Frame&)) {
  return by_dtype(frame.dtype, [&](auto zero) { return tall_as<decltype(zero)>(frame, direct); });
}

int64_t tall_scratch(const Frame& frame) {
  return cuda::tall_bytes(frame);
}

int64_t tall_host_bytes(const Frame& frame) {
  const int64_t n = frame.size[2], width = frame.dtype >= C64 ? 2 * n : n;
  const int64_t kept = frame.op == SVDVALS ? frame.size[1] * n * int64_t(size_of(frame.dtype)) : 0;
  return frame.device == CPU ? kept + 40 * 8 * width * width : 0;
}

}  // namespace lapwing
