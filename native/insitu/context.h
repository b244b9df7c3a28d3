// One coupling of a solver with Python, and what its calls share.
#pragma once

#pragma GCC visibility push(default)  // the functions of this header, and nothing else, are seen from outside
#include "../../src/lapwing/insitu/include/lapwing_insitu.h"
#pragma GCC visibility pop

#include <atomic>
#include <string>
#include <vector>

#include "python.h"

namespace lapwing::insitu {

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

}  // namespace lapwing::insitu

struct insitu_ctx {
  lapwing::insitu::State state = lapwing::insitu::State::dead;
  bool parallel = false, said = false;
  lapwing::insitu::Ref session, field, step;
  int64_t steps = 0;
  std::vector<lapwing::insitu::Told> told;
  size_t next = 0;  // the entry of `told` that gives way
  std::string error;
};

namespace lapwing::insitu {

// Calls under way: while there are any, the end of the process leaves Python alone.
extern std::atomic<int> busy;
struct Busy {
  Busy() { ++busy; }
  ~Busy() { --busy; }
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
std::string wrong(const char* name, const insitu_array& array);
// What the bridge's `field` takes, remembered from one step to the next; borrowed, null after a Python error.
Object* arguments_of(insitu_ctx* ctx, const char* name, const insitu_array& array, int writable);
// What the bridge's `mesh` takes.
Ref mesh_of(const insitu_mesh_info& mesh);
// A capsule that owns the DLPack tensor, and what it does at its end.
Ref capsule_of(void* tensor, bool versioned);
void drop(void* tensor, bool versioned);

}  // namespace lapwing::insitu
