// SPDX-License-Identifier: Apache-2.0
//
// Random numbers: the moments of a normal distribution, no two equal, and the same everywhere.
#include "smelt/exec/random.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <set>

using namespace smelt;

TEST_CASE("normal numbers have the moments of a normal distribution") {
  constexpr std::uint64_t count = 200'000;
  double sum = 0.0, square = 0.0, fourth = 0.0, neighbours = 0.0, last = 0.0;
  for (std::uint64_t i = 0; i < count; ++i) {
    const double x = random_normal(7, i);
    sum += x;
    square += x * x;
    fourth += x * x * x * x;
    neighbours += x * last;
    last = x;
  }
  // Four standard errors each: 1, sqrt 2, sqrt 96 and 1 over the square root of the count.
  const double root = std::sqrt(static_cast<double>(count));
  CHECK(std::abs(sum) / static_cast<double>(count) < 4.0 / root);
  CHECK(std::abs(square / static_cast<double>(count) - 1.0) < 4.0 * std::sqrt(2.0) / root);
  CHECK(std::abs(fourth / static_cast<double>(count) - 3.0) < 4.0 * std::sqrt(96.0) / root);
  CHECK(std::abs(neighbours) / static_cast<double>(count) < 4.0 / root);
}

TEST_CASE("bits differ between indices and between seeds") {
  std::set<std::uint64_t> seen;
  for (std::uint64_t seed = 0; seed < 20; ++seed)
    for (std::uint64_t i = 0; i < 500; ++i) seen.insert(random_bits(seed, i));
  CHECK(seen.size() == 20 * 500);
}

TEST_CASE("the first output of splitmix64 from seed 0 is the published one") {
  CHECK(mixed_bits(0) == 0xe220a8397b1dcdafULL);
}
