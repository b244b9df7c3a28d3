// native/gpu/divide.cc by itself: its kernels are found and launched by two functions of the test.
#include "gpu/divide.h"

#include <cstdarg>
#include <cstdio>
#include <string>

#include "gpu/cuda.h"

extern "C" {
void* (*find)(const char* source, const char* options, const char* name) = nullptr;
int (*queue)(void* kernel, unsigned blocks, unsigned threads, unsigned shared, void** arguments) = nullptr;
int64_t shared_per_block = 232448;
}

namespace lapwing::cuda {

void* function(Frame&, const char* source, const char* options, const char* name, size_t) { return find(source, options, name); }

int launch(Frame&, void* kernel, Grid grid, unsigned threads, size_t shared, void** arguments, bool) {
  return queue(kernel, grid.x, threads, unsigned(shared), arguments);
}

std::string options(int32_t dtype, bool upper, int width, const char* more, ...) {
  char own[160], text[240];
  va_list arguments;
  va_start(arguments, more);
  std::vsnprintf(own, sizeof own, more, arguments);
  va_end(arguments);
  std::snprintf(text, sizeof text, "-DLW_DTYPE=%d -DLW_UPPER=%d -DLW_V=%d%s", dtype, upper, width, own);
  return text;
}

}  // namespace lapwing::cuda

extern "C" int64_t divide_bytes(int64_t batch, int64_t n, int32_t dtype) { return lapwing::cuda::divide_bytes(batch, n, dtype); }

extern "C" int divide(int64_t batch, int64_t n, int32_t dtype, void* d, void* e, void* w, void* z, void* scratch, int32_t* info) {
  lapwing::Frame frame;
  return lapwing::cuda::divide(frame, batch, n, dtype, d, e, w, z, scratch, info, shared_per_block);
}
