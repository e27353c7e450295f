// SPDX-License-Identifier: Apache-2.0
//
// Packed documents do not see each other: each gives the same logits and loss as alone; and a batch
// split into micro-batches gives the same loss and gradient as whole (case 28).
#include <doctest/doctest.h>

#include <limits>
#include <vector>

#include "../op/gradient.hpp"
#include "small_models.hpp"

using namespace smelt;
using namespace smelt::test;

namespace {
// Logits of every position, from the normalised output and the head.
template <class Model>
std::vector<double> logits_of(trainer<Model, host<double>>& t, const batch_view& batch) {
  t.evaluate(batch);
  std::vector<double> logits(static_cast<std::size_t>(batch.tokens * 11));
  product(
      host<double>(1),
      matrix_view<const double>(t.state().activity.final_input(), batch.tokens, t.plan().hidden),
      transposed(t.state().operand(t.plan().head)),
      matrix_view<double>(logits.data(), batch.tokens, 11));
  return logits;
}

template <class Model>
void check_packing() {
  const std::vector<std::int64_t> lengths{5, 1, 140, 8, 2};
  const token_batch together = documents_of(lengths, 3);
  const training_options options = test_options(together.tokens());
  trainer<Model, host<double>> t(host<double>(1), options, 1);
  const auto all = logits_of(t, together.view());
  std::int64_t begin = 0;
  for (const std::int64_t length : lengths) {
    token_batch alone(length);
    alone.add_segment(together.view().inputs + begin, length, no_target);
    const auto own = logits_of(t, alone.view());
    const std::vector<double> part(all.begin() + begin * 11, all.begin() + (begin + length) * 11);
    CHECK(relative_error(part, own) < 1e-12);
    begin += length;
  }
}

template <class Model, class Compute>
void check_accumulation(double tolerance) {
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
  trainer<Model, host<Compute>> a(host<Compute>(1), options, 1), b(host<Compute>(1), options, 1);
  const batch_view all = whole.view();
  const auto one = a.accumulate(std::span(&all, 1));
  const auto many = b.accumulate(views);
  CHECK(one.tokens == many.tokens);
  CHECK(one.loss == doctest::Approx(many.loss).epsilon(tolerance));
  CHECK(one.losses.load_balance == doctest::Approx(many.losses.load_balance).epsilon(tolerance));
  CHECK(one.losses.router_z == doctest::Approx(many.losses.router_z).epsilon(tolerance));
  const auto* g = a.state().gradients.data();
  const auto* h = b.state().gradients.data();
  CHECK(relative_error(std::vector<double>(h, h + b.plan().elements),
                       std::vector<double>(g, g + a.plan().elements)) < tolerance);
  for (std::size_t i = 0; i < a.expert_counts().size(); ++i)
    CHECK(a.expert_counts()[i] == b.expert_counts()[i]);
}
}  // namespace

TEST_CASE("packed documents give the same logits as each alone") {
  check_packing<looped_moe>();
  check_packing<mixed>();
  check_packing<shared_expert>();
}

TEST_CASE("the same tokens as 1 x 8 and 8 x 1 give the same loss and gradient") {
  check_accumulation<looped_moe, double>(1e-12);
  check_accumulation<shared_expert, double>(1e-12);
  check_accumulation<looped_moe, float>(1e-4);
}

TEST_CASE("unequal documents are averaged over tokens, not over documents (case 28)") {
  const token_batch batch = documents_of({3, 30}, 3);
  const batch_view all = batch.view();
  trainer<plain_moe, host<double>> t(host<double>(1), test_options(33), 1);
  const auto whole = t.accumulate(std::span(&all, 1));
  double sum = 0.0;
  std::int64_t begin = 0;
  for (const std::int64_t length : {3, 30}) {
    token_batch alone(length);
    alone.add_segment(all.inputs + begin, length, no_target);
    sum += t.evaluate(alone.view()).loss_sum;
    begin += length;
  }
  CHECK(whole.loss == doctest::Approx(sum / (2 + 29)).epsilon(1e-12));
}

TEST_CASE("gradients start from zero in every step (case 29)") {
  const token_batch batch = documents_of({16}, 3);
  const batch_view all = batch.view();
  trainer<looped_moe, host<double>> t(host<double>(1), test_options(16), 1);
  const auto first = t.accumulate(std::span(&all, 1));
  const auto second = t.accumulate(std::span(&all, 1));
  CHECK(first.loss == second.loss);
  CHECK(first.norm == second.norm);
}
