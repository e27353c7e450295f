// SPDX-License-Identifier: Apache-2.0
//
// The suite of a group on several ranks on the host, and threads.
#include "balance_ranks.hpp"

using namespace smelt;
using namespace smelt::test;

TEST_CASE_TEMPLATE_INVOKE(balance_count_experts, host<double>, host<>);
TEST_CASE_TEMPLATE_INVOKE(balance_ranks, host<double>, host<>, host<bf16>);
TEST_CASE_TEMPLATE_INVOKE(balance_one_rank, host<double>, host<>);
TEST_CASE_TEMPLATE_INVOKE(balance_refused, host<>);

TEST_CASE("balance: one thread and two count the same experts") {
  std::vector<std::int32_t> chosen;
  for (std::int32_t i = 0; i < 20'000; ++i) chosen.push_back(i * i % 13);
  CHECK(expert_counts_of<host<>>(chosen, 13, 4, host<>(1)) ==
        expert_counts_of<host<>>(chosen, 13, 4, host<>(2)));
}
