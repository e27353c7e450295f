// SPDX-License-Identifier: Apache-2.0
//
// Accounting proved by execution: what products and attention counted while a step ran equals the
// compile-time figures, to the FLOP; weights in the arena equal the parameters, to the element. On
// any backend.
#pragma once

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "small_models.hpp"

namespace smelt::test {

template <class Model, class Policy>
void check_accounting(const std::vector<std::int64_t>& lengths) {
  const token_batch tokens = documents_of(lengths, 2);
  const batch_view batch = tokens.view();
  trainer<Model, Policy> t(policy<Policy>(), test_options(batch.tokens), 1);
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

TEST_CASE_TEMPLATE_DEFINE("counted FLOPs and elements equal the accounting", Policy,
                          model_accounting) {
  const std::vector<std::int64_t> one{24}, packed_lengths{1, 7, 3, 1, 12};
  for (const auto& lengths : {one, packed_lengths}) {
    check_accounting<looped_moe, Policy>(lengths);
    check_accounting<shared_expert, Policy>(lengths);
    check_accounting<mixed, Policy>(lengths);
    check_accounting<dense_looped, Policy>(lengths);
    check_accounting<one_layer, Policy>(lengths);
    check_accounting<plain_moe, Policy>(lengths);
    check_accounting<plain_dense, Policy>(lengths);
    check_accounting<all_active, Policy>(lengths);
  }
}

}  // namespace smelt::test
