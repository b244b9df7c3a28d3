/* lapwing_insitu.h: pass the fields of a running solver to Python, on their device and without copying.
 *
 *     insitu_ctx *run = insitu_init("analysis.py", NULL, -1);
 *     insitu_device cpu = {INSITU_CPU, 0, NULL};
 *     int64_t shape[2] = {ny, nx};
 *     for (int64_t n = 0; n < steps; ++n) {
 *         advance(u);
 *         insitu_field(run, "u", u, 2, shape, NULL, 'f', 64, cpu, 0);
 *         if (insitu_step(run, n, time) == INSITU_STOP) break;
 *     }
 *     insitu_finalize(run);
 *
 * No call throws, exits or aborts (except with the error policy "abort"), and none changes the solver's floating-point
 * environment, signal handlers or signal mask. A solver may ignore every status but INSITU_STOP.
 *
 * Compile and link with the flags that `python -m lapwing.insitu --cflags --libs` prints, or with CMake's
 * find_package(LapwingInsitu). lapwing_insitu_stub.h has the same functions without a library to link. C99 or C++. Call the
 * functions of one context from one thread at a time.
 *
 * Environment: LAPWING_INSITU=0 turns everything off; LAPWING_INSITU_SCRIPT and LAPWING_INSITU_ON_ERROR override script and
 * error policy; LAPWING_INSITU_PYTHON is the interpreter to use. Without it the first of these that has lapwing is used:
 * $VIRTUAL_ENV/bin/python, the interpreter that the library is installed for, python3 on the PATH. If Python already runs in
 * the process, that one is used.
 */
#ifndef LAPWING_INSITU_H
#define LAPWING_INSITU_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Increases when a function or a struct below changes. */
#define INSITU_API_VERSION 1

typedef struct insitu_ctx insitu_ctx;

typedef enum insitu_status {
  INSITU_OK = 0,
  INSITU_WARN = 1, /* an analysis failed (now or before); the solver can go on */
  INSITU_STOP = 2, /* an analysis asks the solver to end its loop */
  INSITU_ERR = -1  /* the call did nothing; insitu_error says why */
} insitu_status;

/* DLPack's device types. Any other of its values may be given too. */
enum {
  INSITU_CPU = 1,
  INSITU_CUDA = 2,
  INSITU_CUDA_HOST = 3,
  INSITU_ROCM = 10,
  INSITU_ROCM_HOST = 11,
  INSITU_CUDA_MANAGED = 13
};

/* The device of a field, and the stream (cudaStream_t, hipStream_t) on which it is computed; NULL: the default stream. */
typedef struct insitu_device {
  int32_t device_type;
  int32_t device_id;
  void *stream;
} insitu_device;

/* An array: type as in insitu_field. */
typedef struct insitu_array {
  const void *data;
  const int64_t *shape;   /* ndim numbers */
  const int64_t *strides; /* in elements; NULL: C order */
  int32_t ndim;
  int32_t bits;
  char code;
  insitu_device device;
} insitu_array;

/* The mesh, as far as this rank knows it; every pointer may be NULL. Set unused members to zero. */
typedef struct insitu_mesh_info {
  int32_t ndim;
  const int64_t *global_shape;     /* of the whole field, over all ranks */
  const int64_t *offset;           /* index of this rank's first point in it */
  const double *spacing;           /* of a regular mesh: point i is at origin + (offset + i) * spacing */
  const double *origin;
  const insitu_array *weights;     /* volume of each local point; copied */
  const insitu_array *coordinates; /* ndim arrays for an irregular mesh; copied */
  const void *reserved[4];
} insitu_mesh_info;

#ifndef LAPWING_INSITU_ONLY_TYPES

/* Starts the analyses of `script` (a path, or "module:name"). `options_json` may be NULL: the manual lists the options.
 * `mpi_comm_f` is MPI_Comm_c2f(comm), on all ranks of comm, or -1 without MPI.
 * Never returns NULL: a failure is reported on stderr, and every call on the context then returns INSITU_ERR at once. */
insitu_ctx *insitu_init(const char *script, const char *options_json, int64_t mpi_comm_f);

/* Describes a field of the next step. The memory is used until that insitu_step returns, never later.
 * strides: in elements; NULL means C order (last index fastest).
 * code, bits: 'f' 16 32 64, 'i' and 'u' 8 16 32 64, 'c' 64 128 (complex, both parts together), 'b' 8 (bool).
 * writable: whether analyses may change it. */
insitu_status insitu_field(insitu_ctx *ctx, const char *name, void *data, int ndim, const int64_t *shape,
                           const int64_t *strides, char code, int bits, insitu_device device, int writable);

/* The same with a DLPack tensor: a DLManagedTensorVersioned if `versioned`, else a DLManagedTensor. The library owns it from
 * now on, even after an error, and calls its deleter, from any thread, when nothing uses it any more. The work that fills it
 * must be complete, or ordered on the default stream. */
insitu_status insitu_dlpack(insitu_ctx *ctx, const char *name, void *tensor, int versioned);

/* Describes the mesh; call it before the first step, and again whenever the mesh changes. */
insitu_status insitu_mesh(insitu_ctx *ctx, const insitu_mesh_info *mesh);

/* Runs the analyses that are due on the fields described since the last step. With MPI, call it on all ranks. */
insitu_status insitu_step(insitu_ctx *ctx, int64_t step, double time);

/* Saves the state of the analyses, next to the solver's own checkpoint, or loads it (before the first step). */
insitu_status insitu_checkpoint(insitu_ctx *ctx, const char *path);
insitu_status insitu_restore(insitu_ctx *ctx, const char *path);

/* Finishes the analyses: they write their results. With MPI, call it on all ranks and before MPI_Finalize. Afterwards the
 * context can only be used for insitu_error; all other calls return INSITU_ERR. Another insitu_init may follow. */
insitu_status insitu_finalize(insitu_ctx *ctx);

/* The last error, with Python's traceback; "" if there was none. Valid until the next call on this context. */
const char *insitu_error(insitu_ctx *ctx);

/* The version of lapwing, "1.2.3". */
const char *insitu_version(void);

#endif

#ifdef __cplusplus
}
#endif

#endif
