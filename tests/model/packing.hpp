// SPDX-License-Identifier: Apache-2.0
//
// Packed documents do not see each other: each gives the same loss as alone; and a batch split into
// micro-batches gives the same loss and gradient as whole (case 28). On any backend.
#pragma once

#include <doctest/doctest.h>

#include <vector>

#include "unrolled.hpp"

namespace smelt::test {

template <class Model, class Policy>
void check_packing() {
  const std::vector<std::int64_t> lengths{5, 1, 140, 8, 2};
  const token_batch together = documents_of(lengths, 3);
  trainer<Model, Policy> t(policy<Policy>(), test_options(together.tokens()), 1);
  const auto output_of = [&](const batch_view& batch) {
    t.evaluate(batch);
    std::vector<typename Policy::compute> out(
        static_cast<std::size_t>(batch.tokens * t.plan().hidden));
    const typename Policy::compute* from = t.state().activity.final_input();
    download(t.policy(), from, batch.tokens * t.plan().hidden, out.data());
    return as_double(out);
  };
  // What the head reads decides every logit.
  const auto all = output_of(together.view());
  std::int64_t begin = 0;
  for (const std::int64_t length : lengths) {
    token_batch alone(length);
    alone.add_segment(together.view().inputs + begin, length, no_target);
    const auto own = output_of(alone.view());
    const auto part = all.begin() + begin * t.plan().hidden;
    CHECK(relative_error(std::vector<double>(part, part + length * t.plan().hidden), own) <
          order_tolerance<Policy>);
    begin += length;
  }
}

template <class Model, class Policy>
void check_accumulation() {
  // Eight sequences of one length: as one batch, and one by one.
  const token_batch whole = documents_of({9, 9, 9, 9, 9, 9, 9, 9}, 6);
  std::vector<token_batch> parts;
  for (std::int64_t s = 0; s < 8; ++s) {
    parts.emplace_back(9);
    parts.back().add_segment(whole.view().inputs + s * 9, 9, no_target);
  }
  std::vector<batch_view> views;
  for (const token_batch& part : parts) views.push_back(part.view());
  training_options options = test_options(whole.tokens());
  options.balance_group_tokens = 9;
  trainer<Model, Policy> a(policy<Policy>(), options, 1), b(policy<Policy>(), options, 1);
  const batch_view all = whole.view();
  const auto one = a.accumulate(std::span(&all, 1));
  const auto many = b.accumulate(views);
  constexpr double bound = order_tolerance<Policy>;
  CHECK(one.tokens == many.tokens);
  CHECK(one.loss == doctest::Approx(many.loss).epsilon(bound));
  CHECK(one.load_balance == doctest::Approx(many.load_balance).epsilon(bound));
  CHECK(one.router_z == doctest::Approx(many.router_z).epsilon(bound));
  CHECK(relative_error(as_double(gradients_of(b)), as_double(gradients_of(a))) < bound);
  for (std::size_t i = 0; i < a.expert_counts().size(); ++i)
    CHECK(a.expert_counts()[i] == b.expert_counts()[i]);
}

TEST_CASE_TEMPLATE_DEFINE("packed documents give the same output as each alone", Policy,
                          model_packing) {
  check_packing<looped_moe, Policy>();
  check_packing<mixed, Policy>();
  check_packing<shared_expert, Policy>();
}

TEST_CASE_TEMPLATE_DEFINE("the same tokens as 1 x 8 and 8 x 1 give the same loss and gradient",
                          Policy, model_accumulation) {
  check_accumulation<looped_moe, Policy>();
  check_accumulation<shared_expert, Policy>();
}

TEST_CASE_TEMPLATE_DEFINE(
    "unequal documents are averaged over tokens, not over documents (case 28)", Policy,
    model_unequal) {
  const token_batch batch = documents_of({3, 30}, 3);
  const batch_view all = batch.view();
  trainer<plain_moe, Policy> t(policy<Policy>(), test_options(33), 1);
  const auto whole = t.accumulate(std::span(&all, 1));
  double sum = 0.0;
  std::int64_t begin = 0;
  for (const std::int64_t length : {3, 30}) {
    token_batch alone(length);
    alone.add_segment(all.inputs + begin, length, no_target);
    sum += t.evaluate(alone.view()).loss_sum;
    begin += length;
  }
  CHECK(whole.loss == doctest::Approx(sum / (2 + 29)).epsilon(tolerance<Policy>(1e-6, 1e-4)));
}

TEST_CASE_TEMPLATE_DEFINE("gradients start from zero in every step (case 29)", Policy,
                          model_from_zero) {
  const token_batch batch = documents_of({16}, 3);
  const batch_view all = batch.view();
  trainer<looped_moe, Policy> t(policy<Policy>(), test_options(16), 1);
  const auto first = t.accumulate(std::span(&all, 1));
  const auto second = t.accumulate(std::span(&all, 1));
  CHECK(first.loss == second.loss);
  CHECK(first.norm == second.norm);
}

}  // namespace smelt::test
