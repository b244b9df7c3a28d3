/* A solver for tests: driver <what> <script> [options]. Prints one line per call, "name status". C99 and C++. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#ifdef STUB
#include "lapwing_insitu_stub.h"
#else
#include "lapwing_insitu.h"
#endif
#include <fenv.h>
#include <locale.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static double u[6] = {0, 1, 2, 3, 4, 5};
static const int64_t shape[2] = {2, 3};
static insitu_device cpu = {INSITU_CPU, 0, NULL};
static insitu_ctx *run;
static const char *script, *options;

static void show(const char *what, int status) {
  printf("%s %d\n", what, status);
  fflush(stdout);
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void give(void) { show("field", insitu_field(run, "u", u, 2, shape, NULL, 'f', 64, cpu, 0)); }

static int steps(int64_t first, int64_t last) {
  int status = 0;
  for (int64_t n = first; n < last; ++n) {
    give();
    status = insitu_step(run, n, 0.5 * (double)n);
    show("step", status);
    if (status == INSITU_STOP) break;
  }
  return status;
}

static void finish(void) {
  show("finalize", insitu_finalize(run));
  printf("error <%s>\n", insitu_error(run));
}

static void plain(void) {
  run = insitu_init(script, options, -1);
  steps(0, 5);
  finish();
}

static void everything(void) {
  const int64_t strides[2] = {1, 2}, whole[2] = {4, 3}, offset[2] = {2, 0};
  const double spacing[2] = {0.5, 0.25}, origin[2] = {1, 2};
  insitu_array weights = {u, shape, strides, 2, 64, 'f', {INSITU_CPU, 0, NULL}};
  insitu_array x = {u, shape, NULL, 2, 64, 'f', {INSITU_CPU, 0, NULL}}, coordinates[2];
  insitu_mesh_info mesh;
  float scalar = 3;
  memset(&mesh, 0, sizeof mesh);
  coordinates[0] = coordinates[1] = x;
  run = insitu_init(script, options, -1);
  mesh.ndim = 2;
  mesh.global_shape = whole;
  mesh.offset = offset;
  mesh.spacing = spacing;
  mesh.origin = origin;
  mesh.weights = &weights;
  mesh.coordinates = coordinates;
  show("mesh", insitu_mesh(run, &mesh));
  show("restore", insitu_restore(run, "old"));
  give();
  show("field", insitu_field(run, "v", u, 2, shape, strides, 'i', 32, cpu, 1));
  show("field", insitu_field(run, "s", &scalar, 0, NULL, NULL, 'f', 32, cpu, 0));
  show("step", insitu_step(run, 1234567890123, 0.1));
  show("checkpoint", insitu_checkpoint(run, "new"));
  finish();
}

/* Mistakes of a solver's author */
static void mistakes(void) {
  const int64_t negative[1] = {-3};
  insitu_array shapeless = {u, NULL, NULL, 2, 64, 'f', {INSITU_CPU, 0, NULL}};
  insitu_mesh_info mesh;
  show("null", insitu_step(NULL, 0, 0));
  show("null", insitu_field(NULL, "u", u, 2, shape, NULL, 'f', 64, cpu, 0));
  show("null", insitu_finalize(NULL));
  run = insitu_init(script, options, -1);
  show("no name", insitu_field(run, NULL, u, 2, shape, NULL, 'f', 64, cpu, 0));
  show("no shape", insitu_field(run, "u", u, 2, NULL, NULL, 'f', 64, cpu, 0));
  show("no ndim", insitu_field(run, "u", u, -1, shape, NULL, 'f', 64, cpu, 0));
  insitu_field(run, "u", u, 1, negative, NULL, 'f', 64, cpu, 0);
  insitu_field(run, "u", NULL, 2, shape, NULL, 'f', 64, cpu, 0);
  insitu_field(run, "u", u, 2, shape, NULL, 'q', 63, cpu, 0);
  show("no mesh", insitu_mesh(run, NULL));
  memset(&mesh, 0, sizeof mesh);
  mesh.ndim = 2;
  mesh.weights = &shapeless;
  show("no shape", insitu_mesh(run, &mesh));
  show("no path", insitu_checkpoint(run, NULL));
  show("step", insitu_step(run, 0, 0));
  finish();
  show("finalize again", insitu_finalize(run));
  show("step after", insitu_step(run, 1, 0));
  printf("after <%s>\n", insitu_error(run));
}

static void traps(void) {
  int bad = 0, wanted = FE_DIVBYZERO | FE_INVALID | FE_OVERFLOW;
  feclearexcept(FE_ALL_EXCEPT);
  feenableexcept(wanted);
  fesetround(FE_UPWARD);
#define CHECK(call)                                                                                           \
  call;                                                                                                       \
  bad += fegetexcept() != wanted || fegetround() != FE_UPWARD || fetestexcept(FE_ALL_EXCEPT & ~FE_INEXACT) != 0
  CHECK(run = insitu_init(script, options, -1));
  for (int n = 0; n < 5; ++n) {
    CHECK(insitu_field(run, "u", u, 2, shape, NULL, 'f', 64, cpu, 0));
    CHECK(insitu_step(run, n, 0));
  }
  CHECK(insitu_finalize(run));
  printf("error <%s>\n", insitu_error(run));
  show("changed", bad);
}

static volatile sig_atomic_t children;
static void on_signal(int number) { (void)number; }
static void on_child(int number) {
  (void)number;
  ++children;
}

static void signals(void) {
  struct sigaction mine, found;
  sigset_t mask;
  int numbers[] = {SIGINT, SIGTERM, SIGUSR1, SIGHUP}, bad = 0;
  char before[256];
  memset(&mine, 0, sizeof mine);
  mine.sa_handler = on_child;
  sigaction(SIGCHLD, &mine, NULL);
  mine.sa_handler = on_signal;
  for (int i = 0; i < 4; ++i) sigaction(numbers[i], &mine, NULL);
  snprintf(before, sizeof before, "%s", setlocale(LC_ALL, NULL));
  run = insitu_init(script, options, -1);
  for (int n = 0; n < 5; ++n) {
    insitu_step(run, n, 0);
    for (int i = 0; i < 4; ++i) {
      sigaction(numbers[i], NULL, &found);
      bad += found.sa_handler != on_signal;
    }
    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    bad += sigismember(&mask, SIGTERM);
  }
  sigaction(SIGPIPE, NULL, &found);
  bad += found.sa_handler != SIG_DFL;
  insitu_finalize(run);
  show("changed", bad);
  show("children", children);
  show("locale changed", strcmp(before, setlocale(LC_ALL, NULL)) != 0 || getenv("LC_CTYPE") != NULL);
}

/* ns per step: the smallest of several rounds */
static void cost(void) {
  const int64_t points[1] = {258};
  double best = 1e9, *a = (double *)calloc(258, sizeof *a), *b = (double *)calloc(258, sizeof *b);
  int64_t n = 0;
  run = insitu_init(script, options, -1);
  for (int round = 0; round < 40; ++round) {
    double begin = now(), each;
    for (int i = 0; i < 500; ++i, ++n) {
      insitu_field(run, "u", i & 1 ? a : b, 1, points, NULL, 'f', 64, cpu, 0);
      if (insitu_step(run, n, 1e-3 * (double)n) != INSITU_OK) exit(3);
    }
    each = 1e9 * (now() - begin) / 500;
    if (each < best) best = each;
  }
  insitu_finalize(run);
  free(a);
  free(b);
  show("ns", (int)best);
}

/* A solver that computes without calling for a while */
static void compute(void) {
  double begin;
  run = insitu_init(script, options, -1);
  steps(0, 1);
  begin = now();
  while (now() - begin < 0.5) u[0] += 1e-9;
  steps(1, 2);
  finish();
}

static void no_finalize(void) {
  run = insitu_init(script, options, -1);
  steps(0, 2);
}

static void twice(void) {
  for (int i = 0; i < 2; ++i) plain();
  plain();
}

static void *from_thread(void *unused) {
  steps(0, 3);
  return unused;
}

static void thread(void) {
  pthread_t other;
  run = insitu_init(script, options, -1);
  pthread_create(&other, NULL, from_thread, NULL);
  pthread_join(other, NULL);
  finish();
}

static void *keep_stepping(void *unused) {
  int status = 0;
  for (int n = 0; n < 10000 && status != INSITU_ERR; ++n) status = insitu_step(run, n, 0);
  show("raced", status);
  return unused;
}

/* One thread finishes the run while another one is inside its steps */
static void race(void) {
  pthread_t other;
  run = insitu_init(script, options, -1);
  pthread_create(&other, NULL, keep_stepping, NULL);
  usleep(20000);
  show("finalize", insitu_finalize(run));
  pthread_join(other, NULL);
  printf("error <%s>\n", insitu_error(run));
}

/* the structs of DLPack */
typedef struct {
  void *data;
  int32_t device[2], ndim;
  uint8_t code, bits;
  uint16_t lanes;
  int64_t *shape, *strides;
  uint64_t byte_offset;
} tensor_t;
typedef struct managed_t {
  tensor_t tensor;
  void *owner;
  void (*deleter)(struct managed_t *);
} managed_t;
typedef struct versioned_t {
  uint32_t version[2];
  void *owner;
  void (*deleter)(struct versioned_t *);
  uint64_t flags;
  tensor_t tensor;
} versioned_t;
static int deleted;
static void delete_managed(managed_t *m) {
  ++deleted;
  free(m);
}
static void delete_versioned(versioned_t *m) {
  ++deleted;
  free(m);
}

static void dlpack(void) {
  static int64_t extent[2] = {2, 3}, strides[2] = {3, 1};
  tensor_t tensor = {u, {1, 0}, 2, 2, 64, 1, extent, strides, 0};
  run = insitu_init(script, options, -1);
  for (int n = 0; n < 4; ++n) {
    managed_t *plain_one = (managed_t *)calloc(1, sizeof *plain_one);
    versioned_t *versioned = (versioned_t *)calloc(1, sizeof *versioned);
    plain_one->tensor = versioned->tensor = tensor;
    plain_one->deleter = delete_managed;
    versioned->version[0] = 1;
    versioned->deleter = delete_versioned;
    show("dlpack", insitu_dlpack(run, "u", plain_one, 0));
    show("dlpack", insitu_dlpack(run, "v", versioned, 1));
    insitu_step(run, n, 0);
  }
  show("no tensor", insitu_dlpack(run, "w", NULL, 1));
  finish();
  show("deleted", deleted);
}

int main(int count, char **arguments) {
  static const struct {
    const char *name;
    void (*work)(void);
  } all[] = {{"plain", plain},     {"everything", everything}, {"mistakes", mistakes},
             {"traps", traps},     {"signals", signals},       {"cost", cost},
             {"compute", compute}, {"no_finalize", no_finalize}, {"twice", twice},
             {"thread", thread},   {"dlpack", dlpack},         {"race", race}};
  script = count > 2 ? arguments[2] : NULL;
  options = count > 3 ? arguments[3] : NULL;
  for (size_t i = 0; count > 1 && i < sizeof all / sizeof *all; ++i)
    if (strcmp(arguments[1], all[i].name) == 0) {
      all[i].work();
      printf("done %s\n", insitu_version());
      return 0;
    }
  return 2;
}
