// SPDX-License-Identifier: Apache-2.0
//
// The suite of dispatch and combine on the host, and what only the host can be asked: threads,
// indices that name no expert, and 32 GiB of addresses.
#include "dispatch.hpp"

#include <sys/mman.h>

using namespace smelt;
using namespace smelt::test;

TEST_CASE_TEMPLATE_INVOKE(dispatch_plans, host<>);
TEST_CASE_TEMPLATE_INVOKE(combine_values, host<double>, host<>, host<bf16>);
TEST_CASE_TEMPLATE_INVOKE(combine_transpose, host<double>, host<>);
TEST_CASE_TEMPLATE_INVOKE(combine_not_numbers, host<double>, host<>);
TEST_CASE_TEMPLATE_INVOKE(combine_empty, host<double>, host<>);

TEST_CASE("dispatch: one thread and two give the same plan and the same bits") {
  for (const dispatch_size& size : dispatch_sizes) {
    CAPTURE(size.tokens);
    CAPTURE(size.experts);
    const auto chosen = choices(size.tokens, size.spread, size.top_k, 4);
    plan_memory<host<>> one(size.tokens, size.experts, size.top_k);
    plan_memory<host<>> two(size.tokens, size.experts, size.top_k);
    one.dispatch(chosen, host<>(1));
    two.dispatch(chosen, host<>(2));
    CHECK(same_plan(one, two));
    const std::int64_t hidden = 19;
    const auto y = random_values<float>(one.plan().slots() * hidden, 7);
    const auto combined = [&](int threads) {
      auto out = poisoned<float>(size.tokens * hidden);
      combine_forward(host<>(threads),
                      matrix_view<const float>(y.data(), one.plan().slots(), hidden),
                      one.slot_of.data(), size.top_k, 0.7F, into::overwrite,
                      matrix_view<float>(out.data(), size.tokens, hidden));
      return out;
    };
    CHECK(combined(1) == combined(2));
  }
}

TEST_CASE("dispatch: an index that names no expert is an error; nothing is written through it") {
  for (const std::int32_t wrong : {-1, 4, std::numeric_limits<std::int32_t>::max()}) {
    auto chosen = choices(9, 4, 2, 1);
    chosen[5] = wrong;
    plan_memory<host<>> memory(9, 4, 2);
    CHECK_THROWS_WITH_AS(memory.dispatch(chosen, host<>(1)),
                         "dispatch: expected 18 expert indices in [0, 4), found 1 outside; give it "
                         "what route_forward wrote",
                         error);
    CHECK(memory.slot_of.values() == std::vector<std::int64_t>(18, -1));
    CHECK(memory.token_of.values() == std::vector<std::int64_t>(18, -1));
  }
}

TEST_CASE("dispatch: case 18: slots past 2^31 elements are reached, not wrapped") {
  // 2^33 floats of address space, of which only the touched pages become memory.
  constexpr std::int64_t tokens = std::int64_t{1} << 20;
  constexpr std::int64_t top_k = 8;
  constexpr std::int64_t hidden = 1024;
  dispatch_plan plan;
  plan.tokens = tokens;
  plan.top_k = top_k;
  REQUIRE(plan.slots() * hidden == 8589934592);
  std::int64_t token_of = tokens - 1;
  std::int32_t choice_of = 7;
  plan.token_of = &token_of;
  plan.choice_of = &choice_of;
  CHECK(plan.assignment(0) == 8388607);

  const std::size_t bytes = sizeof(float) * static_cast<std::size_t>(plan.slots() * hidden);
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    MESSAGE("skipped: no 32 GiB of address space here");
    return;
  }
  const matrix_view<float> slots(static_cast<float*>(memory), plan.slots(), hidden);
  const std::int64_t last = plan.slots() - 1;
  slots(last, hidden - 1) = 3.0F;
  slots(last - (std::int64_t{1} << 22), hidden - 1) = 4.0F;  // 2^32 elements before
  const std::vector<std::int64_t> slot_of{last, last - (std::int64_t{1} << 22)};
  std::vector<float> out(hidden, -1.0F);
  combine_forward(host<float>(1), matrix_view<const float>(slots), slot_of.data(), 2, 1.0F,
                  into::overwrite, matrix_view<float>(out.data(), 1, hidden));
  CHECK(out.back() == 7.0F);
  CHECK(out.front() == 0.0F);
  munmap(memory, bytes);
}
