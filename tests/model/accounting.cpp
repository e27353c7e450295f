// SPDX-License-Identifier: Apache-2.0
//
// Accounting proved by execution: what products and attention counted while a step ran equals the
// compile-time figures, to the FLOP; weights in the arena equal the parameters, to the element.
#include <doctest/doctest.h>

#include "small_models.hpp"

using namespace smelt;
using namespace smelt::test;

namespace {
template <class Model>
void check_accounting(const std::vector<std::int64_t>& lengths) {
  const token_batch tokens = documents_of(lengths, 2);
  const batch_view batch = tokens.view();
  trainer<Model, host<float>> t(host<>(2), test_options(batch.tokens), 1);
  flop_counter counter;
  t.policy().count_into(&counter);
  t.step(batch);
  const flop_split expected = flops_per_step<Model>(batch.tokens, batch.documents.pairs());
  CHECK(counter.model_flops() == expected.total());
  CHECK(counter.attention == expected.attention);

  counter.reset();
  t.evaluate(batch);  // forward only: a third
  CHECK(counter.model_flops() * 3 == expected.total());
  CHECK(counter.recomputed == 0);

  std::int64_t elements = 0;
  for_each_tensor(
      t.plan(), [&](const std::string&, const tensor_place& place) { elements += place.count(); });
  CHECK(elements == parameters<Model>);
}
}  // namespace

TEST_CASE("counted FLOPs and elements equal the accounting") {
  const std::vector<std::int64_t> one{24}, packed_lengths{1, 7, 3, 1, 12};
  for (const auto& lengths : {one, packed_lengths}) {
    check_accounting<looped_moe>(lengths);
    check_accounting<shared_expert>(lengths);
    check_accounting<mixed>(lengths);
    check_accounting<dense_looped>(lengths);
    check_accounting<one_layer>(lengths);
    check_accounting<plain_moe>(lengths);
    check_accounting<plain_dense>(lengths);
    check_accounting<all_active>(lengths);
  }
}

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
