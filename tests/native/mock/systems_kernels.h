// What the kernels of systems.cu compute, in plain C++. See kernels.h.
#pragma once
#include "launch.h"

namespace mock {

inline void report(int32_t* info, int64_t place) {
  if (*info == 0 || place < *info) *info = int32_t(place);
}

template <class T>
bool finite_number(T x) {
  return std::isfinite(std::real(x)) && std::isfinite(std::imag(x));
}

template <class T>
void run_adjoint(const Launch& call) {
  int64_t rows = call.get("rows"), columns = call.get("columns"), count = call.get("count"), what = call.get("what");
  auto* info = call.pointer<int32_t>("info");
  const T* from = call.pointer<T>("from");
  bool spoilt = (what & 2) && *info;
  std::vector<T> out(size_t(rows * count));
  for (int64_t i = 0; i < rows; i++)
    for (int64_t j = 0; j < count; j++) {
      T x = from[i * columns + j];
      if ((what & 1) && !finite_number(x)) report(info, std::max(i, j) + 1);
      out[size_t(j * rows + i)] = spoilt ? nan_of<T>() : (what & 4) && i < j ? T(0) : conjugate(x);
    }
  std::copy(out.begin(), out.end(), call.pointer<T>("to"));
}

template <class T>
void run_copy_checked(const Launch& call) {
  int64_t columns = call.get("columns");
  for (int64_t e = 0; e < call.get("rows") * columns; e++) {
    T x = call.pointer<T>("from")[e];
    if (!finite_number(x)) report(call.pointer<int32_t>("info"), std::max(e / columns, e % columns) + 1);
    call.pointer<T>("to")[e] = x;
  }
}

template <class T>
void run_identity(const Launch& call) {
  auto *info = call.pointer<int32_t>("info"), *order = call.pointer<int32_t>("order");
  if (info && *info == 0) return;
  int64_t columns = call.get("columns");
  for (int64_t i = 0; i < call.get("rows"); i++)
    for (int64_t j = 0; j < columns; j++) call.pointer<T>("a")[i * columns + j] = j == (order ? order[i] : i) ? T(1) : T(0);
}

template <class T>
void run_spoil(const Launch& call) {
  using Real = typename RealOf<T>::type;
  if (*call.pointer<int32_t>("info")) std::fill_n(call.pointer<Real>("x"), call.get("count"), nan_of<Real>());
}

template <class T>
void run_merge(const Launch& call) {
  auto *info = call.pointer<int32_t>("info"), *other = call.pointer<int32_t>("other");
  if (call.get("offset") < 0)
    *info = *info || *other;
  else if (*other > 0)
    report(info, call.get("offset") + *other);
}

template <class T>
void run_check_pivots(const Launch& call) {
  int64_t kind = call.get("kind");
  for (int64_t j = 0; j < call.n(); j++) {
    T x = call.pointer<T>("a")[j * (call.get("ld") + 1)];
    bool good = kind == 1 ? std::real(x) > 0 && std::isfinite(std::real(x)) : finite_number(x) && (kind == 2 || x != T(0));
    if (!good) report(call.pointer<int32_t>("info"), call.get("offset") + j + 1);
  }
}

template <class T>
void run_check_triangle(const Launch& call) {
  int64_t n = call.n(), unit = call.get("unit");
  for (int64_t i = 0; i < n; i++)
    for (int64_t j = 0; j < n; j++) {
      if ((call.get("upper") ? j < i : j > i) || (unit && i == j)) continue;
      T x = call.pointer<T>("a")[i * n + j];
      if (!finite_number(x) || (i == j && x == T(0))) report(call.pointer<int32_t>("info"), std::max(i, j) + 1);
    }
}

template <class T>
void run_check_solution(const Launch& call) {
  const int64_t n = call.n(), count = call.get("count");
  T* x = call.pointer<T>("x");
  bool good = std::all_of(x, x + count, [](T e) { return finite_number(e); });
  for (int64_t j = 0; !call.get("unit") && j < n; j++) {
    const T pivot = call.pointer<T>("a")[j * (n + 1)];
    good = good && finite_number(pivot) && pivot != T(0);
  }
  *call.pointer<int32_t>("info") = 0;
  if (good) return;
  run_check_triangle<T>(call);
  if (*call.pointer<int32_t>("info")) std::fill_n(x, count, T(std::numeric_limits<typename RealOf<T>::type>::quiet_NaN()));
}

template <class T>
void run_pivot_rows(const Launch& call) {
  auto* rows = call.pointer<int32_t>("rows");
  for (int64_t i = 0; i < call.n(); i++) rows[i] = int32_t(i);
  for (int64_t i = 0; i < call.n() && *call.pointer<int32_t>("info") == 0; i++)
    std::swap(rows[i], rows[call.pointer<int64_t>("pivots")[i] - 1]);
}

template <class T>
void run_permute(const Launch& call) {
  int64_t n = call.n(), k = call.get("k");
  for (int64_t i = 0; i < n; i++) {
    int64_t other = call.pointer<int32_t>("rows")[i];
    if (other < 0 || other >= n) {
      report(call.pointer<int32_t>("info"), i + 1);
      continue;
    }
    bool back = call.get("back");
    std::copy_n(call.pointer<T>("from") + (back ? i : other) * k, k, call.pointer<T>("to") + (back ? other : i) * k);
  }
}

template <class T>
void run_determinant(const Launch& call) {
  using Real = typename RealOf<T>::type;
  auto* pivots = call.pointer<int64_t>("pivots");
  std::complex<double> sign = 1;
  double sum = 0;
  for (int64_t i = 0; i < call.n(); i++) {
    T pivot = call.pointer<T>("a")[i * (call.n() + 1)];
    std::complex<double> x(std::real(pivot), -std::imag(pivot));
    double size = std::abs(x);
    sum += (pivots ? 1 : 2) * std::log(size);
    if (pivots) sign *= size == 0 ? 0 : (pivots[i] == i + 1 ? x : -x) / size;
  }
  auto* logabs = call.pointer<Real>("logabs");
  if (!logabs && sum != -INFINITY) sign *= std::exp(sum);
  bool good = *call.pointer<int32_t>("info") == 0;
  T found;
  if constexpr (sizeof(T) == sizeof(Real))
    found = Real(sign.real());
  else
    found = T(Real(sign.real()), Real(sign.imag()));
  *call.pointer<T>("value") = good ? found : nan_of<T>();
  if (logabs) *logabs = good ? Real(sum) : nan_of<Real>();
}

constexpr int64_t LEAF = 512;

template <class T>
void run_lift(const Launch& call) {
  int64_t n = call.n(), ld = call.get("ld");
  for (int64_t first = 0; first < n; first += LEAF)
    for (int64_t j = 0; j < LEAF; j++)
      for (int64_t i = 0; i < LEAF; i++)
        call.pointer<T>("leaves")[first * LEAF + j * LEAF + i] =
            i >= j && first + i < n ? call.pointer<T>("a")[(first + j) * ld + first + i] : i == j ? T(1) : T(0);
}

template <class T>
void run_invert_tiles(const Launch& call) {
  using Real = typename RealOf<T>::type;
  constexpr int64_t TILE = 32, EACH = LEAF / TILE;
  for (int64_t tile = 0; tile < call.get("tiles"); tile++) {
    T* at = call.pointer<T>("leaves") + tile / EACH * LEAF * LEAF + tile % EACH * TILE * (LEAF + 1);
    std::vector<T> x(TILE * TILE);
    for (int64_t j = 0; j < TILE; j++)
      for (int64_t i = j; i < TILE; i++) {
        T sum = i == j ? T(1) : T(0);
        for (int64_t k = j; k < i; k++) sum -= at[k * LEAF + i] * x[size_t(j * TILE + k)];
        x[size_t(j * TILE + i)] = sum * (Real(1) / std::real(at[i * (LEAF + 1)]));
      }
    for (int64_t j = 0; j < TILE; j++) std::copy_n(&x[size_t(j * TILE)], TILE, at + j * LEAF);
  }
}

template <class T>
void run_copy_block(const Launch& call) {
  for (int64_t j = 0; j < call.get("columns"); j++)
    std::copy_n(call.pointer<T>("from") + j * call.get("from_ld"), call.get("rows"), call.pointer<T>("to") + j * call.get("to_ld"));
}

// all of a number is its high part: the product is the same
template <class T>
void run_split(const Launch& call) {
  const int64_t step = call.get("step");
  for (int64_t j = 0; j < call.get("columns"); j++)
    for (int64_t i = 0; i < call.get("rows"); i++) {
      const T x = call.pointer<T>("from")[j * call.get("from_ld") + i];
      T* at = call.pointer<T>("to") + (call.get("turned") ? i * call.get("to_ld") + j : j * call.get("to_ld") + i);
      at[0] = x, at[step] = call.get("second") ? x : T(0), at[2 * step] = call.get("second") ? T(0) : x;
    }
}

inline int64_t pivots_memory(const Launch& call) { return call.get("far") ? 0 : 4 * call.n(); }

}  // namespace mock
