// SPDX-License-Identifier: Apache-2.0
//
// The trainer on several ranks against the trainer on one that has all micro-batches, for any
// engine and policy: what training.cpp (MPI, host) and nccl_training.cu (NCCL, CUDA) share.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/small_models.hpp"
#include "smelt/train/rank_layout.hpp"

namespace smelt::test {

/// The longest of step_batches.
inline constexpr std::int64_t most_step_tokens = 14;
/// As many for each of 1, 2, 3 or 4 ranks.
inline constexpr std::int64_t step_micro_batches = 12;

// Experts that 4 ranks can share unevenly (2, 2, 2, 1), beside a dense layer; a tied head.
using uneven =
    tiny<transformer<hidden<12>, gqa<4, 1, 6>, moe<7, 3, 5, shared<4>>,
                     stack<plain<1, dense<9>>, looped<2, 2>, plain<1>>, qk_norm::full_width>,
         tied>;
// Two feed-forwards with experts of different numbers.
using two_sizes = tiny<
    transformer<hidden<8>, mha<2, 4>, moe<4, 2, 6>, stack<plain<1>, looped<1, 2, moe<8, 1, 5>>>>>;

/// Micro-batches whose lengths differ, so that a mean of means would not be the mean.
inline std::vector<token_batch> step_batches(std::uint32_t seed) {
  const std::vector<std::vector<std::int64_t>> lengths{
      {9, 4}, {3, 2}, {1, 11, 2}, {6, 6}, {14}, {2, 2}, {5}, {7, 3}, {4}, {2, 9}, {8, 1}, {13}};
  std::vector<token_batch> batches;
  for (std::size_t i = 0; i < lengths.size(); ++i)
    batches.push_back(documents_of(lengths[i], seed * 100 + static_cast<std::uint32_t>(i)));
  return batches;
}
/// Those of one rank, or of one that has all.
inline std::vector<batch_view> share_of(const std::vector<token_batch>& all, std::int64_t rank = 0,
                                        std::int64_t ranks = 1) {
  const element_range range = shards{step_micro_batches, ranks}.of(rank);
  std::vector<batch_view> views;
  for (std::int64_t i = range.begin; i < range.end; ++i)
    views.push_back(all[static_cast<std::size_t>(i)].view());
  return views;
}

/// Options of these runs.
inline training_options options_over_ranks() {
  training_options options = test_options(most_step_tokens, 50);
  options.clip_norm = 0.25;  // below the norms of the run, so that every step is clipped
  return options;
}

/// Every way to divide a model among so many ranks.
template <class Model>
std::vector<parallel_setting> settings_for(std::int64_t ranks) {
  std::vector<parallel_setting> all;
  const auto has_experts_for = [](std::int64_t expert_ranks) {
    return std::ranges::all_of(plan_of<Model>().layers, [=](const layer_plan& layer) {
      return layer.ffn.is_dense() ||
             shards{layer.ffn.experts, expert_ranks}.of(expert_ranks - 1).count() > 0;
    });
  };
  for (std::int64_t expert_ranks = 1; expert_ranks <= ranks; ++expert_ranks)
    if (ranks % expert_ranks == 0 && has_experts_for(expert_ranks))
      for (const bool sharded : {false, true}) all.push_back({expert_ranks, sharded, false});
  return all;
}

/// A whole array of a trainer as the host sees it.
template <class Trainer, class Real>
std::vector<Real> array_of(Trainer& t, const Real* data) {
  std::vector<Real> values(static_cast<std::size_t>(t.plan().elements));
  download(t.policy(), data, t.plan().elements, values.data());
  return values;
}

/// One step's sums and gradient over ranks against one rank's, which a host policy computes.
template <class Model, class Policy, class Engine>
void check_gradient_over_ranks(const Policy& run, Engine& ranks, const parallel_setting& how,
                               double tolerance) {
  using real = typename Policy::real;
  CAPTURE(how.expert_ranks);
  CAPTURE(how.sharded_optimizer);
  trainer<Model, Policy, Engine> mine(run, options_over_ranks(), 7, ranks, how);
  trainer<Model, host<real>> whole(host<real>(1), options_over_ranks(), 7);
  const auto batches = step_batches(3);
  const auto own_share = share_of(batches, ranks.rank(), ranks.size());
  // Twice: the second must not see anything of the first.
  for (int round = 0; round < 2; ++round) {
    const auto found = mine.accumulate(own_share);
    const auto expected = whole.accumulate(share_of(batches));
    CHECK(found.tokens == expected.tokens);
    CHECK(found.loss == doctest::Approx(expected.loss).epsilon(tolerance));
    CHECK(found.norm == doctest::Approx(expected.norm).epsilon(tolerance));
    CHECK(found.load_balance == doctest::Approx(expected.load_balance).epsilon(tolerance));
    CHECK(found.router_z == doctest::Approx(expected.router_z).epsilon(tolerance));
    CHECK(std::ranges::equal(mine.expert_counts(), whole.expert_counts()));
  }
  const auto own = array_of(mine, static_cast<const real*>(mine.state().gradients.data()));
  const auto weights = array_of(mine, static_cast<const real*>(mine.state().weights.data()));
  const real* all = whole.state().gradients.data();
  const real* all_weights = whole.state().weights.data();
  const auto compare = [&](const std::string& name, const tensor_place& place,
                           const std::vector<tensor_part>& parts) {
    CAPTURE(name);
    for (const tensor_part& part : parts) {
      const std::int64_t of = place.offset + part.first;
      const auto at = static_cast<std::size_t>(part.offset);
      // The same start, whoever holds it.
      CHECK(std::equal(all_weights + of, all_weights + of + part.count,
                       weights.begin() + part.offset));
      // A sharded gradient is whole on its owner alone.
      if (how.sharded_optimizer) continue;
      double error = 0.0, size = 0.0;
      for (std::int64_t i = 0; i < part.count; ++i) {
        const double expected = static_cast<double>(all[of + i]);
        const double found = static_cast<double>(own[at + static_cast<std::size_t>(i)]);
        error = std::max(error, std::abs(found - expected));
        size = std::max(size, std::abs(expected));
      }
      CHECK(error <= tolerance * std::max(size, 1e-3));
    }
  };
  mine.team().layout().for_each_part_of(ranks.rank(), kept_array::weights, compare);
}

/// What a run leaves behind.
template <class Real>
struct run_result {
  std::vector<double> losses, norms;
  std::vector<Real> weights;
};

/// `steps` steps on this rank's share, or on everything.
template <class Trainer>
run_result<typename Trainer::real> train_steps(Trainer& t, std::uint32_t steps,
                                               std::int64_t rank = 0, std::int64_t ranks = 1) {
  run_result<typename Trainer::real> result;
  for (std::uint32_t step = 0; step < steps; ++step) {
    const auto batches = step_batches(step % 3);
    const auto views = share_of(batches, rank, ranks);
    const step_report report = t.step(std::span<const batch_view>(views));
    result.losses.push_back(report.loss);
    result.norms.push_back(report.gradient_norm);
  }
  result.weights =
      array_of(t, static_cast<const typename Trainer::real*>(t.state().weights.data()));
  return result;
}

inline double worst_relative(const std::vector<double>& found,
                             const std::vector<double>& expected) {
  double worst = 0.0;
  for (std::size_t i = 0; i < found.size(); ++i)
    worst = std::max(worst, std::abs(found[i] / expected[i] - 1.0));
  return worst;
}

/// Steps over ranks, divided in every way, against the losses of one rank; a sharded optimizer's
/// bits against a whole one's.
template <class Model, class Policy, class Engine>
void check_training_over_ranks(const Policy& run, Engine& ranks, std::uint32_t steps,
                               const run_result<typename Policy::real>& expected) {
  run_result<typename Policy::real> replicated;
  for (const parallel_setting& how : settings_for<Model>(ranks.size())) {
    CAPTURE(how.expert_ranks);
    CAPTURE(how.sharded_optimizer);
    trainer<Model, Policy, Engine> mine(run, options_over_ranks(), 7, ranks, how);
    const auto found = train_steps(mine, steps, ranks.rank(), ranks.size());
    CHECK(worst_relative(found.losses, expected.losses) < 1e-5);
    // Sums in the order of the ranks are the same bits whichever call makes them; NCCL has an order
    // of its own for each.
    if (how.sharded_optimizer && std::string_view(ranks.name()) == "nccl") {
      CHECK(worst_relative(found.losses, replicated.losses) < 1e-6);
    } else if (how.sharded_optimizer) {
      CHECK(found.losses == replicated.losses);
      CHECK(found.norms == replicated.norms);
      CHECK(found.weights == replicated.weights);
    }
    replicated = found;
    // Each rank keeps its part of the state and no more.
    const std::int64_t moment_bytes = 2 * static_cast<std::int64_t>(sizeof(typename Policy::real));
    if (how.sharded_optimizer && how.expert_ranks == 1)
      CHECK(mine.optimizer_bytes() <= moment_bytes * (mine.plan().elements / ranks.size() + 1));
    if (how.expert_ranks > 1) CHECK(mine.plan().elements < plan_of<Model>().elements);
  }
}

}  // namespace smelt::test
