/* A solver that has a Python of its own: embeds <libpython> <local|global> <initialize|load|end> <script>. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "lapwing_insitu.h"

static void call(void *library, const char *name) {
  void (*function)(void);
  void *found = dlsym(library, name);
  memcpy(&function, &found, sizeof found);
  function();
}

int main(int count, char **arguments) {
  void *library = count > 4 ? dlopen(arguments[1], RTLD_NOW | (strcmp(arguments[2], "local") ? RTLD_GLOBAL : RTLD_LOCAL)) : NULL;
  insitu_device cpu = {INSITU_CPU, 0, NULL};
  const int64_t shape[1] = {3};
  double u[3] = {1, 2, 3};
  insitu_ctx *run;
  if (!library) return 2;
  if (strcmp(arguments[3], "load") != 0) call(library, "Py_Initialize"); /* and it keeps the interpreter's lock */
  run = insitu_init(arguments[4], "{\"output\": null, \"quiet\": true}", -1);
  insitu_field(run, "u", u, 1, shape, NULL, 'f', 64, cpu, 0);
  printf("step %d\n", insitu_step(run, 0, 0));
  fflush(stdout);
  if (strcmp(arguments[3], "end") == 0) {
    call(library, "Py_Finalize");
    printf("after %d\n", insitu_step(run, 1, 0));
    printf("again %d\n", insitu_step(insitu_init(arguments[4], NULL, -1), 1, 0));
  }
  printf("finalize %d\n", insitu_finalize(run));
  printf("error <%s>\n", insitu_error(run));
  return 0;
}
