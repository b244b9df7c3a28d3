// The beginning and the end of a connection.
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>

#include "context.h"
#include "guard.h"
#include "ranks.h"

namespace lapwing::insitu {

std::atomic<int> busy{0};
thread_local Running* Running::inside = nullptr;

namespace {

std::atomic<pid_t> process{0};  // the process that started Python

// Contexts are never freed: a solver may read the error after the end, or finish twice.
std::mutex mutex;
std::vector<insitu_ctx*>& contexts() {
  static auto* all = new std::vector<insitu_ctx*>;
  return *all;
}

void report(insitu_ctx* ctx, const std::string& message) {
  ctx->error = message;
  if (ctx->reported) return;  // a solver that repeats a mistake at every step would fill the log
  ctx->reported = true;
  std::fprintf(stderr, "[lapwing.insitu] %s\n", message.c_str());
}

void flush() {
  Ref sys(py.PyImport_ImportModule("sys"));
  for (const char* name : {"stdout", "stderr"}) {
    Ref stream(sys ? py.PyObject_GetAttrString(sys.get(), name) : nullptr);
    Ref done = call_method(stream, "flush");
    py.PyErr_Clear();
  }
}

// The process ends, and this library has started the interpreter. As in Python, threads are joined and exit functions run. But
// the interpreter is not finalized, because libraries it uses may be unloaded already. The lock stays locked, so that daemon
// threads do not continue.
void at_exit() {
  if (busy.load() || !alive() || getpid() != process) return;  // the end of a forked child is not the end of the run
  try {
    FloatGuard floats;
    SignalGuard signals(true);
    py.PyGILState_Ensure();
    for (insitu_ctx* ctx : contexts()) {
      if (ctx->state != State::live) continue;
      // finalize communicates between the ranks, and MPI may have ended
      if (ctx->parallel)
        std::fprintf(stderr, "[lapwing.insitu] insitu_finalize was not called: results are missing\n");
      else
        finish(ctx);
    }
    call_quietly("threading", "_shutdown");
    // In a new thread: the thread-local objects of this one are destroyed already, and some exit functions (JAX's) use them.
    void* state = py.PyEval_SaveThread();
    std::thread([] {
      const int held = py.PyGILState_Ensure();
      call_quietly("atexit", "_run_exitfuncs");
      flush();
      py.PyGILState_Release(held);
    }).join();
    py.PyEval_RestoreThread(state);
  } catch (...) {
  }
  end();
}

bool switched_off() {
  const char* value = std::getenv("LAPWING_INSITU");
  return value && std::strcmp(value, "0") == 0;
}

// The module of the bridge; if it cannot be imported, `problem` has the reason.
Ref find_bridge(std::string* problem) {
  *problem = attach();
  if (!problem->empty()) return Ref();
  finish_at_exit();
  Lock lock;
  const char* named = std::getenv("LAPWING_INSITU_BRIDGE");  // for tests of this library alone
  Ref bridge(py.PyImport_ImportModule(named && *named ? named : "lapwing.insitu.solver.bridge"));
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
  if (!ctx->field || !ctx->step) return report(ctx, "switched off: " + take_error());
  ctx->parallel = comm >= 0;
  ctx->state = State::live;
}

}  // namespace

insitu_ctx* new_context() {
  auto* ctx = new insitu_ctx;
  std::lock_guard<std::mutex> hold(mutex);
  contexts().push_back(ctx);
  return ctx;
}

void open(insitu_ctx* ctx, const char* script, const char* options, int64_t comm) {
  bool off = switched_off();
  std::string problem;
  Object* bridge = off ? nullptr : find_bridge(&problem).release();
  if (comm >= 0 && !all_ready(comm, bridge) && bridge) problem = "Python is missing or turned off on another rank";
  if (off)
    ctx->state = State::off;
  else if (!problem.empty())
    report(ctx, "switched off: " + problem);
  else
    open_session(ctx, bridge, script, options, comm);
}

// New calls are refused from here on; those of other threads that are running end first.
insitu_status finish(insitu_ctx* ctx) {
  const int own = Running::depth(ctx);
  if (own > 1) return fail(ctx, "insitu_finalize was called inside another call on the same context");
  ctx->state = State::finished;
  while (ctx->calls > own) {
    void* state = py.PyEval_SaveThread();
    timespec pause{0, 1000000};
    nanosleep(&pause, nullptr);
    py.PyEval_RestoreThread(state);
  }
  Ref result = call_method(ctx->session, "finalize");
  insitu_status status = status_of(ctx, result);
  take_session_error(ctx);
  flush();
  ctx->known.clear();
  ctx->field = Ref();
  ctx->step = Ref();
  ctx->session = Ref();
  return status;
}

// The function registered last runs first. It is registered again after analyses have imported libraries with their own ones.
void finish_at_exit() {
  process = getpid();
  static std::atomic<int> registered{0};
  if (started_here() && registered.fetch_add(1) < 8) std::atexit(at_exit);
}

insitu_status fail(insitu_ctx* ctx, const std::string& message) {
  report(ctx, message);
  return INSITU_ERR;
}

Ref call(Object* function, Object* arguments) { return Ref(function ? py.PyObject_CallObject(function, arguments) : nullptr); }

Ref call_method(const Ref& object, const char* name, Ref arguments) {
  Ref method(object ? py.PyObject_GetAttrString(object.get(), name) : nullptr);
  return call(method.get(), arguments.get());
}

insitu_status status_of(insitu_ctx* ctx, const Ref& result) {
  if (!result) return fail(ctx, take_error());
  long value = py.PyLong_AsLong(result.get());
  if (value == -1 && py.PyErr_Occurred()) return fail(ctx, take_error());
  if (value < INSITU_ERR || value > INSITU_STOP)
    return fail(ctx, "the bridge returned the unknown status " + std::to_string(value));
  return static_cast<insitu_status>(value);
}

void take_session_error(insitu_ctx* ctx) {
  Ref last = call_method(ctx->session, "error");
  std::string traceback = last ? text(last.get()) : "";
  if (!traceback.empty()) ctx->error = traceback;
  py.PyErr_Clear();
}

}  // namespace lapwing::insitu
