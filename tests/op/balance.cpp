// SPDX-License-Identifier: Apache-2.0
//
// The auxiliary losses against their definitions in double, their gradient through the router
// against central differences, and what may not change them: batching, threads, evaluation.
#include "smelt/op/balance.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "gradient.hpp"

using namespace smelt;

namespace {

// One visit of a router over a batch, with everything its losses read and write.
template <class Compute>
struct visit {
  using Real = typename host<Compute>::real;
  std::int64_t tokens, experts, top_k;
  std::vector<Real> probabilities, weights, logsumexp, dprobabilities;
  std::vector<std::int32_t> chosen;
  std::vector<std::int64_t> counts;
  balance_losses losses;

  visit(const host<Compute>& run, const std::vector<Real>& logits, std::int64_t experts_,
        std::int64_t top_k_, const balance_setting& setting)
      : tokens(static_cast<std::int64_t>(logits.size()) / experts_),
        experts(experts_),
        top_k(top_k_),
        probabilities(test::poisoned<Real>(tokens * experts)),
        weights(test::poisoned<Real>(tokens * top_k)),
        logsumexp(test::poisoned<Real>(tokens)),
        dprobabilities(test::poisoned<Real>(setting.groups(tokens) * experts)),
        chosen(weights.size(), -1),
        counts(static_cast<std::size_t>(experts), 0) {
    route_forward(run, matrix_view<const Real>(logits.data(), tokens, experts), top_k, true,
                  matrix_view<Real>(probabilities.data(), tokens, experts), chosen.data(),
                  weights.data(), logsumexp.data());
    measure(run, setting);
  }
  void measure(const host<Compute>& run, const balance_setting& setting) {
    losses = balance_forward(run, view(), chosen.data(), logsumexp.data(), top_k, setting,
                             dprobabilities.data(), counts.data());
  }
  matrix_view<const Real> view() const { return {probabilities.data(), tokens, experts}; }
  // Gradient of the losses alone: the routing weights' own gradient is 0.
  std::vector<Real> gradient(const host<Compute>& run, const balance_setting& setting) const {
    const std::vector<Real> none(weights.size(), Real(0));
    auto dlogits = test::poisoned<Real>(tokens * experts);
    route_backward(run, view(), chosen.data(), weights.data(), top_k, true, none.data(),
                   balance_backward(setting, dprobabilities.data(), logsumexp.data()),
                   matrix_view<Real>(dlogits.data(), tokens, experts));
    return dlogits;
  }
};

// The definitions, token by token. The choice is given: the loss is smooth only while it is held.
struct expected_losses {
  double load_balance = 0.0;
  double router_z = 0.0;
};
expected_losses reference(const std::vector<double>& logits,
                          const std::vector<std::int32_t>& chosen, std::int64_t experts_,
                          std::int64_t top_k_, std::int64_t group_tokens_) {
  const std::size_t experts = static_cast<std::size_t>(experts_);
  const std::size_t top_k = static_cast<std::size_t>(top_k_);
  const std::size_t tokens = logits.size() / experts;
  const std::size_t group = static_cast<std::size_t>(group_tokens_);
  expected_losses losses;
  for (std::size_t first = 0; first < tokens; first += group) {
    const std::size_t last = std::min(tokens, first + group);
    const double size = static_cast<double>(last - first);
    std::vector<double> mean(experts, 0.0), fraction(experts, 0.0);
    for (std::size_t n = first; n < last; ++n) {
      double sum = 0.0;
      for (std::size_t e = 0; e < experts; ++e) sum += std::exp(logits[n * experts + e]);
      for (std::size_t e = 0; e < experts; ++e)
        mean[e] += std::exp(logits[n * experts + e]) / sum / size;
      for (std::size_t k = 0; k < top_k; ++k)
        fraction[static_cast<std::size_t>(chosen[n * top_k + k])] +=
            1.0 / (size * static_cast<double>(top_k));
      losses.router_z += std::log(sum) * std::log(sum) / static_cast<double>(tokens);
    }
    losses.load_balance += test::dot(mean, fraction) * static_cast<double>(experts) * size /
                           static_cast<double>(tokens);
  }
  return losses;
}

struct sizes {
  std::int64_t tokens, experts, top_k, group_tokens;
};
// One group, several, a short last one, groups of more than a chunk, one token.
constexpr sizes cases[] = {{24, 5, 2, 24},   {24, 5, 2, 8},      {25, 7, 3, 8},
                           {1, 4, 2, 1},     {700, 33, 8, 700},  {1100, 16, 4, 500},
                           {30, 300, 8, 10}, {40, 520, 8, 1000}, {9, 1, 1, 3}};

balance_setting setting_of(const sizes& size) {
  return {size.group_tokens, size.tokens, 0.02, 0.003};
}

}  // namespace

TEST_CASE("the losses are their definitions") {
  for (const sizes& size : cases) {
    CAPTURE(size.tokens);
    CAPTURE(size.experts);
    const auto logits = test::random_values<double>(size.tokens * size.experts, 3, 2.0);
    const auto setting = setting_of(size);
    const visit<double> found(host<double>(2), logits, size.experts, size.top_k, setting);
    const auto expected =
        reference(logits, found.chosen, size.experts, size.top_k, size.group_tokens);
    CHECK(found.losses.load_balance == doctest::Approx(expected.load_balance).epsilon(1e-12));
    CHECK(found.losses.router_z == doctest::Approx(expected.router_z).epsilon(1e-12));
    // Case 21: the coefficients are in the objective, and there alone.
    CHECK(found.losses.objective ==
          doctest::Approx(0.02 * expected.load_balance + 0.003 * expected.router_z).epsilon(1e-12));
    std::vector<std::int64_t> counts(static_cast<std::size_t>(size.experts), 0);
    for (std::int32_t e : found.chosen) ++counts[static_cast<std::size_t>(e)];
    CHECK(found.counts == counts);

    const visit<float> rough(host<float>(2), std::vector<float>(logits.begin(), logits.end()),
                             size.experts, size.top_k, setting);
    CHECK(rough.losses.objective == doctest::Approx(found.losses.objective).epsilon(1e-5));
  }
}

TEST_CASE("case 21: the loss is 1 at balance and E / top_k at collapse, whatever top_k") {
  constexpr std::int64_t experts = 12;
  for (const std::int64_t top_k : {1, 3, 12}) {
    CAPTURE(top_k);
    // Token n is drawn to the experts n, n + 1, ... mod 12, so each gets the same share.
    std::vector<double> even(static_cast<std::size_t>(experts * experts), 0.0);
    for (std::int64_t n = 0; n < experts; ++n)
      for (std::int64_t k = 0; k < top_k; ++k)
        even[static_cast<std::size_t>(n * experts + (n + k) % experts)] = 5.0;
    const balance_setting setting{experts, experts, 1.0, 0.0};
    CHECK(visit<double>(host<double>(1), even, experts, top_k, setting).losses.load_balance ==
          doctest::Approx(1.0).epsilon(1e-12));
    // All tokens to the same top_k experts with all their probability.
    std::vector<double> collapsed(even.size(), 0.0);
    for (std::int64_t n = 0; n < experts; ++n)
      for (std::int64_t k = 0; k < top_k; ++k)
        collapsed[static_cast<std::size_t>(n * experts + k)] = 60.0;
    CHECK(visit<double>(host<double>(1), collapsed, experts, top_k, setting).losses.load_balance ==
          doctest::Approx(static_cast<double>(experts) / static_cast<double>(top_k)).epsilon(1e-9));
  }
}

TEST_CASE("case 21: the gradient reaches the logits, by central differences") {
  constexpr sizes some[] = {
      {24, 5, 2, 24}, {25, 7, 3, 8}, {1, 4, 2, 1}, {8, 33, 8, 4}, {9, 1, 1, 3}};
  for (const sizes& size : some) {
    CAPTURE(size.tokens);
    CAPTURE(size.experts);
    const auto setting = setting_of(size);
    auto logits = test::random_values<double>(size.tokens * size.experts, 9, 2.0);
    const visit<double> at(host<double>(2), logits, size.experts, size.top_k, setting);
    const auto found = at.gradient(host<double>(2), setting);
    const auto expected = test::central_differences(logits, [&] {
      const auto moved = reference(logits, at.chosen, size.experts, size.top_k, size.group_tokens);
      return setting.balance_coefficient * moved.load_balance +
             setting.z_coefficient * moved.router_z;
    });
    CHECK(test::relative_error(found, expected) < 1e-6);
    const visit<float> rough(host<float>(1), std::vector<float>(logits.begin(), logits.end()),
                             size.experts, size.top_k, setting);
    CHECK(test::relative_error(rough.gradient(host<float>(1), setting), found) < 1e-5);

    // A coefficient of 0 leaves the other loss alone; a coefficient scales its loss's gradient.
    balance_setting only_z = setting;
    only_z.balance_coefficient = 0.0;
    const auto z_gradient = visit<double>(host<double>(1), logits, size.experts, size.top_k, only_z)
                                .gradient(host<double>(1), only_z);
    const auto z_expected = test::central_differences(logits, [&] {
      return setting.z_coefficient *
             reference(logits, at.chosen, size.experts, size.top_k, size.group_tokens).router_z;
    });
    CHECK(test::relative_error(z_gradient, z_expected) < 1e-6);
  }
}

TEST_CASE("cases 22, 28: 1 x 32 and 32 x 1 sequences give the same loss and gradient") {
  constexpr std::int64_t sequences = 32;
  constexpr std::int64_t length = 11;
  constexpr std::int64_t experts = 6;
  constexpr std::int64_t top_k = 2;
  const auto logits = test::random_values<double>(sequences * length * experts, 12, 2.0);
  const balance_setting setting{length, sequences * length, 0.01, 0.001};
  const visit<double> whole(host<double>(2), logits, experts, top_k, setting);
  const auto gradient = whole.gradient(host<double>(2), setting);

  balance_losses sum;
  std::vector<double> pieces;
  std::vector<std::int64_t> counts(experts, 0);
  for (std::int64_t s = 0; s < sequences; ++s) {
    const auto first = logits.begin() + s * length * experts;
    const visit<double> part(host<double>(1), {first, first + length * experts}, experts, top_k,
                             setting);
    sum += part.losses;
    const auto piece = part.gradient(host<double>(1), setting);
    pieces.insert(pieces.end(), piece.begin(), piece.end());
    for (std::size_t e = 0; e < counts.size(); ++e) counts[e] += part.counts[e];
  }
  CHECK(sum.load_balance == doctest::Approx(whole.losses.load_balance).epsilon(1e-13));
  CHECK(sum.router_z == doctest::Approx(whole.losses.router_z).epsilon(1e-13));
  CHECK(sum.objective == doctest::Approx(whole.losses.objective).epsilon(1e-13));
  CHECK(test::relative_error(pieces, gradient) < 1e-14);
  CHECK(counts == whole.counts);
}

TEST_CASE("case 28: groups of unequal sizes weigh by their tokens") {
  // 10 tokens as 8 + 2: the mean over tokens, not the mean of the two groups' means.
  const auto logits = test::random_values<double>(10 * 4, 6, 2.0);
  const balance_setting both{8, 10, 1.0, 0.0};
  const balance_setting long_one{8, 8, 1.0, 0.0};
  const balance_setting short_one{2, 2, 1.0, 0.0};
  const double whole = visit<double>(host<double>(1), logits, 4, 1, both).losses.load_balance;
  const std::vector<double> head(logits.begin(), logits.begin() + 32);
  const std::vector<double> tail(logits.begin() + 32, logits.end());
  const double first = visit<double>(host<double>(1), head, 4, 1, long_one).losses.load_balance;
  const double second = visit<double>(host<double>(1), tail, 4, 1, short_one).losses.load_balance;
  CHECK(whole == doctest::Approx(0.8 * first + 0.2 * second).epsilon(1e-13));
  CHECK(std::abs(whole - 0.5 * (first + second)) > 1e-3);
}

TEST_CASE("cases 22, 23: counts are one record per visit; evaluation adds nothing to it") {
  const balance_setting setting{20, 20, 0.01, 0.001};
  const host<float> run(1);
  visit<float> first(run, test::random_values<float>(20 * 6, 1), 6, 2, setting);
  visit<float> second(run, test::random_values<float>(20 * 6, 2), 6, 2, setting);
  CHECK(first.counts != second.counts);
  CHECK(std::accumulate(first.counts.begin(), first.counts.end(), std::int64_t{0}) == 40);
  const auto kept = first.counts;
  // Evaluating is routing without balance_forward.
  const auto other = test::random_values<float>(20 * 6, 3);
  route_forward(run, matrix_view<const float>(other.data(), 20, 6), 2, true,
                matrix_view<float>(first.probabilities.data(), 20, 6), first.chosen.data(),
                first.weights.data(), first.logsumexp.data());
  CHECK(first.counts == kept);
  // A backward pass, which may run the router's gradient again, adds nothing either.
  static_cast<void>(first.gradient(run, setting));
  CHECK(first.counts == kept);
  // A second micro-batch of the step adds to the record of its visit.
  first.measure(run, setting);
  CHECK(std::accumulate(first.counts.begin(), first.counts.end(), std::int64_t{0}) == 80);
}

TEST_CASE("one thread and two give the same bits") {
  for (const sizes& size : cases) {
    CAPTURE(size.tokens);
    const auto logits = test::random_values<float>(size.tokens * size.experts, 5);
    const auto setting = setting_of(size);
    const visit<float> one(host<float>(1), logits, size.experts, size.top_k, setting);
    const visit<float> two(host<float>(2), logits, size.experts, size.top_k, setting);
    CHECK(one.losses.load_balance == two.losses.load_balance);
    CHECK(one.losses.router_z == two.losses.router_z);
    CHECK(one.dprobabilities == two.dprobabilities);
    CHECK(one.counts == two.counts);
    CHECK(one.gradient(host<float>(1), setting) == two.gradient(host<float>(2), setting));
  }
}
