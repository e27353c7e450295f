// SPDX-License-Identifier: Apache-2.0
//
// The suite of the router's bias on the host, the gradient of the weights under a bias that is held
// against central differences, threads, and allocations.
#include "router_bias.hpp"

#include "../support/allocation_counter.hpp"

using namespace smelt;
using namespace smelt::test;

TEST_CASE_TEMPLATE_INVOKE(bias_choice, host<double>, host<>, host<bf16>);
TEST_CASE_TEMPLATE_INVOKE(bias_ties, host<double>, host<>);
TEST_CASE_TEMPLATE_INVOKE(bias_not_numbers, host<double>, host<>);
TEST_CASE_TEMPLATE_INVOKE(bias_in_place, host<double>, host<>);
TEST_CASE_TEMPLATE_INVOKE(bias_update, host<double>, host<>, host<bf16>);
TEST_CASE_TEMPLATE_INVOKE(bias_stays, host<double>, host<>);
TEST_CASE_TEMPLATE_INVOKE(bias_precision, host<>, host<bf16>);
TEST_CASE_TEMPLATE_INVOKE(bias_evens_out, host<double>, host<>);

TEST_CASE("router bias: the gradient under a bias that is held, by central differences") {
  const std::vector<route_size> some = {{6, 2, 1}, {35, 7, 3}, {3, 32, 8}, {2, 40, 40}};
  for (const route_size& size : some)
    for (const bool renormalize : {false, true}) {
      if (size.top_k == 1 && renormalize) continue;  // weight 1 whatever the logits
      CAPTURE(size.experts);
      CAPTURE(renormalize);
      auto logits = random_values<double>(size.tokens * size.experts, 7, 2.0);
      const auto bias = random_values<double>(size.experts, 8, 2.0);
      const auto dweights = random_values<double>(size.tokens * size.top_k, 9);
      const auto forward = route<host<double>>(logits, size.experts, size.top_k, renormalize,
                                               policy<host<double>>(), bias);
      const auto found = route_gradient<host<double>>(forward, dweights, size, renormalize);
      const auto expected = central_differences(logits, [&] {
        const auto moved = plain_route(logits, size.experts, size.top_k, renormalize, bias);
        REQUIRE(moved.chosen == forward.chosen);
        return dot(moved.weights, dweights);
      });
      CHECK(relative_error(found, expected) < 1e-6);
    }
}

TEST_CASE("router bias: one thread and two give the same bits") {
  const auto logits = random_values<float>(777 * 37, 1, 5.0);
  const auto bias = random_values<float>(37, 2, 3.0);
  CHECK(route<host<>>(logits, 37, 5, true, host<>(1), bias) ==
        route<host<>>(logits, 37, 5, true, host<>(2), bias));
}

TEST_CASE("router bias: a step after the first allocates nothing") {
  constexpr std::int64_t tokens = 9000, experts = 37, top_k = 5;
  const host<> run(2);
  auto logits = random_values<float>(tokens * experts, 1);
  std::vector<float> weights(tokens * top_k), logsumexp(tokens), bias(experts, 0.0F);
  std::vector<std::int32_t> chosen(tokens * top_k);
  std::vector<std::int64_t> counts(experts);
  const double loss = 1.0;
  std::int64_t after_first = 0;
  for (int step = 0; step < 3; ++step) {
    if (step == 1) after_first = allocations();
    const matrix_view<float> rows(logits.data(), tokens, experts);
    route_forward(run, matrix_view<const float>(rows), top_k, true, rows, chosen.data(),
                  weights.data(), logsumexp.data(), bias.data());
    count_experts(run, chosen.data(), tokens, top_k, experts, counts.data());
    update_router_bias(run, counts.data(), experts, 0.001, &loss, bias.data());
  }
  CHECK(allocations() == after_first);
}
