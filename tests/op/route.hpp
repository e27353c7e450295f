// SPDX-License-Identifier: Apache-2.0
//
// The router on any backend: against a sort in double, its gradient against the double one (and
// that against central differences, in route.cpp), its ties, and its behaviour on rows that are not
// numbers.
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
#include "smelt/op/route.hpp"
#include "support/tensor.hpp"

namespace smelt::test {

template <class Real>
struct routed {
  std::vector<Real> probabilities;
  std::vector<std::int32_t> chosen;
  std::vector<Real> weights;
  std::vector<Real> logsumexp;
};

template <class Real>
bool operator==(const routed<Real>& a, const routed<Real>& b) {
  return a.probabilities == b.probabilities && a.chosen == b.chosen && a.weights == b.weights &&
         a.logsumexp == b.logsumexp;
}

/// Routes tokens of `experts` logits each; all outputs are poisoned first. A bias is none or [E].
template <class Policy>
routed<typename Policy::real> route(const std::vector<typename Policy::real>& logits,
                                    std::int64_t experts, std::int64_t top_k, bool renormalize,
                                    const Policy& run = policy<Policy>(),
                                    const std::vector<typename Policy::real>& bias = {}) {
  using real = typename Policy::real;
  const std::int64_t tokens = static_cast<std::int64_t>(logits.size()) / experts;
  const tensor<real, Policy> from(logits), on_choice(bias),
      probabilities(poisoned<real>(tokens * experts)), weights(poisoned<real>(tokens * top_k)),
      logsumexp(poisoned<real>(tokens));
  const tensor<std::int32_t, Policy> chosen(
      std::vector<std::int32_t>(static_cast<std::size_t>(tokens * top_k), -7));
  route_forward(run, from.constant(tokens, experts), top_k, renormalize,
                probabilities.view(tokens, experts), chosen.data(), weights.data(),
                logsumexp.data(), bias.empty() ? nullptr : on_choice.data());
  return {probabilities.values(), chosen.values(), weights.values(), logsumexp.values()};
}

/// Softmax, a stable sort by p or p exp(bias), the first top_k; nothing shared with the op.
inline routed<double> plain_route(const std::vector<double>& logits, std::int64_t experts,
                                  std::int64_t top_k, bool renormalize,
                                  const std::vector<double>& bias = {}) {
  routed<double> out;
  const std::size_t count = static_cast<std::size_t>(experts);
  for (std::size_t first = 0; first < logits.size(); first += count) {
    double sum = 0.0;
    for (std::size_t e = 0; e < count; ++e) sum += std::exp(logits[first + e]);
    std::vector<double> p(count);
    for (std::size_t e = 0; e < count; ++e) p[e] = std::exp(logits[first + e]) / sum;
    std::vector<std::int32_t> order(count);
    std::iota(order.begin(), order.end(), 0);
    std::vector<double> score = p;
    for (std::size_t e = 0; e < bias.size(); ++e) score[e] *= std::exp(bias[e]);
    std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
      return score[static_cast<std::size_t>(a)] > score[static_cast<std::size_t>(b)];
    });
    double chosen_sum = 0.0;
    for (std::int64_t k = 0; k < top_k; ++k)
      chosen_sum += p[static_cast<std::size_t>(order[static_cast<std::size_t>(k)])];
    for (std::int64_t k = 0; k < top_k; ++k) {
      const std::int32_t e = order[static_cast<std::size_t>(k)];
      out.chosen.push_back(e);
      out.weights.push_back(p[static_cast<std::size_t>(e)] / (renormalize ? chosen_sum : 1.0));
    }
    out.probabilities.insert(out.probabilities.end(), p.begin(), p.end());
    out.logsumexp.push_back(std::log(sum));
  }
  return out;
}

struct route_size {
  std::int64_t tokens, experts, top_k;
};
// Odd ones, one token, all experts chosen, and more experts than a byte, a block or the registers
// of a warp can count.
inline const std::vector<route_size> route_sizes = {
    {1, 1, 1},    {5, 2, 1},   {33, 7, 3},   {1, 32, 8},    {70, 16, 16}, {64, 32, 8},
    {31, 255, 8}, {9, 256, 8}, {40, 257, 8}, {9, 300, 17},  {17, 504, 8}, {65, 512, 8},
    {3, 513, 2},  {5, 515, 8}, {12, 48, 8},  {4, 1001, 100}};

template <class Policy>
std::vector<typename Policy::real> route_logits(const route_size& size, std::uint32_t seed,
                                                double scale) {
  return random_values<typename Policy::real>(size.tokens * size.experts, seed, scale);
}

// What top_k_of_row chooses from every row of probabilities.
template <class Real>
std::vector<std::int32_t> choice_of_rows(const std::vector<Real>& probabilities,
                                         const route_size& size) {
  std::vector<std::int32_t> chosen(static_cast<std::size_t>(size.tokens * size.top_k), -1);
  std::vector<Real> values(static_cast<std::size_t>(size.top_k));
  for (std::int64_t n = 0; n < size.tokens; ++n)
    top_k_of_row(probabilities.data() + n * size.experts, size.experts, size.top_k,
                 chosen.data() + n * size.top_k, values.data());
  return chosen;
}

TEST_CASE_TEMPLATE_DEFINE("route: chooses what a stable sort chooses", Policy, route_values) {
  for (const route_size& size : route_sizes)
    for (const bool renormalize : {false, true}) {
      CAPTURE(size.tokens);
      CAPTURE(size.experts);
      CAPTURE(size.top_k);
      const auto logits = route_logits<Policy>(size, 11, 3.0);
      const auto expected = plain_route(as_double(logits), size.experts, size.top_k, renormalize);
      const auto found = route<Policy>(logits, size.experts, size.top_k, renormalize);
      // To the last bit of the probabilities there are; and as the definition's, whose gaps between
      // chosen ones are wide beside the rounding of a float.
      CHECK(found.chosen == choice_of_rows(found.probabilities, size));
      CHECK(found.chosen == expected.chosen);
      CHECK(relative_error(found.probabilities, expected.probabilities) <
            tolerance<Policy>(1e-5, 1e-5, 1e-13));
      CHECK(relative_error(found.weights, expected.weights) < tolerance<Policy>(1e-5, 1e-5, 1e-13));
      CHECK(relative_error(found.logsumexp, expected.logsumexp) <
            tolerance<Policy>(1e-5, 1e-5, 1e-13));
    }
}

TEST_CASE_TEMPLATE_DEFINE("route: among few distinct values, ties to the lowest index", Policy,
                          route_ties) {
  // Case 13: values from a set of five, so that almost every row ties at the threshold; then rows
  // in which all tie.
  for (const route_size& size : route_sizes)
    for (const double scale : {2.0, 0.4}) {
      CAPTURE(size.experts);
      CAPTURE(size.top_k);
      auto logits = route_logits<Policy>(size, 5, scale);
      for (auto& value : logits) value = std::round(value);
      const auto expected = plain_route(as_double(logits), size.experts, size.top_k, true);
      CHECK(route<Policy>(logits, size.experts, size.top_k, true).chosen == expected.chosen);
    }
}

TEST_CASE_TEMPLATE_DEFINE(
    "route: case 13: rows of NaN and Inf choose distinct experts, and show it", Policy,
    route_not_numbers) {
  using real = typename Policy::real;
  constexpr real nan = std::numeric_limits<real>::quiet_NaN();
  constexpr real inf = std::numeric_limits<real>::infinity();
  for (const route_size& size : route_sizes) {
    CAPTURE(size.experts);
    const std::int64_t kinds = 7;
    auto logits = random_values<real>(kinds * size.experts, 3);
    const auto row = [&](std::int64_t index) { return logits.begin() + index * size.experts; };
    std::fill_n(row(0), size.experts, nan);
    std::fill_n(row(1), size.experts, inf);
    std::fill_n(row(2), size.experts, -inf);
    row(3)[size.experts / 2] = nan;
    row(4)[size.experts - 1] = inf;
    row(5)[size.experts / 2] = -inf;  // of one expert: a mask, unless there is no other
    for (const bool renormalize : {false, true}) {
      const auto found = route<Policy>(logits, size.experts, size.top_k, renormalize);
      for (std::int64_t n = 0; n < kinds; ++n) {
        const auto first = found.chosen.begin() + n * size.top_k;
        const std::set<std::int32_t> distinct(first, first + size.top_k);
        CHECK(static_cast<std::int64_t>(distinct.size()) == size.top_k);
        CHECK(*distinct.begin() >= 0);
        CHECK(*distinct.rbegin() < size.experts);
        // A row that is not a number shows in its weights, and spoils no other row.
        const bool spoilt = n < 5 || (n == 5 && size.experts == 1);
        for (std::int64_t k = 0; k < size.top_k; ++k)
          CHECK(std::isnan(found.weights[static_cast<std::size_t>(n * size.top_k + k)]) == spoilt);
        // All NaN is all tied: the first experts.
        if (spoilt) CHECK(*distinct.rbegin() == size.top_k - 1);
      }
      // The same indices as the host's, in the same order.
      const auto on_host = route<host<real>>(logits, size.experts, size.top_k, renormalize);
      CHECK(found.chosen == on_host.chosen);
    }
  }
}

TEST_CASE_TEMPLATE_DEFINE("route: masked experts are chosen last and get next to no weight", Policy,
                          route_masked) {
  using real = typename Policy::real;
  constexpr real inf = std::numeric_limits<real>::infinity();
  const auto found = route<Policy>({-inf, real(1), -inf, real(2), -inf}, 5, 3, true);
  CHECK(found.chosen == std::vector<std::int32_t>{3, 1, 0});
  CHECK(found.weights[2] < real(1e-30));
  CHECK(std::isfinite(found.logsumexp[0]));
}

TEST_CASE_TEMPLATE_DEFINE("route: case 14: every one of more than 255, 256 and 512 can be chosen",
                          Policy, route_many_experts) {
  using real = typename Policy::real;
  for (std::int64_t experts : {255, 256, 257, 504, 512, 515, 1027}) {
    CAPTURE(experts);
    std::vector<real> logits(static_cast<std::size_t>(experts * experts), real(0));
    for (std::int64_t e = 0; e < experts; ++e)
      logits[static_cast<std::size_t>(e * experts + e)] = real(9);
    const auto found = route<Policy>(logits, experts, 1, false);
    std::vector<std::int32_t> expected(static_cast<std::size_t>(experts));
    std::iota(expected.begin(), expected.end(), 0);
    CHECK(found.chosen == expected);
  }
}

TEST_CASE_TEMPLATE_DEFINE("route: in place, and rows that lie apart", Policy, route_in_place) {
  using real = typename Policy::real;
  for (const std::int64_t experts : {35, 600}) {
    const auto logits = random_values<real>(40 * experts, 2, 4.0);
    const auto expected = route<Policy>(logits, experts, 4, true);
    // Probabilities in the place of the logits.
    const tensor<real, Policy> memory(logits), weights(poisoned<real>(160)),
        logsumexp(poisoned<real>(40));
    const tensor<std::int32_t, Policy> chosen(std::vector<std::int32_t>(160, -7));
    route_forward(policy<Policy>(), memory.constant(40, experts), 4, true, memory.view(40, experts),
                  chosen.data(), weights.data(), logsumexp.data());
    CHECK(routed<real>{memory.values(), chosen.values(), weights.values(), logsumexp.values()} ==
          expected);

    const std::int64_t from = experts + 3, to = experts + 5;
    auto wide = poisoned<real>(40 * from);
    for (std::int64_t i = 0; i < 40 * experts; ++i)
      wide[static_cast<std::size_t>(i / experts * from + i % experts)] =
          logits[static_cast<std::size_t>(i)];
    const tensor<real, Policy> apart(wide), out(poisoned<real>(40 * to));
    route_forward(policy<Policy>(), matrix_view<const real>(apart.data(), 40, experts, from), 4,
                  true, matrix_view<real>(out.data(), 40, experts, to), chosen.data(),
                  weights.data(), logsumexp.data());
    const auto values = out.values();
    bool right = chosen.values() == expected.chosen && weights.values() == expected.weights;
    for (std::int64_t i = 0; i < 40 * to; ++i) {
      const real value = values[static_cast<std::size_t>(i)];
      right =
          right &&
          (i % to >= experts
               ? std::isnan(value)
               : value ==
                     expected.probabilities[static_cast<std::size_t>(i / to * experts + i % to)]);
    }
    CHECK(right);
  }
}

TEST_CASE_TEMPLATE_DEFINE("route: no tokens are no work", Policy, route_empty) {
  CHECK(route<Policy>({}, 8, 2, true).chosen.empty());
}

/// dlogits, poisoned first, from what a forward pass wrote; auxiliary gradients by vectors, of
/// which the first may be empty for none.
template <class Policy>
std::vector<typename Policy::real> route_gradient(
    const routed<typename Policy::real>& forward,
    const std::vector<typename Policy::real>& dweights, const route_size& size, bool renormalize,
    const std::vector<typename Policy::real>& dprobabilities = {}, std::int64_t group_tokens = 1,
    double z_factor = 0.0, const Policy& run = policy<Policy>()) {
  using real = typename Policy::real;
  const tensor<real, Policy> probabilities(forward.probabilities), weights(forward.weights),
      logsumexp(forward.logsumexp), dw(dweights), auxiliary(dprobabilities),
      dlogits(poisoned<real>(size.tokens * size.experts));
  const tensor<std::int32_t, Policy> chosen(forward.chosen);
  route_backward(run, probabilities.constant(size.tokens, size.experts), chosen.data(),
                 weights.data(), size.top_k, renormalize, dw.data(),
                 router_gradient<real>{dprobabilities.empty() ? nullptr : auxiliary.data(),
                                       group_tokens, z_factor == 0.0 ? nullptr : logsumexp.data(),
                                       static_cast<real>(z_factor)},
                 dlogits.view(size.tokens, size.experts));
  return dlogits.values();
}

TEST_CASE_TEMPLATE_DEFINE("route: gradients are those of the double reference", Policy,
                          route_gradients) {
  using real = typename Policy::real;
  for (const route_size& size : route_sizes)
    for (const bool renormalize : {false, true})
      for (const bool auxiliary : {false, true}) {
        CAPTURE(size.tokens);
        CAPTURE(size.experts);
        CAPTURE(renormalize);
        CAPTURE(auxiliary);
        const auto logits = route_logits<Policy>(size, 7, 2.0);
        const auto dweights = random_values<real>(size.tokens * size.top_k, 8);
        const std::int64_t group = auxiliary ? 3 : 1;  // the last one may be short
        const auto dbalance = random_values<real>(
            auxiliary ? (size.tokens + group - 1) / group * size.experts : 0, 9, 0.1);
        const double z = auxiliary ? 0.0625 : 0.0;
        const auto exact = route_gradient<host<double>>(
            route<host<double>>(as_double(logits), size.experts, size.top_k, renormalize),
            as_double(dweights), size, renormalize, as_double(dbalance), group, z);
        const auto found =
            route_gradient<Policy>(route<Policy>(logits, size.experts, size.top_k, renormalize),
                                   dweights, size, renormalize, dbalance, group, z);
        // One expert, or one choice renormalised, has weight 1 whatever the logits: gradient 0.
        if (!auxiliary && (size.experts == 1 || (size.top_k == 1 && renormalize))) {
          for (const auto value : found) CHECK(std::abs(value) < 1e-6);
          continue;
        }
        CHECK(relative_error(found, exact) < 1e-5);
      }
}

TEST_CASE_TEMPLATE_DEFINE("route: case 17: a second backward writes the same finite numbers",
                          Policy, route_twice) {
  using real = typename Policy::real;
  const route_size size{50, 33, 4};
  const auto forward = route<Policy>(route_logits<Policy>(size, 1, 1.0), 33, 4, true);
  const auto dweights = random_values<real>(50 * 4, 2);
  const auto first = route_gradient<Policy>(forward, dweights, size, true);
  CHECK(first == route_gradient<Policy>(forward, dweights, size, true));
  for (const auto value : first) REQUIRE(std::isfinite(value));
}

TEST_CASE_TEMPLATE_DEFINE("route: NaN in a backward pass stays in its row", Policy,
                          route_backward_not_numbers) {
  using real = typename Policy::real;
  const route_size size{11, 40, 5};
  const auto forward = route<Policy>(route_logits<Policy>(size, 1, 1.0), 40, 5, true);
  auto dweights = random_values<real>(55, 2);
  const auto clean = route_gradient<Policy>(forward, dweights, size, true);
  dweights[7 * 5 + 2] = std::numeric_limits<real>::quiet_NaN();
  const auto spoilt = route_gradient<Policy>(forward, dweights, size, true);
  bool right = true;
  for (std::size_t i = 0; i < clean.size(); ++i)
    right = right && (i / 40 == 7 ? std::isnan(spoilt[i]) : spoilt[i] == clean[i]);
  CHECK(right);
}

}  // namespace smelt::test
