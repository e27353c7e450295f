// SPDX-License-Identifier: Apache-2.0
//
// Dispatch against a stable sort, combine against loops in double, and the ragged cases: experts
// with no token, all tokens on one expert, one token, more experts than a byte can count.
#include "smelt/op/dispatch.hpp"

#include <doctest/doctest.h>
#include <sys/mman.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

#include "gradient.hpp"

using namespace smelt;

namespace {

struct plan_memory {
  plan_memory(std::int64_t tokens, std::int64_t experts, std::int64_t top_k)
      : offsets(static_cast<std::size_t>(experts + 1), -1),
        slot_of(static_cast<std::size_t>(tokens * top_k), -1),
        token_of(slot_of),
        choice_of(slot_of.size(), -1),
        plan{tokens,         experts,         top_k,           offsets.data(),
             slot_of.data(), token_of.data(), choice_of.data()} {}
  plan_memory(const plan_memory&) = delete;
  plan_memory& operator=(const plan_memory&) = delete;

  std::vector<std::int64_t> offsets, slot_of, token_of;
  std::vector<std::int32_t> choice_of;
  dispatch_plan plan;
};

// top_k distinct experts per token; `spread` of them are in use, the others get nothing.
std::vector<std::int32_t> choices(std::int64_t tokens, std::int64_t spread, std::int64_t top_k,
                                  std::uint32_t seed) {
  std::mt19937 generator(seed);
  std::vector<std::int32_t> all(static_cast<std::size_t>(spread));
  std::iota(all.begin(), all.end(), 0);
  std::vector<std::int32_t> chosen;
  for (std::int64_t n = 0; n < tokens; ++n) {
    for (std::size_t k = 0; k < static_cast<std::size_t>(top_k); ++k)
      std::swap(all[k], all[k + generator() % (all.size() - k)]);
    chosen.insert(chosen.end(), all.begin(), all.begin() + top_k);
  }
  return chosen;
}

struct sizes {
  std::int64_t tokens, experts, spread, top_k;
};
// One token; all on one expert; experts without tokens; odd counts around and above 256 and 512;
// tokens in one, in several and in unequal chunks; no token at all.
constexpr sizes cases[] = {{1, 1, 1, 1},        {1, 32, 32, 8},     {100, 8, 1, 1},
                           {77, 9, 3, 2},       {511, 255, 255, 8}, {513, 256, 256, 8},
                           {1500, 257, 257, 3}, {700, 515, 515, 8}, {40000, 33, 33, 2},
                           {0, 4, 4, 2},        {600, 7, 7, 7}};

}  // namespace

TEST_CASE("cases 14, 15: slots are a stable sort of the assignments by expert") {
  for (const sizes& size : cases)
    for (const int threads : {1, 2}) {
      CAPTURE(size.tokens);
      CAPTURE(size.experts);
      const auto chosen = choices(size.tokens, size.spread, size.top_k, 4);
      plan_memory memory(size.tokens, size.experts, size.top_k);
      dispatch_forward(host<float>(threads), chosen.data(), memory.plan);

      std::vector<std::int64_t> order(chosen.size());
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
        return chosen[static_cast<std::size_t>(a)] < chosen[static_cast<std::size_t>(b)];
      });
      bool same = true;
      for (std::size_t slot = 0; slot < order.size(); ++slot) {
        const std::int64_t assignment = order[slot];
        same = same && memory.token_of[slot] == assignment / size.top_k &&
               memory.choice_of[slot] == assignment % size.top_k &&
               memory.slot_of[static_cast<std::size_t>(assignment)] ==
                   static_cast<std::int64_t>(slot) &&
               memory.plan.assignment(static_cast<std::int64_t>(slot)) == assignment;
      }
      CHECK(same);
      for (std::int64_t e = 0; e < size.experts; ++e)
        CHECK(memory.plan.count(e) ==
              std::count(chosen.begin(), chosen.end(), static_cast<std::int32_t>(e)));
      CHECK(memory.offsets.front() == 0);
      CHECK(memory.offsets.back() == memory.plan.slots());
    }
}

TEST_CASE("an index that names no expert is an error, and nothing is written through it") {
  for (const std::int32_t wrong : {-1, 4, std::numeric_limits<std::int32_t>::max()}) {
    auto chosen = choices(9, 4, 2, 1);
    chosen[5] = wrong;
    plan_memory memory(9, 4, 2);
    CHECK_THROWS_WITH_AS(dispatch_forward(host<float>(1), chosen.data(), memory.plan),
                         "dispatch: expected 18 expert indices in [0, 4), found 1 outside; give it "
                         "what route_forward wrote",
                         error);
    CHECK(memory.slot_of == std::vector<std::int64_t>(18, -1));
  }
}

TEST_CASE("combine adds a token's slots, over or onto what is there") {
  for (const std::int64_t hidden : {1, 7, 64, 65, 130, 256}) {
    CAPTURE(hidden);
    constexpr std::int64_t tokens = 45;
    constexpr std::int64_t top_k = 3;
    const auto chosen = choices(tokens, 6, top_k, 2);
    plan_memory memory(tokens, 6, top_k);
    dispatch_forward(host<double>(1), chosen.data(), memory.plan);
    const auto y = test::random_values<double>(tokens * top_k * hidden, 3);
    const auto kept = test::random_values<double>(tokens * hidden, 4);
    std::vector<double> sum(static_cast<std::size_t>(tokens * hidden), 0.0);
    for (std::size_t slot = 0; slot < static_cast<std::size_t>(tokens * top_k); ++slot)
      for (std::size_t j = 0; j < static_cast<std::size_t>(hidden); ++j)
        sum[static_cast<std::size_t>(memory.token_of[slot] * hidden) + j] +=
            0.25 * y[slot * static_cast<std::size_t>(hidden) + j];

    for (const int threads : {1, 2}) {
      auto out = test::poisoned<double>(tokens * hidden);
      const matrix_view<double> view(out.data(), tokens, hidden);
      const matrix_view<const double> slots(y.data(), tokens * top_k, hidden);
      combine_forward(host<double>(threads), slots, memory.slot_of.data(), top_k, 0.25,
                      into::overwrite, view);
      CHECK(test::relative_error(out, sum) < 1e-15);
      out = kept;
      auto expected = kept;
      for (std::size_t i = 0; i < sum.size(); ++i) expected[i] += sum[i];
      combine_forward(host<double>(threads), slots, memory.slot_of.data(), top_k, 0.25,
                      into::accumulate, view);
      CHECK(test::relative_error(out, expected) < 1e-15);

      const std::vector<float> y_float(y.begin(), y.end());
      auto out_float = test::poisoned<float>(tokens * hidden);
      combine_forward(host<bf16>(threads),
                      matrix_view<const float>(y_float.data(), tokens * top_k, hidden),
                      memory.slot_of.data(), top_k, 0.25F, into::overwrite,
                      matrix_view<float>(out_float.data(), tokens, hidden));
      CHECK(test::relative_error(out_float, sum) < 1e-6);
    }
  }
}

TEST_CASE("combine is the transpose of gathering rows into slots") {
  // <gather(x), y> = <x, combine(y)> for every x and y: each is the other's backward.
  constexpr std::int64_t tokens = 60;
  constexpr std::int64_t top_k = 4;
  constexpr std::int64_t hidden = 9;
  const auto chosen = choices(tokens, 11, top_k, 8);
  plan_memory memory(tokens, 11, top_k);
  dispatch_forward(host<double>(2), chosen.data(), memory.plan);
  const auto x = test::random_values<double>(tokens * hidden, 5);
  const auto y = test::random_values<double>(tokens * top_k * hidden, 6);
  double gathered = 0.0;
  for (std::size_t slot = 0; slot < static_cast<std::size_t>(tokens * top_k); ++slot)
    for (std::size_t j = 0; j < static_cast<std::size_t>(hidden); ++j)
      gathered += x[static_cast<std::size_t>(memory.token_of[slot] * hidden) + j] *
                  y[slot * static_cast<std::size_t>(hidden) + j];
  auto combined = test::poisoned<double>(tokens * hidden);
  combine_forward(host<double>(2), matrix_view<const double>(y.data(), tokens * top_k, hidden),
                  memory.slot_of.data(), top_k, 1.0, into::overwrite,
                  matrix_view<double>(combined.data(), tokens, hidden));
  CHECK(test::dot(x, combined) == doctest::Approx(gathered).epsilon(1e-12));
}

TEST_CASE("case 18: slots past 2^31 elements are reached, not wrapped") {
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
