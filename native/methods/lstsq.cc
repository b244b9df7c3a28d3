#include "methods/lstsq.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <limits>
#include <vector>

#include "cpu/matrix.h"
#include "dtypes.h"
#include "lapack/fortran.h"
#include "methods/random.h"

namespace lapwing {
namespace {

// ---- is the rank full? -------------------------------------------------------------------------------------------------

template <class T>
double norm_of(const T* x, int64_t count) {
  double sum = 0;
  for (int64_t i = 0; i < count; i++) sum += std::norm(x[i]);
  return std::sqrt(sum);
}

// A column-major upper triangle, whose columns are read one after the other whatever is solved or multiplied.
template <class T>
struct Upper {
  const T* r;
  int64_t n, ld;

  const T* column(int64_t j) const { return r + j * ld; }

  static T dot(const T* a, const T* b, int64_t count) {  // a^H b
    constexpr int64_t LANES = 8;
    T sum[LANES] = {}, total = 0;
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES)
      for (int64_t lane = 0; lane < LANES; lane++) sum[lane] += conjugated(a[i + lane]) * b[i + lane];
    for (; i < count; i++) total += conjugated(a[i]) * b[i];
    for (T lane : sum) total += lane;
    return total;
  }
  static void add(T* y, const T* a, T by, int64_t count) {
    for (int64_t i = 0; i < count; i++) y[i] += by * a[i];
  }

  void solve(T* z) const {  // z <- R^-1 z
    for (int64_t j = n - 1; j >= 0; j--) add(z, column(j), -(z[j] /= column(j)[j]), j);
  }
  void solve_adjoint(T* z) const {  // z <- R^-H z
    for (int64_t j = 0; j < n; j++) z[j] = (z[j] - dot(column(j), z, j)) / conjugated(column(j)[j]);
  }
  void multiply(T* z) const {  // z <- R z
    for (int64_t j = 0; j < n; j++) {
      const T by = z[j];
      add(z, column(j), by, j);
      z[j] = by * column(j)[j];
    }
  }
  void multiply_adjoint(T* z) const {  // z <- R^H z
    for (int64_t j = n - 1; j >= 0; j--) z[j] = dot(column(j), z, j + 1);
  }
  double frobenius() const {
    double sum = 0;
    for (int64_t j = 0; j < n; j++) sum += std::real(dot(column(j), column(j), j + 1));
    return std::sqrt(sum);
  }
};

// z <- z / |z|; |z|
template <class T>
double normalise(std::vector<T>& z) {
  const double size = norm_of(z.data(), int64_t(z.size()));
  for (T& x : z) x *= RealOf<T>(1 / size);
  return size;
}

}  // namespace

double rank_vector(int64_t i) { return krylov::random_number(7, uint64_t(i)) / krylov::RANDOM_DEVIATION; }

double rcond_of(const Frame& frame) {
  double rcond;
  std::memcpy(&rcond, &frame.size[4], sizeof rcond);
  const double eps = frame.dtype % 2 ? std::numeric_limits<double>::epsilon() : double(std::numeric_limits<float>::epsilon());
  return std::isnan(rcond) ? eps * double(std::max(frame.size[1], frame.size[2])) : rcond;
}

template <class T>
bool has_full_rank(const T* r, int64_t n, int64_t ld, double rcond) {
  constexpr int ROUNDS = 4;
  constexpr double CLOSE_MARGIN = 4;  // after so many rounds
  const Upper<T> upper{r, n, ld};
  std::vector<T> z(static_cast<size_t>(n));
  const auto start = [&] {
    for (int64_t i = 0; i < n; i++) z[size_t(i)] = T(RealOf<T>(rank_vector(i)));
  };
  start();
  double inverse = 0;
  for (int round = 0; round < ROUNDS; round++) {
    // |R^-1 z| / |z| of a z that leans towards the smallest singular value
    upper.solve_adjoint(z.data());
    if (!(normalise(z) < std::numeric_limits<double>::infinity())) return false;  // z is 0 or NaN now, and proves nothing
    upper.solve(z.data());
    inverse = normalise(z);
    if (round == 0 && upper.frobenius() * inverse * RANK_MARGIN * rcond < 1) return true;
    if (!(inverse < std::numeric_limits<double>::infinity())) return false;
  }
  start();
  double largest = 0;
  for (int round = 0; round < ROUNDS; round++) {
    upper.multiply_adjoint(z.data());
    normalise(z);
    upper.multiply(z.data());
    largest = normalise(z);
  }
  return largest * inverse * CLOSE_MARGIN * rcond < 1;
}

template <class T>
void solve_upper(const T* r, int64_t n, int64_t ld, T* z, bool adjoint) {
  adjoint ? Upper<T>{r, n, ld}.solve_adjoint(z) : Upper<T>{r, n, ld}.solve(z);
}

#define LAPWING_INSTANTIATE(T)                                    \
  template bool has_full_rank(const T*, int64_t, int64_t, double); \
  template void solve_upper(const T*, int64_t, int64_t, T*, bool);
LAPWING_EACH_TYPE(LAPWING_INSTANTIATE)
#undef LAPWING_INSTANTIATE

// ---- the others --------------------------------------------------------------------------------------------------------

namespace {

template <class T>
struct Arrays {
  explicit Arrays(const Frame& frame)
      : frame(frame), m(frame.size[1]), n(frame.size[2]), k(frame.size[3]), least(std::min(m, n)) {}
  T* of(int place, int64_t at, int64_t size) const { return static_cast<T*>(frame.buffer[place]) + at * size; }
  RealOf<T>* residuals(int64_t at) const { return static_cast<RealOf<T>*>(frame.buffer[3]) + at * k; }
  int32_t& rank(int64_t at) const { return static_cast<int32_t*>(frame.buffer[4])[at]; }
  int32_t& info(int64_t at) const { return static_cast<int32_t*>(frame.buffer[5])[at]; }

  // ||b - A x||^2 for each column
  void measure(int64_t at) const {
    std::vector<T> left(of(1, at, m * k), of(1, at, m * k) + m * k);
    multiply('N', m, n, T(-1), of(2, at, n * k), of(0, at, m * n), n, left.data());
    std::fill_n(residuals(at), k, RealOf<T>(0));
    for (int64_t i = 0; i < m; i++)
      for (int64_t c = 0; c < k; c++) residuals(at)[c] += std::norm(left[size_t(i * k + c)]);
  }
  // C (rows x k) <- C + alpha A B for 'N', A (rows x depth) with rows of length ld; 'C': A^H, A being depth x rows. Row-major.
  void multiply(char op, int64_t rows, int64_t depth, T alpha, const T* b, const T* a, int64_t ld, T* c) const {
    if (lapack::routine(lapack::GEMM, frame.dtype).address) {
      if (k && rows && depth) lapack::gemm('N', op, k, rows, depth, alpha, b, k, a, ld, T(1), c, k);
      return;
    }
    for (int64_t i = 0; i < rows; i++)
      for (int64_t j = 0; j < depth; j++)
        for (int64_t s = 0; s < k; s++) c[i * k + s] += alpha * (op == 'C' ? conjugated(a[j * ld + i]) : a[i * ld + j]) * b[j * k + s];
  }

  const Frame& frame;
  const int64_t m, n, k, least;
};

// The SVD of some matrices of an LSTSQ frame, and x from it.
template <class T>
class BySvd {
  using Real = RealOf<T>;

 public:
  BySvd(const Frame& frame, std::vector<int64_t> matrices) : at_(frame), matrices_(std::move(matrices)) {
    const auto count = int64_t(matrices_.size());
    a_.resize(size_t(count * at_.m * at_.n)), u_.resize(size_t(count * at_.m * at_.least));
    vh_.resize(size_t(count * at_.least * at_.n)), s_.resize(size_t(count * at_.least)), info_.resize(size_t(count));
  }

  int run(Frame& frame, int (*svd)(Frame&)) {
    const int64_t m = at_.m, n = at_.n, count = int64_t(matrices_.size());
    for (int64_t i = 0; i < count; i++) std::copy_n(at_.of(0, matrices_[size_t(i)], m * n), m * n, a_.data() + i * m * n);
    Frame inner = frame;
    inner.op = SVD, inner.engine = AUTO, inner.exponents = nullptr, inner.flags &= LENT;
    const int64_t size[] = {count, m, n, 0, 0, 0};
    std::copy_n(size, 6, inner.size);
    void* buffer[] = {a_.data(), u_.data(), s_.data(), vh_.data(), info_.data(), nullptr, nullptr, nullptr};
    std::copy_n(buffer, 8, inner.buffer);
    if (svd(inner)) return fail_as(frame, inner);
    for (int64_t i = 0; i < count; i++) give(i);
    return 0;
  }

 private:
  // x <- V S^+ U^H b
  void give(int64_t i) {
    const int64_t m = at_.m, n = at_.n, k = at_.k, least = at_.least, at = matrices_[size_t(i)];
    T* x = at_.of(2, at, n * k);
    if ((at_.info(at) = info_[size_t(i)] != 0)) {
      fill_nan(x, n * k);
      fill_nan(at_.residuals(at), k);
      at_.rank(at) = 0;
      return;
    }
    const T *u = u_.data() + i * m * least, *vh = vh_.data() + i * least * n, *b = at_.of(1, at, m * k);
    const Real* s = s_.data() + i * least;
    const double limit = rcond_of(at_.frame) * double(s[0]);
    int32_t rank = 0;
    while (rank < least && double(s[rank]) > limit) rank++;
    at_.rank(at) = rank;
    std::vector<T> y(size_t(rank * k));
    at_.multiply('C', rank, m, T(1), b, u, least, y.data());
    for (int64_t j = 0; j < rank; j++)
      for (int64_t c = 0; c < k; c++) y[size_t(j * k + c)] /= s[j];
    std::fill_n(x, n * k, T(0));
    at_.multiply('C', n, rank, T(1), y.data(), vh, n, x);
    at_.measure(at);
  }

  const Arrays<T> at_;
  std::vector<int64_t> matrices_;
  std::vector<T> a_, u_, vh_;
  std::vector<Real> s_;
  std::vector<int32_t> info_;
};

template <class T>
int finish_by_svd(Frame& frame, int (*svd)(Frame&)) {
  constexpr int64_t PART_BYTES = 1 << 24;  // of copies at a time, or one matrix
  const Arrays<T> at(frame);
  const int64_t batch = frame.size[0], step = std::max<int64_t>(1, PART_BYTES / int64_t(sizeof(T)) / (at.m * at.n));
  std::vector<int64_t> doubtful;
  for (int64_t i = 0; i < batch; i++) {
    if (at.rank(i) == UNPROVEN) doubtful.push_back(i);
    if (doubtful.empty() || (int64_t(doubtful.size()) < step && i + 1 < batch)) continue;
    if (BySvd<T>(frame, std::move(doubtful)).run(frame, svd)) return 1;
    doubtful.clear();
  }
  return 0;
}

template <class T>
int by_factors(Frame& frame, int (*qr)(Frame&)) {
  const Arrays<T> at(frame);
  const int64_t m = at.m, n = at.n, k = at.k;
  lapack::Room<T> q(m * n), r(n * n), turned(n * n);
  for (int64_t i = 0; i < frame.size[0]; i++) {
    Frame inner = frame;
    inner.op = QR, inner.exponents = nullptr, inner.flags &= LENT;
    const int64_t size[] = {1, m, n, n, 0, 0};
    std::copy_n(size, 6, inner.size);
    void* buffer[] = {at.of(0, i, m * n), static_cast<T*>(q), static_cast<T*>(r), nullptr, nullptr, nullptr, nullptr, nullptr};
    std::copy_n(buffer, 8, inner.buffer);
    if (qr(inner)) return fail_as(frame, inner);
    at.info(i) = 0;
    at.rank(i) = UNPROVEN;
    for (int64_t row = 0; row < n; row++)
      for (int64_t j = 0; j < n; j++) turned[j * n + row] = r[row * n + j];
    if (!has_full_rank<T>(turned, n, n, rcond_of(frame))) continue;
    at.rank(i) = int32_t(n);
    // x <- R^-1 Q^H b; to the library the rows of x are columns, and R is R^T
    T* x = at.of(2, i, n * k);
    std::fill_n(x, n * k, T(0));
    at.multiply('C', n, m, T(1), at.of(1, i, m * k), q, n, x);
    if (k) lapack::call<T>(lapack::TRSM, 'R', 'L', 'N', 'N', k, n, T(1), static_cast<T*>(r), n, x, k);
    at.measure(i);
  }
  return 0;
}

}  // namespace

int lstsq(Frame& frame, int (*by_qr)(Frame&), int (*svd)(Frame&)) {
  if (by_qr(frame)) return 1;
  return by_dtype(frame.dtype, [&](auto zero) { return finish_by_svd<decltype(zero)>(frame, svd); });
}

int lstsq_by_factors(Frame& frame, int (*qr)(Frame&)) {
  return by_dtype(frame.dtype, [&](auto zero) { return by_factors<decltype(zero)>(frame, qr); });
}

}  // namespace lapwing
