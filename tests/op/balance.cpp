// SPDX-License-Identifier: Apache-2.0
//
// The suite of the auxiliary losses on the host, their gradient against central differences, and
// threads.
#include "balance.hpp"

using namespace smelt;
using namespace smelt::test;

TEST_CASE_TEMPLATE_INVOKE(balance_values, host<double>, host<>, host<bf16>);
TEST_CASE_TEMPLATE_INVOKE(balance_long_group, host<double>, host<>);
TEST_CASE_TEMPLATE_INVOKE(balance_ends, host<double>, host<>);
TEST_CASE_TEMPLATE_INVOKE(balance_gradients, host<>, host<bf16>);
TEST_CASE_TEMPLATE_INVOKE(balance_batching, host<double>, host<>);
TEST_CASE_TEMPLATE_INVOKE(balance_unequal_groups, host<double>, host<>);
TEST_CASE_TEMPLATE_INVOKE(balance_share, host<double>, host<>);
TEST_CASE_TEMPLATE_INVOKE(balance_counts, host<double>, host<>);
TEST_CASE_TEMPLATE_INVOKE(balance_empty, host<double>, host<>);

TEST_CASE("balance: case 21: the gradient reaches the logits, by central differences") {
  const std::vector<balance_size> some = {
      {24, 5, 2, 24}, {25, 7, 3, 8}, {1, 4, 2, 1}, {8, 33, 8, 4}, {9, 1, 1, 3}};
  for (const balance_size& size : some) {
    CAPTURE(size.tokens);
    CAPTURE(size.experts);
    auto setting = setting_of(size);
    setting.share = 0.7;
    auto logits = random_values<double>(size.tokens * size.experts, 9, 2.0);
    const balance_visit<host<double>> at(logits, size.experts, size.top_k, setting);
    const auto chosen = at.chosen.values();
    // The objective: the share of both losses times their coefficients.
    const auto objective = [&](double balance_coefficient, double z_coefficient) {
      const auto moved = plain_balance(logits, chosen, size.experts, size.top_k, size.group_tokens);
      return 0.7 * (balance_coefficient * moved.load_balance + z_coefficient * moved.router_z);
    };
    const auto expected = central_differences(
        logits, [&] { return objective(setting.balance_coefficient, setting.z_coefficient); });
    CHECK(relative_error(at.gradient(setting), expected) < 1e-6);

    // A coefficient of 0 leaves the other loss alone; a coefficient scales its loss's gradient.
    balance_setting only_z = setting, only_balance = setting;
    only_z.balance_coefficient = 0.0;
    only_balance.z_coefficient = 0.0;
    const auto gradient = [&](const balance_setting& part) {
      return balance_visit<host<double>>(logits, size.experts, size.top_k, part).gradient(part);
    };
    CHECK(relative_error(gradient(only_z), central_differences(logits, [&] {
                           return objective(0.0, setting.z_coefficient);
                         })) < 1e-6);
    // One expert has probability 1 whatever the logits: no gradient of balance.
    if (size.experts == 1) {
      for (double value : gradient(only_balance)) CHECK(std::abs(value) < 1e-15);
      continue;
    }
    CHECK(relative_error(gradient(only_balance), central_differences(logits, [&] {
                           return objective(setting.balance_coefficient, 0.0);
                         })) < 1e-6);
  }
}

TEST_CASE("balance: one thread and two give the same bits") {
  for (const balance_size& size : balance_sizes) {
    CAPTURE(size.tokens);
    const auto logits = random_values<float>(size.tokens * size.experts, 5);
    const auto setting = setting_of(size);
    const balance_visit<host<>> one(logits, size.experts, size.top_k, setting, host<>(1));
    const balance_visit<host<>> two(logits, size.experts, size.top_k, setting, host<>(2));
    CHECK(one.load_balance() == two.load_balance());
    CHECK(one.router_z() == two.router_z());
    CHECK(one.dprobabilities.values() == two.dprobabilities.values());
    CHECK(one.counts.values() == two.counts.values());
    CHECK(one.gradient(setting, host<>(1)) == two.gradient(setting, host<>(2)));
  }
}
