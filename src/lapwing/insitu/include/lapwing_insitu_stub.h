/* lapwing_insitu_stub.h: the functions of lapwing_insitu.h without a library to link.
 *
 * Include it instead of lapwing_insitu.h; before glibc 2.34 link with -ldl. The first call loads liblapwing_insitu.so from
 * LAPWING_INSITU_LIB (`python -m lapwing.insitu --libfile` prints the path), from the loader's search path, or from the
 * environment that LAPWING_INSITU_PYTHON or VIRTUAL_ENV names. If it is not found, every call does nothing and returns
 * INSITU_OK, so the same solver builds and runs without Python. Set LAPWING_INSITU_VERBOSE to see why it was not found.
 */
#ifndef LAPWING_INSITU_STUB_H
#define LAPWING_INSITU_STUB_H

#define LAPWING_INSITU_ONLY_TYPES /* this file has functions of its own */
#include "lapwing_insitu.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__GNUC__) || defined(__clang__)
#define LAPWING_INSITU_STUB static inline __attribute__((unused))
#else
#define LAPWING_INSITU_STUB static inline
#endif

typedef struct lapwing_insitu_stub_table {
  int state; /* 0: not tried yet, 1: loaded, -1: not found */
  const char *reason;
  insitu_ctx *(*init)(const char *, const char *, int64_t);
  insitu_status (*field)(insitu_ctx *, const char *, void *, int, const int64_t *, const int64_t *, char, int, insitu_device,
                         int);
  insitu_status (*dlpack)(insitu_ctx *, const char *, void *, int);
  insitu_status (*mesh)(insitu_ctx *, const insitu_mesh_info *);
  insitu_status (*step)(insitu_ctx *, int64_t, double);
  insitu_status (*checkpoint)(insitu_ctx *, const char *);
  insitu_status (*restore)(insitu_ctx *, const char *);
  insitu_status (*finalize)(insitu_ctx *);
  const char *(*error)(insitu_ctx *);
  const char *(*version)(void);
} lapwing_insitu_stub_table;

/* folder/lib/python3.N/site-packages/lapwing/liblapwing_insitu.so, for any N */
LAPWING_INSITU_STUB void *lapwing_insitu_stub_in(const char *folder) {
  static const char *const FORMAT = "%s/lib/python3.%d/site-packages/lapwing/liblapwing_insitu.so";
  size_t room = strlen(folder) + strlen(FORMAT) + 16;
  char *path = (char *)malloc(room);
  void *handle = NULL;
  int minor;
  for (minor = 11; path && !handle && minor < 40; ++minor) {
    snprintf(path, room, FORMAT, folder, minor);
    handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  }
  free(path);
  return handle;
}

LAPWING_INSITU_STUB void *lapwing_insitu_stub_open(void) {
  const char *named = getenv("LAPWING_INSITU_LIB");
  const char *python = getenv("LAPWING_INSITU_PYTHON");
  const char *environment = getenv("VIRTUAL_ENV");
  void *handle;
  if (named && *named) return dlopen(named, RTLD_NOW | RTLD_LOCAL);
  handle = dlopen("liblapwing_insitu.so", RTLD_NOW | RTLD_LOCAL);
  if (!handle && python && *python) {
    /* /prefix/bin/python -> /prefix */
    size_t length = strlen(python);
    char *prefix = (char *)malloc(length + 1);
    int parts = 2;
    if (prefix) {
      memcpy(prefix, python, length + 1);
      while (length && parts)
        if (prefix[--length] == '/') --parts;
      prefix[length] = 0;
      if (!parts) handle = lapwing_insitu_stub_in(prefix);
      if (!handle) handle = lapwing_insitu_stub_in(python); /* it may name the environment itself */
      free(prefix);
    }
  }
  if (!handle && environment && *environment) handle = lapwing_insitu_stub_in(environment);
  return handle;
}

/* With memcpy, because ISO C has no cast from an object pointer to a function pointer. */
#define LAPWING_INSITU_FIND(member, symbol)                           \
  do {                                                                \
    void *found = dlsym(handle, symbol);                              \
    memcpy(&table.member, &found, sizeof found);                      \
    if (!found) table.reason = "liblapwing_insitu.so has no " symbol; \
  } while (0)

LAPWING_INSITU_STUB lapwing_insitu_stub_table *lapwing_insitu_stub_get(void) {
  static lapwing_insitu_stub_table table;
  static char reason[512];
  if (table.state == 0) {
    void *handle = lapwing_insitu_stub_open();
    if (!handle) {
      const char *why = dlerror();
      snprintf(reason, sizeof reason, "%s", why ? why : "liblapwing_insitu.so was not found");
      table.reason = reason;
    } else {
      LAPWING_INSITU_FIND(init, "insitu_init");
      LAPWING_INSITU_FIND(field, "insitu_field");
      LAPWING_INSITU_FIND(dlpack, "insitu_dlpack");
      LAPWING_INSITU_FIND(mesh, "insitu_mesh");
      LAPWING_INSITU_FIND(step, "insitu_step");
      LAPWING_INSITU_FIND(checkpoint, "insitu_checkpoint");
      LAPWING_INSITU_FIND(restore, "insitu_restore");
      LAPWING_INSITU_FIND(finalize, "insitu_finalize");
      LAPWING_INSITU_FIND(error, "insitu_error");
      LAPWING_INSITU_FIND(version, "insitu_version");
    }
    table.state = table.reason ? -1 : 1;
    if (table.reason && getenv("LAPWING_INSITU_VERBOSE")) fprintf(stderr, "[lapwing.insitu] off: %s\n", table.reason);
  }
  return &table;
}
#undef LAPWING_INSITU_FIND

/* Calls the deleter of a tensor that is not used. */
LAPWING_INSITU_STUB void lapwing_insitu_stub_drop(void *tensor, int versioned) {
  /* DLManagedTensorVersioned: version, owner, deleter. DLManagedTensor: DLTensor (48 bytes), owner, deleter. */
  void (*deleter)(void *);
  if (!tensor) return;
  memcpy(&deleter, (char *)tensor + (versioned ? 8 : 48) + sizeof(void *), sizeof deleter);
  if (deleter) deleter(tensor);
}

LAPWING_INSITU_STUB insitu_ctx *insitu_init(const char *script, const char *options_json, int64_t mpi_comm_f) {
  static int nothing;
  lapwing_insitu_stub_table *t = lapwing_insitu_stub_get();
  return t->state > 0 ? t->init(script, options_json, mpi_comm_f) : (insitu_ctx *)(void *)&nothing;
}

LAPWING_INSITU_STUB insitu_status insitu_dlpack(insitu_ctx *ctx, const char *name, void *tensor, int versioned) {
  lapwing_insitu_stub_table *t = lapwing_insitu_stub_get();
  if (t->state > 0) return t->dlpack(ctx, name, tensor, versioned);
  lapwing_insitu_stub_drop(tensor, versioned);
  return INSITU_OK;
}

/* The other functions only pass their arguments on. */
#define LAPWING_INSITU_PASS(function, parameters, arguments)            \
  LAPWING_INSITU_STUB insitu_status insitu_##function parameters {      \
    lapwing_insitu_stub_table *t = lapwing_insitu_stub_get();           \
    return t->state > 0 ? t->function arguments : INSITU_OK;            \
  }
LAPWING_INSITU_PASS(field,
                    (insitu_ctx *ctx, const char *name, void *data, int ndim, const int64_t *shape, const int64_t *strides,
                     char code, int bits, insitu_device device, int writable),
                    (ctx, name, data, ndim, shape, strides, code, bits, device, writable))
LAPWING_INSITU_PASS(mesh, (insitu_ctx *ctx, const insitu_mesh_info *mesh), (ctx, mesh))
LAPWING_INSITU_PASS(step, (insitu_ctx *ctx, int64_t step, double time), (ctx, step, time))
LAPWING_INSITU_PASS(checkpoint, (insitu_ctx *ctx, const char *path), (ctx, path))
LAPWING_INSITU_PASS(restore, (insitu_ctx *ctx, const char *path), (ctx, path))
LAPWING_INSITU_PASS(finalize, (insitu_ctx *ctx), (ctx))
#undef LAPWING_INSITU_PASS

/* If the library was not found: the reason, although that is not an error. */
LAPWING_INSITU_STUB const char *insitu_error(insitu_ctx *ctx) {
  lapwing_insitu_stub_table *t = lapwing_insitu_stub_get();
  return t->state > 0 ? t->error(ctx) : t->reason;
}

LAPWING_INSITU_STUB const char *insitu_version(void) {
  lapwing_insitu_stub_table *t = lapwing_insitu_stub_get();
  return t->state > 0 ? t->version() : "absent";
}

#endif
