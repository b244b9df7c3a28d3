// The C interface of lapwing.insitu: each call finds the interpreter, keeps what is the solver's as it was, and hands the work
// to lapwing.insitu.bridge. Nothing here throws, exits or aborts.
#pragma GCC visibility push(default)  // the functions of this header, and nothing else, are seen from outside
#include "../../src/lapwing/insitu/include/lapwing_insitu.h"
#pragma GCC visibility pop

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#include "guard.h"
#include "python.h"
#include "ranks.h"

#ifndef LAPWING_VERSION
#define LAPWING_VERSION "unknown"
#endif

namespace {
using namespace lapwing::insitu;

enum class State { live, off, dead };  // off: switched off by the user, and everything is well

// One field as it was told, and the arguments made of it: a solver tells the same again at every step.
struct Told {
  std::string name;
  insitu_array array;
  int writable;
  std::vector<int64_t> shape, strides;
  bool has_strides;
  Ref arguments;
};

}  // namespace

struct insitu_ctx {
  State state = State::dead;
  bool parallel = false, said = false;
  Ref session, field, step;
  int64_t steps = 0;
  std::vector<Told> told;
  size_t next = 0;  // the entry of `told` that gives way
  std::string error;
};

namespace {

// Contexts are never freed: a solver may ask for the error after the end, or end twice.
std::mutex mutex;
std::vector<insitu_ctx*>& contexts() {
  static auto* all = new std::vector<insitu_ctx*>;
  return *all;
}
std::atomic<int> busy{0};
const size_t MOST_TOLD = 64;   // fields times buffers that are remembered
const int64_t FULL_GUARD = 3;  // steps: in the first ones libraries are imported

struct Busy {
  Busy() { ++busy; }
  ~Busy() { --busy; }
};

void say(insitu_ctx* ctx, const std::string& message) {
  ctx->error = message;
  if (ctx->said) return;  // a solver that repeats its mistake at every step would fill the log
  ctx->said = true;
  std::fprintf(stderr, "[lapwing.insitu] %s\n", message.c_str());
}

insitu_status fail(insitu_ctx* ctx, const std::string& message) {
  say(ctx, message);
  return INSITU_ERR;
}

Ref call(Object* function, Object* arguments) { return Ref(function ? py.PyObject_CallObject(function, arguments) : nullptr); }

Ref call_method(const Ref& object, const char* name, Ref arguments = Ref()) {
  Ref method(object ? py.PyObject_GetAttrString(object.get(), name) : nullptr);
  return call(method.get(), arguments.get());
}

insitu_status status_of(insitu_ctx* ctx, const Ref& result) {
  if (!result) return fail(ctx, take_error());
  long value = py.PyLong_AsLong(result.get());
  if (value == -1 && py.PyErr_Occurred()) return fail(ctx, take_error());
  if (value < INSITU_ERR || value > INSITU_STOP) return fail(ctx, "the bridge gave the status " + std::to_string(value));
  return static_cast<insitu_status>(value);
}

// Runs work() with Python's lock where the context is alive; all the rest of the process stays as it was.
template <class Work>
insitu_status guarded(insitu_ctx* ctx, Work work) {
  if (!ctx) return INSITU_ERR;
  if (ctx->state != State::live) return ctx->state == State::off ? INSITU_OK : INSITU_ERR;
  if (!alive()) {
    ctx->error = "Python has ended in this process";
    return INSITU_ERR;
  }
  try {
    Busy now;
    FloatGuard floats;
    Lock lock;
    return work();
  } catch (...) {
    return INSITU_ERR;  // no memory for a text
  }
}

Ref numbers(const int64_t* values, int count) {
  Ref tuple(py.PyTuple_New(count));
  for (int i = 0; tuple && i < count; ++i) py.PyTuple_SetItem(tuple.get(), i, py.PyLong_FromLongLong(values[i]));
  return tuple;
}

Ref numbers(const double* values, int count) {
  Ref tuple(py.PyTuple_New(count));
  for (int i = 0; tuple && i < count; ++i) py.PyTuple_SetItem(tuple.get(), i, py.PyFloat_FromDouble(values[i]));
  return tuple;
}

// (name,) pointer, shape, strides, code, bits, device type, device id, stream, writable
Ref describe(const char* name, const insitu_array& a, int writable) {
  Ref shape = numbers(a.shape, a.ndim);
  Ref strides = a.strides ? numbers(a.strides, a.ndim) : Ref(py.Py_BuildValue(""));
  if (!shape || !strides) return Ref();
  auto data = static_cast<unsigned long long>(reinterpret_cast<uintptr_t>(a.data));
  auto stream = static_cast<unsigned long long>(reinterpret_cast<uintptr_t>(a.device.stream));
  char code[2] = {a.code, 0};
  int type = a.device.device_type, id = a.device.device_id, bits = a.bits;
  Object *s = shape.get(), *t = strides.get();
  if (name) return Ref(py.Py_BuildValue("(sKOOsiiiKi)", name, data, s, t, code, bits, type, id, stream, writable));
  return Ref(py.Py_BuildValue("(KOOsiiiKi)", data, s, t, code, bits, type, id, stream, writable));
}

bool same(const Told& told, const char* name, const insitu_array& a, int writable) {
  const insitu_array& b = told.array;
  size_t bytes = sizeof(int64_t) * a.ndim;
  return a.data == b.data && a.ndim == b.ndim && a.code == b.code && a.bits == b.bits && writable == told.writable &&
         a.device.device_type == b.device.device_type && a.device.device_id == b.device.device_id &&
         a.device.stream == b.device.stream && told.name == name && told.has_strides == (a.strides != nullptr) &&
         (bytes == 0 || (std::memcmp(told.shape.data(), a.shape, bytes) == 0 &&
                         (!a.strides || std::memcmp(told.strides.data(), a.strides, bytes) == 0)));
}

Object* arguments_of(insitu_ctx* ctx, const char* name, const insitu_array& array, int writable) {
  for (Told& told : ctx->told)
    if (same(told, name, array, writable)) return told.arguments.get();
  Ref made = describe(name, array, writable);
  if (!made) return nullptr;
  Told told{name, array, writable, {}, {}, array.strides != nullptr, std::move(made)};
  if (array.ndim) told.shape.assign(array.shape, array.shape + array.ndim);
  if (array.ndim && array.strides) told.strides.assign(array.strides, array.strides + array.ndim);
  if (ctx->told.size() < MOST_TOLD) {
    ctx->told.push_back(std::move(told));
    return ctx->told.back().arguments.get();
  }
  Told& old = ctx->told[ctx->next++ % MOST_TOLD];
  old = std::move(told);
  return old.arguments.get();
}

std::string wrong(const char* name, const insitu_array& a) {
  if (!name || !*name) return "insitu_field: a field has no name";
  std::string field = std::string("insitu_field: field \"") + name + "\" ";
  if (a.ndim < 0 || a.ndim > 64) return field + "has " + std::to_string(a.ndim) + " dimensions";
  if (a.ndim && !a.shape) return field + "has no shape";
  return "";
}

// ------------------------------------------------------------------------------------------------------------- DLPack 1.x
struct Tensor {
  void* data;
  int32_t device[2], ndim;
  uint8_t code, bits;
  uint16_t lanes;
  int64_t *shape, *strides;
  uint64_t byte_offset;
};
struct Managed {
  Tensor tensor;
  void* owner;
  void (*deleter)(Managed*);
};
struct Versioned {
  uint32_t version[2];
  void* owner;
  void (*deleter)(Versioned*);
};
const char PLAIN[] = "dltensor", VERSIONED[] = "dltensor_versioned";

void drop(void* tensor, bool versioned) {
  if (versioned) {
    auto* managed = static_cast<Versioned*>(tensor);
    if (managed->deleter) managed->deleter(managed);
  } else {
    auto* managed = static_cast<Managed*>(tensor);
    if (managed->deleter) managed->deleter(managed);
  }
}

// A capsule that was used has another name; then its user calls the deleter.
void drop_capsule(Object* capsule) {
  for (const char* name : {VERSIONED, PLAIN})
    if (py.PyCapsule_IsValid(capsule, name)) drop(py.PyCapsule_GetPointer(capsule, name), name == VERSIONED);
}

// ------------------------------------------------------------------------------------------------------- start and end
void flush() {
  Ref sys(py.PyImport_ImportModule("sys"));
  for (const char* name : {"stdout", "stderr"}) {
    Ref stream(sys ? py.PyObject_GetAttrString(sys.get(), name) : nullptr);
    Ref done = call_method(stream, "flush");
    py.PyErr_Clear();
  }
}

insitu_status finish(insitu_ctx* ctx) {
  Ref result = call_method(ctx->session, "finalize");
  insitu_status status = status_of(ctx, result);
  Ref last = call_method(ctx->session, "error");
  if (last) {
    std::string traceback = text(last.get());
    if (!traceback.empty()) ctx->error = traceback;
  }
  py.PyErr_Clear();
  flush();
  ctx->state = State::dead;
  ctx->told.clear();
  ctx->field = Ref();
  ctx->step = Ref();
  ctx->session = Ref();
  return status;
}

// The process ends and the interpreter is ours. Threads are waited for and exit functions run as Python does it; but it is not
// torn down, because libraries it has loaded may be gone by now. The lock stays taken, so that daemon threads run no further.
void at_exit() {
  if (busy.load() || !alive()) return;
  try {
    FloatGuard floats;
    SignalGuard signals(true);
    py.PyGILState_Ensure();
    for (insitu_ctx* ctx : contexts()) {
      if (ctx->state != State::live) continue;
      // Ranks talk in their finalize, and MPI may have ended.
      if (ctx->parallel)
        std::fprintf(stderr, "[lapwing.insitu] insitu_finalize was not called: results are missing\n");
      else
        finish(ctx);
    }
    call_quietly("threading", "_shutdown");
    call_quietly("atexit", "_run_exitfuncs");
    flush();
  } catch (...) {
  }
  end();
}

// The last one registered runs first: after the libraries that analyses import have registered theirs, it is ours again.
void finish_at_exit() {
  static std::atomic<int> registered{0};
  if (started_here() && registered.fetch_add(1) < 8) std::atexit(at_exit);
}

bool switched_off() {
  const char* value = std::getenv("LAPWING_INSITU");
  return value && std::strcmp(value, "0") == 0;
}

// The bridge's module, or the reason why there is none.
Ref find_bridge(std::string* problem) {
  *problem = attach();
  if (!problem->empty()) return Ref();
  finish_at_exit();
  Lock lock;
  const char* named = std::getenv("LAPWING_INSITU_BRIDGE");  // for tests of this library alone
  Ref bridge(py.PyImport_ImportModule(named && *named ? named : "lapwing.insitu.bridge"));
  if (!bridge) *problem = take_error();
  return bridge;
}

void open_session(insitu_ctx* ctx, Object* bridge, const char* script, const char* options, int64_t comm) {
  Lock lock;
  Ref path(py.PyUnicode_DecodeFSDefault(script ? script : ""));
  Ref arguments(path ? py.Py_BuildValue("(OsL)", path.get(), options ? options : "{}", static_cast<long long>(comm)) : nullptr);
  Ref start(arguments ? py.PyObject_GetAttrString(bridge, "start") : nullptr);
  ctx->session = call(start.get(), arguments.get());
  if (ctx->session) {
    ctx->field = Ref(py.PyObject_GetAttrString(ctx->session.get(), "field"));
    ctx->step = Ref(py.PyObject_GetAttrString(ctx->session.get(), "step"));
  }
  py.Py_DecRef(bridge);
  if (!ctx->field || !ctx->step) return say(ctx, "switched off: " + take_error());
  ctx->parallel = comm >= 0;
  ctx->state = State::live;
}

void open(insitu_ctx* ctx, const char* script, const char* options, int64_t comm) {
  bool off = switched_off();
  std::string problem;
  Object* bridge = off ? nullptr : find_bridge(&problem).release();
  if (comm >= 0 && !all_ready(comm, bridge) && bridge) problem = "Python is missing or turned off on another rank";
  if (off)
    ctx->state = State::off;
  else if (!problem.empty())
    say(ctx, "switched off: " + problem);
  else
    open_session(ctx, bridge, script, options, comm);
}

}  // namespace

extern "C" {

insitu_ctx* insitu_init(const char* script, const char* options_json, int64_t mpi_comm_f) {
  static insitu_ctx lost;  // where there is no memory for another
  try {
    auto* ctx = new insitu_ctx;
    {
      std::lock_guard<std::mutex> hold(mutex);
      contexts().push_back(ctx);
    }
    Busy now;
    FloatGuard floats;
    SignalGuard signals(true);
    open(ctx, script, options_json, mpi_comm_f);
    return ctx;
  } catch (...) {
    return &lost;
  }
}

insitu_status insitu_field(insitu_ctx* ctx, const char* name, void* data, int ndim, const int64_t* shape,
                           const int64_t* strides, char code, int bits, insitu_device device, int writable) {
  return guarded(ctx, [&] {
    insitu_array array{data, shape, strides, ndim, bits, code, device};
    std::string problem = wrong(name, array);
    if (!problem.empty()) return fail(ctx, problem);
    Object* arguments = arguments_of(ctx, name, array, writable != 0);
    if (!arguments) return fail(ctx, take_error());
    Ref done = call(ctx->field.get(), arguments);
    return done ? INSITU_OK : fail(ctx, take_error());
  });
}

insitu_status insitu_dlpack(insitu_ctx* ctx, const char* name, void* tensor, int versioned) {
  bool given = false;  // whether the capsule owns it
  insitu_status status = guarded(ctx, [&] {
    if (!name || !*name) return fail(ctx, "insitu_dlpack: a field has no name");
    if (!tensor) return fail(ctx, std::string("insitu_dlpack: field \"") + name + "\" has no tensor");
    Ref capsule(py.PyCapsule_New(tensor, versioned ? VERSIONED : PLAIN, drop_capsule));
    given = static_cast<bool>(capsule);
    Ref arguments(capsule ? py.Py_BuildValue("(sO)", name, capsule.get()) : nullptr);
    Ref done = arguments ? call_method(ctx->session, "dlpack", std::move(arguments)) : Ref();
    return done ? INSITU_OK : fail(ctx, take_error());
  });
  if (tensor && !given) drop(tensor, versioned);
  return status;
}

insitu_status insitu_mesh(insitu_ctx* ctx, const insitu_mesh_info* mesh) {
  return guarded(ctx, [&] {
    if (!mesh || mesh->ndim < 0 || mesh->ndim > 64) return fail(ctx, "insitu_mesh: the mesh has no usable ndim");
    Ref spec(py.PyDict_New());
    auto put = [&](const char* key, Ref value) {
      if (spec && value) py.PyDict_SetItemString(spec.get(), key, value.get());
      else spec = Ref();
    };
    if (mesh->global_shape) put("global_shape", numbers(mesh->global_shape, mesh->ndim));
    if (mesh->offset) put("offset", numbers(mesh->offset, mesh->ndim));
    if (mesh->spacing) put("spacing", numbers(mesh->spacing, mesh->ndim));
    if (mesh->origin) put("origin", numbers(mesh->origin, mesh->ndim));
    if (mesh->weights) put("weights", describe(nullptr, *mesh->weights, 0));
    if (mesh->coordinates) {
      Ref all(py.PyTuple_New(mesh->ndim));
      for (int i = 0; all && i < mesh->ndim; ++i)
        py.PyTuple_SetItem(all.get(), i, describe(nullptr, mesh->coordinates[i], 0).release());
      put("coordinates", std::move(all));
    }
    Ref arguments(spec ? py.Py_BuildValue("(O)", spec.get()) : nullptr);
    Ref done = arguments ? call_method(ctx->session, "mesh", std::move(arguments)) : Ref();
    return done ? INSITU_OK : fail(ctx, take_error());
  });
}

insitu_status insitu_step(insitu_ctx* ctx, int64_t step, double time) {
  return guarded(ctx, [&] {
    SignalGuard signals(ctx->steps++ < FULL_GUARD);
    Ref arguments(py.Py_BuildValue("(Ld)", static_cast<long long>(step), time));
    return status_of(ctx, arguments ? call(ctx->step.get(), arguments.get()) : Ref());
  });
}

static insitu_status with_path(insitu_ctx* ctx, const char* method, const char* path) {
  return guarded(ctx, [&] {
    if (!path || !*path) return fail(ctx, std::string("insitu_") + method + ": no path");
    SignalGuard signals(true);
    Ref name(py.PyUnicode_DecodeFSDefault(path));
    Ref arguments(name ? py.Py_BuildValue("(O)", name.get()) : nullptr);
    return status_of(ctx, arguments ? call_method(ctx->session, method, std::move(arguments)) : Ref());
  });
}

insitu_status insitu_checkpoint(insitu_ctx* ctx, const char* path) { return with_path(ctx, "checkpoint", path); }

insitu_status insitu_restore(insitu_ctx* ctx, const char* path) { return with_path(ctx, "restore", path); }

insitu_status insitu_finalize(insitu_ctx* ctx) {
  insitu_status status = guarded(ctx, [&] {
    SignalGuard signals(true);
    return finish(ctx);
  });
  finish_at_exit();
  return status;
}

const char* insitu_error(insitu_ctx* ctx) {
  if (!ctx) return "no context";
  if (ctx->state == State::live)
    guarded(ctx, [&] {
      Ref last = call_method(ctx->session, "error");
      std::string traceback = last ? text(last.get()) : "";
      if (!traceback.empty()) ctx->error = traceback;
      py.PyErr_Clear();
      return INSITU_OK;
    });
  return ctx->error.c_str();
}

const char* insitu_version(void) { return LAPWING_VERSION; }

}  // extern "C"
