// SPDX-License-Identifier: Apache-2.0
//
// The NCCL engine on several ranks: every collective on device memory and on the host's, for each
// type, uneven and empty shards; sums under way, buckets, the sharded optimizer, recorded steps;
// and the bytes it counts against those that the MPI engine counts for the same calls.
//
// Staging memory is 4 KiB here, so that host data go in many pieces.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "nccl_arrays.cuh"
#include "nccl_suite.hpp"
#include "smelt/exec/cuda/graph.cuh"
#include "smelt/nccl.hpp"

namespace smelt::test {
using namespace nccl_suite;
namespace {

nccl* the_engine = nullptr;
mpi* the_launcher = nullptr;
nccl& world() {
  return *the_engine;
}
mpi& messages() {
  return *the_launcher;
}

// The two places of data; one policy for all cases, as a program has it.
const host<> on_host(1);
const cuda<float>& on_device() {
  static const cuda<float> run;
  return run;
}

// Nothing, fewer than ranks, odd, divided by 1 to 4, and more than one piece of the staging memory.
const std::vector<std::int64_t> counts{0, 1, 3, 7, 240, 5003};

template <class T, class Policy>
void check_sums(const Policy& run) {
  for (const std::int64_t count : counts) {
    CAPTURE(count);
    const std::vector<T> own = data_of<T>(world().rank(), count);
    const std::vector<T> expected = sum_of_ranks<T>(world().size(), count);
    const array<Policy, T> whole(run, own), scattered(run, own);
    world().all_reduce_sum(run, whole.data(), count);
    CHECK(same_bits(whole.values(), expected));

    world().reduce_scatter_sum(run, scattered.data(), count);
    const element_range shard = shards{count, world().size()}.of(world().rank());
    std::vector<T> partly = own;  // the shards of others stay as they were
    std::copy(expected.begin() + shard.begin, expected.begin() + shard.end,
              partly.begin() + shard.begin);
    CHECK(same_bits(scattered.values(), partly));
    world().all_gather(run, scattered.data(), count);
    CHECK(same_bits(scattered.values(), expected));
  }
}

template <class T, class Policy>
void check_moves(const Policy& run) {
  for (const std::int64_t count : counts) {
    CAPTURE(count);
    const array<Policy, T> gathered(run, pattern<T>(world().rank(), count));
    world().all_gather(run, gathered.data(), count);
    std::vector<T> expected;
    for (std::int64_t rank = 0; rank < world().size(); ++rank) {
      const element_range shard = shards{count, world().size()}.of(rank);
      const std::vector<T> theirs = pattern<T>(rank, count);
      expected.insert(expected.end(), theirs.begin() + shard.begin, theirs.begin() + shard.end);
    }
    CHECK(same_bits(gathered.values(), expected));
    for (std::int64_t root = 0; root < world().size(); ++root) {
      const array<Policy, T> data(run, pattern<T>(world().rank(), count));
      world().broadcast(run, data.data(), count, root);
      CHECK(same_bits(data.values(), pattern<T>(root, count)));
    }
  }
}

// From a to b go ((a + 2 b) mod 4) * scale elements, some nothing, each known to both.
template <class T, class Policy>
void check_exchange(const Policy& run, std::int64_t scale) {
  const std::int64_t size = world().size(), own = world().rank();
  const auto between = [&](std::int64_t a, std::int64_t b) {
    return pattern<T>(a * 8 + b, (a + 2 * b) % 4 * scale);
  };
  std::vector<std::int64_t> leaving, coming;
  std::vector<T> sent, expected;
  for (std::int64_t peer = 0; peer < size; ++peer) {
    const std::vector<T> out = between(own, peer), in = between(peer, own);
    leaving.push_back(static_cast<std::int64_t>(out.size()));
    coming.push_back(static_cast<std::int64_t>(in.size()));
    sent.insert(sent.end(), out.begin(), out.end());
    expected.insert(expected.end(), in.begin(), in.end());
  }
  const array<Policy, T> send(run, sent), receive(run, std::vector<T>(expected.size()));
  world().all_to_all(run, send.data(), leaving, receive.data(), coming);
  CHECK(same_bits(receive.values(), expected));
}

}  // namespace

TEST_CASE_TEMPLATE("nccl: sums, scattered and gathered", T, float, double, std::int64_t) {
  check_sums<T>(on_device());
  check_sums<T>(on_host);
}

TEST_CASE_TEMPLATE("nccl: gather, broadcast and exchange move what is there", T, float, double,
                   std::int64_t, std::int32_t, bf16, std::byte) {
  check_moves<T>(on_device());
  check_moves<T>(on_host);
  for (const std::int64_t scale : {0, 1, 700}) {
    check_exchange<T>(on_device(), scale);
    check_exchange<T>(on_host, scale);
  }
}

TEST_CASE("nccl: sums under way: several at once, finished in any order, begun again") {
  constexpr std::int64_t count = 500, sums = 5;
  const cuda<float>& run = on_device();
  const array<cuda<float>, float> data(run, data_of<float>(world().rank(), count * sums));
  std::vector<nccl::pending<float>> under_way(sums);
  for (std::int64_t i = 0; i < sums; ++i)
    world().begin_all_reduce_sum(run, data.data() + i * count, count, under_way[i], i);
  // Another collective meanwhile, and every rank in an order of its own.
  const array<cuda<float>, float> other(run, data_of<float>(world().rank(), 7));
  world().all_reduce_sum(run, other.data(), 7);
  for (std::int64_t i = 0; i < sums; ++i) {
    const std::int64_t which = (i * 2 + world().rank()) % sums;
    if (i % 2 == 0)
      under_way[which].finish();
    else
      while (!under_way[which].advance()) std::this_thread::yield();
    CHECK(under_way[which].advance());
  }
  CHECK(same_bits(data.values(), sum_of_ranks<float>(world().size(), count * sums)));
  CHECK(same_bits(other.values(), sum_of_ranks<float>(world().size(), 7)));
  const array<cuda<float>, float> again(run, data_of<float>(world().rank(), 10));
  world().begin_all_reduce_sum(run, again.data(), 10, under_way[2]);
  under_way[2].finish();
  CHECK(same_bits(again.values(), sum_of_ranks<float>(world().size(), 10)));
}

TEST_CASE("nccl: bytes sent are those of the convention, and those that mpi counts") {
  const std::int64_t ranks = world().size(), n = 240, root = ranks - 1;
  std::vector<float> values(static_cast<std::size_t>(n), 1.0F);
  const array<cuda<float>, float> data(on_device(), values), received(on_device(), values);
  const sent_bytes before = world().sent(), mpi_before = messages().sent();
  const std::vector<std::int64_t> parts(static_cast<std::size_t>(ranks), 3);
  const auto calls = [&](auto& engine, const auto& run, float* from, float* to,
                         std::int64_t count) {
    engine.all_reduce_sum(run, from, count);
    engine.reduce_scatter_sum(run, from, count);
    engine.all_gather(run, from, count);
    engine.broadcast(run, from, count, root);
    engine.all_to_all(run, static_cast<const float*>(from), parts, to, parts);
  };
  calls(world(), on_device(), data.data(), received.data(), n);
  const auto sent = [&](collective kind) { return world().sent().of(kind) - before.of(kind); };
  CHECK(sent(collective::all_reduce_sum) == 2 * (ranks - 1) * n / ranks * 4);
  CHECK(sent(collective::reduce_scatter_sum) == (ranks - 1) * n / ranks * 4);
  CHECK(sent(collective::all_gather) == (ranks - 1) * n / ranks * 4);
  CHECK(sent(collective::broadcast) == (world().rank() == root ? (ranks - 1) * n * 4 : 0));
  CHECK(sent(collective::all_to_all) == (ranks - 1) * 3 * 4);
  // And 7 elements, which most numbers of ranks do not divide.
  calls(world(), on_device(), data.data(), received.data(), 7);
  std::vector<float> other = values;
  for (const std::int64_t count : {n, std::int64_t{7}})
    calls(messages(), on_host, values.data(), other.data(), count);
  for (std::size_t kind = 0; kind < collective_kinds; ++kind)
    CHECK(world().sent().by_kind[kind] - before.by_kind[kind] ==
          messages().sent().by_kind[kind] - mpi_before.by_kind[kind]);
}

TEST_CASE("nccl: buckets of gradients on the device") {
  const cuda<float>& run = on_device();
  for (const std::int64_t bucket_bytes : {52, 4096}) {
    gradient_reducer<nccl, cuda<float>> reducer(world(), 777, bucket_bytes);
    for (std::int64_t step = 0; step < 2; ++step) {
      const array<cuda<float>, float> gradients(run, data_of<float>(world().rank(), 777, step));
      reducer.begin(gradients.data());
      reducer.complete(run, {700, 777});
      reducer.complete(run, {13, 400});
      reducer.finish(run);
      CHECK(same_bits(gradients.values(), sum_of_ranks<float>(world().size(), 777, step)));
    }
  }
}

TEST_CASE("nccl: a sharded optimizer on the device takes the steps of one rank") {
  const cuda<float>& run = on_device();
  constexpr std::int64_t count = 101, boundary = 60;
  const std::int64_t ranks = world().size();
  // One element: weights are whole numbers, so that every step is exact.
  const auto step_of = [](float& weight, float& moment, float gradient, float norm, float factor) {
    moment += gradient;
    weight -= factor * moment + (norm > 0.0F ? 1.0F : 0.0F);
  };
  std::vector<float> expected(count, 5.0F), moments(count, 0.0F);
  const array<cuda<float>, float> weights(run, expected);
  optimizer_shard<nccl, cuda<float>> shard(world(), run, count);
  const array<cuda<float>, float> squares(run, {0.0F});
  for (std::int64_t step = 0; step < 3; ++step) {
    const auto small_data = [&](std::int64_t rank) {
      std::vector<float> values(count);
      for (std::int64_t i = 0; i < count; ++i)
        values[static_cast<std::size_t>(i)] = static_cast<float>((i + rank * 3 + step) % 5);
      return values;
    };
    const array<cuda<float>, float> gradients(run, small_data(world().rank()));
    shard.reduce(run, gradients.data(), squares.data(),
                 [&](const float* values, std::int64_t length, float* into) {
                   std::vector<float> own(static_cast<std::size_t>(length));
                   download(run, values, length, own.data());
                   float sum = 0.0F;
                   for (const float value : own) sum += value * value;
                   upload(run, &sum, 1, into);
                   run.synchronize();
                 });
    shard.update(run, weights.data(), boundary,
                 [&](const element_range& part, float* first, float*) {
                   const auto length = static_cast<std::size_t>(part.count());
                   std::vector<float> w(length), m(length), g(length);
                   download(run, weights.data() + part.begin, part.count(), w.data());
                   download(run, first, part.count(), m.data());
                   download(run, gradients.data() + part.begin, part.count(), g.data());
                   for (std::size_t i = 0; i < length; ++i)
                     step_of(w[i], m[i], g[i], 1.0F, part.begin < boundary ? 2.0F : 1.0F);
                   upload(run, w.data(), part.count(), weights.data() + part.begin);
                   upload(run, m.data(), part.count(), first);
                   run.synchronize();
                 });
    float norm = 0.0F;
    std::vector<float> sum(count, 0.0F);
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      const std::vector<float> theirs = small_data(rank);
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += theirs[i];
    }
    for (std::size_t i = 0; i < sum.size(); ++i) {
      norm += sum[i] * sum[i];
      step_of(expected[i], moments[i], sum[i], 1.0F, i < boundary ? 2.0F : 1.0F);
    }
    CHECK(squares.values()[0] == norm);
    CHECK(same_bits(weights.values(), expected));
  }
}

TEST_CASE("nccl: a step is recorded once and replayed on other data") {
  static_assert(nccl::can_be_captured);
  const cuda<float>& run = on_device();
  constexpr std::int64_t count = 1001;
  const std::int64_t ranks = world().size();
  const array<cuda<float>, float> input(run, std::vector<float>(count)), work(run, input.values());
  const array<cuda<float>, float> received(run,
                                           std::vector<float>(static_cast<std::size_t>(ranks)));
  const std::vector<std::int64_t> one(static_cast<std::size_t>(ranks), 1);
  gradient_reducer<nccl, cuda<float>> reducer(world(), count, 1000);
  captured<cuda<float>> step;
  int bodies = 0;
  for (std::int64_t seed = 0; seed < 4; ++seed) {
    upload(run, data_of<float>(world().rank(), count, seed).data(), count, input.data());
    run.synchronize();
    step(run, {count}, [&] {
      ++bodies;
      cuda_detail::check(cudaMemcpyAsync(work.data(), input.data(), count * sizeof(float),
                                         cudaMemcpyDeviceToDevice, run.stream()),
                         "copy");
      reducer.begin(work.data());
      for (std::int64_t end = count; end > 0; end -= 91) reducer.complete(run, {end - 91, end});
      reducer.finish(run);
      world().reduce_scatter_sum(run, work.data(), count);
      world().all_gather(run, work.data(), count);
      world().all_to_all(run, static_cast<const float*>(work.data()), one, received.data(), one);
    });
    // Sums of sums, which all ranks had alike: `ranks` times them.
    std::vector<float> expected = sum_of_ranks<float>(ranks, count, seed);
    for (float& value : expected) value *= static_cast<float>(ranks);
    CHECK(same_bits(work.values(), expected));
    CHECK(received.values()[0] == expected[static_cast<std::size_t>(world().rank())]);
    world().barrier();
    std::int64_t both = 1;  // control data go between two replays
    world().all_reduce_sum(on_host, &both, 1);
    CHECK(both == ranks);
  }
  CHECK(bodies == 2);  // as it is, and recorded
}

TEST_CASE("nccl: a grid of ranks, ranks of one mind, and control data of the host") {
  grid_of_ranks<nccl> rows(world(), {world().size(), 1}), columns(world(), {1, world().size()});
  const array<cuda<float>, float> data(on_device(), data_of<float>(world().rank(), 9));
  rows.replicas().all_reduce_sum(on_device(), data.data(), 9);  // of one rank
  CHECK(same_bits(data.values(), data_of<float>(world().rank(), 9)));
  columns.replicas().all_reduce_sum(on_device(), data.data(), 9);
  CHECK(same_bits(data.values(), sum_of_ranks<float>(world().size(), 9)));
  CHECK(columns.replicas().rank() == world().rank());
  CHECK(rows.experts().size() == world().size());

  expect_same(world(), on_host, "architecture", "moe<12, 2, 8>");
  const step_tokens total = sum_over_ranks(world(), on_host, {10, world().rank()});
  CHECK(total.tokens == 10 * world().size());
  CHECK(total.counted == world().size() * (world().size() - 1) / 2);
  CHECK(std::string(world().name()) == "nccl");
}

TEST_CASE("nccl: bad arguments and failing calls say so") {
  float* none = nullptr;
  CHECK_THROWS_WITH_AS(world().all_reduce_sum(on_device(), none, -1),
                       "all_reduce_sum: expected 0 or more elements, found -1", error);
  CHECK_THROWS_AS(world().broadcast(on_host, none, 4, world().size()), error);
  CHECK_THROWS_AS(
      world().all_to_all(on_device(), static_cast<const float*>(none), std::vector<std::int64_t>{},
                         none, std::vector<std::int64_t>{}),
      error);
  CHECK_THROWS_AS(world().split(-1, 0), error);
  try {
    detail::expect_nccl(ncclInvalidUsage, "ncclSend", 3, nullptr);
    CHECK(false);
  } catch (const error& e) {
    const std::string text = e.what();
    CHECK(text.find("NCCL: ncclSend: rank 3: expected ncclSuccess, found 5 (") == 0);
    CHECK(text.find('\n') == std::string::npos);
  }
  world().barrier();  // and the ranks still agree on the next call
}

nccl& nccl_world() {
  return world();
}

int with_nccl(mpi& launcher, const std::function<int()>& suite) {
  nccl_options options;
  options.staging_bytes = 4096;
  nccl ranks(launcher, options);
  the_engine = &ranks;
  the_launcher = &launcher;
  return suite();
}

int nccl_fault(const std::string& what) {
  const launched_process process = launched();
  const bool wrong = process.rank == process.ranks - 1;
  const auto hang = [] {
    for (;;) std::this_thread::sleep_for(std::chrono::seconds(1));
  };
  if (what == "missing" && wrong) hang();
  return run_nccl_ranks([&](nccl& ranks) {
    const cuda<float> run;
    const array<cuda<float>, float> data(run, std::vector<float>(64, 1.0F));
    captured<cuda<float>> step;
    if (what == "lost") hang();
    for (int i = 0; i < 3; ++i) {
      // What goes well before must not hide what goes wrong: the third time is a replay.
      if (i == 2 && wrong && what == "killed") std::raise(SIGKILL);
      if (i == 2 && wrong && what == "hanging") std::raise(SIGSTOP);
      if (i == 2 && wrong && what == "own_error") throw error("the disk of this rank is full");
      step(run, {64}, [&] { ranks.all_reduce_sum(run, data.data(), 64); });
      run.synchronize();
    }
    if (what == "other_mind") expect_same(ranks, on_host, "seed", wrong ? "11" : "4");
    // Longer than the timeout: what has ended is not taken for hanging.
    if (what == "nothing") std::this_thread::sleep_for(std::chrono::milliseconds(3800));
    ranks.barrier();
    std::printf("rank %d survived\n", static_cast<int>(ranks.rank()));
    return 0;
  });
}

}  // namespace smelt::test
