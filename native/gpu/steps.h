// A chain of steps on a GPU, queued on a frame's stream. After the first failure, whose message is in the frame, the others do
// nothing, so that only the end of a chain need be checked.
#pragma once
#include <string>

#include "frame.h"
#include "gpu/cuda.h"
#include "gpu/handles.h"
#include "dtypes.h"

namespace lapwing::cuda {

class Steps {
 public:
  // Messages begin with `name`; `source` is the device source of the kernels.
  Steps(Frame& frame, const char* name, const char* source)
      : frame_(frame), name_(name), source_(source), blas_(frame, vendor::blas), failed_(!blas_.get()) {}
  bool ok() const { return !failed_; }
  void stop() { failed_ = true; }

  void fill(void* to, unsigned char value, size_t bytes) { failed_ = failed_ || cuda::fill(frame_, to, value, bytes); }
  void copy(void* to, const void* from, size_t bytes) {
    if (failed_) return;
    check(vendor::table().copy(reinterpret_cast<uint64_t>(to), reinterpret_cast<uint64_t>(from), bytes, frame_.stream), "a copy");
  }

  // Waits for the GPU.
  void download(void* host, const void* from, size_t bytes) {
    if (failed_) return;
    check(vendor::table().copy_to_host(host, reinterpret_cast<uint64_t>(from), bytes, frame_.stream), "a copy to the host");
    wait();
  }
  // `host` must live until the next wait.
  void upload(void* to, const void* host, size_t bytes) {
    if (failed_) return;
    check(vendor::table().copy_to_device(reinterpret_cast<uint64_t>(to), host, bytes, frame_.stream), "a copy to the GPU");
  }
  void wait() {
    if (!failed_) check(vendor::table().synchronize(frame_.stream), "waiting for the GPU");
  }

  template <class... Arguments>
  void start(const std::string& options, const char* name, Grid grid, unsigned threads, size_t shared, Arguments... arguments) {
    failed_ = failed_ || cuda::start(frame_, source_, options, name, grid, threads, shared, arguments...);
  }

  // C <- alpha op(A) op(B) + beta C, column-major
  template <class E>
  void gemm(int a_op, int64_t m, int64_t n, int64_t k, double alpha, const E* a, int64_t lda, const E* b, int64_t ldb,
            double beta, E* c, int64_t ldc, int compute, int b_op = vendor::OP_NONE) {
    using Real = RealOf<E>;
    if (failed_ || !m || !n || !k) return;
    const E by = E(Real(alpha)), keep = E(Real(beta));
    const int type = type_of(dtype_of<E>());
    check(vendor::table().blas_gemm(blas_.get(), a_op, b_op, m, n, k, &by, a, type, lda, b, type, ldb, &keep, c, type,
                                    ldc, compute, vendor::GEMM_DEFAULT),
          "a product");
  }

 private:
  void check(int status, const char* doing) {
    if (!status || failed_) return;
    failed_ = true;
    if (!frame_.error[0]) fail(frame_, "%s: %s failed with status %d", name_, doing, status);
  }

  Frame& frame_;
  const char *name_, *source_;
  Lease blas_;
  bool failed_;
};

}  // namespace lapwing::cuda
