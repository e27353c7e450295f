// SPDX-License-Identifier: Apache-2.0
//
// Gradients of whole small models in float and bf16, on any backend, against the host's double path
// (which gradient.cpp holds against central differences); recomputation, which may change no bit.
#pragma once

#include <doctest/doctest.h>

#include <vector>

#include "small_models.hpp"

namespace smelt::test {

template <class Model, class Policy>
std::vector<double> gradient_in(const Policy& run, const batch_view& batch,
                                const training_options& options) {
  trainer<Model, Policy> t(run, options, 3);
  t.accumulate(std::span(&batch, 1));
  return as_double(gradients_of(t));
}

template <class Model, class Policy>
void check_precision() {
  const token_batch tokens = documents_of({40, 1, 23}, 5);
  const training_options options = test_options(tokens.tokens());
  const auto exact = gradient_in<Model>(host<double>(2), tokens.view(), options);
  // bf16 keeps 8 bits: 2^-9 per rounding, and a few dozen roundings in a row.
  CHECK(relative_error(gradient_in<Model>(policy<Policy>(), tokens.view(), options), exact) <
        tolerance<Policy>(1e-5, 3e-2));
}

template <class Model, class Policy>
void check_recomputation() {
  const token_batch a = documents_of({31, 9}, 8), b = documents_of({40}, 9);
  const training_options options = test_options(40);
  Policy lean = policy<Policy>();
  lean.set_recompute(recomputation::visits);
  trainer<Model, Policy> kept(policy<Policy>(), options, 3), recomputed(lean, options, 3);
  CHECK(recomputed.activation_bytes() < kept.activation_bytes());
  for (int step = 0; step < 3; ++step) {  // as it is, recorded, replayed where there is a graph
    const token_batch& batch = step % 2 == 0 ? a : b;
    const step_report x = kept.step(batch.view());
    const step_report y = recomputed.step(batch.view());
    CHECK(x.loss == y.loss);
    CHECK(x.load_balance == y.load_balance);
    CHECK(x.gradient_norm == y.gradient_norm);
    // Case 22: statistics of the router are counted once.
    for (std::size_t i = 0; i < kept.expert_counts().size(); ++i)
      REQUIRE(kept.expert_counts()[i] == recomputed.expert_counts()[i]);
  }
  CHECK(weights_of(kept) == weights_of(recomputed));
}

TEST_CASE_TEMPLATE_DEFINE("gradients of whole models follow the double path", Policy,
                          model_precision) {
  check_precision<looped_moe, Policy>();
  check_precision<shared_expert, Policy>();
  check_precision<mixed, Policy>();
  check_precision<dense_looped, Policy>();
}

TEST_CASE_TEMPLATE_DEFINE("recomputed visits change no bit and count no statistic twice (case 22)",
                          Policy, model_recomputation) {
  check_recomputation<shared_expert, Policy>();
  check_recomputation<mixed, Policy>();
  check_recomputation<one_layer, Policy>();
}

TEST_CASE_TEMPLATE_DEFINE("work done again is counted apart, to the FLOP", Policy,
                          model_recomputation_accounting) {
  const token_batch batch = documents_of({12, 5}, 8);
  const auto counted = [&](recomputation what) {
    Policy run = policy<Policy>();
    run.set_recompute(what);
    trainer<looped_moe, Policy> t(run, test_options(17), 3);
    flop_counter counter;
    t.policy().count_into(&counter);
    t.step(batch.view());
    return counter;
  };
  const flop_counter kept = counted(recomputation::none);
  const flop_counter again = counted(recomputation::visits);
  const flop_split expected = flops_per_step<looped_moe>(17, batch.view().documents.pairs());
  CHECK(again.model_flops() == expected.total());
  // All visits but the last run forward twice, beside what attention's backward pass computes
  // again; the visits of this model cost the same.
  constexpr std::int64_t visits = executed_layers<looped_moe::body>;
  CHECK(again.recomputed - kept.recomputed ==
        (expected.total() - expected.head) / 3 / visits * (visits - 1));
}

}  // namespace smelt::test
