// One launch of a kernel: what it was compiled with and what it was given.
#pragma once
#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "cholesky.h"

namespace mock {

struct Launch {
  std::map<std::string, int64_t> option;    // LW_DTYPE, LW_N, ...
  std::map<std::string, int64_t> argument;  // by name; members of a structure as "progress.rows"
  std::map<std::string, double> number;     // those that are not integers
  unsigned threads = 0;

  int64_t get(const char* name) const { return argument.at(name); }
  template <class T>
  T* pointer(const char* name) const {
    return reinterpret_cast<T*>(argument.at(name));
  }
  bool has(const char* name) const { return argument.count(name); }
  int64_t choice(const char* name, int64_t otherwise = 0) const {
    auto found = option.find(name);
    return found == option.end() ? otherwise : found->second;
  }
  int dtype() const { return int(choice("LW_DTYPE")); }
  bool upper() const { return choice("LW_UPPER"); }
  int64_t element() const { return std::vector<int64_t>{4, 8, 8, 16}[size_t(dtype())]; }
  int64_t n() const { return has("n") ? get("n") : choice("LW_N"); }
};

// Where element (i,j) of the lower triangle that the kernels work on lies in memory.
struct Place {
  int64_t n;
  bool upper;
  explicit Place(const Launch& call) : n(call.n()), upper(call.upper()) {}
  int64_t operator()(int64_t i, int64_t j) const { return upper ? j * n + i : i * n + j; }
};

template <class T>
T nan_of() {
  using Real = typename RealOf<T>::type;
  Real nan = std::numeric_limits<Real>::quiet_NaN();
  if constexpr (sizeof(T) == sizeof(Real))
    return nan;
  else
    return {nan, nan};
}

// Dynamic shared memory: none, or bytes apart that matrices are kept at.
inline int64_t no_memory(const Launch&) { return 0; }
inline int64_t pitch(int64_t bytes) { return bytes % 16 ? bytes : (bytes / 16 | 1) * 16; }

}  // namespace mock
