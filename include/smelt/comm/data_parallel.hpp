// SPDX-License-Identifier: Apache-2.0
//
// Data parallelism: every rank has all weights and a share of the step's tokens; the gradient of
// the step is the sum of the ranks' gradients.
//
//   before   tokens and counted targets are summed, so that the scale of the loss and the weights
//            of the balancing losses are those of the whole step and no sum is divided later
//   during   gradients are reduced in buckets of about 4 MB as they become complete
//   after    finish(), and only then the norm, clipping and AdamW; sums of losses and expert
//            counts are all-reduced like any array
//
// A gradient is complete when nothing will add to it in this step: in the last micro-batch, when
// the walk back has passed the layer's first visit; a tied embedding, when the walk has ended.
// Nothing is reduced twice: an element completed twice is an error, as its second part would be
// lost or counted once per rank. Buckets never change a bit of the sum. Source: paper section 1 for
// visits; bucketed reduction as in any data-parallel trainer.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "smelt/comm/collectives.hpp"
#include "smelt/error.hpp"

namespace smelt {

/// Tokens of a step: all of them, which weigh the balancing losses, and those with a target, which
/// the mean loss divides by.
struct step_tokens {
  std::int64_t tokens = 0;
  std::int64_t counted = 0;
};

/// The sum over all ranks; `run` is a policy whose memory is the host's.
template <class Engine, class Policy>
step_tokens sum_over_ranks(Engine& ranks, const Policy& run, const step_tokens& own) {
  std::int64_t both[2] = {own.tokens, own.counted};
  ranks.all_reduce_sum(run, both, 2);
  return {both[0], both[1]};
}

/// Sums the gradients of a step over ranks while the rest of them is still being made. Allocates
/// when it is made and in its first step only.
template <class Engine, class Policy>
class gradient_reducer {
 public:
  using real = typename Policy::real;
  /// Sums under way at one time; more would hold more scratch and hide no more of the time.
  static constexpr std::size_t most_under_way = 4;

  /// For `elements` gradients; the engine must outlive it. Every rank takes the same numbers.
  gradient_reducer(Engine& ranks, std::int64_t elements, std::int64_t bucket_bytes = 4 << 20)
      : ranks_(ranks),
        elements_((check(elements, bucket_bytes), elements)),
        bucket_(std::max<std::int64_t>(1, bucket_bytes / static_cast<std::int64_t>(sizeof(real)))),
        missing_(static_cast<std::size_t>((elements + bucket_ - 1) / bucket_)) {}

  std::int64_t buckets() const { return static_cast<std::int64_t>(missing_.size()); }
  /// Buckets whose sum has been begun in this step: how much of it overlaps.
  std::int64_t begun() const { return begun_; }

  /// Begins a step: `gradients` [elements] of this rank, none of them complete.
  void begin(real* gradients) {
    gradients_ = gradients;
    begun_ = 0;
    for (std::int64_t i = 0; i < buckets(); ++i)
      missing_[static_cast<std::size_t>(i)] = bucket_range(i).count();
  }

  /// Nothing will add to these gradients in this step. Every rank says so in the same order, also
  /// one without a token of its own: the engine refuses buckets that do not correspond. Begins
  /// the sum of each bucket that is complete now, and lets the others make progress.
  /// @throws smelt::error outside of a step, or where more becomes complete than there is.
  void complete(const Policy& run, const element_range& range) {
    if (gradients_ == nullptr || range.begin < 0 || range.end > elements_)
      throw error("gradient_reducer: expected elements of 0 to " + std::to_string(elements_) +
                  " between begin and finish, found " + std::to_string(range.begin) + " to " +
                  std::to_string(range.end));
    for (std::int64_t i = range.begin / bucket_; i * bucket_ < range.end; ++i) {
      const element_range bucket = bucket_range(i);
      std::int64_t& missing = missing_[static_cast<std::size_t>(i)];
      const std::int64_t added =
          std::min(range.end, bucket.end) - std::max(range.begin, bucket.begin);
      if (added <= 0) continue;
      if (added > missing)
        throw error("gradient_reducer: gradients " + std::to_string(range.begin) + " to " +
                    std::to_string(range.end) +
                    " were complete before; a shared gradient is complete once, after the last "
                    "addition to it");
      missing -= added;
      if (missing == 0) reduce(run, i);
    }
    for (auto& sum : under_way_) sum.advance();
  }

  /// Reduces what is left. On return all gradients are the sums, the same bits on every rank.
  void finish(const Policy& run) {
    if (gradients_ == nullptr) throw error("gradient_reducer: finish before begin");
    for (std::int64_t i = 0; i < buckets(); ++i)
      if (missing_[static_cast<std::size_t>(i)] > 0) reduce(run, i);
    for (auto& sum : under_way_) sum.finish();
    gradients_ = nullptr;
  }

 private:
  static void check(std::int64_t elements, std::int64_t bucket_bytes) {
    if (elements < 0 || bucket_bytes < 1)
      throw error(
          "gradient_reducer: expected 0 or more elements and buckets of at least 1 byte, found " +
          std::to_string(elements) + " and " + std::to_string(bucket_bytes));
  }
  element_range bucket_range(std::int64_t index) const {
    return {index * bucket_, std::min(elements_, (index + 1) * bucket_)};
  }
  // A sum waits for the one that had its place before; the order is the same on every rank.
  void reduce(const Policy& run, std::int64_t index) {
    const element_range bucket = bucket_range(index);
    auto& place = under_way_[static_cast<std::size_t>(begun_++) % most_under_way];
    place.finish();
    ranks_.begin_all_reduce_sum(run, gradients_ + bucket.begin, bucket.count(), place, index);
    missing_[static_cast<std::size_t>(index)] = 0;
  }

  Engine& ranks_;
  std::int64_t elements_;
  std::int64_t bucket_;
  real* gradients_ = nullptr;
  std::int64_t begun_ = 0;
  std::vector<std::int64_t> missing_;  // of each bucket: gradients that are not complete
  std::array<typename Engine::template pending<real>, most_under_way> under_way_;
};

}  // namespace smelt
