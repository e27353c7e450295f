// SPDX-License-Identifier: Apache-2.0
//
// Optimizer state sharded over ranks: each of r ranks keeps the moments of ceil(n / r) parameters
// and updates these alone.
//
//   gradients   reduce-scattered: a rank gets the sum for its own shard
//   norm        squares of the own shard, summed over the ranks: the norm of the whole gradient,
//               known before anything is clipped
//   update      the own shard of the weights
//   weights     all-gathered: every rank has all of them again
//
// Sent per rank: (r - 1) n / r gradients and as many weights, no more than an all-reduce. Moments
// take 8 n / r bytes in float32 instead of 8 n. Weights travel as they are kept (float32 masters):
// routers and gains are read in that precision, so a bf16 copy is refreshed from them afterwards.
//
// The update is the caller's, as this room knows no op; adamw_update treats every element alike and
// so gives the same bits as on one rank. Source: ZeRO, stage 1 (Rajbhandari et al.).
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "smelt/comm/collectives.hpp"
#include "smelt/error.hpp"
#include "smelt/exec/buffer.hpp"

namespace smelt {

template <class Engine, class Policy>
class optimizer_shard {
 public:
  using real = typename Policy::real;
  using statistic = typename Policy::statistic;

  /// For an arena of `elements` parameters; moments begin at 0. The engine must outlive it. Not
  /// `sharded`: every rank keeps and updates all of them, and sum() and gather() are not called.
  optimizer_shard(Engine& ranks, const Policy& run, std::int64_t elements, bool sharded = true)
      : ranks_(ranks),
        elements_(elements),
        range_(sharded ? shards{elements, ranks.size()}.of(ranks.rank())
                       : element_range{0, elements}),
        sharded_(sharded),
        first_(allocate(run, bytes() / 2, "optimizer")),
        second_(allocate(run, bytes() / 2, "optimizer")) {
    first_.zero();
    second_.zero();
  }

  /// The parameters that this rank updates.
  const element_range& range() const { return range_; }
  /// Moments of range(), what a checkpoint keeps: element i of the arena lies at i - range().begin.
  real* first_moments() const { return reinterpret_cast<real*>(first_.data()); }
  real* second_moments() const { return reinterpret_cast<real*>(second_.data()); }

  std::int64_t bytes() const {
    return 2 * range_.count() * static_cast<std::int64_t>(sizeof(real));
  }

  /// gradients [elements]: the sum over the ranks in range(), nothing of use elsewhere.
  void sum(const Policy& run, real* gradients) {
    ranks_.reduce_scatter_sum(run, gradients, elements_);
  }
  /// weights [elements]: every rank's own range, on every rank.
  void gather(const Policy& run, real* weights) { ranks_.all_gather(run, weights, elements_); }

  /// Sums this rank's gradients with the others' and finds the sum of squares of the whole:
  /// squares_of(const real* values, count, statistic* squares) does so for values of one rank.
  /// Afterwards gradients hold the sums in range(), and nothing of use elsewhere.
  template <class Squares>
  void reduce(const Policy& run, real* gradients, statistic* squares, Squares&& squares_of) {
    sum(run, gradients);
    squares_of(static_cast<const real*>(gradients + range_.begin), range_.count(), squares);
    // In the order of the ranks, like every sum: all of them clip by the same factor.
    ranks_.all_reduce_sum(run, squares, 1);
  }

  /// Calls update_range(part, first, second) for the parts of range() before and from `boundary`
  /// on, as matrices decay and gains do not; then passes the new weights to every rank. The moments
  /// are those of the part. Nothing is called for an empty part.
  template <class Update>
  void update(const Policy& run, real* weights, std::int64_t boundary, Update&& update_range) {
    if (boundary < 0 || boundary > elements_)
      throw error("optimizer_shard: expected a boundary from 0 to " + std::to_string(elements_) +
                  ", found " + std::to_string(boundary));
    const std::int64_t middle = std::clamp(boundary, range_.begin, range_.end);
    for (const element_range& part :
         {element_range{range_.begin, middle}, element_range{middle, range_.end}})
      if (part.count() > 0)
        update_range(part, first_moments() + (part.begin - range_.begin),
                     second_moments() + (part.begin - range_.begin));
    if (sharded_) gather(run, weights);
  }

 private:
  Engine& ranks_;
  std::int64_t elements_;
  element_range range_;
  bool sharded_;
  buffer_of<Policy> first_;
  buffer_of<Policy> second_;
};

}  // namespace smelt
