// SPDX-License-Identifier: Apache-2.0
//
// The suite of looped models on the host, and the residual scale of a loop.
#include "unrolled.hpp"

using namespace smelt;
using namespace smelt::test;

TEST_CASE_TEMPLATE_INVOKE(model_unrolled, host<double>, host<>);
TEST_CASE_TEMPLATE_INVOKE(model_expert_counts, host<>, host<bf16>);

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
