// Tools for engines that solve inner frames by other engines.
#pragma once
#include <algorithm>
#include <vector>

#include "frame.h"

namespace lapwing::cuda {

// The engine that the planner chooses for a frame, and the device memory it asks for (-1 leaves a message in the frame).
struct ChosenEngine {
  int (*run)(Frame&);
  int64_t (*bytes)(Frame&);
};

// The end of a block of device memory as scratch memory of inner frames. An engine that solves some matrices by another one asks
// again for each of them; requests that do not fit go to the caller.
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

// Scratch memory of calls that run one after the other on a stream: each call gets the blocks of the call before it, if
// they are large enough. Memory of a caller is kept until its own call ends, and XLA lends few blocks.
class SharedScratch {
 public:
  explicit SharedScratch(const Scratch& caller) : caller_(caller) {}
  SharedScratch(const SharedScratch&) = delete;

  // For the next call
  Scratch begin() {
    next_ = 0;
    return {this, get};
  }

 private:
  struct Block {
    void* start;
    size_t bytes;
  };
  static void* get(void* self, size_t bytes) {
    auto& own = *static_cast<SharedScratch*>(self);
    const size_t number = own.next_++;
    if (number < own.blocks_.size() && bytes <= own.blocks_[number].bytes) return own.blocks_[number].start;
    if (number == own.blocks_.size()) own.blocks_.push_back({});
    void* start = own.caller_.get ? own.caller_.get(own.caller_.self, bytes) : nullptr;
    own.blocks_[number] = {start, start ? bytes : 0};
    return start;
  }

  const Scratch caller_;
  std::vector<Block> blocks_;
  size_t next_ = 0;
};

}  // namespace lapwing::cuda
