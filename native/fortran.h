// A call of one of LAPACK's routines with plain C++ values, for whichever integer width the library has.
//
//   int64_t, char, a scalar   are handed over by address, as Fortran wants them; an int64_t takes the library's width
//   int64_t*                  one integer that comes back (info)
//   any other pointer         as it is; an array of the library's integers is a void* (see Integers)
#pragma once
#include <complex>
#include <cstdint>
#include <tuple>
#include <type_traits>

#include "blas.h"
#include "lapack.h"

namespace lapwing::lapack {

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

// routine[name] of T's kind
template <class T, class... X>
void call(Name name, X... x) {
  const Routine& found = routine[name][dtype_of<T>()];
  if (found.width == 8)
    call_as<int64_t>(found.address, x...);
  else
    call_as<int32_t>(found.address, x...);
}

template <class T>
constexpr bool is_complex = sizeof(T) != sizeof(RealOf<T>);

template <class T>
int width_of(Name name) {
  return routine[name][dtype_of<T>()].width;
}

// An array of the library's integers.
class Integers {
 public:
  Integers(int64_t count, int width) : room_((count * width + 7) / 8), width_(width) {}
  void* data() const { return static_cast<int64_t*>(room_); }
  int64_t operator[](int64_t i) const {
    return width_ == 8 ? static_cast<const int64_t*>(data())[i] : int64_t(static_cast<const int32_t*>(data())[i]);
  }

 private:
  Room<int64_t> room_;
  int width_;
};

}  // namespace lapwing::lapack
