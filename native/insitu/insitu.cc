// The C interface of lapwing.insitu: each call finds the interpreter, protects the state of the solver, and passes the work to
// lapwing.insitu.solver.bridge. Nothing here throws, exits or aborts.
#include "context.h"
#include "guard.h"

#ifndef LAPWING_VERSION
#define LAPWING_VERSION "unknown"
#endif

namespace {
using namespace lapwing::insitu;

const int64_t FULL_GUARD = 3;  // number of first steps, in which analyses import libraries
const char FINISHED[] = "the run was finished by insitu_finalize; start another one with insitu_init";

// Runs work() with Python's lock if the context is live; the rest of the process stays unchanged.
template <class Work>
insitu_status guarded(insitu_ctx* ctx, Work work) {
  if (!ctx) return INSITU_ERR;
  const State state = ctx->state;
  if (state == State::off || state == State::dead) return state == State::off ? INSITU_OK : INSITU_ERR;
  if (!alive()) {
    ctx->error = "Python has ended in this process";
    return INSITU_ERR;
  }
  try {
    Busy now;
    FloatGuard floats;
    Lock lock;
    if (ctx->state != State::live) {  // another thread may have finished it while this one waited for the lock
      ctx->error = FINISHED;
      return INSITU_ERR;
    }
    Running running(ctx);
    return work();
  } catch (...) {
    return INSITU_ERR;  // no memory for a message
  }
}

// The status of a field or mesh, with the bridge's reason if it refused it.
insitu_status accepted(insitu_ctx* ctx, const Ref& result) {
  const insitu_status status = status_of(ctx, result);
  if (status == INSITU_ERR && result) take_session_error(ctx);
  return status;
}

}  // namespace

extern "C" {

insitu_ctx* insitu_init(const char* script, const char* options_json, int64_t mpi_comm_f) {
  static insitu_ctx lost;  // if there is no memory for a new one
  try {
    insitu_ctx* ctx = new_context();
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
    std::string problem = problem_with(name, array);
    if (!problem.empty()) return fail(ctx, problem);
    Object* arguments = arguments_of(ctx, name, array, writable != 0);
    if (!arguments) return fail(ctx, take_error());
    return accepted(ctx, call(ctx->field.get(), arguments));
  });
}

insitu_status insitu_dlpack(insitu_ctx* ctx, const char* name, void* tensor, int versioned) {
  bool owned = false;  // whether the capsule owns the tensor
  insitu_status status = guarded(ctx, [&] {
    if (!name || !*name) return fail(ctx, "a field has no name");
    if (!tensor) return fail(ctx, std::string("field \"") + name + "\" has no tensor");
    Ref capsule = capsule_of(tensor, versioned);
    owned = static_cast<bool>(capsule);
    Ref arguments(capsule ? py.Py_BuildValue("(sO)", name, capsule.get()) : nullptr);
    return accepted(ctx, arguments ? call_method(ctx->session, "dlpack", std::move(arguments)) : Ref());
  });
  if (tensor && !owned) drop(tensor, versioned);
  return status;
}

insitu_status insitu_mesh(insitu_ctx* ctx, const insitu_mesh_info* mesh) {
  return guarded(ctx, [&] {
    if (!mesh || mesh->ndim < 0 || mesh->ndim > 64) return fail(ctx, "the mesh has no usable ndim");
    std::string problem = mesh->weights ? problem_with("weights", *mesh->weights) : "";
    for (int i = 0; mesh->coordinates && i < mesh->ndim && problem.empty(); ++i)
      problem = problem_with("coordinates", mesh->coordinates[i]);
    if (!problem.empty()) return fail(ctx, problem);
    Ref spec = mesh_of(*mesh);
    Ref arguments(spec ? py.Py_BuildValue("(O)", spec.get()) : nullptr);
    return accepted(ctx, arguments ? call_method(ctx->session, "mesh", std::move(arguments)) : Ref());
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
    if (!path || !*path) return fail(ctx, std::string(method) + ": no path");
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
      take_session_error(ctx);
      return INSITU_OK;
    });
  return ctx->error.c_str();
}

const char* insitu_version(void) { return LAPWING_VERSION; }

}  // extern "C"
