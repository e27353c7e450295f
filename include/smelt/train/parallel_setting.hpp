// SPDX-License-Identifier: Apache-2.0
//
// How a training step is divided among ranks. Meanings: comm/rank_grid.hpp, data_parallel.hpp,
// expert_parallel.hpp, sharded_optimizer.hpp.
#pragma once

#include <cstdint>
#include <string>

#include "smelt/comm/collectives.hpp"
#include "smelt/comm/rank_grid.hpp"
#include "smelt/error.hpp"

namespace smelt {

/// The defaults are plain data parallelism: each rank has all weights and part of the tokens.
struct parallel_setting {
  /// Ranks that share the experts of a layer; the ranks of the job are a multiple of it.
  std::int64_t expert_ranks = 1;
  /// AdamW's moments and update divided among the ranks that hold the same weights (ZeRO-1).
  bool sharded_optimizer = false;
  /// The balancing loss counts a micro-batch's assignments over all ranks, not over each alone.
  bool global_balance = false;

  /// The grid of a job of `ranks`.
  /// @throws smelt::agreed_error where they do not form one.
  grid_shape grid(std::int64_t ranks) const {
    if (expert_ranks < 1 || ranks % expert_ranks != 0)
      throw agreed_error("parallel_setting.expert_ranks: expected a divisor of " +
                         std::to_string(ranks) + " ranks, found " + std::to_string(expert_ranks) +
                         "; start as many ranks as fit, or change it");
    return {expert_ranks, ranks / expert_ranks};
  }
};

}  // namespace smelt
