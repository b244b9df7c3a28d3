// Mixed precision on the CPU: the factor by LAPACK, row-major, the products and the narrow triangular solves here.
#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu/cpu.h"
#include "cpu/hermitian_product.h"
#include "cpu/matrix.h"
#include "cpu/pages.h"
#include "cpu/threads.h"
#include "lapack/fortran.h"
#include "lapack/lapack.h"
#include "methods/mixed_space.h"
#include "methods/storage.h"

#define LAPWING_KERNELS "cpu/mixed_rows.h"
#include "cpu/levels.h"

namespace lapwing::mixed {
namespace {

constexpr int64_t ROWS = 128;   // of a diagonal block of a triangular solve
constexpr int64_t PIECE = 64;   // rows or tiles that a thread takes at a time
constexpr int64_t GROUP = 4;    // columns that share one pass over the factor
constexpr int64_t NARROW = 32;  // more columns go to the library, which packs the triangle first: 48 ms at n = 4000
constexpr int64_t LANES = 16;   // partial sums of a dot product

double size_of_element(double x) { return std::abs(x); }
double size_of_element(std::complex<double> x) { return std::max(std::abs(x.real()), std::abs(x.imag())); }

// The larger of the two, or NaN
double larger(double a, double b) { return b > a || !(b == b) ? b : a; }

// 2^e with x 2^e in [1/2, 2)
double inverse_power(double x) { return std::ldexp(1.0, -std::ilogb(x)); }

bool usable(double x) { return x >= 0x1p-1000 && x <= 0x1p1000; }

double squared(double x) { return x * x; }
double squared(std::complex<double> x) { return std::norm(x); }

// The largest |part| of an element; not finite when one is not
template <class T>
double largest_part(const T* x, int64_t count) {
  const auto* part = reinterpret_cast<const double*>(x);
  double most[LANES] = {}, bad[LANES] = {};
  int64_t i = 0;
  count *= int64_t(sizeof(T) / sizeof(double));
  for (; i + LANES <= count; i += LANES)
    for (int64_t t = 0; t < LANES; t++) {
      const double size = std::abs(part[i + t]);
      most[t] = most[t] > size ? most[t] : size;
      bad[t] += part[i + t] * 0;  // the comparison passes over NaN
    }
  double all = 0;
  for (; i < count; i++) all = larger(all, std::abs(part[i]));
  for (int64_t t = 0; t < LANES; t++) all = larger(larger(all, most[t]), bad[t]);
  return all;
}

// Of by x, which is around 1
template <class T>
double sum_of_squares(const T* x, int64_t count, double by) {
  using R = RealOf<T>;
  const auto* part = reinterpret_cast<const R*>(x);
  double lanes[LANES] = {}, sum = 0;
  int64_t i = 0;
  count *= int64_t(sizeof(T) / sizeof(R));
  for (; i + LANES <= count; i += LANES)
    for (int64_t t = 0; t < LANES; t++) lanes[t] += squared(double(part[i + t]) * by);
  for (; i < count; i++) sum += squared(double(part[i]) * by);
  for (double lane : lanes) sum += lane;
  return sum;
}

template <class T>
T product_term(T a, T x) {
  return a * x;
}
template <class R>
std::complex<R> product_term(std::complex<R> a, std::complex<R> x) {  // without the detour for Inf
  return {a.real() * x.real() - a.imag() * x.imag(), a.real() * x.imag() + a.imag() * x.real()};
}

// sums[q] <- the row times each of COUNT columns, `stride` apart, in an order that depends on the length alone
template <class T, int COUNT>
void dots(const T* row, const T* x, int64_t stride, int64_t length, T* sums) {
  if constexpr (std::is_floating_point_v<T>) {
    LAPWING_WIDEST(row_dots<T, COUNT>(row, x, stride, length, sums));
  } else {
    T lanes[COUNT][LANES] = {};
    int64_t j = 0;
    for (; j + LANES <= length; j += LANES)
      for (int q = 0; q < COUNT; q++)
        for (int64_t t = 0; t < LANES; t++) lanes[q][t] += product_term(row[j + t], x[q * stride + j + t]);
    for (int q = 0; q < COUNT; q++) {
      T sum = 0;
      for (int64_t l = j; l < length; l++) sum += product_term(row[l], x[q * stride + l]);
      for (const T& lane : lanes[q]) sum += lane;
      sums[q] = sum;
    }
  }
}

template <class T>
void dots(const T* row, const T* x, int64_t stride, int64_t length, int64_t count, T* sums) {
  switch (count) {
    case 1: return dots<T, 1>(row, x, stride, length, sums);
    case 2: return dots<T, 2>(row, x, stride, length, sums);
    case 3: return dots<T, 3>(row, x, stride, length, sums);
    default: return dots<T, 4>(row, x, stride, length, sums);
  }
}

// y <- y - by[0] row 0 - ... - by[COUNT - 1] row COUNT - 1
template <int COUNT, class T>
void subtract_rows(const T* rows, int64_t ld, const T* by, int64_t length, T* y) {
  if constexpr (std::is_floating_point_v<T>) {
    LAPWING_WIDEST(subtract_rows<T, COUNT>(rows, ld, by, length, y));
  } else {
    for (int r = 0; r < COUNT; r++)
      for (int64_t j = 0; j < length; j++) y[j] -= product_term(by[r], rows[r * ld + j]);
  }
}

// Triangles of order n at m[i*n + j], `count` columns at a time. Blocks of ROWS rows: what the rows owe to the columns that
// are known is summed by all threads, the rest by one.
template <class S>
struct Triangle {
  const S* m;
  int64_t n;
  int threads;

  // X <- L^-1 X, or X <- U^-1 X from the last row on
  template <bool LOWER, bool UNIT>
  void solve(S* x, int64_t count) const {
    for (int64_t done = 0; done < n; done += ROWS) {
      const int64_t rows = std::min(ROWS, n - done), top = LOWER ? done : n - done - rows;
      const int64_t from = LOWER ? 0 : top + rows;  // the known part has `done` elements
      parallel(done * rows < 65536 ? 1 : threads, rows, ROWS / 4, [&](int64_t first, int64_t last) {
        S sums[GROUP];
        for (int64_t i = top + first; i < top + last; i++) {
          dots(m + i * n + from, x + from, n, done, count, sums);
          for (int64_t q = 0; q < count; q++) x[q * n + i] -= sums[q];
        }
      });
      S sums[GROUP];
      for (int64_t r = 0; r < rows; r++) {
        const int64_t i = LOWER ? top + r : top + rows - 1 - r, start = LOWER ? top : i + 1;
        dots(m + i * n + start, x + start, n, r, count, sums);
        for (int64_t q = 0; q < count; q++) {
          S& at = x[q * n + i];
          at = UNIT ? at - sums[q] : (at - sums[q]) / m[i * n + i];
        }
      }
    }
  }

  // X <- L^-T X: a row of L is a column there, so what is found is taken from the rest at once
  void solve_transposed(S* x, int64_t count) const {
    constexpr int STEP = 8;
    for (int64_t end = n; end > 0;) {
      const int64_t begin = (end - 1) / ROWS * ROWS;
      for (int64_t i = end - 1; i >= begin; i--)
        for (int64_t q = 0; q < count; q++) {
          x[q * n + i] /= m[i * n + i];
          subtract_rows<1>(m + i * n + begin, n, x + q * n + i, i - begin, x + q * n + begin);
        }
      // columns in pieces that stay in the first cache over all rows of the block
      parallel(begin * ROWS < 65536 ? 1 : threads, begin, 512, [&](int64_t first, int64_t last) {
        int64_t i = begin;
        for (; i + STEP <= end; i += STEP)
          for (int64_t q = 0; q < count; q++)
            subtract_rows<STEP>(m + i * n + first, n, x + q * n + i, last - first, x + q * n + first);
        for (; i < end; i++)
          for (int64_t q = 0; q < count; q++)
            subtract_rows<1>(m + i * n + first, n, x + q * n + i, last - first, x + q * n + first);
      });
      end = begin;
    }
  }
};

// X <- op(A)^-1 X for a column-major triangle
template <class S>
void trsm(char triangle, char op, char diagonal, const S* a, int64_t n, S* x, int64_t columns) {
  lapack::call<S>(lapack::TRSM, 'L', triangle, op, diagonal, n, columns, S(1), a, n, x, n);
}

// A <- L U with rows interchanged, column-major; 0-based pivots
template <class S>
int64_t getrf(S* a, int64_t n, int64_t* pivots) {
  int64_t info = 0;
  const lapack::Integers found(n, lapack::width_of<S>(lapack::GETRF));
  lapack::call<S>(lapack::GETRF, n, n, a, n, found.data(), &info);
  for (int64_t i = 0; i < n; i++) pivots[i] = found[i] - 1;
  return info;
}

template <class T>
struct Storage {
  LowOf<T> *low, *side;  // the factor, and one block
  T *b, *x, *r, *scaled, *v, *z;
  double *row, *column;  // R and C
  int64_t* pivots;

  template <class Take>
  void take(const Shape& shape, Take take) {
    low = take(LowOf<T>(), shape.n * shape.n);
    side = take(LowOf<T>(), shape.block());
    for (T** one : {&b, &x, &r, &scaled}) *one = take(T(), shape.block());
    v = take(T(), shape.block() * (shape.cycle + 1));
    z = take(T(), shape.block() * shape.cycle);
    for (double** one : {&row, &column}) *one = take(double(), shape.n);
    pivots = take(int64_t(), shape.n);
  }
};

template <class T>
class CpuSpace : public Space<T> {
  using Low = LowOf<T>;
  using Base = Space<T>;
  using Base::frame_, Base::shape_, Base::a_, Base::exponent_, Base::norm_, Base::unfit;
  using Base::b_, Base::x_, Base::r_, Base::v_, Base::z_, Base::scaled_;

 public:
  CpuSpace(Frame& frame, const Shape& shape) : Base(frame, shape), memory_(pages_of(storage_bytes<Storage<T>>(shape))) {
    Storage<T> at;
    cut(memory_.get(), at, shape);
    low_ = at.low, side_ = at.side, row_ = at.row, column_ = at.column, pivots_ = at.pivots;
    b_ = at.b, x_ = at.x, r_ = at.r, v_ = at.v, z_ = at.z, scaled_ = at.scaled;
  }

  // ---- in ----------------------------------------------------------------------------------------------------------

  Verdict load(const Frame& one) override {
    const int64_t n = shape_.n, k = shape_.columns;
    a_ = static_cast<const T*>(one.buffer[0]);
    const auto* b = static_cast<const T*>(one.buffer[1]);
    const Verdict verdict = shape_.positive ? load_positive(a_) : load_general(a_);
    if (verdict != GOOD) return verdict;
    if (!(norm_ > 0) || !std::isfinite(norm_)) return unfit("an element is not finite");
    // B <- R B, each column scaled to a largest element around 1
    for (int64_t q = 0; q < k; q++) {
      double most = 0;
      for (int64_t i = 0; i < n; i++) most = larger(most, size_of_element(b[i * k + q] * row_[i]));
      if (!this->set_exponent(q, most)) return unfit("the right-hand side is out of range");
      const double by = std::ldexp(1.0, -exponent_[size_t(q)]);
      for (int64_t i = 0; i < n; i++) b_[q * n + i] = b[i * k + q] * row_[i] * by;
    }
    std::fill_n(x_, shape_.block(), T(0));
    return GOOD;
  }

  // The lower triangle of D A D, whose diagonal is around 1: |a_ij|^2 < a_ii a_jj keeps the rest below 2.
  Verdict load_positive(const T* a) {
    const int64_t n = shape_.n;
    for (int64_t i = 0; i < n; i++) {
      const double d = std::real(a[i * n + i]);
      if (!usable(d)) return unfit("the diagonal is not positive, or out of range");
      const int e = std::ilogb(d);
      row_[i] = column_[i] = std::ldexp(1.0, -(e >= 0 ? e / 2 : -(-e / 2)));
    }
    const int64_t tiles = (n + PIECE - 1) / PIECE;
    std::vector<double> sums(size_t(tiles), 0);
    parallel(threads_for(frame_), tiles, 1, [&](int64_t tile, int64_t) {
      const int64_t top = tile * PIECE, bottom = std::min(n, top + PIECE);
      double off = 0, diagonal = 0;
      for (int64_t left = 0; left < bottom; left += PIECE)
        for (int64_t i = top; i < bottom; i++) {
          const double by = row_[i];
          Low* to = low_ + i * n;
          const int64_t end = std::min(i, left + PIECE);
          if (shape_.upper)
            for (int64_t j = left; j < end; j++) to[j] = Low(conjugated(a[j * n + i]) * by * column_[j]);
          else
            for (int64_t j = left; j < end; j++) to[j] = Low(a[i * n + j] * by * column_[j]);
        }
      for (int64_t i = top; i < bottom; i++) {
        const double value = std::real(a[i * n + i]) * row_[i] * row_[i];
        diagonal += squared(value);
        low_[i * n + i] = Low(float(value));
        off += sum_of_squares(low_ + i * n, i, 1);
      }
      sums[size_t(tile)] = 2 * off + diagonal;
    });
    double total = 0;
    for (double s : sums) total += s;
    norm_ = std::sqrt(total);
    hermitian_.use(a, n, shape_.upper, 1, threads_for(frame_));
    return GOOD;
  }

  // R A C: rows, then columns, to a largest element around 1.
  Verdict load_general(const T* a) {
    const int64_t n = shape_.n;
    std::vector<double> squares(size_t(n), 0);  // of the rows that are scaled
    parallel(threads_for(frame_), n, PIECE, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; i++) {
        row_[i] = largest_part(a + i * n, n);
        if (usable(row_[i])) squares[size_t(i)] = sum_of_squares(a + i * n, n, inverse_power(row_[i]));
      }
    });
    double most = 0;
    for (int64_t i = 0; i < n; i++) {
      if (!usable(row_[i])) return unfit("a row is zero, not finite, or out of range");
      most = std::max(most, row_[i]);
      row_[i] = inverse_power(row_[i]);
    }
    shift_ = std::ilogb(most);
    whole_ = 0;
    for (int64_t i = 0; i < n; i++) whole_ += squares[size_t(i)] * squared(std::ldexp(1 / row_[i], -shift_));
    whole_ = std::sqrt(whole_);
    parallel(threads_for(frame_), n, 512, [&](int64_t first, int64_t last) {  // columns, in pieces that a cache holds
      std::fill(column_ + first, column_ + last, 0.0);
      for (int64_t i = 0; i < n; i++)
        for (int64_t j = first; j < last; j++) column_[j] = std::max(column_[j], size_of_element(a[i * n + j]) * row_[i]);
    });
    smallest_row_ = std::numeric_limits<double>::infinity();
    largest_column_ = 0;
    for (int64_t i = 0; i < n; i++) {
      if (!usable(column_[i])) return unfit("a column is zero");
      column_[i] = inverse_power(column_[i]);
      smallest_row_ = std::min(smallest_row_, row_[i]);
      largest_column_ = std::max(largest_column_, column_[i]);
    }
    parallel(threads_for(frame_), n, PIECE, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; i++) {
        const double by = row_[i];
        Low* to = low_ + i * n;
        for (int64_t j = 0; j < n; j++) to[j] = Low(a[i * n + j] * by * column_[j]);
        squares[size_t(i)] = sum_of_squares(to, n, 1);
      }
    });
    norm_ = 0;
    for (double s : squares) norm_ += s;
    norm_ = std::sqrt(norm_);
    return GOOD;
  }

  Verdict factor() override {
    const int64_t n = shape_.n;
    if (shape_.positive) {
      int32_t info = 0;
      Frame inner;
      inner.op = CHOLESKY;
      inner.dtype = dtype_of<Low>();
      inner.threads = frame_.threads;
      inner.size[0] = 1;
      inner.size[1] = n;
      inner.buffer[0] = inner.buffer[1] = low_;
      inner.buffer[2] = &info;
      inner.interrupted = frame_.interrupted;
      if (lapack::cholesky(inner)) return fail_as(frame_, inner), FAILED;
      return info ? unfit("it is not positive definite in low precision") : GOOD;
    }
    // the library sees A^T = P L U, so A = U^T L^T P^T
    return getrf(low_, n, pivots_) ? unfit("it is singular in low precision") : GOOD;
  }

  // ---- steps -------------------------------------------------------------------------------------------------------

  void multiply(const T* x, T* y) override {
    const int64_t n = shape_.n, k = shape_.columns;
    for (int64_t q = 0; q < k; q++)
      for (int64_t i = 0; i < n; i++) scaled_[q * n + i] = x[q * n + i] * column_[i];
    if (shape_.positive) {
      hermitian_.multiply(scaled_, y, k);
    } else if (k <= 2 * GROUP) {
      parallel(threads_for(frame_), n, PIECE, [&](int64_t first, int64_t last) {
        T sums[GROUP];
        for (int64_t i = first; i < last; i++)
          for (int64_t q = 0; q < k; q += GROUP) {
            const int64_t count = std::min(GROUP, k - q);
            dots(a_ + i * n, scaled_ + q * n, n, n, count, sums);
            for (int64_t c = 0; c < count; c++) y[(q + c) * n + i] = sums[c];
          }
      });
    } else {
      lapack::gemm<T>('T', 'N', n, k, n, T(1), a_, n, scaled_, n, T(0), y, n);
    }
    for (int64_t q = 0; q < k; q++)
      for (int64_t i = 0; i < n; i++) y[q * n + i] *= row_[i];
  }

  void precondition(const T* v, T* z) override {
    const int64_t n = shape_.n, k = shape_.columns;
    // LAPACK's column-major U = L^T has U^H U = conj(A) for a Hermitian matrix, so the library gets the vectors conjugated; here
    // L^-1 takes them as they are and L^-T what is conjugated between.
    const bool library = k > NARROW, conjugate_in = shape_.positive && library;
    for (int64_t e = 0; e < n * k; e++) side_[e] = Low(conjugate_in ? conjugated(v[e]) : v[e]);
    if (!library) {
      const Triangle<Low> triangle{low_, n, threads_for(frame_)};
      for (int64_t q = 0; q < k; q += GROUP) {
        const int64_t count = std::min(GROUP, k - q);
        triangle.template solve<true, false>(side_ + q * n, count);
        if (shape_.positive) {
          for (int64_t e = q * n; e < (q + count) * n; e++) side_[e] = conjugated(side_[e]);
          triangle.solve_transposed(side_ + q * n, count);
        } else {
          triangle.template solve<false, true>(side_ + q * n, count);
        }
      }
    } else if (shape_.positive) {
      trsm('U', 'C', 'N', low_, n, side_, k);
      trsm('U', 'N', 'N', low_, n, side_, k);
    } else {
      trsm('U', 'T', 'N', low_, n, side_, k);
      trsm('L', 'T', 'U', low_, n, side_, k);
    }
    if (!shape_.positive)
      for (int64_t q = 0; q < k; q++)
        for (int64_t i = n - 1; i >= 0; i--) std::swap(side_[q * n + i], side_[q * n + pivots_[i]]);
    for (int64_t e = 0; e < n * k; e++) z[e] = shape_.positive ? conjugated(T(side_[e])) : T(side_[e]);
  }

  void inner(const T* blocks, int64_t count, const T* w, T* c) override {
    const int64_t n = shape_.n, k = shape_.columns;
    parallel(n * k * count < 262144 ? 1 : threads_for(frame_), count * k, 1, [&](int64_t e, int64_t) {
      const T *x = blocks + e * n, *y = w + e % k * n;
      T lanes[LANES] = {};
      for (int64_t i = 0; i < n; i += LANES)
        for (int64_t t = 0; t < std::min(LANES, n - i); t++) lanes[t] += product_term(conjugated(x[i + t]), y[i + t]);
      T sum = 0;
      for (const T& lane : lanes) sum += lane;
      c[e] = sum;
    });
  }

  void add(const T* blocks, int64_t count, const T* c, T* w) override {
    const int64_t n = shape_.n, k = shape_.columns;
    parallel(n * k * count < 262144 ? 1 : threads_for(frame_), k, 1, [&](int64_t q, int64_t) {
      for (int64_t i = 0; i < count; i++) {
        const T by = c[i * k + q], *from = blocks + (i * k + q) * n;
        T* to = w + q * n;
        for (int64_t r = 0; r < n; r++) to[r] += product_term(by, from[r]);
      }
    });
  }

  void scale(const T* from, const double* by, T* to) override {
    const int64_t n = shape_.n;
    for (int64_t q = 0; q < shape_.columns; q++)
      for (int64_t i = 0; i < n; i++) to[q * n + i] = by[q] == 0 ? T(0) : from[q * n + i] * by[q];
  }

  // ||R^-1 r|| / (||A|| ||C x||)
  void true_ratios(const T* r, const T* x, double* ratios) override {
    const int64_t n = shape_.n;
    if (shape_.positive) return Base::true_ratios(r, x, ratios);
    for (int64_t q = 0; q < shape_.columns; q++) {
      double left = 0, size = 0;
      for (int64_t i = 0; i < n; i++) {
        left += squared(r[q * n + i] * (smallest_row_ / row_[i]));
        size += squared(x[q * n + i] * (column_[i] / largest_column_));
      }
      // the factors that were left out are powers of two
      const int e = -std::ilogb(smallest_row_) - std::ilogb(largest_column_) - shift_;
      ratios[q] = left == 0 ? 0 : std::ldexp(std::sqrt(left) / (whole_ * std::sqrt(size)), e);
    }
  }

  void write(Frame& one) override {
    const int64_t n = shape_.n, k = shape_.columns;
    auto* x = static_cast<T*>(one.buffer[2]);
    for (int64_t q = 0; q < k; q++)
      for (int64_t i = 0; i < n; i++) {
        const T value = x_[q * n + i] * column_[i];
        if constexpr (std::is_same_v<T, double>)
          x[i * k + q] = std::ldexp(value, exponent_[size_t(q)]);
        else
          x[i * k + q] = {std::ldexp(value.real(), exponent_[size_t(q)]), std::ldexp(value.imag(), exponent_[size_t(q)])};
      }
    *static_cast<int32_t*>(one.buffer[3]) = 0;
  }

 private:
  HermitianProduct<T> hermitian_;
  Pages memory_;
  Low *low_, *side_;       // the factor, and one block
  double *row_, *column_;  // R and C
  int64_t* pivots_;
  double whole_ = 0, smallest_row_ = 1, largest_column_ = 1;
  int shift_ = 0;  // whole_ is the norm of 2^-shift A
};

}  // namespace

#define LAPWING_SPACE(T)                                                              \
  size_t cpu_bytes(T, const Shape& shape) { return storage_bytes<Storage<T>>(shape); } \
  std::unique_ptr<Space<T>> cpu_space(T, Frame& frame, const Shape& shape) { \
    return std::make_unique<CpuSpace<T>>(frame, shape);                                    \
  }
LAPWING_SPACE(double)
LAPWING_SPACE(std::complex<double>)

}  // namespace lapwing::mixed
