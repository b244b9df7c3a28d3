// What the kernels of spectrum.cu and krylov.cu compute, in plain C++. See kernels.h.
#pragma once
#include <cstring>

#include "methods/random.h"
#include "launch.h"

namespace mock {

// ---- spectrum.cu -------------------------------------------------------------------------------------------------

template <class T>
void run_hermitian(const Launch& call) {
  int64_t n = call.n();
  auto* finite = call.pointer<int32_t>("finite");
  for (int64_t m = 0; m < call.get("batch"); m++) {
    const T* a = call.pointer<T>("a") + m * n * n;
    T* out = call.pointer<T>("out") + m * n * n;
    for (int64_t i = 0; i < n; i++)
      for (int64_t j = 0; j <= i; j++) {
        T x = call.upper() ? conjugate(a[j * n + i]) : a[i * n + j];  // element (i, j)
        if (finite && !finite[m]) x = T(0);
        if (i == j) x = T(std::real(x));
        out[i * n + j] = x;
        out[j * n + i] = conjugate(x);
      }
  }
}

template <class T>
void run_settle_values(const Launch& call) {
  using Real = typename RealOf<T>::type;
  int64_t n = call.n(), count = call.get("count");
  auto* info = call.pointer<int32_t>("info");
  for (int64_t m = 0; m < call.get("batch"); m++) {
    bool good = call.pointer<int32_t>("finite")[m] && info[m] == 0;
    for (int64_t j = 0; j < count; j++)
      call.pointer<Real>("to")[m * count + j] = good ? call.pointer<Real>("from")[m * n + call.get("skip") + j] : nan_of<Real>();
    if (!good && !info[m]) info[m] = 1;
  }
}

template <class T>
void turn_one(const T* from, T* to, bool good, int64_t n, int64_t skip, int64_t count) {
  for (int64_t i = 0; i < n; i++)
    for (int64_t j = 0; j < count; j++) to[i * count + j] = good ? conjugate(from[(skip + j) * n + i]) : nan_of<T>();
}

template <class T>
void run_turn(const Launch& call) {
  int64_t n = call.n(), count = call.get("count");
  for (int64_t m = 0; m < call.get("batch"); m++)
    turn_one(call.pointer<T>("from") + m * n * n, call.pointer<T>("to") + m * n * count, call.pointer<int32_t>("info")[m] == 0, n,
             call.get("skip"), count);
}

template <class T>
void run_turn_in_place(const Launch& call) {
  int64_t n = call.n();
  for (int64_t m = 0; m < call.get("batch"); m++) {
    T* to = call.pointer<T>("to") + m * n * n;
    std::vector<T> from(to, to + n * n);
    turn_one(from.data(), to, call.pointer<int32_t>("info")[m] == 0, n, 0, n);
  }
}

// ---- krylov.cu ---------------------------------------------------------------------------------------------------

template <class T>
double size_of(T x) {
  return std::fabs(double(std::real(x))) + std::fabs(double(std::imag(x)));
}

// The kernel keeps the larger of bits, where NaN is above all.
inline void keep_largest(double x, double* out) {
  uint64_t mine, most;
  std::memcpy(&mine, &x, sizeof mine);
  std::memcpy(&most, out, sizeof most);
  mine &= ~uint64_t(0) >> 1;
  if (mine > most) std::memcpy(out, &mine, sizeof mine);
}

template <class T>
void run_largest(const Launch& call) {
  int64_t n = call.n();
  for (int64_t i = 0; i < n; i++)
    for (int64_t j = 0; j <= i; j++) {
      T x = call.pointer<T>("a")[Place(call)(i, j)];
      keep_largest(i == j ? double(std::real(x)) : size_of(x), call.pointer<double>("out"));
    }
}

template <class T>
void run_largest_of(const Launch& call) {
  for (int64_t k = 0; k < call.get("count"); k++) keep_largest(size_of(call.pointer<T>("x")[k]), call.pointer<double>("out"));
}

template <class T>
void run_mirror(const Launch& call) {
  using Real = typename RealOf<T>::type;
  int64_t n = call.n();
  T *a = call.pointer<T>("a"), *c = call.pointer<T>("c");
  for (int64_t i = 0; i < n; i++)
    for (int64_t j = 0; j <= i; j++) {
      T x = (call.upper() ? conjugate(a[j * n + i]) : a[i * n + j]) * Real(call.number.at("by"));  // element (i, j)
      if (i == j) x = T(std::real(x));
      c[j * n + i] = x;
      c[i * n + j] = conjugate(x);
    }
}

using lapwing::krylov::random_number;

template <class T>
void run_fill_random(const Launch& call) {
  using Real = typename RealOf<T>::type;
  constexpr int64_t parts = sizeof(T) / sizeof(Real);
  for (int64_t k = 0; k < call.get("count") * parts; k++)
    call.pointer<Real>("x")[k] = Real(random_number(uint64_t(call.get("seed")), uint64_t(k)) * call.number.at("by"));
}

template <class T>
void run_rescale(const Launch& call) {
  using Real = typename RealOf<T>::type;
  for (int64_t k = 0; k < call.get("count"); k++) call.pointer<T>("x")[k] *= Real(call.number.at("by"));
}

template <class T>
void run_cholesky_gram(const Launch& call) {
  using Real = typename RealOf<T>::type;
  int64_t n = call.n();
  T* g = call.pointer<T>("g");
  auto at = [&](int64_t i, int64_t j) -> T& { return g[i + j * n]; };  // i <= j
  std::vector<Real> diagonal;
  for (int64_t k = 0; k < n; k++) diagonal.push_back(std::real(at(k, k)));
  for (int64_t k = 0; k < n; k++) {
    Real pivot = std::real(at(k, k));
    bool zero = !(pivot > Real(call.number.at("floor")) && pivot > Real(call.number.at("relative")) * diagonal[size_t(k)]);
    call.pointer<int32_t>("bad")[k] = zero;
    Real root = zero ? 1 : std::sqrt(pivot);
    at(k, k) = root;
    for (int64_t j = k + 1; j < n; j++) at(k, j) = zero ? T(0) : at(k, j) / root;
    for (int64_t i = 0; i < k && zero; i++) at(i, k) = T(0);
    for (int64_t i = k + 1; i < n && !zero; i++)
      for (int64_t j = i; j < n; j++) at(i, j) -= conjugate(at(k, i)) * at(k, j);
  }
}

template <class T>
void run_solve_rows(const Launch& call) {
  using Real = typename RealOf<T>::type;
  constexpr int64_t parts = sizeof(T) / sizeof(Real);
  int64_t n = call.n(), columns = call.get("columns");
  const T* r = call.pointer<T>("r");
  T* x = call.pointer<T>("x");
  auto *bad = call.pointer<int32_t>("bad"), *dead = call.pointer<int32_t>("dead");
  if (dead) std::copy_n(bad, columns, dead);
  for (int64_t row = 0; row < n; row++) {
    for (int64_t k = 0; k < columns; k++) {
      T sum = x[k * n + row];
      for (int64_t i = 0; i < k; i++) sum -= x[i * n + row] * r[k * columns + i];
      x[k * n + row] = sum / std::real(r[k * columns + k]);
    }
    for (int64_t k = 0; k < columns; k++) {
      if (!bad[k]) continue;
      T value = 0;
      for (int64_t p = 0; p < parts && !dead; p++)
        reinterpret_cast<Real*>(&value)[p] =
            Real(random_number(uint64_t(call.get("replacement") * 64 + k), uint64_t(row * parts + p)) * call.number.at("by"));
      x[k * n + row] = value;
    }
  }
}

template <class T>
void run_residual(const Launch& call) {
  using Real = typename RealOf<T>::type;
  int64_t n = call.n();
  for (int64_t j = 0; j < call.get("columns"); j++) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) {
      T& r = call.pointer<T>("ay")[j * n + i];
      r -= call.pointer<T>("y")[j * n + i] * Real(call.pointer<double>("theta")[j]);
      sum += double(std::norm(r));
    }
    call.pointer<double>("norms")[j] = std::sqrt(sum);
  }
}

template <class T>
void run_write_rows(const Launch& call) {
  int64_t n = call.n(), count = call.get("count");
  for (int64_t i = 0; i < n; i++)
    for (int64_t j = 0; j < count; j++)
      call.pointer<T>("out")[i * count + j] = call.pointer<T>("y")[(call.get("reversed") ? count - 1 - j : j) * n + i];
}

template <class T>
void run_recur(const Launch& call) {
  using Real = typename RealOf<T>::type;
  const Real alpha = Real(call.number.at("alpha")), beta = Real(call.number.at("beta")), gamma = Real(call.number.at("gamma"));
  T* z = call.pointer<T>("z");
  for (int64_t k = 0; k < call.get("count"); k++)
    z[k] = alpha * call.pointer<T>("ax")[k] + beta * call.pointer<T>("x")[k] + (gamma == 0 ? T(0) : gamma * z[k]);
}

template <class T>
void run_widen(const Launch& call) {
  using Real = typename RealOf<T>::type;
  constexpr int64_t parts = sizeof(T) / sizeof(Real);
  const int64_t length = call.get("length") * parts, stride = call.get("stride") * parts;
  for (int64_t line = 0; line < call.get("lines"); line++)
    for (int64_t k = 0; k < length; k++)
      call.pointer<double>("to")[line * length + k] = double(call.pointer<Real>("from")[line * stride + k]);
}

template <class T>
void run_narrow(const Launch& call) {
  using Real = typename RealOf<T>::type;
  constexpr int64_t parts = sizeof(T) / sizeof(Real);
  for (int64_t k = 0; k < call.get("count") * parts; k++)
    call.pointer<Real>("to")[k] = Real(call.pointer<double>("from")[k]);
}

template <class T>
void run_take_lines(const Launch& call) {
  const int64_t length = call.get("length"), from_length = call.get("from_length");
  for (int64_t line = 0; line < call.get("lines"); line++)
    for (int64_t k = 0; k < length; k++)
      call.pointer<T>("to")[line * length + k] = call.pointer<T>("from")[line * from_length + k];
}

inline int64_t gram_memory(const Launch& call) { return call.n() * call.n() * call.element(); }
inline int64_t solve_memory(const Launch& call) {
  int64_t width = call.choice("LW_WIDTH");
  return call.get("columns") > width ? int64_t(1) << 40 : width * width * call.element();
}

}  // namespace mock
