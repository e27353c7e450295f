// SPDX-License-Identifier: Apache-2.0
//
// run_setting: what a training run is told. A stable phase of constant rate, and branches that
// decay from it; see train/branches.hpp.
//
//   step    `sequences` of `context` tokens, over all ranks and micro-batches
//   warmup  at most up to the first branch point
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "smelt/io/message.hpp"
#include "smelt/train/branches.hpp"
#include "smelt/train/data.hpp"
#include "smelt/train/step_report.hpp"

namespace smelt {

/// What is done about a step whose loss or gradient is not a number or whose loss is a spike. Its
/// weights and moments are as before it either way.
enum class on_bad_step {
  stop,  ///< a checkpoint, one line, exit code 1
  skip   ///< go on with the next batch
};

/// Which part of a run a process works on; several may share the branches.
enum class run_part { all, stable, branches };

/// Everything but the model and the text. The defaults of `options` are the trainer's; batch_tokens
/// and schedule in it are filled in by the run itself.
struct run_setting {
  std::string model{};             ///< its name, as the list of models has it
  std::string architecture{};      ///< for the law: "baseline", "smelt"
  std::uint64_t seed = 1;          ///< of weights and batches
  batch_shape shape{8, 256};       ///< of a whole step
  std::int64_t micro_batches = 1;  ///< of each rank's share
  training_options options{};
  double peak = 1e-3;
  std::int64_t warmup_steps = 0;
  std::int64_t stable_steps = 0;
  std::vector<training_branch> branches{};  ///< in order of their points

  std::int64_t checkpoint_every = 1000;  ///< steps; one at the end of a phase in any case
  std::int64_t keep = 3;                 ///< newest checkpoints of a phase; branch points stay
  std::int64_t evaluate_every = 1000;    ///< steps; 0: at the end of a phase only
  std::int64_t held_out_tokens = 0;      ///< of an evaluation, about; 0: all
  on_bad_step bad_step = on_bad_step::stop;
  double spike_factor = 0.0;            ///< see run_spikes.hpp; 0: no step is a spike
  std::int64_t most_bad_in_a_row = 10;  ///< skipped steps after which the run stops anyway
  run_part part = run_part::all;

  /// Stable phase and branches of a protocol, such as paper_protocol.scaled(0.001, 8, 256).
  void follow(const training_protocol& protocol) {
    shape = {protocol.sequences, protocol.context};
    stable_steps = protocol.stable_steps;
    branches.clear();
    for (std::size_t i = 0; i < training_protocol::branches; ++i)
      branches.push_back(protocol.branch(i));
  }

  /// The step by which the warmup must be over.
  std::int64_t first_decay() const {
    return branches.empty() ? stable_steps : branches.front().first_step;
  }
  /// Batches that the run draws, in all its phases.
  std::int64_t batches() const {
    std::int64_t most = stable_steps;
    for (const training_branch& branch : branches) most = std::max(most, branch.last_step());
    return most;
  }
  /// The stable phase's schedule; a branch's follows from it.
  warmup_stable_decay stable_schedule() const {
    return {.peak = peak, .warmup_steps = warmup_steps, .decay_steps = 0, .steps = stable_steps};
  }

  /// @throws smelt::error, in words of the settings, where they do not fit together.
  void check() const {
    const auto demand = [](bool is_right, const std::string& what, const std::string& expected,
                           std::int64_t found, const std::string& remedy) {
      if (!is_right) throw detail::io_error(what, expected, std::to_string(found), remedy);
    };
    detail::check_shape(shape);
    demand(micro_batches >= 1 && micro_batches <= shape.sequences, "micro-batches",
           "1 to the " + std::to_string(shape.sequences) + " sequences of a step", micro_batches,
           "choose fewer");
    demand(stable_steps >= 1, "stable phase", "at least 1 step", stable_steps, "train longer");
    demand(checkpoint_every >= 1, "steps between checkpoints", "at least 1", checkpoint_every,
           "choose another");
    demand(keep >= 1, "checkpoints to keep", "at least 1", keep, "keep the newest");
    demand(evaluate_every >= 0, "steps between evaluations", "0 or more", evaluate_every,
           "0 evaluates at the end of a phase");
    demand(most_bad_in_a_row >= 0, "bad steps in a row", "0 or more", most_bad_in_a_row,
           "choose another");
    demand(part != run_part::branches || !branches.empty(), "branches", "at least 1", 0,
           "name the steps to branch at");
    std::int64_t before = 0;
    for (const training_branch& branch : branches) {
      demand(branch.first_step > before, "branch points",
             "each after the one before, from 1 on; one after " + std::to_string(before),
             branch.first_step, "put them in order");
      demand(branch.first_step <= stable_steps, "branch points",
             "none after the " + std::to_string(stable_steps) + " steps of the stable phase",
             branch.first_step, "train longer or branch earlier");
      demand(branch.steps >= 1, "branch", "at least 1 step", branch.steps, "decay longer");
      before = branch.first_step;
    }
    demand(warmup_steps >= 0 && warmup_steps <= first_decay(), "warmup",
           "0 to the " + std::to_string(first_decay()) + " steps before " +
               (branches.empty() ? "the end" : "the first branch"),
           warmup_steps, "warm up faster");
    training_options whole = options;
    whole.schedule = stable_schedule();
    whole.check();
  }
};

}  // namespace smelt
