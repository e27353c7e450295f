// SPDX-License-Identifier: Apache-2.0
//
// The engine of one rank: it changes nothing, sends nothing, and refuses what the others refuse.
// And what is built on engines, as far as one rank can show it.
#include "smelt/comm/alone.hpp"

#include <doctest/doctest.h>

#include <vector>

#include "smelt/comm/data_parallel.hpp"
#include "smelt/comm/rank_grid.hpp"
#include "smelt/comm/sharded_optimizer.hpp"
#include "smelt/smelt.hpp"

using namespace smelt;

// What has no exact sum over ranks is no summand, but it travels.
static_assert(!summed_element<bf16> && sent_element<bf16>);
static_assert(!summed_element<std::int32_t> && sent_element<std::int32_t>);
static_assert(!sent_element<const float> && !sent_element<char>);

// Shards: ceil(count / ranks) each, the last short or empty.
static_assert(shards{10, 4}.of(0) == element_range{0, 3});
static_assert(shards{10, 4}.of(3) == element_range{9, 10});
static_assert(shards{5, 4}.of(2) == element_range{4, 5});
static_assert(shards{5, 4}.of(3) == element_range{5, 5});
static_assert(shards{0, 3}.of(1) == element_range{0, 0});
static_assert(shards{std::int64_t{1} << 40, 3}.of(2).end == std::int64_t{1} << 40);

static_assert(grid_shape::of<rank_grid<8, 2>>() == grid_shape{8, 2});

namespace {
const host<> run(1);
}

TEST_CASE("alone: data stay as they are, and all_to_all copies") {
  alone ranks;
  CHECK(ranks.rank() == 0);
  CHECK(ranks.size() == 1);
  std::vector<float> data{1, 2, 3};
  const std::vector<float> before = data;
  ranks.barrier();
  ranks.all_reduce_sum(run, data.data(), 3);
  ranks.reduce_scatter_sum(run, data.data(), 3);
  ranks.all_gather(run, data.data(), 3);
  ranks.broadcast(run, data.data(), 3, 0);
  alone::pending<float> sum;
  ranks.begin_all_reduce_sum(run, data.data(), 3, sum);
  CHECK(sum.advance());
  sum.finish();
  CHECK(data == before);
  std::vector<float> received(3);
  const std::vector<std::int64_t> three{3};
  ranks.all_to_all(run, data.data(), three, received.data(), three);
  CHECK(received == before);
  for (const std::int64_t bytes : ranks.sent().by_kind) CHECK(bytes == 0);
  expect_same(ranks, run, "seed", "4");
}

TEST_CASE("alone refuses what several ranks refuse") {
  alone ranks;
  float value = 0;
  const std::vector<std::int64_t> none, one{1}, two{2}, negative{-1};
  CHECK_THROWS_WITH_AS(ranks.all_gather(run, &value, -2),
                       "all_gather: expected 0 or more elements, found -2", error);
  CHECK_THROWS_WITH_AS(ranks.broadcast(run, &value, 1, 1),
                       "broadcast: expected a root from 0 to 0, found 1", error);
  CHECK_THROWS_WITH_AS(
      ranks.all_to_all(run, &value, none, &value, one),
      "all_to_all: expected one count per rank, 1, found 0 to send and 1 to receive", error);
  CHECK_THROWS_WITH_AS(ranks.all_to_all(run, &value, two, &value, one),
                       "all_to_all: rank 0 sends itself 2 elements and expects 1; the two must "
                       "agree",
                       error);
  CHECK_THROWS_WITH_AS(ranks.all_to_all(run, &value, negative, &value, negative),
                       "all_to_all: expected 0 or more elements, found -1", error);
}

TEST_CASE("a bucket is begun when all of it is complete") {
  alone ranks;
  std::vector<float> gradients(100, 1.0F);
  gradient_reducer<alone, host<>> reducer(ranks, 100, 40 * sizeof(float));
  CHECK(reducer.buckets() == 3);
  reducer.begin(gradients.data());
  reducer.complete(run, {85, 100});
  CHECK(reducer.begun() == 0);
  reducer.complete(run, {30, 50});
  CHECK(reducer.begun() == 0);
  reducer.complete(run, {50, 85});  // the last two buckets at once
  CHECK(reducer.begun() == 2);
  reducer.complete(run, {0, 30});
  CHECK(reducer.begun() == 3);
  reducer.finish(run);
  CHECK(gradients == std::vector<float>(100, 1.0F));
}

TEST_CASE("a gradient is complete once, and within a step (case 26)") {
  alone ranks;
  std::vector<float> gradients(100);
  gradient_reducer<alone, host<>> reducer(ranks, 100, 400);
  CHECK_THROWS_WITH_AS(reducer.complete(run, {0, 10}),
                       "gradient_reducer: expected elements of 0 to 100 between begin and finish, "
                       "found 0 to 10",
                       error);
  reducer.begin(gradients.data());
  CHECK_THROWS_AS(reducer.complete(run, {90, 101}), error);
  reducer.complete(run, {0, 100});
  CHECK_THROWS_WITH_AS(reducer.complete(run, {20, 30}),
                       "gradient_reducer: gradients 20 to 30 were complete before; a shared "
                       "gradient is complete once, after the last addition to it",
                       error);
  reducer.finish(run);
  CHECK_THROWS_WITH_AS(reducer.finish(run), "gradient_reducer: finish before begin", error);
  CHECK_THROWS_AS((gradient_reducer<alone, host<>>(ranks, -1)), error);
  CHECK_THROWS_AS((gradient_reducer<alone, host<>>(ranks, 1, 0)), error);
}

TEST_CASE("grids of one rank, and shapes that do not fit") {
  alone world;
  grid_of_ranks<alone> grid(world, {1, 1});
  CHECK(grid.experts().size() == 1);
  CHECK(grid.own_experts(7) == element_range{0, 7});
  CHECK_THROWS_WITH_AS((grid_of_ranks<alone>(world, {2, 2})),
                       "grid of ranks: 2 expert ranks x 2 replicas takes 4 ranks, found 1; start "
                       "as many, or change the grid",
                       error);
  CHECK_THROWS_WITH_AS((grid_of_ranks<alone>(world, {0, 1})),
                       "grid of ranks: expected at least 1 expert rank and 1 replica, found 0 "
                       "expert ranks x 1 replicas",
                       error);
  grid_shape{8, 2}.check_experts(16);
  CHECK_THROWS_WITH_AS((grid_shape{8, 2}.check_experts(9)),
                       "grid of ranks: 8 expert ranks x 2 replicas leaves an expert rank without "
                       "any of 9 experts; take a number of expert ranks that divides them",
                       error);
}

TEST_CASE("the optimizer shard of one rank is the whole, in two parts") {
  alone ranks;
  optimizer_shard<alone, host<>> shard(ranks, run, 10);
  CHECK(shard.range() == element_range{0, 10});
  std::vector<float> weights(10), gradients(10, 2.0F);
  double squares = 0.0;
  shard.reduce(run, gradients.data(), &squares,
               [](const float* values, std::int64_t count, double* sum) {
                 for (std::int64_t i = 0; i < count; ++i) *sum += values[i] * values[i];
               });
  CHECK(squares == 40.0);
  std::vector<element_range> parts;
  shard.update(run, weights.data(), 6, [&](const element_range& part, float* first, float*) {
    parts.push_back(part);
    CHECK(first == shard.first_moments() + part.begin);
    CHECK(first[0] == 0.0F);
  });
  CHECK(parts == std::vector<element_range>{{0, 6}, {6, 10}});
  CHECK_THROWS_AS(shard.update(run, weights.data(), 11, [](auto...) {}), error);
}
