// SPDX-License-Identifier: Apache-2.0
//
// The trainer on several MPI ranks against the trainer on one that has all micro-batches: data
// parallel, experts on several ranks, grids of both, sharded optimizer; gradients of one step, and
// losses, norms and expert counts of 50 steps (cases 22, 23, 26, 28, 30).
#include <doctest/doctest.h>

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "support/allocation_counter.hpp"
#include "world.hpp"
// Behind the engine, whose types it uses.
#include "training_suite.hpp"

using namespace smelt;
using namespace smelt::test;

namespace {
std::vector<batch_view> share_of_rank(const std::vector<token_batch>& all) {
  return share_of(all, world().rank(), world().size());
}
template <class Model, class Compute>
void check_gradient(recomputation recompute, double tolerance) {
  host<Compute> run(1);
  run.set_recompute(recompute);
  for (const parallel_setting& how : settings_for<Model>(world().size()))
    check_gradient_over_ranks<Model>(run, world(), how, tolerance);
}
}  // namespace

TEST_CASE_TEMPLATE("gradients of a step over ranks are those of one rank, in double", Model,
                   shared_expert, mixed, uneven, two_sizes, dense_looped) {
  check_gradient<Model, double>(recomputation::none, 1e-12);
}
TEST_CASE("gradients over ranks with visits that are computed again") {
  check_gradient<uneven, double>(recomputation::visits, 1e-12);
}
TEST_CASE("gradients over ranks in float") {
  check_gradient<uneven, float>(recomputation::none, 2e-5);
}

TEST_CASE_TEMPLATE("50 steps over ranks are those of one rank", Model, two_sizes, uneven) {
  trainer<Model, host<>> whole(host<>(1), options_over_ranks(), 7);
  const auto expected = train_steps(whole, 50);
  // It was clipped, and it learned: equal losses of a model that stands still prove nothing.
  CHECK(*std::min_element(expected.norms.begin(), expected.norms.end()) > 0.25);
  CHECK(expected.losses.back() < 0.9 * expected.losses.front());
  check_training_over_ranks<Model>(host<>(1), world(), 50, expected);
}

TEST_CASE("in bf16 the experts of other ranks give the bits of one's own") {
  // One rank's loss of the first step, whose weights are the same, differs by the sum alone.
  const auto batches = step_batches(1);
  trainer<uneven, host<bf16>> whole(host<bf16>(1), options_over_ranks(), 7);
  const auto expected = whole.accumulate(share_of(batches));
  for (const parallel_setting& how : settings_for<uneven>(world().size())) {
    trainer<uneven, host<bf16>, mpi> mine(host<bf16>(1), options_over_ranks(), 7, world(), how);
    const auto found = mine.accumulate(share_of_rank(batches));
    CHECK(found.loss == doctest::Approx(expected.loss).epsilon(1e-6));
    CHECK(found.norm == doctest::Approx(expected.norm).epsilon(1e-2));
  }
}

TEST_CASE("a rank without a micro-batch takes part") {
  const auto batches = step_batches(2);
  trainer<shared_expert, host<double>> whole(host<double>(1), options_over_ranks(), 7);
  const auto expected = whole.accumulate(share_of(batches));
  for (const bool sharded : {false, true}) {
    trainer<shared_expert, host<double>, mpi> mine(host<double>(1), options_over_ranks(), 7,
                                                   world(), {1, sharded, false});
    // All of them on the last rank.
    std::vector<batch_view> views;
    if (world().rank() == world().size() - 1) views = share_of(batches);
    const auto found = mine.accumulate(views);
    CHECK(found.loss == doctest::Approx(expected.loss).epsilon(1e-12));
    CHECK(found.norm == doctest::Approx(expected.norm).epsilon(1e-12));
  }
}

TEST_CASE("balancing over all ranks is that of one large micro-batch") {
  // One micro-batch a rank of its own length; alone, all of them as one batch.
  std::vector<token_batch> parts;
  token_batch joined(4 * most_step_tokens);
  for (std::int64_t rank = 0; rank < world().size(); ++rank) {
    parts.push_back(documents_of({3 + rank, 10 - rank}, static_cast<std::uint32_t>(40 + rank)));
    const batch_view view = parts.back().view();
    for (std::int64_t d = 0; d < view.documents.count; ++d) {
      const std::int64_t begin = view.documents.offsets[d], end = view.documents.offsets[d + 1];
      joined.add_segment(view.inputs + begin, end - begin, no_target);
    }
  }
  training_options options = options_over_ranks();
  options.batch_tokens = 4 * most_step_tokens;
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
  for (const parallel_setting& how : settings_for<uneven>(world().size())) {
    trainer<uneven, host<>, mpi> mine(host<>(1), options_over_ranks(), 7, world(), how);
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
  for (const parallel_setting& how : settings_for<uneven>(world().size())) {
    CAPTURE(how.expert_ranks);
    trainer<uneven, host<>, mpi> mine(host<>(1), options_over_ranks(), 7, world(), how);
    mine.step(views);
    mine.accumulate(views);
    const std::int64_t before = allocations();
    // The same routing: more rows than ever before would have to grow their memory.
    mine.accumulate(views);
    CHECK(allocations() == before);
  }
}

TEST_CASE("ranks that disagree are refused by all, in words") {
  if (world().size() == 1) return;
  const bool is_last = world().rank() == world().size() - 1;
  const std::string last = "rank " + std::to_string(world().size() - 1) + ": ";
  // What all of them say; every rank comes back from it.
  const auto complaint = [](auto&& make) {
    try {
      make();
    } catch (const agreed_error& e) {
      return std::string(e.what());
    }
    return std::string("nothing");
  };
  const auto make = [](auto model, const training_options& options, std::uint64_t seed,
                       const parallel_setting& how) {
    trainer<decltype(model), host<>, mpi>(host<>(1), options, seed, world(), how);
  };
  const training_options options = options_over_ranks();
  CHECK(complaint([&] { make(uneven{}, options, is_last ? 8 : 7, {}); }) ==
        last +
            "seed: expected '7' as on rank 0, found '8'; start all ranks with the same program "
            "and options");
  training_options other = options;
  if (is_last) other.beta2 = 0.99;
  const std::string of_options = complaint([&] { make(uneven{}, other, 7, {}); });
  CHECK(of_options.starts_with(last + "options: expected 'peak=0.0030000000000000001 "));
  CHECK(of_options.find(" beta2=0.98999999999999999 ") != std::string::npos);
  CHECK(complaint([&] {
          make(uneven{}, options, 7, {1, is_last, false});
        }).starts_with(last + "parallel setting: expected 'expert_ranks=1 sharded_optimizer=0 "));
  // Another type is another program, here in one.
  const std::string of_model = complaint([&] {
    if (is_last)
      make(two_sizes{}, options, 7, {});
    else
      make(uneven{}, options, 7, {});
  });
  CHECK(of_model.starts_with(last + "model: expected 'hidden=12 "));
  CHECK(of_model.find(", found 'hidden=8 ") != std::string::npos);
  // Grids that do not fit.
  CHECK(complaint([&] {
          make(uneven{}, options, 7, {world().size() + 1, false, false});
        }).starts_with("parallel_setting.expert_ranks: expected a divisor of "));
  // And work that cannot be dealt: ranks meet in each micro-batch.
  trainer<uneven, host<>, mpi> t(host<>(1), options, 7, world(), {1, false, true});
  const auto batches = step_batches(1);
  const auto views = share_of(batches);
  const std::span<const batch_view> some(views.data(), is_last ? 1 : 2);
  CHECK(complaint([&] {
          t.step(some);
        }).ends_with("in all, dealt unevenly; give each rank the same number"));
}
