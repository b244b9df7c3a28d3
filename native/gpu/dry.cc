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
  // only a solution that keeps its factors has more buffers than its operation
  const bool keeps = frame.op == SOLVE && frame.engine == AUTO && !frame.flags && solve_keeps(frame, gpu);
  Frame plain = frame;
  if (frame.op == SOLVE) plain.buffer[4] = plain.buffer[5] = nullptr;
  for (Frame* call : {&plain, &frame}) {
    repeats_ = 0;
    const int status = call == &plain ? lapwing::run(*call) : keeps ? solve_batched(*call) : 0;
    if (status && repeats_ <= MOST_REPEATS) {
      *error = call->error;
      return 1;
    }
  }
  if (libraries_.largest_shared() <= unsigned(gpu.shared_per_block)) return 0;
  *error = "a kernel asks for " + std::to_string(libraries_.largest_shared()) + " bytes of shared memory";
  return 1;
}

void* Dry::function(const char* source, const char* options) {
  repeats_ = kernels.emplace(source, options).second ? 0 : repeats_ + 1;
  return repeats_ > MOST_REPEATS ? nullptr : this;
}

}  // namespace lapwing::cuda
