// SPDX-License-Identifier: Apache-2.0
//
// Shards of the optimizer's state over MPI. What trains with them: training.cpp.
#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "smelt/host.hpp"
#include "world.hpp"

using namespace smelt;
using namespace smelt::test;

TEST_CASE("shards of the state cover the arena once") {
  const host<> run(1);
  for (const std::int64_t elements : {0, 1, 5, 1600}) {
    optimizer_shard<mpi, host<>> shard(world(), run, elements);
    std::vector<std::int64_t> owners(static_cast<std::size_t>(elements));
    for (std::int64_t i = shard.range().begin; i < shard.range().end; ++i) owners[i] = 1;
    world().all_reduce_sum(run, owners.data(), elements);
    CHECK(std::count(owners.begin(), owners.end(), 1) == elements);
  }
}
