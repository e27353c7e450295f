// SPDX-License-Identifier: Apache-2.0
//
// Dispatch and combine over MPI against one rank that has the tokens of all: the same rows in the
// same order for every expert, and every output back where its token is. Uneven counts, experts
// without a token, ranks without one, all tokens to one expert (case 15).
#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "smelt/smelt.hpp"
#include "world.hpp"

using namespace smelt;
using namespace smelt::test;

namespace {
const host<> run(1);
constexpr std::int64_t width = 3;

// Which expert each copy of a rank goes to, in the order in which the copies lie before sorting.
using routing = std::function<std::int64_t(std::int64_t rank, std::int64_t copy)>;

struct one_copy {
  std::int64_t rank, copy, expert;
};

// Copies of a rank, sorted by expert as a stable sort does.
std::vector<one_copy> sorted_copies(std::int64_t rank, std::int64_t copies, const routing& expert) {
  std::vector<one_copy> sorted;
  for (std::int64_t i = 0; i < copies; ++i) sorted.push_back({rank, i, expert(rank, i)});
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const one_copy& a, const one_copy& b) { return a.expert < b.expert; });
  return sorted;
}

// An element says whose it is.
template <class T>
std::vector<T> rows_of_copies(const std::vector<one_copy>& copies) {
  std::vector<T> rows;
  for (const one_copy& c : copies)
    for (std::int64_t j = 0; j < width; ++j)
      rows.push_back(static_cast<T>(static_cast<float>(c.rank * 64 + c.copy * width + j)));
  return rows;
}
template <class T>
std::vector<double> wide(const std::vector<T>& values) {
  std::vector<double> result;
  for (const T& value : values)
    result.push_back(static_cast<double>(static_cast<real_of<T>>(value)));
  return result;
}

template <class T>
void check_exchange(std::int64_t experts, const std::function<std::int64_t(std::int64_t)>& copies,
                    const routing& expert) {
  CAPTURE(experts);
  const std::int64_t own_rank = world().rank();
  expert_exchange<mpi, host<>> exchange(world(), experts);

  // One rank with all tokens, those of rank 0 first.
  std::vector<one_copy> all;
  for (std::int64_t rank = 0; rank < world().size(); ++rank)
    for (std::int64_t i = 0; i < copies(rank); ++i) all.push_back({rank, i, expert(rank, i)});
  std::stable_sort(all.begin(), all.end(),
                   [](const one_copy& a, const one_copy& b) { return a.expert < b.expert; });
  std::vector<one_copy> mine;
  for (const one_copy& c : all)
    if (c.expert >= exchange.own_experts().begin && c.expert < exchange.own_experts().end)
      mine.push_back(c);

  const std::vector<one_copy> here = sorted_copies(own_rank, copies(own_rank), expert);
  std::vector<std::int64_t> counts(static_cast<std::size_t>(experts));
  for (const one_copy& c : here) ++counts[static_cast<std::size_t>(c.expert)];
  // Twice: a plan must not see the one before.
  for (int round = 0; round < 2; ++round) {
    exchange.plan(run, counts.data());
    CHECK(exchange.sent() == static_cast<std::int64_t>(here.size()));
    REQUIRE(exchange.received() == static_cast<std::int64_t>(mine.size()));
    for (std::int64_t e = 0; e < exchange.own_experts().count(); ++e)
      CHECK(exchange.offsets()[static_cast<std::size_t>(e)] ==
            std::count_if(mine.begin(), mine.end(), [&](const one_copy& c) {
              return c.expert < exchange.own_experts().begin + e;
            }));
    const std::vector<T> rows = rows_of_copies<T>(here);
    std::vector<T> received(mine.size() * width);
    exchange.dispatch(run, rows.data(), width, received.data());
    CHECK(wide(received) == wide(rows_of_copies<T>(mine)));

    // Expert e multiplies by e + 1, in numbers that even bf16 holds.
    std::vector<T> outputs(received.size()), expected(rows.size()), combined(rows.size());
    for (std::size_t i = 0; i < received.size(); ++i)
      outputs[i] = static_cast<T>(static_cast<float>(mine[i / width].expert + 1 + 8 * (i % width)));
    for (std::size_t i = 0; i < rows.size(); ++i)
      expected[i] =
          static_cast<T>(static_cast<float>(here[i / width].expert + 1 + 8 * (i % width)));
    exchange.combine(run, outputs.data(), width, combined.data());
    CHECK(wide(combined) == wide(expected));
    // And the rows themselves come back where they were.
    exchange.combine(run, received.data(), width, combined.data());
    CHECK(wide(combined) == wide(rows));
  }
}
}  // namespace

TEST_CASE_TEMPLATE("every row goes to its expert and back", T, float, double, bf16) {
  const auto spread = [](std::int64_t rank, std::int64_t copy) {
    return (copy * 5 + rank * 3 + copy * copy) % 7;
  };
  check_exchange<T>(
      7, [](std::int64_t rank) { return 9 + 4 * rank; }, spread);
  // Rank 1 and rank 2 have no token.
  check_exchange<T>(
      7, [](std::int64_t rank) { return rank % 3 == 0 ? std::int64_t{8} : 0; }, spread);
  // All to the last expert; nobody has a token; fewer experts than ranks.
  check_exchange<T>(
      8, [](std::int64_t) { return 6; }, [](std::int64_t, std::int64_t) { return 7; });
  check_exchange<T>(
      4, [](std::int64_t) { return 0; }, spread);
  check_exchange<T>(
      1, [](std::int64_t rank) { return rank; }, [](std::int64_t, std::int64_t) { return 0; });
}

TEST_CASE("activations sent are those of the accounting") {
  // 24 tokens of 2 copies per rank, dealt evenly to 12 experts: what traffic_per_step assumes.
  struct body : transformer<hidden<24>, mha<3, 8>, moe<12, 2, 8>, stack<plain<1>>> {};
  const auto expected = [&] {
    switch (world().size()) {
      case 1:
        return traffic_per_step<body, rank_grid<1>>(24);
      case 2:
        return traffic_per_step<body, rank_grid<2>>(24);
      case 3:
        return traffic_per_step<body, rank_grid<3>>(24);
      default:
        return traffic_per_step<body, rank_grid<4>>(24);
    }
  }();
  REQUIRE(world().size() <= 4);
  expert_exchange<mpi, host<>> exchange(world(), 12);
  const std::vector<std::int64_t> counts(12, 4);
  exchange.plan(run, counts.data());
  std::vector<bf16> rows(48 * 24), received(static_cast<std::size_t>(exchange.received() * 24));
  const std::int64_t before = world().sent().of(collective::all_to_all);
  exchange.dispatch(run, rows.data(), 24, received.data());
  const std::int64_t middle = world().sent().of(collective::all_to_all);
  exchange.combine(run, received.data(), 24, rows.data());
  CHECK(middle - before == expected.dispatch_forward);
  CHECK(world().sent().of(collective::all_to_all) - middle == expected.combine_forward);
}

TEST_CASE("bad counts and widths are refused before anything is sent") {
  expert_exchange<mpi, host<>> exchange(world(), 2);
  const std::vector<std::int64_t> bad{1, -3}, none{0, 0};
  CHECK_THROWS_WITH_AS(exchange.plan(run, bad.data()),
                       "expert_exchange: expected 0 or more copies for expert 1, found -3", error);
  exchange.plan(run, none.data());
  float value = 0;
  CHECK_THROWS_WITH_AS(exchange.dispatch(run, &value, 0, &value),
                       "expert_exchange: expected rows of at least 1 element, found 0", error);
  using exchange_of_none = expert_exchange<mpi, host<>>;
  CHECK_THROWS_AS(exchange_of_none(world(), 0), error);
}
