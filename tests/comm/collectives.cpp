// SPDX-License-Identifier: Apache-2.0
//
// Every collective over MPI against what all ranks' inputs, made from seeds, must give: for each
// type, for counts that the ranks do not divide, for none, and past one bucket.
#include <doctest/doctest.h>

#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "op/gradient.hpp"
#include "smelt/smelt.hpp"
#include "world.hpp"

using namespace smelt;
using namespace smelt::test;

namespace {
const host<> run(1);

// Data of a rank, whole numbers for integers.
template <class T>
std::vector<T> data_of(std::int64_t rank, std::int64_t count) {
  return random_values<T>(count, static_cast<std::uint32_t>(17 + rank),
                          std::is_integral_v<T> ? 1e6 : 3.0);
}

// The sum in the order of the ranks, as a loop.
template <class T>
std::vector<T> sum_of_ranks(std::int64_t count) {
  std::vector<T> sum = data_of<T>(0, count);
  for (std::int64_t rank = 1; rank < world().size(); ++rank) {
    const std::vector<T> data = data_of<T>(rank, count);
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += data[i];
  }
  return sum;
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

// Nothing, less than ranks, odd, divisible by 1 to 4, more than a bucket of 4 MB.
const std::vector<std::int64_t> counts{0, 1, 3, 7, 240, 1'200'001};

template <class T>
std::int64_t bytes_of(std::int64_t count) {
  return count * static_cast<std::int64_t>(sizeof(T));
}
}  // namespace

TEST_CASE_TEMPLATE("sums add up in the order of the ranks, bit for bit", T, float, double,
                   std::int64_t) {
  for (const std::int64_t count : counts) {
    CAPTURE(count);
    const std::vector<T> expected = sum_of_ranks<T>(count);
    std::vector<T> data = data_of<T>(world().rank(), count);
    world().all_reduce_sum(run, data.data(), count);
    CHECK(same_bits(data, expected));

    data = data_of<T>(world().rank(), count);
    world().reduce_scatter_sum(run, data.data(), count);
    const element_range own = shards{count, world().size()}.of(world().rank());
    CHECK(same_bits(std::vector<T>(data.begin() + own.begin, data.begin() + own.end),
                    std::vector<T>(expected.begin() + own.begin, expected.begin() + own.end)));
    world().all_gather(run, data.data(), count);
    CHECK(same_bits(data, expected));
  }
}

TEST_CASE("sums on two threads have the bits of one") {
  std::vector<float> one = data_of<float>(world().rank(), 9000), two = one;
  world().all_reduce_sum(host<>(1), one.data(), 9000);
  world().all_reduce_sum(host<>(2), two.data(), 9000);
  CHECK(same_bits(one, two));
}

TEST_CASE("a sum of what is not a number says so, and -0 stays -0") {
  std::vector<float> data{world().rank() == 0 ? std::numeric_limits<float>::quiet_NaN() : 1.0F,
                          -0.0F};
  world().all_reduce_sum(run, data.data(), 2);
  CHECK(std::isnan(data[0]));
  CHECK(std::signbit(data[1]));
}

TEST_CASE("sums under way: several at once, finished in any order, begun again") {
  constexpr std::int64_t count = 5000, sums = 5;
  std::vector<float> data = data_of<float>(world().rank(), count * sums);
  const std::vector<float> expected = sum_of_ranks<float>(count * sums);
  std::vector<mpi::pending<float>> under_way(sums);
  for (std::int64_t i = 0; i < sums; ++i)
    world().begin_all_reduce_sum(run, data.data() + i * count, count, under_way[i]);
  // Every rank in an order of its own.
  for (std::int64_t i = 0; i < sums; ++i) {
    const std::int64_t which = (i * 2 + world().rank()) % sums;
    under_way[which].finish();
    CHECK(under_way[which].advance());
  }
  CHECK(same_bits(data, expected));
  std::vector<float> again = data_of<float>(world().rank(), 10);
  world().begin_all_reduce_sum(run, again.data(), 10, under_way[2]);
  under_way[2].finish();
  CHECK(same_bits(again, sum_of_ranks<float>(10)));
}

TEST_CASE_TEMPLATE("gather and broadcast move what is there", T, float, double, std::int64_t,
                   std::int32_t, bf16, std::byte) {
  for (const std::int64_t count : counts) {
    CAPTURE(count);
    // Bytes that differ from rank to rank; types without arithmetic among them.
    const auto pattern = [&](std::int64_t rank) {
      std::vector<T> values(static_cast<std::size_t>(count));
      auto* bytes = reinterpret_cast<unsigned char*>(values.data());
      for (std::int64_t i = 0; i < bytes_of<T>(count); ++i)
        bytes[i] = static_cast<unsigned char>(i * 31 + rank * 101 + i / 251);
      return values;
    };
    std::vector<T> data = pattern(world().rank()), expected;
    world().all_gather(run, data.data(), count);
    for (std::int64_t rank = 0; rank < world().size(); ++rank) {
      const element_range shard = shards{count, world().size()}.of(rank);
      const std::vector<T> theirs = pattern(rank);
      expected.insert(expected.end(), theirs.begin() + shard.begin, theirs.begin() + shard.end);
    }
    CHECK(same_bits(data, expected));
    for (std::int64_t root = 0; root < world().size(); ++root) {
      data = pattern(world().rank());
      world().broadcast(run, data.data(), count, root);
      CHECK(same_bits(data, pattern(root)));
    }
  }
}

TEST_CASE("all to all with uneven counts: from a to b go (a + 2 b) mod 4, some nothing") {
  const std::int64_t size = world().size(), own = world().rank();
  const auto between = [](std::int64_t a, std::int64_t b) { return (a + 2 * b) % 4; };
  // Element i from a to b is known to both.
  const auto element = [](std::int64_t a, std::int64_t b, std::int64_t i) {
    return static_cast<double>(a * 10'000 + b * 100 + i);
  };
  std::vector<std::int64_t> leaving, coming;
  std::vector<double> sent, expected;
  for (std::int64_t peer = 0; peer < size; ++peer) {
    leaving.push_back(between(own, peer));
    coming.push_back(between(peer, own));
    for (std::int64_t i = 0; i < leaving.back(); ++i) sent.push_back(element(own, peer, i));
    for (std::int64_t i = 0; i < coming.back(); ++i) expected.push_back(element(peer, own, i));
  }
  std::vector<double> received = poisoned<double>(static_cast<std::int64_t>(expected.size()));
  world().all_to_all(run, sent.data(), leaving, received.data(), coming);
  CHECK(received == expected);
}

TEST_CASE("all to all: everything to one rank, the others receive nothing") {
  const std::int64_t size = world().size();
  const bool last = world().rank() == size - 1;
  std::vector<std::int64_t> leaving(static_cast<std::size_t>(size), 0), coming = leaving;
  leaving.back() = 7;
  if (last) std::fill(coming.begin(), coming.end(), 7);
  const std::vector<bf16> sent(7, bf16(static_cast<float>(world().rank())));
  std::vector<bf16> received(static_cast<std::size_t>(last ? 7 * size : 0));
  world().all_to_all(run, sent.data(), leaving, received.data(), coming);
  for (std::size_t i = 0; i < received.size(); ++i)
    CHECK(static_cast<float>(received[i]) == static_cast<float>(i / 7));
}

TEST_CASE("bytes sent are those of the accounting") {
  // Parameters divided by 1, 2, 3 and 4 ranks, so that no shard is padded.
  struct body : transformer<hidden<24>, mha<3, 8>, moe<12, 2, 8>, stack<plain<1>, looped<1, 2>>> {};
  constexpr std::int64_t n = parameters<body>;
  static_assert(n % 12 == 0);
  const auto expected = [&]<class... Options>() {
    switch (world().size()) {
      case 1:
        return traffic_per_step<body, rank_grid<1, 1>, Options...>(0);
      case 2:
        return traffic_per_step<body, rank_grid<1, 2>, Options...>(0);
      case 3:
        return traffic_per_step<body, rank_grid<1, 3>, Options...>(0);
      default:
        REQUIRE(world().size() == 4);
        return traffic_per_step<body, rank_grid<1, 4>, Options...>(0);
    }
  };
  using wide = wire_format<storage::bf16, storage::float32, storage::float32>;
  std::vector<float> data(n, 1.0F);
  const sent_bytes before = world().sent();
  world().all_reduce_sum(run, data.data(), n);
  world().reduce_scatter_sum(run, data.data(), n);
  world().all_gather(run, data.data(), n);
  const auto sent = [&](collective kind) { return world().sent().of(kind) - before.of(kind); };
  CHECK(sent(collective::all_reduce_sum) == expected.operator()<>().gradients);
  const traffic_split sharded = expected.operator()<convention::sharded_optimizer, wide>();
  CHECK(sent(collective::reduce_scatter_sum) == sharded.gradients);
  CHECK(sent(collective::all_gather) == sharded.weights);
  CHECK(sent(collective::broadcast) == 0);
}

TEST_CASE("bad arguments are refused before anything is sent") {
  std::vector<float> data(4);
  CHECK_THROWS_WITH_AS(world().all_reduce_sum(run, data.data(), -1),
                       "all_reduce_sum: expected 0 or more elements, found -1", error);
  CHECK_THROWS_AS(world().broadcast(run, data.data(), 4, world().size()), error);
  CHECK_THROWS_AS(world().all_to_all(run, data.data(), std::vector<std::int64_t>{}, data.data(),
                                     std::vector<std::int64_t>{}),
                  error);
  world().barrier();  // and the ranks still agree on the next call
}

TEST_CASE("ranks of one mind agree") {
  expect_same(world(), run, "architecture", "moe<12, 2, 8>");
  expect_same(world(), run, "nothing", "");
}
