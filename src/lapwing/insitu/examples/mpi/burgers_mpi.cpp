// burgers.cpp split over MPI ranks: each rank passes its part of the field and its offset in the whole.
//
//   mpicxx -std=c++17 -O3 -ffp-contract=off burgers_mpi.cpp -o burgers_mpi $(python -m lapwing.insitu --cflags --libs)
//   mpiexec -n 4 ./burgers_mpi [../burgers/burgers_analysis.py] [end time]
//
// The analyses need mpi4py, built for the same MPI library.
#include <mpi.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "lapwing_insitu.h"

int main(int count, char** arguments) {
  MPI_Init(&count, &arguments);
  int rank, ranks;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  const char* script = count > 1 ? arguments[1] : "../burgers/burgers_analysis.py";
  const double end = count > 2 ? std::atof(arguments[2]) : 2.0;
  const int nx = 256;
  const double pi = 3.1415926535, h = 2 * pi / nx, dt = 0.001, nu = 0.01;
  const double c1 = dt / (2 * h), c2 = dt * nu / (h * h);

  // rank r has the points first .. first + local - 1; the parts may differ by one
  const int first = static_cast<int>(static_cast<long>(nx) * rank / ranks);
  const int local = static_cast<int>(static_cast<long>(nx) * (rank + 1) / ranks) - first;
  const int left = (rank + ranks - 1) % ranks, right = (rank + 1) % ranks;
  std::vector<double> u(local + 2), next(local + 2);
  for (int i = 1; i <= local; ++i) u[i] = std::sin(2.0 * (first + i - 1) * pi / nx);

  insitu_ctx* run = insitu_init(script, nullptr, MPI_Comm_c2f(MPI_COMM_WORLD));
  const int64_t shape[1] = {local}, whole[1] = {nx}, offset[1] = {first};
  insitu_mesh_info mesh = {};
  mesh.ndim = 1;
  mesh.global_shape = whole;
  mesh.offset = offset;
  mesh.spacing = &h;
  insitu_mesh(run, &mesh);
  const insitu_device cpu = {INSITU_CPU, 0, nullptr};

  double t = 0, wrap_left = 0, wrap_right = 0;  // across the ends of the domain, one step late as in the original
  int64_t n = 0;
  int stop = 0;
  do {
    MPI_Sendrecv(&u[local], 1, MPI_DOUBLE, right, 0, &u[0], 1, MPI_DOUBLE, left, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Sendrecv(&u[1], 1, MPI_DOUBLE, left, 1, &u[local + 1], 1, MPI_DOUBLE, right, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    const double from_left = u[0], from_right = u[local + 1];
    if (rank == 0 && n > 0) u[0] = wrap_left;
    if (rank == ranks - 1 && n > 0) u[local + 1] = wrap_right;
    wrap_left = from_left;
    wrap_right = from_right;
    for (int i = 1; i <= local; ++i)
      next[i] = u[i] + c2 * (u[i + 1] - 2.0 * u[i] + u[i - 1]) - u[i] * c1 * (u[i + 1] - u[i - 1]);
    u.swap(next);
    t += dt;
    insitu_field(run, "u", &u[1], 1, shape, nullptr, 'f', 64, cpu, 0);
    stop = insitu_step(run, n++, t) == INSITU_STOP;
    // an analysis may ask a single rank to stop: then all stop
    MPI_Allreduce(MPI_IN_PLACE, &stop, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  } while (t < end && !stop);

  const int wanted = 10 - first;  // the tenth point counted from 1, as in the serial program
  if (wanted >= 1 && wanted <= local) {
    std::printf("%d ranks, %lld steps, t = %.16g\n", ranks, static_cast<long long>(n), t);
    std::printf("A random value in the solution array: %g\n", u[wanted]);
    std::fflush(stdout);
  }
  insitu_finalize(run);
  MPI_Finalize();
  return 0;
}
