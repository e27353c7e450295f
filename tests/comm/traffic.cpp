// SPDX-License-Identifier: Apache-2.0
//
// What a training step sends, counted by the engines, against what budget/traffic.hpp says of the
// type: to the byte, for a model whose tensors leave no padding and whose copies spread evenly.
#include <doctest/doctest.h>

#include <span>
#include <vector>

#include "smelt/smelt.hpp"
#include "world.hpp"
// Behind the engine, whose types it uses.
#include "model/small_models.hpp"

using namespace smelt;
using namespace smelt::test;

namespace {
// Every token goes to every expert: R_e equal parts, of which one stays. All tensors are multiples
// of 16 elements, and of 2 and 4 ranks.
using even = language_model<
    transformer<hidden<16>, mha<2, 8>, moe<4, 4, 8>, stack<plain<1>, looped<2, 2>, plain<1>>>,
    vocabulary<32>>;
constexpr std::int64_t tokens = 24;
using full_width = wire_format<storage::float32, storage::float32, storage::float32>;

template <class Grid>
void check_step(bool sharded) {
  CAPTURE(sharded);
  CAPTURE(Grid::expert_ranks);
  const parallel_setting how{Grid::expert_ranks, sharded, false};
  trainer<even, host<>, mpi> t(host<>(1), test_options(tokens), 1, world(), how);
  const token_batch batch = documents_of({10, 14}, static_cast<std::uint32_t>(world().rank()), 32);
  t.step(batch.view());
  const sent_bytes before = t.team().sent();
  t.step(batch.view());
  const sent_bytes after = t.team().sent();
  const auto sent = [&](collective kind) { return after.of(kind) - before.of(kind); };

  const traffic_split expected =
      sharded ? traffic_per_step<even, Grid, full_width, convention::sharded_optimizer>(tokens)
              : traffic_per_step<even, Grid, full_width>(tokens);
  // Beside it: numbers of tokens, sums of losses, expert counts; all of them of 8 bytes,
  // all-reduced.
  const auto all_reduced = [](std::int64_t count) {
    const shards parts{count, world().size()};
    // As the convention has it: the other ranks' parts there, the own part to the others back.
    const std::int64_t own = parts.of(world().rank()).count();
    return 8 * (count - own + (world().size() - 1) * own);
  };
  const std::int64_t statistics = all_reduced(4) + all_reduced(4) + all_reduced(6 * 4);
  if (sharded) {
    CHECK(sent(collective::all_reduce_sum) == statistics);
    CHECK(sent(collective::reduce_scatter_sum) == expected.gradients);
    CHECK(sent(collective::all_gather) == expected.weights);
  } else {
    CHECK(sent(collective::all_reduce_sum) - statistics == expected.gradients);
    CHECK(sent(collective::reduce_scatter_sum) == 0);
    CHECK(sent(collective::all_gather) == 0);
  }
  // Beside the activations: per visit and copy that leaves, its routing weight there and that
  // weight's gradient back, and the counts of each expert elsewhere.
  const std::int64_t elsewhere = Grid::expert_ranks - 1;
  const std::int64_t leaving = tokens * 4 * elsewhere / Grid::expert_ranks;
  const std::int64_t counts = 8 * 4 / Grid::expert_ranks * elsewhere;
  CHECK(sent(collective::all_to_all) == expected.all_to_all() + 6 * (leaving * 8 + counts));
}
}  // namespace

TEST_CASE("a step sends what the type says, to the byte") {
  // 3 ranks divide neither the experts nor the tensors.
  for (const bool sharded : {false, true}) {
    if (world().size() == 1) check_step<rank_grid<1, 1>>(sharded);
    if (world().size() == 2) check_step<rank_grid<1, 2>>(sharded);
    if (world().size() == 2) check_step<rank_grid<2, 1>>(sharded);
    if (world().size() == 4) check_step<rank_grid<1, 4>>(sharded);
    if (world().size() == 4) check_step<rank_grid<2, 2>>(sharded);
    if (world().size() == 4) check_step<rank_grid<4, 1>>(sharded);
  }
}
