// SPDX-License-Identifier: Apache-2.0
//
// The suite of head and cross-entropy on the host, its gradients against central differences, and
// threads.
#include "loss.hpp"

using namespace smelt;
using namespace smelt::test;

TEST_CASE_TEMPLATE_INVOKE(loss_values, host<double>, host<>, host<bf16>);
TEST_CASE_TEMPLATE_INVOKE(loss_sums, host<double>, host<>, host<bf16>);
TEST_CASE_TEMPLATE_INVOKE(loss_gradients, host<>, host<bf16>);
TEST_CASE_TEMPLATE_INVOKE(loss_without_target, host<double>, host<>, host<bf16>);
TEST_CASE_TEMPLATE_INVOKE(loss_counts, host<double>, host<>, host<bf16>);
TEST_CASE_TEMPLATE_INVOKE(loss_huge_logits, host<double>, host<>, host<bf16>);
TEST_CASE_TEMPLATE_INVOKE(loss_nan, host<double>, host<>, host<bf16>);

TEST_CASE("loss: gradients by central differences, one chunk and several") {
  for (const std::int64_t vocabulary : {std::int64_t{11}, head_chunk + 3}) {
    head_problem<host<double>> p(5, 3, vocabulary);
    p.loss(true, 0.25);
    const auto dx = p.dx.values(), dweights = p.dweights.values();
    auto x = p.x_values, weights = p.weight_values;
    const auto scaled_loss = [&] {
      p.set(x, weights, p.target_values);
      return 0.25 * p.loss(false);
    };
    CHECK(relative_error(dx, central_differences(x, scaled_loss)) < 1e-6);
    if (vocabulary < 100)
      CHECK(relative_error(dweights, central_differences(weights, scaled_loss)) < 1e-6);
  }
}

TEST_CASE_TEMPLATE("loss: threads change no bit", Policy, host<double>, host<>, host<bf16>) {
  head_problem<Policy> one(200, 6, 50), two(200, 6, 50);
  CHECK(one.loss(true, 0.5, Policy(1)) == two.loss(true, 0.5, Policy(2)));
  CHECK(one.dx.values() == two.dx.values());
  CHECK(one.dweights.values() == two.dweights.values());
}
