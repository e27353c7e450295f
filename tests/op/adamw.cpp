// SPDX-License-Identifier: Apache-2.0
//
// AdamW against two steps worked by hand, the gradient norm against long double, residual updates.
#include "smelt/op/adamw.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "gradient.hpp"
#include "smelt/op/residual.hpp"

using namespace smelt;
using namespace smelt::test;

TEST_CASE("the first step of AdamW moves by the learning rate, whatever the gradient's size") {
  // With zero moments m / c1 = g and v / c2 = g^2, so the direction is sign(g).
  std::vector<double> w{1.0, -2.0}, g{1e-3, -50.0}, m(2, 0.0), v(2, 0.0);
  const adamw_coefficients<double> c(0.1, 0.9, 0.95, 0.0, 0.0, 1, 1.0);
  adamw_update(host<double>(1), c, 2, w.data(), g.data(), m.data(), v.data(),
               static_cast<double*>(nullptr));
  CHECK(w[0] == doctest::Approx(0.9).epsilon(1e-14));
  CHECK(w[1] == doctest::Approx(-1.9).epsilon(1e-14));
}

TEST_CASE("two steps with decay and clipping, worked by hand") {
  std::vector<double> w{2.0}, m{0.0}, v{0.0};
  const auto step = [&](std::int64_t t, double gradient) {
    const std::vector<double> g{gradient};
    const adamw_coefficients<double> c(0.01, 0.9, 0.99, 1e-8, 0.1, t, 0.5);
    adamw_update(host<double>(1), c, 1, w.data(), g.data(), m.data(), v.data(),
                 static_cast<double*>(nullptr));
  };
  step(1, 4.0);  // clipped to 2: m = 0.2, v = 0.04, direction 1, decay 0.2
  CHECK(w[0] == doctest::Approx(2.0 - 0.01 * (1.0 + 0.2)).epsilon(1e-9));
  const double before = w[0];
  step(2, -2.0);  // clipped to -1: m = 0.18 - 0.1 = 0.08, v = 0.0396 + 0.01 = 0.0496
  const double direction = (0.08 / 0.19) / std::sqrt(0.0496 / 0.0199);
  CHECK(w[0] == doctest::Approx(before - 0.01 * (direction + 0.1 * before)).epsilon(1e-8));
}

TEST_CASE("the bf16 copy is the rounded master weight") {
  auto w = random_values<float>(1000, 1);
  const auto g = random_values<float>(1000, 2);
  std::vector<float> m(1000, 0.0F), v(1000, 0.0F);
  std::vector<bf16> copy(1000);
  const adamw_coefficients<float> c(0.1, 0.9, 0.95, 1e-8, 0.1, 1, 1.0);
  adamw_update(host<bf16>(2), c, 1000, w.data(), g.data(), m.data(), v.data(), copy.data());
  for (std::size_t i = 0; i < w.size(); ++i) CHECK(copy[i].bits == bf16(w[i]).bits);
}

TEST_CASE("the gradient norm is exact and the same on any threads") {
  const auto g = random_values<float>(100003, 3);
  long double expected = 0.0L;
  for (const float value : g) expected += static_cast<long double>(value) * value;
  const double one = sum_of_squares(host<>(1), g.data(), 100003);
  CHECK(one == doctest::Approx(static_cast<double>(expected)).epsilon(1e-12));
  CHECK(one == sum_of_squares(host<>(2), g.data(), 100003));
}

TEST_CASE("a residual update is scaled, and may write over its input") {
  std::vector<double> x{1.0, 2.0, 3.0, 4.0};
  const std::vector<double> update{10.0, 20.0, 30.0, 40.0};
  const matrix_view<double> stream(x.data(), 2, 2);
  residual_add(host<double>(1), matrix_view<const double>(stream), 0.5,
               matrix_view<const double>(update.data(), 2, 2), stream);
  CHECK(x == std::vector<double>{6.0, 12.0, 18.0, 24.0});
  std::vector<bf16> narrow(4);
  const std::vector<float> wide{1, 2, 3, 4};
  scaled(host<bf16>(1), matrix_view<const float>(wide.data(), 2, 2), 0.5F,
         matrix_view<bf16>(narrow.data(), 2, 2));
  CHECK(static_cast<float>(narrow[3]) == 2.0F);
}
