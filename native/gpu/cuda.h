// The GPU without its headers: one table of vendor names, found by dlopen, and what the engines need on top of it.
#pragma once
#include <algorithm>
#include <initializer_list>
#include <string>
#include <vector>

#include "frame.h"

namespace lapwing::cuda {

// Where the .cu files of the installation lie.
void set_source_folder(const char* path);

// Makes the frame's device current for the life of the object.
class Guard {
 public:
  explicit Guard(Frame& frame);
  ~Guard();
  bool ok() const { return ok_; }

 private:
  bool ok_ = false;
};

// Function `name` of the device source `source` ("cholesky.cu"), compiled with `options` (one string, separated by
// spaces, such as "-DLW_T=float -DLW_N=8") for the current device. It comes from a kernel pack, else from the disk cache, else
// from the run-time compiler, and is loaded once per process and device. `shared` raises the kernel's dynamic shared memory limit. nullptr leaves a message in the frame.
void* function(Frame& frame, const char* source, const char* options, const char* name, size_t shared = 0);

// A device source compiled for an architecture ("sm_90", "gfx90a"), which need not be that of a GPU here, and what the compiler said. ""
// leaves a message in the frame.
std::string compile(Frame& frame, const char* source, const std::string& options, const std::string& architecture,
                    std::string* log);

// The key of a kernel in packs: a hash of the source, the headers it includes and the options, in hexadecimal digits. "" leaves
// a message in the frame.
std::string pack_key(Frame& frame, const char* source, const std::string& options);

// Every kernel that was loaded in this process, in order.
struct Loaded {
  std::string source, options;
  const char* origin;  // "pack", "cache" or "compiler"
  double seconds;      // until it was loaded
};
std::vector<Loaded> loaded();

struct Grid {
  unsigned x = 1, y = 1, z = 1;
};
// At least one block; if there are too many for one grid, the kernels loop over the others.
inline Grid grid_for(int64_t blocks) { return {unsigned(std::clamp<int64_t>(blocks, 1, 2147483647))}; }

// The widest access, in bytes, that all of these addresses, and addresses `stride` bytes apart, allow.
inline int access_width(std::initializer_list<const void*> addresses, int64_t stride = 0) {
  auto bits = uintptr_t(stride);
  for (const void* address : addresses) bits |= reinterpret_cast<uintptr_t>(address);
  return bits % 16 == 0 ? 16 : bits % 8 == 0 ? 8 : 4;
}

// The options that nearly every device source takes, and `more` in the form of printf: " -DLW_N=%d".
std::string options(int32_t dtype, bool upper, int width, const char* more = "", ...);

// Queues the kernel on the frame's stream. 0, or 1 with a message. `together`: its blocks wait for each other, so that it starts only
// once the GPU has room for all of them.
int launch(Frame& frame, void* function, Grid grid, unsigned threads, size_t shared, void** arguments, bool together = false);

// Finds kernel `name` as function() does, and queues it. The arguments must have exactly the kernel's own types.
template <class... Arguments>
int start(Frame& frame, const char* source, const std::string& options, const char* name, Grid grid, unsigned threads,
          size_t shared, Arguments... arguments) {
  void* kernel = function(frame, source, options.c_str(), name, shared);
  void* addresses[] = {&arguments...};
  return kernel ? launch(frame, kernel, grid, threads, shared, addresses) : 1;
}

// The same for a kernel whose blocks wait for each other.
template <class... Arguments>
int start_together(Frame& frame, const char* source, const std::string& options, const char* name, Grid grid, unsigned threads,
                   size_t shared, Arguments... arguments) {
  void* kernel = function(frame, source, options.c_str(), name, shared);
  void* addresses[] = {&arguments...};
  return kernel ? launch(frame, kernel, grid, threads, shared, addresses, true) : 1;
}

// Device memory for this call. nullptr leaves a message in the frame.
char* scratch(Frame& frame, size_t bytes);

// Queues a fill of `bytes` bytes with `value` on the frame's stream (capturable in a graph).
int fill(Frame& frame, void* where, unsigned char value, size_t bytes);

// Queues a copy between two places on the device.
int copy(Frame& frame, void* to, const void* from, size_t bytes);

// Copies to the host, and waits for all that is queued before.
int download(Frame& frame, void* to, const void* from, size_t bytes);

struct Properties {
  int multiprocessors;
  int shared_per_block;    // the most dynamic shared memory a block may ask for, in bytes
  int compute_capability;  // 90 for sm_90; 0: a GPU of AMD's
  char name[128];
  char architecture[16] = "";  // of AMD's: "gfx90a"
  int lanes = 32;              // threads of a warp, or of a wave
  bool together = true;        // blocks of a kernel may wait for each other
  bool is_amd() const { return architecture[0]; }
};
const Properties* properties(Frame& frame);

}  // namespace lapwing::cuda
