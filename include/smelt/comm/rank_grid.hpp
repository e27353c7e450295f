// SPDX-License-Identifier: Apache-2.0
//
// A grid of ranks: groups of R_e expert ranks share the routed experts, R_d replicas of such a
// group share the data. Every rank has tokens of its own, and all weights but routed experts.
//
//            expert rank 0     1     2       world rank = replica R_e + expert rank
//   replica 0           0     1     2       experts():  the row,    for dispatch and combine
//   replica 1           3     4     5       replicas(): the column, for gradients of experts
//                                           world():    all, for every other gradient
//
// A row is consecutive ranks, which a launcher puts on one machine: experts talk at every visit,
// replicas once per step. At compile time the same grid is rank_grid<R_e, R_d> of
// budget/traffic.hpp, which says what it sends.
#pragma once

#include <cstdint>
#include <string>

#include "smelt/comm/collectives.hpp"
#include "smelt/error.hpp"

namespace smelt {

/// The sides of a grid.
struct grid_shape {
  std::int64_t expert_ranks = 1;
  std::int64_t replicas = 1;

  constexpr std::int64_t ranks() const { return expert_ranks * replicas; }
  constexpr bool operator==(const grid_shape&) const = default;

  /// The shape of a type with these two constants, such as rank_grid<8, 2>.
  template <class Grid>
  static constexpr grid_shape of() {
    return {Grid::expert_ranks, Grid::replicas};
  }

  /// @throws smelt::error unless the grid takes exactly `ranks` ranks.
  void check(std::int64_t found) const {
    if (expert_ranks < 1 || replicas < 1)
      throw error("grid of ranks: expected at least 1 expert rank and 1 replica, found " +
                  in_words());
    if (ranks() != found)
      throw error("grid of ranks: " + in_words() + " takes " + std::to_string(ranks()) +
                  " ranks, found " + std::to_string(found) + "; start as many, or change the grid");
  }
  /// @throws smelt::error where an expert rank would have no expert of a layer's `experts`.
  void check_experts(std::int64_t experts) const {
    // ceil(experts / expert_ranks) on each may leave the last one empty, as 9 on 8 do.
    if (shards{experts, expert_ranks}.of(expert_ranks - 1).count() < 1)
      throw error("grid of ranks: " + in_words() + " leaves an expert rank without any of " +
                  std::to_string(experts) +
                  " experts; take a number of expert ranks that divides them");
  }

 private:
  std::string in_words() const {
    return std::to_string(expert_ranks) + " expert ranks x " + std::to_string(replicas) +
           " replicas";
  }
};

/// This rank's place in a grid, and an engine for each of its directions.
template <class Engine>
class grid_of_ranks {
 public:
  /// Every rank of `world` calls with the same shape; `world` must outlive the grid.
  /// @throws smelt::error where the shape does not fit the number of ranks.
  grid_of_ranks(Engine& world, const grid_shape& shape)
      : world_(world),
        shape_((shape.check(world.size()), shape)),
        experts_(world.split(replica(), expert_rank())),
        replicas_(world.split(expert_rank(), replica())) {}

  const grid_shape& shape() const { return shape_; }
  std::int64_t expert_rank() const { return world_.rank() % shape_.expert_ranks; }
  std::int64_t replica() const { return world_.rank() / shape_.expert_ranks; }

  Engine& world() const { return world_; }
  /// The ranks of this replica; their rank is the expert rank.
  Engine& experts() { return experts_; }
  /// The ranks with the same experts; their rank is the replica.
  Engine& replicas() { return replicas_; }

  /// Which of a layer's experts lie on this rank.
  element_range own_experts(std::int64_t experts) const {
    return shards{experts, shape_.expert_ranks}.of(expert_rank());
  }

 private:
  Engine& world_;
  grid_shape shape_;
  Engine experts_;
  Engine replicas_;
};

}  // namespace smelt
