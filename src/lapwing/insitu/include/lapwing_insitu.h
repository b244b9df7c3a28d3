/* lapwing_insitu.h: hand the fields of a running solver to Python, on their device and without copying.
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
 * No call throws, exits or aborts (unless the error policy "abort" was asked for), and none changes the solver's floating-point
 * environment, signal handlers or signal mask. A solver need not look at any status but INSITU_STOP.
 *
 * Compile and link with what `python -m lapwing.insitu --cflags --libs` prints, or with CMake's find_package(LapwingInsitu).
 * lapwing_insitu_stub.h has the same functions without a library to link. C99 or C++; the calls of one context come from one
 * thread at a time.
 *
 * Environment: LAPWING_INSITU=0 turns everything off; LAPWING_INSITU_SCRIPT and LAPWING_INSITU_ON_ERROR override script and
 * error policy; LAPWING_INSITU_PYTHON names the interpreter, otherwise $VIRTUAL_ENV/bin/python, the one the library is
 * installed for, or python3 on the PATH, the first that has lapwing. Where Python runs in the process already, that is used.
 */
#ifndef LAPWING_INSITU_H
#define LAPWING_INSITU_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Grows when a function or a struct below changes. */
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

/* Where a field lives, and the stream (cudaStream_t, hipStream_t) on which the solver works on it; NULL: the default stream. */
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

/* The mesh as far as this rank knows it; every pointer may be NULL. Set unused members to zero. */
typedef struct insitu_mesh_info {
  int32_t ndim;
  const int64_t *global_shape;     /* of the whole field, over all ranks */
  const int64_t *offset;           /* index of this rank's first point in it */
  const double *spacing;           /* of a regular mesh: point i lies at origin + (offset + i) * spacing */
  const double *origin;
  const insitu_array *weights;     /* volume of each local point; copied */
  const insitu_array *coordinates; /* ndim arrays, of an irregular mesh; copied */
  const void *reserved[4];
} insitu_mesh_info;

/* Starts the analyses of `script` (a path, or "module:name"). `options_json` may be NULL: see the manual for the options.
 * `mpi_comm_f` is MPI_Comm_c2f(comm), on all its ranks, or -1.
 * Never returns NULL: after a failure, which is reported on stderr, every call on the context returns INSITU_ERR at once. */
insitu_ctx *insitu_init(const char *script, const char *options_json, int64_t mpi_comm_f);

/* Tells where a field of the coming step is. The memory is used until that insitu_step returns, never later.
 * strides: in elements; NULL means C order (last index fastest).
 * code, bits: 'f' 16 32 64, 'i' and 'u' 8 16 32 64, 'c' 64 128 (complex, both parts together), 'b' 8 (bool).
 * writable: whether analyses may change it. */
insitu_status insitu_field(insitu_ctx *ctx, const char *name, void *data, int ndim, const int64_t *shape,
                           const int64_t *strides, char code, int bits, insitu_device device, int writable);

/* The same with a DLPack tensor: a DLManagedTensorVersioned if `versioned`, else a DLManagedTensor. It is taken over in every
 * case, also in that of an error: its deleter is called when nothing uses it any more, from whichever thread. The work that
 * fills it is complete, or ordered on the default stream. */
insitu_status insitu_dlpack(insitu_ctx *ctx, const char *name, void *tensor, int versioned);

/* Tells the mesh; before the first step, and again whenever it changes. */
insitu_status insitu_mesh(insitu_ctx *ctx, const insitu_mesh_info *mesh);

/* Runs the analyses that are due on the fields given since the last step. Under MPI: on all ranks. */
insitu_status insitu_step(insitu_ctx *ctx, int64_t step, double time);

/* Saves the state of the analyses beside the solver's own checkpoint, or takes it up again (before the first step). */
insitu_status insitu_checkpoint(insitu_ctx *ctx, const char *path);
insitu_status insitu_restore(insitu_ctx *ctx, const char *path);

/* Finishes the analyses: they write their results. Under MPI: on all ranks and before MPI_Finalize. The context stays readable
 * for insitu_error; Python stays loaded, so that another insitu_init may follow. */
insitu_status insitu_finalize(insitu_ctx *ctx);

/* What went wrong last, with Python's traceback; "" if nothing did. Valid until the next call on this context. */
const char *insitu_error(insitu_ctx *ctx);

/* The version of lapwing, "1.2.3". */
const char *insitu_version(void);

#ifdef __cplusplus
}
#endif

#endif
