// TensorFlow ops and kernels through TensorFlow's C interface, declared by hand and found in the loaded library: no
// header and no C++ symbol of TensorFlow, so that one binary serves every version from 2.16 on. Registration happens
// while tf.load_op_library loads this file. The work is done by the core, which lies beside this file in the package.
#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <new>
#include <string>
#include <utility>

#include "bind/shapes.h"
#include "operations.h"

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

// What an operation looks like in a graph. Outputs of another shape are an op of their own: one whose factors are square, and
// one with a part of a spectrum, whose length is an attribute, which the inference of shapes cannot read.
struct Row {
  Op op;
  const char* variant = "";
  bool full = false, part = false;

  const Argument* inputs() const { return OPERATIONS[op].inputs; }
  const Argument* outputs() const { return OPERATIONS[op].outputs; }
  // An axis of an output in the letters of the inputs, or s for the smaller of m and n, p for a part of a spectrum.
  char settled(char axis) const {
    if (axis == 'p') return part ? 'p' : 'n';
    return axis == 'c' ? (full ? 'm' : 's') : axis == 'd' ? (full ? 'n' : 's') : axis;
  }
  // Whether the output may take the memory of an input.
  bool shares(const Argument& output) const { return output.shares >= 0 && !(part && std::strchr(output.axes, 'p')); }
  // lu_solve: LapwingLuSolve
  std::string name() const {
    std::string words = std::string("_") + OPERATIONS[op].name, name = "Lapwing";
    for (size_t i = 1; i < words.size(); i++)
      if (words[i] != '_') name += words[i - 1] == '_' ? char(words[i] - 'a' + 'A') : words[i];
    return name + variant;
  }
};
constexpr Row VARIANTS[] = {{EIGH, "Part", false, true}, {EIGVALSH, "Part", false, true}, {SOLVE, "Mixed"},
                            {QR, "Complete", true},      {SVD, "Full", true}};
constexpr int N_ROWS = N_OPS + sizeof VARIANTS / sizeof VARIANTS[0];
constexpr Row row_of(int i) { return i < N_OPS ? Row{Op(i), "", false, i == SVD_PART} : VARIANTS[i - N_OPS]; }

int axes_of(const Argument& argument) { return int(std::strlen(argument.axes)); }

// What is known of the letters; -1: nothing yet.
class Lengths {
 public:
  Lengths() { std::fill(length_, length_ + 26, -1); }
  int64_t operator[](char axis) const { return length_[axis - 'a']; }
  void set(char axis, int64_t length) { length_[axis - 'a'] = length; }
  // Whether nothing else was known.
  bool fits(char axis, int64_t length) {
    const int64_t known = (*this)[axis];
    if (known < 0) set(axis, length);
    return known < 0 || length < 0 || known == length;
  }
  void conclude() {
    if ((*this)['m'] >= 0 && (*this)['n'] >= 0) set('s', std::min((*this)['m'], (*this)['n']));
  }

 private:
  int64_t length_[26];
};

// Owns one object of TensorFlow.
template <class T, void (**DELETE)(T*)>
class Handle {
 public:
  explicit Handle(T* object = nullptr) : object_(object) {}
  ~Handle() { reset(nullptr); }
  Handle(const Handle&) = delete;
  operator T*() const { return object_; }
  T** slot() { return &object_; }
  void reset(T* object) {
    if (object_) (*DELETE)(object_);
    object_ = object;
  }

 private:
  T* object_;
};

using TensorHandle = Handle<Tensor, &TF_DeleteTensor>;

struct ShapeHandle : Handle<Shape, &TF_DeleteShapeHandle> {
  ShapeHandle() : Handle(TF_NewShapeHandle()) {}
};

struct Answer : Handle<Status, &TF_DeleteStatus> {
  Answer() : Handle(TF_NewStatus()) {}
  bool ok() const { return TF_GetCode(*this) == 0; }
  const char* message() const { return TF_Message(*this); }
  void set(int code, const char* text) { TF_SetStatus(*this, code, text); }
};

// ---- shapes, while a graph is built

// The size of axis `i`, or -1.
int64_t dimension(ShapeContext* context, Shape* shape, int64_t i) {
  const Handle<Dimension, &TF_DeleteDimensionHandle> handle(TF_NewDimensionHandle());
  TF_ShapeInferenceContextDim(context, shape, i, handle);
  return TF_DimensionHandleValueKnown(handle) ? TF_DimensionHandleValue(handle) : -1;
}

// The shape of one axis with this letter, into `shape`: its length, or what stands there in an input. False: neither.
bool shape_of_axis(ShapeContext* context, const Row& row, ShapeHandle* inputs, const Lengths& lengths, char axis,
                   ShapeHandle& shape, Status* status) {
  if (lengths[axis] >= 0) {
    shape.reset(TF_ShapeInferenceContextVectorFromSize(context, size_t(lengths[axis])));
    return true;
  }
  for (int i = 0; i < count_of(row.inputs()); i++) {
    const char* rest_of_axes = std::strchr(row.inputs()[i].axes, axis);
    if (!rest_of_axes || !TF_ShapeInferenceContextRankKnown(context, inputs[i])) continue;
    const int64_t place = TF_ShapeInferenceContextRank(context, inputs[i]) - int64_t(std::strlen(rest_of_axes));
    TF_ShapeInferenceContextSubshape(context, inputs[i], place, place + 1, shape, status);
    return !TF_GetCode(status);
  }
  return false;
}

template <int ROW>
void infer_shapes(ShapeContext* context, Status* status) {
  constexpr Row row = row_of(ROW);
  ShapeHandle inputs[MOST_INPUTS], batch;
  Lengths lengths;
  for (int i = 0; i < count_of(row.inputs()); i++) {
    const Argument& input = row.inputs()[i];
    TF_ShapeInferenceContextGetInput(context, i, inputs[i], status);
    if (TF_GetCode(status)) return;
    TF_ShapeInferenceContextWithRankAtLeast(context, inputs[i], axes_of(input), inputs[i], status);
    if (TF_GetCode(status)) return;
    if (!TF_ShapeInferenceContextRankKnown(context, inputs[i])) continue;
    const int64_t first = TF_ShapeInferenceContextRank(context, inputs[i]) - axes_of(input);
    for (int k = 0; k < axes_of(input); k++) {
      const int64_t length = dimension(context, inputs[i], first + k), known = lengths[input.axes[k]];
      if (lengths.fits(input.axes[k], length)) continue;
      const char* what = i ? "the inputs do not fit, got lengths" : "the matrices must be square, got";
      char text[160];
      std::snprintf(text, sizeof text, "%s: %s %lld and %lld", row.name().c_str(), what, static_cast<long long>(known),
                    static_cast<long long>(length));
      return TF_SetStatus(status, INVALID_ARGUMENT, text);
    }
  }
  lengths.conclude();
  TF_ShapeInferenceContextSubshape(context, inputs[0], 0, -axes_of(row.inputs()[0]), batch, status);
  if (TF_GetCode(status)) return;
  TF_ShapeInferenceContextSetUnknownShape(context, status);
  for (int i = 0; i < count_of(row.outputs()) && !TF_GetCode(status); i++) {
    ShapeHandle whole;
    TF_ShapeInferenceContextSubshape(context, batch, 0, INT64_MAX, whole, status);
    bool known = !TF_GetCode(status);
    for (const char* axis = row.outputs()[i].axes; *axis && known; axis++) {
      ShapeHandle one;
      known = shape_of_axis(context, row, inputs, lengths, row.settled(*axis), one, status);
      if (known) TF_ShapeInferenceContextConcatenateShapes(context, whole, one, whole, status);
      known = known && !TF_GetCode(status);
    }
    if (known) TF_ShapeInferenceContextSetOutput(context, i, whole, status);
  }
}

// ---- kernels

// One node of a graph.
struct Kernel {
  Row row;
  Device device;
  int64_t flags, engine, first, count;
};

template <int ROW, Device DEVICE>
void* create(Construction* construction) {
  Answer answer;
  auto* kernel = new (std::nothrow) Kernel{row_of(ROW), DEVICE, 0, 0, 0, 0};
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

int complex_of(int type) {
  return type == TYPES[F32] ? TYPES[C64] : type == TYPES[F64] ? TYPES[C128] : type;
}

int type_of(const Argument& argument, int matrix) {
  switch (argument.type) {
    case Type::INTEGER: return TF_INT32;
    case Type::REAL: return real_of(matrix);
    case Type::COMPLEX: return complex_of(matrix);
    default: return matrix;
  }
}

int dtype_of(int type) {
  for (int i = 0; i < N_DTYPES; i++)
    if (TYPES[i] == type) return i;
  return -1;
}

void refuse(Context* context, Answer& answer, const Row& row, int code, const char* what) {
  char text[640];
  std::snprintf(text, sizeof text, "%s: %s", row.name().c_str(), what);
  answer.set(code, text);
  TF_OpKernelContext_Failure(context, answer);
}

// The sizes of the frame and the length of every axis, from the shapes of the inputs. nullptr, or what is wrong.
const char* set_lengths(Frame& frame, const Kernel& kernel, const int64_t (*dims)[MOST_DIMENSIONS], const int* ranks,
                        Lengths& lengths) {
  const Row& row = kernel.row;
  const int last = count_of(row.inputs()) - 1;
  const bool spectrum = row.op == EIGH || row.op == EIGVALSH;
  if (ranks[0] < 2) return row.inputs()[0].axes[0] == 'm' ? "expected matrices" : "the matrices must be square";
  if (const char* what = set_sizes(frame, dims[0], ranks[0], dims[last], ranks[last],
                                   spectrum || row.op == LSTSQ || row.op == SVD_PART ? kernel.first : row.full, spectrum ? kernel.count : 0))
    return what;
  if (spectrum) {
    const int64_t n = frame.size[1];
    if (frame.size[2] < 0) frame.size[2] += n;
    if (frame.size[3] < 0) frame.size[3] = n;
    frame.size[4] = frame.size[3] >> 32, frame.size[3] &= UINT32_MAX;  // a tolerance may stand above the count
    if (frame.size[2] < 0 || frame.size[2] + frame.size[3] > n)
      return "the matrices are smaller than the part that was asked for";
    lengths.set('p', frame.size[3]);
  }
  if (row.op == SVD_PART) {
    if (frame.size[3] < 0 || frame.size[3] > std::min(frame.size[1], frame.size[2]))
      return "the matrices are smaller than the part that was asked for";
    lengths.set('p', frame.size[3]);
  }
  const int batch_rank = ranks[0] - axes_of(row.inputs()[0]);
  for (int i = 0; i <= last; i++) {
    const char* axes = row.inputs()[i].axes;
    if (ranks[i] != batch_rank + axes_of(row.inputs()[i])) return "the inputs must have the same batch";
    for (int k = 0; k < ranks[i]; k++)
      if (k < batch_rank ? dims[i][k] != dims[0][k] : !lengths.fits(axes[k - batch_rank], dims[i][k]))
        return "the shapes of the inputs do not fit";
  }
  lengths.conclude();
  return nullptr;
}

void compute(void* self, Context* context) {
  const Kernel& kernel = *static_cast<Kernel*>(self);
  const Row& row = kernel.row;
  Answer answer;
  Frame frame;
  frame.op = row.op;
  frame.device = kernel.device;
  frame.engine = int32_t(kernel.engine);
  frame.flags = uint32_t(kernel.flags);

  // Our references to the inputs are given back at once, as they would keep TensorFlow from forwarding the memory.
  // TensorFlow holds its own until this function returns.
  const int inputs = count_of(row.inputs());
  int64_t dims[MOST_INPUTS][MOST_DIMENSIONS];
  int ranks[MOST_INPUTS];
  for (int i = 0; i < inputs; i++) {
    TensorHandle input;
    TF_GetInput(context, i, input.slot(), answer);
    if (!answer.ok()) return TF_OpKernelContext_Failure(context, answer);
    ranks[i] = TF_NumDims(input);
    if (ranks[i] > MOST_DIMENSIONS) return refuse(context, answer, row, INVALID_ARGUMENT, "too many axes");
    for (int k = 0; k < ranks[i]; k++) dims[i][k] = TF_Dim(input, k);
    if (i == 0) frame.dtype = dtype_of(TF_TensorType(input));
    frame.buffer[i] = TF_TensorData(input);
  }
  Lengths lengths;
  if (const char* what = set_lengths(frame, kernel, dims, ranks, lengths))
    return refuse(context, answer, row, INVALID_ARGUMENT, what);

  TensorHandle outputs[MOST_OUTPUTS];
  const int batch_rank = ranks[0] - axes_of(row.inputs()[0]);
  for (int i = 0; i < count_of(row.outputs()); i++) {
    const Argument& output = row.outputs()[i];
    int64_t shape[MOST_DIMENSIONS];
    const int rank = batch_rank + axes_of(output);
    for (int k = 0; k < rank; k++) shape[k] = k < batch_rank ? dims[0][k] : lengths[row.settled(output.axes[k - batch_rank])];
    if (row.shares(output) && frame.size[0] == 1) {
      int forwarded = -1;
      outputs[i].reset(
          TF_ForwardInputOrAllocateOutput(context, &output.shares, 1, i, shape, rank, &forwarded, answer));
    } else {
      size_t bytes = size_of(frame, output);
      for (int k = 0; k < rank; k++) bytes *= size_t(shape[k]);
      outputs[i].reset(TF_AllocateOutput(context, i, type_of(output, TYPES[frame.dtype]), shape, rank, bytes, answer));
    }
    if (!answer.ok()) return TF_OpKernelContext_Failure(context, answer);
    frame.buffer[inputs + i] = TF_TensorData(outputs[i]);
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

bool has_output(const Row& row, Type type) {
  return std::any_of(row.outputs(), row.outputs() + count_of(row.outputs()),
                     [type](const Argument& output) { return output.type == type; });
}

void register_kernels(const Row& row, const char* device, void* (*make)(Construction*)) {
  const std::string name = row.name();
  for (int type : TYPES) {
    Answer answer;
    KernelBuilder* builder = TF_NewKernelBuilder(name.c_str(), device, make, compute, destroy);
    TF_KernelBuilder_TypeConstraint(builder, "T", type, answer);
    if (answer.ok() && has_output(row, Type::REAL)) TF_KernelBuilder_TypeConstraint(builder, "R", real_of(type), answer);
    if (answer.ok() && has_output(row, Type::COMPLEX)) TF_KernelBuilder_TypeConstraint(builder, "C", complex_of(type), answer);
    if (answer.ok())
      TF_RegisterKernelBuilder(name.c_str(), builder, answer);
    else
      TF_DeleteKernelBuilder(builder);
    if (!answer.ok()) note(answer.message());
  }
}

template <int ROW>
void register_row() {
  constexpr Row row = row_of(ROW);
  Answer answer;
  OpBuilder* builder = TF_NewOpDefinitionBuilder(row.name().c_str());
  const auto add = [&](auto* to, const Argument* arguments) {
    constexpr const char* types[] = {": T", ": R", ": int32", ": C"};
    for (int i = 0; i < count_of(arguments); i++) to(builder, (arguments[i].name + std::string(types[int(arguments[i].type)])).c_str());
  };
  add(TF_OpDefinitionBuilderAddInput, row.inputs());
  add(TF_OpDefinitionBuilderAddOutput, row.outputs());
  TF_OpDefinitionBuilderAddAttr(builder, "flags: int = 0");
  TF_OpDefinitionBuilderAddAttr(builder, "engine: int = 0");
  TF_OpDefinitionBuilderAddAttr(builder, "first: int = 0");
  TF_OpDefinitionBuilderAddAttr(builder, "count: int = -1");
  if (has_output(row, Type::REAL)) TF_OpDefinitionBuilderAddAttr(builder, "R: {float, double}");
  if (has_output(row, Type::COMPLEX)) TF_OpDefinitionBuilderAddAttr(builder, "C: {complex64, complex128}");
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
