// SPDX-License-Identifier: Apache-2.0
//
// The suite of AdamW and the sum of squares on the host, and threads.
#include "adamw.hpp"

using namespace smelt;
using namespace smelt::test;

TEST_CASE_TEMPLATE_INVOKE(adamw_values, host<double>, host<>, host<bf16>);
TEST_CASE_TEMPLATE_INVOKE(adamw_first_step, host<double>, host<>, host<bf16>);
TEST_CASE_TEMPLATE_INVOKE(adamw_by_hand, host<double>, host<>, host<bf16>);
TEST_CASE_TEMPLATE_INVOKE(adamw_clipping, host<double>, host<>, host<bf16>);
TEST_CASE_TEMPLATE_INVOKE(adamw_not_finite, host<double>, host<>, host<bf16>);
TEST_CASE_TEMPLATE_INVOKE(adamw_copy, host<bf16>);
TEST_CASE_TEMPLATE_INVOKE(sum_of_squares_values, host<double>, host<>, host<bf16>);
TEST_CASE_TEMPLATE_INVOKE(sum_of_squares_not_finite, host<double>, host<>, host<bf16>);

TEST_CASE("adamw: threads change no bit of a step") {
  adamw_case<host<bf16>> one(100003), two(100003);
  one.step({}, 0.1, 1, host<bf16>(1));
  two.step({}, 0.1, 1, host<bf16>(2));
  CHECK(one.everything() == two.everything());
}

TEST_CASE("sum_of_squares: exact, and the same on any threads") {
  const auto g = random_values<float>(100003, 3);
  long double expected = 0.0L;
  for (const float value : g) expected += static_cast<long double>(value) * value;
  double one = 0.0, two = 0.0;
  sum_of_squares(host<>(1), g.data(), 100003, &one);
  sum_of_squares(host<>(2), g.data(), 100003, &two);
  CHECK(one == doctest::Approx(static_cast<double>(expected)).epsilon(1e-12));
  CHECK(one == two);
}
