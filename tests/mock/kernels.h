// What each kernel of src/lapwing/cuda computes, in plain C++. One table at the end: adapt it when a kernel comes or goes.
// Arguments are found by the names in the source, compile-time choices by their macro names.
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

// Index of element (i,j) of the lower triangle that the kernels work on.
inline int64_t place(const Launch& call, int64_t i, int64_t j) {
  return call.upper() ? j * call.n() + i : i * call.n() + j;
}

template <class T>
T nan_of() {
  using Real = typename RealOf<T>::type;
  Real nan = std::numeric_limits<Real>::quiet_NaN();
  if constexpr (sizeof(T) == sizeof(Real))
    return nan;
  else
    return {nan, nan};
}

template <class T>
void run_cholesky(const Launch& call) {
  int64_t n = call.n();
  auto* info = call.pointer<int32_t>("info");
  for (int64_t m = 0; m < call.get("batch"); m++) {
    const T* a = call.pointer<T>("a") + m * n * n;
    T* out = call.pointer<T>("out") + m * n * n;
    std::vector<T> l(size_t(n * n), T(0));
    for (int64_t i = 0; i < n; i++)
      for (int64_t j = 0; j <= i; j++) l[size_t(place(call, i, j))] = a[place(call, i, j)];
    info[m] = int32_t(factor_lower<T>(n, [&](int64_t i, int64_t j) -> T& { return l[size_t(place(call, i, j))]; }, true));
    if (info[m]) std::fill(l.begin(), l.end(), nan_of<T>());
    std::copy(l.begin(), l.end(), out);
  }
}

// Leaves the progress counters as the kernel would: each is written, none outside.
template <class T>
void run_tiled(const Launch& call) {
  run_cholesky<T>(call);
  int64_t tiles = (call.n() + 63) / 64, batch = call.get("batch"), tasks = 1 + tiles * (tiles - 1) / 2;
  *call.pointer<int64_t>("progress.ticket") = tasks * batch;
  for (int64_t m = 0; m < batch; m++) {
    for (int64_t i = 0; i < tiles; i++) call.pointer<int32_t>("progress.rows")[m * tiles + i] = int32_t(i + 1);
    call.pointer<int32_t>("progress.failed")[m] = call.pointer<int32_t>("info")[m];
    call.pointer<int32_t>("progress.finished")[m] = int32_t(tasks);
  }
}

template <class T>
void run_finite_start(const Launch& call) {
  std::fill_n(call.pointer<int32_t>("flags"), call.get("batch"), 1);
}

template <class T>
void run_finite(const Launch& call) {
  int64_t n = call.n();
  for (int64_t m = 0; m < call.get("batch"); m++)
    for (int64_t i = 0; i < n; i++)
      for (int64_t j = 0; j <= i; j++) {
        T x = call.pointer<T>("a")[m * n * n + place(call, i, j)];
        if (!std::isfinite(std::real(x)) || !std::isfinite(std::imag(x))) call.pointer<int32_t>("flags")[m] = 0;
      }
}

template <class T>
void run_transpose_in(const Launch& call) {
  int64_t n = call.n();
  for (int64_t m = 0; m < call.get("batch"); m++) {
    const T* a = call.pointer<T>("a") + m * n * n;
    T* out = call.pointer<T>("out") + m * n * n;
    for (int64_t i = 0; i < n; i++)
      for (int64_t j = 0; j <= i; j++) out[j * n + i] = a[place(call, i, j)];
  }
}

template <class T>
void run_check_diagonal(const Launch& call) {
  int64_t n = call.n();
  auto* info = call.pointer<int32_t>("info");
  for (int64_t m = 0; m < call.get("batch"); m++) {
    int64_t end = info[m] > 0 ? info[m] - 1 : n;
    for (int64_t j = 0; j < end; j++) {
      auto d = std::real(call.pointer<T>("out")[m * n * n + j * (n + 1)]);
      if (d > 0 && std::isfinite(d)) continue;
      info[m] = int32_t(j + 1);
      break;
    }
  }
}

template <class T>
void run_finish(const Launch& call) {
  int64_t n = call.n();
  for (int64_t m = 0; m < call.get("batch"); m++) {
    T* out = call.pointer<T>("out") + m * n * n;
    bool bad = call.pointer<int32_t>("info")[m] != 0;
    std::vector<T> factor(size_t(n * n), bad ? nan_of<T>() : T(0));
    if (!bad)
      for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j <= i; j++) factor[size_t(place(call, i, j))] = out[j * n + i];
    std::copy(factor.begin(), factor.end(), out);
  }
}

// Dynamic shared memory a kernel uses, as its source lays it out.
inline int64_t pitch(int64_t bytes) { return bytes % 16 ? bytes : (bytes / 16 | 1) * 16; }
inline int64_t no_memory(const Launch&) { return 0; }
inline int64_t thread_memory(const Launch& call) {
  return pitch(call.n() * call.n() * call.element()) * call.choice("LW_THREADS");
}
inline int64_t rows_memory(const Launch& call) {
  int64_t n = call.n(), lanes = n <= 4 ? 4 : n <= 8 ? 8 : n <= 16 ? 16 : 32;
  return call.choice("LW_THREADS") / lanes * n * pitch(n * call.element());
}
inline int64_t block_memory(const Launch& call) {
  int64_t blocks = call.choice("LW_N") / 32;
  return 32 * (32 * blocks * (blocks + 1) / 2 * call.element() + 16 * blocks);
}
inline int64_t tiled_memory(const Launch& call) {
  int64_t size = call.element(), tiles = 2 * 64 * (64 * size + 16), padding = call.dtype() == 1 ? 4 * size : 16;
  return std::max(tiles, 4 * 64 * (128 + padding));
}

// Alignment to LW_V that a kernel takes for granted.
enum Access { OF_ELEMENT, OF_BASE, OF_ROW };

struct Kernel {
  void (*run[4])(const Launch&);  // by dtype
  int64_t (*memory)(const Launch&);
  Access access;
  int threads;  // per block: 0 any, -1 LW_THREADS
};

#define MOCK_KERNEL(f, memory, access, threads) \
  { {f<float>, f<double>, f<std::complex<float>>, f<std::complex<double>>}, memory, access, threads }
inline const std::map<std::string, Kernel> KERNELS = {
    {"cholesky_thread", MOCK_KERNEL(run_cholesky, thread_memory, OF_BASE, -1)},
    {"cholesky_rows", MOCK_KERNEL(run_cholesky, rows_memory, OF_BASE, -1)},
    {"cholesky_block", MOCK_KERNEL(run_cholesky, block_memory, OF_ROW, -1)},
    {"cholesky_tiled", MOCK_KERNEL(run_tiled, tiled_memory, OF_ROW, 256)},
    {"finite_start", MOCK_KERNEL(run_finite_start, no_memory, OF_ELEMENT, 256)},
    {"finite_small", MOCK_KERNEL(run_finite, no_memory, OF_ELEMENT, 256)},
    {"finite_large", MOCK_KERNEL(run_finite, no_memory, OF_ELEMENT, 256)},
    {"transpose_in", MOCK_KERNEL(run_transpose_in, no_memory, OF_ELEMENT, 256)},
    {"check_diagonal", MOCK_KERNEL(run_check_diagonal, no_memory, OF_ELEMENT, 0)},
    {"finish", MOCK_KERNEL(run_finish, no_memory, OF_ELEMENT, 256)},
};
#undef MOCK_KERNEL

// Structures kernels take by value: the names of their members, all pointers or 64-bit.
inline const std::map<std::string, std::vector<std::string>> STRUCTURES = {
    {"Progress", {"ticket", "rows", "failed", "finished"}},
};

}  // namespace mock
