// A call of one of LAPACK's routines with plain C++ values, for whichever integer width the library has.
//
//   int64_t, char, a scalar   are passed by address, as in Fortran; an int64_t gets the library's width
//   int64_t*                  one integer that comes back (info)
//   any other pointer         as it is; an array of the library's integers is a void* (see Integers)
#pragma once
#include <algorithm>
#include <complex>
#include <cstdint>
#include <new>
#include <tuple>
#include <type_traits>

#include "dtypes.h"
#include "lapack/lapack.h"

namespace lapwing::lapack {

// Uninitialised memory, from the beginning of a cache line on.
template <class T>
class Room {
 public:
  explicit Room(int64_t count) : data_(static_cast<T*>(::operator new(sizeof(T) * size_t(count > 0 ? count : 1), LINE))) {}
  ~Room() { ::operator delete(data_, LINE); }
  Room(const Room&) = delete;
  operator T*() const { return data_; }

 private:
  static constexpr std::align_val_t LINE{64};
  T* data_;
};

// A size that LAPACK returned as a floating-point number: a float has only 24 bits, and may have been rounded down.
template <class Real>
int64_t whole_size(Real answered) {
  return int64_t(answered) + int64_t(double(answered) * 1e-7) + 1;
}

template <class Int, class X>
class Argument {
  static constexpr bool integer = std::is_same_v<X, int64_t>, answer = std::is_same_v<X, int64_t*>;
  using Held = std::conditional_t<integer || answer, Int, X>;

 public:
  Argument(X x) : given_(x) {  // NOLINT: a conversion is what it is for
    if constexpr (answer) held_ = 0;
    else held_ = Held(x);
  }
  auto pass() {
    if constexpr (std::is_pointer_v<X> && !answer) return held_;
    else return &held_;
  }
  void answer_back() {
    if constexpr (answer) *given_ = held_;
  }

 private:
  X given_;
  Held held_;
};

template <class Int, class... X>
void call_as(void* address, X... x) {
  std::tuple<Argument<Int, X>...> arguments(x...);
  std::apply([&](auto&... each) {
    reinterpret_cast<void (*)(decltype(each.pass())...)>(address)(each.pass()...);
    (each.answer_back(), ...);
  }, arguments);
}

template <class T, class... X>
void call(Name name, X... x) {
  const Routine& entry = routine(name, dtype_of<T>());
  if (entry.width == 8)
    call_as<int64_t>(entry.address, x...);
  else
    call_as<int32_t>(entry.address, x...);
}

template <class T>
constexpr bool is_complex = PARTS_OF<T> == 2;

template <class T>
int width_of(Name name) {
  return routine(name, dtype_of<T>()).width;
}

// An array of the library's integers.
class Integers {
 public:
  Integers(int64_t count, int width) : room_((count * width + 7) / 8), width_(width) {}
  void* data() const { return static_cast<int64_t*>(room_); }
  int64_t operator[](int64_t i) const {
    return width_ == 8 ? static_cast<const int64_t*>(data())[i] : int64_t(static_cast<const int32_t*>(data())[i]);
  }
  void put(int64_t i, int64_t value) const {
    if (width_ == 8)
      static_cast<int64_t*>(data())[i] = value;
    else
      static_cast<int32_t*>(data())[i] = int32_t(value);
  }

 private:
  Room<int64_t> room_;
  int width_;
};

// `invoke(work, size)` twice: to ask for the size, and with the workspace
template <class T, class Invoke>
void with_workspace(const Invoke& invoke) {
  T size{};
  invoke(&size, int64_t(-1));
  const int64_t room = whole_size(std::real(size));
  Room<T> work(room);
  invoke(static_cast<T*>(work), room);
}

// The end of an eigenvalue routine's arguments, asked for its sizes first: work, (real work for complex T,) integers, info.
// Returns info.
template <class T, class Call>
int64_t with_three_workspaces(Name name, Call routine_with) {
  using Real = RealOf<T>;
  int64_t info = 0;
  auto run = [&](T* work, int64_t room, Real* real_work, int64_t real_room, const Integers& integers, int64_t integer_room) {
    if constexpr (is_complex<T>) routine_with(work, room, real_work, real_room, integers.data(), integer_room, &info);
    else (void)real_work, (void)real_room, routine_with(work, room, integers.data(), integer_room, &info);
  };
  const int width = width_of<T>(name);
  T size{};
  Real real_size{};
  const Integers integer_size(1, width);
  run(&size, -1, &real_size, -1, integer_size, -1);
  if (info) return info;
  const int64_t room = whole_size(std::real(size)), integer_room = integer_size[0];
  const int64_t real_room = is_complex<T> ? whole_size(real_size) : 0;
  Room<T> work(room);
  Room<Real> real_work(real_room);
  const Integers integers(integer_room, width);
  run(work, room, real_work, real_room, integers, integer_room);
  return info;
}

// ---- column-major matrices; the library uses its own threads, except inside side_by_side

// C <- alpha op(A) op(B) + beta C; op is 'N', 'T' or 'C' (adjoint)
template <class T>
void gemm(char a_op, char b_op, int64_t m, int64_t n, int64_t k, T alpha, const T* a, int64_t lda, const T* b, int64_t ldb,
          T beta, T* c, int64_t ldc) {
  call<T>(GEMM, a_op, b_op, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

// w <- the eigenvalues of A, ascending, from the triangle 'U' or 'L'; A <- its eigenvectors, or destroyed. LAPACK's info.
template <class T>
int64_t heevd(bool vectors, char triangle, int64_t n, T* a, int64_t lda, RealOf<T>* w) {
  const char job = vectors ? 'V' : 'N';
  return with_three_workspaces<T>(HEEVD, [&](auto... rest) { call<T>(HEEVD, job, triangle, n, a, lda, w, rest...); });
}

// A = U diag(s) V^H by divide and conquer, A is destroyed; job is 'A', 'S' or 'N' (s alone). LAPACK's info.
template <class T>
int64_t gesdd(char job, int64_t rows, int64_t columns, T* a, RealOf<T>* s, T* u, T* vh, int64_t ld_vh) {
  const int64_t k = std::min(rows, columns), larger = std::max(rows, columns);
  const Integers integers(8 * k, width_of<T>(GESDD));
  const int64_t with_vectors = std::max(5 * k * k + 5 * k, 2 * larger * k + 2 * k * k + k);
  Room<RealOf<T>> real_work(!is_complex<T> ? 0 : job == 'N' ? 7 * k : with_vectors);
  int64_t info = 0;
  with_workspace<T>([&](T* work, int64_t room) {
    if constexpr (is_complex<T>)
      call<T>(GESDD, job, rows, columns, a, rows, s, u, rows, vh, ld_vh, work, room, static_cast<RealOf<T>*>(real_work),
              integers.data(), &info);
    else
      call<T>(GESDD, job, rows, columns, a, rows, s, u, rows, vh, ld_vh, work, room, integers.data(), &info);
  });
  return info;
}

}  // namespace lapwing::lapack
