// The one call frame: every front end (Python, XLA, TensorFlow) fills it, every engine reads it.
#pragma once
#include <cstddef>
#include <cstdint>

namespace lapwing {

enum Op : int32_t { CHOLESKY, FINITE, EIGH, EIGVALSH, HERMITIAN, TRIANGULAR, N_OPS, EIGH_PART = N_OPS };  // EIGH_PART: in rules alone
enum Dtype : int32_t { F32, F64, C64, C128, N_DTYPES };
enum Device : int32_t { CPU, CUDA, N_DEVICES };
enum Engine : int32_t { AUTO, LAPACK, BATCHED, TILED, CUSOLVER, KRYLOV, N_ENGINES };
enum Flag : uint32_t { UPPER = 1, OVERWRITE = 2, ADJOINT = 4 };  // OVERWRITE: buffer[0] may be destroyed

// Device memory for the length of one call, from the caller's own allocator.
struct Scratch {
  void* self = nullptr;
  void* (*get)(void* self, size_t bytes) = nullptr;
};

struct Frame {
  int32_t op = 0;
  int32_t dtype = 0;
  int32_t device = 0;
  int32_t ordinal = -1;  // which GPU; -1: the one the stream belongs to
  int32_t engine = 0;    // AUTO lets run() choose from the threshold table
  int32_t threads = 0;   // CPU threads this call may use; 0: as many as the process allows
  uint32_t flags = 0;
  // size: batch, n, then as the operation defines them; buffer: inputs, then outputs, contiguous and row-major
  //   cholesky    batch, n                 a, factor, info
  //   finite      batch, n                 a, status
  //   eigh        batch, n, first, count   a, w (count), v (n x count, a column each), info; count < 0: all
  //   eigvalsh    batch, n, first, count   a, w, info
  //   hermitian   batch, n                 a, the whole matrix
  //   triangular  batch, n, columns        l, b: solved in place
  int64_t size[6] = {};
  void* buffer[8] = {};
  void* stream = nullptr;
  Scratch scratch;
  bool (*interrupted)() = nullptr;  // asked now and then on the calling thread during long CPU work
  char error[512] = {};
  bool out_of_memory = false;  // with a sentence in error
};

// 0, or 1 with a sentence in frame.error (empty when the call was interrupted).
int run(Frame& frame);
int fail(Frame& frame, const char* format, ...) __attribute__((format(printf, 2, 3)));

inline size_t size_of(int32_t dtype) {
  constexpr size_t bytes[] = {4, 8, 8, 16};
  return bytes[dtype];
}

}  // namespace lapwing
