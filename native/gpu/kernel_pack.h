// Kernels that were compiled ahead: files with an index, written by `lapwing kernels build` (src/lapwing/core/packs.py).
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace lapwing::kernel_pack {

// Files, or folders that hold sm_90.pack and the like, separated by ':'; the first that has a kernel gives it. Packs inside
// `trusted` are part of the installation, as the device sources there are, which are compiled and run as well.
void set_places(const char* places, const char* trusted);

struct Key {
  uint64_t low, high;
  bool operator<(const Key& other) const { return low != other.low ? low < other.low : high < other.high; }
  bool operator==(const Key& other) const { return low == other.low && high == other.high; }
};
Key key_of(const std::string& text);

// The kernel stored under this key for a GPU of this compute capability (90 for 9.0), or "" where no pack has it whole.
std::string find(const Key& key, int compute_capability);

// The packs that serve such a GPU, and the files that would but cannot be used.
struct Description {
  std::string path, problem;  // "": it can be used
  int architecture;
  int64_t kernels;
};
std::vector<Description> describe(int compute_capability);
bool any_for(int compute_capability);

}  // namespace lapwing::kernel_pack
