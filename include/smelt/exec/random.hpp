// SPDX-License-Identifier: Apache-2.0
//
// Counter-based random numbers: number i of a stream depends on the seed and i alone, so neither
// threads nor the order of use can change it, and every machine draws the same.
//
//   uniform bits   mix(mix(seed) ^ index), mix the finaliser of splitmix64 (a bijection of 64 bits)
//   normal         Box and Muller on two of them
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>

namespace smelt {

/// A bijection of 64 bits whose output on consecutive inputs passes statistical tests.
constexpr std::uint64_t mixed_bits(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

/// 64 random bits: number `index` of stream `seed`.
constexpr std::uint64_t random_bits(std::uint64_t seed, std::uint64_t index) {
  return mixed_bits(mixed_bits(seed) ^ index);
}

/// Standard normal number `index` of stream `seed`.
inline double random_normal(std::uint64_t seed, std::uint64_t index) {
  // Half a step above zero: the logarithm must exist.
  const double u = (static_cast<double>(random_bits(seed, 2 * index) >> 11) + 0.5) * 0x1p-53;
  const double v = static_cast<double>(random_bits(seed, 2 * index + 1) >> 11) * 0x1p-53;
  return std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * std::numbers::pi * v);
}

}  // namespace smelt
