// SPDX-License-Identifier: Apache-2.0
//
// The auxiliary losses on any backend: against their definitions in double, their gradient through
// the router against the double one (and that against central differences, in balance.cpp), and
// what may not change them: batching, shares, evaluation.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "gradient.hpp"
#include "smelt/op/balance.hpp"
#include "support/tensor.hpp"

namespace smelt::test {

/// One visit of a router over a batch, with everything its losses read and write.
template <class Policy>
struct balance_visit {
  using real = typename Policy::real;
  using sums_type = balance_sums<typename Policy::statistic>;
  std::int64_t tokens, experts, top_k;
  tensor<real, Policy> logits, probabilities, weights, logsumexp, dprobabilities;
  tensor<std::int32_t, Policy> chosen;
  tensor<std::int64_t, Policy> counts;
  tensor<sums_type, Policy> sums;

  balance_visit(const std::vector<real>& logits_, std::int64_t experts_, std::int64_t top_k_,
                const balance_setting& setting, const Policy& run = policy<Policy>())
      : tokens(static_cast<std::int64_t>(logits_.size()) / experts_),
        experts(experts_),
        top_k(top_k_),
        logits(logits_),
        probabilities(poisoned<real>(tokens * experts)),
        weights(poisoned<real>(tokens * top_k)),
        logsumexp(poisoned<real>(tokens)),
        dprobabilities(poisoned<real>(setting.groups(tokens) * experts)),
        chosen(std::vector<std::int32_t>(static_cast<std::size_t>(tokens * top_k), -1)),
        counts(std::vector<std::int64_t>(static_cast<std::size_t>(experts), 0)),
        sums(std::vector<sums_type>(1)) {
    forward(run);
    measure(setting, run);
  }
  void forward(const Policy& run = policy<Policy>()) {
    route_forward(run, logits.constant(tokens, experts), top_k, true,
                  probabilities.view(tokens, experts), chosen.data(), weights.data(),
                  logsumexp.data());
  }
  void measure(const balance_setting& setting, const Policy& run = policy<Policy>()) {
    balance_forward(run, probabilities.constant(tokens, experts), chosen.data(), logsumexp.data(),
                    top_k, setting, dprobabilities.data(), counts.data(), sums.data());
  }
  double load_balance() const { return static_cast<double>(sums.values()[0].load_balance); }
  double router_z() const { return static_cast<double>(sums.values()[0].router_z); }
  /// Gradient of the losses alone: the routing weights' own gradient is 0.
  std::vector<real> gradient(const balance_setting& setting,
                             const Policy& run = policy<Policy>()) const {
    const tensor<real, Policy> none(
        std::vector<real>(static_cast<std::size_t>(tokens * top_k), real(0)));
    const tensor<real, Policy> dlogits(poisoned<real>(tokens * experts));
    route_backward(run, probabilities.constant(tokens, experts), chosen.data(), weights.data(),
                   top_k, true, none.data(),
                   balance_backward<real>(setting, dprobabilities.data(), logsumexp.data()),
                   dlogits.view(tokens, experts));
    return dlogits.values();
  }
};

/// The definitions, token by token. The choice is given: the loss is smooth only while it is held.
inline balance_sums<double> plain_balance(const std::vector<double>& logits,
                                          const std::vector<std::int32_t>& chosen,
                                          std::int64_t experts_, std::int64_t top_k_,
                                          std::int64_t group_tokens_) {
  const std::size_t experts = static_cast<std::size_t>(experts_);
  const std::size_t top_k = static_cast<std::size_t>(top_k_);
  const std::size_t tokens = logits.size() / experts;
  const std::size_t group = static_cast<std::size_t>(group_tokens_);
  balance_sums<double> losses;
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
    losses.load_balance +=
        dot(mean, fraction) * static_cast<double>(experts) * size / static_cast<double>(tokens);
  }
  return losses;
}

struct balance_size {
  std::int64_t tokens, experts, top_k, group_tokens;
};
// One group, several, a short last one, groups of one and of several chunks of 256, a group longer
// than there are tokens, one token, groups of one token.
inline const std::vector<balance_size> balance_sizes = {
    {24, 5, 2, 24},     {24, 5, 2, 8},      {25, 7, 3, 8},     {1, 4, 2, 1},
    {700, 33, 8, 700},  {1100, 16, 4, 500}, {512, 31, 2, 256}, {30, 300, 8, 10},
    {40, 520, 8, 1000}, {9, 1, 1, 3},       {13, 64, 3, 1},    {600, 10, 2, 5000}};

inline balance_setting setting_of(const balance_size& size) {
  return {size.group_tokens, size.tokens, 0.02, 0.003};
}

template <class Policy>
std::vector<typename Policy::real> logits_of(const balance_size& size, std::uint32_t seed) {
  return random_values<typename Policy::real>(size.tokens * size.experts, seed, 2.0);
}

TEST_CASE_TEMPLATE_DEFINE("balance: the losses are their definitions", Policy, balance_values) {
  const double bound = tolerance<Policy>(1e-5, 1e-5, 1e-12);
  for (const balance_size& size : balance_sizes) {
    CAPTURE(size.tokens);
    CAPTURE(size.experts);
    const auto logits = logits_of<Policy>(size, 3);
    const auto setting = setting_of(size);
    const balance_visit<Policy> found(logits, size.experts, size.top_k, setting);
    const auto chosen = found.chosen.values();
    const auto expected =
        plain_balance(as_double(logits), chosen, size.experts, size.top_k, size.group_tokens);
    // Case 21: without the coefficients, which are in the objective and there alone.
    CHECK(found.load_balance() == doctest::Approx(expected.load_balance).epsilon(bound));
    CHECK(found.router_z() == doctest::Approx(expected.router_z).epsilon(bound));
    const auto objective = [&](double load_balance, double router_z) {
      return setting.balance_coefficient * load_balance + setting.z_coefficient * router_z;
    };
    CHECK(objective(found.load_balance(), found.router_z()) ==
          doctest::Approx(0.02 * expected.load_balance + 0.003 * expected.router_z).epsilon(bound));
    std::vector<std::int64_t> counts(static_cast<std::size_t>(size.experts), 0);
    for (std::int32_t e : chosen) ++counts[static_cast<std::size_t>(e)];
    CHECK(found.counts.values() == counts);
  }
}

TEST_CASE_TEMPLATE_DEFINE("balance: a long group keeps its digits", Policy, balance_long_group) {
  // Sums of thousands of float probabilities that are far from equal, beside the same in double.
  const balance_size size{6000, 9, 2, 6000};
  auto logits = logits_of<Policy>(size, 4);
  for (std::size_t i = 0; i < logits.size(); ++i)
    if (i % 9 == 0) logits[i] += 6;
  const balance_visit<Policy> found(logits, 9, 2, setting_of(size));
  const auto expected = plain_balance(as_double(logits), found.chosen.values(), 9, 2, 6000);
  const double bound = tolerance<Policy>(1e-5, 1e-5, 1e-12);
  CHECK(found.load_balance() == doctest::Approx(expected.load_balance).epsilon(bound));
  CHECK(found.router_z() == doctest::Approx(expected.router_z).epsilon(bound));
}

TEST_CASE_TEMPLATE_DEFINE("balance: case 21: 1 at balance and E / top_k at collapse", Policy,
                          balance_ends) {
  using real = typename Policy::real;
  constexpr std::int64_t experts = 12;
  for (const std::int64_t top_k : {1, 3, 12}) {
    CAPTURE(top_k);
    // Token n is drawn to the experts n, n + 1, ... mod 12, so each gets the same share.
    std::vector<real> even(static_cast<std::size_t>(experts * experts), real(0));
    for (std::int64_t n = 0; n < experts; ++n)
      for (std::int64_t k = 0; k < top_k; ++k)
        even[static_cast<std::size_t>(n * experts + (n + k) % experts)] = real(5);
    const balance_setting setting{experts, experts, 1.0, 0.0};
    CHECK(balance_visit<Policy>(even, experts, top_k, setting).load_balance() ==
          doctest::Approx(1.0).epsilon(tolerance<Policy>(1e-6, 1e-6, 1e-12)));
    // All tokens to the same top_k experts with all their probability.
    std::vector<real> collapsed(even.size(), real(0));
    for (std::int64_t n = 0; n < experts; ++n)
      for (std::int64_t k = 0; k < top_k; ++k)
        collapsed[static_cast<std::size_t>(n * experts + k)] = real(60);
    CHECK(balance_visit<Policy>(collapsed, experts, top_k, setting).load_balance() ==
          doctest::Approx(static_cast<double>(experts) / static_cast<double>(top_k))
              .epsilon(tolerance<Policy>(1e-6, 1e-6, 1e-9)));
  }
}

TEST_CASE_TEMPLATE_DEFINE("balance: gradients are those of the double reference", Policy,
                          balance_gradients) {
  for (const balance_size& size : balance_sizes) {
    CAPTURE(size.tokens);
    CAPTURE(size.experts);
    const auto logits = logits_of<Policy>(size, 9);
    const auto setting = setting_of(size);
    const balance_visit<host<double>> exact(as_double(logits), size.experts, size.top_k, setting);
    const balance_visit<Policy> found(logits, size.experts, size.top_k, setting);
    CHECK(relative_error(found.dprobabilities.values(), exact.dprobabilities.values()) < 1e-5);
    CHECK(relative_error(found.gradient(setting), exact.gradient(setting)) < 1e-5);
  }
}

TEST_CASE_TEMPLATE_DEFINE("balance: cases 22, 28: 1 x 32 and 32 x 1 sequences are the same", Policy,
                          balance_batching) {
  using real = typename Policy::real;
  constexpr std::int64_t sequences = 32, length = 11, experts = 6, top_k = 2;
  const auto logits = random_values<real>(sequences * length * experts, 12, 2.0);
  const balance_setting setting{length, sequences * length, 0.01, 0.001};
  const balance_visit<Policy> whole(logits, experts, top_k, setting);

  // The micro-batches of a step add to one pair of sums.
  using sums_type = typename balance_visit<Policy>::sums_type;
  const tensor<sums_type, Policy> together{std::vector<sums_type>(1)};
  std::vector<real> pieces;
  std::vector<std::int64_t> counts(experts, 0);
  for (std::int64_t s = 0; s < sequences; ++s) {
    const auto first = logits.begin() + s * length * experts;
    const balance_visit<Policy> part({first, first + length * experts}, experts, top_k, setting);
    balance_forward(policy<Policy>(), part.probabilities.constant(length, experts),
                    part.chosen.data(), part.logsumexp.data(), top_k, setting,
                    part.dprobabilities.data(), part.counts.data(), together.data());
    const auto piece = part.gradient(setting);
    pieces.insert(pieces.end(), piece.begin(), piece.end());
    const auto twice = part.counts.values();  // measured once more than it was routed
    for (std::size_t e = 0; e < counts.size(); ++e) counts[e] += twice[e] / 2;
  }
  const double bound = tolerance<Policy>(1e-6, 1e-6, 1e-13);
  const auto sum = together.values()[0];
  CHECK(static_cast<double>(sum.load_balance) ==
        doctest::Approx(whole.load_balance()).epsilon(bound));
  CHECK(static_cast<double>(sum.router_z) == doctest::Approx(whole.router_z()).epsilon(bound));
  CHECK(relative_error(pieces, whole.gradient(setting)) < tolerance<Policy>(1e-6, 1e-6, 1e-14));
  CHECK(counts == whole.counts.values());
}

TEST_CASE_TEMPLATE_DEFINE("balance: case 28: groups of unequal sizes weigh by their tokens", Policy,
                          balance_unequal_groups) {
  using real = typename Policy::real;
  // 10 tokens as 8 + 2: the mean over tokens, not the mean of the two groups' means.
  const auto logits = random_values<real>(10 * 4, 6, 2.0);
  const balance_setting both{8, 10, 1.0, 0.0};
  const balance_setting long_one{8, 8, 1.0, 0.0};
  const balance_setting short_one{2, 2, 1.0, 0.0};
  const auto loss = [](const std::vector<real>& some, const balance_setting& setting) {
    return balance_visit<Policy>(some, 4, 1, setting).load_balance();
  };
  const double whole = loss(logits, both);
  const double first = loss({logits.begin(), logits.begin() + 32}, long_one);
  const double second = loss({logits.begin() + 32, logits.end()}, short_one);
  CHECK(whole ==
        doctest::Approx(0.8 * first + 0.2 * second).epsilon(tolerance<Policy>(1e-6, 1e-6, 1e-13)));
  CHECK(std::abs(whole - 0.5 * (first + second)) > 1e-3);
}

TEST_CASE_TEMPLATE_DEFINE("balance: a share scales sums and gradient, never the counts", Policy,
                          balance_share) {
  const balance_size size{25, 7, 3, 8};
  const auto logits = logits_of<Policy>(size, 3);
  auto setting = setting_of(size);
  balance_visit<Policy> whole(logits, 7, 3, setting);
  setting.share = 0.25;  // a power of two: no bit of a product is lost
  const balance_visit<Policy> quarter(logits, 7, 3, setting);
  CHECK(quarter.load_balance() == doctest::Approx(0.25 * whole.load_balance()).epsilon(1e-7));
  CHECK(quarter.router_z() == doctest::Approx(0.25 * whole.router_z()).epsilon(1e-7));
  CHECK(quarter.counts.values() == whole.counts.values());
  auto scaled = as_double(whole.gradient(setting_of(size)));
  for (double& value : scaled) value *= 0.25;
  CHECK(relative_error(quarter.gradient(setting), scaled) < 1e-7);
  // A visit that comes again adds its share to what is there.
  const double before = whole.load_balance(), z_before = whole.router_z();
  whole.measure(setting);
  CHECK(whole.load_balance() == doctest::Approx(1.25 * before).epsilon(1e-6));
  CHECK(whole.router_z() == doctest::Approx(1.25 * z_before).epsilon(1e-6));
}

TEST_CASE_TEMPLATE_DEFINE("balance: cases 22, 23: one record per visit; evaluation adds nothing",
                          Policy, balance_counts) {
  using real = typename Policy::real;
  const balance_setting setting{20, 20, 0.01, 0.001};
  balance_visit<Policy> first(random_values<real>(20 * 6, 1), 6, 2, setting);
  const balance_visit<Policy> second(random_values<real>(20 * 6, 2), 6, 2, setting);
  const auto total = [&] {
    const auto counts = first.counts.values();
    return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  };
  CHECK(first.counts.values() != second.counts.values());
  CHECK(total() == 40);
  const auto kept = first.counts.values();
  const double loss = first.load_balance(), z = first.router_z();
  // Evaluating is routing without balance_forward.
  first.logits.set(random_values<real>(20 * 6, 3));
  first.forward();
  CHECK(first.counts.values() == kept);
  // A backward pass, which may run the router's gradient again, adds nothing either.
  static_cast<void>(first.gradient(setting));
  CHECK(first.counts.values() == kept);
  CHECK(first.load_balance() == loss);
  CHECK(first.router_z() == z);
  // A second micro-batch of the step adds to the record of its visit.
  first.measure(setting);
  CHECK(total() == 80);
}

TEST_CASE_TEMPLATE_DEFINE("balance: no tokens add nothing", Policy, balance_empty) {
  balance_visit<Policy> none({}, 6, 2, balance_setting{20, 20, 0.01, 0.001});
  CHECK(none.load_balance() == 0.0);
  CHECK(none.router_z() == 0.0);
  CHECK(none.counts.values() == std::vector<std::int64_t>(6, 0));
}

}  // namespace smelt::test
