// SPDX-License-Identifier: Apache-2.0
//
// The vectorisable exp against the C library's, lane sums against long double, SwiGLU against
// central differences.
#include "smelt/op/exponential.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "gradient.hpp"
#include "smelt/op/lane_sum.hpp"
#include "smelt/op/silu.hpp"

using namespace smelt;
using namespace smelt::test;

TEST_CASE("exponential is exact to two parts in ten million over its range") {
  double worst = 0.0;
  for (float x = -87.0F; x < 88.0F; x += 0.00173F)
    worst = std::max(
        worst,
        std::abs(static_cast<double>(exponential(x)) / std::exp(static_cast<double>(x)) - 1.0));
  CHECK(worst < 2e-7);
  CHECK(exponential(0.0F) == 1.0F);
}

TEST_CASE("exponential neither overflows nor hides NaN") {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  CHECK(std::isfinite(exponential(infinity)));
  CHECK(exponential(infinity) > 1e38F);
  CHECK(exponential(-infinity) < 2e-38F);
  CHECK(exponential(-infinity) > 0.0F);
  CHECK(std::isnan(exponential(std::numeric_limits<float>::quiet_NaN())));
}

TEST_CASE("lane_sum adds every term once") {
  for (const std::int64_t count : {0, 1, 15, 16, 17, 31, 100}) {
    const auto sum =
        lane_sum<double>(count, [](std::int64_t i) { return static_cast<double>(i + 1); });
    CHECK(sum == static_cast<double>(count * (count + 1) / 2));
  }
}

TEST_CASE("swiglu's gradient is its derivative") {
  for (const double gate : {-30.0, -2.5, -1e-3, 0.0, 0.7, 4.0, 30.0})
    for (const double up : {-1.5, 0.0, 2.0}) {
      constexpr double h = 1e-6;
      const auto gradient = swiglu_backward(gate, up, 0.75);
      const double dgate = 0.75 * (swiglu(gate + h, up) - swiglu(gate - h, up)) / (2 * h);
      const double dup = 0.75 * (swiglu(gate, up + h) - swiglu(gate, up - h)) / (2 * h);
      CHECK(gradient.value == doctest::Approx(swiglu(gate, up)));
      CHECK(gradient.gate == doctest::Approx(dgate).epsilon(1e-7));
      CHECK(gradient.up == doctest::Approx(dup).epsilon(1e-7));
      // Named forms, so that forward and backward cannot swap the activation unnoticed.
      CHECK(swiglu(gate, up) == doctest::Approx(gate / (1.0 + std::exp(-gate)) * up));
    }
}
