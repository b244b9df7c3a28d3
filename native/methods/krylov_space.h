// The two places where the Krylov engine keeps its vectors. A space supplies storage and products; the algorithm in
// krylov.cc knows nothing else of the device. Vectors are contiguous, blocks of them column-major with leading dimension n;
// small matrices are column-major too and live in the space unless "host" is said.
#pragma once
#include <complex>
#include <cstdint>
#include <memory>
#include <vector>

#include "lapack/blas.h"
#include "frame.h"
#include "cpu/hermitian_product.h"
#include "methods/krylov.h"

namespace lapwing::krylov {

using lapack::RealOf;

constexpr int64_t PANEL = 64;  // columns that are orthonormalised at a time: the order of the largest Cholesky factor

// Four 16-bit numbers of a hashed counter, added: close to normal, exact in every type, the same on every device.
inline double random_number(uint64_t seed, uint64_t index) {
  uint64_t z = (seed << 40) + index + 0x9e3779b97f4a7c15u * (seed + 1);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  z ^= z >> 31;
  return double(int64_t(z & 0xffff) + int64_t(z >> 16 & 0xffff) + int64_t(z >> 32 & 0xffff) + int64_t(z >> 48) - 131070);
}

// How a pivot of the Gram matrix is taken for zero: at or below `floor`, or below `relative` times its diagonal.
template <class Real>
struct Rank {
  Real floor, relative;
};

template <class T>
class CpuSpace {
 public:
  using Real = RealOf<T>;
  using Scalar = T;
  static constexpr Device DEVICE = CPU;
  static constexpr bool FULL_COPY = false;  // the product reads the triangle where it lies

  CpuSpace(Frame& frame, const Product* product) : frame_(frame), n_(frame.size[1]), product_(product) {}

  // Storage: all of it at once, then handed out piece by piece.
  int reserve(size_t bytes);
  template <class E>
  E* take(int64_t count) {
    auto* start = reinterpret_cast<E*>(next_);
    next_ += (sizeof(E) * size_t(count) + 255) / 256 * 256;
    return start;
  }

  void lend(double*, int32_t*) {}  // room for what a device hands to the host

  // The largest |element| of the named triangle; not finite when an element is not.
  double largest(const T* a);
  // The products are with scale A from here on. A space that needs the matrix in full finds room for it in c.
  void load(const T* a, T* c, double scale);
  void rescale(double scale) { scale_ = Real(scale); }  // of a matrix known by its product

  void multiply(const T* x, T* y, int64_t columns);                                              // Y <- A X
  void inner(const T* v, int64_t v_columns, const T* x, int64_t columns, T* c, int64_t ldc);     // C <- V^H X
  void subtract(const T* v, int64_t v_columns, const T* c, int64_t ldc, T* x, int64_t columns);  // X <- X - V C
  void combine(const T* v, int64_t v_columns, const T* s, int64_t lds, T* y, int64_t columns);   // Y <- V S
  // X <- X R^-1 with R^H R = X^H X, at most PANEL columns. Columns that depend on those before them become random
  // (`replacement` is the seed), or zero with their flag in dead set to 1 where dead is given.
  void normalise(T* x, int64_t columns, T* gram, Rank<Real> rank, uint64_t replacement, int32_t* dead);
  void random(T* x, int64_t columns, uint64_t seed);
  // AY <- AY - Y diag(theta), and the norms of its columns
  void residual(const T* y, T* ay, const std::vector<double>& theta, int64_t columns, double* norms);
  void copy(T* to, const T* from, int64_t columns);
  double largest_of(const T* x, int64_t columns);
  void to_host(T* host, const T* from, int64_t count);
  void to_host(int32_t* host, const int32_t* from, int64_t count);
  void to_space(T* to, const T* host, int64_t count);
  void clear(int32_t* flags, int64_t count);
  // H <- its eigenvectors (host, order m), w <- its eigenvalues ascending; `room` of the space is free for it
  int64_t eigh_small(int64_t m, T* h, Real* w, T* /*room*/, int64_t /*room_elements*/) { return lapack::heevd(true, 'U', m, h, m, w); }
  // w and v of matrix `m` of the batch, from the vectors Y in the order given, or NaN where y is null
  void write(int64_t m, const T* y, const std::vector<double>& w, bool reversed);

  // Time of the direct routine, and of one step: `columns` products and their orthogonalisation against `size` vectors;
  // and of one small eigenproblem. In one unit, for one dtype as for the other.
  double direct_cost() const;
  double step_cost(int64_t columns, int64_t size) const;
  double ritz_cost(int64_t size) const;

  bool ok() const { return !failed_; }

 private:
  int threads() const;

  Frame& frame_;
  int64_t n_;
  const Product* product_;
  HermitianProduct<T> dense_;
  Real scale_ = 1;
  std::unique_ptr<char, void (*)(void*)> memory_{nullptr, nullptr};
  char* next_ = nullptr;
  bool failed_ = false;
};

}  // namespace lapwing::krylov
