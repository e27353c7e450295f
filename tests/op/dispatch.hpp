// SPDX-License-Identifier: Apache-2.0
//
// Dispatch and combine on any backend: against a stable sort and loops in double, and the ragged
// cases: experts with no token, all tokens on one expert, one token, more experts than a byte can
// count.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "gradient.hpp"
#include "smelt/op/dispatch.hpp"
#include "support/tensor.hpp"

namespace smelt::test {

/// A plan with its memory on the policy's side; every element is -1 until it is written.
template <class Policy>
struct plan_memory {
  std::int64_t tokens, experts, top_k;
  tensor<std::int64_t, Policy> offsets, slot_of, token_of;
  tensor<std::int32_t, Policy> choice_of;

  plan_memory(std::int64_t tokens_, std::int64_t experts_, std::int64_t top_k_)
      : tokens(tokens_),
        experts(experts_),
        top_k(top_k_),
        offsets(std::vector<std::int64_t>(static_cast<std::size_t>(experts + 1), -1)),
        slot_of(std::vector<std::int64_t>(static_cast<std::size_t>(tokens * top_k), -1)),
        token_of(std::vector<std::int64_t>(static_cast<std::size_t>(tokens * top_k), -1)),
        choice_of(std::vector<std::int32_t>(static_cast<std::size_t>(tokens * top_k), -1)) {}

  dispatch_plan plan() const {
    return {tokens,         experts,         top_k,           offsets.data(),
            slot_of.data(), token_of.data(), choice_of.data()};
  }
  void dispatch(const std::vector<std::int32_t>& chosen, const Policy& run = policy<Policy>()) {
    const tensor<std::int32_t, Policy> from(chosen);
    dispatch_forward(run, from.data(), plan());
  }
};

template <class A, class B>
bool same_plan(const plan_memory<A>& a, const plan_memory<B>& b) {
  return a.offsets.values() == b.offsets.values() && a.slot_of.values() == b.slot_of.values() &&
         a.token_of.values() == b.token_of.values() && a.choice_of.values() == b.choice_of.values();
}

/// top_k distinct experts per token; `spread` of them are in use, the others get nothing.
inline std::vector<std::int32_t> choices(std::int64_t tokens, std::int64_t spread,
                                         std::int64_t top_k, std::uint32_t seed) {
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

struct dispatch_size {
  std::int64_t tokens, experts, spread, top_k;
};
// One token; all on one expert; experts without tokens; odd counts around and above 256 and 512;
// tokens in one, in several and in unequal chunks, and in exactly one and two (2048 assignments);
// no token at all.
inline const std::vector<dispatch_size> dispatch_sizes = {
    {1, 1, 1, 1},       {1, 32, 32, 8},     {100, 8, 1, 1},       {77, 9, 3, 2},
    {511, 255, 255, 8}, {513, 256, 256, 8}, {1500, 257, 257, 3},  {700, 515, 515, 8},
    {256, 40, 40, 8},   {512, 40, 40, 8},   {40000, 33, 33, 2},   {3000, 5, 1, 1},
    {0, 4, 4, 2},       {600, 7, 7, 7},     {300, 1500, 1500, 8}, {31, 504, 504, 5}};

TEST_CASE_TEMPLATE_DEFINE("dispatch: cases 14, 15: slots are a stable sort by expert", Policy,
                          dispatch_plans) {
  for (const dispatch_size& size : dispatch_sizes) {
    CAPTURE(size.tokens);
    CAPTURE(size.experts);
    const auto chosen = choices(size.tokens, size.spread, size.top_k, 4);
    plan_memory<Policy> memory(size.tokens, size.experts, size.top_k);
    memory.dispatch(chosen);

    auto offsets = memory.offsets.values(), slot_of = memory.slot_of.values(),
         token_of = memory.token_of.values();
    auto choice_of = memory.choice_of.values();
    const dispatch_plan plan{size.tokens,    size.experts,    size.top_k,      offsets.data(),
                             slot_of.data(), token_of.data(), choice_of.data()};
    std::vector<std::int64_t> order(chosen.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
      return chosen[static_cast<std::size_t>(a)] < chosen[static_cast<std::size_t>(b)];
    });
    bool same = true;
    for (std::size_t slot = 0; slot < order.size(); ++slot) {
      const std::int64_t assignment = order[slot];
      same = same && token_of[slot] == assignment / size.top_k &&
             choice_of[slot] == assignment % size.top_k &&
             slot_of[static_cast<std::size_t>(assignment)] == static_cast<std::int64_t>(slot) &&
             plan.assignment(static_cast<std::int64_t>(slot)) == assignment;
    }
    CHECK(same);
    bool counted = true;
    for (std::int64_t e = 0; e < size.experts; ++e)
      counted = counted && plan.count(e) == std::count(chosen.begin(), chosen.end(),
                                                       static_cast<std::int32_t>(e));
    CHECK(counted);
    CHECK(offsets.front() == 0);
    CHECK(offsets.back() == plan.slots());
  }
}

/// Widths and whether rows begin at aligned addresses: whole pieces of 16 bytes, broken ones, rows
/// that lie apart.
struct combine_size {
  std::int64_t hidden, slot_stride, out_stride, offset;
};
inline const std::vector<combine_size> combine_sizes = {
    {1, 1, 1, 0},       {7, 7, 7, 0},       {8, 8, 8, 0},       {64, 64, 64, 0},   {65, 65, 65, 0},
    {130, 130, 130, 0}, {256, 256, 256, 0}, {264, 264, 264, 0}, {64, 64, 64, 1},   {64, 72, 68, 0},
    {64, 65, 64, 0},    {64, 64, 66, 0},    {24, 32, 40, 8},    {100, 100, 100, 0}};

// Slot rows and out rows of `size`, sums and sums onto what was there, against loops in double.
template <class Slot, class Policy>
void check_combine(const combine_size& size, double bound) {
  using real = typename Policy::real;
  CAPTURE(size.hidden);
  CAPTURE(size.slot_stride);
  CAPTURE(size.out_stride);
  CAPTURE(size.offset);
  constexpr std::int64_t tokens = 45, top_k = 3;
  plan_memory<Policy> memory(tokens, 6, top_k);
  memory.dispatch(choices(tokens, 6, top_k, 2));
  const auto values = random_values<float>(tokens * top_k * size.slot_stride + size.offset, 3);
  std::vector<Slot> y;
  for (const float value : values) y.push_back(static_cast<Slot>(value));
  const auto wide = as_double(y);
  const auto kept = random_values<real>(tokens * size.out_stride + size.offset, 4);
  const auto token_of = memory.token_of.values();
  std::vector<double> sum(kept.size(), 0.0);
  for (std::int64_t slot = 0; slot < tokens * top_k; ++slot)
    for (std::int64_t j = 0; j < size.hidden; ++j)
      sum[static_cast<std::size_t>(
          size.offset + token_of[static_cast<std::size_t>(slot)] * size.out_stride + j)] +=
          0.25 * wide[static_cast<std::size_t>(size.offset + slot * size.slot_stride + j)];

  const tensor<Slot, Policy> from(y);
  tensor<real, Policy> out(kept);
  const matrix_view<const Slot> slots(from.data() + size.offset, tokens * top_k, size.hidden,
                                      size.slot_stride);
  const matrix_view<real> to(out.data() + size.offset, tokens, size.hidden, size.out_stride);
  for (const into mode : {into::accumulate, into::overwrite}) {
    combine_forward(policy<Policy>(), slots, memory.slot_of.data(), top_k, real(0.25), mode, to);
    const auto found = out.values();
    std::vector<double> inside, expected;
    bool untouched = true;
    for (std::size_t i = 0; i < found.size(); ++i) {
      const std::int64_t place = static_cast<std::int64_t>(i) - size.offset;
      if (place < 0 || place % size.out_stride >= size.hidden) {
        untouched = untouched && found[i] == kept[i];
      } else {
        inside.push_back(static_cast<double>(found[i]));
        expected.push_back(sum[i] +
                           (mode == into::accumulate ? static_cast<double>(kept[i]) : 0.0));
      }
    }
    CHECK(relative_error(inside, expected) < bound);
    CHECK(untouched);
    // What is overwritten must not be read.
    auto spoilt = kept;
    for (std::size_t i = 0; i < spoilt.size(); ++i) {
      const std::int64_t place = static_cast<std::int64_t>(i) - size.offset;
      if (place >= 0 && place % size.out_stride < size.hidden)
        spoilt[i] = std::numeric_limits<real>::quiet_NaN();
    }
    out.set(spoilt);
  }
}

TEST_CASE_TEMPLATE_DEFINE("combine: adds a token's slots, over or onto what is there", Policy,
                          combine_values) {
  for (const combine_size& size : combine_sizes) {
    const double bound = tolerance<Policy>(1e-6, 1e-6, 1e-15);
    check_combine<typename Policy::real, Policy>(size, bound);
    check_combine<typename Policy::compute, Policy>(size, bound);
  }
}

TEST_CASE_TEMPLATE_DEFINE("combine: is the transpose of gathering rows into slots", Policy,
                          combine_transpose) {
  using real = typename Policy::real;
  // <gather(x), y> = <x, combine(y)> for every x and y: each is the other's backward.
  constexpr std::int64_t tokens = 60, top_k = 4, hidden = 9;
  plan_memory<Policy> memory(tokens, 11, top_k);
  memory.dispatch(choices(tokens, 11, top_k, 8));
  const auto x = random_values<real>(tokens * hidden, 5);
  const auto y = random_values<real>(tokens * top_k * hidden, 6);
  const auto token_of = memory.token_of.values();
  double gathered = 0.0;
  for (std::size_t slot = 0; slot < static_cast<std::size_t>(tokens * top_k); ++slot)
    for (std::size_t j = 0; j < static_cast<std::size_t>(hidden); ++j)
      gathered += static_cast<double>(x[static_cast<std::size_t>(token_of[slot] * hidden) + j]) *
                  static_cast<double>(y[slot * static_cast<std::size_t>(hidden) + j]);
  const tensor<real, Policy> slots(y), combined(poisoned<real>(tokens * hidden));
  combine_forward(policy<Policy>(), slots.constant(tokens * top_k, hidden), memory.slot_of.data(),
                  top_k, real(1), into::overwrite, combined.view(tokens, hidden));
  CHECK(dot(x, combined.values()) ==
        doctest::Approx(gathered).epsilon(tolerance<Policy>(1e-5, 1e-5, 1e-12)));
}

TEST_CASE_TEMPLATE_DEFINE("combine: case 16: NaN in a slot reaches its token and no other", Policy,
                          combine_not_numbers) {
  using real = typename Policy::real;
  constexpr std::int64_t tokens = 33, top_k = 2, hidden = 40;
  plan_memory<Policy> memory(tokens, 5, top_k);
  memory.dispatch(choices(tokens, 5, top_k, 3));
  auto y = random_values<real>(tokens * top_k * hidden, 6);
  const std::int64_t slot = 17;
  const std::int64_t token = memory.token_of.values()[static_cast<std::size_t>(slot)];
  y[static_cast<std::size_t>(slot * hidden + 7)] = std::numeric_limits<real>::quiet_NaN();
  const tensor<real, Policy> slots(y), combined(poisoned<real>(tokens * hidden));
  combine_forward(policy<Policy>(), slots.constant(tokens * top_k, hidden), memory.slot_of.data(),
                  top_k, real(1), into::overwrite, combined.view(tokens, hidden));
  const auto found = combined.values();
  bool right = true;
  for (std::int64_t i = 0; i < tokens * hidden; ++i)
    right = right && std::isnan(found[static_cast<std::size_t>(i)]) == (i == token * hidden + 7);
  CHECK(right);
}

TEST_CASE_TEMPLATE_DEFINE("combine: no tokens are no work", Policy, combine_empty) {
  using real = typename Policy::real;
  const tensor<real, Policy> none({});
  combine_forward(policy<Policy>(), none.constant(0, 8), static_cast<const std::int64_t*>(nullptr),
                  2, real(1), into::overwrite, none.view(0, 8));
  CHECK(none.values().empty());
}

}  // namespace smelt::test
