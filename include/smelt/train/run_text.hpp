// SPDX-License-Identifier: Apache-2.0
//
// run_text: the batches of a run as one rank takes them, and the memory they lie in.
//
//   step s   batch s of token_batches -> this rank's share -> its micro-batches, one behind another
//   held out batch i of held_out_token_batches is rank i mod ranks'
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "smelt/io/message.hpp"
#include "smelt/io/token_set.hpp"
#include "smelt/train/batch.hpp"
#include "smelt/train/run_setting.hpp"
#include "smelt/train/token_batches.hpp"

namespace smelt {

/// Both sets must outlive it.
class run_text {
 public:
  run_text(const run_setting& setting, const token_set& training, const token_set& held_out,
           std::int64_t end_of_text, std::int64_t rank, std::int64_t ranks)
      : batches_(training, end_of_text, setting.shape, setting.seed),
        share_(rank_share(setting.shape, rank, ranks)),
        parts_(setting.micro_batches),
        held_out_(held_out, end_of_text, {largest_part(setting, ranks), setting.shape.context},
                  setting.held_out_tokens),
        rank_(rank),
        ranks_(ranks) {
    if (share_.size() < parts_)
      throw detail::io_error(
          "step of " + std::to_string(setting.shape.sequences) + " sequences",
          "at least 1 for each micro-batch of each rank",
          std::to_string(ranks) + " ranks with " + std::to_string(parts_) + " micro-batches",
          "take fewer, or more sequences");
    for (std::int64_t i = 0; i < parts_; ++i) memory_.emplace_back(tokens_of(setting, ranks));
    views_.resize(static_cast<std::size_t>(parts_));
  }

  /// Tokens of the largest micro-batch on any rank: what a trainer needs room for.
  static std::int64_t tokens_of(const run_setting& setting, std::int64_t ranks) {
    return largest_part(setting, ranks) * setting.shape.context;
  }

  /// The micro-batches of this rank in a step.
  std::span<const batch_view> step(std::int64_t step) {
    for (std::int64_t i = 0; i < parts_; ++i) {
      const auto place = static_cast<std::size_t>(i);
      batches_.fill(step,
                    {share_.begin + i * share_.size() / parts_,
                     share_.begin + (i + 1) * share_.size() / parts_},
                    memory_[place]);
      views_[place] = memory_[place].view();
    }
    return views_;
  }

  /// Calls use(view, counts) for this rank's share of the held-out batches. Every rank calls as
  /// often, since ranks may meet within a forward pass: one that has none left gets the first
  /// again, which then does not count.
  template <class Use>
  void held_out(Use&& use) {
    for (std::int64_t i = rank_; i - rank_ < held_out_.batches(); i += ranks_) {
      const bool counts = i < held_out_.batches();
      held_out_.fill(counts ? i : 0, memory_.front());
      use(memory_.front().view(), counts);
    }
  }

 private:
  static std::int64_t largest_part(const run_setting& setting, std::int64_t ranks) {
    const std::int64_t share = (setting.shape.sequences + ranks - 1) / ranks;
    return (share + setting.micro_batches - 1) / setting.micro_batches;
  }

  token_batches batches_;
  sequence_range share_;
  std::int64_t parts_;
  held_out_token_batches held_out_;
  std::int64_t rank_;
  std::int64_t ranks_;
  std::vector<token_batch> memory_;
  std::vector<batch_view> views_;
};

}  // namespace smelt
