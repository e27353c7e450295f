// SPDX-License-Identifier: Apache-2.0
//
// The router's bias on any backend: the choice under it against a sort by p exp(bias) in double,
// weights that know nothing of it, rows that are not numbers; its update against the sign of the
// mean less the count, and that the two together even out a router that is not.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <set>
#include <vector>

#include "gradient.hpp"
#include "route.hpp"
#include "smelt/op/balance.hpp"
#include "smelt/op/router_bias.hpp"
#include "support/tensor.hpp"

namespace smelt::test {

TEST_CASE_TEMPLATE_DEFINE("router bias: chooses what a stable sort by p exp(bias) chooses", Policy,
                          bias_choice) {
  using real = typename Policy::real;
  for (const route_size& size : route_sizes)
    for (const bool renormalize : {false, true}) {
      CAPTURE(size.experts);
      CAPTURE(size.top_k);
      const auto logits = route_logits<Policy>(size, 11, 3.0);
      const auto bias = random_values<real>(size.experts, 12, 2.0);
      const auto plain = route<Policy>(logits, size.experts, size.top_k, renormalize);
      const auto expected =
          plain_route(as_double(logits), size.experts, size.top_k, renormalize, as_double(bias));
      const auto found =
          route<Policy>(logits, size.experts, size.top_k, renormalize, policy<Policy>(), bias);
      CHECK(found.chosen == expected.chosen);
      if (size.top_k < size.experts && size.tokens > 1) CHECK(found.chosen != plain.chosen);
      // All but the choice is without the bias: to the last bit where every expert is concerned.
      CHECK(found.probabilities == plain.probabilities);
      CHECK(found.logsumexp == plain.logsumexp);
      CHECK(relative_error(found.weights, expected.weights) < tolerance<Policy>(1e-5, 1e-5, 1e-13));
    }
}

TEST_CASE_TEMPLATE_DEFINE("router bias: scores of any sign tie to the lowest index, 0 with -0",
                          Policy, bias_ties) {
  using real = typename Policy::real;
  for (const route_size& size : route_sizes)
    for (const double scale : {2.0, 0.4}) {
      CAPTURE(size.experts);
      CAPTURE(size.top_k);
      auto logits = route_logits<Policy>(size, 5, scale);
      for (auto& value : logits) value = std::round(value);
      auto bias = random_values<real>(size.experts, 6, 1.4);
      for (auto& value : bias) value = std::round(value);
      // Small integers: their sums are exact, so a sort of the sums is the oracle.
      std::vector<std::int32_t> expected;
      for (std::int64_t n = 0; n < size.tokens; ++n) {
        const auto score = [&](std::int32_t e) {
          return logits[static_cast<std::size_t>(n * size.experts + e)] +
                 bias[static_cast<std::size_t>(e)];
        };
        std::vector<std::int32_t> order(static_cast<std::size_t>(size.experts));
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(),
                         [&](std::int32_t a, std::int32_t b) { return score(a) > score(b); });
        expected.insert(expected.end(), order.begin(), order.begin() + size.top_k);
      }
      CHECK(route<Policy>(logits, size.experts, size.top_k, true, policy<Policy>(), bias).chosen ==
            expected);
    }
}

TEST_CASE_TEMPLATE_DEFINE("router bias: case 13: rows of NaN and Inf choose distinct experts",
                          Policy, bias_not_numbers) {
  using real = typename Policy::real;
  constexpr real nan = std::numeric_limits<real>::quiet_NaN();
  constexpr real inf = std::numeric_limits<real>::infinity();
  for (const route_size& size : route_sizes) {
    CAPTURE(size.experts);
    const std::int64_t kinds = 8;
    auto logits = random_values<real>(kinds * size.experts, 3);
    const auto bias = random_values<real>(size.experts, 4);
    const auto row = [&](std::int64_t index) { return logits.begin() + index * size.experts; };
    std::fill_n(row(0), size.experts, nan);
    std::fill_n(row(1), size.experts, inf);
    std::fill_n(row(2), size.experts, -inf);
    row(3)[size.experts / 2] = nan;
    row(4)[size.experts - 1] = inf;
    row(5)[size.experts / 2] = -inf;
    for (std::int64_t e = 0; e < size.experts; ++e)  // NaN and -Inf in turn, and some numbers
      if (e % 5 != 4) row(6)[e] = e % 2 == 0 ? -inf : nan;
    const auto found =
        route<Policy>(logits, size.experts, size.top_k, true, policy<Policy>(), bias);
    for (std::int64_t n = 0; n < kinds; ++n) {
      const auto first = found.chosen.begin() + n * size.top_k;
      const std::set<std::int32_t> distinct(first, first + size.top_k);
      CHECK(static_cast<std::int64_t>(distinct.size()) == size.top_k);
      CHECK(*distinct.begin() >= 0);
      CHECK(*distinct.rbegin() < size.experts);
      if (n < 3) CHECK(*distinct.rbegin() == size.top_k - 1);  // all tie
    }
    // The same indices as the host's, in the same order.
    CHECK(found.chosen ==
          route<host<real>>(logits, size.experts, size.top_k, true, policy<host<real>>(), bias)
              .chosen);
  }
  // A masked expert comes last whatever its bias, and the lower of two.
  CHECK(route<Policy>({-inf, real(1), -inf, real(2), real(0)}, 5, 4, true, policy<Policy>(),
                      {real(9), real(0), real(9), real(-5), real(-5)})
            .chosen == std::vector<std::int32_t>{1, 3, 4, 0});
}

TEST_CASE_TEMPLATE_DEFINE("router bias: probabilities in the place of the logits", Policy,
                          bias_in_place) {
  using real = typename Policy::real;
  for (const std::int64_t experts : {35, 600}) {
    const auto logits = random_values<real>(40 * experts, 2, 4.0);
    const auto bias = random_values<real>(experts, 3, 2.0);
    const tensor<real, Policy> memory(logits), on_choice(bias), weights(poisoned<real>(160)),
        logsumexp(poisoned<real>(40));
    const tensor<std::int32_t, Policy> chosen(std::vector<std::int32_t>(160, -7));
    route_forward(policy<Policy>(), memory.constant(40, experts), 4, true, memory.view(40, experts),
                  chosen.data(), weights.data(), logsumexp.data(), on_choice.data());
    CHECK(routed<real>{memory.values(), chosen.values(), weights.values(), logsumexp.values()} ==
          route<Policy>(logits, experts, 4, true, policy<Policy>(), bias));
  }
}

/// The bias after one update; counts, loss and bias in the policy's memory.
template <class Policy>
std::vector<typename Policy::real> updated_bias(const std::vector<typename Policy::real>& bias,
                                                const std::vector<std::int64_t>& counts,
                                                double rate, double loss_sum = 1.0) {
  using statistic = typename Policy::statistic;
  const tensor<typename Policy::real, Policy> memory(bias);
  const tensor<std::int64_t, Policy> of_experts(counts);
  const tensor<statistic, Policy> loss(std::vector<statistic>{static_cast<statistic>(loss_sum)});
  update_router_bias(policy<Policy>(), of_experts.data(), of_experts.count(), rate, loss.data(),
                     memory.data());
  return memory.values();
}

TEST_CASE_TEMPLATE_DEFINE("router bias: moves by the sign of the mean less the count", Policy,
                          bias_update) {
  using real = typename Policy::real;
  const real rate = real(0.125);
  // By hand: a mean of 2; of 22 / 7, which no count is; and counts whose mean a float cannot tell.
  CHECK(updated_bias<Policy>({1, 1, 1, 1}, {5, 1, 0, 2}, 0.125) ==
        std::vector<real>{1 - rate, 1 + rate, 1 + rate, 1});
  CHECK(updated_bias<Policy>(std::vector<real>(7, 0), {3, 3, 3, 3, 3, 3, 4}, 0.125) ==
        std::vector<real>{rate, rate, rate, rate, rate, rate, -rate});
  const std::int64_t many = std::int64_t{1} << 40;
  CHECK(updated_bias<Policy>({0, 0, 0}, {many, many + 1, many - 1}, 0.125) ==
        std::vector<real>{0, -rate, rate});
  CHECK(updated_bias<Policy>({real(0.5)}, {77}, 0.125) == std::vector<real>{real(0.5)});

  for (const std::int64_t experts : {2, 255, 256, 257, 1001}) {
    CAPTURE(experts);
    const auto bias = random_values<real>(experts, 1);
    std::vector<std::int64_t> counts;
    for (const double value : random_values<double>(experts, 2, 50.0))
      counts.push_back(static_cast<std::int64_t>(value) + 50);
    long double mean = 0;
    for (const std::int64_t count : counts) mean += static_cast<long double>(count);
    mean /= static_cast<long double>(experts);
    auto expected = bias;
    for (std::size_t e = 0; e < counts.size(); ++e) {
      const long double missing = mean - static_cast<long double>(counts[e]);
      const real step = static_cast<real>(0.001);
      expected[e] += missing > 0 ? step : missing < 0 ? -step : real(0);
    }
    CHECK(updated_bias<Policy>(bias, counts, 0.001) == expected);  // to the last bit
  }
}

TEST_CASE_TEMPLATE_DEFINE("router bias: stays where a step is not finite or counted nothing",
                          Policy, bias_stays) {
  using real = typename Policy::real;
  const std::vector<real> bias{real(0.5), real(-1), real(0.25)};
  for (const double loss :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(),
        -std::numeric_limits<double>::infinity()})
    CHECK(updated_bias<Policy>(bias, {5, 1, 0}, 0.1, loss) == bias);
  CHECK(updated_bias<Policy>(bias, {5, 1, 0}, 0.1, -3.0) != bias);
  CHECK(updated_bias<Policy>(bias, {0, 0, 0}, 0.1) == bias);
}

TEST_CASE_TEMPLATE_DEFINE("router bias: case 24: a small rate is not lost to a rounded bias",
                          Policy, bias_precision) {
  using real = typename Policy::real;
  // bf16 has 8 bits: 1 + 0.001 would be 1 again.
  std::vector<real> bias{1, 1};
  for (int step = 0; step < 20; ++step) bias = updated_bias<Policy>(bias, {0, 10}, 0.001);
  CHECK(static_cast<double>(bias[0]) == doctest::Approx(1.02).epsilon(1e-6));
  CHECK(static_cast<double>(bias[1]) == doctest::Approx(0.98).epsilon(1e-6));
}

TEST_CASE_TEMPLATE_DEFINE("router bias: evens out a router that prefers some experts", Policy,
                          bias_evens_out) {
  using real = typename Policy::real;
  constexpr std::int64_t tokens = 120, experts = 6, top_k = 2;
  auto logits = random_values<real>(tokens * experts, 7);
  for (std::size_t i = 0; i < logits.size(); ++i) logits[i] += real(i % experts) / real(4);
  std::vector<real> bias(experts, real(0));
  std::vector<std::int64_t> counts;
  // The largest load over the mean: 3 where two experts get all.
  const auto imbalance = [&] {
    return static_cast<double>(*std::max_element(counts.begin(), counts.end())) /
           (static_cast<double>(tokens * top_k) / static_cast<double>(experts));
  };
  double at_first = 0.0;
  for (int step = 0; step < 20; ++step) {
    const auto routed = route<Policy>(logits, experts, top_k, true, policy<Policy>(), bias);
    const tensor<std::int32_t, Policy> chosen(routed.chosen);
    const tensor<std::int64_t, Policy> memory(std::vector<std::int64_t>(experts, -1));
    count_experts(policy<Policy>(), chosen.data(), tokens, top_k, experts, memory.data());
    counts = memory.values();
    if (step == 0) at_first = imbalance();
    bias = updated_bias<Policy>(bias, counts, 0.06);
  }
  CHECK(at_first > 1.8);
  CHECK(imbalance() < 1.2);
}

}  // namespace smelt::test
