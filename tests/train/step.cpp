// SPDX-License-Identifier: Apache-2.0
//
// Training: a batch is learned by heart, the same seed gives the same bits, and bad input is
// refused in one line before anything changes.
#include "smelt/train/step.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <numbers>
#include <vector>

#include "../model/small_models.hpp"

using namespace smelt;
using namespace smelt::test;

namespace {
// Weights after some steps on two alternating batches.
template <class Model, class Compute>
std::vector<real_of<Compute>> trained(int threads, int steps) {
  const token_batch a = documents_of({150, 3, 60}, 2), b = documents_of({90, 90}, 3);
  training_options options = test_options(213);
  trainer<Model, host<Compute>> t(host<Compute>(threads), options, 4);
  for (int i = 0; i < steps; ++i) t.step(i % 2 == 0 ? a.view() : b.view());
  const auto* w = t.state().weights.data();
  return std::vector<real_of<Compute>>(w, w + t.plan().elements);
}
}  // namespace

TEST_CASE("a tiny model learns one batch by heart") {
  const token_batch batch = documents_of({24, 24}, 6);
  // The two documents must begin differently, or their second tokens cannot both be foreseen.
  REQUIRE(batch.view().inputs[0] != batch.view().inputs[24]);
  training_options options = test_options(48, 400);
  options.schedule.peak = 1e-2;
  options.weight_decay = 0.0;
  options.balance_coefficient = 1e-3;
  options.z_coefficient = 0.0;
  trainer<looped_moe, host<float>> t(host<>(2), options, 1);
  double loss = 0.0;
  for (int i = 0; i < 400; ++i) loss = t.step(batch.view()).loss;
  CHECK(loss < 0.01);
}

TEST_CASE("the first loss is that of a guess") {
  const token_batch batch = documents_of({60}, 5);
  trainer<looped_moe, host<float>> t(host<>(1), test_options(60), 1);
  CHECK(t.step(batch.view()).loss == doctest::Approx(std::log(11.0)).epsilon(0.1));
}

TEST_CASE("one seed gives the same bits, on one thread and on two") {
  const auto one = trained<looped_moe, float>(1, 6);
  CHECK(one == trained<looped_moe, float>(1, 6));
  CHECK(trained<looped_moe, float>(2, 6) == trained<looped_moe, float>(2, 6));
  CHECK(one == trained<looped_moe, float>(2, 6));  // and the threads do not matter
  CHECK(one == trained<looped_moe, float>(3, 6));
  CHECK(trained<mixed, bf16>(1, 4) == trained<mixed, bf16>(2, 4));
}

TEST_CASE("another seed gives other weights") {
  trainer<plain_moe, host<float>> a(host<>(1), test_options(8), 1),
      b(host<>(1), test_options(8), 2);
  int equal = 0;
  for (std::int64_t i = 0; i < a.plan().matrix_elements; ++i)
    equal += a.state().weights.data()[i] == b.state().weights.data()[i] ? 1 : 0;
  CHECK(equal < a.plan().matrix_elements / 2);  // padding between tensors is zero in both
}

TEST_CASE("clipping uses the norm of the whole gradient (case 30)") {
  const token_batch batch = documents_of({30}, 5);
  training_options options = test_options(30);
  options.clip_norm = 1e-3;
  options.weight_decay = 0.0;
  trainer<plain_moe, host<double>> t(host<double>(1), options, 1);
  const batch_view view = batch.view();
  double squares = 0.0;
  const double norm = t.accumulate(std::span(&view, 1)).norm;
  for (std::int64_t i = 0; i < t.plan().elements; ++i)
    squares += t.state().gradients.data()[i] * t.state().gradients.data()[i];
  CHECK(norm == doctest::Approx(std::sqrt(squares)).epsilon(1e-12));
  CHECK(t.step(view).gradient_norm == doctest::Approx(norm).epsilon(1e-12));
}

TEST_CASE("a loss that is not a number stops the step, named, with the weights untouched") {
  const token_batch batch = documents_of({10}, 5);
  trainer<plain_moe, host<float>> t(host<>(1), test_options(10), 1);
  t.step(batch.view());
  t.state().weights.at(t.plan().layers[1].query)[3] = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> before(t.state().weights.data(),
                                  t.state().weights.data() + t.plan().matrix_elements);
  CHECK_THROWS_WITH_AS(t.step(batch.view()),
                       "step 1: loss nan and gradient norm nan must be finite; lower the learning "
                       "rate or lengthen the warmup",
                       error);
  for (std::size_t i = 0; i < before.size(); ++i)
    CHECK((before[i] == t.state().weights.data()[i] || std::isnan(before[i])));
  CHECK(t.steps() == 1);
}

TEST_CASE("bad batches are refused in words") {
  trainer<plain_moe, host<float>> t(host<>(1), test_options(10), 1);
  CHECK_THROWS_WITH_AS(t.step(documents_of({11}, 5).view()),
                       "batch of 11 tokens: expected 1 to 10; raise training_options.batch_tokens "
                       "or cut the batch",
                       error);
  CHECK_THROWS_WITH_AS(t.step(documents_of({1, 1}, 5).view()),
                       "step 0: no token of the batch has a target; feed documents of at least 2 "
                       "tokens",
                       error);
  token_batch foreign(3);
  const std::vector<std::int32_t> tokens{1, 11, 2};
  foreign.add_segment(tokens.data(), 3, no_target);
  CHECK_THROWS_WITH_AS(t.step(foreign.view()),
                       "batch position 0: token 1 with target 11 lies outside the vocabulary of 11",
                       error);
}

TEST_CASE("the schedule warms up, stays and decays along a cosine") {
  const warmup_stable_decay s{
      .peak = 2.0, .warmup_steps = 4, .decay_steps = 10, .steps = 100, .last_fraction = 0.1};
  CHECK(s.learning_rate(0) == doctest::Approx(0.5));
  CHECK(s.learning_rate(3) == doctest::Approx(2.0));
  CHECK(s.learning_rate(50) == 2.0);
  CHECK(s.learning_rate(89) == 2.0);
  CHECK(s.learning_rate(94) == doctest::Approx(0.2 + 1.8 * 0.5));
  CHECK(s.learning_rate(99) == doctest::Approx(0.2));
  CHECK_THROWS_WITH_AS((warmup_stable_decay{1.0, 60, 50, 100, 0.0}.check()),
                       "schedule: warmup 60 and decay 50 steps do not fit into a run of 100; "
                       "shorten them or train longer",
                       error);
}
