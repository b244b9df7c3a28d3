// One connection of a solver with Python, and the functions that its calls share.
#pragma once

#pragma GCC visibility push(default)  // only the functions of this header are exported
#include "../../src/lapwing/insitu/include/lapwing_insitu.h"
#pragma GCC visibility pop

#include <atomic>
#include <string>
#include <vector>

#include "python.h"

namespace lapwing::insitu {

// off: the user has switched it off, which is not an error; dead: it could not start; finished: insitu_finalize was called
enum class State { live, off, dead, finished };

// One field as the solver described it, and the Python arguments built from it: a solver passes the same fields at every step.
struct KnownField {
  std::string name;
  insitu_array array;
  int writable;
  std::vector<int64_t> shape, strides;
  bool has_strides;
  Ref arguments;
};

}  // namespace lapwing::insitu

struct insitu_ctx {
  std::atomic<lapwing::insitu::State> state{lapwing::insitu::State::dead};
  bool parallel = false, reported = false;
  int calls = 0;  // calls that are running; like all below, only used while Python's lock is held
  lapwing::insitu::Ref session, field, step;
  int64_t steps = 0;
  std::vector<lapwing::insitu::KnownField> known;
  size_t next = 0;  // the entry of `known` that is replaced next
  std::string error;
};

namespace lapwing::insitu {

// Number of running calls: while there are any, the end of the process does not touch Python.
extern std::atomic<int> busy;
struct Busy {
  Busy() { ++busy; }
  ~Busy() { --busy; }
};

// A running call of a context; nested calls of one thread (an analysis that calls the interface) count too.
class Running {
 public:
  explicit Running(insitu_ctx* ctx) : ctx_(ctx), outer_(inside) {
    ++ctx_->calls;
    inside = this;
  }
  ~Running() {
    --ctx_->calls;
    inside = outer_;
  }
  Running(const Running&) = delete;

  // The calls of this thread on the context.
  static int depth(const insitu_ctx* ctx) {
    int count = 0;
    for (Running* one = inside; one; one = one->outer_) count += one->ctx_ == ctx;
    return count;
  }

 private:
  static thread_local Running* inside;
  insitu_ctx* ctx_;
  Running* outer_;
};

// session.cc
insitu_ctx* new_context();
void open(insitu_ctx* ctx, const char* script, const char* options, int64_t comm);
insitu_status finish(insitu_ctx* ctx);
void finish_at_exit();
insitu_status fail(insitu_ctx* ctx, const std::string& message);
Ref call(Object* function, Object* arguments);
Ref call_method(const Ref& object, const char* name, Ref arguments = Ref());
insitu_status status_of(insitu_ctx* ctx, const Ref& result);
void take_session_error(insitu_ctx* ctx);

// fields.cc
// Why the array cannot be used, or "".
std::string problem_with(const char* name, const insitu_array& array);
// The arguments of the bridge's `field`, kept from one step to the next; a borrowed reference, null after a Python error.
Object* arguments_of(insitu_ctx* ctx, const char* name, const insitu_array& array, int writable);
// The argument of the bridge's `mesh`.
Ref mesh_of(const insitu_mesh_info& mesh);
// A capsule that owns the DLPack tensor, and the call of the tensor's deleter.
Ref capsule_of(void* tensor, bool versioned);
void drop(void* tensor, bool versioned);

}  // namespace lapwing::insitu
