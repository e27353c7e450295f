// SPDX-License-Identifier: Apache-2.0
//
// A looped stack equals the explicitly unrolled one with copied weights: same loss, and its
// gradient is the sum of the copies' gradients. The unrolled model has no loops at all, so nothing
// of the loop is in the oracle. (Case 26: a tied gradient counted twice, or reduced before the last
// visit.) On any backend.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "small_models.hpp"

namespace smelt::test {

// Unscaled residuals: an unrolled plain layer has scale 1, and the loop is then the only
// difference.
template <class Stack>
using loop_model_of = tiny<transformer<hidden<12>, gqa<4, 2, 4>, moe<5, 2, 6, shared<4>>, Stack,
                                       qk_norm::per_head, residual_scale::one>>;
using loops = loop_model_of<stack<plain<1>, looped<2, 3>, plain<1>>>;
using unrolled = loop_model_of<stack<plain<8>>>;

// Name of the looped model's tensor that an unrolled one copies.
inline std::string source_name(const std::string& name) {
  // Physical layer of the looped model that stands at each place of the unrolled one.
  constexpr std::array<std::size_t, 8> source{0, 1, 2, 1, 2, 1, 2, 3};
  const std::string prefix = "layers.";
  if (!name.starts_with(prefix)) return name;
  const std::size_t dot = name.find('.', prefix.size());
  const auto layer = static_cast<std::size_t>(std::stoul(name.substr(prefix.size(), dot)));
  return prefix + std::to_string(source.at(layer)) + name.substr(dot);
}

// How far two orders of the same sums may be apart.
template <class Policy>
inline constexpr double order_tolerance = tolerance<Policy>(2e-5, 2e-2, 1e-12);

TEST_CASE_TEMPLATE_DEFINE("a looped stack equals its unrolled copy in values and gradients", Policy,
                          model_unrolled) {
  const token_batch tokens = documents_of({9, 4, 1, 6}, 21);
  const batch_view batch = tokens.view();
  const training_options options = test_options(batch.tokens);
  trainer<loops, Policy> looped_model(policy<Policy>(), options, 7);
  trainer<unrolled, Policy> copied(policy<Policy>(), options, 8);

  const auto from = weights_of(looped_model);
  auto to = weights_of(copied);
  for_each_tensor(copied.plan(), [&](const std::string& name, const tensor_place& place) {
    for_each_tensor(looped_model.plan(), [&](const std::string& source, const tensor_place& at) {
      if (source == source_name(name))
        std::copy_n(from.begin() + at.offset, at.count(), to.begin() + place.offset);
    });
  });
  set_weights(copied, to);

  const auto a = looped_model.accumulate(std::span(&batch, 1));
  const auto b = copied.accumulate(std::span(&batch, 1));
  // Nothing in the forward pass depends on how layers are stored.
  CHECK(a.loss == doctest::Approx(b.loss).epsilon(1e-13));
  CHECK(a.load_balance == doctest::Approx(b.load_balance).epsilon(tolerance<Policy>(1e-6, 1e-6)));
  CHECK(a.router_z == doctest::Approx(b.router_z).epsilon(tolerance<Policy>(1e-6, 1e-6)));

  const auto gradient = as_double(gradients_of(looped_model));
  const auto parts = as_double(gradients_of(copied));
  for_each_tensor(looped_model.plan(), [&](const std::string& name, const tensor_place& place) {
    const std::string tensor = name;  // clang 14 cannot capture a structured binding
    CAPTURE(tensor);
    std::vector<double> sum(static_cast<std::size_t>(place.count()), 0.0);
    int copies = 0;
    for_each_tensor(copied.plan(), [&](const std::string& copy, const tensor_place& at) {
      if (source_name(copy) != name) return;
      ++copies;
      for (std::size_t i = 0; i < sum.size(); ++i)
        sum[i] += parts[static_cast<std::size_t>(at.offset) + i];
    });
    CHECK(copies == (name.starts_with("layers.1.") || name.starts_with("layers.2.") ? 3 : 1));
    const auto begin = gradient.begin() + place.offset;
    CHECK(relative_error(std::vector<double>(begin, begin + place.count()), sum) <
          order_tolerance<Policy>);
  });
}

TEST_CASE_TEMPLATE_DEFINE("expert counts keep one record per visit, none stale (case 23)", Policy,
                          model_expert_counts) {
  const token_batch tokens = documents_of({20}, 4);
  trainer<looped_moe, Policy> t(policy<Policy>(), test_options(20), 1);
  for (int repeat = 0; repeat < 3; ++repeat) {  // a later step starts from zero again
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

}  // namespace smelt::test
