// Kernels that were compiled ahead: files with an index, written by `lapwing kernels build` (src/lapwing/core/packs.py).
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace lapwing::kernel_pack {

// Files, or folders that hold sm_90.pack and the like, separated by ':'; the first that has a kernel is used. Packs inside
// `trusted` are part of the installation, like the device sources there, which are compiled and run too.
void set_places(const char* places, const char* trusted);

struct Key {
  uint64_t low, high;
  bool operator<(const Key& other) const { return low != other.low ? low < other.low : high < other.high; }
  bool operator==(const Key& other) const { return low == other.low && high == other.high; }
};
Key key_of(const std::string& text);

// The kernel stored under this key for a GPU of this compute capability (90 for 9.0), or "" if no pack has it undamaged.
std::string find(const Key& key, int compute_capability);

// The packs for such a GPU, including files that cannot be used.
struct Description {
  std::string path, problem;  // "": it can be used
  int architecture;
  int64_t kernels;
};
std::vector<Description> describe(int compute_capability);
bool any_for(int compute_capability);

}  // namespace lapwing::kernel_pack
