// SPDX-License-Identifier: Apache-2.0
//
// A rank's copy of a model, and forward and backward over micro-batches, as a trainer would have
// them on several ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "model/small_models.hpp"

namespace smelt::test {

/// Four micro-batches of unequal lengths: a mean of means over them is not the mean.
inline std::vector<token_batch> four_batches(std::uint32_t seed) {
  std::vector<token_batch> batches;
  batches.push_back(documents_of({9, 4}, seed));
  batches.push_back(documents_of({3}, seed + 1));
  batches.push_back(documents_of({1, 11, 2}, seed + 2));
  batches.push_back(documents_of({6, 6}, seed + 3));
  return batches;
}
inline constexpr std::int64_t most_tokens = 14;

/// A team of one that passes on what backward says is complete, in the last pass of a step.
template <class Complete>
struct telling_team : one_rank {
  explicit telling_team(Complete& tell_) : tell(tell_) {}
  template <class Policy>
  void complete(const Policy&, std::int64_t begin, std::int64_t end) {
    if (is_last_pass) tell(element_range{begin, end});
  }
  Complete& tell;
  bool is_last_pass = false;
};

/// A model with the sums of a step.
template <class Model, class Compute>
struct replica {
  using policy = host<Compute>;
  using real = real_of<Compute>;

  explicit replica(std::uint64_t seed = 3)
      : state(run, plan_of<Model>(), most_tokens, seed),
        counts(static_cast<std::size_t>(state.plan.moe_visits() * most_experts)) {}

  // No model here has more.
  static constexpr std::int64_t most_experts = 16;

  /// Gradient and losses of these micro-batches, as a share of a step with `total` tokens. In the
  /// last of them complete(range) is told, also where there is none.
  template <class Complete>
  void accumulate(const std::vector<batch_view>& batches, const step_tokens& total,
                  const training_options& options, Complete&& complete) {
    state.gradients.zero();
    loss_sum = 0.0;
    router = {};
    std::fill(counts.begin(), counts.end(), 0);
    router_losses<policy> losses;
    losses.sums = &router;
    losses.expert_counts = counts.data();
    losses.counts_stride = most_experts;
    losses.setting.balance_coefficient = options.balance_coefficient;
    losses.setting.z_coefficient = options.z_coefficient;
    losses.setting.total_tokens = total.tokens;
    const real scale = static_cast<real>(1.0 / static_cast<double>(total.counted));
    telling_team team(complete);
    for (std::size_t i = 0; i < batches.size(); ++i) {
      losses.setting.group_tokens = batches[i].tokens;
      team.is_last_pass = i + 1 == batches.size();
      forward(run, state, batches[i], team);
      backward(run, state, batches[i], &scale, losses, &loss_sum, team);
    }
    team.is_last_pass = true;
    if (batches.empty()) complete_all(run, state.plan, team);
  }

  policy run{1};
  model_state<policy> state;
  double loss_sum = 0.0;
  balance_sums<double> router{};
  std::vector<std::int64_t> counts;
};

/// The micro-batches of a rank, in order, and what it counts in them.
inline std::vector<batch_view> share_of(const std::vector<token_batch>& batches,
                                        const element_range& range) {
  std::vector<batch_view> views;
  for (std::int64_t i = range.begin; i < range.end; ++i)
    views.push_back(batches[static_cast<std::size_t>(i)].view());
  return views;
}
inline step_tokens tokens_of(const std::vector<batch_view>& batches) {
  step_tokens sum;
  for (const batch_view& batch : batches) {
    sum.tokens += batch.tokens;
    sum.counted += batch.counted();
  }
  return sum;
}

}  // namespace smelt::test
