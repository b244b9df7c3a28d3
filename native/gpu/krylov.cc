// The Krylov engine's vectors on a GPU: products by cuBLAS, the rest by src/lapwing/kernels/krylov.cu. Everything is queued on
// the frame's stream; the host waits only where a function hands it numbers.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "cusolver/cusolver.h"
#include "dtypes.h"
#include "gpu/cublas_dense.h"
#include "gpu/eigh.h"
#include "gpu/steps.h"
#include "gpu/vendor.h"
#include "lapack/fortran.h"
#include "methods/krylov_space.h"

namespace lapwing::krylov {
namespace {

constexpr unsigned THREADS = 256;           // of the kernels in krylov.cu
constexpr int64_t MAX_BLOCKS = 132 * 16;    // the kernels stride over what is left
constexpr int64_t HOST_EIGH = 96;           // up to this order the host solves the small problem as fast as the GPU

template <class T>
class CudaSpace : public Space<T> {
  using Real = RealOf<T>;
  using Space<T>::frame_, Space<T>::n_, Space<T>::scale_, Space<T>::failed_;

 public:
  CudaSpace(Frame& frame, const Product* product)
      : Space<T>(frame, product), steps_(frame, "engine krylov", "krylov.cu") {}

  bool ok() const override { return steps_.ok() && !failed_; }
  bool copies_matrix() const override { return true; }
  char* reserve(size_t bytes) override { return cuda::scratch(frame_, bytes); }
  void lend(double* numbers, int32_t* bad) override { numbers_ = numbers, bad_ = bad; }

  // The one number goes through the room for the pivots' flags, which is free then.
  double largest(const T* a) override {
    clear(bad_, 2);
    start("largest", (n_ + 7) / 8, a, n_, bad_);
    return read_largest();
  }

  double largest_of(const T* x, int64_t columns) override {
    clear(bad_, 2);
    start("largest_of", n_ * columns / 2048, x, n_ * columns, bad_);
    return read_largest();
  }

  void load(const T* a, T* c, double scale) override {
    const int64_t tiles = (n_ + 31) / 32;
    start("mirror", tiles * (tiles + 1) / 2, a, c, n_, Real(scale));
    a_ = c;
  }

  void gemm(bool a_adjoint, bool b_adjoint, int64_t m, int64_t n, int64_t k, Real alpha, const T* a, int64_t lda, const T* b,
            int64_t ldb, Real beta, T* c, int64_t ldc) override {
    const auto op = [](bool adjoint) { return adjoint ? vendor::OP_ADJOINT : vendor::OP_NONE; };
    steps_.gemm(op(a_adjoint), m, n, k, double(alpha), a, lda, b, ldb, double(beta), c, ldc,
                sizeof(Real) == 8 ? vendor::COMPUTE_64 : vendor::COMPUTE_32, op(b_adjoint));
  }
  void gram(bool adjoint, int64_t n, int64_t k, const T* a, int64_t lda, Real beta, T* c) override {
    if (!ok()) return;
    const cublas::Dense blas(frame_);
    failed_ = !blas.ok() || blas.herk(adjoint ? vendor::OP_ADJOINT : vendor::OP_NONE, n, k, 1, a, lda, double(beta), c, n);
  }
  void widen(const T* from, int64_t lines, int64_t length, int64_t stride, WideOf<T>* to) override {
    start("widen", lines * length / 1024, from, lines, length, stride, to);
  }
  void narrow(const WideOf<T>* from, int64_t elements, T* to) override { start("narrow", elements / 1024, from, elements, to); }

  void recur(T* z, const T* ax, const T* x, double alpha, double beta, double gamma, int64_t columns) override {
    start("recur", n_ * columns / 1024, z, ax, x, n_ * columns, Real(alpha), Real(beta), Real(gamma));
  }

  void random(T* x, int64_t columns, uint64_t seed) override {
    start("fill_random", n_ * columns / 1024, x, n_ * columns, seed, random_scale(n_));
  }

  void normalise(T* x, int64_t columns, T* gram, Rank<Real> rank, uint64_t replacement, int32_t* dead) override {
    this->inner(x, columns, x, columns, gram, columns);
    const int order = int(columns), width = columns <= 16 ? 16 : columns <= 32 ? 32 : 64;
    start_with(32, "cholesky_gram", 1, THREADS, sizeof(T) * size_t(order * order), gram, order, rank.floor, rank.relative, bad_);
    start_with(width, "solve_rows", (n_ + 127) / 128, 128, sizeof(T) * size_t(width * width), x, n_, order, gram, bad_, dead,
               replacement, random_scale(n_));
  }

  void residual(const T* y, T* ay, const std::vector<double>& theta, int64_t columns, double* norms) override {
    upload(numbers_, theta.data(), sizeof(double) * size_t(columns));
    start("residual", columns, y, ay, numbers_, n_, columns, numbers_ + columns);
    download(norms, numbers_ + columns, sizeof(double) * size_t(columns));
  }

  void move(void* to, const void* from, size_t bytes) override { steps_.copy(to, from, bytes); }
  void clear(int32_t* flags, int64_t count) override { steps_.fill(flags, 0, sizeof(int32_t) * size_t(count)); }
  void download(void* host, const void* from, size_t bytes) override { steps_.download(host, from, bytes); }
  void upload(void* to, const void* host, size_t bytes) override { steps_.upload(to, host, bytes); }

  int64_t eigh_small(int64_t m, T* h, Real* w, T* room, int64_t room_elements) override {
    if (m > HOST_EIGH && !vendor::missing(vendor::solver)) {
      const int64_t square = (m * m + 63) / 64 * 64, values = (m + 63) / 64 * 64;  // the solver wants aligned pieces
      if (room_elements > square + values + 64) {
        // room: H, the eigenvalues, info, then the solver's workspace
        T* matrix = room;
        auto* eigenvalues = reinterpret_cast<Real*>(room + square);
        auto* info = reinterpret_cast<int32_t*>(room + square + values);
        void* work = room + square + values + 64;
        const size_t work_bytes = sizeof(T) * size_t(room_elements - square - values - 64);
        steps_.upload(matrix, h, sizeof(T) * size_t(m * m));
        if (!ok()) return -1;
        const int answer = cusolver::eigh_small(frame_, m, matrix, eigenvalues, work, work_bytes, info);
        if (answer == 0) {
          std::vector<T> tail(size_t(values + 1));  // eigenvalues and info in one go
          steps_.download(h, matrix, sizeof(T) * size_t(m * m));
          steps_.download(tail.data(), eigenvalues, sizeof(T) * tail.size());
          std::memcpy(w, tail.data(), sizeof(Real) * size_t(m));
          int32_t status = 0;
          std::memcpy(&status, tail.data() + values, sizeof status);
          return ok() ? status : -1;
        }
        frame_.error[0] = 0;  // its workspace does not fit here: the host can do it
      }
    }
    return lapack::heevd(true, 'U', m, h, m, w);
  }

  // Seconds on an H200: the direct routine, up to eigh_chosen() our own kernels, takes 17 ms, 61 ms and 2.9 s in float64 at n = 2048,
  // 4096 and 16384; a step is bound by the latency of its dozen kernels, or by reading A, or by flops. Only
  // ratios matter.
  double direct_cost() const override {
    const double n = double(n_), share[] = {0.85, 1, 1.05, 1.6}, cubes[] = {3e-13, 5.1e-13, 7e-13, 1.9e-12},
                 columns[] = {5e-6, 6.5e-6, 6.5e-6, 7e-6};
    if (n_ <= cuda::eigh_chosen(frame_)) return cubes[frame_.dtype] * n * n * n + columns[frame_.dtype] * n;
    return share[frame_.dtype] * (6.6e-13 * n * n * n + 1.1e-5 * n);
  }
  double step_cost(int64_t columns, int64_t size) const override {
    const double n = double(n_), c = double(columns);
    return 1.4e-4 * std::ceil(c / PANEL) + n * n * std::max(2e-12, 4e-14 * c) + 3e-13 * n * double(size) * c;
  }
  double product_cost(int64_t columns) const override {
    const double n = double(n_);
    return 1.5e-5 + n * n * std::max(2.5e-13 * double(sizeof(T)), 4e-14 * double(columns));
  }
  double ritz_cost(int64_t size) const override { return size <= HOST_EIGH ? 5e-4 : 5e-4 + 1.1e-5 * double(size); }

 private:
  void multiply_matrix(const T* x, T* y, int64_t columns) override {
    gemm(false, false, n_, columns, n_, 1, a_, n_, x, n_, 0, y, n_);
  }

  void multiply_by_scale(T* y, int64_t elements) override { start("rescale", elements / 1024, y, elements, scale_); }

  void write_vectors(const T* y, T* out, int64_t count, bool reversed) override {
    if (out && y)
      start("write_rows", n_ * count / 1024, y, out, n_, count, int(reversed));
    else if (out)
      steps_.fill(out, 0xff, sizeof(T) * size_t(n_ * count));  // every bit set is a NaN
    steps_.wait();
  }

  double read_largest() {
    double most = 0;
    download(&most, bad_, sizeof most);
    return most;
  }

  template <class... Arguments>
  void start(const char* name, int64_t blocks, Arguments... arguments) {
    start_with(32, name, blocks, THREADS, 0, arguments...);
  }
  template <class... Arguments>
  void start_with(int width, const char* name, int64_t blocks, unsigned threads, size_t shared, Arguments... arguments) {
    const void* vectors = frame_.op == EIGH ? frame_.buffer[2] : nullptr;
    const std::string options = cuda::options(frame_.dtype, frame_.flags & UPPER, cuda::access_width({frame_.buffer[0], vectors}),
                                              " -DLW_WIDTH=%d", width);
    steps_.start(options, name, {unsigned(std::clamp<int64_t>(blocks, 1, MAX_BLOCKS))}, threads, shared, arguments...);
  }

  cuda::Steps steps_;
  const T* a_ = nullptr;
  double* numbers_ = nullptr;  // on their way to or from the host
  int32_t* bad_ = nullptr;
};

}  // namespace

#define LAPWING_SPACE(T)                                                                     \
  std::unique_ptr<Space<T>> cuda_space(T, Frame& frame, const Product* product) { \
    return std::make_unique<CudaSpace<T>>(frame, product);                                         \
  }
LAPWING_EACH_TYPE(LAPWING_SPACE)

int cuda_take_lines(Frame& frame, int32_t dtype, const void* from, int64_t from_length, void* to, int64_t length, int64_t lines) {
  const std::string options = cuda::options(dtype, false, cuda::access_width({to}), " -DLW_WIDTH=%d", 32);
  const auto blocks = unsigned(std::clamp<int64_t>(lines * length / 1024, 1, MAX_BLOCKS));
  return cuda::start(frame, "krylov.cu", options, "take_lines", {blocks}, THREADS, 0, from, from_length, to, length, lines);
}

}  // namespace lapwing::krylov
