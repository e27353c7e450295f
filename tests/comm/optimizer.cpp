// SPDX-License-Identifier: Apache-2.0
//
// The sharded optimizer over MPI: 50 steps with clipping, bit for bit those of ranks that keep the
// whole state, and within 1e-5 those of the trainer on one rank (case 30: one rank's norm would
// clip differently).
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <vector>

#include "smelt/op/adamw.hpp"
#include "world.hpp"
// Behind the engine, whose types it uses.
#include "replica.hpp"

using namespace smelt;
using namespace smelt::test;

namespace {
constexpr int steps = 50;

struct run_result {
  std::vector<double> losses, norms;
  std::vector<float> weights;
};

training_options options_of_run() {
  training_options options = test_options(most_tokens, steps);
  options.clip_norm = 0.5;  // below the norms of the run, so that every step is clipped
  return options;
}

// One AdamW update of [begin, end) of the arena; gains, from matrix_elements on, do not decay.
template <class Model>
void update_range(replica<Model, float>& model, const adamw_setting& whole,
                  const adamw_rates<float>& rates, double squares, double loss_sum,
                  const element_range& range, float* first, float* second) {
  adamw_setting setting = whole;
  if (range.begin >= model.state.plan.matrix_elements) setting.weight_decay = 0.0;
  adamw_update(model.run, setting, &rates, &squares, &loss_sum, range.count(),
               model.state.weights.data() + range.begin, model.state.gradients.data() + range.begin,
               first, second, model.state.copy_data() + range.begin);
}

template <class Model>
run_result train_on_ranks(bool sharded) {
  const training_options options = options_of_run();
  const adamw_setting setting{options.beta1, options.beta2, options.epsilon, options.weight_decay,
                              options.clip_norm};
  replica<Model, float> model;
  const std::int64_t elements = model.state.plan.elements;
  const std::int64_t boundary = model.state.plan.matrix_elements;
  optimizer_shard<mpi, host<float>> shard(world(), model.run, elements);
  std::vector<float> first(static_cast<std::size_t>(elements)), second(first.size());
  gradient_reducer<mpi, host<float>> reducer(world(), elements, 512);
  const auto squares_of = [&](const float* values, std::int64_t count, double* squares) {
    sum_of_squares(model.run, values, count, squares);
  };

  run_result result;
  for (int step = 0; step < steps; ++step) {
    const auto batches = four_batches(static_cast<std::uint32_t>(100 + step % 3));
    const auto share = share_of(batches, shards{4, world().size()}.of(world().rank()));
    const step_tokens total = sum_over_ranks(world(), model.run, tokens_of(share));
    const adamw_rates<float> rates(setting, options.schedule.learning_rate(step), step + 1);
    double squares = 0.0;
    float* gradients = model.state.gradients.data();
    if (sharded) {
      model.accumulate(share, total, options, [](const element_range&) {});
      shard.reduce(model.run, gradients, &squares, squares_of);
    } else {
      reducer.begin(gradients);
      model.accumulate(share, total, options,
                       [&](const element_range& range) { reducer.complete(model.run, range); });
      reducer.finish(model.run);
      // Squares in the order of the shards, as the sharded optimizer has them.
      for (std::int64_t rank = 0; rank < world().size(); ++rank) {
        const element_range part = shards{elements, world().size()}.of(rank);
        double of_part = 0.0;
        squares_of(gradients + part.begin, part.count(), &of_part);
        squares = rank == 0 ? of_part : squares + of_part;
      }
    }
    double loss_sum = model.loss_sum;
    world().all_reduce_sum(model.run, &loss_sum, 1);
    const auto update = [&](const element_range& range, float* m, float* v) {
      update_range(model, setting, rates, squares, loss_sum, range, m, v);
    };
    if (sharded) {
      shard.update(model.run, model.state.weights.data(), boundary, update);
      model.state.refresh_copy(model.run);
    } else {
      update({0, boundary}, first.data(), second.data());
      update({boundary, elements}, first.data() + boundary, second.data() + boundary);
    }
    result.losses.push_back(loss_sum / static_cast<double>(total.counted));
    result.norms.push_back(std::sqrt(squares));
  }
  const float* weights = model.state.weights.data();
  result.weights.assign(weights, weights + elements);
  return result;
}

template <class Model>
run_result train_alone() {
  trainer<Model, host<float>> t(host<>(1), options_of_run(), 3);
  run_result result;
  for (int step = 0; step < steps; ++step) {
    const auto batches = four_batches(static_cast<std::uint32_t>(100 + step % 3));
    const auto views = share_of(batches, {0, 4});
    const step_report report = t.step(std::span<const batch_view>(views));
    result.losses.push_back(report.loss);
    result.norms.push_back(report.gradient_norm);
  }
  return result;
}
}  // namespace

TEST_CASE_TEMPLATE("a sharded optimizer trains bit for bit like a whole one", Model, looped_moe,
                   shared_expert, mixed) {
  const run_result sharded = train_on_ranks<Model>(true), whole = train_on_ranks<Model>(false);
  CHECK(sharded.losses == whole.losses);
  CHECK(sharded.norms == whole.norms);
  CHECK(std::memcmp(sharded.weights.data(), whole.weights.data(),
                    whole.weights.size() * sizeof(float)) == 0);
  // It was clipped, and it learned: equal losses of a model that stands still prove nothing.
  CHECK(*std::min_element(whole.norms.begin(), whole.norms.end()) > 0.5);
  CHECK(whole.losses.back() < 0.9 * whole.losses.front());

  const run_result alone_losses = train_alone<Model>();
  double worst = 0.0;
  for (std::size_t i = 0; i < whole.losses.size(); ++i)
    worst = std::max(worst, std::abs(whole.losses[i] / alone_losses.losses[i] - 1.0));
  CHECK(worst < 1e-5);
}

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
