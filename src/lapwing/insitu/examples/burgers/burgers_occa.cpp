// burgers.cpp with OCCA: the kernel is compiled at run time for the chosen mode.
//
//   burgers_occa [script] [mode, e.g. "{mode: 'CUDA', device_id: 0}"]
#include <cmath>
#include <cstdio>
#include <occa.hpp>
#include <string>
#include <utility>
#include <vector>

#include "lapwing_insitu.h"

#ifndef BURGERS_SCRIPT
#define BURGERS_SCRIPT "burgers_analysis.py"
#endif
#ifndef BURGERS_OKL
#define BURGERS_OKL "burgers.okl"
#endif

int main(int count, char** arguments) {
  const char* script = count > 1 ? arguments[1] : BURGERS_SCRIPT;
  const std::string mode = count > 2 ? arguments[2] : "{mode: 'Serial'}";
  const int nx = 256;
  const double pi = 3.1415926535, h = 2 * pi / nx, dt = 0.001, end = 2.0, nu = 0.01;
  const double c1 = dt / (2 * h), c2 = dt * nu / (h * h);

  occa::device gpu(mode);
  occa::kernel step = gpu.buildKernel(BURGERS_OKL, "burgers_step");
  std::vector<double> start(nx + 2);
  for (int i = 1; i <= nx; ++i) start[i] = std::sin(2.0 * (i - 1) * pi / nx);
  start[0] = start[nx];
  start[nx + 1] = start[1];
  occa::memory u = gpu.malloc<double>(nx + 2, start.data());
  occa::memory next = gpu.malloc<double>(nx + 2, start.data());

  // OpenCL and Metal use handles instead of addresses: their fields cannot be passed without a copy
  insitu_device device = {INSITU_CPU, 0, nullptr};
  if (gpu.mode() == "CUDA") device.device_type = INSITU_CUDA;
  if (gpu.mode() == "HIP") device.device_type = INSITU_ROCM;
  // OCCA's stream and the default stream wait for each other, so the default stream (NULL) gives the right order
  insitu_ctx* run = insitu_init(script, nullptr, -1);
  const int64_t shape[1] = {nx};
  const insitu_mesh_info mesh = {1, shape, nullptr, &h, nullptr, nullptr, nullptr, {}};  // one dimension, its shape and spacing
  insitu_mesh(run, &mesh);

  double t = 0;
  int64_t n = 0;
  bool stop = false;
  do {
    step(nx + 2, c1, c2, u, next);
    std::swap(u, next);
    t += dt;
    insitu_field(run, "u", u.ptr<double>() + 1, 1, shape, nullptr, 'f', 64, device, 0);
    stop = insitu_step(run, n++, t) == INSITU_STOP;
  } while (t < end && !stop);
  gpu.finish();
  u.copyTo(start.data());
  std::printf("%lld steps, t = %.16g\n", static_cast<long long>(n), t);
  std::printf("A random value in the solution array: %g\n", start[10]);
  std::fflush(stdout);
  insitu_finalize(run);
  return 0;
}
