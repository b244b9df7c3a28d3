// Random numbers that are the same on every device: the start of the Krylov engine.
#pragma once
#include <cstdint>

namespace lapwing::krylov {

// Four 16-bit numbers of a hashed counter, added: close to normal, exact in every type.
inline double random_number(uint64_t seed, uint64_t index) {
  uint64_t z = (seed << 40) + index + 0x9e3779b97f4a7c15u * (seed + 1);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  z ^= z >> 31;
  return double(int64_t(z & 0xffff) + int64_t(z >> 16 & 0xffff) + int64_t(z >> 32 & 0xffff) + int64_t(z >> 48) - 131070);
}
constexpr double RANDOM_DEVIATION = 75674;  // its standard deviation

}  // namespace lapwing::krylov
