// SPDX-License-Identifier: Apache-2.0
//
// The suite of the router on the host, its gradient against central differences, and what only the
// host can be asked: rows in the hands of top_k_of_row, and threads.
#include "route.hpp"

using namespace smelt;
using namespace smelt::test;

TEST_CASE_TEMPLATE_INVOKE(route_values, host<double>, host<>, host<bf16>);
TEST_CASE_TEMPLATE_INVOKE(route_ties, host<double>, host<>);
TEST_CASE_TEMPLATE_INVOKE(route_not_numbers, host<double>, host<>);
TEST_CASE_TEMPLATE_INVOKE(route_masked, host<double>, host<>);
TEST_CASE_TEMPLATE_INVOKE(route_many_experts, host<double>, host<>);
TEST_CASE_TEMPLATE_INVOKE(route_in_place, host<double>, host<>);
TEST_CASE_TEMPLATE_INVOKE(route_empty, host<double>, host<>);
TEST_CASE_TEMPLATE_INVOKE(route_gradients, host<>, host<bf16>);
TEST_CASE_TEMPLATE_INVOKE(route_twice, host<double>, host<>);
TEST_CASE_TEMPLATE_INVOKE(route_backward_not_numbers, host<double>, host<>);

TEST_CASE("route: case 13: top_k_of_row ranks NaN below every number, in any place") {
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  for (std::int64_t count : {4, 20, 100}) {
    // Numbers only in every third place; there are more NaN than numbers.
    std::vector<float> row(static_cast<std::size_t>(count), nan);
    std::vector<std::int32_t> expected;
    for (std::int64_t i = 2; i < count; i += 3) {
      row[static_cast<std::size_t>(i)] = static_cast<float>(-i);
      expected.push_back(static_cast<std::int32_t>(i));
    }
    const std::size_t top_k = expected.size() + 1;  // one NaN must be taken: the first
    expected.push_back(0);
    std::vector<std::int32_t> chosen(top_k, -1);
    std::vector<float> values(top_k);
    top_k_of_row(row.data(), count, static_cast<std::int64_t>(top_k), chosen.data(), values.data());
    CHECK(chosen == expected);
    CHECK(std::isnan(values.back()));
    CHECK(values.front() == -2.0F);
  }
}

TEST_CASE("route: the gradient of the weights by central differences") {
  const std::vector<route_size> some = {{1, 1, 1},  {6, 2, 1},   {35, 7, 3},
                                        {3, 32, 8}, {2, 40, 40}, {2, 300, 8}};
  for (const route_size& size : some)
    for (const bool renormalize : {false, true}) {
      CAPTURE(size.experts);
      CAPTURE(renormalize);
      auto logits = random_values<double>(size.tokens * size.experts, 7, 2.0);
      const auto dweights = random_values<double>(size.tokens * size.top_k, 8);
      const auto forward = route<host<double>>(logits, size.experts, size.top_k, renormalize);
      const auto found = route_gradient<host<double>>(forward, dweights, size, renormalize);
      // The choice is held: beyond a tie the function jumps, and a jump has no gradient.
      const auto expected = central_differences(logits, [&] {
        const auto moved = plain_route(logits, size.experts, size.top_k, renormalize);
        REQUIRE(moved.chosen == forward.chosen);
        return dot(moved.weights, dweights);
      });
      // One expert, or one choice renormalised, has weight 1 whatever the logits: gradient 0.
      if (size.experts == 1 || (size.top_k == 1 && renormalize)) {
        for (double value : found) CHECK(std::abs(value) < 1e-15);
        continue;
      }
      CHECK(relative_error(found, expected) < 1e-6);
    }
}

TEST_CASE("route: one thread and two give the same bits") {
  const route_size size{777, 37, 5};
  const auto logits = random_values<float>(777 * 37, 1, 5.0);
  const auto dweights = random_values<float>(777 * 5, 2);
  const auto dbalance = random_values<float>(8 * 37, 3);
  const auto one = route<host<>>(logits, 37, 5, true, host<>(1));
  CHECK(one == route<host<>>(logits, 37, 5, true, host<>(2)));
  const auto gradient = [&](int threads) {
    return route_gradient<host<>>(one, dweights, size, true, dbalance, 100, 0.25, host<>(threads));
  };
  CHECK(gradient(1) == gradient(2));
}
