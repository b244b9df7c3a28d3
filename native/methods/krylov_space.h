// The memory in which the Krylov engine keeps its vectors. A space supplies storage and products; the algorithm in krylov.cc
// knows nothing else of the device. Vectors are contiguous, blocks of them column-major with leading dimension n; small
// matrices are column-major too and live in the space unless "host" is said.
#pragma once
#include <cmath>
#include <complex>
#include <cstdint>
#include <limits>
#include <memory>
#include <type_traits>
#include <vector>

#include "dtypes.h"
#include "frame.h"
#include "methods/krylov.h"
#include "methods/random.h"

namespace lapwing::krylov {

constexpr int64_t PANEL = 64;  // columns that are orthonormalised at a time: the order of the largest Cholesky factor

// The same kind of number in double precision
template <class T>
using WideOf = std::conditional_t<PARTS_OF<T> == 2, std::complex<double>, double>;

// Random elements are random_number() times this: vectors of length about 1.
inline double random_scale(int64_t n) { return 1 / (RANDOM_DEVIATION * std::sqrt(double(n))); }

// When a pivot of the Gram matrix counts as zero: at or below `floor`, or below `relative` times its diagonal.
template <class Real>
struct Rank {
  Real floor, relative;
};

// What the algorithm asks for, and what is the same on both devices.
template <class T>
class Space {
 public:
  using Real = RealOf<T>;
  Space(Frame& frame, const Product* product) : frame_(frame), n_(frame.size[1]), product_(product) {}
  virtual ~Space() = default;

  virtual bool ok() const { return !failed_; }  // false: a step failed, with its message in the frame
  virtual bool copies_matrix() const = 0;       // whether load() needs room for the whole matrix
  virtual char* reserve(size_t bytes) = 0;      // all storage at once; null: a failure with its message
  virtual void lend(double*, int32_t*) {}       // room for numbers on their way between a device and the host

  // The largest |element| of the named triangle; not finite when an element is not.
  virtual double largest(const T* a) = 0;
  // From here on the products are with scale A. `c` is room for the whole matrix where the space copies it.
  virtual void load(const T* a, T* c, double scale) = 0;
  void rescale(double scale) { scale_ = Real(scale); }  // the same for a matrix that is known only by its product

  // Y <- A X
  void multiply(const T* x, T* y, int64_t columns) {
    if (!ok()) return;
    if (!product_) return multiply_matrix(x, y, columns);
    if (product_->apply(product_->self, x, y, columns)) {
      failed_ = true;
      if (!frame_.error[0]) fail(frame_, "engine krylov: the product with the matrix failed");
    } else if (scale_ != 1) {
      multiply_by_scale(y, n_ * columns);
    }
  }
  // C <- alpha op(A) op(B) + beta C; op(A) is m x k, op is the adjoint or nothing
  virtual void gemm(bool a_adjoint, bool b_adjoint, int64_t m, int64_t n, int64_t k, Real alpha, const T* a, int64_t lda,
                    const T* b, int64_t ldb, Real beta, T* c, int64_t ldc) = 0;
  // The lower triangle of C <- op(A) op(A)^H + beta C; op(A) is n x k
  virtual void gram(bool adjoint, int64_t n, int64_t k, const T* a, int64_t lda, Real beta, T* c) = 0;
  // Lines of `length` elements, `stride` apart, to contiguous ones in double precision; and back
  virtual void widen(const T* from, int64_t lines, int64_t length, int64_t stride, WideOf<T>* to) = 0;
  virtual void narrow(const WideOf<T>* from, int64_t elements, T* to) = 0;
  // C <- V^H X
  void inner(const T* v, int64_t v_columns, const T* x, int64_t columns, T* c, int64_t ldc) {
    gemm(true, false, v_columns, columns, n_, 1, v, n_, x, n_, 0, c, ldc);
  }
  // X <- X - V C
  void subtract(const T* v, int64_t v_columns, const T* c, int64_t ldc, T* x, int64_t columns) {
    gemm(false, false, n_, columns, v_columns, -1, v, n_, c, ldc, 1, x, n_);
  }
  // Y <- V S
  void combine(const T* v, int64_t v_columns, const T* s, int64_t lds, T* y, int64_t columns) {
    gemm(false, false, n_, columns, v_columns, 1, v, n_, s, lds, 0, y, n_);
  }
  // X <- X R^-1 with R^H R = X^H X, at most PANEL columns. Columns that depend on those before them become random
  // (`replacement` is the seed), or zero with their flag in dead set to 1 where dead is given.
  virtual void normalise(T* x, int64_t columns, T* gram, Rank<Real> rank, uint64_t replacement, int32_t* dead) = 0;
  virtual void random(T* x, int64_t columns, uint64_t seed) = 0;
  // AY <- AY - Y diag(theta), and the norms of its columns
  virtual void residual(const T* y, T* ay, const std::vector<double>& theta, int64_t columns, double* norms) = 0;
  // Z <- alpha AX + beta X + gamma Z; with gamma = 0 Z is not read
  virtual void recur(T* z, const T* ax, const T* x, double alpha, double beta, double gamma, int64_t columns) = 0;
  virtual double largest_of(const T* x, int64_t columns) = 0;
  virtual void move(void* to, const void* from, size_t bytes) = 0;
  void copy(T* to, const T* from, int64_t columns) { move(to, from, sizeof(T) * size_t(n_ * columns)); }
  virtual void clear(int32_t* flags, int64_t count) = 0;
  virtual void download(void* host, const void* from, size_t bytes) = 0;
  virtual void upload(void* to, const void* host, size_t bytes) = 0;
  // H <- its eigenvectors (host, order m), w <- its eigenvalues ascending; `room` of the space is free for it
  virtual int64_t eigh_small(int64_t m, T* h, Real* w, T* room, int64_t room_elements) = 0;

  // w and v of matrix `m` of the batch from the vectors Y, or NaN where y is null
  void write(int64_t m, const T* y, const std::vector<double>& w, bool reversed) {
    const bool vectors = frame_.op == EIGH;
    const int64_t count = frame_.size[3];
    const int32_t info = y ? 0 : 1;
    std::vector<Real> values(size_t(count), std::numeric_limits<Real>::quiet_NaN());
    for (int64_t j = 0; y && j < count; j++) values[size_t(j)] = Real(w[size_t(reversed ? count - 1 - j : j)]);
    upload(static_cast<int32_t*>(frame_.buffer[vectors ? 3 : 2]) + m, &info, sizeof info);
    upload(static_cast<Real*>(frame_.buffer[1]) + m * count, values.data(), sizeof(Real) * values.size());
    write_vectors(y, vectors ? static_cast<T*>(frame_.buffer[2]) + m * n_ * count : nullptr, count, reversed);
  }

  // Time of the direct routine; of one step: `columns` products and their orthogonalisation against `size` vectors; and of
  // one small eigenproblem. All in the same unit.
  virtual double direct_cost() const = 0;
  virtual double step_cost(int64_t columns, int64_t size) const = 0;
  virtual double product_cost(int64_t columns) const = 0;  // one product alone
  virtual double ritz_cost(int64_t size) const = 0;

 protected:
  virtual void multiply_matrix(const T* x, T* y, int64_t columns) = 0;  // Y <- scale A X after load()
  virtual void multiply_by_scale(T* y, int64_t elements) = 0;
  // The rows of `out`, which may be null, <- the columns of Y, or NaN; afterwards host memory that was uploaded may go.
  virtual void write_vectors(const T* y, T* out, int64_t count, bool reversed) = 0;

  Frame& frame_;
  int64_t n_;
  const Product* product_;
  Real scale_ = 1;
  bool failed_ = false;
};

#define LAPWING_SPACES(T)                                                \
  std::unique_ptr<Space<T>> cpu_space(T, Frame&, const Product*);        \
  std::unique_ptr<Space<T>> cuda_space(T, Frame&, const Product*);
LAPWING_EACH_TYPE(LAPWING_SPACES)

// The first `length` elements of each of `lines` lines on a GPU. 0, or 1 with a message in the frame.
int cuda_take_lines(Frame& frame, int32_t dtype, const void* from, int64_t from_length, void* to, int64_t length, int64_t lines);

}  // namespace lapwing::krylov
