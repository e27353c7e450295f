// SPDX-License-Identifier: Apache-2.0
//
// The gradient of whole small models against central differences in double, every weight; and the
// suite that holds float and bf16 against the double path.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "precision.hpp"

using namespace smelt;
using namespace smelt::test;

namespace {
// Objective of a step, auxiliary losses included: what the gradient is the gradient of.
template <class Model>
double objective(trainer<Model, host<double>>& t, const batch_view& batch,
                 const training_options& options) {
  const auto found = t.accumulate(std::span(&batch, 1));
  return found.loss + options.balance_coefficient * found.load_balance +
         options.z_coefficient * found.router_z;
}

// Every weight of a tensor, or a sample of it.
constexpr std::int64_t every_weight = 1 << 30;

template <class Model>
void check_gradient(std::int64_t most) {
  const token_batch tokens = documents_of({7, 1, 5}, 5);
  const batch_view batch = tokens.view();
  training_options options = test_options(batch.tokens);
  options.balance_group_tokens = 5;  // the last group is short
  trainer<Model, host<double>> t(host<double>(1), options, 3);
  // Weights larger than at the start, so that softmax, norms and gates leave their linear range.
  for (std::int64_t i = 0; i < t.plan().matrix_elements; ++i) t.state().weights.data()[i] *= 2.5;
  for (std::int64_t i = t.plan().matrix_elements; i < t.plan().elements; ++i)
    t.state().weights.data()[i] += 0.1 * random_normal(9, static_cast<std::uint64_t>(i));

  objective(t, batch, options);
  const double* g = t.state().gradients.data();
  const std::vector<double> gradient(g, g + t.plan().elements);
  // Per tensor, so that a small one cannot hide behind a large one.
  for_each_tensor(t.plan(), [&](const std::string& name, const tensor_place& place) {
    CAPTURE(name);
    // At most `most` weights of a tensor, spread over it by a stride that is odd in both sizes.
    const std::int64_t stride = std::max<std::int64_t>(1, place.count() / most) | 1;
    std::vector<double> found, expected;
    for (std::int64_t i = 0; i < place.count(); i += stride) {
      double& weight = t.state().weights.at(place)[i];
      const double kept = weight;
      constexpr double h = 1e-5;
      weight = kept + h;
      const double above = objective(t, batch, options);
      weight = kept - h;
      const double below = objective(t, batch, options);
      weight = kept;
      found.push_back(gradient[static_cast<std::size_t>(place.offset + i)]);
      expected.push_back((above - below) / (2 * h));
    }
    CHECK(relative_error(found, expected) < 1e-6);
  });
}
}  // namespace

TEST_CASE("gradients are central differences: every weight of a small looped model") {
  check_gradient<tiny<
      transformer<hidden<6>, gqa<2, 1, 4>, moe<4, 2, 3>, stack<plain<1>, looped<1, 2>, plain<1>>>>>(
      every_weight);
}
TEST_CASE("gradients are central differences: looped MoE") {
  check_gradient<looped_moe>(24);
}
TEST_CASE("gradients are central differences: shared expert, tied, per-head norm") {
  check_gradient<shared_expert>(16);
}
TEST_CASE("gradients are central differences: mixed layers, full-width norm, shared cache") {
  check_gradient<mixed>(16);
}
TEST_CASE("gradients are central differences: dense looped without positions") {
  check_gradient<dense_looped>(16);
}
TEST_CASE("gradients are central differences: one layer, four visits, one cache") {
  check_gradient<one_layer>(16);
}
TEST_CASE("gradients are central differences: every expert active") {
  check_gradient<all_active>(16);
}

TEST_CASE_TEMPLATE_INVOKE(model_precision, host<>, host<bf16>);
