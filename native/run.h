// Which engine takes a call, when the caller left it open.
#pragma once
#include <string>
#include <vector>

#include "frame.h"
#include "krylov.h"

namespace lapwing {

// One row of the threshold table. Bounds are inclusive. The first row that fits decides.
struct Rule {
  int32_t op, device, dtype, engine;
  int64_t n_min, n_max, batch_min, batch_max;
};

// Replaces the rows for one kind of hardware: "" holds for all, a GPU's name for that GPU, and is asked first.
// Python loads them from the measured records.
void set_rules(const char* hardware, const Rule* rules, size_t count);
int32_t choose(const char* hardware, int32_t op, int32_t device, int32_t dtype, int64_t batch, int64_t n);

// Device memory the call will ask its scratch allocator for. -1 leaves a message in the frame.
int64_t scratch_bytes(Frame& frame);

// Host memory the call will take for itself, about. -1 leaves a message in the frame.
int64_t host_bytes(Frame& frame);

// An EIGH or EIGVALSH frame of a matrix that is known by its products alone; buffer[0] is not used.
int run_operator(Frame& frame, const krylov::Product& product, int* converged);

// A sentence for the log, and all that the last call of this thread had to say.
void note(const char* format, ...) __attribute__((format(printf, 1, 2)));
std::vector<std::string> take_notes();

}  // namespace lapwing
