// SPDX-License-Identifier: Apache-2.0
//
// Balancing without a loss term, in training: experts even out, the bias moves once per step and
// not per micro-batch, stays float32 under bf16 products, and is in the checkpoint (case 24). And
// steps beyond a limit, which change nothing.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <vector>

#include "../model/small_models.hpp"
#include "smelt/train/step.hpp"

using namespace smelt;
using namespace smelt::test;

namespace {
training_options bias_options(double rate) {
  training_options options = test_options(200, 400);
  options.balance_coefficient = 0.0;
  options.z_coefficient = 0.0;
  options.router_bias_rate = rate;
  return options;
}

// Tokens of the fullest expert over the mean, the worst visit.
template <class Trainer>
double worst_load(Trainer& t, std::int64_t experts) {
  const auto counts = t.expert_counts();
  double worst = 0.0;
  for (std::size_t visit = 0; visit < counts.size(); visit += static_cast<std::size_t>(experts)) {
    double total = 0.0, most = 0.0;
    for (std::size_t e = visit; e < visit + static_cast<std::size_t>(experts); ++e) {
      total += static_cast<double>(counts[e]);
      most = std::max(most, static_cast<double>(counts[e]));
    }
    worst = std::max(worst, most * static_cast<double>(experts) / total);
  }
  return worst;
}
std::vector<float> bias_of(auto& t) {
  const float* bias = t.state().router_bias();
  return {bias, bias + t.state().router_bias_count()};
}
}  // namespace

TEST_CASE("a bias alone evens out the experts of every visit") {
  const token_batch batch = documents_of({100, 100}, 3);
  trainer<looped_moe, host<>> biased(host<>(2), bias_options(0.01), 1);
  trainer<looped_moe, host<>> free(host<>(2), bias_options(0.0), 1);
  CHECK(free.state().router_bias() == nullptr);
  double biased_load = 0.0, free_load = 0.0;
  for (int step = 0; step < 150; ++step) {
    biased.step(batch.view());
    free.step(batch.view());
    // The bias swings around its place: what counts is the mean of the end.
    if (step < 100) continue;
    biased_load += worst_load(biased, 5) / 50.0;
    free_load += worst_load(free, 5) / 50.0;
  }
  CHECK(biased_load < 1.15);
  CHECK(free_load > 1.3);
}

TEST_CASE("the bias moves once per step, whatever the micro-batches") {
  const token_batch whole = documents_of({12, 12, 12, 12}, 5);
  std::vector<token_batch> parts;
  for (std::int64_t i = 0; i < 4; ++i) {
    parts.emplace_back(12);
    parts.back().add_segment(whole.view().inputs + 12 * i, 12, no_target);
  }
  const std::vector<batch_view> views{parts[0].view(), parts[1].view(), parts[2].view(),
                                      parts[3].view()};
  trainer<looped_moe, host<>> once(host<>(1), bias_options(0.25), 1);
  trainer<looped_moe, host<>> four(host<>(1), bias_options(0.25), 1);
  once.step(whole.view());
  four.step(views);
  CHECK(bias_of(once) == bias_of(four));
  // One step is one rate, up, down or not at all; and it did move.
  double moved = 0.0;
  for (const float b : bias_of(once)) {
    CHECK((b == 0.0F || std::abs(b) == 0.25F));
    moved += std::abs(static_cast<double>(b));
  }
  CHECK(moved > 0.0);
}

TEST_CASE("the bias is float32 where products are in bf16") {
  using policy = host<bf16>;
  static_assert(std::is_same_v<decltype(trainer<looped_moe, policy>::real{}), float>);
  const token_batch batch = documents_of({40}, 5);
  trainer<looped_moe, policy> t(policy(1), bias_options(1e-4), 1);
  // 1 + 0.0001 is 1 in bf16.
  std::fill_n(t.state().router_bias(), t.state().router_bias_count(), 1.0F);
  t.step(batch.view());
  CHECK(std::ranges::any_of(bias_of(t), [](float b) { return b != 1.0F; }));
}

TEST_CASE("a step beyond a limit changes nothing and is named") {
  const token_batch batch = documents_of({40}, 5);
  trainer<looped_moe, host<>> t(host<>(1), bias_options(0.1), 1);
  t.step(batch.view());
  const std::vector<float> weights = weights_of(t);
  const std::vector<float> bias = bias_of(t);
  constexpr double none = std::numeric_limits<double>::infinity();
  t.limit(0.5, none);
  try {
    t.step(batch.view());
    FAIL("the step was accepted");
  } catch (const rejected_step& e) {
    CHECK(e.step == 1);
    CHECK(e.loss > 0.5);
    CHECK(std::string(e.what()).starts_with("step 1: loss 2."));
    CHECK(std::string(e.what()).ends_with("leave the batch out or raise trainer.limit"));
  }
  t.limit(none, 1e-6);
  CHECK_THROWS_AS(t.step(batch.view()), rejected_step);
  CHECK(weights_of(t) == weights);
  CHECK(bias_of(t) == bias);
  CHECK(t.steps() == 1);
  // The batch left out; the schedule and the bias corrections count it.
  t.resume_at(2);
  t.limit(none, none);
  CHECK(t.step(batch.view()).step == 2);
  CHECK_FALSE(weights_of(t) == weights);
  CHECK_THROWS_WITH_AS(t.limit(0.0, 1.0),
                       "trainer.limit: expected a loss and a gradient norm above 0, found 0.000000 "
                       "and 1.000000; infinity is no limit",
                       error);
}
