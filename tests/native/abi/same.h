// Same<Ours, Theirs>::value: one declaration can stand for the other in a call or a structure. Enums and integers of one
// size are the same; our void* stands for a pointer to void or to an opaque type, never for a pointer to a known structure.
#pragma once
#include <cstddef>
#include <type_traits>

template <class T, class = void>
struct Known : std::false_type {};
template <class T>
struct Known<T, std::void_t<decltype(sizeof(T))>> : std::true_type {};

// Structures declared twice: specialised by PAIR.
template <class Ours, class Theirs>
struct Paired : std::false_type {};
#define PAIR(ours, theirs) \
  template <>              \
  struct Paired<ours, theirs> : std::true_type {}

template <class T>
constexpr bool is_number = std::is_integral_v<T> || std::is_enum_v<T>;

template <class Ours, class Theirs, class = void>
struct Same : std::bool_constant<(is_number<Ours> && is_number<Theirs> && sizeof(Ours) == sizeof(Theirs)) ||
                                 (std::is_floating_point_v<Ours> && std::is_same_v<Ours, Theirs>) ||
                                 Paired<Ours, Theirs>::value> {};

template <class Theirs>
constexpr bool is_opaque = std::is_void_v<Theirs> || (!std::is_function_v<Theirs> && !Known<Theirs>::value);

template <class Ours, class Theirs>
constexpr bool same_target() {
  using A = std::remove_cv_t<Ours>;
  using B = std::remove_cv_t<Theirs>;
  if constexpr (std::is_void_v<A>)
    return is_opaque<B>;
  else if constexpr (std::is_void_v<B>)
    return false;
  else
    return Same<A, B>::value;
}

template <class Ours, class Theirs>
struct Same<Ours*, Theirs*> : std::bool_constant<same_target<Ours, Theirs>()> {};

template <class R, class... A, class S, class... B>
struct Same<R(A...), S(B...), std::enable_if_t<sizeof...(A) == sizeof...(B)>>
    : std::bool_constant<(Same<R, S>::value && ... && Same<A, B>::value)> {};

template <class R>
struct Same<R, R, std::enable_if_t<std::is_void_v<R>>> : std::true_type {};
