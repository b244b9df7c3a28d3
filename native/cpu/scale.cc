#include "cpu/scale.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <limits>
#include <vector>

#include "cpu/cpu.h"
#include "dtypes.h"
#include "operations.h"

namespace lapwing {
namespace {

// ---- one number

template <class R>
struct Range {
  static constexpr int least = std::numeric_limits<R>::min_exponent, most = std::numeric_limits<R>::max_exponent;
  static constexpr int digits = std::numeric_limits<R>::digits;
};

template <class R>
class PowerOfTwo {
 public:
  explicit PowerOfTwo(int exponent) : exponent_(exponent) {
    one_factor_ = exponent >= Range<R>::least && exponent < Range<R>::most;
    factor_ = one_factor_ ? std::ldexp(R(1), exponent) : R(0);
  }
  R operator*(R x) const { return one_factor_ ? x * factor_ : std::ldexp(x, exponent_); }
  std::complex<R> operator*(std::complex<R> x) const { return {*this * x.real(), *this * x.imag()}; }

 private:
  int exponent_;
  bool one_factor_;
  R factor_;
};

// The largest and the smallest size of elements; zeros and NaN do not count.
template <class R>
struct Extent {
  R most = 0, least = std::numeric_limits<R>::infinity();

  void add(R x) {
    x = std::abs(x);
    if (x > most) most = x;
    if (x > 0 && x < least) least = x;
  }
  void add(std::complex<R> x) { add(x.real()), add(x.imag()); }

  // The power of two that brings the largest element near one, or as near as leaves the smallest one a normal number.
  int exponent() const {
    if (!(most > 0) || std::isinf(most)) return 0;
    int top = 0, bottom = 0;
    std::frexp(most, &top);
    std::frexp(least, &bottom);
    return top <= 0 ? -top : std::min(0, std::max(-top, Range<R>::least - bottom));
  }
};

// ---- which elements an operation reads, and how far they may lie from one

bool one_triangle(const Frame& frame) {
  switch (frame.op) {
    case CHOLESKY: case EIGH: case EIGVALSH: case TRIANGULAR: case CHOLESKY_SOLVE: case LU_SOLVE: return true;
    default: return frame.flags & POS;
  }
}

// Where the matrix is, and where its right-hand sides are; 0: there are none.
int matrix_place(const Frame& frame) { return frame.op == LU_SOLVE || frame.op == CHOLESKY_SOLVE; }
int sides_place(const Frame& frame) {
  switch (frame.op) {
    case TRIANGULAR: case SOLVE: case LSTSQ: return 1;
    case CHOLESKY_SOLVE: return 2;
    case LU_SOLVE: return 3;
    default: return 0;
  }
}

int64_t sides_of(const Frame& frame) { return frame.size[frame.op == LSTSQ ? 3 : 2]; }

template <class T>
struct Look {
  using R = RealOf<T>;

  explicit Look(const Frame& frame)
      : rows(frame.size[1]), columns(is_rectangular(frame.op) ? frame.size[2] : rows), triangle(one_triangle(frame)),
        upper(frame.op == LU_SOLVE || (frame.flags & UPPER)), unit(frame.op == TRIANGULAR && (frame.flags & UNIT)),
        self_adjoint(frame.op == CHOLESKY || frame.op == EIGH || frame.op == EIGVALSH || (frame.flags & POS)) {
    // Spectra, reflections, divisions of complex numbers and two solves with one Cholesky factor square the elements, the
    // rest multiplies them by what is small or has the size of a condition number. The tall engine scales its own columns.
    const bool spectrum = is_rectangular(frame.op) || frame.op == EIGH || frame.op == EIGVALSH;
    const bool squares = frame.engine != TALL && (PARTS_OF<T> == 2 || spectrum || frame.op == CHOLESKY_SOLVE);
    const int room = squares ? Range<R>::most / 2 - 32 : Range<R>::most - Range<R>::digits - 16;
    low = std::ldexp(R(1), -room);
    high = std::ldexp(R(1), room);
  }

  bool ordinary(R size) const { return size >= low && size <= high; }
  static R size(T x) { return std::max(std::abs(std::real(x)), std::abs(std::imag(x))); }

  // A few elements of the diagonal: any of ordinary size will do, unless another is huge.
  bool suspect(const T* a) const {
    constexpr int64_t LOOKS = 4;
    const int64_t n = std::min(rows, columns), step = std::max<int64_t>(1, n / LOOKS);
    R most = 0;
    for (int64_t i = 0; i < n; i += step) most = std::max(most, size(a[i * (columns + 1)]));
    return !ordinary(most);
  }
  bool suspect_sides(const T* b, int64_t k) const {
    R most = 0;
    for (int64_t i = 0; i < k; i += std::max<int64_t>(1, k / 4)) most = std::max(most, size(b[i]));
    return !ordinary(most);
  }

  // The exponent of the power of two that the matrix is to be multiplied by.
  int exponent(const T* a) const {
    if (unit || !suspect(a)) return 0;
    Extent<R> extent;
    for (int64_t i = 0; i < rows; i++)
      for (int64_t j = triangle && upper ? i : 0; j < (triangle && !upper ? i + 1 : columns); j++)
        if (i == j && self_adjoint) extent.add(std::real(a[i * columns + j]));
        else extent.add(a[i * columns + j]);
    return ordinary(extent.most) ? 0 : extent.exponent();
  }

  // The same for each column of right-hand sides.
  void exponents(const T* b, int64_t k, int* powers) const {
    std::vector<Extent<R>> extent(static_cast<size_t>(k));
    for (int64_t i = 0; i < rows; i++)
      for (int64_t j = 0; j < k; j++) extent[size_t(j)].add(b[i * k + j]);
    for (int64_t j = 0; j < k; j++) powers[j] = ordinary(extent[size_t(j)].most) ? 0 : extent[size_t(j)].exponent();
  }

  int64_t rows, columns;
  bool triangle, upper, unit, self_adjoint;
  R low, high;
};

// ---- a few matrices at a time

template <class T>
class Part {
  using R = RealOf<T>;

 public:
  Part(const Frame& whole, int64_t first, int64_t count)
      : frame(part_of(whole, first, count)), look_(whole), count_(count) {}

  // Copies of the matrices and of their right-hand sides take the place of those in the frame; false: all are ordinary.
  bool scale_in() {
    const int place = matrix_place(frame), sides = sides_place(frame);
    const int64_t size = look_.rows * look_.columns, k = sides_of(frame);
    const T* a = static_cast<const T*>(frame.buffer[place]);
    bool any = false;
    exponent_.resize(size_t(count_));
    for (int64_t m = 0; m < count_; m++) any |= (exponent_[size_t(m)] = exponent(a + m * size)) != 0;
    if (sides) {
      const T* b = static_cast<const T*>(frame.buffer[sides]);
      side_exponent_.resize(size_t(count_ * k));
      for (int64_t m = 0; m < count_; m++)
        look_.exponents(b + m * look_.rows * k, k, side_exponent_.data() + m * k);
      any |= std::any_of(side_exponent_.begin(), side_exponent_.end(), [](int e) { return e != 0; });
    }
    if (!any) return false;
    matrices_.assign(a, a + count_ * size);
    for (int64_t m = 0; m < count_; m++) {
      const int e = exponent_[size_t(m)];
      if (e && frame.op == LU_SOLVE) scale_upper(matrices_.data() + m * size, e);
      else if (e) scale(matrices_.data() + m * size, size, e);
    }
    frame.buffer[place] = matrices_.data();
    frame.exponents = exponent_.data();
    if (sides) {
      const T* b = static_cast<const T*>(frame.buffer[sides]);
      sides_.assign(b, b + count_ * look_.rows * k);
      for (int64_t m = 0; m < count_; m++) scale_columns(sides_.data() + m * look_.rows * k, m, 0, 1);
      frame.buffer[sides] = sides_.data();
    }
    return true;
  }

  void scale_out() {
    const int64_t n = frame.size[1], k = frame.size[2], c = frame.size[3], least = std::min(n, k);
    for (int64_t m = 0; m < count_; m++) {
      const int e = exponent_[size_t(m)];
      switch (frame.op) {
        case TRIANGULAR: case SOLVE: scale_columns(at<T>(2, m, n * k), m, e, -1); continue;
        case LU_SOLVE: scale_columns(at<T>(4, m, n * k), m, e, -1); continue;
        case CHOLESKY_SOLVE: scale_columns(at<T>(3, m, n * k), m, 2 * e, -1); continue;
        case LSTSQ:
          scale_columns(at<T>(2, m, k * c), m, e, -1, k);
          for (int64_t j = 0; j < c; j++) scale(at<R>(3, m, c) + j, 1, -2 * side_exponent_[size_t(m * c + j)]);
          continue;
        default: break;
      }
      if (!e) continue;
      switch (frame.op) {
        case CHOLESKY: scale(at<T>(1, m, n * n), n * n, -e / 2); break;
        case INVERSE: scale(at<T>(1, m, n * n), n * n, e); break;
        case EIGH: case EIGVALSH: scale(at<R>(1, m, c), c, -e); break;
        case LU: scale_upper(at<T>(1, m, n * n), -e); break;
        case QR: scale(at<T>(2, m, c * k), c * k, -e); break;
        case QR_R: scale(at<T>(1, m, least * k), least * k, -e); break;
        case QR_RAW:  // row j of h holds the first j + 1 elements of column j of R
          for (int64_t j = 0; j < k; j++) scale(at<T>(1, m, k * n) + j * n, std::min(j + 1, n), -e);
          break;
        case SVD: scale(at<R>(2, m, least), least, -e); break;
        case SVDVALS: scale(at<R>(1, m, least), least, -e); break;
        case SVD_PART: scale(at<R>(2, m, c), c, -e); break;
        default: break;  // determinants come with their own power of two
      }
    }
  }

  Frame frame;

 private:
  template <class U>
  U* at(int place, int64_t m, int64_t size) const { return static_cast<U*>(frame.buffer[place]) + m * size; }

  int exponent(const T* a) const {
    const int e = look_.exponent(a);
    return frame.op == CHOLESKY ? e - e % 2 : e;  // half of it is the factor's
  }

  template <class U>
  static void scale(U* x, int64_t count, int e) {
    const PowerOfTwo<R> power(e);
    for (int64_t i = 0; i < count; i++) x[i] = power * x[i];
  }
  void scale_upper(T* a, int e) const {
    for (int64_t i = 0; i < look_.rows; i++) scale(a + i * look_.rows + i, look_.rows - i, e);
  }
  // column j by 2^(e + sign times its own exponent)
  void scale_columns(T* x, int64_t m, int e, int sign) const { scale_columns(x, m, e, sign, look_.rows); }
  void scale_columns(T* x, int64_t m, int e, int sign, int64_t rows) const {
    const int64_t k = sides_of(frame);
    for (int64_t j = 0; j < k; j++) {
      const int total = e + sign * side_exponent_[size_t(m * k + j)];
      if (!total) continue;
      const PowerOfTwo<R> power(total);
      for (int64_t i = 0; i < rows; i++) x[i * k + j] = power * x[i * k + j];
    }
  }

  Look<T> look_;
  int64_t count_;
  std::vector<int> exponent_, side_exponent_;
  std::vector<T> matrices_, sides_;
};

template <class T>
bool any_suspect(const Frame& frame) {
  // Small matrices are looked at here and there in a large batch: a line of each would be most of a pass.
  constexpr int64_t SMALL = 32, LOOKS = 64;
  const Look<T> look(frame);
  const int64_t batch = frame.size[0], size = look.rows * look.columns, k = sides_of(frame);
  const int64_t step = look.rows < SMALL ? std::max<int64_t>(1, batch / LOOKS) : 1;
  const int sides = sides_place(frame);
  const T* a = static_cast<const T*>(frame.buffer[matrix_place(frame)]);
  const T* b = sides ? static_cast<const T*>(frame.buffer[sides]) : nullptr;
  for (int64_t m = 0; m < batch; m += step)
    if ((!look.unit && look.suspect(a + m * size)) || (b && look.suspect_sides(b + m * look.rows * k, look.rows * k)))
      return true;
  return false;
}

}  // namespace

bool may_be_extreme(const Frame& frame) {
  if (frame.device != CPU || frame.op == FINITE || frame.op == HERMITIAN) return false;
  if (frame.op == EIG || frame.op == EIGVALS || frame.op == SCHUR) return false;  // both engines scale matrices themselves
  return by_dtype(frame.dtype, [&](auto zero) { return any_suspect<decltype(zero)>(frame); });
}

int run_scaled(Frame& frame, int (*run)(Frame&)) {
  return by_dtype(frame.dtype, [&](auto zero) {
    typedef decltype(zero) T;
    constexpr int64_t PART_BYTES = 1 << 22;  // of copies at a time, or one matrix
    const int64_t batch = frame.size[0], n = frame.size[1];
    const int64_t bytes = int64_t(sizeof(T)) * n * (n + frame.size[2]), step = std::max<int64_t>(1, PART_BYTES / bytes);
    for (int64_t first = 0; first < batch; first += step) {
      Part<T> part(frame, first, std::min(step, batch - first));
      const bool scaled = part.scale_in();
      const int status = run(part.frame);
      frame.engine = part.frame.engine;
      if (status) return fail_as(frame, part.frame);
      if (scaled) part.scale_out();
    }
    return 0;
  });
}

}  // namespace lapwing
