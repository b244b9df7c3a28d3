// Least squares by LAPACK, one matrix after the other, with the library's own threads.
//
// The library sees conj(A) where the matrix is tall, which is transposed on the way in, and A^T where it is wide, which is
// not: the memory of A is that of its transpose. x is conjugated on the way out.
#include "lapack/lstsq.h"

#include <algorithm>
#include <complex>

#include "cpu/matrix.h"
#include "cpu/qr.h"
#include "cpu/threads.h"
#include "dtypes.h"
#include "lapack/fortran.h"
#include "lapack/lapack.h"
#include "lapack/rows.h"
#include "methods/lstsq.h"

namespace lapwing::lapack {
namespace {

// One matrix of the frame and its results.
template <class T>
struct Answer {
  const T *a, *b;
  T* x;
  RealOf<T>* residuals;
  int32_t *rank, *info;

  Answer(const Frame& frame, int64_t at) {
    const int64_t m = frame.size[1], n = frame.size[2], k = frame.size[3];
    a = static_cast<const T*>(frame.buffer[0]) + at * m * n;
    b = static_cast<const T*>(frame.buffer[1]) + at * m * k;
    x = static_cast<T*>(frame.buffer[2]) + at * n * k;
    residuals = static_cast<RealOf<T>*>(frame.buffer[3]) + at * k;
    rank = static_cast<int32_t*>(frame.buffer[4]) + at;
    info = static_cast<int32_t*>(frame.buffer[5]) + at;
    *rank = UNPROVEN, *info = 0;
  }
};

// Up to this many bytes our own kernel factors a matrix on one thread no slower than the library on two, and batches, which go over
// the threads, up to four times that. Zen 4, float64, one thread each (2026-11-16): 192 x 48 37 us against 105 by the gels of torch,
// 400 x 100 200 against 415.
constexpr int64_t OWN_BYTES = 9 << 18;

bool is_own(const Frame& frame) {
  const int64_t m = frame.size[1], n = frame.size[2], k = frame.size[3];
  const int64_t bytes = int64_t(size_of(frame.dtype)) * std::max(m, n) * (std::min(m, n) + k);
  if (k > std::min(m, n)) return false;
  return bytes <= OWN_BYTES * (frame.size[0] > 1 ? 4 : 1) || dense_threads(std::max(m, n));
}

template <class T>
class Squares {
  using Real = RealOf<T>;

 public:
  explicit Squares(Frame& frame)
      : frame_(frame), m_(frame.size[1]), n_(frame.size[2]), k_(frame.size[3]), rcond_(rcond_of(frame)),
        // Right-hand sides beside the matrix go through its reflections on the way, and then through some of their own.
        beside_(m_ >= n_ && k_ <= std::max<int64_t>(1, n_ / 4)), w_(std::max(m_, n_) * (std::min(m_, n_) + k_)),
        tau_(std::min(m_, n_ + k_)), work_size_(0) {}

  void solve(int64_t at) {
    const Answer<T> out(frame_, at);
    const bool good = m_ >= n_ ? tall(out.a, out.b, out.x, out.residuals) : wide(out.a, out.b, out.x, out.residuals);
    if (good) *out.rank = int32_t(std::min(m_, n_));
  }

 private:
  // conj(A) = Q R, R conj(x) = Q^H conj(b)
  bool tall(const T* a, const T* b, T* x, Real* residuals) {
    T* right = w_ + m_ * n_;
    turn(frame_, a, static_cast<T*>(w_), m_, n_);
    turn(frame_, b, right, m_, k_);
    if (factor(m_, beside_ ? n_ + k_ : n_) || !has_full_rank<T>(w_, n_, m_, rcond_)) return false;
    if (!beside_ && apply('L', is_complex<T> ? 'C' : 'T', m_, n_)) return false;
    for (int64_t j = 0; j < k_; j++) {
      // behind its own diagonal a column holds the vector of its reflection
      const T* column = right + j * m_;
      const int64_t end = beside_ ? std::min(m_, n_ + j + 1) : m_;
      Real sum = 0;
      for (int64_t i = n_; i < end; i++) sum += std::norm(column[i]);
      residuals[j] = sum;
    }
    solve_upper('N', n_, w_, m_, right, m_);
    give(right, m_, x);
    return true;
  }

  // A^T = Q R, R^H conj(z) = conj(b), conj(x) = Q conj(z)
  bool wide(const T* a, const T* b, T* x, Real* residuals) {
    T* right = w_ + n_ * m_;
    put(static_cast<T*>(w_), a, m_ * n_);
    if (factor(n_, m_) || !has_full_rank<T>(w_, m_, n_, rcond_)) return false;
    for (int64_t j = 0; j < k_; j++) {
      for (int64_t i = 0; i < m_; i++) right[j * n_ + i] = conjugated(b[i * k_ + j]);
      std::fill(right + j * n_ + m_, right + (j + 1) * n_, T(0));
    }
    solve_upper('C', m_, w_, n_, right, n_);
    if (apply('L', 'N', n_, m_)) return false;
    give(right, n_, x);
    std::fill_n(residuals, k_, Real(0));
    return true;
  }

  int64_t factor(int64_t rows, int64_t columns) {
    int64_t info = 0;
    with_kept_workspace([&](T* work, int64_t room) {
      call<T>(GEQRF, rows, columns, static_cast<T*>(w_), rows, static_cast<T*>(tau_), work, room, &info);
    });
    return info;
  }
  // the right-hand sides <- op(Q) times them
  int64_t apply(char side, char op, int64_t rows, int64_t reflections) {
    int64_t info = 0;
    if (!k_) return 0;
    with_workspace<T>([&](T* work, int64_t room) {
      call<T>(UNMQR, side, op, rows, k_, reflections, static_cast<T*>(w_), rows, static_cast<T*>(tau_), w_ + rows * reflections, rows,
              work, room, &info);
    });
    return info;
  }
  void solve_upper(char op, int64_t n, const T* r, int64_t ld, T* b, int64_t ld_b) const {
    if (k_ == 1 && !foreign(TRSV, dtype_of<T>())) return call<T>(TRSV, 'U', op, 'N', n, r, ld, b, int64_t(1));
    if (k_) call<T>(TRSM, 'L', 'U', op, 'N', n, k_, T(1), r, ld, b, ld_b);
  }
  // x (n x k, row-major) <- conj(y), y being column-major
  void give(const T* y, int64_t ld, T* x) const {
    for (int64_t j = 0; j < k_; j++)
      for (int64_t i = 0; i < n_; i++) x[i * k_ + j] = conjugated(y[j * ld + i]);
  }

  // The size is asked for once: the matrices of a batch are alike.
  template <class Invoke>
  void with_kept_workspace(const Invoke& invoke) {
    if (!work_size_) {
      T size{};
      invoke(&size, int64_t(-1));
      work_size_ = whole_size(std::real(size));
    }
    Room<T> work(work_size_);
    invoke(static_cast<T*>(work), work_size_);
  }

  Frame& frame_;
  const int64_t m_, n_, k_;
  const double rcond_;
  const bool beside_;
  Room<T> w_, tau_;
  int64_t work_size_;
};

}  // namespace

int lstsq(Frame& frame) {
  const int64_t largest = std::max({frame.size[1], frame.size[2], frame.size[3]});
  for (Name name : {GEQRF, UNMQR, TRSM, TRSV})
    if (check(frame, name, largest)) return 1;
  if (is_own(frame)) return qr_blocked(frame);
  return by_dtype(frame.dtype, [&](auto zero) {
    using T = decltype(zero);
    Squares<T> squares(frame);
    return parallel(1, frame.size[0], 1, [&](int64_t at, int64_t) { squares.solve(at); }, frame.interrupted) ? 0 : 1;
  });
}

int64_t lstsq_host_bytes(const Frame& frame) {
  const int64_t m = frame.size[1], n = frame.size[2], k = frame.size[3];
  return int64_t(size_of(frame.dtype)) * (std::max(m, n) * (std::min(m, n) + k) + 32 * (n + k));
}

}  // namespace lapwing::lapack
