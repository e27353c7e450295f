// SPDX-License-Identifier: Apache-2.0
//
// A group that lies on several ranks, on any backend: counts of experts, the loss and gradient of a
// batch in two unequal parts against those of the whole, and settings that cannot be.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "balance.hpp"
#include "gradient.hpp"
#include "smelt/op/balance.hpp"
#include "support/tensor.hpp"

namespace smelt::test {

/// What count_experts writes over poison.
template <class Policy>
std::vector<std::int64_t> expert_counts_of(const std::vector<std::int32_t>& chosen,
                                           std::int64_t experts, std::int64_t top_k,
                                           const Policy& run = policy<Policy>()) {
  const tensor<std::int32_t, Policy> indices(chosen);
  const tensor<std::int64_t, Policy> counts(
      std::vector<std::int64_t>(static_cast<std::size_t>(experts), -7));
  count_experts(run, indices.data(), indices.count() / top_k, top_k, experts, counts.data());
  return counts.values();
}

TEST_CASE_TEMPLATE_DEFINE("balance: counts of experts are those of a plain loop", Policy,
                          balance_count_experts) {
  // None, a few, and as many as several chunks have; experts that nobody chose; more than a byte.
  for (const std::int64_t assignments : {0, 6, 2048, 9000})
    for (const std::int64_t experts : {1, 7, 300}) {
      CAPTURE(assignments);
      CAPTURE(experts);
      std::vector<std::int32_t> chosen;
      for (const double value : random_values<double>(assignments, 3))
        chosen.push_back(static_cast<std::int32_t>(value * value * double(experts - 1)));
      std::vector<std::int64_t> expected(static_cast<std::size_t>(experts), 0);
      for (const std::int32_t e : chosen) ++expected[static_cast<std::size_t>(e)];
      CHECK(expert_counts_of<Policy>(chosen, experts, 2) == expected);
    }
  // Indices that name no expert are not counted.
  CHECK(expert_counts_of<Policy>({1, -1, 3, 2, 1, 1 << 30}, 3, 2) ==
        std::vector<std::int64_t>{0, 2, 1});
}

TEST_CASE_TEMPLATE_DEFINE("balance: two ranks with their counts summed are the whole batch", Policy,
                          balance_ranks) {
  using real = typename Policy::real;
  struct batch {
    balance_size size;
    std::int64_t first;  // tokens of the first rank
  };
  const std::vector<batch> some = {
      {{24, 5, 2, 24}, 1}, {{300, 33, 8, 300}, 200}, {{40, 300, 8, 1 << 20}, 26}};
  for (const batch& one : some) {
    const balance_size& size = one.size;
    CAPTURE(size.tokens);
    const auto logits = logits_of<Policy>(size, 3);
    // The group is a third of the step's tokens: there are micro-batches as well.
    balance_setting setting{size.group_tokens, 3 * size.tokens, 0.02, 0.003, 0.5};
    const balance_visit<Policy> whole(logits, size.experts, size.top_k, setting);

    const auto middle = logits.begin() + one.first * size.experts;
    const std::vector<real> parts[] = {{logits.begin(), middle}, {middle, logits.end()}};
    const balance_visit<Policy> alone[] = {{parts[0], size.experts, size.top_k, setting},
                                           {parts[1], size.experts, size.top_k, setting}};
    std::vector<std::int64_t> sum(static_cast<std::size_t>(size.experts), 0);
    for (const auto& rank : alone) {
      const auto own = expert_counts_of<Policy>(rank.chosen.values(), size.experts, size.top_k);
      for (std::size_t e = 0; e < sum.size(); ++e) sum[e] += own[e];
    }
    const tensor<std::int64_t, Policy> of_group(sum);
    setting.group_counts = of_group.data();
    setting.group_counts_tokens = size.tokens;
    const balance_visit<Policy> ranks[] = {{parts[0], size.experts, size.top_k, setting},
                                           {parts[1], size.experts, size.top_k, setting}};

    const double bound = tolerance<Policy>(1e-5, 1e-5, 1e-12);
    const auto expected = whole.dprobabilities.values();
    auto gradient = ranks[0].gradient(setting);
    const auto second = ranks[1].gradient(setting);
    gradient.insert(gradient.end(), second.begin(), second.end());
    CHECK(ranks[0].load_balance() + ranks[1].load_balance() ==
          doctest::Approx(whole.load_balance()).epsilon(bound));
    CHECK(ranks[0].router_z() + ranks[1].router_z() ==
          doctest::Approx(whole.router_z()).epsilon(bound));
    for (int rank : {0, 1}) {
      CHECK(relative_error(ranks[rank].dprobabilities.values(), expected) < bound);
      // The record is still each rank's own.
      CHECK(ranks[rank].counts.values() == alone[rank].counts.values());
    }
    CHECK(relative_error(gradient, whole.gradient(setting)) < bound);
    // Each by its own counts they would be something else.
    CHECK(std::abs(alone[0].load_balance() + alone[1].load_balance() - whole.load_balance()) >
          1e-4);
  }
}

TEST_CASE_TEMPLATE_DEFINE("balance: a group that is all in the batch has the same bits either way",
                          Policy, balance_one_rank) {
  const balance_size size{300, 33, 3, 300};
  const auto logits = logits_of<Policy>(size, 8);
  auto setting = setting_of(size);
  const balance_visit<Policy> expected(logits, 33, 3, setting);
  const tensor<std::int64_t, Policy> counts(expected.counts.values());
  setting.group_counts = counts.data();
  setting.group_counts_tokens = 300;
  const balance_visit<Policy> found(logits, 33, 3, setting);
  CHECK(found.load_balance() == expected.load_balance());
  CHECK(found.router_z() == expected.router_z());
  CHECK(found.dprobabilities.values() == expected.dprobabilities.values());
  // A rank whose batch is empty adds nothing.
  const balance_visit<Policy> none({}, 33, 3, setting);
  CHECK(none.load_balance() == 0.0);
}

TEST_CASE_TEMPLATE_DEFINE("balance: counts of a group that the batch is not in are refused", Policy,
                          balance_refused) {
  const balance_size size{20, 6, 2, 20};
  const auto logits = logits_of<Policy>(size, 8);
  const tensor<std::int64_t, Policy> counts(std::vector<std::int64_t>(6, 10));
  auto setting = setting_of(size);
  setting.group_counts = counts.data();
  setting.group_counts_tokens = 19;
  CHECK_THROWS_WITH_AS(balance_visit<Policy>(logits, 6, 2, setting),
                       "balance: expected group_counts of this batch's 20 tokens and the other "
                       "ranks', found group_counts_tokens = 19; sum both over the ranks",
                       error);
  setting.group_counts_tokens = 30;
  setting.group_tokens = 8;
  CHECK_THROWS_WITH_AS(balance_visit<Policy>(logits, 6, 2, setting),
                       "balance: expected one group where group_counts is given, found groups of 8 "
                       "in a batch of 20 tokens; set group_tokens to all ranks' tokens, or give no "
                       "group_counts",
                       error);
}

}  // namespace smelt::test
