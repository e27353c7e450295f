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
// On several ranks a step is what all of them submit, each its share of the tokens: what a report
// says is of the whole, and all ranks hold the same bits of every weight that they share.
//
// A step allocates nothing. submit() and finish() take step() apart: the host may prepare and
// submit the next step while a device is still at work on the last. Source: paper section 4;
// constants that it does not print are options.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "smelt/budget/memory.hpp"
#include "smelt/comm/alone.hpp"
#include "smelt/error.hpp"
#include "smelt/exec/captured.hpp"
#include "smelt/model/backward.hpp"
#include "smelt/op/adamw.hpp"
#include "smelt/op/router_bias.hpp"
#include "smelt/train/batch.hpp"
#include "smelt/train/rank_team.hpp"
#include "smelt/train/run_identity.hpp"
#include "smelt/train/step_memory.hpp"
#include "smelt/train/step_report.hpp"

namespace smelt {

namespace detail {
// Free of state: one serves every trainer that is alone.
inline alone one_rank_alone;
}  // namespace detail

/// `Engine` is what several ranks talk through: mpi, nccl, or alone for one.
template <has_head Model, class Policy, class Engine = alone>
class trainer {
 public:
  using compute = typename Policy::compute;
  using real = real_of<compute>;

  /// On one rank.
  trainer(const Policy& run, const training_options& options,
          std::uint64_t seed) requires std::same_as<Engine, alone>
      : trainer(run, options, seed, detail::one_rank_alone, {}) {}

  /// On all ranks of an engine, which must outlive it; every rank makes one with the same
  /// arguments.
  /// @throws smelt::agreed_error where they differ, or where the ranks are no such grid.
  trainer(const Policy& run, const training_options& options, std::uint64_t seed, Engine& ranks,
          const parallel_setting& how = {}) try
      : run_(run),
        options_(options),
        adamw_{options.beta1, options.beta2, options.epsilon, options.weight_decay,
               options.clip_norm},
        team_(checked(ranks, options, seed, how), run, plan_of<Model>(), how),
        state_(run, team_.plan(), options.batch_tokens, seed),
        counts_stride_(state_.plan.most_experts()),
        memory_(run, options.batch_tokens, state_.plan.moe_visits() * counts_stride_) {
    last_counts_.resize(static_cast<std::size_t>(state_.plan.moe_visits() * counts_stride_));
    if (options.router_bias_rate > 0.0) state_.use_router_bias(run);
  } catch (const out_of_memory& e) {
    throw out_of_memory(e.what() + plan_in_words(run, options.batch_tokens));
  }

  /// One step on one batch.
  step_report step(const batch_view& batch) { return step(std::span(&batch, 1)); }

  /// One step on several micro-batches. Throws smelt::error, weights untouched, where a token lies
  /// outside the vocabulary or the loss is not a number.
  step_report step(std::span<const batch_view> micro_batches) {
    submit(micro_batches);
    return finish();
  }

  /// Begins a step; at most two may be unfinished. The batches are copied or done with on return.
  void submit(const batch_view& batch) { submit(std::span(&batch, 1)); }
  void submit(std::span<const batch_view> micro_batches) {
    if (unfinished_ == most_unfinished_steps)
      throw error("trainer.submit: " + std::to_string(unfinished_) +
                  " steps are unfinished; call finish() first");
    step_report& report = reports_[steps_ % static_cast<std::int64_t>(most_unfinished_steps)];
    report = stage(micro_batches);
    const auto whole_step = [&] {
      gradient(micro_batches.size());
      update();
    };
    if (team_.can_be_captured())
      captured_(run_, key_, whole_step);
    else
      whole_step();
    memory_.collect(run_);
    ++unfinished_;
    ++steps_;
  }

  /// Waits for the oldest unfinished step. Throws smelt::rejected_step where its loss or gradient
  /// is not a number or beyond limit(); such a step has changed no weight, and is not counted if
  /// none was submitted after it. To leave its batch out: resume_at(steps() + 1).
  step_report finish() {
    if (unfinished_ == 0) throw error("trainer.finish: no step is unfinished; call submit() first");
    const std::int64_t index = steps_ - static_cast<std::int64_t>(unfinished_);
    const gradient_report found = outcome(index);
    step_report report = reports_[index % static_cast<std::int64_t>(most_unfinished_steps)];
    --unfinished_;
    report.loss = found.loss;
    report.load_balance = found.load_balance;
    report.router_z = found.router_z;
    report.gradient_norm = found.norm;
    if (found.rejected) {
      if (unfinished_ == 0) steps_ = index;
      throw rejected(index, found);
    }
    return report;
  }

  /// From the next step on: a larger mean loss, or a gradient norm before clipping that is larger,
  /// is rejected like one that is no number. Infinity for no limit.
  void limit(double most_loss, double most_gradient_norm) {
    if (!(most_loss > 0.0) || !(most_gradient_norm > 0.0))
      throw error("trainer.limit: expected a loss and a gradient norm above 0, found " +
                  in_words(most_loss) + " and " + in_words(most_gradient_norm) +
                  "; infinity is no limit");
    most_loss_ = most_loss;
    most_gradient_norm_ = most_gradient_norm;
  }

  /// Loss and gradient of a step without the update; for tests and for those who update themselves.
  struct gradient_report {
    std::int64_t tokens = 0;
    double loss = 0.0;
    double norm = 0.0;
    double load_balance = 0.0;
    double router_z = 0.0;
    bool rejected = false;
  };
  gradient_report accumulate(std::span<const batch_view> micro_batches) {
    expect_finished("accumulate");
    step_report& report = reports_[steps_ % static_cast<std::int64_t>(most_unfinished_steps)];
    report = stage(micro_batches);
    gradient(micro_batches.size());
    memory_.collect(run_);
    gradient_report found = outcome(steps_);
    found.tokens = report.tokens;
    if (found.rejected) throw rejected(steps_, found);
    return found;
  }

  /// Loss of this rank's batch without gradient; counts in no statistic of training. Where experts
  /// lie on several ranks, all of them evaluate at the same time.
  evaluation evaluate(const batch_view& batch) {
    expect_finished("evaluate");
    check(batch);
    memory_.stage(run_, std::span(&batch, 1), 1.0, adamw_rates<real>(adamw_, 0.0, 1));
    memory_.clear_sums(run_);
    const batch_view here = memory_.batch(0);
    forward(run_, state_, here, team_);
    evaluate_loss(run_, state_, here, &memory_.sums()->loss_sum);
    memory_.collect(run_);
    return {memory_.wait(run_).sums.loss_sum, batch.counted()};
  }

  std::int64_t steps() const { return steps_; }
  /// Of this rank: its own experts, and all else.
  const model_plan& plan() const { return state_.plan; }
  model_state<Policy>& state() { return state_; }
  const training_options& options() const { return options_; }
  /// The other ranks, and where AdamW's moments lie.
  rank_team<Engine, Policy>& team() { return team_; }
  /// Goes on as if `steps` steps had been taken; for weights and moments that were read back. Call
  /// state().refresh_copy() as well.
  void resume_at(std::int64_t steps) {
    expect_finished("resume_at");
    if (steps < 0)
      throw error("trainer.resume_at: expected 0 or more steps, found " + std::to_string(steps));
    steps_ = steps;
  }
  /// Tokens that went to each expert in the last finished step: [MoE visits in order,
  /// expert_stride()].
  std::span<const std::int64_t> expert_counts() const { return last_counts_; }
  std::int64_t expert_stride() const { return counts_stride_; }
  /// The policy, e.g. to count FLOPs into.
  Policy& policy() { return run_; }

  std::int64_t weight_bytes() const { return state_.weights.bytes() + state_.copy_bytes(); }
  std::int64_t gradient_bytes() const { return state_.gradients.bytes(); }
  std::int64_t optimizer_bytes() const { return team_.optimizer_bytes(); }
  std::int64_t activation_bytes() const { return state_.activity.bytes(); }
  std::int64_t workspace_bytes() const { return state_.work.bytes(); }

 private:
  static Engine& checked(Engine& ranks, const training_options& options, std::uint64_t seed,
                         const parallel_setting& how) {
    options.check();
    if (how.global_balance && options.balance_group_tokens > 0)
      throw agreed_error(
          "parallel_setting.global_balance: expected training_options.balance_group_tokens 0, as "
          "a micro-batch of all ranks is the group, found " +
          std::to_string(options.balance_group_tokens));
    if (ranks.size() > 1) detail::expect_same_run<Model, Policy>(ranks, options, seed, how);
    return ranks;
  }

  // Where memory ran out: what the type says it needs, so that the reader sees what to cut.
  static std::string plan_in_words(const Policy& run, std::int64_t tokens) {
    constexpr std::int64_t p = parameters<Model>;
    constexpr auto compute_bytes = static_cast<std::int64_t>(sizeof(compute));
    const std::int64_t copies = model_state<Policy>::has_copy ? compute_bytes * p : 0;
    const std::int64_t activations = detail::activation_bytes<Model>(
        tokens, compute_bytes, run.recompute() == recomputation::visits);
    const auto words = [](const char* what, std::int64_t bytes) {
      return std::string(what) + " " + std::to_string(bytes);
    };
    return "; the model's memory plan in bytes for " + std::to_string(tokens) +
           " tokens: " + words("weights", 4 * p + copies) + ", " + words("gradients", 4 * p) +
           ", " + words("optimizer", 8 * p) + ", " + words("activations", activations);
  }

  // std::to_string writes the sign bit of a NaN, which means nothing.
  static std::string in_words(double value) {
    return std::isnan(value) ? "nan" : std::to_string(value);
  }
  rejected_step rejected(std::int64_t step, const gradient_report& found) const {
    const std::string both = "step " + std::to_string(step) + ": loss " + in_words(found.loss) +
                             " and gradient norm " + in_words(found.norm);
    if (!std::isfinite(found.loss) || !std::isfinite(found.norm))
      return {step, found.loss, found.norm,
              both + " must be finite; lower the learning rate or lengthen the warmup"};
    return {step, found.loss, found.norm,
            both + " must not be beyond " + in_words(most_loss_) + " and " +
                in_words(most_gradient_norm_) + "; leave the batch out or raise trainer.limit"};
  }
  void expect_finished(const char* who) const {
    if (unfinished_ > 0)
      throw error(std::string("trainer.") + who + ": " + std::to_string(unfinished_) +
                  " steps are unfinished; call finish() first");
  }

  // Checks the inputs of a step and hands them to its memory; what is known before it runs.
  step_report stage(std::span<const batch_view> micro_batches) {
    step_tokens own;
    key_.clear();
    for (const batch_view& batch : micro_batches) {
      check(batch);
      own.tokens += batch.tokens;
      own.counted += batch.counted();
      key_.push_back(batch.tokens);
    }
    const step_tokens all = team_.begin_step(own, key_);
    if (all.counted == 0)
      throw agreed_error("step " + std::to_string(steps_) +
                         ": no token of the batch has a target; feed documents of at least 2 "
                         "tokens");
    total_tokens_ = all.tokens;
    key_.push_back(all.tokens);
    team_.add_to_key(key_);
    step_report report;
    report.tokens = all.tokens;
    report.step = steps_;
    report.learning_rate = options_.schedule.learning_rate(steps_);
    counted_[static_cast<std::size_t>(steps_) % most_unfinished_steps] = all.counted;
    const auto counted = static_cast<double>(all.counted);
    memory_.stage(run_, micro_batches, 1.0 / counted,
                  adamw_rates<real>(adamw_, report.learning_rate, steps_ + 1,
                                    {most_loss_ * counted, most_gradient_norm_}));
    return report;
  }

  // Loss, gradient and its sum of squares of what was staged, over all ranks, and the verdict on
  // them; every size it uses is in key_.
  void gradient(std::size_t micro_batches) {
    state_.gradients.zero();
    memory_.clear_sums(run_);
    router_losses<Policy> losses;
    losses.sums = &memory_.sums()->router;
    losses.expert_counts = memory_.expert_counts();
    losses.counts_stride = counts_stride_;
    losses.setting.balance_coefficient = options_.balance_coefficient;
    losses.setting.z_coefficient = options_.z_coefficient;
    losses.setting.total_tokens = total_tokens_;
    team_.begin_gradient(state_.gradients.data());
    for (std::size_t i = 0; i < micro_batches; ++i) {
      const batch_view batch = memory_.batch(i);
      losses.setting.group_tokens =
          options_.balance_group_tokens > 0 ? options_.balance_group_tokens : batch.tokens;
      team_.begin_pass(i, i + 1 == micro_batches);
      forward(run_, state_, batch, team_);
      backward(run_, state_, batch, memory_.scale(), losses, &memory_.sums()->loss_sum, team_);
    }
    // A rank without a batch takes part in the sums all the same.
    if (micro_batches == 0) complete_all(run_, state_.plan, team_);
    team_.finish_gradient(run_, state_.gradients.data(), &memory_.sums()->squares);
    team_.add_up(run_, memory_.sums(), memory_.expert_counts(),
                 static_cast<std::int64_t>(last_counts_.size()));
    judge_step(run_, memory_.rates(), &memory_.sums()->squares, &memory_.sums()->loss_sum,
               &memory_.sums()->verdict);
  }

  gradient_report outcome(std::int64_t step) {
    const step_outcome& found = memory_.wait(run_);
    std::copy(found.expert_counts.begin(), found.expert_counts.end(), last_counts_.begin());
    gradient_report report;
    report.loss =
        found.sums.loss_sum /
        static_cast<double>(counted_[static_cast<std::size_t>(step) % most_unfinished_steps]);
    report.norm = std::sqrt(found.sums.squares);
    report.load_balance = found.sums.router.load_balance;
    report.router_z = found.sums.router.router_z;
    report.rejected = found.sums.verdict != 0.0;
    return report;
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

  void update() {
    const auto* verdict = &memory_.sums()->verdict;
    team_.update(run_, state_.weights.data(),
                 [&](std::int64_t begin, std::int64_t end, real* first, real* second) {
                   adamw_setting setting = adamw_;
                   if (begin >= state_.plan.matrix_elements) setting.weight_decay = 0.0;
                   adamw_update(run_, setting, memory_.rates(), &memory_.sums()->squares, verdict,
                                end - begin, state_.weights.data() + begin,
                                state_.gradients.data() + begin, first, second,
                                state_.copy_data() + begin);
                 });
    // Of weights that other ranks updated only the masters have come.
    if (team_.setting().sharded_optimizer) state_.refresh_copy(run_);
    if (options_.router_bias_rate == 0.0) return;
    for (const visit_plan& visit : state_.plan.visits) {
      const std::int64_t experts = state_.plan.layer_of(visit).ffn.experts;
      if (experts > 0)
        update_router_bias(run_, memory_.expert_counts() + visit.moe_visit * counts_stride_,
                           experts, options_.router_bias_rate, verdict, state_.router_bias(visit));
    }
  }

  Policy run_;
  training_options options_;
  adamw_setting adamw_;
  rank_team<Engine, Policy> team_;
  model_state<Policy> state_;
  std::int64_t counts_stride_;
  step_memory<Policy> memory_;
  captured<Policy> captured_;
  std::vector<std::int64_t> key_;  // tokens of each micro-batch, and of the step: its shapes
  std::int64_t total_tokens_ = 0;
  double most_loss_ = std::numeric_limits<double>::infinity();
  double most_gradient_norm_ = std::numeric_limits<double>::infinity();
  std::array<step_report, most_unfinished_steps> reports_{};
  std::array<std::int64_t, most_unfinished_steps> counted_{};
  std::vector<std::int64_t> last_counts_;
  std::size_t unfinished_ = 0;
  std::int64_t steps_ = 0;
};

}  // namespace smelt
