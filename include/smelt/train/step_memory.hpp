// SPDX-License-Identifier: Apache-2.0
//
// step_memory: what a training step reads from the program and what the program reads from it.
//
//   in    micro-batches, 1 / (tokens that count), learning rate and bias corrections
//   out   sums of losses, the gradient's sum of squares, tokens of each expert per MoE visit
//
// Everything lies in the policy's memory, so that a step on a device never waits for the host. At
// most two steps may be unfinished: submit one while the device works on the other. On the host a
// step is finished when submitted, and batches are read where they are.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "smelt/exec/buffer.hpp"
#include "smelt/exec/policy.hpp"
#include "smelt/model/batch.hpp"
#include "smelt/op/adamw.hpp"
#include "smelt/op/balance.hpp"

namespace smelt {

/// Steps that may be submitted and not yet finished.
inline constexpr std::size_t most_unfinished_steps = 2;

/// What a step adds up, in a policy's memory.
template <class Statistic>
struct step_sums {
  Statistic loss_sum = 0;  // nats over the tokens that count
  Statistic squares = 0;   // of the whole gradient
  balance_sums<Statistic> router{};
  Statistic verdict = 0;  // 0 where the step may change weights: see judge_step

  /// The first four, which add up over ranks.
  static constexpr std::int64_t over_ranks = 4;
};
static_assert(sizeof(step_sums<double>) == 5 * sizeof(double));

/// What the host sees of a finished step.
struct step_outcome {
  step_sums<double> sums{};
  std::vector<std::int64_t> expert_counts;
};

/// Specialised by each backend; `counts` is the length of expert_counts.
template <class Policy>
class step_memory;

template <class Compute>
class step_memory<host<Compute>> {
 public:
  using real = real_of<Compute>;

  step_memory(const host<Compute>&, std::int64_t, std::int64_t counts)
      : expert_counts_(static_cast<std::size_t>(counts)) {
    for (step_outcome& outcome : outcomes_) outcome.expert_counts.resize(expert_counts_.size());
  }

  /// Takes the inputs of the next step; batches must live until the step is submitted.
  void stage(const host<Compute>&, std::span<const batch_view> batches, double scale,
             const adamw_rates<real>& rates) {
    batches_ = batches;
    scale_ = static_cast<real>(scale);
    rates_ = rates;
  }
  batch_view batch(std::size_t index) const { return batches_[index]; }
  const real* scale() const { return &scale_; }
  const adamw_rates<real>* rates() const { return &rates_; }

  step_sums<double>* sums() { return &sums_; }
  std::int64_t* expert_counts() { return expert_counts_.data(); }
  /// Where a step begins.
  void clear_sums(const host<Compute>&) {
    sums_ = {};
    std::fill(expert_counts_.begin(), expert_counts_.end(), 0);
  }

  /// Keeps what the step found for the host, until wait() has returned it.
  void collect(const host<Compute>&) {
    step_outcome& outcome = outcomes_[collected_++ % most_unfinished_steps];
    outcome.sums = sums_;
    std::copy(expert_counts_.begin(), expert_counts_.end(), outcome.expert_counts.begin());
  }
  /// The oldest outcome that nobody waited for; valid until two more are collected.
  const step_outcome& wait(const host<Compute>&) {
    return outcomes_[waited_++ % most_unfinished_steps];
  }

 private:
  std::span<const batch_view> batches_;
  real scale_{};
  adamw_rates<real> rates_{{}, 0.0, 1};
  step_sums<double> sums_;
  std::vector<std::int64_t> expert_counts_;
  std::array<step_outcome, most_unfinished_steps> outcomes_;
  std::size_t collected_ = 0;
  std::size_t waited_ = 0;
};

}  // namespace smelt
