// The one decision: which engine takes a call, why, and with how much memory. run() and every question from Python ask here.
#pragma once
#include <string>
#include <vector>

#include "frame.h"
#include "gpu/cuda.h"
#include "rules.h"

namespace lapwing {

// Where a call is to run.
struct Place {
  const cuda::Properties* gpu = nullptr;  // null: the CPU
  bool here = true;                       // false: planned for a GPU elsewhere, whose libraries cannot be asked for
  const char* hardware() const { return gpu ? gpu->name : ""; }
};

// One engine for one operation on one device.
struct Method {
  int32_t engine;
  int (*run)(Frame&);
  // "" or why it cannot take the frame
  std::string (*refuses)(const Frame&, const Place&);
  // Whether it is the right one by the built-in limits, for problems without measurements. Called in the order of the table.
  bool (*pays)(const Frame&, const Place&);
  int64_t (*device_bytes)(Frame&);  // -1 leaves a message in the frame; null: 0
  int64_t (*host_bytes)(Frame&);    // about; the same
};

struct Choice {
  enum Why { NAMED, PREFERRED, EMPTY, MEASURED, LIMITS, SPECIAL, LEFT_OVER, NONE };
  const Method* method = nullptr;
  Why why = NONE;
  const Rule* rule = nullptr;       // MEASURED, and for a part of a spectrum SPECIAL
  const Method* first = nullptr;    // LEFT_OVER: the one that would be better but cannot run
  int32_t engine() const { return method ? method->engine : int32_t(AUTO); }
};

// Why the engine that the frame names cannot be used there.
std::string no_method(const Frame& frame, const Place& place);

// The engines that have the operation there, on GPUs of either vendor, in the order of the table.
std::vector<int32_t> engines_of(int32_t op, int32_t device);

// Nothing to compute: a matrix of order 0 is positive definite and finite, and has no eigenvalue.
bool is_empty(const Frame& frame);

// The part of a spectrum in plain numbers: a negative `first` counts from the end, a negative `count` is all. The upper half of
// `count` may hold the bits of a tolerance in single precision, which go to size[4]. false: more than there are.
bool settle_part(Frame& frame);

// frame.engine is AUTO or what the caller named. A choice without a method: no engine of that name has the operation.
Choice decide(const Frame& frame, const Place& place);

// The engine for all calls with AUTO that it can take; AUTO: none is preferred.
void prefer(int32_t engine);

struct Plan {
  int32_t engine = AUTO;
  std::string reason;
  std::string refusal;  // why that engine cannot run; "" where it can
  int64_t device_bytes = 0, host_bytes = 0;
};

// The same decision in words, with its memory. `hardware` names a GPU that need not be here; "": the one here, or the CPU.
// 1 leaves a message in the frame.
int plan(Frame& frame, const char* hardware, Plan* plan);

}  // namespace lapwing
