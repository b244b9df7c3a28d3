// TensorFlow ops and kernels through TensorFlow's C interface, declared by hand and found in the loaded library: no
// header and no C++ symbol of TensorFlow, so that one binary serves every version from 2.16 on. Registration happens
// while tf.load_op_library loads this file. The work is done by the core, which lies beside this file in the package.
#include <dlfcn.h>

#include <cstdio>
#include <cstring>
#include <new>
#include <utility>

#include "frame.h"

namespace lapwing::tensorflow {
namespace {

// Types of TensorFlow that only it looks into.
struct Status;
struct Tensor;
struct OpBuilder;
struct KernelBuilder;
struct Construction;
struct Context;
struct Shape;
struct Dimension;
struct ShapeContext;

#define LAPWING_TENSORFLOW(X)                                                                                          \
  X(Status*, TF_NewStatus, ())                                                                                         \
  X(void, TF_DeleteStatus, (Status*))                                                                                  \
  X(int, TF_GetCode, (const Status*))                                                                                  \
  X(const char*, TF_Message, (const Status*))                                                                          \
  X(void, TF_SetStatus, (Status*, int, const char*))                                                                   \
  X(OpBuilder*, TF_NewOpDefinitionBuilder, (const char*))                                                              \
  X(void, TF_OpDefinitionBuilderAddAttr, (OpBuilder*, const char*))                                                    \
  X(void, TF_OpDefinitionBuilderAddInput, (OpBuilder*, const char*))                                                   \
  X(void, TF_OpDefinitionBuilderAddOutput, (OpBuilder*, const char*))                                                  \
  X(void, TF_OpDefinitionBuilderSetShapeInferenceFunction, (OpBuilder*, void (*)(ShapeContext*, Status*)))             \
  X(void, TF_RegisterOpDefinition, (OpBuilder*, Status*))                                                              \
  X(Shape*, TF_NewShapeHandle, ())                                                                                     \
  X(void, TF_DeleteShapeHandle, (Shape*))                                                                              \
  X(Dimension*, TF_NewDimensionHandle, ())                                                                             \
  X(void, TF_DeleteDimensionHandle, (Dimension*))                                                                      \
  X(int, TF_DimensionHandleValueKnown, (Dimension*))                                                                   \
  X(int64_t, TF_DimensionHandleValue, (Dimension*))                                                                    \
  X(void, TF_ShapeInferenceContextGetInput, (ShapeContext*, int, Shape*, Status*))                                     \
  X(void, TF_ShapeInferenceContextSetOutput, (ShapeContext*, int, Shape*, Status*))                                    \
  X(int, TF_ShapeInferenceContextRankKnown, (ShapeContext*, Shape*))                                                   \
  X(int64_t, TF_ShapeInferenceContextRank, (ShapeContext*, Shape*))                                                    \
  X(void, TF_ShapeInferenceContextWithRankAtLeast, (ShapeContext*, Shape*, int64_t, Shape*, Status*))                  \
  X(void, TF_ShapeInferenceContextDim, (ShapeContext*, Shape*, int64_t, Dimension*))                                   \
  X(void, TF_ShapeInferenceContextSubshape, (ShapeContext*, Shape*, int64_t, int64_t, Shape*, Status*))                \
  X(void, TF_ShapeInferenceContextSetUnknownShape, (ShapeContext*, Status*))                                           \
  X(Shape*, TF_ShapeInferenceContextVectorFromSize, (ShapeContext*, size_t))                                           \
  X(void, TF_ShapeInferenceContextConcatenateShapes, (ShapeContext*, Shape*, Shape*, Shape*, Status*))                 \
  X(KernelBuilder*, TF_NewKernelBuilder,                                                                               \
    (const char*, const char*, void* (*)(Construction*), void (*)(void*, Context*), void (*)(void*)))                  \
  X(void, TF_KernelBuilder_TypeConstraint, (KernelBuilder*, const char*, int, Status*))                                \
  X(void, TF_DeleteKernelBuilder, (KernelBuilder*))                                                                    \
  X(void, TF_RegisterKernelBuilder, (const char*, KernelBuilder*, Status*))                                            \
  X(void, TF_OpKernelConstruction_GetAttrInt64, (Construction*, const char*, int64_t*, Status*))                       \
  X(void, TF_OpKernelConstruction_Failure, (Construction*, Status*))                                                   \
  X(void, TF_OpKernelContext_Failure, (Context*, Status*))                                                             \
  X(void, TF_GetInput, (Context*, int, Tensor**, Status*))                                                             \
  X(Tensor*, TF_AllocateOutput, (Context*, int, int, const int64_t*, int, size_t, Status*))                            \
  X(Tensor*, TF_ForwardInputOrAllocateOutput,                                                                          \
    (Context*, const int*, int, int, const int64_t*, int, int*, Status*))                                              \
  X(Tensor*, TF_AllocateTemp, (Context*, int, const int64_t*, int, void*, Status*))                                    \
  X(void*, TF_GetStream, (Context*, Status*))                                                                          \
  X(int, TF_GetDeviceId, (Context*))                                                                                   \
  X(int, TF_TensorType, (const Tensor*))                                                                               \
  X(int, TF_NumDims, (const Tensor*))                                                                                  \
  X(int64_t, TF_Dim, (const Tensor*, int))                                                                             \
  X(void*, TF_TensorData, (const Tensor*))                                                                             \
  X(void, TF_DeleteTensor, (Tensor*))

#define LAPWING_DRIVER(X)                                                                                              \
  X(int, cuInit, (unsigned))                                                                                           \
  X(int, cuDevicePrimaryCtxRetain, (void**, int))                                                                      \
  X(int, cuDevicePrimaryCtxRelease_v2, (int))                                                                          \
  X(int, cuCtxPushCurrent_v2, (void*))                                                                                 \
  X(int, cuCtxPopCurrent_v2, (void**))                                                                                 \
  X(int, cuCtxSynchronize, ())

#define LAPWING_POINTER(result, name, arguments) result(*name) arguments = nullptr;
LAPWING_TENSORFLOW(LAPWING_POINTER)
LAPWING_DRIVER(LAPWING_POINTER)
#undef LAPWING_POINTER
int (*core_run)(Frame*) = nullptr;
char problem[512] = {};  // why nothing, or not everything, was registered

constexpr int INVALID_ARGUMENT = 3, RESOURCE_EXHAUSTED = 8, INTERNAL = 13;  // TF_Code
constexpr int TF_FLOAT = 1, TF_DOUBLE = 2, TF_INT32 = 3, TF_UINT8 = 4, TF_COMPLEX64 = 8, TF_COMPLEX128 = 18;
constexpr int TYPES[] = {TF_FLOAT, TF_DOUBLE, TF_COMPLEX64, TF_COMPLEX128};  // in the order of Dtype
constexpr int MOST_DIMENSIONS = 254;  // of any TensorFlow tensor

// What an operation looks like in a graph. A new operation is a new row.
// An output has type and shape of the input; is a status per matrix; holds all or some eigenvalues, or some eigenvectors.
enum Extent { NONE, LIKE_INPUT, PER_MATRIX, VALUES, SOME_VALUES, SOME_VECTORS };
struct Output {
  const char* spec;
  Extent extent;
};
constexpr int MOST_OUTPUTS = 4;
struct Row {
  Op op;
  const char* name;
  Output outputs[MOST_OUTPUTS];
};
// A part of a spectrum has an op of its own: how many values it gives is an attribute, which the inference of shapes
// cannot read, so that its caller has to tell them.
constexpr Row ROWS[] = {
    {CHOLESKY, "LapwingCholesky", {{"factor: T", LIKE_INPUT}, {"info: int32", PER_MATRIX}}},
    {FINITE, "LapwingFinite", {{"finite: int32", PER_MATRIX}}},
    {EIGH, "LapwingEigh", {{"w: R", VALUES}, {"v: T", LIKE_INPUT}, {"info: int32", PER_MATRIX}}},
    {EIGH, "LapwingEighPart", {{"w: R", SOME_VALUES}, {"v: T", SOME_VECTORS}, {"info: int32", PER_MATRIX}}},
    {EIGVALSH, "LapwingEigvalsh", {{"w: R", VALUES}, {"info: int32", PER_MATRIX}}},
    {EIGVALSH, "LapwingEigvalshPart", {{"w: R", SOME_VALUES}, {"info: int32", PER_MATRIX}}},
    {HERMITIAN, "LapwingHermitian", {{"whole: T", LIKE_INPUT}}},
};
constexpr int N_ROWS = sizeof ROWS / sizeof ROWS[0];

class Answer {
 public:
  Answer() : status_(TF_NewStatus()) {}
  ~Answer() { TF_DeleteStatus(status_); }
  Answer(const Answer&) = delete;
  operator Status*() { return status_; }
  bool ok() const { return TF_GetCode(status_) == 0; }
  const char* message() const { return TF_Message(status_); }
  void set(int code, const char* text) { TF_SetStatus(status_, code, text); }

 private:
  Status* status_;
};

class ShapeHandle {
 public:
  explicit ShapeHandle(Shape* shape = TF_NewShapeHandle()) : shape_(shape) {}
  ~ShapeHandle() { TF_DeleteShapeHandle(shape_); }
  ShapeHandle(const ShapeHandle&) = delete;
  operator Shape*() { return shape_; }

 private:
  Shape* shape_;
};

class TensorHandle {
 public:
  ~TensorHandle() { reset(nullptr); }
  TensorHandle() = default;
  TensorHandle(const TensorHandle&) = delete;
  Tensor** slot() { return &tensor_; }
  void reset(Tensor* tensor) {
    if (tensor_) TF_DeleteTensor(tensor_);
    tensor_ = tensor;
  }
  operator Tensor*() const { return tensor_; }

 private:
  Tensor* tensor_ = nullptr;
};

// ---- shapes, while a graph is built

// The size of axis `i`, or -1.
int64_t dimension(ShapeContext* context, Shape* shape, int64_t i) {
  Dimension* handle = TF_NewDimensionHandle();
  TF_ShapeInferenceContextDim(context, shape, i, handle);
  int64_t value = TF_DimensionHandleValueKnown(handle) ? TF_DimensionHandleValue(handle) : -1;
  TF_DeleteDimensionHandle(handle);
  return value;
}

template <int ROW>
void infer_shapes(ShapeContext* context, Status* status) {
  ShapeHandle a, batch, matrix;
  TF_ShapeInferenceContextGetInput(context, 0, a, status);
  if (TF_GetCode(status)) return;
  TF_ShapeInferenceContextWithRankAtLeast(context, a, 2, a, status);
  if (TF_GetCode(status)) return;
  TF_ShapeInferenceContextSubshape(context, a, 0, -2, batch, status);
  if (TF_GetCode(status)) return;
  if (TF_ShapeInferenceContextRankKnown(context, a)) {
    int64_t rank = TF_ShapeInferenceContextRank(context, a);
    int64_t rows = dimension(context, a, rank - 2), columns = dimension(context, a, rank - 1);
    if (rows >= 0 && columns >= 0 && rows != columns) {
      char text[160];
      std::snprintf(text, sizeof text, "%s: the matrices must be square, got %lld x %lld", ROWS[ROW].name,
                    static_cast<long long>(rows), static_cast<long long>(columns));
      return TF_SetStatus(status, INVALID_ARGUMENT, text);
    }
    if ((rows < 0) != (columns < 0)) {  // one of the two is known, so both are
      ShapeHandle n(TF_ShapeInferenceContextVectorFromSize(context, size_t(rows < 0 ? columns : rows)));
      TF_ShapeInferenceContextConcatenateShapes(context, n, n, matrix, status);
      if (TF_GetCode(status)) return;
      TF_ShapeInferenceContextConcatenateShapes(context, batch, matrix, a, status);
      if (TF_GetCode(status)) return;
    }
  }
  ShapeHandle vector;
  TF_ShapeInferenceContextSubshape(context, a, 0, -1, vector, status);
  if (TF_GetCode(status)) return;
  TF_ShapeInferenceContextSetUnknownShape(context, status);
  for (int i = 0; i < MOST_OUTPUTS && ROWS[ROW].outputs[i].spec && !TF_GetCode(status); i++) {
    Extent extent = ROWS[ROW].outputs[i].extent;
    if (extent == SOME_VALUES || extent == SOME_VECTORS) continue;
    Shape* shape = extent == LIKE_INPUT ? a : extent == VALUES ? vector : batch;
    TF_ShapeInferenceContextSetOutput(context, i, shape, status);
  }
}

// ---- kernels

// One node of a graph.
struct Kernel {
  const Row* row;
  Device device;
  int64_t flags, engine, first, count;
};

template <int ROW, Device DEVICE>
void* create(Construction* construction) {
  Answer answer;
  auto* kernel = new (std::nothrow) Kernel{&ROWS[ROW], DEVICE, 0, 0, 0, 0};
  if (!kernel) answer.set(RESOURCE_EXHAUSTED, "lapwing: out of memory");
  if (answer.ok()) TF_OpKernelConstruction_GetAttrInt64(construction, "flags", &kernel->flags, answer);
  if (answer.ok()) TF_OpKernelConstruction_GetAttrInt64(construction, "engine", &kernel->engine, answer);
  if (answer.ok()) TF_OpKernelConstruction_GetAttrInt64(construction, "first", &kernel->first, answer);
  if (answer.ok()) TF_OpKernelConstruction_GetAttrInt64(construction, "count", &kernel->count, answer);
  if (!answer.ok()) TF_OpKernelConstruction_Failure(construction, answer);
  return kernel;
}

void destroy(void* kernel) { delete static_cast<Kernel*>(kernel); }

// Not run on a GPU: this part follows TensorFlow's and the driver's documentation and is tested against stand-ins.
//
// A kernel made through the C interface cannot learn the stream of a built-in GPU: TF_GetStream answers for plug-in
// devices only. TensorFlow's streams do not wait for the default stream either. So the call works on the default stream
// and waits for the whole context: before the work, as inputs may still be on their way and fresh memory may still be
// in use by work queued earlier; and after it, as whatever TensorFlow queues next takes the results as ready.
class Gpu {
 public:
  explicit Gpu(Context* context) : context_(context) {}
  ~Gpu() {
    void* old = nullptr;
    if (pushed_) cuCtxPopCurrent_v2(&old);
    if (ordinal_ >= 0) cuDevicePrimaryCtxRelease_v2(ordinal_);
  }
  Gpu(const Gpu&) = delete;

  // The device of the context becomes current. nullptr, or what went wrong.
  const char* enter() {
    Answer answer;
    TF_GetStream(context_, answer);
    if (answer.ok())
      return "this GPU belongs to a TensorFlow plug-in, whose streams cannot be used\nhint: use tf.device(\"CPU\")";
    if (!driver_loaded()) return "the GPU driver (libcuda.so.1) cannot be loaded";
    int device = TF_GetDeviceId(context_);
    void* primary = nullptr;  // the context TensorFlow works in as well
    if (cuDevicePrimaryCtxRetain(&primary, device)) return "the GPU driver does not know this GPU";
    ordinal_ = device;
    pushed_ = cuCtxPushCurrent_v2(primary) == 0;
    return pushed_ ? nullptr : "the GPU driver cannot enter the context of this GPU";
  }

  bool wait() { return cuCtxSynchronize() == 0; }
  int ordinal() const { return ordinal_; }

  // Memory from TensorFlow's allocator. Work queued earlier may still use it, hence the wait.
  static void* get(void* self, size_t bytes) {
    auto* gpu = static_cast<Gpu*>(self);
    if (gpu->count_ == MOST) return nullptr;
    TensorHandle& block = gpu->blocks_[gpu->count_];
    Answer answer;
    int64_t size = int64_t(bytes);
    block.reset(TF_AllocateTemp(gpu->context_, TF_UINT8, &size, 1, nullptr, answer));
    if (!answer.ok() || !block || !gpu->wait()) return nullptr;
    gpu->count_++;
    return TF_TensorData(block);
  }

 private:
  static bool driver_loaded() {
    static const bool loaded = [] {
      void* library = dlopen("libcuda.so.1", RTLD_NOW);
      if (!library) return false;
      bool all = true;
#define LAPWING_FIND(result, name, arguments) \
  name = reinterpret_cast<result(*) arguments>(dlsym(library, #name)); \
  all = all && name;
      LAPWING_DRIVER(LAPWING_FIND)
#undef LAPWING_FIND
      return all && cuInit(0) == 0;
    }();
    return loaded;
  }

  static constexpr int MOST = 8;
  Context* context_;
  TensorHandle blocks_[MOST];
  int count_ = 0;
  int ordinal_ = -1;
  bool pushed_ = false;
};

int real_of(int type) {
  return type == TYPES[C64] ? TYPES[F32] : type == TYPES[C128] ? TYPES[F64] : type;
}

int dtype_of(int type) {
  for (int i = 0; i < N_DTYPES; i++)
    if (TYPES[i] == type) return i;
  return -1;
}

void refuse(Context* context, Answer& answer, const Row& row, int code, const char* what) {
  char text[640];
  std::snprintf(text, sizeof text, "%s: %s", row.name, what);
  answer.set(code, text);
  TF_OpKernelContext_Failure(context, answer);
}

void compute(void* self, Context* context) {
  const Kernel& kernel = *static_cast<Kernel*>(self);
  const Row& row = *kernel.row;
  Answer answer;
  Frame frame;
  frame.op = row.op;
  frame.device = kernel.device;
  frame.engine = int32_t(kernel.engine);
  frame.flags = uint32_t(kernel.flags);

  // Our reference to the input is given back at once, as it would keep TensorFlow from forwarding the memory.
  // TensorFlow holds its own until this function returns.
  int64_t dims[MOST_DIMENSIONS];
  int rank = 0;
  {
    TensorHandle a;
    TF_GetInput(context, 0, a.slot(), answer);
    if (!answer.ok()) return TF_OpKernelContext_Failure(context, answer);
    rank = TF_NumDims(a);
    if (rank > MOST_DIMENSIONS) return refuse(context, answer, row, INVALID_ARGUMENT, "too many axes");
    for (int i = 0; i < rank; i++) dims[i] = TF_Dim(a, i);
    frame.dtype = dtype_of(TF_TensorType(a));
    frame.buffer[0] = TF_TensorData(a);
  }
  if (rank < 2 || dims[rank - 1] != dims[rank - 2])
    return refuse(context, answer, row, INVALID_ARGUMENT, "the matrices must be square");
  frame.size[0] = 1;
  for (int i = 0; i + 2 < rank; i++) frame.size[0] *= dims[i];
  frame.size[1] = dims[rank - 1];

  const int64_t n = frame.size[1];
  frame.size[2] = kernel.first < 0 ? kernel.first + n : kernel.first;
  frame.size[3] = kernel.count < 0 ? n : kernel.count;
  if (frame.size[2] < 0 || frame.size[2] + frame.size[3] > n)
    return refuse(context, answer, row, INVALID_ARGUMENT, "the matrices are smaller than the part that was asked for");

  TensorHandle outputs[MOST_OUTPUTS];
  for (int i = 0; i < MOST_OUTPUTS && row.outputs[i].spec; i++) {
    const Extent extent = row.outputs[i].extent;
    const bool whole = extent == LIKE_INPUT;
    const bool values = extent == VALUES || extent == SOME_VALUES;
    if (whole && frame.size[0] == 1) {
      const int candidate = 0;
      int forwarded = -1;
      outputs[i].reset(TF_ForwardInputOrAllocateOutput(context, &candidate, 1, i, dims, rank, &forwarded, answer));
    } else {
      int64_t shape[MOST_DIMENSIONS];
      std::memcpy(shape, dims, sizeof shape);
      const int type = extent == PER_MATRIX ? int(TF_INT32) : values ? real_of(TYPES[frame.dtype]) : TYPES[frame.dtype];
      const int axes = extent == PER_MATRIX ? rank - 2 : values ? rank - 1 : rank;
      if (!whole && axes > rank - 2) shape[axes - 1] = frame.size[3];
      size_t bytes = extent == PER_MATRIX ? sizeof(int32_t) : size_of(dtype_of(type));
      for (int k = 0; k < axes; k++) bytes *= size_t(shape[k]);
      outputs[i].reset(TF_AllocateOutput(context, i, type, shape, axes, bytes, answer));
    }
    if (!answer.ok()) return TF_OpKernelContext_Failure(context, answer);
    frame.buffer[1 + i] = TF_TensorData(outputs[i]);
  }

  if (kernel.device == CPU) {
    if (core_run(&frame)) refuse(context, answer, row, frame.out_of_memory ? RESOURCE_EXHAUSTED : INTERNAL, frame.error);
    return;
  }
  Gpu gpu(context);
  if (const char* what = gpu.enter()) return refuse(context, answer, row, INTERNAL, what);
  frame.ordinal = gpu.ordinal();
  frame.scratch = {&gpu, Gpu::get};
  if (!gpu.wait()) return refuse(context, answer, row, INTERNAL, "waiting for the GPU failed");
  bool failed = core_run(&frame);
  bool finished = gpu.wait();  // also after a failure: some of the work may have been queued
  if (failed) return refuse(context, answer, row, INTERNAL, frame.error);
  if (!finished) refuse(context, answer, row, INTERNAL, "waiting for the GPU failed");
}

// ---- registration

void note(const char* what) { std::snprintf(problem, sizeof problem, "%.500s", what); }

// In the package the core lies beside this file. Python has loaded and set it up already: this finds that copy.
bool find_core() {
  Dl_info self;
  if (!dladdr(reinterpret_cast<void*>(&find_core), &self) || !self.dli_fname) {
    note("the folder of the TensorFlow ops is not known");
    return false;
  }
  char path[4096];
  const char* slash = std::strrchr(self.dli_fname, '/');
  int folder = slash ? int(slash + 1 - self.dli_fname) : 0;
  std::snprintf(path, sizeof path, "%.*s_native.abi3.so", folder, self.dli_fname);
  void* library = dlopen(path, RTLD_NOW);
  if (library) core_run = reinterpret_cast<int (*)(Frame*)>(dlsym(library, "lapwing_run"));
  if (!core_run) {
    const char* reason = dlerror();
    note(reason ? reason : path);
  }
  return core_run;
}

bool find_tensorflow() {
  void* library = dlopen("libtensorflow_framework.so.2", RTLD_NOW | RTLD_NOLOAD);
  if (!library) {
    note("libtensorflow_framework.so.2 is not loaded");
    return false;
  }
#define LAPWING_FIND(result, name, arguments) \
  if (!(name = reinterpret_cast<result(*) arguments>(dlsym(library, #name)))) note("this TensorFlow has no " #name);
  LAPWING_TENSORFLOW(LAPWING_FIND)
#undef LAPWING_FIND
  return !problem[0];
}

bool has_values(const Row& row) { return row.op == EIGH || row.op == EIGVALSH; }

void register_kernels(const Row& row, const char* device, void* (*make)(Construction*)) {
  for (int type : TYPES) {
    Answer answer;
    KernelBuilder* builder = TF_NewKernelBuilder(row.name, device, make, compute, destroy);
    TF_KernelBuilder_TypeConstraint(builder, "T", type, answer);
    if (answer.ok() && has_values(row)) TF_KernelBuilder_TypeConstraint(builder, "R", real_of(type), answer);
    if (answer.ok())
      TF_RegisterKernelBuilder(row.name, builder, answer);
    else
      TF_DeleteKernelBuilder(builder);
    if (!answer.ok()) note(answer.message());
  }
}

template <int ROW>
void register_row() {
  const Row& row = ROWS[ROW];
  Answer answer;
  OpBuilder* builder = TF_NewOpDefinitionBuilder(row.name);
  TF_OpDefinitionBuilderAddInput(builder, "a: T");
  for (int i = 0; i < MOST_OUTPUTS && row.outputs[i].spec; i++)
    TF_OpDefinitionBuilderAddOutput(builder, row.outputs[i].spec);
  TF_OpDefinitionBuilderAddAttr(builder, "flags: int = 0");
  TF_OpDefinitionBuilderAddAttr(builder, "engine: int = 0");
  TF_OpDefinitionBuilderAddAttr(builder, "first: int = 0");
  TF_OpDefinitionBuilderAddAttr(builder, "count: int = -1");
  if (has_values(row)) TF_OpDefinitionBuilderAddAttr(builder, "R: {float, double}");
  TF_OpDefinitionBuilderAddAttr(builder, "T: {float, double, complex64, complex128}");
  TF_OpDefinitionBuilderSetShapeInferenceFunction(builder, infer_shapes<ROW>);
  TF_RegisterOpDefinition(builder, answer);
  if (!answer.ok()) {
    note(answer.message());
    return;
  }
  register_kernels(row, "CPU", create<ROW, CPU>);
  register_kernels(row, "GPU", create<ROW, CUDA>);
}

template <int... ROW>
void register_rows(std::integer_sequence<int, ROW...>) {
  (register_row<ROW>(), ...);
}

__attribute__((constructor)) void register_all() {
  if (find_tensorflow() && find_core()) register_rows(std::make_integer_sequence<int, N_ROWS>{});
}

}  // namespace
}  // namespace lapwing::tensorflow

// Why nothing, or not everything, was registered; empty when all is well.
extern "C" __attribute__((visibility("default"))) const char* lapwing_tensorflow_problem() {
  return lapwing::tensorflow::problem;
}
