#include "gpu/dry.h"

#include <iterator>

#include "gpu/solve.h"

namespace lapwing::cuda {
namespace {

constexpr int MOST_REPEATS = 600;  // more launches than any operation has for one matrix

thread_local Dry* dry = nullptr;

// An address that is aligned as those of device memory are.
void* address(uintptr_t number) { return reinterpret_cast<void*>(number << 40); }
void* scratch_address(void*, size_t) { return address(100); }

}  // namespace

Dry::Dry(const Properties& gpu) : gpu(gpu) { dry = this; }
Dry::~Dry() { dry = nullptr; }
Dry* Dry::current() { return dry; }

int Dry::run(Frame frame, std::string* error) {
  for (uintptr_t i = 0; i < std::size(frame.buffer); i++) frame.buffer[i] = address(i + 1);
  frame.device = CUDA;
  frame.stream = address(200);
  frame.scratch = {nullptr, scratch_address};
  frame.interrupted = nullptr;
  const auto works = [&](Frame& call, int (*function)(Frame&)) {
    repeats_ = 0;
    const bool failed = function(call) && repeats_ <= MOST_REPEATS;
    if (failed) *error = call.error;
    return !failed;
  };
  // only a solution that keeps its factors has more buffers than its operation
  Frame keeping = frame;
  if (frame.op == SOLVE) frame.buffer[4] = frame.buffer[5] = nullptr;
  if (!works(frame, lapwing::run)) return 1;
  if (frame.op == SOLVE && frame.engine == AUTO && !frame.flags && solve_keeps(frame, gpu) && !works(keeping, solve_batched)) return 1;
  if (libraries_.largest_shared() <= unsigned(gpu.shared_per_block)) return 0;
  *error = "a kernel asks for " + std::to_string(libraries_.largest_shared()) + " bytes of shared memory";
  return 1;
}

void* Dry::function(const char* source, const char* options) {
  repeats_ = kernels.emplace(source, options).second ? 0 : repeats_ + 1;
  return repeats_ > MOST_REPEATS ? nullptr : this;
}

}  // namespace lapwing::cuda
