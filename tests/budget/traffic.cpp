// SPDX-License-Identifier: Apache-2.0
//
// Traffic of a step against exchanges that are really carried out between ranks in memory: a ring
// that must end with the right sums, and tokens that travel to the rank of their expert and back.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <smelt/budget/traffic.hpp>
#include <vector>

namespace {

using namespace smelt;

// Elements that each rank sends in a ring all-reduce of `elements` numbers; the first half is a
// reduce-scatter, the second an all-gather. Fails unless every rank ends with the sum.
struct ring_result {
  std::int64_t reduce_scatter = 0;
  std::int64_t all_gather = 0;
};

ring_result ring(std::int64_t elements, std::int64_t ranks) {
  // Shards of equal size, so the last one may carry padding.
  std::int64_t padded = elements;
  while (padded % ranks != 0) ++padded;
  const std::int64_t shard = padded / ranks;
  std::vector<std::vector<std::int64_t>> buffers;
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    buffers.emplace_back(static_cast<std::size_t>(padded), rank + 1);
  }

  std::vector<std::int64_t> sent(static_cast<std::size_t>(ranks), 0);
  const auto pass = [&](std::int64_t first_shard_of_rank, bool add) {
    for (std::int64_t step = 0; step + 1 < ranks; ++step) {
      const auto before = buffers;  // all ranks send at once
      for (std::int64_t rank = 0; rank < ranks; ++rank) {
        const std::int64_t which = (rank + first_shard_of_rank - step + 2 * ranks) % ranks;
        auto& receiver = buffers[static_cast<std::size_t>((rank + 1) % ranks)];
        for (std::int64_t at = which * shard; at < (which + 1) * shard; ++at) {
          const std::int64_t value =
              before[static_cast<std::size_t>(rank)][static_cast<std::size_t>(at)];
          auto& target = receiver[static_cast<std::size_t>(at)];
          target = add ? target + value : value;
          ++sent[static_cast<std::size_t>(rank)];
        }
      }
    }
  };
  // First, rank r ends with the sum of shard r + 1; from there the sums go round.
  ring_result result;
  pass(0, true);
  result.reduce_scatter = sent[0];
  pass(1, false);
  result.all_gather = sent[0] - result.reduce_scatter;

  std::int64_t wrong_sums = 0;
  for (const auto& buffer : buffers) {
    for (const std::int64_t value : buffer) wrong_sums += value != ranks * (ranks + 1) / 2;
  }
  CHECK(wrong_sums == 0);
  for (const std::int64_t count : sent) CHECK(count == sent[0]);
  return result;
}

// Copies that leave rank 0 in one dispatch: `tokens` tokens of top_k copies, dealt evenly to
// experts, which lie in blocks on the ranks.
std::int64_t copies_leaving(std::int64_t tokens, std::int64_t top_k, std::int64_t experts,
                            std::int64_t ranks) {
  std::int64_t leaving = 0;
  for (std::int64_t copy = 0; copy < tokens * top_k; ++copy) {
    const std::int64_t expert = copy % experts;
    leaving += expert / (experts / ranks) != 0;
  }
  return leaving;
}

// 4 executed MoE layers of 3 physical ones, 2 dense ones.
struct mixed : transformer<hidden<12>, gqa<2, 1, 6>, moe<24, 3, 5, shared<7>>,
                           stack<plain<2, dense<30>>, looped<1, 2>, plain<2>>> {};
constexpr std::int64_t routed = 3 * 24 * 3 * 12 * 5;

template <std::int64_t ExpertRanks, std::int64_t Replicas>
void check() {
  constexpr std::int64_t ranks = ExpertRanks * Replicas;
  constexpr std::int64_t tokens = 48;
  CAPTURE(ExpertRanks);
  CAPTURE(Replicas);
  const ring_result replicated = ring(parameters<mixed> - routed, ranks);
  const ring_result experts = ring(routed / ExpertRanks, Replicas);
  const std::int64_t exchange = 4 * copies_leaving(tokens, 3, 24, ExpertRanks) * 12;

  // Bytes: activations and gathered weights 2, gradients 4.
  using grid = rank_grid<ExpertRanks, Replicas>;
  const traffic_split sent = traffic_per_step<mixed, grid>(tokens);
  CHECK(sent.dispatch_forward == exchange * 2);
  CHECK(sent.combine_forward == exchange * 2);
  CHECK(sent.combine_backward == exchange * 2);
  CHECK(sent.dispatch_backward == exchange * 2);
  CHECK(sent.gradients == 4 * (replicated.reduce_scatter + replicated.all_gather +
                               experts.reduce_scatter + experts.all_gather));
  CHECK(sent.weights == 0);

  const traffic_split sharded =
      traffic_per_step<mixed, grid, convention::sharded_optimizer>(tokens);
  CHECK(sharded.gradients == 4 * (replicated.reduce_scatter + experts.reduce_scatter));
  CHECK(sharded.weights == 2 * (replicated.all_gather + experts.all_gather));
  CHECK(sharded.all_to_all() == sent.all_to_all());
}

}  // namespace

TEST_CASE("traffic equals exchanges carried out") {
  check<1, 1>();
  check<1, 2>();
  check<1, 7>();
  check<2, 1>();
  check<4, 1>();
  check<8, 3>();
  check<3, 4>();
  check<24, 2>();
}

TEST_CASE("traffic is sent by each rank: all ranks together send ranks times as much") {
  const traffic_split one = traffic_per_step<mixed, rank_grid<4, 2>>(48);
  const traffic_split all = traffic_per_step<mixed, rank_grid<4, 2>, convention::all_ranks>(48);
  CHECK(all.total() == 8 * one.total());
}
