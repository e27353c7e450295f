// SPDX-License-Identifier: Apache-2.0
//
// The trainer on several MPI ranks against the trainer on one that has all micro-batches: data
// parallel, experts on several ranks, grids of both, sharded optimizer; gradients of one step, and
// losses, norms and expert counts of 50 steps (cases 22, 23, 26, 28, 30).
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "smelt/train/rank_layout.hpp"
#include "support/allocation_counter.hpp"
#include "world.hpp"
// Behind the engine, whose types it uses.
#include "model/small_models.hpp"

using namespace smelt;
using namespace smelt::test;

namespace {
constexpr std::int64_t most_tokens = 14;
constexpr std::int64_t micro_batches = 12;  // as many for each of 1, 2, 3 or 4 ranks

// Experts that 4 ranks can share unevenly (2, 2, 2, 1), beside a dense layer; a tied head.
using uneven =
    tiny<transformer<hidden<12>, gqa<4, 1, 6>, moe<7, 3, 5, shared<4>>,
                     stack<plain<1, dense<9>>, looped<2, 2>, plain<1>>, qk_norm::full_width>,
         tied>;
// Two feed-forwards with experts of different numbers.
using two_sizes = tiny<
    transformer<hidden<8>, mha<2, 4>, moe<4, 2, 6>, stack<plain<1>, looped<1, 2, moe<8, 1, 5>>>>>;

// Lengths differ, so that a mean of means would not be the mean.
std::vector<token_batch> step_batches(std::uint32_t seed) {
  const std::vector<std::vector<std::int64_t>> lengths{
      {9, 4}, {3, 2}, {1, 11, 2}, {6, 6}, {14}, {2, 2}, {5}, {7, 3}, {4}, {2, 9}, {8, 1}, {13}};
  std::vector<token_batch> batches;
  for (std::size_t i = 0; i < lengths.size(); ++i)
    batches.push_back(documents_of(lengths[i], seed * 100 + static_cast<std::uint32_t>(i)));
  return batches;
}
// This rank's share of them.
std::vector<batch_view> share_of_rank(const std::vector<token_batch>& all) {
  const element_range range = shards{micro_batches, world().size()}.of(world().rank());
  std::vector<batch_view> views;
  for (std::int64_t i = range.begin; i < range.end; ++i)
    views.push_back(all[static_cast<std::size_t>(i)].view());
  return views;
}
std::vector<batch_view> views_of(const std::vector<token_batch>& all) {
  std::vector<batch_view> views;
  for (const token_batch& batch : all) views.push_back(batch.view());
  return views;
}

training_options options_of_run() {
  training_options options = test_options(most_tokens, 50);
  options.clip_norm = 0.25;  // below the norms of the run, so that every step is clipped
  return options;
}

// Every way to divide a model that this number of ranks allows.
template <class Model>
std::vector<parallel_setting> settings() {
  std::vector<parallel_setting> all;
  const auto has_experts_for = [](std::int64_t ranks) {
    return std::ranges::all_of(plan_of<Model>().layers, [ranks](const layer_plan& layer) {
      return layer.ffn.is_dense() || shards{layer.ffn.experts, ranks}.of(ranks - 1).count() > 0;
    });
  };
  for (std::int64_t expert_ranks = 1; expert_ranks <= world().size(); ++expert_ranks)
    if (world().size() % expert_ranks == 0 && has_experts_for(expert_ranks))
      for (const bool sharded : {false, true}) all.push_back({expert_ranks, sharded, false});
  return all;
}

// Elements that this rank holds of a tensor, beside the same elements of a trainer that is alone.
template <class Model, class Policy, class Compare>
void compare_with_alone(trainer<Model, Policy, mpi>& mine, trainer<Model, Policy>& whole,
                        Compare&& compare) {
  const rank_layout& layout = mine.team().layout();
  layout.for_each_part_of(world().rank(), kept_array::weights,
                          [&](const std::string& name, const tensor_place& place,
                              const std::vector<tensor_part>& parts) {
                            for (const tensor_part& part : parts)
                              compare(name, part.offset, place.offset + part.first, part.count);
                          });
  static_cast<void>(whole);
}

template <class Model, class Compute>
void check_gradient(const parallel_setting& how, recomputation recompute, double tolerance) {
  CAPTURE(how.expert_ranks);
  CAPTURE(how.sharded_optimizer);
  host<Compute> run(1);
  run.set_recompute(recompute);
  trainer<Model, host<Compute>, mpi> mine(run, options_of_run(), 7, world(), how);
  trainer<Model, host<Compute>> whole(host<Compute>(1), options_of_run(), 7);
  const auto batches = step_batches(3);
  // Twice: the second must not see anything of the first.
  for (int round = 0; round < 2; ++round) {
    const auto found = mine.accumulate(share_of_rank(batches));
    const auto expected = whole.accumulate(views_of(batches));
    CHECK(found.tokens == expected.tokens);
    CHECK(found.loss == doctest::Approx(expected.loss).epsilon(tolerance));
    CHECK(found.norm == doctest::Approx(expected.norm).epsilon(tolerance));
    CHECK(found.load_balance == doctest::Approx(expected.load_balance).epsilon(tolerance));
    CHECK(found.router_z == doctest::Approx(expected.router_z).epsilon(tolerance));
    CHECK(std::ranges::equal(mine.expert_counts(), whole.expert_counts()));
  }
  const auto* own = mine.state().gradients.data();
  const auto* all = whole.state().gradients.data();
  const auto* weights = mine.state().weights.data();
  const auto* all_weights = whole.state().weights.data();
  compare_with_alone(
      mine, whole, [&](const std::string& name, std::int64_t at, std::int64_t of, std::int64_t n) {
        CAPTURE(name);
        // The same start, whoever holds it.
        CHECK(std::equal(weights + at, weights + at + n, all_weights + of));
        // A sharded gradient is whole on its owner alone.
        if (how.sharded_optimizer) return;
        double error = 0.0, size = 0.0;
        for (std::int64_t i = 0; i < n; ++i) {
          error = std::max(error, std::abs(double{own[at + i]} - double{all[of + i]}));
          size = std::max(size, std::abs(double{all[of + i]}));
        }
        CHECK(error <= tolerance * std::max(size, 1e-3));
      });
}
}  // namespace

TEST_CASE_TEMPLATE("gradients of a step over ranks are those of one rank, in double", Model,
                   looped_moe, shared_expert, mixed, uneven, two_sizes) {
  for (const parallel_setting& how : settings<Model>())
    check_gradient<Model, double>(how, recomputation::none, 1e-12);
}
TEST_CASE("gradients over ranks with visits that are computed again") {
  for (const parallel_setting& how : settings<uneven>())
    check_gradient<uneven, double>(how, recomputation::visits, 1e-12);
}
TEST_CASE("gradients over ranks in float") {
  for (const parallel_setting& how : settings<uneven>())
    check_gradient<uneven, float>(how, recomputation::none, 2e-5);
}

namespace {
struct run_result {
  std::vector<double> losses, norms;
  std::vector<float> weights;
};

template <class Trainer, class Share>
run_result train(Trainer& t, Share&& share) {
  run_result result;
  for (std::uint32_t step = 0; step < 50; ++step) {
    const auto batches = step_batches(step % 3);
    const auto views = share(batches);
    const step_report report = t.step(std::span<const batch_view>(views));
    result.losses.push_back(report.loss);
    result.norms.push_back(report.gradient_norm);
  }
  const float* weights = t.state().weights.data();
  result.weights.assign(weights, weights + t.plan().elements);
  return result;
}
double worst_relative(const std::vector<double>& found, const std::vector<double>& expected) {
  double worst = 0.0;
  for (std::size_t i = 0; i < found.size(); ++i)
    worst = std::max(worst, std::abs(found[i] / expected[i] - 1.0));
  return worst;
}
}  // namespace

TEST_CASE_TEMPLATE("50 steps over ranks are those of one rank", Model, two_sizes, uneven) {
  trainer<Model, host<>> whole(host<>(1), options_of_run(), 7);
  const run_result expected = train(whole, views_of);
  // It was clipped, and it learned: equal losses of a model that stands still prove nothing.
  CHECK(*std::min_element(expected.norms.begin(), expected.norms.end()) > 0.25);
  CHECK(expected.losses.back() < 0.9 * expected.losses.front());
  run_result replicated;
  for (const parallel_setting& how : settings<Model>()) {
    CAPTURE(how.expert_ranks);
    CAPTURE(how.sharded_optimizer);
    trainer<Model, host<>, mpi> mine(host<>(1), options_of_run(), 7, world(), how);
    const run_result found = train(mine, share_of_rank);
    CHECK(worst_relative(found.losses, expected.losses) < 1e-5);
    // Sharded or not, the same bits.
    if (how.sharded_optimizer) {
      CHECK(found.losses == replicated.losses);
      CHECK(found.norms == replicated.norms);
      CHECK(std::memcmp(found.weights.data(), replicated.weights.data(),
                        found.weights.size() * sizeof(float)) == 0);
    }
    replicated = found;
    // Each rank keeps its part of the state and no more.
    if (how.sharded_optimizer && how.expert_ranks == 1)
      CHECK(mine.optimizer_bytes() <= 8 * (mine.plan().elements / world().size() + 1));
    if (how.expert_ranks > 1) CHECK(mine.weight_bytes() < whole.weight_bytes());
  }
}

TEST_CASE("in bf16 the experts of other ranks give the bits of one's own") {
  // One rank's loss of the first step, whose weights are the same, differs by the sum alone.
  const auto batches = step_batches(1);
  trainer<uneven, host<bf16>> whole(host<bf16>(1), options_of_run(), 7);
  const auto expected = whole.accumulate(views_of(batches));
  for (const parallel_setting& how : settings<uneven>()) {
    trainer<uneven, host<bf16>, mpi> mine(host<bf16>(1), options_of_run(), 7, world(), how);
    const auto found = mine.accumulate(share_of_rank(batches));
    CHECK(found.loss == doctest::Approx(expected.loss).epsilon(1e-6));
    CHECK(found.norm == doctest::Approx(expected.norm).epsilon(1e-2));
  }
}

TEST_CASE("a rank without a micro-batch takes part") {
  const auto batches = step_batches(2);
  trainer<shared_expert, host<double>> whole(host<double>(1), options_of_run(), 7);
  const auto expected = whole.accumulate(views_of(batches));
  for (const bool sharded : {false, true}) {
    trainer<shared_expert, host<double>, mpi> mine(host<double>(1), options_of_run(), 7, world(),
                                                   {1, sharded, false});
    // All of them on the last rank.
    std::vector<batch_view> views;
    if (world().rank() == world().size() - 1) views = views_of(batches);
    const auto found = mine.accumulate(views);
    CHECK(found.loss == doctest::Approx(expected.loss).epsilon(1e-12));
    CHECK(found.norm == doctest::Approx(expected.norm).epsilon(1e-12));
  }
}

TEST_CASE("balancing over all ranks is that of one large micro-batch") {
  // One micro-batch a rank of its own length; alone, all of them as one batch.
  std::vector<std::int64_t> all_lengths;
  std::vector<token_batch> parts;
  token_batch joined(4 * most_tokens);
  for (std::int64_t rank = 0; rank < world().size(); ++rank) {
    parts.push_back(documents_of({3 + rank, 10 - rank}, static_cast<std::uint32_t>(40 + rank)));
    const batch_view view = parts.back().view();
    for (std::int64_t d = 0; d < view.documents.count; ++d) {
      const std::int64_t begin = view.documents.offsets[d], end = view.documents.offsets[d + 1];
      joined.add_segment(view.inputs + begin, end - begin, no_target);
    }
  }
  training_options options = options_of_run();
  options.batch_tokens = 4 * most_tokens;
  trainer<looped_moe, host<double>> whole(host<double>(1), options, 7);
  const batch_view one = joined.view();
  const auto expected = whole.accumulate(std::span(&one, 1));
  parallel_setting how{1, false, true};
  trainer<looped_moe, host<double>, mpi> mine(host<double>(1), options, 7, world(), how);
  const batch_view part = parts[static_cast<std::size_t>(world().rank())].view();
  const auto found = mine.accumulate(std::span(&part, 1));
  CHECK(found.load_balance == doctest::Approx(expected.load_balance).epsilon(1e-12));
  CHECK(found.norm == doctest::Approx(expected.norm).epsilon(1e-12));
}

TEST_CASE("a rejected step is rejected by all and changes nothing") {
  const auto batches = step_batches(2);
  const auto views = share_of_rank(batches);
  for (const parallel_setting& how : settings<uneven>()) {
    trainer<uneven, host<>, mpi> mine(host<>(1), options_of_run(), 7, world(), how);
    mine.step(views);
    const float* data = mine.state().weights.data();
    const std::vector<float> before(data, data + mine.plan().elements);
    mine.limit(1e-3, 1e9);
    CHECK_THROWS_AS(mine.step(views), rejected_step);
    CHECK(std::equal(before.begin(), before.end(), data));
    CHECK(mine.steps() == 1);
  }
}

TEST_CASE("a step over ranks that has run once allocates nothing") {
  const auto batches = step_batches(2);
  const auto views = share_of_rank(batches);
  for (const parallel_setting& how : settings<uneven>()) {
    CAPTURE(how.expert_ranks);
    trainer<uneven, host<>, mpi> mine(host<>(1), options_of_run(), 7, world(), how);
    mine.step(views);
    mine.accumulate(views);
    const std::int64_t before = allocations();
    // The same routing: more rows than ever before would have to grow their memory.
    mine.accumulate(views);
    CHECK(allocations() == before);
  }
}
