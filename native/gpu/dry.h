// Calls that only record which kernels they would launch on a GPU, which need not exist. While a Dry lives, calls of this
// thread run the usual code over vendor libraries that do nothing (vendor.h, Pretence).
#pragma once
#include <set>
#include <string>
#include <utility>

#include "gpu/cuda.h"
#include "gpu/vendor.h"

namespace lapwing::cuda {

class Dry {
 public:
  explicit Dry(const Properties& gpu);
  ~Dry();
  Dry(const Dry&) = delete;
  static Dry* current();  // that of this thread, or nullptr

  // 0, or 1 with a message in `error`. Buffers, stream and scratch of the frame are replaced: nothing is read or written.
  int run(Frame frame, std::string* error);

  // Records a kernel that the call asks for; nullptr once the call only repeats kernels, as loops over a batch do.
  void* function(const char* source, const char* options);

  const Properties gpu;
  std::set<std::pair<std::string, std::string>> kernels;  // source and options

 private:
  const vendor::Pretence libraries_;
  int repeats_ = 0;
};

}  // namespace lapwing::cuda
