/* A solver as a library, for a program that is Python itself. */
#include "lapwing_insitu.h"

int solve(const char *script, int steps) {
  static double u[8];
  const int64_t shape[1] = {8};
  insitu_device cpu = {INSITU_CPU, 0, 0};
  insitu_ctx *run = insitu_init(script, "{\"quiet\": true}", -1);
  int status = 0;
  for (int n = 0; n < steps && status != INSITU_STOP; ++n) {
    for (int i = 0; i < 8; ++i) u[i] = n + 0.5 * i;
    insitu_field(run, "u", u, 1, shape, 0, 'f', 64, cpu, 0);
    status = insitu_step(run, n, n);
  }
  return insitu_finalize(run) * 100 + status;
}
