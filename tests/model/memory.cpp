// SPDX-License-Identifier: Apache-2.0
//
// A step allocates nothing, and a shorter batch than the arena holds is right too.
#include <doctest/doctest.h>

#include "../support/allocation_counter.hpp"
#include "precision.hpp"

using namespace smelt;
using namespace smelt::test;

namespace {
template <class Model>
void check_allocation_free(int threads) {
  const token_batch batch = documents_of({70, 1, 200}, 2);
  trainer<Model, host<float>> t(host<>(threads), test_options(batch.tokens()), 1);
  // The first step makes scratch and the library's kernels.
  t.step(batch.view());
  t.evaluate(batch.view());
  const std::int64_t before = allocations();
  for (int i = 0; i < 3; ++i) t.step(batch.view());
  t.evaluate(batch.view());
  CHECK(allocations() - before == 0);
}
}  // namespace

TEST_CASE("the counter counts") {
  const std::int64_t before = allocations();
  const std::vector<int> something(static_cast<std::size_t>(before % 7 + 1));
  CHECK(something.size() > 0);
  CHECK(allocations() - before == 1);
}

TEST_CASE("a training step allocates nothing") {
  for (const int threads : {1, 2}) {
    check_allocation_free<looped_moe>(threads);
    check_allocation_free<shared_expert>(threads);
    check_allocation_free<mixed>(threads);
  }
}

TEST_CASE("an arena for more tokens than the batch has changes nothing") {
  const token_batch batch = documents_of({13, 4}, 2);
  trainer<looped_moe, host<double>> exact(host<double>(1), test_options(17), 1);
  trainer<looped_moe, host<double>> roomy(host<double>(1), test_options(100), 1);
  const batch_view view = batch.view();
  const auto a = exact.accumulate(std::span(&view, 1));
  const auto b = roomy.accumulate(std::span(&view, 1));
  CHECK(a.loss == b.loss);
  CHECK(a.norm == b.norm);
}

namespace {
// Layout against closed form, padding left out; and the arenas against the parameters.
template <class Model>
void check_memory_plan() {
  constexpr std::int64_t sequences = 3, context = 7;
  constexpr memory_bytes single = memory_plan<Model, sequences, context>;
  constexpr memory_bytes half = memory_plan<Model, sequences, context, storage::bf16>;
  const host<float> run(1);
  const activations<host<float>> in_float(run, plan_of<Model>(), sequences * context);
  const activations<host<bf16>> in_half(host<bf16>(1), plan_of<Model>(), sequences * context);
  CHECK(in_float.payload_bytes() == single.activations);
  host<float> lean(1);
  lean.set_recompute(recomputation::visits);
  const activations<host<float>> recomputed(lean, plan_of<Model>(), sequences * context);
  CHECK(recomputed.payload_bytes() ==
        recomputed_memory_plan<Model, sequences, context>.activations);
  CHECK(recomputed.bytes() < in_float.bytes());
  CHECK(in_half.payload_bytes() == half.activations);
  CHECK(in_float.bytes() >= single.activations);  // padding only adds

  trainer<Model, host<bf16>> t(host<bf16>(1), test_options(sequences * context), 1);
  // Each tensor is padded to 16 elements at most.
  std::int64_t tensors = 0;
  for_each_tensor(t.plan(), [&](const std::string&, const tensor_place&) { ++tensors; });
  const auto close = [tensors](std::int64_t arena, std::int64_t planned, std::int64_t element) {
    return arena >= planned && arena - planned < tensors * 16 * element;
  };
  CHECK(close(t.weight_bytes(), half.weights + half.copies, 6));
  CHECK(close(t.gradient_bytes(), half.gradients, 4));
  CHECK(close(t.optimizer_bytes(), half.optimizer, 8));
}
}  // namespace

TEST_CASE("the memory plan of the type is what the arenas hold") {
  check_memory_plan<looped_moe>();
  check_memory_plan<shared_expert>();
  check_memory_plan<mixed>();
  check_memory_plan<dense_looped>();
  check_memory_plan<one_layer>();
}

TEST_CASE_TEMPLATE_INVOKE(model_recomputation, host<double>, host<>, host<bf16>);
TEST_CASE_TEMPLATE_INVOKE(model_recomputation_accounting, host<>);

TEST_CASE("memory that is not there is refused with the figures of the type") {
  constexpr std::int64_t tokens = std::int64_t{1} << 52;
  CHECK_THROWS_WITH_AS((trainer<plain_moe, host<>>(host<>(1), test_options(tokens), 1)),
                       doctest::Contains("for 4503599627370496 tokens: weights "), out_of_memory);
}
