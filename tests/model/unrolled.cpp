// SPDX-License-Identifier: Apache-2.0
//
// A looped stack equals the explicitly unrolled one with copied weights: same loss, and its
// gradient is the sum of the copies' gradients. The unrolled model has no loops at all, so nothing
// of the loop is in the oracle. (Case 26: a tied gradient counted twice, or reduced before the last
// visit.)
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "../op/gradient.hpp"
#include "small_models.hpp"

using namespace smelt;
using namespace smelt::test;

namespace {
// Unscaled residuals: an unrolled plain layer has scale 1, and the loop is then the only
// difference.
template <class Stack>
using model_of = tiny<transformer<hidden<12>, gqa<4, 2, 4>, moe<5, 2, 6, shared<4>>, Stack,
                                  qk_norm::per_head, residual_scale::one>>;
using loops = model_of<stack<plain<1>, looped<2, 3>, plain<1>>>;
using unrolled = model_of<stack<plain<8>>>;
// Physical layer of the looped model that stands at each place of the unrolled one.
constexpr std::array<std::size_t, 8> source{0, 1, 2, 1, 2, 1, 2, 3};

// Tensors of a model by name, as (data, count).
template <class Arena>
std::vector<std::pair<std::string, std::pair<double*, std::int64_t>>> tensors(
    const model_plan& plan, const Arena& arena) {
  std::vector<std::pair<std::string, std::pair<double*, std::int64_t>>> all;
  for_each_tensor(plan, [&](const std::string& name, const tensor_place& place) {
    all.emplace_back(name, std::pair(arena.at(place), place.count()));
  });
  return all;
}

// Name of the looped model's tensor that an unrolled one copies.
std::string source_name(const std::string& name) {
  const std::string prefix = "layers.";
  if (!name.starts_with(prefix)) return name;
  const std::size_t dot = name.find('.', prefix.size());
  const auto layer = static_cast<std::size_t>(std::stoul(name.substr(prefix.size(), dot)));
  return prefix + std::to_string(source.at(layer)) + name.substr(dot);
}
}  // namespace

TEST_CASE("a looped stack equals its unrolled copy in values and gradients") {
  const token_batch tokens = documents_of({9, 4, 1, 6}, 21);
  const batch_view batch = tokens.view();
  training_options options = test_options(batch.tokens);
  trainer<loops, host<double>> looped_model(host<double>(1), options, 7);
  trainer<unrolled, host<double>> copied(host<double>(1), options, 8);

  const auto from = tensors(looped_model.plan(), looped_model.state().weights);
  for (const auto& [name, to] : tensors(copied.plan(), copied.state().weights))
    for (const auto& [looped_name, values] : from)
      if (looped_name == source_name(name)) std::copy_n(values.first, values.second, to.first);

  const auto a = looped_model.accumulate(std::span(&batch, 1));
  const auto b = copied.accumulate(std::span(&batch, 1));
  CHECK(a.loss == doctest::Approx(b.loss).epsilon(1e-13));
  CHECK(a.losses.load_balance == doctest::Approx(b.losses.load_balance).epsilon(1e-13));
  CHECK(a.losses.router_z == doctest::Approx(b.losses.router_z).epsilon(1e-13));

  for (const auto& [name, gradient] :
       tensors(looped_model.plan(), looped_model.state().gradients)) {
    const std::string tensor = name;  // clang 14 cannot capture a structured binding
    CAPTURE(tensor);
    std::vector<double> sum(static_cast<std::size_t>(gradient.second), 0.0);
    int copies = 0;
    for (const auto& [copy_name, part] : tensors(copied.plan(), copied.state().gradients))
      if (source_name(copy_name) == name) {
        ++copies;
        for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += part.first[i];
      }
    CHECK(copies == (name.starts_with("layers.1.") || name.starts_with("layers.2.") ? 3 : 1));
    const std::vector<double> found(gradient.first, gradient.first + gradient.second);
    CHECK(relative_error(found, sum) < 1e-12);
  }
}

TEST_CASE("the residual scale of a looped span is one over its visits, and changes the loss") {
  using scaled_loops =
      tiny<transformer<hidden<12>, gqa<4, 2, 4>, moe<5, 2, 6>, stack<looped<2, 2>>>>;
  using unscaled_loops = tiny<transformer<hidden<12>, gqa<4, 2, 4>, moe<5, 2, 6>,
                                          stack<looped<2, 2>>, residual_scale::one>>;
  CHECK(plan_of<scaled_loops>().visits[0].residual_scale == 0.5);
  CHECK(plan_of<unscaled_loops>().visits[0].residual_scale == 1.0);
  CHECK(plan_of<looped_moe>().visits[0].residual_scale == 1.0);  // the prelude is not looped

  // The last projection of each sublayer is linear: halving it equals a scale of one half.
  const token_batch tokens = documents_of({12}, 4);
  const batch_view batch = tokens.view();
  const training_options options = test_options(batch.tokens);
  trainer<scaled_loops, host<double>> half(host<double>(1), options, 7);
  trainer<unscaled_loops, host<double>> full(host<double>(1), options, 7);
  const double before = full.evaluate(batch).loss_sum;
  for_each_tensor(full.plan(), [&](const std::string& name, const tensor_place& place) {
    if (name.ends_with(".output") || name.ends_with(".down"))
      for (std::int64_t i = 0; i < place.count(); ++i) full.state().weights.at(place)[i] *= 0.5;
  });
  CHECK(half.evaluate(batch).loss_sum == doctest::Approx(full.evaluate(batch).loss_sum));
  CHECK(half.evaluate(batch).loss_sum != doctest::Approx(before).epsilon(1e-6));
}

TEST_CASE("expert counts keep one record per visit, none stale (case 23)") {
  const token_batch tokens = documents_of({20}, 4);
  trainer<looped_moe, host<float>> t(host<>(1), test_options(20), 1);
  for (int repeat = 0; repeat < 2; ++repeat) {  // a second step starts from zero again
    t.step(tokens.view());
    const auto counts = t.expert_counts();
    REQUIRE(counts.size() == 6 * 5);  // six MoE visits, five experts
    for (std::size_t visit = 0; visit < 6; ++visit) {
      std::int64_t sum = 0;
      for (std::size_t e = 0; e < 5; ++e) sum += counts[visit * 5 + e];
      CHECK(sum == 20 * 2);
    }
  }
  const std::vector<std::int64_t> kept(t.expert_counts().begin(), t.expert_counts().end());
  t.evaluate(tokens.view());  // case 22: evaluation counts nothing
  CHECK(std::equal(kept.begin(), kept.end(), t.expert_counts().begin()));
}
