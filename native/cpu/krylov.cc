// The vectors of the Krylov engine in host memory: products by LAPACK, those with the matrix by hermitian_product.h.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "cpu/hermitian_product.h"
#include "cpu/matrix.h"
#include "cpu/pages.h"
#include "cpu/threads.h"
#include "dtypes.h"
#include "lapack/fortran.h"
#include "methods/krylov_space.h"

namespace lapwing::krylov {
namespace {

constexpr int64_t TILE = 64;  // rows that are looked at or written at a time

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
      for (int64_t i = 0; i < k; i++) sum -= conjugated(g[i + k * n]) * g[i + j * n];
      g[k + j * n] = sum / root;
    }
  }
}

template <class T>
class CpuSpace : public Space<T> {
  using Real = RealOf<T>;
  using Space<T>::frame_, Space<T>::n_, Space<T>::scale_;

 public:
  using Space<T>::Space;

  bool copies_matrix() const override { return false; }  // the product reads the triangle where it lies

  char* reserve(size_t bytes) override {
    memory_ = huge_pages_of(bytes);
    return memory_.get();
  }

  double largest(const T* a) override {
    const bool upper = frame_.flags & UPPER;
    const int64_t pieces = (n_ + TILE - 1) / TILE;
    std::vector<double> maxima(size_t(pieces), 0.0);
    parallel(threads_for(frame_), pieces, 1, [&](int64_t piece, int64_t) {
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
      maxima[size_t(piece)] = most;
    });
    double most = 0;
    for (double x : maxima) most = larger(most, x);
    return most;
  }

  void load(const T* a, T*, double scale) override { dense_.use(a, n_, frame_.flags & UPPER, scale, threads_for(frame_)); }

  void gemm(bool a_adjoint, bool b_adjoint, int64_t m, int64_t n, int64_t k, Real alpha, const T* a, int64_t lda, const T* b,
            int64_t ldb, Real beta, T* c, int64_t ldc) override {
    lapack::gemm<T>(a_adjoint ? 'C' : 'N', b_adjoint ? 'C' : 'N', m, n, k, T(alpha), a, lda, b, ldb, T(beta), c, ldc);
  }
  void gram(bool adjoint, int64_t n, int64_t k, const T* a, int64_t lda, Real beta, T* c) override {
    const char op = adjoint ? PARTS_OF<T> == 2 ? 'C' : 'T' : 'N';
    lapack::call<T>(lapack::HERK, 'L', op, n, k, Real(1), a, lda, beta, c, n);
  }
  void widen(const T* from, int64_t lines, int64_t length, int64_t stride, WideOf<T>* to) override {
    parallel(threads_for(frame_), lines, 1 + (1 << 14) / length, [&](int64_t first, int64_t last) {
      for (int64_t line = first; line < last; line++) std::copy_n(from + line * stride, length, to + line * length);
    });
  }
  void narrow(const WideOf<T>* from, int64_t elements, T* to) override {
    std::transform(from, from + elements, to, [](WideOf<T> x) { return T(x); });
  }

  void normalise(T* x, int64_t columns, T* gram, Rank<Real> rank, uint64_t replacement, int32_t* dead) override {
    int32_t bad[PANEL];
    this->inner(x, columns, x, columns, gram, columns);
    cholesky_gram(gram, columns, rank, bad);
    lapack::call<T>(lapack::TRSM, 'R', 'U', 'N', 'N', n_, columns, T(1), gram, columns, x, n_);  // X <- X R^-1
    for (int64_t j = 0; j < columns; j++) {
      if (dead) dead[j] = bad[j];
      if (!bad[j]) continue;
      if (dead)
        std::fill_n(x + j * n_, n_, T(0));
      else
        random(x + j * n_, 1, replacement * PANEL + uint64_t(j));
    }
  }

  void random(T* x, int64_t columns, uint64_t seed) override {
    constexpr int64_t parts = sizeof(T) / sizeof(Real);
    const double scale = random_scale(n_);
    auto* part = reinterpret_cast<Real*>(x);
    for (int64_t k = 0; k < n_ * columns * parts; k++) part[k] = Real(random_number(seed, uint64_t(k)) * scale);
  }

  void residual(const T* y, T* ay, const std::vector<double>& theta, int64_t columns, double* norms) override {
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

  void recur(T* z, const T* ax, const T* x, double alpha, double beta, double gamma, int64_t columns) override {
    for (int64_t k = 0; k < n_ * columns; k++)
      z[k] = Real(alpha) * ax[k] + Real(beta) * x[k] + (gamma == 0 ? T(0) : Real(gamma) * z[k]);
  }

  double largest_of(const T* x, int64_t columns) override {
    double most = 0;
    for (int64_t k = 0; k < n_ * columns; k++) most = larger(most, size_of_element(x[k]));
    return most;
  }

  void move(void* to, const void* from, size_t bytes) override { std::memcpy(to, from, bytes); }
  void clear(int32_t* flags, int64_t count) override { std::fill_n(flags, count, 0); }
  void download(void* host, const void* from, size_t bytes) override { std::memcpy(host, from, bytes); }
  void upload(void* to, const void* host, size_t bytes) override { std::memcpy(to, host, bytes); }
  int64_t eigh_small(int64_t m, T* h, Real* w, T*, int64_t) override { return lapack::heevd(true, 'U', m, h, m, w); }

  // Nanoseconds of two threads of an AVX-512 machine, float64: LAPACK's subset routine takes 33 and 219 ms at n = 1000 and 2000,
  // 16 of a Wishart matrix of order 2000 take the iteration 240. Single precision gains more from half the bytes in LAPACK's
  // routine than in the steps. Only ratios matter.
  double direct_cost() const override { return (sizeof(Real) == 8 ? 0.02 : 0.013) * double(n_) * double(n_) * double(n_); }
  double step_cost(int64_t columns, int64_t size) const override {
    const double n = double(n_), c = double(columns);
    return product_cost(columns) + 0.2 * n * double(size) * c;
  }
  double product_cost(int64_t columns) const override { return 0.31 * double(n_) * double(n_) * std::ceil(double(columns) / 16); }
  double ritz_cost(int64_t size) const override { return 0.3 * double(size) * double(size) * double(size); }

 private:
  void multiply_matrix(const T* x, T* y, int64_t columns) override { dense_.multiply(x, y, columns); }

  void multiply_by_scale(T* y, int64_t elements) override {
    for (int64_t k = 0; k < elements; k++) y[k] *= scale_;
  }

  void write_vectors(const T* y, T* out, int64_t count, bool reversed) override {
    if (out && !y) fill_nan(out, n_ * count);
    if (!out || !y) return;
    for (int64_t first = 0; first < n_; first += TILE)
      for (int64_t j = 0; j < count; j++) {
        const T* column = y + (reversed ? count - 1 - j : j) * n_;
        for (int64_t i = first; i < std::min(n_, first + TILE); i++) out[i * count + j] = column[i];
      }
  }

  HermitianProduct<T> dense_;
  Pages memory_{nullptr, nullptr};
};

}  // namespace

#define LAPWING_SPACE(T)                                                                     \
  std::unique_ptr<Space<T>> cpu_space(T, Frame& frame, const Product* product) { \
    return std::make_unique<CpuSpace<T>>(frame, product);                                         \
  }
LAPWING_EACH_TYPE(LAPWING_SPACE)

}  // namespace lapwing::krylov
