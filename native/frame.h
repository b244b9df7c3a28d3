// The one call frame: every front end (Python, XLA, TensorFlow) fills it, every engine reads it.
#pragma once
#include <cstddef>
#include <cstdint>

namespace lapwing {

enum Op : int32_t {
#define OP(enumerator, ...) enumerator,
#include "ops.def"
#undef OP
  N_OPS,
};
enum Dtype : int32_t { F32, F64, C64, C128, N_DTYPES };
enum Device : int32_t { CPU, CUDA, N_DEVICES };
enum Engine : int32_t { AUTO, LAPACK, BATCHED, TILED, CUSOLVER, KRYLOV, MIXED, TALL, ROCSOLVER, TWO_STAGE, N_ENGINES };
constexpr const char* ENGINE_NAMES[N_ENGINES] = {"auto", "lapack", "batched", "tiled", "cusolver", "krylov", "mixed", "tall",
                                                  "rocsolver", "two_stage"};
enum Flag : uint32_t {
  UPPER = 1,           // the triangle that is read, or that the factor fills
  OVERWRITE = 2,       // buffer[0] may be destroyed
  ADJOINT = 4,         // solve with the adjoint of the matrix
  UNIT = 8,            // the diagonal counts as ones and is not read
  POS = 16,            // Hermitian positive definite: only one triangle is read
  ALLOW_MIXED = 32,    // a factor of lower precision will do, as long as the answer is as good
  SYMMETRIC = 64,      // A = A^T, and both triangles are there
  SELF_ADJOINT = 128,  // A = A^H, likewise
  LENT = 256,          // LAPACK routines that the caller's library lends are at home in its threads, and may be used
  CONJUGATE = 512,     // TRIANGULAR on the CPU: the conjugate of the matrix is in the buffer
};

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
  int32_t engine = 0;    // AUTO lets run() choose; afterwards the engine that did the work, AUTO: none was needed
  bool named = false;    // set by run(): the caller chose the engine, and wants it to try for longer
  int32_t threads = 0;   // CPU threads this call may use; 0: as many as the process allows
  uint32_t flags = 0;
  // as ops.def lists them for the operation: batch, n and more sizes; inputs, then outputs
  int64_t size[6] = {};
  void* buffer[8] = {};
  const int* exponents = nullptr;  // of the powers of two that the matrices were multiplied by on the way in, where they were
  void* stream = nullptr;
  Scratch scratch;
  bool (*interrupted)() = nullptr;  // asked now and then on the calling thread during long CPU work
  char error[512] = {};
  bool out_of_memory = false;  // with a sentence in error
};

// The direct routine that a method for special cases uses if it does not succeed.
struct Direct {
  int32_t engine;
  int (*run)(Frame&);
};

// 0, or 1 with a sentence in frame.error (empty when the call was interrupted).
int run(Frame& frame);
int fail(Frame& frame, const char* format, ...) __attribute__((format(printf, 2, 3)));
// Copies the failure of `other` to the frame.
int fail_as(Frame& frame, const Frame& other);

// The frame of `count` matrices of the batch, from `first` on.
Frame part_of(const Frame& frame, int64_t first, int64_t count);

inline size_t size_of(int32_t dtype) {
  constexpr size_t bytes[] = {4, 8, 8, 16};
  return bytes[dtype];
}

}  // namespace lapwing
