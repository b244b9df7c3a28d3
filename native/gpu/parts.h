// Runs a batch in parts of as many matrices as scratch memory allows. Work(frame, engine) describes all matrices of a frame: bytes()
// is the memory they need (-1 leaves a message in the frame), run(block, bytes) queues the work and leaves messages there too.
#pragma once
#include <algorithm>

#include "gpu/blocked_qr.h"
#include "gpu/cuda.h"
#include "gpu/rest.h"

namespace lapwing::cuda {

template <class Work, class Engines>
int64_t bytes_of(Frame& frame, const Engines& engine, int64_t matrices) {
  Frame part = frame;
  part.size[0] = matrices;
  const int64_t bytes = Work(part, engine).bytes();
  return bytes < 0 ? (fail_as(frame, part), -1) : bytes;
}

// How many matrices a part has; -1 with a message in the frame
template <class Work, class Engines>
int64_t matrices_at_once(Frame& frame, const Engines& engine) {
  const int64_t bytes = bytes_of<Work>(frame, engine, 1);
  return bytes < 0 ? -1 : matrices_per_part(frame.size[0], bytes);
}

// Bytes of one part; -1 with a message in the frame
template <class Work, class Engines>
int64_t bytes_of_a_part(Frame& frame, const Engines& engine) {
  const int64_t step = matrices_at_once<Work>(frame, engine);
  return step < 0 ? -1 : bytes_of<Work>(frame, engine, step);
}

template <class Work, class Engines>
int run_in_parts(Frame& frame, const Engines& engine) {
  const int64_t batch = frame.size[0], step = matrices_at_once<Work>(frame, engine);
  const int64_t bytes = step < 0 ? -1 : bytes_of<Work>(frame, engine, step);
  char* block = bytes < 0 ? nullptr : scratch(frame, size_t(bytes));
  if (!block) return 1;
  for (int64_t first = 0; first < batch; first += step) {
    Frame part = part_of(frame, first, std::min(step, batch - first));
    if (Work(part, engine).run(block, bytes)) return fail_as(frame, part);
  }
  return 0;
}

}  // namespace lapwing::cuda
