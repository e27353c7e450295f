// SPDX-License-Identifier: Apache-2.0
//
// phase_run: the loop of one phase, the stable one or a branch: step, metrics, evaluation,
// checkpoint, and what is done about signals and bad steps.
//
//   per step   batch of the step's number -> trainer -> one sum over ranks -> one line of metrics
//   bad step   rejected by the trainer, weights untouched: stop, or note it and take the next batch
//   signal     on any rank: all take a checkpoint after the same step, and the loop returns
//
// Lines of step s, its evaluation among them, are written before the checkpoint of s. Every rank
// walks the same loop; rank 0 alone writes and tells.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "smelt/comm/collectives.hpp"
#include "smelt/exec/policy.hpp"
#include "smelt/train/run_listener.hpp"
#include "smelt/train/run_load.hpp"
#include "smelt/train/run_metrics.hpp"
#include "smelt/train/run_model.hpp"
#include "smelt/train/run_setting.hpp"
#include "smelt/train/run_state.hpp"
#include "smelt/train/run_text.hpp"
#include "smelt/train/stop_signal.hpp"

namespace smelt {

/// Where a phase lies, in steps and on the disk.
struct phase_place {
  std::string name{};            ///< "stable", "branch-00000123"
  std::filesystem::path root{};  ///< of its checkpoints and its metrics
  std::int64_t first_step = 0;
  std::int64_t last_step = 0;
  std::filesystem::path origin{};  ///< the checkpoint that a branch begins from
  retention keep{};
};

/// How a phase ended.
enum class phase_end { finished, stopped };

template <class Engine>
class phase_run {
 public:
  /// All of them must outlive the phase. `tell` is null on all ranks but 0.
  phase_run(const run_subject& subject, run_model& model, Engine& ranks, const run_setting& setting,
            const phase_place& place, training_record record, run_text& text, run_listener* tell,
            stop_signal& stop)
      : subject_(subject),
        model_(model),
        ranks_(ranks),
        setting_(setting),
        place_(place),
        record_(std::move(record)),
        text_(text),
        tell_(tell),
        stop_(stop) {}

  /// What the run knew when the phase ended.
  const run_state& state() const { return state_; }

  /// Goes on from the phase's newest checkpoint, or begins, and trains to the last step or until a
  /// signal comes; a checkpoint of that moment is there when it returns.
  /// @throws smelt::agreed_error where a bad step stops the run; whatever the trainer, the text and
  ///         the disk throw.
  phase_end go() {
    start();
    if (tell_ != nullptr)
      tell_->begins(place_.name, place_.first_step, model_.steps(), place_.last_step);
    bool stopping = meet(0).stops;
    while (model_.steps() < place_.last_step && !stopping) stopping = step();
    // A new run that is stopped at once leaves a checkpoint too.
    checkpoint();
    if (tell_ != nullptr) tell_->ends();
    return model_.steps() < place_.last_step ? phase_end::stopped : phase_end::finished;
  }

 private:
  using clock = std::chrono::steady_clock;

  static double since(clock::time_point start) {
    return std::chrono::duration<double>(clock::now() - start).count();
  }

  // What the ranks tell each other once per step.
  struct met {
    bool stops = false;
    std::int64_t pairs = 0;  // of attention, over all ranks
  };
  met meet(std::int64_t pairs) {
    std::array<std::int64_t, 2> sums{stop_.requested() ? 1 : 0, pairs};
    ranks_.all_reduce_sum(control_, sums.data(), static_cast<std::int64_t>(sums.size()));
    return {sums[0] > 0, sums[1]};
  }

  void start() {
    std::optional<checkpoint_state> found = model_.resume(place_.root, record_);
    if (found) {
      saved_ = found->step;
      state_ = run_state::from(found->record.notes, place_.name);
    } else if (!place_.origin.empty()) {
      // Options and schedule are the branch's own; weights, moments, step and notes are taken over.
      const checkpoint_state origin = model_.load(place_.origin);
      state_ = run_state::from(origin.record.notes, place_.origin.string());
    }
    if (ranks_.rank() == 0) metrics_.emplace(place_.root / "metrics.jsonl", model_.steps());
  }

  // One step with all that belongs to it; whether to stop.
  bool step() {
    const std::span<const batch_view> batches = text_.step(model_.steps());
    std::int64_t pairs = 0;
    for (const batch_view& batch : batches) pairs += batch.documents.pairs();
    model_.limit(state_.losses.limit(setting_.spike_factor),
                 std::numeric_limits<double>::infinity());
    run_step now;
    bool stops = false;
    const clock::time_point start = clock::now();
    try {
      now.report = model_.step(batches);
      now.seconds = since(start);
      const met all = meet(pairs);
      stops = all.stops;
      now.flops = spend(all.pairs);
      accept(now);
    } catch (const rejected_step& bad) {
      const met all = meet(pairs);
      stops = all.stops;
      reject(bad, all.pairs);
    }
    if (is_due(setting_.evaluate_every) || model_.steps() == place_.last_step) evaluate();
    if (is_due(setting_.checkpoint_every) || is_branch_point()) checkpoint();
    return stops;
  }

  bool is_due(std::int64_t every) const { return every > 0 && model_.steps() % every == 0; }
  bool is_branch_point() const {
    const std::vector<std::int64_t>& points = place_.keep.branch_points;
    return std::find(points.begin(), points.end(), model_.steps()) != points.end();
  }

  std::int64_t spend(std::int64_t pairs) {
    const std::int64_t flops = subject_.flops(setting_.shape.tokens(), pairs);
    state_.flops.add(flops);
    return flops;
  }

  // A step that changed the weights.
  void accept(const run_step& now) {
    state_.tokens += setting_.shape.tokens();
    state_.bad_in_a_row = 0;
    state_.losses.accept(now.report.loss);
    if (tell_ != nullptr) tell_->stepped(now);
    if (!metrics_) return;
    const step_report& report = now.report;
    line_.begin(model_.steps())
        .field("tokens", state_.tokens)
        .field("loss", report.loss)
        .field("load_balance", report.load_balance)
        .field("router_z", report.router_z)
        .field("gradient_norm", report.gradient_norm)
        .field("learning_rate", report.learning_rate)
        .digits("flops", state_.flops.text());
    const auto each = [&](auto&& use) {
      each_load(subject_.plan, model_.expert_counts(), model_.expert_stride(), use);
    };
    line_.list("load_ratio", [&](auto add) { each([&](const expert_load& of) { add(of.ratio); }); })
        .list("load_entropy",
              [&](auto add) { each([&](const expert_load& of) { add(of.entropy); }); })
        .field("seconds", now.seconds)
        .field("tokens_per_second", static_cast<double>(setting_.shape.tokens()) / now.seconds);
    metrics_->write(line_.end());
  }

  // The loss of the held-out text, weighted by tokens, over all ranks.
  void evaluate() {
    const clock::time_point start = clock::now();
    double loss = 0.0;
    std::int64_t tokens = 0;
    text_.held_out([&](const batch_view& batch, bool counts) {
      const evaluation found = model_.evaluate(batch);
      if (!counts) return;
      loss += found.loss_sum;
      tokens += found.tokens;
    });
    ranks_.all_reduce_sum(control_, &loss, 1);
    ranks_.all_reduce_sum(control_, &tokens, 1);
    state_.validation_loss = loss / static_cast<double>(tokens);
    if (tell_ != nullptr) tell_->evaluated(model_.steps(), state_.validation_loss);
    if (!metrics_) return;
    line_.begin(model_.steps())
        .field("tokens", state_.tokens)
        .field("validation_loss", state_.validation_loss)
        .field("validation_tokens", tokens)
        .field("seconds", since(start));
    metrics_->write(line_.end());
  }

  // A step that the trainer took back: its batch is passed over, or the run ends here, as if it had
  // not been tried; who goes on meets the same batch again.
  void reject(const rejected_step& bad, std::int64_t pairs) {
    const bool is_too_many = state_.bad_in_a_row >= setting_.most_bad_in_a_row;
    if (setting_.bad_step == on_bad_step::stop || is_too_many) {
      checkpoint();
      throw agreed_error(
          std::string(bad.what()) + "; nothing was learned from it, and " +
          (place_.root / checkpoint_name(model_.steps())).string() + " is the state before it" +
          (setting_.bad_step == on_bad_step::skip
               ? " (" + std::to_string(state_.bad_in_a_row) + " steps before it were skipped)"
               : ""));
    }
    spend(pairs);
    ++state_.bad_steps;
    ++state_.bad_in_a_row;
    model_.pass_over();
    if (metrics_) {
      line_.begin(model_.steps()).field("tokens", state_.tokens).text("skipped", bad.what());
      metrics_->write(line_.end());
    }
    if (tell_ != nullptr) tell_->says(std::string("skipped: ") + bad.what());
  }

  void checkpoint() {
    if (saved_ == model_.steps()) return;
    if (metrics_) metrics_->sync();
    record_.notes = state_.notes();
    model_.save(place_.root, record_, place_.keep);
    saved_ = model_.steps();
  }

  const run_subject& subject_;
  run_model& model_;
  Engine& ranks_;
  const run_setting& setting_;
  const phase_place& place_;
  training_record record_;
  run_text& text_;
  run_listener* tell_;
  stop_signal& stop_;
  const host<float> control_{1};  // of what ranks tell each other: it lies on the host
  run_state state_{};
  json_line line_;
  std::optional<metrics_file> metrics_;
  std::int64_t saved_ = -1;  // the step of the newest checkpoint
};

}  // namespace smelt
