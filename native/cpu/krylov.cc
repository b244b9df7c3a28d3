#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "methods/krylov_space.h"
#include "cpu/threads.h"

namespace lapwing::krylov {
namespace {

constexpr int64_t TILE = 64;  // rows that are looked at or written at a time

inline float conjugate(float x) { return x; }
inline double conjugate(double x) { return x; }
template <class R>
std::complex<R> conjugate(std::complex<R> x) {
  return std::conj(x);
}

// |x|, or something not finite when x is not
inline double size_of_element(float x) { return std::fabs(double(x)); }
inline double size_of_element(double x) { return std::fabs(x); }
template <class R>
double size_of_element(std::complex<R> x) {
  return std::fabs(double(x.real())) + std::fabs(double(x.imag()));
}

// Larger of the two; a NaN stays.
inline double larger(double a, double b) { return b > a || b != b ? b : a; }

// G <- R with R^H R = G in the upper triangle; a column whose pivot counts as zero becomes that of the identity.
template <class T, class Real>
void cholesky_gram(T* g, int64_t n, Rank<Real> rank, int32_t* bad) {
  for (int64_t k = 0; k < n; k++) {
    Real diagonal = std::real(g[k + k * n]), pivot = diagonal;
    for (int64_t i = 0; i < k; i++) pivot -= std::norm(g[i + k * n]);
    bad[k] = !(pivot > rank.floor && pivot > rank.relative * diagonal);
    if (bad[k]) {
      for (int64_t i = 0; i < k; i++) g[i + k * n] = T(0);
      for (int64_t j = k + 1; j < n; j++) g[k + j * n] = T(0);
      g[k + k * n] = T(1);
      continue;
    }
    Real root = std::sqrt(pivot);
    g[k + k * n] = T(root);
    for (int64_t j = k + 1; j < n; j++) {
      T sum = g[k + j * n];
      for (int64_t i = 0; i < k; i++) sum -= conjugate(g[i + k * n]) * g[i + j * n];
      g[k + j * n] = sum / root;
    }
  }
}

}  // namespace

template <class T>
int CpuSpace<T>::threads() const {
  return frame_.threads > 0 ? frame_.threads : allowed_threads();
}

template <class T>
int CpuSpace<T>::reserve(size_t bytes) {
  constexpr size_t PAGE = size_t(1) << 21;
  bytes = (bytes + PAGE - 1) / PAGE * PAGE;
  memory_ = {static_cast<char*>(std::aligned_alloc(PAGE, bytes)), std::free};
  if (!memory_) throw std::bad_alloc();
  madvise(memory_.get(), bytes, MADV_HUGEPAGE);  // first touching it in small pages takes as long as several products
  next_ = memory_.get();
  return 0;
}

template <class T>
double CpuSpace<T>::largest(const T* a) {
  const bool upper = frame_.flags & UPPER;
  const int64_t pieces = (n_ + TILE - 1) / TILE;
  std::vector<double> found(size_t(pieces), 0.0);
  parallel(threads(), pieces, 1, [&](int64_t piece, int64_t) {
    double most = 0;
    for (int64_t i = piece * TILE; i < std::min(n_, (piece + 1) * TILE); i++) {
      const T* row = a + i * n_;
      Real sum = 0, line = 0;
      for (int64_t j = upper ? i + 1 : 0, end = upper ? n_ : i; j < end; j++) {
        const Real size = Real(size_of_element(row[j]));
        line = size > line ? size : line;
        sum += size * Real(0);  // NaN as soon as one element is not finite
      }
      const Real diagonal = std::fabs(std::real(row[i]));
      most = larger(most, double(line) + double(sum));
      most = larger(most, double(diagonal) + double(diagonal * Real(0)));
    }
    found[size_t(piece)] = most;
  });
  double most = 0;
  for (double x : found) most = larger(most, x);
  return most;
}

template <class T>
void CpuSpace<T>::load(const T* a, T*, double scale) {
  dense_.use(a, n_, frame_.flags & UPPER, scale, threads());
}

template <class T>
void CpuSpace<T>::multiply(const T* x, T* y, int64_t columns) {
  if (!product_) return dense_.multiply(x, y, columns);
  if (product_->apply(product_->self, x, y, columns)) {
    failed_ = true;
    if (!frame_.error[0]) fail(frame_, "engine krylov: the product with the matrix failed");
    return;
  }
  if (scale_ != 1)
    for (int64_t k = 0; k < n_ * columns; k++) y[k] *= scale_;
}

template <class T>
void CpuSpace<T>::inner(const T* v, int64_t v_columns, const T* x, int64_t columns, T* c, int64_t ldc) {
  lapack::gemm<T>('C', 'N', v_columns, columns, n_, T(1), v, n_, x, n_, T(0), c, ldc);
}

template <class T>
void CpuSpace<T>::subtract(const T* v, int64_t v_columns, const T* c, int64_t ldc, T* x, int64_t columns) {
  lapack::gemm<T>('N', 'N', n_, columns, v_columns, T(-1), v, n_, c, ldc, T(1), x, n_);
}

template <class T>
void CpuSpace<T>::combine(const T* v, int64_t v_columns, const T* s, int64_t lds, T* y, int64_t columns) {
  lapack::gemm<T>('N', 'N', n_, columns, v_columns, T(1), v, n_, s, lds, T(0), y, n_);
}

template <class T>
void CpuSpace<T>::normalise(T* x, int64_t columns, T* gram, Rank<Real> rank, uint64_t replacement, int32_t* dead) {
  int32_t bad[PANEL];
  inner(x, columns, x, columns, gram, columns);
  cholesky_gram(gram, columns, rank, bad);
  lapack::solve_right<T>(n_, columns, gram, columns, x, n_);
  for (int64_t j = 0; j < columns; j++) {
    if (dead) dead[j] = bad[j];
    if (!bad[j]) continue;
    if (dead)
      std::fill_n(x + j * n_, n_, T(0));
    else
      random(x + j * n_, 1, replacement * PANEL + uint64_t(j));
  }
}

template <class T>
void CpuSpace<T>::random(T* x, int64_t columns, uint64_t seed) {
  constexpr int64_t parts = sizeof(T) / sizeof(Real);
  const double scale = 1 / (75674.0 * std::sqrt(double(n_)));  // standard deviation of random_number, length about 1
  auto* part = reinterpret_cast<Real*>(x);
  for (int64_t k = 0; k < n_ * columns * parts; k++) part[k] = Real(random_number(seed, uint64_t(k)) * scale);
}

template <class T>
void CpuSpace<T>::residual(const T* y, T* ay, const std::vector<double>& theta, int64_t columns, double* norms) {
  for (int64_t j = 0; j < columns; j++) {
    const Real t = Real(theta[size_t(j)]);
    const T* from = y + j * n_;
    T* to = ay + j * n_;
    double sum = 0;
    for (int64_t i = 0; i < n_; i++) {
      to[i] -= t * from[i];
      sum += double(std::norm(to[i]));
    }
    norms[j] = std::sqrt(sum);
  }
}

template <class T>
void CpuSpace<T>::copy(T* to, const T* from, int64_t columns) {
  std::memcpy(static_cast<void*>(to), from, sizeof(T) * size_t(n_ * columns));
}

template <class T>
double CpuSpace<T>::largest_of(const T* x, int64_t columns) {
  double most = 0;
  for (int64_t k = 0; k < n_ * columns; k++) most = larger(most, size_of_element(x[k]));
  return most;
}

template <class T>
void CpuSpace<T>::to_host(T* host, const T* from, int64_t count) {
  std::memcpy(static_cast<void*>(host), from, sizeof(T) * size_t(count));
}

template <class T>
void CpuSpace<T>::to_host(int32_t* host, const int32_t* from, int64_t count) {
  std::memcpy(host, from, sizeof(int32_t) * size_t(count));
}

template <class T>
void CpuSpace<T>::to_space(T* to, const T* host, int64_t count) {
  std::memcpy(static_cast<void*>(to), host, sizeof(T) * size_t(count));
}

template <class T>
void CpuSpace<T>::clear(int32_t* flags, int64_t count) {
  std::fill_n(flags, count, 0);
}

template <class T>
void CpuSpace<T>::write(int64_t m, const T* y, const std::vector<double>& w, bool reversed) {
  const bool vectors = frame_.op == EIGH;
  const int64_t count = frame_.size[3];
  auto* values = static_cast<Real*>(frame_.buffer[1]) + m * count;
  auto* info = static_cast<int32_t*>(frame_.buffer[vectors ? 3 : 2]) + m;
  T* out = vectors ? static_cast<T*>(frame_.buffer[2]) + m * n_ * count : nullptr;
  *info = y ? 0 : 1;
  const Real nan = std::numeric_limits<Real>::quiet_NaN();
  for (int64_t j = 0; j < count; j++) values[j] = y ? Real(w[size_t(reversed ? count - 1 - j : j)]) : nan;
  if (!vectors) return;
  if (!y) {
    std::fill_n(reinterpret_cast<Real*>(out), n_ * count * int64_t(sizeof(T) / sizeof(Real)), nan);
    return;
  }
  for (int64_t first = 0; first < n_; first += TILE)
    for (int64_t j = 0; j < count; j++) {
      const T* column = y + (reversed ? count - 1 - j : j) * n_;
      for (int64_t i = first; i < std::min(n_, first + TILE); i++) out[i * count + j] = column[i];
    }
}

// Nanoseconds of two threads of a 2.3 GHz AVX-512 machine, float64: scipy's subset routine at n = 4000 takes 2556 ms, the
// product about 5 ms for every 16 columns, the small problem 5.4 ms at 256. Only ratios matter.
template <class T>
double CpuSpace<T>::direct_cost() const {
  return 0.04 * double(n_) * double(n_) * double(n_);
}

template <class T>
double CpuSpace<T>::step_cost(int64_t columns, int64_t size) const {
  const double n = double(n_), c = double(columns);
  return 0.31 * n * n * std::ceil(c / 16) + 0.2 * n * double(size) * c;
}

template <class T>
double CpuSpace<T>::ritz_cost(int64_t size) const {
  return 0.3 * double(size) * double(size) * double(size);
}

template class CpuSpace<float>;
template class CpuSpace<double>;
template class CpuSpace<std::complex<float>>;
template class CpuSpace<std::complex<double>>;

}  // namespace lapwing::krylov
