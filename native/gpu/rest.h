// What an engine needs to solve inner frames by other engines.
#pragma once
#include <algorithm>

#include "frame.h"

namespace lapwing::cuda {

// The engine that the planner chooses for a frame, and the device memory it asks for (-1 leaves a message in the frame).
struct ChosenEngine {
  int (*run)(Frame&);
  int64_t (*bytes)(Frame&);
};

// The end of a block of device memory as scratch memory of inner frames. An engine that solves some matrices by another one asks
// again for each of them: what does not fit comes from the caller.
struct Rest {
  char *at, *end;
  Scratch caller;
  static void* get(void* self, size_t bytes) {
    auto* rest = static_cast<Rest*>(self);
    if (bytes > size_t(rest->end - rest->at)) return rest->caller.get ? rest->caller.get(rest->caller.self, bytes) : nullptr;
    char* start = rest->at;
    rest->at += std::min<size_t>((bytes + 255) / 256 * 256, size_t(rest->end - rest->at));
    return start;
  }
};

}  // namespace lapwing::cuda
