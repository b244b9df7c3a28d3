// One kernel source for serial C++, OpenMP, CUDA (nvcc) and HIP (hipcc): u_t + u u_x = nu u_xx, periodic, explicit Euler with
// central differences. Each buffer has a ghost point at both ends. The ghost points of a step come from the step before, one
// step late, as in the original example: its printed digits depend on it.
#pragma once

#include <utility>
#include <vector>

#if defined(__CUDACC__)
#include <cuda_runtime.h>
#define BURGERS_BOTH __host__ __device__
#elif defined(__HIPCC__)
#include <hip/hip_runtime.h>
#define BURGERS_BOTH __host__ __device__
#else
#define BURGERS_BOTH
#endif

namespace burgers {

// c1 = dt / 2h, c2 = nu dt / h^2
BURGERS_BOTH inline double new_value(const double* u, long i, long n, double c1, double c2) {
  if (i == 0) return u[n - 2];
  if (i == n - 1) return u[1];
  return u[i] + c2 * (u[i + 1] - 2.0 * u[i] + u[i - 1]) - u[i] * c1 * (u[i + 1] - u[i - 1]);
}

#if defined(__CUDACC__) || defined(__HIPCC__)

#if defined(__HIPCC__)
#define cudaFree hipFree
#define cudaGetErrorString hipGetErrorString
#define cudaGetLastError hipGetLastError
#define cudaMalloc hipMalloc
#define cudaMemcpyAsync hipMemcpyAsync
#define cudaMemcpyDeviceToHost hipMemcpyDeviceToHost
#define cudaMemcpyHostToDevice hipMemcpyHostToDevice
#define cudaStreamCreateWithFlags hipStreamCreateWithFlags
#define cudaStreamDestroy hipStreamDestroy
#define cudaStreamNonBlocking hipStreamNonBlocking
#define cudaStreamSynchronize hipStreamSynchronize
#define cudaStream_t hipStream_t
#define cudaSuccess hipSuccess
const int DEVICE_TYPE = 10;  // INSITU_ROCM
#else
const int DEVICE_TYPE = 2;  // INSITU_CUDA
#endif

__global__ void advance(const double* u, double* next, long n, double c1, double c2) {
  long i = blockIdx.x * static_cast<long>(blockDim.x) + threadIdx.x;
  if (i < n) next[i] = new_value(u, i, n, c1, c2);
}

// Two buffers on the device and a stream that does not wait for the default one.
class Buffers {
 public:
  explicit Buffers(const std::vector<double>& start) : n_(static_cast<long>(start.size())) {
    cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking);
    cudaMalloc(reinterpret_cast<void**>(&now_), n_ * sizeof(double));
    cudaMalloc(reinterpret_cast<void**>(&next_), n_ * sizeof(double));
    cudaMemcpyAsync(now_, start.data(), n_ * sizeof(double), cudaMemcpyHostToDevice, stream_);
    cudaStreamSynchronize(stream_);
  }
  ~Buffers() {
    cudaStreamSynchronize(stream_);
    cudaFree(now_);
    cudaFree(next_);
    cudaStreamDestroy(stream_);
  }
  Buffers(const Buffers&) = delete;
  void step(double c1, double c2) {
    const unsigned threads = 256;
    advance<<<static_cast<unsigned>((n_ + threads - 1) / threads), threads, 0, stream_>>>(now_, next_, n_, c1, c2);
    std::swap(now_, next_);
  }
  std::vector<double> host() const {
    std::vector<double> copy(n_);
    cudaMemcpyAsync(copy.data(), now_, n_ * sizeof(double), cudaMemcpyDeviceToHost, stream_);
    cudaStreamSynchronize(stream_);
    return copy;
  }
  const char* error() const {
    auto code = cudaGetLastError();
    return code == cudaSuccess ? nullptr : cudaGetErrorString(code);
  }
  double* data() { return now_; }
  void* stream() { return stream_; }

 private:
  long n_;
  double *now_ = nullptr, *next_ = nullptr;
  cudaStream_t stream_ = nullptr;
};

#else

const int DEVICE_TYPE = 1;  // INSITU_CPU

#ifndef BURGERS_PARALLEL_FROM
#define BURGERS_PARALLEL_FROM 32768  // points; with fewer, waking the threads takes longer than the work
#endif

class Buffers {
 public:
  explicit Buffers(std::vector<double> start) : now_(std::move(start)), next_(now_.size()) {}
  void step(double c1, double c2) {
    const double* u = now_.data();
    double* next = next_.data();
    const long n = static_cast<long>(now_.size());
#ifdef _OPENMP
#pragma omp parallel for simd schedule(static) if (n > BURGERS_PARALLEL_FROM)
#endif
    for (long i = 1; i < n - 1; ++i) next[i] = new_value(u, i, n, c1, c2);
    next[0] = new_value(u, 0, n, c1, c2);
    next[n - 1] = new_value(u, n - 1, n, c1, c2);
    now_.swap(next_);
  }
  std::vector<double> host() const { return now_; }
  const char* error() const { return nullptr; }
  double* data() { return now_.data(); }
  void* stream() { return nullptr; }

 private:
  std::vector<double> now_, next_;
};

#endif

}  // namespace burgers
