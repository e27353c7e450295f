// SPDX-License-Identifier: Apache-2.0
//
// Grids over MPI: who is whose neighbour, told by sums of ranks, and shapes refused in words.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "smelt/smelt.hpp"
#include "world.hpp"

using namespace smelt;
using namespace smelt::test;

TEST_CASE("rows share the experts, columns the data") {
  const host<> run(1);
  for (std::int64_t expert_ranks = 1; expert_ranks <= world().size(); ++expert_ranks) {
    if (world().size() % expert_ranks != 0) continue;
    const grid_shape shape{expert_ranks, world().size() / expert_ranks};
    CAPTURE(expert_ranks);
    grid_of_ranks<mpi> grid(world(), shape);
    CHECK(grid.experts().size() == shape.expert_ranks);
    CHECK(grid.replicas().size() == shape.replicas);
    CHECK(grid.experts().rank() == grid.expert_rank());
    CHECK(grid.replicas().rank() == grid.replica());
    CHECK(grid.replica() * expert_ranks + grid.expert_rank() == world().rank());

    // One bit per rank of the world.
    std::int64_t row = std::int64_t{1} << world().rank(), column = row;
    std::int64_t expected_row = 0, expected_column = 0;
    for (std::int64_t i = 0; i < shape.expert_ranks; ++i)
      expected_row |= std::int64_t{1} << (grid.replica() * shape.expert_ranks + i);
    for (std::int64_t i = 0; i < shape.replicas; ++i)
      expected_column |= std::int64_t{1} << (i * shape.expert_ranks + grid.expert_rank());
    grid.experts().all_reduce_sum(run, &row, 1);
    grid.replicas().all_reduce_sum(run, &column, 1);
    CHECK(row == expected_row);
    CHECK(column == expected_column);

    // Every expert lies on one rank of each row.
    std::int64_t owned = grid.own_experts(10).count();
    grid.experts().all_reduce_sum(run, &owned, 1);
    CHECK(owned == 10);
  }
}

TEST_CASE("a grid that does not fit is refused on every rank") {
  const std::string found = std::to_string(world().size());
  CHECK_THROWS_WITH_AS((grid_of_ranks<mpi>(world(), {3, 5})),
                       ("grid of ranks: 3 expert ranks x 5 replicas takes 15 ranks, found " +
                        found + "; start as many, or change the grid")
                           .c_str(),
                       error);
  world().barrier();
}
