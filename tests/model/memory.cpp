// SPDX-License-Identifier: Apache-2.0
//
// A step allocates nothing, and a shorter batch than the arena holds is right too.
#include <doctest/doctest.h>

#include "allocation_counter.hpp"
#include "small_models.hpp"

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
