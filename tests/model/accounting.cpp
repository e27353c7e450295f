// SPDX-License-Identifier: Apache-2.0
//
// The suite of the accounting on the host, and how its figures hang together.
#include "accounting.hpp"

using namespace smelt;
using namespace smelt::test;

TEST_CASE_TEMPLATE_INVOKE(model_accounting, host<>);

TEST_CASE("the step's figure is the per-token figure times tokens, head included") {
  static_assert(flops_per_step<looped_moe>(24, causal<24>::pairs).total() ==
                24 * flops_per_token<looped_moe, causal<24>, convention::head_in>);
  static_assert(flops_per_step<mixed>(packed<1, 7, 3>::tokens, packed<1, 7, 3>::pairs).total() ==
                flops_per_sequence<mixed, packed<1, 7, 3>, convention::head_in>);
}

TEST_CASE("documents of a batch count as the sum of their squares (case 7)") {
  const token_batch packed_batch = documents_of({10, 20, 30}, 1);
  CHECK(packed_batch.view().documents.pairs() == 55 + 210 + 465);
}
