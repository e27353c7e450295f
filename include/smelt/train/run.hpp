// SPDX-License-Identifier: Apache-2.0
//
// training_run: a whole training run, one stable phase and its branches, on one rank or several;
// wherever it was stopped it goes on.
//
//   FOLDER/run.json                  which run this is; another one is refused
//         /stable/step-00001000      checkpoints of the stable phase, branch points kept for ever
//         /stable/metrics.jsonl      a line per step and evaluation
//         /branch-00001000/...       the same of the branch that begins at step 1000
//         /branch-00001000/endpoint.json, /runs.jsonl   what a scaling law reads
//
// A branch begins from the stable run's checkpoint at its point, with moments and notes, draws the
// batches of its own step numbers (train/branches.hpp) and leaves the stable run alone. Every phase
// is locked by who works on it: several processes may share the branches.
// Source: paper section 4.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "smelt/comm/collectives.hpp"
#include "smelt/train/run_endpoint.hpp"
#include "smelt/train/run_folder.hpp"
#include "smelt/train/run_model.hpp"
#include "smelt/train/run_phase.hpp"
#include "smelt/train/run_together.hpp"

namespace smelt {

/// What a run did.
struct run_result {
  bool is_stopped = false;     ///< by a signal; started again it goes on
  std::int64_t finished = 0;   ///< branches that are finished, also by others
  std::int64_t waiting = 0;    ///< branches whose stable checkpoint is not there yet
  std::int64_t elsewhere = 0;  ///< branches that another process works on
};

/// The text of a run; both sets must outlive it.
struct run_tokens {
  const token_set& training;
  const token_set& held_out;
  std::int64_t end_of_text = 0;
};

/// `Engine` is what the ranks talk through (comm/collectives.hpp); it reaches the host's memory.
template <class Engine>
class training_run {
 public:
  /// Refuses whatever can be refused, on all ranks alike, and makes the folder. Everything passed
  /// must outlive the run.
  /// @throws smelt::agreed_error; nothing was written then.
  training_run(const std::filesystem::path& folder, const run_setting& setting,
               const run_tokens& tokens, const run_subject& subject, Engine& ranks,
               stop_signal& stop)
      : folder_(folder), setting_(setting), subject_(subject), ranks_(ranks), stop_(stop) {
    together(ranks_, control_, [&] {
      setting_.check();
      corpus_ = fingerprint_of(tokens.training);
      text_.emplace(setting_, tokens.training, tokens.held_out, tokens.end_of_text, ranks_.rank(),
                    ranks_.size());
    });
    const nlohmann::ordered_json description =
        run_description(setting_, subject_.architecture, subject_.compute, corpus_,
                        fingerprint_of(tokens.held_out));
    expect_same(ranks_, control_, "the run", description.dump());
    together(ranks_, control_, [&] {
      if (ranks_.rank() == 0) claim_run_folder(folder_, description);
    });
  }

  /// Trains what the setting asks for, or what is left of it. Rank 0 has a listener, or nobody.
  /// @throws smelt::error in one line; agreed_error for all that every rank sees alike.
  run_result go(run_listener* tell = nullptr) {
    tell_ = tell;
    run_result result;
    if (setting_.part != run_part::branches) result.is_stopped = !stable();
    if (setting_.part != run_part::stable)
      for (const training_branch& branch : setting_.branches)
        if (!result.is_stopped) one_branch(branch, result);
    if (setting_.part == run_part::branches &&
        result.waiting == static_cast<std::int64_t>(setting_.branches.size()))
      throw agreed_error((folder_ / "stable").string() +
                         ": expected the checkpoint of a branch point, found none; work on the "
                         "stable phase first");
    together(ranks_, control_, [&] {
      if (ranks_.rank() == 0) result.finished = collect_endpoints(folder_, setting_);
    });
    return result;
  }

 private:
  // Something that rank 0 alone knows.
  template <class Ask>
  bool rank_0_says(Ask&& ask) {
    std::int64_t answer = 0;
    together(ranks_, control_, [&] {
      if (ranks_.rank() == 0) answer = ask() ? 1 : 0;
    });
    ranks_.all_reduce_sum(control_, &answer, 1);
    return answer != 0;
  }

  // Whether this process works on a phase from here on; `lock` is held by rank 0.
  bool takes(const std::filesystem::path& root, std::optional<file_lock>& lock) {
    return rank_0_says([&] {
      std::error_code code;
      std::filesystem::create_directories(root, code);
      lock.emplace(root / "lock");
      return lock->is_taken();
    });
  }

  // A trainer of its own per phase, so that the memory of one is free before the next; nothing
  // where a signal stopped it.
  std::optional<run_state> run_one(const phase_place& place, const warmup_stable_decay& schedule) {
    training_options options = setting_.options;
    options.schedule = schedule;
    options.batch_tokens = run_text::tokens_of(setting_, ranks_.size());
    const std::unique_ptr<run_model> model = subject_.make(options);
    phase_run<Engine> phase(subject_, *model, ranks_, setting_, place,
                            record_of(setting_, schedule, corpus_), *text_, tell_, stop_);
    if (phase.go() == phase_end::stopped) return std::nullopt;
    return phase.state();
  }

  // Whether it is finished, now or before.
  bool stable() {
    phase_place place{"stable", folder_ / "stable", 0, setting_.stable_steps};
    place.keep.last = setting_.keep;
    for (const training_branch& branch : setting_.branches)
      place.keep.branch_points.push_back(branch.first_step);
    std::optional<file_lock> lock;
    if (!takes(place.root, lock))
      throw agreed_error(place.root.string() +
                         ": expected to be the only one at work on the stable phase, found another "
                         "process; wait for it, or work on the branches");
    // Its last checkpoint comes after its last line: there is nothing to do, and no trainer needed.
    if (rank_0_says([&] { return has_checkpoint(place.root, place.last_step); })) return true;
    return run_one(place, setting_.stable_schedule()).has_value();
  }

  void one_branch(const training_branch& branch, run_result& result) {
    const auto says = [&](const std::string& what) {
      if (tell_ != nullptr) tell_->says(branch_name(branch.first_step) + ": " + what);
    };
    if (rank_0_says([&] { return has_endpoint(folder_, branch); })) {
      says("finished before");
      return;
    }
    phase_place place{branch_name(branch.first_step), folder_ / branch_name(branch.first_step),
                      branch.first_step, branch.last_step()};
    place.origin = folder_ / "stable" / checkpoint_name(branch.first_step);
    place.keep.last = setting_.keep;
    if (!rank_0_says([&] { return has_checkpoint(folder_ / "stable", branch.first_step); })) {
      says("waits for step " + std::to_string(branch.first_step) + " of the stable phase");
      ++result.waiting;
      return;
    }
    std::optional<file_lock> lock;
    if (!takes(place.root, lock)) {
      says("another process works on it");
      ++result.elsewhere;
      return;
    }
    const std::optional<run_state> end =
        run_one(place, branch.schedule(setting_.stable_schedule()));
    result.is_stopped = !end;
    if (!end) return;
    together(ranks_, control_, [&] {
      if (ranks_.rank() == 0) write_endpoint(folder_, branch, endpoint_line(branch, *end));
    });
  }

  // What a scaling law reads of a finished branch.
  std::string endpoint_line(const training_branch& branch, const run_state& end) const {
    json_line line;
    line.begin(branch.last_step())
        .text("architecture", setting_.architecture)
        .text("cell", setting_.model)
        .field("flops_per_token", subject_.law_flops_per_token)
        .field("sparsity", subject_.law_sparsity)
        .field("tokens", end.tokens)
        .field("validation_loss", end.validation_loss)
        .digits("flops", end.flops.text())
        .field("parameters", subject_.parameters)
        .field("branch", branch.first_step)
        .field("seed", setting_.seed);
    return std::string(line.end());
  }

  static bool has_checkpoint(const std::filesystem::path& root, std::int64_t step) {
    for (const checkpoint_entry& entry : checkpoints_in(root))
      if (entry.step == step) return true;
    return false;
  }

  std::filesystem::path folder_;
  const run_setting& setting_;
  const run_subject& subject_;
  Engine& ranks_;
  run_listener* tell_ = nullptr;
  stop_signal& stop_;
  const host<float> control_{1};
  std::uint64_t corpus_ = 0;
  std::optional<run_text> text_;
};

}  // namespace smelt
