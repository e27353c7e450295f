// SPDX-License-Identifier: Apache-2.0
//
// The suite of rotary embedding on the host, pairs by hand, its gradient against central
// differences, and what only the host can be asked: the tables, and threads.
#include "rope.hpp"

using namespace smelt;
using namespace smelt::test;

TEST_CASE_TEMPLATE_INVOKE(rope_values, host<double>, host<>);
TEST_CASE_TEMPLATE_INVOKE(rope_inverse, host<double>, host<>);
TEST_CASE_TEMPLATE_INVOKE(rope_distance, host<double>, host<>);
TEST_CASE_TEMPLATE_INVOKE(rope_gradient, host<double>, host<>, host<bf16>);
TEST_CASE_TEMPLATE_INVOKE(rope_strides, host<double>, host<>);
TEST_CASE_TEMPLATE_INVOKE(rope_refused, host<double>, host<>);

TEST_CASE("rope: one pair by hand") {
  // head size 2, position 1: an angle of 1 radian whatever the base.
  const auto y = rotated<host<double>>({1.0, 0.0}, 1, 2, {1}, rope_direction::forward);
  CHECK(y[0] == doctest::Approx(0.5403023058681398).epsilon(1e-14));
  CHECK(y[1] == doctest::Approx(0.8414709848078965).epsilon(1e-14));
  // head size 4: pairs are (0, 2) and (1, 3); the second turns by 1 / sqrt(10000).
  const auto z = rotated<host<double>>({0.0, 1.0, 0.0, 0.0}, 1, 4, {1}, rope_direction::forward);
  CHECK(z[0] == 0.0);
  CHECK(z[1] == doctest::Approx(0.9999500004166653).epsilon(1e-14));
  CHECK(z[2] == 0.0);
  CHECK(z[3] == doctest::Approx(0.009999833334166664).epsilon(1e-14));
}

TEST_CASE("rope: the gradient by central differences") {
  const std::vector<std::int32_t> at{3, 0, 11};
  auto x = random_values<double>(3 * 2 * 8, 5);
  const auto dy = random_values<double>(3 * 2 * 8, 6);
  const auto loss = [&] {
    return dot(dy, rotated<host<double>>(x, 2, 8, at, rope_direction::forward));
  };
  const auto expected = central_differences(x, loss);
  CHECK(relative_error(rotated<host<double>>(dy, 2, 8, at, rope_direction::inverse), expected) <
        1e-9);
}

TEST_CASE("rope: base 0 is no rotation") {
  const rope_tables<host<>> tables(8, 6, 0);
  for (const float cosine : tables.cosine_values) CHECK(cosine == 1.0F);
  for (const float sine : tables.sine_values) CHECK(sine == 0.0F);
}

TEST_CASE("rope: threads change no bit") {
  std::vector<std::int32_t> many(1000);
  for (std::size_t t = 0; t < many.size(); ++t) many[t] = static_cast<std::int32_t>(t * 7 % 400);
  const auto x = random_values<float>(1000 * 3 * 16, 8);
  CHECK(rotated<host<>>(x, 3, 16, many, rope_direction::forward, host<>(1)) ==
        rotated<host<>>(x, 3, 16, many, rope_direction::forward, host<>(2)));
}
