// SPDX-License-Identifier: Apache-2.0
//
// The paper's training protocol as a value: one stable phase and cosine-decay branches from it.
//
//   stable phase   196,075 steps of 256 x 4096 tokens             batches [0, 196,075)
//   branch at s    ceil(10e9 / (256 * 4096)) = 9,537 steps        batches [s, s + 9,537)
//                  s = 10,000  20,000  50,000  100,000  150,000  196,075
//
// Convention for data: the batch of a step has the step's own number, in the stable phase and in
// its branches. So a branch draws what comes next: the tokens are fresh, as the stable run drew
// [0, s) before the branch point and nothing of what follows. The stable run goes on to draw
// [s, ...) itself, as if there were no branch; a corpus needs 205,612 batches, not 253,297. Two
// models of a pair, with the same seed, see the same sequence in every step of every branch.
//
// A branch starts from the stable run's checkpoint at s with its moments, and its steps go on being
// counted from there. Source: paper section 4; peak rate and warmup are not printed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "smelt/error.hpp"
#include "smelt/train/schedule.hpp"

namespace smelt {

/// One decay of a stable run. Steps are counted from the start of the stable run.
struct training_branch {
  std::int64_t first_step = 0;  ///< the stable run's steps before it: its checkpoint
  std::int64_t steps = 0;       ///< of the decay

  constexpr std::int64_t last_step() const { return first_step + steps; }

  /// The batch of a local step, 0 to steps - 1; see the convention above.
  constexpr std::int64_t batch(std::int64_t local_step) const { return first_step + local_step; }

  /// The rate at the trainer's step numbers: the stable run's own up to the branch point, then the
  /// cosine, whose first step is already below the peak and whose last has the last fraction.
  /// @throws smelt::error where the stable schedule decays itself, ends before the branch point or
  ///         warms up beyond it.
  warmup_stable_decay schedule(const warmup_stable_decay& stable,
                               double last_fraction = 0.0) const {
    if (stable.decay_steps != 0 || stable.steps < first_step || stable.warmup_steps > first_step)
      throw error("branch at step " + std::to_string(first_step) +
                  ": expected a stable schedule without decay that reaches it at its peak, found " +
                  "warmup " + std::to_string(stable.warmup_steps) + ", decay " +
                  std::to_string(stable.decay_steps) + " and " + std::to_string(stable.steps) +
                  " steps; shorten the warmup or move the branch");
    warmup_stable_decay decaying = stable;
    decaying.steps = last_step();
    decaying.decay_steps = steps;
    decaying.last_fraction = last_fraction;
    decaying.check();
    return decaying;
  }

  /// The rate at a local step.
  double learning_rate(std::int64_t local_step, const warmup_stable_decay& stable,
                       double last_fraction = 0.0) const {
    return schedule(stable, last_fraction).learning_rate(first_step + local_step);
  }

  constexpr bool operator==(const training_branch&) const = default;
};

/// A stable phase and its branches. As it stands it is the paper's.
struct training_protocol {
  std::int64_t stable_steps = 196'075;
  std::int64_t sequences = 256;  ///< of a step
  std::int64_t context = 4096;   ///< tokens of a sequence
  /// 10e9 fresh tokens in whole steps, the last one full: rounded up.
  std::int64_t branch_steps = 9'537;
  std::array<std::int64_t, 6> branch_points{10'000, 20'000, 50'000, 100'000, 150'000, 196'075};

  static constexpr std::size_t branches = 6;

  constexpr std::int64_t step_tokens() const { return sequences * context; }
  constexpr training_branch branch(std::size_t index) const {
    return {branch_points[index], branch_steps};
  }
  /// Tokens that a branch's last weights have seen, the stable run's part included: the law's D.
  constexpr std::int64_t tokens(std::size_t index) const {
    return branch(index).last_step() * step_tokens();
  }
  constexpr std::int64_t stable_tokens() const { return stable_steps * step_tokens(); }
  /// Batches that all runs together draw: numbers [0, batches()).
  constexpr std::int64_t batches() const { return branch(branches - 1).last_step(); }

  /// The stable run's schedule; its last step is still at the peak.
  warmup_stable_decay stable_schedule(double peak, std::int64_t warmup_steps) const {
    return {.peak = peak, .warmup_steps = warmup_steps, .decay_steps = 0, .steps = stable_steps};
  }

  /// Demands that tokens are fresh: that no text comes a second time within the protocol.
  /// @param sequences_there  whole sequences of one epoch.
  /// @throws smelt::error with the sequences that are missing.
  void expect_fresh(std::int64_t sequences_there) const {
    const std::int64_t needed = batches() * sequences;
    if (sequences_there < needed)
      throw error("training protocol: expected " + std::to_string(needed) +
                  " sequences of fresh text, found " + std::to_string(sequences_there) +
                  "; name more text or scale the protocol down");
  }

  /// The same protocol of another length, with batches of another shape where one is named. Points
  /// and stable phase are rounded to the nearest step (a half up), the branch length is rounded up;
  /// each is at least 1 step. Tokens follow from the steps: a smaller batch sees fewer.
  /// @throws smelt::error where the factor is not in (0, 1000] or two branch points fall together.
  constexpr training_protocol scaled(double factor, std::int64_t sequences_of_step = 256,
                                     std::int64_t tokens_of_sequence = 4096) const {
    if (!(factor > 0.0 && factor <= 1000.0))
      throw error("training protocol: expected a factor above 0 and at most 1000, found " +
                  std::to_string(factor) + "; 1 is the protocol itself");
    if (sequences_of_step < 1 || tokens_of_sequence < 1)
      throw error("training protocol: expected at least 1 sequence of 1 token, found " +
                  std::to_string(sequences_of_step) + " of " + std::to_string(tokens_of_sequence) +
                  "; choose others");
    const auto nearest = [factor](std::int64_t steps) {
      const auto rounded = static_cast<std::int64_t>(static_cast<double>(steps) * factor + 0.5);
      return rounded < 1 ? std::int64_t{1} : rounded;
    };
    training_protocol other;
    other.stable_steps = nearest(stable_steps);
    other.sequences = sequences_of_step;
    other.context = tokens_of_sequence;
    const double length = static_cast<double>(branch_steps) * factor;
    other.branch_steps = static_cast<std::int64_t>(length);
    if (static_cast<double>(other.branch_steps) < length) ++other.branch_steps;
    for (std::size_t i = 0; i < branches; ++i) {
      other.branch_points[i] = nearest(branch_points[i]);
      if (i > 0 && other.branch_points[i] <= other.branch_points[i - 1])
        throw error("training protocol: expected branch points apart, found two at step " +
                    std::to_string(other.branch_points[i]) + "; use a larger factor");
    }
    return other;
  }

  constexpr bool operator==(const training_protocol&) const = default;
};

/// The protocol of the paper, section 4.
inline constexpr training_protocol paper_protocol{};

// What the paper prints, in tenths of 10^9 tokens: 205 and D = 20.5 31.0 62.4 114.9 167.3 215.6.
static_assert(paper_protocol.scaled(1.0) == paper_protocol);
static_assert(paper_protocol.stable_tokens() / 1'000'000'000 == 205);
static_assert((paper_protocol.branch_steps - 1) * paper_protocol.step_tokens() < 10'000'000'000 &&
              paper_protocol.branch_steps * paper_protocol.step_tokens() >= 10'000'000'000);
static_assert(paper_protocol.branch(5).first_step == paper_protocol.stable_steps);

}  // namespace smelt
