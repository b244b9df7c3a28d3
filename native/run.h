// What one call does besides filling its frame: the log, and the record of the calls that ran.
#pragma once
#include <string>
#include <vector>

#include "frame.h"
#include "methods/krylov.h"

namespace lapwing {

// An EIGH or EIGVALSH frame for a matrix that is given only by its products; buffer[0] is not used.
int run_operator(Frame& frame, const krylov::Product& product, int* converged);

// Adds a sentence to the log of this call; and all sentences of the last call of this thread.
void note(const char* format, ...) __attribute__((format(printf, 1, 2)));
std::vector<std::string> take_notes();

// Calls that ran, of every thread, while recording is on: for tests and reports.
struct Ran {
  int32_t op, engine, dtype;
  int64_t batch, n;
};
void record_runs(bool on);
std::vector<Ran> take_runs();

}  // namespace lapwing
