// The Python module lapwing._native, on the limited API: one binary for Python 3.11 and later.
#define Py_LIMITED_API 0x030b0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstring>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "gpu/cubin_cache.h"
#include "gpu/cuda.h"
#include "gpu/dry.h"
#include "gpu/hip.h"
#include "gpu/kernel_pack.h"
#include "gpu/solve.h"
#include "frame.h"
#include "lapack/lapack.h"
#include "lapack_form.h"
#include "operations.h"
#include "plan.h"
#include "run.h"
#include "cpu/threads.h"
#include "gpu/vendor.h"
#include "bind/dlpack.h"
#include "bind/xla.h"
#include "methods/tall.h"

namespace {

using lapwing::Frame;

// Memory for the call from a Python function that gives the address of so many bytes, and keeps them until the call is over.
void* allocate(void* self, size_t bytes) {
  auto* function = static_cast<PyObject*>(self);
  PyGILState_STATE state = PyGILState_Ensure();
  PyObject* made = function == Py_None ? nullptr : PyObject_CallFunction(function, "n", Py_ssize_t(bytes));
  void* address = made ? PyLong_AsVoidPtr(made) : nullptr;
  Py_XDECREF(made);
  PyGILState_Release(state);
  return address;
}

bool interrupted() {
  PyGILState_STATE state = PyGILState_Ensure();
  bool yes = PyErr_CheckSignals() != 0;
  PyGILState_Release(state);
  return yes;
}

bool read_sizes(Frame& frame, PyObject* tuple) {
  const Py_ssize_t sizes = PyTuple_Check(tuple) ? PyTuple_Size(tuple) : 0;
  if (sizes < 2 || sizes > 6) {
    PyErr_SetString(PyExc_TypeError, "sizes must be a tuple of two to six numbers");
    return false;
  }
  for (Py_ssize_t i = 0; i < sizes; i++) {
    frame.size[i] = PyLong_AsLongLong(PyTuple_GetItem(tuple, i));
    if (frame.size[i] < 0) {
      if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "a size is negative");
      return false;
    }
  }
  return true;
}

// The fixed part of every call: op, dtype, device, ordinal, engine, threads, flags, sizes.
constexpr Py_ssize_t FIXED = 8;

// The call has `least` to `most` arguments.
bool read_fixed(Frame& frame, const char* name, PyObject* const* args, Py_ssize_t count, Py_ssize_t least, Py_ssize_t most) {
  if (count < least || count > most) {
    PyErr_Format(PyExc_TypeError, "%s: wrong number of arguments", name);
    return false;
  }
  long long value[7];
  for (int i = 0; i < 7; i++) {
    value[i] = PyLong_AsLongLong(args[i]);
    if (value[i] == -1 && PyErr_Occurred()) return false;
  }
  frame.op = int32_t(value[0]);
  frame.dtype = int32_t(value[1]);
  frame.device = int32_t(value[2]);
  frame.ordinal = int32_t(value[3]);
  frame.engine = int32_t(value[4]);
  frame.threads = int32_t(value[5]);
  frame.flags = uint32_t(value[6]);
  return read_sizes(frame, args[7]);
}

PyObject* raise(const Frame& frame) {
  if (!PyErr_Occurred()) PyErr_SetString(frame.out_of_memory ? PyExc_MemoryError : PyExc_RuntimeError, frame.error);
  return nullptr;
}

// What a call that runs has behind the fixed part: stream, allocate.
bool read_place(Frame& frame, PyObject* const* args) {
  frame.stream = PyLong_AsVoidPtr(args[FIXED]);
  frame.scratch = {args[FIXED + 1], allocate};
  frame.interrupted = interrupted;
  return !PyErr_Occurred();
}

// The result of work() without the interpreter lock.
template <class Work>
int unlocked(const Work& work) {
  PyThreadState* state = PyEval_SaveThread();
  const int status = work();
  PyEval_RestoreThread(state);
  return status;
}

// Buffers of Python objects, held until the end of a call.
class Views {
 public:
  ~Views() {
    while (count_) PyBuffer_Release(&views_[--count_]);
  }
  // The address of an object: a number, or an object with the buffer protocol. Null after a Python error.
  void* address(PyObject* object) {
    if (PyLong_Check(object)) return PyLong_AsVoidPtr(object);
    const Py_buffer* view = open(object, PyBUF_ANY_CONTIGUOUS);
    return view ? view->buf : nullptr;
  }
  // Null after a Python error
  const Py_buffer* open(PyObject* object, int kind) {
    return PyObject_GetBuffer(object, &views_[count_], kind) ? nullptr : &views_[count_++];
  }

 private:
  Py_buffer views_[8];
  int count_ = 0;
};

// run(op, dtype, device, ordinal, engine, threads, flags, sizes, stream, allocate, *buffers)
// A buffer is an address or an object with the buffer protocol. The interpreter lock is released.
PyObject* run(PyObject*, PyObject* const* args, Py_ssize_t count) {
  constexpr Py_ssize_t first = FIXED + 2;
  Frame frame;
  Views views;
  if (!read_fixed(frame, "run", args, count, first, first + 8) || !read_place(frame, args)) return nullptr;
  for (Py_ssize_t i = first; i < count; i++) {
    frame.buffer[i - first] = views.address(args[i]);
    if (PyErr_Occurred()) return nullptr;
  }
  if (unlocked([&] { return lapwing::run(frame); })) return raise(frame);
  Py_RETURN_NONE;
}

struct Array {
  void* address = nullptr;
  int axes = 0;
  const Py_ssize_t* shape = nullptr;
};

// How the tensors of torch are read: its exchange table, and the types whose tensors are no more than they seem.
struct {
  const lapwing::dlpack::Exchange* exchange = nullptr;
  PyObject* types = nullptr;
} tensors;

// read_tensors(capsule, types) -> whether direct() takes tensors from now on
PyObject* read_tensors(PyObject*, PyObject* args) {
  PyObject *capsule, *types;
  if (!PyArg_ParseTuple(args, "OO!", &capsule, &PyTuple_Type, &types)) return nullptr;
  const auto* table = static_cast<lapwing::dlpack::Exchange*>(PyCapsule_GetPointer(capsule, "dlpack_exchange_api"));
  if (!table) PyErr_Clear();  // something else by that name
  if (!table || table->version.major != 1 || !table->describe) Py_RETURN_FALSE;
  Py_INCREF(types);
  tensors = {table, types};
  Py_RETURN_TRUE;
}

bool is_tensor(PyObject* object) {
  auto* type = reinterpret_cast<PyObject*>(Py_TYPE(object));
  for (Py_ssize_t i = 0; tensors.exchange && i < PyTuple_Size(tensors.types); i++)
    if (PyTuple_GetItem(tensors.types, i) == type) return true;
  return false;
}

// Whether the tensor stands for the conjugate of its memory; true after a Python error
bool is_conjugated(PyObject* tensor) {
  PyObject* answer = PyObject_CallMethod(tensor, "is_conj", nullptr);
  const bool yes = answer != Py_False;
  Py_XDECREF(answer);
  return yes;
}

// Whether matrices lie in memory one after the other, `turned` column by column, else row by row. Strides are multiples of `unit`.
template <class Int>
bool is_dense(int axes, const Int* shape, const Int* strides, int64_t unit, bool turned) {
  if (!strides) return !turned;
  if (turned && axes < 2) return false;
  int64_t step = unit;
  for (int i = axes; i-- > 0;) {
    const int axis = turned && i >= axes - 2 ? 2 * axes - 3 - i : i;
    if (shape[axis] != 1 && strides[axis] != step) return false;
    step *= shape[axis];
  }
  return true;
}

// A row-major array in CPU memory: of NumPy and of the dtype named, or a tensor of `dtype`, which the first one sets. false: it is
// none, perhaps with a Python error. Where `as_stored` is given, the adjoint, the transpose or the conjugate of the matrices may lie in
// memory instead: it is set to the flags that change.
bool open_array(Views& views, PyObject* object, bool writable, int32_t* dtype, Array* array, uint32_t* as_stored = nullptr) {
  constexpr uint32_t ADJOINT = lapwing::UPPER | lapwing::ADJOINT, TRANSPOSE = ADJOINT | lapwing::CONJUGATE;
  if (!is_tensor(object)) {
    const int kind = (as_stored ? PyBUF_STRIDES : PyBUF_C_CONTIGUOUS) | (writable ? PyBUF_WRITABLE : 0);
    const Py_buffer* view = *dtype < 0 ? nullptr : views.open(object, kind);
    if (!view) return false;
    *array = {view->buf, view->ndim, view->shape};
    if (!as_stored || is_dense(view->ndim, view->shape, view->strides, view->itemsize, false)) return true;
    *as_stored = *dtype == lapwing::F32 || *dtype == lapwing::F64 ? ADJOINT : TRANSPOSE;
    return is_dense(view->ndim, view->shape, view->strides, view->itemsize, true);
  }
  lapwing::dlpack::Tensor tensor;
  if (tensors.exchange->describe(object, &tensor)) return false;
  if (!tensor.data) return false;  // empty, or freed: the long way tells which
  const auto [code, bits, lanes] = tensor.dtype;
  const bool is_complex = code == lapwing::dlpack::COMPLEX;
  const int width = is_complex ? bits / 2 : bits;
  if ((!is_complex && code != lapwing::dlpack::FLOAT) || (width != 32 && width != 64) || lanes != 1) return false;
  const int32_t found = (is_complex ? lapwing::C64 : lapwing::F32) + (width == 64);
  if (*dtype < 0) *dtype = found;
  *array = {static_cast<char*>(tensor.data) + tensor.byte_offset, tensor.axes, reinterpret_cast<const Py_ssize_t*>(tensor.shape)};
  if (found != *dtype || tensor.device.kind != lapwing::dlpack::ON_CPU) return false;
  const bool conjugated = is_complex && is_conjugated(object);
  const bool by_rows = is_dense(tensor.axes, tensor.shape, tensor.strides, 1, false);
  if (!as_stored) return by_rows && !conjugated;
  *as_stored = !by_rows ? (conjugated == is_complex ? ADJOINT : TRANSPOSE) : conjugated ? uint32_t(lapwing::CONJUGATE) : 0;
  return by_rows || is_dense(tensor.axes, tensor.shape, tensor.strides, 1, true);
}

// Sizes of an operation on square matrices, with right-hand sides (for one matrix also a vector) or without. false: not such
// matrices, or none.
bool read_shapes(Frame& frame, const Array* a, const Array* b) {
  const int axes = a->axes;
  const bool vector = b && axes == 2 && b->axes == 1;
  if (axes < 2 || a->shape[axes - 1] != a->shape[axes - 2] || (b && b->axes != axes && !vector)) return false;
  frame.size[0] = 1, frame.size[1] = a->shape[axes - 1];
  for (int i = 0; i < axes - 2; i++) frame.size[0] *= a->shape[i];
  for (int i = 0; b && i < axes - 1; i++)
    if (a->shape[i] != b->shape[i]) return false;
  if (b) frame.size[2] = vector ? 1 : b->shape[axes - 1];
  return !lapwing::is_empty(frame);
}

// Whether the operation succeeded for all matrices. Buffer number `status_at`, the last one, is the status of each of them.
PyObject* run_all(Frame& frame, int status_at) {
  constexpr int64_t FEW = 64, FEW_ELEMENTS = 1024;
  int32_t few[FEW] = {};
  std::vector<int32_t> many(frame.size[0] > FEW ? size_t(frame.size[0]) : 0);
  int32_t* status = frame.size[0] > FEW ? many.data() : few;
  frame.buffer[status_at] = status;
  // to give the interpreter lock away and take it back is longer than the work on a few numbers
  const int64_t across = std::max({frame.size[1], frame.size[2], frame.size[3]});
  const auto work = [&] { return lapwing::run(frame); };
  if (frame.size[0] * frame.size[1] * across <= FEW_ELEMENTS ? work() : unlocked(work)) {
    if (frame.out_of_memory && !PyErr_Occurred()) Py_RETURN_FALSE;  // the long way says how much it takes
    return raise(frame);
  }
  for (int64_t m = 0; m < frame.size[0]; m++)
    if (status[m]) Py_RETURN_FALSE;
  Py_RETURN_TRUE;
}

// direct(op, dtype, threads, flags, *arrays) -> whether it was done, and for all matrices. The short way for arrays of NumPy, and for
// tensors with dtype -1, that need no preparation: they are the inputs and the outputs but the last, which is the status of each
// matrix. Triangles may also be the adjoint, the transpose or the conjugate of what lies in memory.
PyObject* direct(PyObject*, PyObject* const* args, Py_ssize_t count) {
  constexpr Py_ssize_t first = 4;
  Frame frame;
  if (count < first + 2 || count >= first + Py_ssize_t(std::size(frame.buffer))) {
    PyErr_SetString(PyExc_TypeError, "direct takes an operation, a dtype, threads, flags and two to seven arrays");
    return nullptr;
  }
  frame.op = int32_t(PyLong_AsLong(args[0]));
  frame.dtype = int32_t(PyLong_AsLong(args[1]));
  frame.threads = int32_t(PyLong_AsLong(args[2]));
  frame.flags = uint32_t(PyLong_AsLong(args[3]));
  if (PyErr_Occurred()) return nullptr;
  if (frame.op < 0 || frame.op >= lapwing::N_OPS || lapwing::is_rectangular(frame.op)) Py_RETURN_FALSE;
  frame.interrupted = interrupted;
  const int inputs = lapwing::count_of(lapwing::OPERATIONS[frame.op].inputs);
  Views views;
  Array array[std::size(frame.buffer)];
  uint32_t as_stored = 0;
  for (Py_ssize_t i = 0; i < count - first; i++) {
    const bool may_turn = i == 0 && frame.op == lapwing::TRIANGULAR;
    const bool opened = open_array(views, args[first + i], i >= inputs, &frame.dtype, &array[i], may_turn ? &as_stored : nullptr);
    const uintptr_t part = frame.dtype == lapwing::F32 || frame.dtype == lapwing::C64 ? 4 : 8;
    if (!opened || reinterpret_cast<uintptr_t>(array[i].address) % part) {
      PyErr_Clear();
      Py_RETURN_FALSE;
    }
    frame.buffer[i] = array[i].address;
  }
  if (!read_shapes(frame, &array[0], inputs > 1 ? &array[1] : nullptr)) Py_RETURN_FALSE;
  frame.flags ^= as_stored;
  // the long way is short beside so much work, and a matrix that fails would be worked on twice
  constexpr int64_t MOST_ELEMENTS = 1 << 18;
  const int64_t work = frame.op == lapwing::TRIANGULAR ? frame.size[2] / 64 : 1;  // of an element, in that of a factorization
  if (frame.size[0] * frame.size[1] * frame.size[1] * work > MOST_ELEMENTS) Py_RETURN_FALSE;
  return run_all(frame, int(count - first));
}

// direct_sized(op, dtype, threads, flags, sizes, *buffers): the same where the sizes are known. A buffer is an address or an object
// with the buffer protocol.
PyObject* direct_sized(PyObject*, PyObject* const* args, Py_ssize_t count) {
  constexpr Py_ssize_t first = 5;
  Frame frame;
  if (count < first + 2 || count >= first + Py_ssize_t(std::size(frame.buffer))) {
    PyErr_SetString(PyExc_TypeError, "direct_sized takes an operation, a dtype, threads, flags, sizes and two to seven arrays");
    return nullptr;
  }
  frame.op = int32_t(PyLong_AsLong(args[0]));
  frame.dtype = int32_t(PyLong_AsLong(args[1]));
  frame.threads = int32_t(PyLong_AsLong(args[2]));
  frame.flags = uint32_t(PyLong_AsLong(args[3]));
  if (PyErr_Occurred() || !read_sizes(frame, args[4])) return nullptr;
  frame.interrupted = interrupted;
  Views views;
  const int inputs = frame.op < 0 || frame.op >= lapwing::N_OPS ? 0 : lapwing::count_of(lapwing::OPERATIONS[frame.op].inputs);
  const uintptr_t part = frame.dtype == lapwing::F32 || frame.dtype == lapwing::C64 ? 4 : 8;
  for (Py_ssize_t i = first; i < count; i++) {
    void* address;
    if (PyLong_Check(args[i])) {
      address = PyLong_AsVoidPtr(args[i]);
    } else {
      const Py_buffer* buffer = views.open(args[i], i - first < inputs ? PyBUF_C_CONTIGUOUS : PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE);
      address = buffer ? buffer->buf : nullptr;
    }
    if (!address || reinterpret_cast<uintptr_t>(address) % part) {
      PyErr_Clear();
      Py_RETURN_FALSE;
    }
    frame.buffer[i - first] = address;
  }
  if (!inputs || lapwing::is_empty(frame)) Py_RETURN_FALSE;
  return run_all(frame, int(count - first));
}

// Y <- A X by a Python function of two addresses and the number of vectors, each contiguous.
int call_product(void* self, const void* x, void* y, int64_t columns) {
  PyGILState_STATE state = PyGILState_Ensure();
  PyObject* made = PyObject_CallFunction(static_cast<PyObject*>(self), "KKL", (unsigned long long)(uintptr_t)x,
                                         (unsigned long long)(uintptr_t)y, (long long)columns);
  Py_XDECREF(made);
  PyGILState_Release(state);
  return made ? 0 : 1;
}

// run_operator(op, dtype, device, ordinal, engine, threads, flags, sizes, stream, allocate, product, address...)
// -> whether it converged. The addresses are those of the outputs.
PyObject* run_operator(PyObject*, PyObject* const* args, Py_ssize_t count) {
  constexpr Py_ssize_t first = FIXED + 3;
  Frame frame;
  if (!read_fixed(frame, "run_operator", args, count, first, first + 7) || !read_place(frame, args)) return nullptr;
  for (Py_ssize_t i = first; i < count; i++) frame.buffer[1 + i - first] = PyLong_AsVoidPtr(args[i]);
  if (PyErr_Occurred()) return nullptr;
  int converged = 0;
  const lapwing::krylov::Product product{args[FIXED + 2], call_product};
  const int status = unlocked([&] { return lapwing::run_operator(frame, product, &converged); });
  return status ? raise(frame) : PyBool_FromLong(converged);
}

// copy(device, stream, to, from, bytes): queued on the stream, or done
PyObject* copy(PyObject*, PyObject* args) {
  int device;
  unsigned long long stream, to, from, bytes;
  if (!PyArg_ParseTuple(args, "iKKKK", &device, &stream, &to, &from, &bytes)) return nullptr;
  Frame frame;
  frame.device = device;
  frame.stream = reinterpret_cast<void*>(uintptr_t(stream));
  auto* target = reinterpret_cast<void*>(uintptr_t(to));
  auto* source = reinterpret_cast<const void*>(uintptr_t(from));
  if (device == lapwing::CPU)
    std::memcpy(target, source, size_t(bytes));
  else if (lapwing::cuda::copy(frame, target, source, size_t(bytes)))
    return raise(frame);
  Py_RETURN_NONE;
}

// The fixed arguments, the stream, the allocator and as many buffers as named; false with an exception
bool read_buffers(Frame& frame, const char* name, PyObject* const* args, Py_ssize_t count, Py_ssize_t buffers) {
  constexpr Py_ssize_t first = FIXED + 2;
  if (!read_fixed(frame, name, args, count, first + buffers, first + buffers) || !read_place(frame, args)) return false;
  for (Py_ssize_t i = first; i < count; i++) frame.buffer[i - first] = PyLong_AsVoidPtr(args[i]);
  return !PyErr_Occurred();
}

// lapack_form(exchanges, dtype, device, ordinal, 0, threads, 0, (batch, n), stream, None, from, to, integers)
PyObject* lapack_form(PyObject*, PyObject* const* args, Py_ssize_t count) {
  Frame frame;
  if (!read_buffers(frame, "lapack_form", args, count, 3)) return nullptr;
  const auto exchanges = lapwing::Exchanges(frame.op);
  if (unlocked([&] { return lapwing::lapack_form(frame, exchanges); })) return raise(frame);
  Py_RETURN_NONE;
}

// solve_keeping(op, dtype, device, ordinal, engine, threads, flags, sizes, stream, allocate, a, b, x, info, lu, pivots) -> whether
// one kernel gives them all; if not, nothing was done
PyObject* solve_keeping(PyObject*, PyObject* const* args, Py_ssize_t count) {
  Frame frame;
  if (!read_buffers(frame, "solve_keeping", args, count, 6)) return nullptr;
  bool done = false;
  const int status = unlocked([&] {
    lapwing::cuda::Guard guard(frame);
    const lapwing::cuda::Properties* gpu = guard.ok() ? lapwing::cuda::properties(frame) : nullptr;
    if (!gpu) return 1;
    done = lapwing::cuda::solve_keeps(frame, *gpu);
    return done ? lapwing::cuda::solve_batched(frame) : 0;
  });
  return status ? raise(frame) : PyBool_FromLong(done);
}

PyObject* memory_of(PyObject* const* args, Py_ssize_t count, bool host) {
  Frame frame;
  lapwing::Plan plan;
  if (!read_fixed(frame, "the memory of a call", args, count, FIXED, FIXED)) return nullptr;
  int status = lapwing::plan(frame, "", &plan);
  if (!status && !plan.refusal.empty()) status = lapwing::fail(frame, "%s", plan.refusal.c_str());
  return status ? raise(frame) : PyLong_FromLongLong(host ? plan.host_bytes : plan.device_bytes);
}

// plan(op, dtype, device, ordinal, engine, threads, flags, sizes, hardware) -> (engine, reason, refusal, device bytes, host bytes)
PyObject* plan(PyObject*, PyObject* const* args, Py_ssize_t count) {
  Frame frame;
  if (!read_fixed(frame, "plan", args, count, FIXED + 1, FIXED + 1)) return nullptr;
  PyObject* hardware = PyUnicode_AsUTF8String(args[FIXED]);
  if (!hardware) return nullptr;
  lapwing::Plan plan;
  const int status = lapwing::plan(frame, PyBytes_AsString(hardware), &plan);
  Py_DECREF(hardware);
  if (status) return raise(frame);
  return Py_BuildValue("(issLL)", int(plan.engine), plan.reason.c_str(), plan.refusal.c_str(), (long long)plan.device_bytes,
                       (long long)plan.host_bytes);
}

// scratch_bytes(op, dtype, device, ordinal, engine, threads, flags, sizes) -> device bytes of that plan
PyObject* scratch_bytes(PyObject*, PyObject* const* args, Py_ssize_t count) { return memory_of(args, count, false); }

// host_bytes(the same) -> host bytes of that plan
PyObject* host_bytes(PyObject*, PyObject* const* args, Py_ssize_t count) { return memory_of(args, count, true); }

// operations() -> their names, in the order of their numbers; the last ones stand in rules alone
PyObject* operations(PyObject*, PyObject*) {
  using namespace lapwing;
  PyObject* names = PyTuple_New(N_RULE_OPS);
  for (int i = 0; names && i < N_RULE_OPS; i++)
    PyTuple_SetItem(names, i, PyUnicode_FromString(i < N_OPS ? OPERATIONS[i].name : RULE_OP_NAMES[i - N_OPS]));
  return names;
}

// engines() -> their names, in the order of their numbers
PyObject* engines(PyObject*, PyObject*) {
  PyObject* names = PyTuple_New(lapwing::N_ENGINES);
  for (int i = 0; names && i < lapwing::N_ENGINES; i++)
    PyTuple_SetItem(names, i, PyUnicode_FromString(lapwing::ENGINE_NAMES[i]));
  return names;
}

// Adds the item, whose reference is taken over, to the list; no list is left after an error.
void append(PyObject*& list, PyObject* item) {
  if (list && (!item || PyList_Append(list, item))) {
    Py_DECREF(list);
    list = nullptr;
  }
  Py_XDECREF(item);
}

// methods() -> (operation, device, engine) for each row of the plan's table, as numbers
PyObject* methods_table(PyObject*, PyObject*) {
  PyObject* rows = PyList_New(0);
  for (int32_t op = 0; op < lapwing::N_OPS; op++)
    for (int32_t device = 0; device < lapwing::N_DEVICES; device++)
      for (const int32_t engine : lapwing::engines_of(op, device)) append(rows, Py_BuildValue("iii", op, device, engine));
  return rows;
}

// prefer(engine): the default of calls that leave the choice open
PyObject* prefer(PyObject*, PyObject* engine) {
  const long code = PyLong_AsLong(engine);
  if (code == -1 && PyErr_Occurred()) return nullptr;
  lapwing::prefer(code >= 0 && code < lapwing::N_ENGINES ? int32_t(code) : int32_t(lapwing::AUTO));
  Py_RETURN_NONE;
}

// record_runs(on): whether calls are written down from now on
PyObject* record_runs(PyObject*, PyObject* wanted) {
  const int on = PyObject_IsTrue(wanted);
  if (on < 0) return nullptr;
  lapwing::record_runs(on);
  Py_RETURN_NONE;
}

// take_runs() -> [(op, engine, dtype, batch, n), ...]: the calls of every thread since the last time
PyObject* take_runs(PyObject*, PyObject*) {
  PyObject* list = PyList_New(0);
  for (const lapwing::Ran& run : lapwing::take_runs())
    append(list, Py_BuildValue("(iiiLL)", run.op, run.engine, run.dtype, (long long)run.batch, (long long)run.n));
  return list;
}

// notes() -> what the engines had to say since the last time
PyObject* notes(PyObject*, PyObject*) {
  PyObject* list = PyList_New(0);
  for (const std::string& text : lapwing::take_notes()) append(list, PyUnicode_FromString(text.c_str()));
  return list;
}

// free_memory(ordinal) -> bytes free on that GPU
PyObject* free_memory(PyObject*, PyObject* args) {
  Frame frame;
  if (!PyArg_ParseTuple(args, "i", &frame.ordinal)) return nullptr;
  frame.device = lapwing::CUDA;
  lapwing::cuda::Guard guard(frame);
  size_t free = 0, total = 0;
  if (!guard.ok()) return raise(frame);
  lapwing::vendor::table().memory_info(&free, &total);
  return PyLong_FromSize_t(free);
}

// set_rules(hardware, [(op, device, dtype, engine, n_min, n_max, batch_min, batch_max, source, newest=False), ...])
PyObject* set_rules(PyObject*, PyObject* args) {
  const char* hardware;
  PyObject* list;
  if (!PyArg_ParseTuple(args, "sO", &hardware, &list)) return nullptr;
  std::vector<lapwing::Rule> rules;
  Py_ssize_t count = PyList_Size(list);
  if (count < 0) return nullptr;
  for (Py_ssize_t i = 0; i < count; i++) {
    int op, device, dtype, engine, newest = 0;
    long long bounds[4];
    const char* source;
    if (!PyArg_ParseTuple(PyList_GetItem(list, i), "iiiiLLLLs|p", &op, &device, &dtype, &engine, &bounds[0], &bounds[1],
                          &bounds[2], &bounds[3], &source, &newest))
      return nullptr;
    rules.push_back({op, device, dtype, engine, bounds[0], bounds[1], bounds[2], bounds[3], source, newest != 0});
  }
  lapwing::set_rules(hardware, std::move(rules));
  Py_RETURN_NONE;
}

// bind_library(path, prefix, suffix, width, lent=False) -> how many LAPACK routines were found in a library already loaded
PyObject* bind_library(PyObject*, PyObject* args) {
  const char *path, *prefix, *suffix;
  int width, lent = 0;
  if (!PyArg_ParseTuple(args, "sssi|p", &path, &prefix, &suffix, &width, &lent)) return nullptr;
  void* handle = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
  if (!handle) return PyLong_FromLong(0);
  int found = 0;
  for (const char* name : lapwing::lapack::ROUTINES) {
    void* address = dlsym(handle, (std::string(prefix) + name + "_" + suffix).c_str());
    if (address) found += lapwing::lapack::bind(name, address, width, lent);
  }
  std::string plain(suffix);
  if (!plain.empty() && plain.back() == '_') plain.pop_back();
  for (const std::string& end : {plain, std::string(suffix)})
    if (void* get = dlsym(handle, (std::string(prefix) + "openblas_get_num_threads" + end).c_str())) {
      lapwing::follow_thread_limit(reinterpret_cast<int (*)()>(get));
      if (!lent) lapwing::lapack::remember_library(path, prefix, suffix, width);
      break;
    }
  if (void* set = dlsym(handle, "MKL_Set_Num_Threads_Local"))
    lapwing::lapack::limit_threads_by(reinterpret_cast<int (*)(int)>(set), lent);
  return PyLong_FromLong(found);
}

// use_lent(wanted): whether lent routines are taken from the next call on
PyObject* use_lent(PyObject*, PyObject* wanted) {
  const int lent = PyObject_IsTrue(wanted);
  if (lent < 0) return nullptr;
  lapwing::lapack::use_lent(lent);
  Py_RETURN_NONE;
}

// set_lapack_block(order): for tests, as the usual one needs a large machine
PyObject* set_lapack_block(PyObject*, PyObject* order) {
  long long value = PyLong_AsLongLong(order);
  if (value < 1) {
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "the order must be positive");
    return nullptr;
  }
  lapwing::lapack::set_block(value);
  Py_RETURN_NONE;
}

// bind_capsule(name, capsule, width): one routine from SciPy's table
PyObject* bind_capsule(PyObject*, PyObject* args) {
  const char* name;
  PyObject* capsule;
  int width;
  if (!PyArg_ParseTuple(args, "sOi", &name, &capsule, &width)) return nullptr;
  void* address = PyCapsule_GetPointer(capsule, PyCapsule_GetName(capsule));
  if (!address) return nullptr;
  return PyBool_FromLong(lapwing::lapack::bind(name, address, width, false));
}

// configure(kernel_sources, kernel_packs, kernel_cache, first_library_paths, last_library_paths, paths_of_newer_solvers,
//           first_paths_of_AMD's_libraries, last_paths_of_AMD's_libraries)
PyObject* configure(PyObject*, PyObject* args) {
  const char *sources, *packs, *cache, *first, *last, *beside = "", *amd_first = "", *amd_last = "";
  if (!PyArg_ParseTuple(args, "sssss|sss", &sources, &packs, &cache, &first, &last, &beside, &amd_first, &amd_last)) return nullptr;
  lapwing::cuda::set_source_folder(sources);
  lapwing::kernel_pack::set_places(packs, sources);
  lapwing::cubin_cache::set_folder(cache);
  lapwing::vendor::set_paths(first, last, beside);
  lapwing::vendor::set_amd_paths(amd_first, amd_last);
  Py_RETURN_NONE;
}

// solver_copies() -> [(path, version, problem, ordinary), ...]: the copies of the GPU's solver library
PyObject* solver_copies(PyObject*, PyObject*) {
  PyObject* list = PyList_New(0);
  for (const auto& copy : lapwing::vendor::solver_copies()) {
    PyObject* row = list ? Py_BuildValue("(sisi)", copy.path.c_str(), copy.version, copy.problem.c_str(), int(copy.ordinary)) : nullptr;
    if (!row || PyList_Append(list, row)) Py_CLEAR(list);
    Py_XDECREF(row);
  }
  return list;
}

// kernels(op, dtype, device, ordinal, engine, threads, flags, sizes, gpu) -> [(source, options), ...]: what the call would
// launch on a GPU (multiprocessors, shared bytes of a block, compute capability, name) that need not be here; one of AMD's has the
// compute capability 0, and its architecture and lanes follow
PyObject* kernels(PyObject*, PyObject* const* args, Py_ssize_t count) {
  Frame frame;
  lapwing::cuda::Properties gpu{};
  const char *name, *architecture = "";
  if (!read_fixed(frame, "kernels", args, count, FIXED + 1, FIXED + 1)) return nullptr;
  if (!PyArg_ParseTuple(args[FIXED], "iiis|si", &gpu.multiprocessors, &gpu.shared_per_block, &gpu.compute_capability, &name,
                        &architecture, &gpu.lanes))
    return nullptr;
  std::strncpy(gpu.name, name, sizeof gpu.name - 1);
  std::strncpy(gpu.architecture, architecture, sizeof gpu.architecture - 1);
  std::string error;
  lapwing::cuda::Dry dry(gpu);
  if (unlocked([&] { return dry.run(frame, &error); })) {
    PyErr_SetString(PyExc_RuntimeError, error.c_str());
    return nullptr;
  }
  PyObject* list = PyList_New(0);
  for (const auto& kernel : dry.kernels) append(list, Py_BuildValue("ss", kernel.first.c_str(), kernel.second.c_str()));
  return list;
}

// kernel_key(source, options) -> its key in packs
PyObject* kernel_key(PyObject*, PyObject* args) {
  const char *source, *options;
  if (!PyArg_ParseTuple(args, "ss", &source, &options)) return nullptr;
  Frame frame;
  const std::string key = lapwing::cuda::pack_key(frame, source, options);
  return key.empty() ? raise(frame) : PyUnicode_FromString(key.c_str());
}

// compile_kernel(source, options, architecture) -> (the binary, what the compiler said)
PyObject* compile_kernel(PyObject*, PyObject* args) {
  const char *source, *options, *architecture;
  if (!PyArg_ParseTuple(args, "sss", &source, &options, &architecture)) return nullptr;
  Frame frame;
  std::string binary, log;
  const auto compile = [&] { return (binary = lapwing::cuda::compile(frame, source, options, architecture, &log)).empty(); };
  if (unlocked(compile)) return raise(frame);
  return Py_BuildValue("(y#s)", binary.data(), Py_ssize_t(binary.size()), log.c_str());
}

// checksum(bytes) -> the number that packs store beside their kernels
PyObject* checksum(PyObject*, PyObject* args) {
  const char* data;
  Py_ssize_t size;
  if (!PyArg_ParseTuple(args, "y#", &data, &size)) return nullptr;
  return PyLong_FromUnsignedLongLong(lapwing::cubin_cache::hash(std::string(data, size_t(size)), 0));
}

// find_kernel(key, compute capability) -> the binary in a pack, or b""
PyObject* find_kernel(PyObject*, PyObject* args) {
  const char* text;
  int capability;
  if (!PyArg_ParseTuple(args, "si", &text, &capability)) return nullptr;
  unsigned long long low = 0, high = 0;
  std::sscanf(text, "%16llx%16llx", &low, &high);
  const std::string binary = lapwing::kernel_pack::find({low, high}, capability);
  return PyBytes_FromStringAndSize(binary.data(), Py_ssize_t(binary.size()));
}

// kernel_packs(compute capability) -> [(path, architecture, kernels, problem), ...]
PyObject* kernel_packs(PyObject*, PyObject* args) {
  int capability;
  if (!PyArg_ParseTuple(args, "i", &capability)) return nullptr;
  PyObject* list = PyList_New(0);
  for (const auto& pack : lapwing::kernel_pack::describe(capability))
    append(list, Py_BuildValue("siLs", pack.path.c_str(), pack.architecture, (long long)pack.kernels, pack.problem.c_str()));
  return list;
}

// loaded_kernels() -> [(source, options, "pack" | "cache" | "compiler", seconds), ...]
PyObject* loaded_kernels(PyObject*, PyObject*) {
  PyObject* list = PyList_New(0);
  for (const auto& it : lapwing::cuda::loaded())
    append(list, Py_BuildValue("sssd", it.source.c_str(), it.options.c_str(), it.origin, it.seconds));
  return list;
}

// missing("driver" | "solver" | "blas" | "compiler") -> None or why
PyObject* missing(PyObject*, PyObject* args) {
  const char* name;
  if (!PyArg_ParseTuple(args, "s", &name)) return nullptr;
  auto library = name[0] == 'd'   ? lapwing::vendor::driver
                 : name[0] == 's' ? lapwing::vendor::solver
                 : name[0] == 'b' ? lapwing::vendor::blas
                                  : lapwing::vendor::compiler;
  std::string reason;
  Py_BEGIN_ALLOW_THREADS;
  if (const char* why = lapwing::vendor::missing(library)) reason = why;
  Py_END_ALLOW_THREADS;
  if (reason.empty()) Py_RETURN_NONE;
  return PyUnicode_FromString(reason.c_str());
}

// gpus() -> [(name, compute capability, bytes), ...]
PyObject* gpus(PyObject*, PyObject*) {
  PyObject* list = PyList_New(0);
  if (!list || lapwing::vendor::missing(lapwing::vendor::driver)) return list;
  const auto& api = lapwing::vendor::table();
  int count = 0;
  api.device_count(&count);
  for (int i = 0; i < count; i++) {
    int device = 0, major = 0, minor = 0;
    size_t bytes = 0;
    char name[128] = "";
    if (api.device_get(&device, i)) continue;
    api.device_name(name, sizeof name, device);
    api.device_attribute(&major, lapwing::vendor::ATTRIBUTE_MAJOR, device);
    api.device_attribute(&minor, lapwing::vendor::ATTRIBUTE_MINOR, device);
    api.device_memory(&bytes, device);
    append(list, Py_BuildValue("(siK)", name, 10 * major + minor, (unsigned long long)bytes));
  }
  return list;
}

// amd_gpus() -> [(architecture, lanes of a wave), ...], in the order of gpus(); empty where the GPUs are not AMD's
PyObject* amd_gpus(PyObject*, PyObject*) {
  PyObject* list = PyList_New(0);
  if (!list || lapwing::vendor::missing(lapwing::vendor::driver) || !lapwing::vendor::is_amd()) return list;
  int count = 0;
  lapwing::vendor::table().device_count(&count);
  for (int i = 0; i < count; i++)
    append(list, Py_BuildValue("(si)", lapwing::vendor::hip::architecture_of(i).c_str(), lapwing::vendor::hip::lanes_of(i)));
  return list;
}

// amd_versions() -> {"driver": "6.2.41134", ...}: the versions of AMD's libraries that were found, in their own words
PyObject* amd_versions(PyObject*, PyObject*) {
  using namespace lapwing::vendor;
  PyObject* out = PyDict_New();
  if (missing(driver) || !is_amd()) return out;
  const std::pair<const char*, Library> all[] = {{"driver", driver}, {"compiler", compiler}, {"blas", blas}, {"solver", solver}};
  for (const auto& [name, library] : all) {
    if (missing(library)) continue;
    PyObject* text = PyUnicode_FromString(hip::version_of(library).c_str());
    PyDict_SetItemString(out, name, text);
    Py_DECREF(text);
  }
  return out;
}

// cuda_versions() -> {"driver": 13000, ...}: what could be asked; empty where the GPUs are AMD's
PyObject* cuda_versions(PyObject*, PyObject*) {
  PyObject* out = PyDict_New();
  const auto& api = lapwing::vendor::table();
  int major = 0, minor = 0;
  auto put = [&](const char* name, long value) {
    PyObject* number = PyLong_FromLong(value);
    PyDict_SetItemString(out, name, number);
    Py_DECREF(number);
  };
  const bool has_driver = !lapwing::vendor::missing(lapwing::vendor::driver);
  if (lapwing::vendor::is_amd()) return out;
  if (has_driver && !api.driver_version(&major)) put("driver", major);
  if (!lapwing::vendor::missing(lapwing::vendor::solver) && !api.solver_version(&major)) put("solver", major);
  if (!lapwing::vendor::missing(lapwing::vendor::compiler) && !api.rtc_version(&major, &minor))
    put("compiler", 1000 * major + 10 * minor);
  return out;
}

PyObject* allowed_threads(PyObject*, PyObject*) { return PyLong_FromLong(lapwing::allowed_threads()); }

// tall_pays(dtype, rows, columns) -> whether engine tall has the fastest QR of such a matrix on a GPU
PyObject* tall_pays(PyObject*, PyObject* args) {
  int dtype;
  long long rows, columns;
  if (!PyArg_ParseTuple(args, "iLL", &dtype, &rows, &columns)) return nullptr;
  lapwing::Frame frame{};
  frame.op = lapwing::QR, frame.dtype = dtype, frame.device = lapwing::CUDA;
  frame.size[0] = 1, frame.size[1] = rows, frame.size[2] = frame.size[3] = columns;
  return PyBool_FromLong(!lapwing::tall_refuses(frame) && lapwing::tall_pays(frame));
}

// simd() -> the widest instruction set the CPU kernels use here
PyObject* simd(PyObject*, PyObject*) {
#ifdef __x86_64__
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq")) return PyUnicode_FromString("x86-64-v4");
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return PyUnicode_FromString("x86-64-v3");
  return PyUnicode_FromString("x86-64");
#else
  return PyUnicode_FromString("aarch64");
#endif
}

// xla_handler("cpu" | "cuda" | "cuda_graph") -> capsule for jax.ffi.register_ffi_target
PyObject* xla_handler(PyObject*, PyObject* args) {
  const char* name;
  if (!PyArg_ParseTuple(args, "s", &name)) return nullptr;
  const std::string kind = name;
  auto* handler = kind == "cpu" ? lapwing_xla_cpu : kind == "cuda" ? lapwing_xla_cuda : lapwing_xla_cuda_graph;
  return PyCapsule_New(reinterpret_cast<void*>(handler), "xla._CUSTOM_CALL_TARGET", nullptr);
}

PyCFunction fast(PyObject* (*function)(PyObject*, PyObject* const*, Py_ssize_t)) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(function));
}

PyMethodDef methods[] = {
    {"allowed_threads", allowed_threads, METH_NOARGS, nullptr},
    {"amd_gpus", amd_gpus, METH_NOARGS, nullptr},
    {"amd_versions", amd_versions, METH_NOARGS, nullptr},
    {"bind_capsule", bind_capsule, METH_VARARGS, nullptr},
    {"bind_library", bind_library, METH_VARARGS, nullptr},
    {"checksum", checksum, METH_VARARGS, nullptr},
    {"compile_kernel", compile_kernel, METH_VARARGS, nullptr},
    {"configure", configure, METH_VARARGS, nullptr},
    {"copy", copy, METH_VARARGS, nullptr},
    {"cuda_versions", cuda_versions, METH_NOARGS, nullptr},
    {"engines", engines, METH_NOARGS, nullptr},
    {"find_kernel", find_kernel, METH_VARARGS, nullptr},
    {"free_memory", free_memory, METH_VARARGS, nullptr},
    {"gpus", gpus, METH_NOARGS, nullptr},
    {"host_bytes", fast(host_bytes), METH_FASTCALL, nullptr},
    {"kernel_key", kernel_key, METH_VARARGS, nullptr},
    {"kernel_packs", kernel_packs, METH_VARARGS, nullptr},
    {"kernels", fast(kernels), METH_FASTCALL, nullptr},
    {"lapack_form", fast(lapack_form), METH_FASTCALL, nullptr},
    {"loaded_kernels", loaded_kernels, METH_NOARGS, nullptr},
    {"methods", methods_table, METH_NOARGS, nullptr},
    {"missing", missing, METH_VARARGS, nullptr},
    {"notes", notes, METH_NOARGS, nullptr},
    {"operations", operations, METH_NOARGS, nullptr},
    {"plan", fast(plan), METH_FASTCALL, nullptr},
    {"prefer", prefer, METH_O, nullptr},
    {"read_tensors", read_tensors, METH_VARARGS, nullptr},
    {"record_runs", record_runs, METH_O, nullptr},
    {"direct", fast(direct), METH_FASTCALL, nullptr},
    {"direct_sized", fast(direct_sized), METH_FASTCALL, nullptr},
    {"run", fast(run), METH_FASTCALL, nullptr},
    {"run_operator", fast(run_operator), METH_FASTCALL, nullptr},
    {"scratch_bytes", fast(scratch_bytes), METH_FASTCALL, nullptr},
    {"set_lapack_block", set_lapack_block, METH_O, nullptr},
    {"set_rules", set_rules, METH_VARARGS, nullptr},
    {"simd", simd, METH_NOARGS, nullptr},
    {"solve_keeping", fast(solve_keeping), METH_FASTCALL, nullptr},
    {"solver_copies", solver_copies, METH_NOARGS, nullptr},
    {"take_runs", take_runs, METH_NOARGS, nullptr},
    {"tall_pays", tall_pays, METH_VARARGS, nullptr},
    {"use_lent", use_lent, METH_O, nullptr},
    {"xla_handler", xla_handler, METH_VARARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef module = {PyModuleDef_HEAD_INIT, "_native", "lapwing's native core.", -1, methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__native(void) { return PyModule_Create(&module); }
