// The kernels of eigh.cu, eigh_panel.cu, eigh_vectors.cu and eigh_small.cu without their numbers: each fills all that it may
// write and finds what the stage before it wrote, so that places which overlap or end too early are seen. The "eigenvalues" are
// 1, 2, ... counted over the whole spectrum, every element of a "vector" is 1.
#pragma once
#include <cstring>

#include "launch.h"
#include "mock.h"

namespace mock {

// Fills `count` elements with a byte that names the stage and the place.
inline void leave(void* where, int64_t bytes, int mark) { std::memset(where, mark, size_t(bytes)); }

inline void find(const void* where, int64_t bytes, int mark, const char* what) {
  auto* at = static_cast<const unsigned char*>(where);
  for (int64_t k = 0; k < bytes; k++)
    if (at[k] != mark) {
      refuse(0, "%s: byte %lld of %lld was written over", what, (long long)k, (long long)bytes);
      return;
    }
}

enum Mark { H = 0x11, TAU, D, E, UP, ROTATIONS, SWEEPS, SWEEP_COUNT, ORDER, Z };

template <class T>
void run_reduce(const Launch& call) {
  using Real = typename RealOf<T>::type;
  int64_t n = call.n(), batch = call.get("batch"), pitch = call.get(call.has("h_pitch") ? "h_pitch" : "pitch");
  const T* a = call.pointer<T>("a");
  bool panel = !call.has("keep");
  if (panel || call.get("keep")) leave(call.pointer<T>("h"), batch * n * pitch * int64_t(sizeof(T)), H);
  leave(call.pointer<T>("tau"), batch * n * int64_t(sizeof(T)), TAU);
  leave(call.pointer<Real>("d"), batch * n * int64_t(sizeof(Real)), D);
  leave(call.pointer<Real>("e"), batch * n * int64_t(sizeof(Real)), E);
  leave(call.pointer<Real>("up"), batch * int64_t(sizeof(Real)), UP);
  for (int64_t m = 0; m < batch; m++) {
    bool finite = true;
    for (int64_t i = 0; i < n; i++)
      for (int64_t j = 0; j <= i; j++) finite = finite && std::isfinite(std::abs(a[m * n * n + Place(call)(i, j)]));
    call.pointer<int32_t>("info")[m] = !finite;
  }
}

// The second stage; `rotations` and what goes with them are there for vectors only.
template <class Real>
void find_values(const Launch& call, int64_t batch, bool vectors) {
  int64_t n = call.get("values.n"), real = int64_t(sizeof(Real)), count = call.get("values.count");
  find(call.pointer<char>("values.d"), batch * n * real, D, "d");
  find(call.pointer<char>("values.e"), batch * n * real, E, "e");
  find(call.pointer<char>("values.up"), batch * real, UP, "up");
  if (vectors) {
    leave(call.pointer<char>("values.rotations"), batch * call.get("values.room") * 2 * real, ROTATIONS);
    leave(call.pointer<char>("values.sweeps"), batch * call.get("values.sweep_room") * 8, SWEEPS);
    leave(call.pointer<char>("values.sweep_count"), batch * 4, SWEEP_COUNT);
    leave(call.pointer<char>("values.order"), batch * n * 4, ORDER);
  }
  for (int64_t m = 0; m < batch; m++)
    for (int64_t j = 0; j < count; j++)
      call.pointer<Real>("values.w")[m * count + j] =
          call.pointer<int32_t>("values.info")[m] ? nan_of<Real>() : Real(call.get("values.first") + j + 1);
}

template <class T>
void run_values(const Launch& call) {
  find_values<typename RealOf<T>::type>(call, call.get("batch"), call.choice("LW_VECTORS"));
}

// The third stage
template <class T>
void run_vectors(const Launch& call) {
  auto get = [&](const char* member) { return call.argument.at(std::string("at.") + member); };
  auto at = [&](const char* member) { return reinterpret_cast<char*>(get(member)); };
  int64_t batch = call.get("batch"), n = get("n"), count = get("count"), element = int64_t(sizeof(T));
  int64_t real = int64_t(sizeof(typename RealOf<T>::type));
  find(at("h"), batch * n * get("h_pitch") * element, H, "h");
  find(at("tau"), batch * n * element, TAU, "tau");
  if (call.choice("LW_GLOBAL")) leave(at("z"), batch * ((n + 31) / 32) * 32 * n * element, Z);
  find(at("rotations"), batch * get("room") * 2 * real, ROTATIONS, "rotations");
  find(at("sweeps"), batch * get("sweep_room") * 8, SWEEPS, "sweeps");
  find(at("sweep_count"), batch * 4, SWEEP_COUNT, "sweep_count");
  find(at("order"), batch * n * 4, ORDER, "order");
  auto* info = reinterpret_cast<int32_t*>(at("info"));
  for (int64_t m = 0; m < batch; m++)
    std::fill_n(reinterpret_cast<T*>(at("v")) + m * n * count, n * count, info[m] ? nan_of<T>() : T(1));
}

template <class T>
void run_eigh_small(const Launch& call) {
  using Real = typename RealOf<T>::type;
  int64_t n = call.n(), count = call.get("count"), first = call.get("first");
  for (int64_t m = 0; m < call.get("batch"); m++) {
    const T* a = call.pointer<T>("a") + m * n * n;
    bool finite = true;
    for (int64_t i = 0; i < n; i++)
      for (int64_t j = 0; j <= i; j++) finite = finite && std::isfinite(std::abs(a[Place(call)(i, j)]));
    call.pointer<int32_t>("info")[m] = !finite;
    for (int64_t j = 0; j < count; j++) call.pointer<Real>("w")[m * count + j] = finite ? Real(first + j + 1) : nan_of<Real>();
    if (call.choice("LW_VECTORS")) std::fill_n(call.pointer<T>("v") + m * n * count, n * count, finite ? T(1) : nan_of<T>());
  }
}

// ---- dynamic shared memory, as the sources lay it out ------------------------------------------------------------

inline int64_t real_bytes(const Launch& call) { return call.dtype() % 2 ? 8 : 4; }

inline int64_t small_memory(const Launch& call) {
  int64_t n = call.n();
  return call.choice("LW_THREADS") * (pitch(n * n * call.element()) + call.get("count") * real_bytes(call));
}

inline int64_t reduce_memory(const Launch& call) {
  int64_t n = call.n(), vec = 16 / call.element(), lanes = call.choice("LW_P"), columns = (n + vec - 1) / vec;
  if (n > lanes) return int64_t(1) << 40;
  int64_t each = n * (columns | 1) + 3 * columns + lanes + 2, sums = lanes > 32 ? 4 * (lanes / 32) * real_bytes(call) : 0;
  return call.choice("LW_THREADS") / lanes * each * 16 + sums;
}

inline int64_t panel_memory(const Launch& call) {
  int64_t n = call.n(), threads = call.choice("LW_THREADS"), nb = call.choice("LW_NB"), length = (n + 7) / 8 * 8;
  if (n > threads) return int64_t(1) << 40;
  int64_t elements = (2 * nb + 1 + call.choice("LW_READERS")) * length + 2 * nb + 16 / call.element();
  return elements * call.element() + 2 * (threads / 32) * real_bytes(call);
}

inline int64_t values_room(const Launch& call, int64_t n, int64_t m, bool vectors) {
  return ((2 + 2 * n) * m + (vectors ? 2 * n * (m == 1 ? 1 : m + 1) : 0)) * real_bytes(call);
}
inline int64_t values_memory(const Launch& call) {
  return call.choice("LW_THREADS") / 32 *
         values_room(call, call.get("values.n"), call.choice("LW_M"), call.choice("LW_VECTORS"));
}

inline int64_t rows_of_vectors(const Launch& call, int64_t n) {
  int64_t step = call.choice("LW_K") * 2 * real_bytes(call), elements = (call.choice("LW_B") * call.element() + 15) / 16 * 16;
  int64_t bytes = 32 * std::max(step, elements) + (call.choice("LW_GLOBAL") ? 32 : n) * 33 * call.element();
  return (bytes + 15) / 16 * 16;
}
inline int64_t vectors_memory(const Launch& call) {
  int64_t n = call.get("at.n"), lanes = call.choice("LW_P");
  if (n > lanes && lanes < 32) return int64_t(1) << 40;
  return call.choice("LW_THREADS") / 32 * rows_of_vectors(call, n);
}

}  // namespace mock
