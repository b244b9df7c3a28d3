// What each kernel of src/lapwing/kernels computes, in plain C++. One table at the end: adapt it when a kernel comes or goes.
// Arguments are found by the names in the source, compile-time choices by their macro names.
#pragma once
#include "eigh_kernels.h"
#include "launch.h"
#include "spectrum_kernels.h"
#include "systems_kernels.h"

namespace mock {

template <class T>
void run_cholesky(const Launch& call) {
  int64_t n = call.n();
  const Place place(call);
  auto* info = call.pointer<int32_t>("info");
  for (int64_t m = 0; m < call.get("batch"); m++) {
    const T* a = call.pointer<T>("a") + m * n * n;
    T* out = call.pointer<T>("out") + m * n * n;
    std::vector<T> l(size_t(n * n), T(0));
    for (int64_t i = 0; i < n; i++)
      for (int64_t j = 0; j <= i; j++) l[size_t(place(i, j))] = a[place(i, j)];
    info[m] = int32_t(factor_lower<T>(n, [&](int64_t i, int64_t j) -> T& { return l[size_t(place(i, j))]; }, true));
    if (info[m]) std::fill(l.begin(), l.end(), nan_of<T>());
    std::copy(l.begin(), l.end(), out);
  }
}

// Leaves the progress counters as the kernel would: each is written, none outside. What failed is left for the next kernel.
template <class T>
void run_tiled(const Launch& call) {
  int64_t n = call.n(), tiles = (n + 63) / 64, batch = call.get("batch");
  auto* failed = call.pointer<int32_t>("progress.failed");
  *call.pointer<int64_t>("progress.ticket") = batch * (1 + tiles * (tiles - 1) / 2);
  for (int64_t i = 0; i < batch * tiles; i++) call.pointer<int32_t>("progress.rows")[i] = int32_t(2 * tiles);
  Launch factor = call;
  factor.argument["info"] = int64_t(failed);
  run_cholesky<T>(factor);
  // a failed matrix holds whatever the kernel went on with
  for (int64_t m = 0; m < batch; m++)
    if (failed[m]) std::fill_n(call.pointer<T>("out") + m * n * n, n * n, T(7));
}

template <class T>
void run_settle(const Launch& call) {
  int64_t n = call.n();
  for (int64_t m = 0; m < call.get("batch"); m++) {
    call.pointer<int32_t>("info")[m] = call.pointer<int32_t>("failed")[m];
    if (call.pointer<int32_t>("failed")[m]) std::fill_n(call.pointer<T>("out") + m * n * n, n * n, nan_of<T>());
  }
}

template <class T>
void run_finite_start(const Launch& call) {
  std::fill_n(call.pointer<int32_t>("flags"), call.get("batch"), 1);
}

template <class T>
void run_finite(const Launch& call) {
  int64_t n = call.n();
  const Place place(call);
  const T* a = call.pointer<T>("a");
  for (int64_t m = 0; m < call.get("batch"); m++)
    for (int64_t i = 0; i < n; i++)
      for (int64_t j = 0; j <= i; j++) {
        T x = a[m * n * n + place(i, j)];
        if (!std::isfinite(std::real(x)) || !std::isfinite(std::imag(x))) call.pointer<int32_t>("flags")[m] = 0;
      }
}

template <class T>
void run_transpose_in(const Launch& call) {
  int64_t n = call.n();
  const Place place(call);
  for (int64_t m = 0; m < call.get("batch"); m++) {
    const T* a = call.pointer<T>("a") + m * n * n;
    T* out = call.pointer<T>("out") + m * n * n;
    for (int64_t i = 0; i < n; i++)
      for (int64_t j = 0; j <= i; j++) out[j * n + i] = a[place(i, j)];
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
  const Place place(call);
  for (int64_t m = 0; m < call.get("batch"); m++) {
    T* out = call.pointer<T>("out") + m * n * n;
    bool bad = call.pointer<int32_t>("info")[m] != 0;
    std::vector<T> factor(size_t(n * n), bad ? nan_of<T>() : T(0));
    if (!bad)
      for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j <= i; j++) factor[size_t(place(i, j))] = out[j * n + i];
    std::copy(factor.begin(), factor.end(), out);
  }
}

// Dynamic shared memory a kernel uses, as its source lays it out.
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

// Threads of a block.
inline int64_t chosen_threads(const Launch& call) { return call.choice("LW_THREADS"); }
inline int64_t chosen_warps(const Launch& call) { return 32 * call.choice("LW_WARPS", 8); }
inline int64_t threads_256(const Launch&) { return 256; }

struct Kernel {
  void (*run[4])(const Launch&);  // by dtype
  int64_t (*memory)(const Launch&);
  int64_t (*threads)(const Launch&);  // nullptr: as many as one likes
  Access access;
  const char* needs = nullptr;  // the choice that lets the source hold this kernel, and its value
  int64_t value = 0;
};

#define MOCK_KERNEL(f, ...) {{f<float>, f<double>, f<std::complex<float>>, f<std::complex<double>>}, __VA_ARGS__}
inline const std::map<std::string, Kernel> KERNELS = {
    {"cholesky_thread", MOCK_KERNEL(run_cholesky, thread_memory, chosen_threads, OF_BASE)},
    {"cholesky_rows", MOCK_KERNEL(run_cholesky, rows_memory, chosen_threads, OF_BASE)},
    {"cholesky_block", MOCK_KERNEL(run_cholesky, block_memory, chosen_threads, OF_ROW)},
    {"cholesky_tiled", MOCK_KERNEL(run_tiled, tiled_memory, chosen_warps, OF_ROW)},
    {"cholesky_settle", MOCK_KERNEL(run_settle, no_memory, nullptr, OF_ELEMENT)},
    {"finite_start", MOCK_KERNEL(run_finite_start, no_memory, threads_256, OF_ELEMENT)},
    {"finite_small", MOCK_KERNEL(run_finite, no_memory, threads_256, OF_ELEMENT)},
    {"finite_large", MOCK_KERNEL(run_finite, no_memory, threads_256, OF_ELEMENT)},
    {"transpose_in", MOCK_KERNEL(run_transpose_in, no_memory, threads_256, OF_ELEMENT)},
    {"check_diagonal", MOCK_KERNEL(run_check_diagonal, no_memory, nullptr, OF_ELEMENT)},
    {"finish", MOCK_KERNEL(run_finish, no_memory, threads_256, OF_ELEMENT)},
    {"hermitian", MOCK_KERNEL(run_hermitian, no_memory, threads_256, OF_ELEMENT)},
    {"hermitian_small", MOCK_KERNEL(run_hermitian, no_memory, threads_256, OF_ELEMENT)},
    {"settle", MOCK_KERNEL(run_settle_values, no_memory, threads_256, OF_ELEMENT)},
    {"turn", MOCK_KERNEL(run_turn, no_memory, threads_256, OF_ELEMENT)},
    {"turn_in_place", MOCK_KERNEL(run_turn_in_place, no_memory, threads_256, OF_ELEMENT)},
    {"largest", MOCK_KERNEL(run_largest, no_memory, threads_256, OF_ELEMENT)},
    {"largest_of", MOCK_KERNEL(run_largest_of, no_memory, threads_256, OF_ELEMENT)},
    {"mirror", MOCK_KERNEL(run_mirror, no_memory, threads_256, OF_ELEMENT)},
    {"fill_random", MOCK_KERNEL(run_fill_random, no_memory, threads_256, OF_ELEMENT)},
    {"rescale", MOCK_KERNEL(run_rescale, no_memory, threads_256, OF_ELEMENT)},
    {"cholesky_gram", MOCK_KERNEL(run_cholesky_gram, gram_memory, threads_256, OF_ELEMENT)},
    {"solve_rows", MOCK_KERNEL(run_solve_rows, solve_memory, nullptr, OF_ELEMENT)},
    {"residual", MOCK_KERNEL(run_residual, no_memory, threads_256, OF_ELEMENT)},
    {"write_rows", MOCK_KERNEL(run_write_rows, no_memory, threads_256, OF_ELEMENT)},
    {"recur", MOCK_KERNEL(run_recur, no_memory, threads_256, OF_ELEMENT)},
    {"widen", MOCK_KERNEL(run_widen, no_memory, threads_256, OF_ELEMENT)},
    {"narrow", MOCK_KERNEL(run_narrow, no_memory, threads_256, OF_ELEMENT)},
    {"take_lines", MOCK_KERNEL(run_take_lines, no_memory, threads_256, OF_ELEMENT)},
    {"adjoint", MOCK_KERNEL(run_adjoint, no_memory, threads_256, OF_ELEMENT)},
    {"copy_checked", MOCK_KERNEL(run_copy_checked, no_memory, threads_256, OF_ELEMENT)},
    {"identity", MOCK_KERNEL(run_identity, no_memory, threads_256, OF_ELEMENT)},
    {"spoil", MOCK_KERNEL(run_spoil, no_memory, threads_256, OF_ELEMENT)},
    {"merge", MOCK_KERNEL(run_merge, no_memory, threads_256, OF_ELEMENT)},
    {"check_pivots", MOCK_KERNEL(run_check_pivots, no_memory, threads_256, OF_ELEMENT)},
    {"check_triangle", MOCK_KERNEL(run_check_triangle, no_memory, threads_256, OF_ELEMENT)},
    {"check_solution", MOCK_KERNEL(run_check_solution, no_memory, threads_256, OF_ELEMENT)},
    {"pivot_rows", MOCK_KERNEL(run_pivot_rows, pivots_memory, threads_256, OF_ELEMENT)},
    {"permute", MOCK_KERNEL(run_permute, no_memory, threads_256, OF_ELEMENT)},
    {"determinant", MOCK_KERNEL(run_determinant, no_memory, threads_256, OF_ELEMENT)},
    {"lift", MOCK_KERNEL(run_lift, no_memory, threads_256, OF_ELEMENT)},
    {"invert_tiles", MOCK_KERNEL(run_invert_tiles, no_memory, threads_256, OF_ELEMENT)},
    {"copy_block", MOCK_KERNEL(run_copy_block, no_memory, threads_256, OF_ELEMENT)},
    {"split", MOCK_KERNEL(run_split, no_memory, threads_256, OF_ELEMENT)},
    {"eigh_small", MOCK_KERNEL(run_eigh_small, small_memory, chosen_threads, OF_BASE)},
    {"eigh_reduce", MOCK_KERNEL(run_reduce, reduce_memory, chosen_threads, OF_ELEMENT, "LW_KERNEL", 0)},
    {"eigh_panel", MOCK_KERNEL(run_reduce, panel_memory, chosen_threads, OF_ELEMENT)},
    {"eigh_values", MOCK_KERNEL(run_values, values_memory, chosen_threads, OF_ELEMENT, "LW_KERNEL", 1)},
    {"eigh_vectors", MOCK_KERNEL(run_vectors, vectors_memory, chosen_threads, OF_ELEMENT)},
};
#undef MOCK_KERNEL

}  // namespace mock
