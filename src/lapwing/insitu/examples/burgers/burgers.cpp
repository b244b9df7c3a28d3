// 1-D Burgers' equation, analysed while it runs. It repeats an OCCA + CuPy example and prints the same numbers: 2001 steps, and
// "A random value in the solution array: 0.0733873" at the end.
//
//   burgers [script] [points, default 256; with 512 the mesh resolves the shock]
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "burgers_kernel.hpp"
#include "lapwing_insitu.h"

#ifndef BURGERS_SCRIPT
#define BURGERS_SCRIPT "burgers_analysis.py"
#endif

static bool failed(const burgers::Buffers& u) {
  const char* error = u.error();
  if (error) std::fprintf(stderr, "burgers: %s\n", error);
  return error;
}

int main(int count, char** arguments) {
  const char* script = count > 1 ? arguments[1] : BURGERS_SCRIPT;
  const int nx = count > 2 ? std::atoi(arguments[2]) : 256;
  const double pi = 3.1415926535;  // the original's
  const double h = 2 * pi / nx, dt = 0.001, end = 2.0, nu = 0.01;
  const double c1 = dt / (2 * h), c2 = dt * nu / (h * h);
  if (nx < 3 || c2 > 0.5) {
    std::fprintf(stderr, "burgers: %d points: between 3 and 1404 are stable with this time step\n", nx);
    return 2;
  }

  std::vector<double> start(nx + 2);
  for (int i = 1; i <= nx; ++i) start[i] = std::sin(2.0 * (i - 1) * pi / nx);
  start[0] = start[nx];
  start[nx + 1] = start[1];
  burgers::Buffers u(start);
  if (failed(u)) return 1;

  insitu_ctx* run = insitu_init(script, nullptr, -1);
  const int64_t shape[1] = {nx};
  insitu_mesh_info mesh = {};
  mesh.ndim = 1;
  mesh.global_shape = shape;
  mesh.spacing = &h;
  insitu_mesh(run, &mesh);
  const insitu_device device = {burgers::DEVICE_TYPE, 0, u.stream()};

  double t = 0;
  int64_t n = 0;
  bool stop = false;
  auto begin = std::chrono::steady_clock::now();
  do {
    u.step(c1, c2);
    t += dt;
    insitu_field(run, "u", u.data() + 1, 1, shape, nullptr, 'f', 64, device, 0);  // without the ghost points
    stop = insitu_step(run, n++, t) == INSITU_STOP;
  } while (t < end && !stop);
  std::vector<double> last = u.host();
  std::chrono::duration<double, std::milli> wall = std::chrono::steady_clock::now() - begin;

  if (failed(u)) return 1;
  std::printf("%lld steps, t = %.16g\n", static_cast<long long>(n), t);
  std::printf("A random value in the solution array: %g\n", last[10]);
  std::printf("Mean wall time: %g ms per step, analyses included\n", wall.count() / static_cast<double>(n));
  std::fflush(stdout);
  insitu_finalize(run);
  return 0;
}
