// SPDX-License-Identifier: Apache-2.0
//
// trainer<Model, Policy>: one training step, from a batch to updated weights.
//
//   objective = mean cross-entropy over the counted tokens of the step
//             + c_b * load balance + c_z * router z, each the mean over MoE visits
//   gradient  = sum over micro-batches, clipped by its global norm, then AdamW
//
// The mean is over the tokens of the whole step, so 32 micro-batches of one sequence give the same
// loss and gradient as one of 32 (with balancing groups of a sequence, also the auxiliary ones).
// A step allocates nothing. Source: paper section 4; constants that it does not print are options.
#pragma once

#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "smelt/error.hpp"
#include "smelt/model/backward.hpp"
#include "smelt/op/adamw.hpp"
#include "smelt/train/batch.hpp"
#include "smelt/train/schedule.hpp"

namespace smelt {

/// How to train. The defaults are usual choices; the paper names AdamW and no constants.
struct training_options {
  std::int64_t batch_tokens = 4096;  // room for the largest micro-batch
  warmup_stable_decay schedule{};
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0.1;              // of matrices; gains do not decay
  double clip_norm = 1.0;                 // of the whole gradient; 0 for no clipping
  double balance_coefficient = 0.01;      // of the load-balancing loss
  double z_coefficient = 0.001;           // of the router z-loss
  std::int64_t balance_group_tokens = 0;  // consecutive tokens that balance; 0: a micro-batch

  void check() const {
    schedule.check();
    if (batch_tokens < 1)
      throw error("training_options.batch_tokens: expected at least 1, found " +
                  std::to_string(batch_tokens));
    if (clip_norm < 0.0 || balance_coefficient < 0.0 || z_coefficient < 0.0 || weight_decay < 0.0 ||
        balance_group_tokens < 0)
      throw error(
          "training_options: clip_norm, weight_decay, the coefficients and balance_group_tokens "
          "must not be negative; 0 switches each off");
  }
};

/// What one step did.
struct step_report {
  std::int64_t step = 0;      // counted from 0
  std::int64_t tokens = 0;    // of the step, targets or not
  double loss = 0.0;          // mean cross-entropy of the counted tokens, nats
  double load_balance = 0.0;  // 1 at balance
  double router_z = 0.0;
  double gradient_norm = 0.0;  // before clipping
  double learning_rate = 0.0;
};

/// Loss of a batch without training on it.
struct evaluation {
  double loss_sum = 0.0;    // nats
  std::int64_t tokens = 0;  // that counted
};

template <has_head Model, class Policy>
class trainer {
 public:
  using compute = typename Policy::compute;
  using real = real_of<compute>;

  trainer(const Policy& run, const training_options& options, std::uint64_t seed)
      : run_(run),
        options_(options),
        state_((options.check(), run), plan_of<Model>(), options.batch_tokens, seed),
        first_moments_(run, state_.plan),
        second_moments_(run, state_.plan) {
    for (const layer_plan& layer : state_.plan.layers)
      counts_stride_ = std::max(counts_stride_, layer.ffn.experts);
    expert_counts_.resize(static_cast<std::size_t>(state_.plan.moe_visits() * counts_stride_));
  }

  /// One step on one batch.
  step_report step(const batch_view& batch) { return step(std::span(&batch, 1)); }

  /// One step on several micro-batches. Throws smelt::error, weights untouched, where a token lies
  /// outside the vocabulary or the loss is not a number.
  step_report step(std::span<const batch_view> micro_batches) {
    const gradient_report found = accumulate(micro_batches);
    step_report report;
    report.step = steps_;
    report.tokens = found.tokens;
    report.loss = found.loss;
    report.load_balance = found.losses.load_balance;
    report.router_z = found.losses.router_z;
    report.gradient_norm = found.norm;
    report.learning_rate = options_.schedule.learning_rate(steps_);
    update(report.learning_rate, found.norm);
    ++steps_;
    return report;
  }

  /// Loss and gradient of a step without the update; for tests and for those who update themselves.
  struct gradient_report {
    std::int64_t tokens = 0;
    double loss = 0.0;
    double norm = 0.0;
    balance_losses losses{};
  };
  gradient_report accumulate(std::span<const batch_view> micro_batches) {
    gradient_report report;
    std::int64_t counted = 0;
    for (const batch_view& batch : micro_batches) {
      check(batch);
      report.tokens += batch.tokens;
      counted += batch.counted();
    }
    if (counted == 0)
      throw error("step " + std::to_string(steps_) +
                  ": no token of the batch has a target; feed documents of at least 2 tokens");
    state_.gradients.zero();
    std::fill(expert_counts_.begin(), expert_counts_.end(), 0);
    router_losses losses;
    losses.expert_counts = expert_counts_.data();
    losses.counts_stride = counts_stride_;
    losses.setting.total_tokens = report.tokens;
    losses.setting.balance_coefficient = options_.balance_coefficient;
    losses.setting.z_coefficient = options_.z_coefficient;
    double loss_sum = 0.0;
    for (const batch_view& batch : micro_batches) {
      losses.setting.group_tokens =
          options_.balance_group_tokens > 0 ? options_.balance_group_tokens : batch.tokens;
      forward(run_, state_, batch);
      loss_sum += backward(run_, state_, batch, 1.0 / static_cast<double>(counted), losses);
    }
    report.loss = loss_sum / static_cast<double>(counted);
    report.losses = losses.sums;
    report.norm =
        std::sqrt(sum_of_squares(run_, state_.gradients.data(), state_.gradients.elements()));
    if (!std::isfinite(report.loss) || !std::isfinite(report.norm))
      throw error("step " + std::to_string(steps_) + ": loss " + in_words(report.loss) +
                  " and gradient norm " + in_words(report.norm) +
                  " must be finite; lower the learning rate or lengthen the warmup");
    return report;
  }

  /// Loss without gradient; counts in no statistic of training.
  evaluation evaluate(const batch_view& batch) {
    check(batch);
    forward(run_, state_, batch);
    return {evaluate_loss(run_, state_, batch), batch.counted()};
  }

  std::int64_t steps() const { return steps_; }
  const model_plan& plan() const { return state_.plan; }
  model_state<Policy>& state() { return state_; }
  /// Tokens that went to each expert in the last step: [MoE visits in order, expert_stride()].
  std::span<const std::int64_t> expert_counts() const { return expert_counts_; }
  std::int64_t expert_stride() const { return counts_stride_; }
  /// The policy, e.g. to count FLOPs into.
  Policy& policy() { return run_; }

  std::int64_t weight_bytes() const { return state_.weights.bytes() + state_.copy_bytes(); }
  std::int64_t gradient_bytes() const { return state_.gradients.bytes(); }
  std::int64_t optimizer_bytes() const { return first_moments_.bytes() + second_moments_.bytes(); }
  std::int64_t activation_bytes() const { return state_.activity.bytes(); }
  std::int64_t workspace_bytes() const { return state_.work.bytes(); }

 private:
  // std::to_string writes the sign bit of a NaN, which means nothing.
  static std::string in_words(double value) {
    return std::isnan(value) ? "nan" : std::to_string(value);
  }

  void check(const batch_view& batch) const {
    if (batch.tokens < 1 || batch.tokens > options_.batch_tokens)
      throw error("batch of " + std::to_string(batch.tokens) + " tokens: expected 1 to " +
                  std::to_string(options_.batch_tokens) +
                  "; raise training_options.batch_tokens or cut the batch");
    if (batch.documents.tokens() != batch.tokens)
      throw error("batch of " + std::to_string(batch.tokens) + " tokens whose segments hold " +
                  std::to_string(batch.documents.tokens()) +
                  "; the last offset must be the former");
    const auto vocabulary = static_cast<std::int32_t>(state_.plan.vocabulary);
    for (std::int64_t i = 0; i < batch.tokens; ++i) {
      const std::int32_t token = batch.inputs[i];
      const std::int32_t target = batch.targets[i];
      if (token < 0 || token >= vocabulary || target < no_target || target >= vocabulary)
        throw error("batch position " + std::to_string(i) + ": token " + std::to_string(token) +
                    " with target " + std::to_string(target) + " lies outside the vocabulary of " +
                    std::to_string(vocabulary));
    }
  }

  void update(double learning_rate, double norm) {
    const double clip =
        options_.clip_norm > 0.0 && norm > options_.clip_norm ? options_.clip_norm / norm : 1.0;
    const auto run_update = [&](std::int64_t begin, std::int64_t end, double decay) {
      const adamw_coefficients<real> c(learning_rate, options_.beta1, options_.beta2,
                                       options_.epsilon, decay, steps_ + 1, clip);
      adamw_update(run_, c, end - begin, state_.weights.data() + begin,
                   state_.gradients.data() + begin, first_moments_.data() + begin,
                   second_moments_.data() + begin, state_.copy_data() + begin);
    };
    run_update(0, state_.plan.matrix_elements, options_.weight_decay);
    run_update(state_.plan.matrix_elements, state_.plan.elements, 0.0);
  }

  Policy run_;
  training_options options_;
  model_state<Policy> state_;
  tensor_arena<real, Policy> first_moments_;
  tensor_arena<real, Policy> second_moments_;
  std::vector<std::int64_t> expert_counts_;
  std::int64_t counts_stride_ = 0;
  std::int64_t steps_ = 0;
};

}  // namespace smelt
