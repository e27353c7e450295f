// SPDX-License-Identifier: Apache-2.0
//
// Data parallelism over MPI: each rank's share of four micro-batches, forward and backward, and the
// sum over ranks, against the same four on one rank (cases 22, 26, 28): looped layers, tied heads,
// one cache for all visits, and a rank without a token (three ranks share four as 2, 2 and 0).
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "support/allocation_counter.hpp"
#include "world.hpp"
// Behind the engine, whose types it uses.
#include "replica.hpp"

using namespace smelt;
using namespace smelt::test;

namespace {
template <class Real>
std::vector<Real> copy_of(const Real* data, std::int64_t count) {
  return std::vector<Real>(data, data + count);
}

template <class Model, class Compute>
void check_gradient(std::int64_t bucket_bytes, double tolerance) {
  using real = real_of<Compute>;
  const std::vector<token_batch> batches = four_batches(5);
  const training_options options = test_options(most_tokens);
  const auto nothing = [](const element_range&) {};

  replica<Model, Compute> reference;
  const auto all = share_of(batches, {0, 4});
  reference.accumulate(all, tokens_of(all), options, nothing);

  replica<Model, Compute> mine;
  const auto share = share_of(batches, shards{4, world().size()}.of(world().rank()));
  const step_tokens total = sum_over_ranks(world(), mine.run, tokens_of(share));
  CHECK(total.tokens == tokens_of(all).tokens);
  CHECK(total.counted == tokens_of(all).counted);
  const std::int64_t elements = mine.state.plan.elements;
  gradient_reducer<mpi, host<Compute>> reducer(world(), elements, bucket_bytes);
  // Twice: the second step must not see anything of the first.
  for (int step = 0; step < 2; ++step) {
    reducer.begin(mine.state.gradients.data());
    mine.accumulate(share, total, options,
                    [&](const element_range& range) { reducer.complete(mine.run, range); });
    // Everything was told complete, so no bucket was left for the end.
    CHECK(reducer.begun() == reducer.buckets());
    reducer.finish(mine.run);
  }

  for_each_tensor(mine.state.plan, [&](const std::string& name, const tensor_place& place) {
    CAPTURE(name);
    CHECK(relative_error(copy_of(mine.state.gradients.at(place), place.count()),
                         copy_of(reference.state.gradients.at(place), place.count())) < tolerance);
  });
  // Every rank holds the bits of rank 0.
  const std::vector<real> own = copy_of(mine.state.gradients.data(), elements);
  std::vector<real> first = own;
  world().broadcast(mine.run, first.data(), elements, 0);
  CHECK(std::memcmp(own.data(), first.data(), own.size() * sizeof(real)) == 0);

  double sums[3] = {mine.loss_sum, mine.router.load_balance, mine.router.router_z};
  world().all_reduce_sum(mine.run, sums, 3);
  world().all_reduce_sum(mine.run, mine.counts.data(),
                         static_cast<std::int64_t>(mine.counts.size()));
  CHECK(sums[0] == doctest::Approx(reference.loss_sum).epsilon(tolerance));
  CHECK(sums[1] == doctest::Approx(reference.router.load_balance).epsilon(tolerance));
  CHECK(sums[2] == doctest::Approx(reference.router.router_z).epsilon(tolerance));
  CHECK(mine.counts == reference.counts);
}
}  // namespace

// What more there is to divide: training.cpp.
TEST_CASE("gradients over ranks are those of one rank, in buckets of any size") {
  check_gradient<mixed, double>(4 << 20, 1e-12);
  check_gradient<mixed, double>(256, 1e-12);  // many buckets, most of them over several tensors
}

TEST_CASE("a step that has run once allocates nothing") {
  const host<> run(1);
  const std::int64_t size = world().size(), count = 2048 * size;
  std::vector<float> gradients(static_cast<std::size_t>(count)), received(gradients.size());
  const std::vector<std::int64_t> each(static_cast<std::size_t>(size), 2048);
  gradient_reducer<mpi, host<>> reducer(world(), count, 4096);
  std::int64_t before = 0;
  for (int step = 0; step < 3; ++step) {
    if (step == 2) before = allocations();
    reducer.begin(gradients.data());
    for (std::int64_t i = count; i > 0; i -= 512) reducer.complete(run, {i - 512, i});
    reducer.finish(run);
    world().all_reduce_sum(run, gradients.data(), count);
    world().reduce_scatter_sum(run, gradients.data(), count);
    world().all_gather(run, gradients.data(), count);
    world().all_to_all(run, gradients.data(), each, received.data(), each);
  }
  CHECK(allocations() == before);
}

TEST_CASE("buckets do not change a bit") {
  std::vector<std::vector<float>> found;
  for (const std::int64_t bucket_bytes : {4, 52, 64, 4096, 1 << 20}) {
    std::vector<float> gradients =
        random_values<float>(777, static_cast<std::uint32_t>(world().rank()));
    gradient_reducer<mpi, host<>> reducer(world(), 777, bucket_bytes);
    reducer.begin(gradients.data());
    reducer.complete(host<>(1), {700, 777});
    reducer.complete(host<>(1), {13, 400});
    reducer.finish(host<>(1));  // and what nobody told complete
    found.push_back(gradients);
  }
  for (const auto& gradients : found) CHECK(gradients == found[0]);
}
