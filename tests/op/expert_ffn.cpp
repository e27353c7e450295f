// SPDX-License-Identifier: Apache-2.0
//
// The experts against loops over tokens in double, their gradients against central differences, and
// every raggedness: no token, all tokens, one token, counts and widths at, beside and beyond
// blocks.
#include "smelt/op/expert_ffn.hpp"

#include <doctest/doctest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "../support/allocation_counter.hpp"
#include "expert_layer.hpp"
#include "gradient.hpp"
#include "smelt/op/balance.hpp"
#include "smelt/op/dispatch.hpp"
#include "smelt/op/route.hpp"

using namespace smelt;
using smelt::test::allocations;
using smelt::test::expert_reference;
using smelt::test::layer;
using smelt::test::outcome;
using smelt::test::problem;

namespace {

template <class Real>
void check_close(const outcome<Real>& found, const outcome<double>& expected, double bound) {
  CHECK(test::relative_error(found.out, expected.out) < bound);
  CHECK(test::relative_error(found.dx, expected.dx) < bound);
  CHECK(test::relative_error(found.dweights, expected.dweights) < bound);
  CHECK(test::relative_error(found.dgate_up, expected.dgate_up) < bound);
  CHECK(test::relative_error(found.ddown, expected.ddown) < bound);
}

struct sizes {
  std::int64_t tokens;
  expert_ffn_shape shape;  // experts, top_k, hidden, width
  std::int64_t spread;     // experts in use
};
// Case 15: one token; experts without tokens; all on one expert, in one block, in several and in
// more than a wave; counts of a block exactly and one beside it. Case 19: widths of 1, below, at
// and beside 16 and 256.
constexpr sizes cases[] = {
    {1, {1, 1, 1, 1}, 1},      {1, {8, 2, 5, 3}, 8},      {37, {9, 3, 17, 16}, 3},
    {50, {4, 4, 16, 15}, 4},   {255, {3, 1, 12, 17}, 1},  {256, {3, 1, 12, 17}, 1},
    {257, {3, 1, 12, 17}, 1},  {600, {5, 2, 11, 9}, 2},   {700, {6, 3, 9, 20}, 3},
    {4500, {4, 2, 5, 4}, 3},   {300, {2, 1, 33, 256}, 2}, {30, {5, 2, 130, 257}, 5},
    {40, {300, 8, 6, 7}, 300}, {90, {515, 8, 4, 3}, 515}, {500, {257, 4, 3, 5}, 257},
};

}  // namespace

TEST_CASE("cases 14, 15, 19: values and gradients are the definition's, however ragged") {
  for (const sizes& size : cases) {
    CAPTURE(size.tokens);
    CAPTURE(size.shape.experts);
    CAPTURE(size.shape.width);
    const problem p(size.tokens, size.shape, size.spread, 21);
    const auto expected = expert_reference(p);
    check_close(test::compute_experts<double>(p, 2), expected, 1e-12);
    check_close(test::compute_experts<float>(p, 2), expected, 1e-5);
    check_close(test::compute_experts<bf16>(p, 2), expected, 1e-2);
  }
}

TEST_CASE("case 19: a width above 4096") {
  const problem p(20, {2, 1, 24, 4100}, 2, 5);
  const auto expected = expert_reference(p);
  check_close(test::compute_experts<double>(p, 1), expected, 1e-12);
  check_close(test::compute_experts<float>(p, 2), expected, 1e-5);
  check_close(test::compute_experts<bf16>(p, 2), expected, 1e-2);
}

TEST_CASE("cases 17, 20: gradients by central differences, twice") {
  for (const sizes& size :
       {sizes{7, {5, 2, 4, 3}, 4}, sizes{6, {3, 1, 5, 6}, 1}, sizes{300, {2, 1, 2, 3}, 1}}) {
    problem p(size.tokens, size.shape, size.spread, 2);
    layer<double> l(p);
    l.forward(host<double>(2));
    l.backward(host<double>(2));
    const auto loss = [&] {
      layer<double> moved(p);
      moved.forward(host<double>(1));
      return test::dot(moved.result.out, p.dout);
    };
    const auto check = [&](std::vector<double>& input, const std::vector<double>& found) {
      CHECK(test::relative_error(found, test::central_differences(input, loss)) < 1e-6);
    };
    check(p.x, l.result.dx);
    check(p.weights, l.result.dweights);
    check(p.gate_up, l.result.dgate_up);
    check(p.down, l.result.ddown);

    // A second backward overwrites what is overwritten and doubles what is added to.
    const auto first = l.result;
    l.backward(host<double>(2));
    CHECK(l.result.dx == first.dx);
    CHECK(l.result.dweights == first.dweights);
    auto halved = l.result;
    for (double& value : halved.dgate_up) value *= 0.5;
    for (double& value : halved.ddown) value *= 0.5;
    check_close(halved, first, 1e-14);
  }
}

TEST_CASE("case 20: gate and up are told apart, with numbers worked out by hand") {
  // One token, hidden = width = 1: y = w d silu(g x) u x, with g = 2, u = 3, x = 0.5, d = 4, w =
  // 0.5.
  problem p(1, {1, 1, 1, 1}, 1, 1);
  p.x = {0.5};
  p.weights = {0.5};
  p.gate_up = {2.0, 3.0};
  p.down = {4.0};
  p.dout = {1.0};
  const auto found = test::compute_experts<double>(p, 1);
  const double s = 0.7310585786300049;      // sigmoid(1)
  const double slope = 0.9276705118714868;  // derivative of silu at 1
  CHECK(found.out[0] == doctest::Approx(3.0 * s));
  CHECK(found.dgate_up[0] == doctest::Approx(2.0 * slope * 1.5 * 0.5));
  CHECK(found.dgate_up[1] == doctest::Approx(2.0 * s * 0.5));
  CHECK(found.ddown[0] == doctest::Approx(0.5 * s * 1.5));
  CHECK(found.dweights[0] == doctest::Approx(4.0 * s * 1.5));
  CHECK(found.dx[0] == doctest::Approx(2.0 * (slope * 2.0 * 1.5 + s * 3.0)));
}

TEST_CASE("case 16: a token of NaN spoils itself alone, and nothing is written past the slots") {
  for (const std::int64_t spread : {5, 1}) {
    problem p(400, {5, 1, 13, 10}, spread, 3);
    const auto clean = test::compute_experts<float>(p, 2);
    constexpr std::size_t bad = 123;
    for (std::size_t j = 0; j < 13; ++j)
      p.x[bad * 13 + j] = std::numeric_limits<double>::quiet_NaN();
    layer<float> l(p);
    // Room behind the last slot, with a mark in it.
    l.y_slots.insert(l.y_slots.end(), 64, 77.0F);
    l.dx_slots.insert(l.dx_slots.end(), 64, 77.0F);
    l.saved.insert(l.saved.end(), 64, 77.0F);
    l.forward(host<float>(2));
    l.backward(host<float>(2));
    for (std::size_t n = 0; n < 400; ++n)
      for (std::size_t j = 0; j < 13; ++j) {
        REQUIRE(std::isnan(l.result.out[n * 13 + j]) == (n == bad));
        if (n != bad) {
          REQUIRE(l.result.out[n * 13 + j] == clean.out[n * 13 + j]);
          REQUIRE(l.result.dx[n * 13 + j] == clean.dx[n * 13 + j]);
        }
      }
    CHECK(std::count(l.y_slots.end() - 64, l.y_slots.end(), 77.0F) == 64);
    CHECK(std::count(l.dx_slots.end() - 64, l.dx_slots.end(), 77.0F) == 64);
    CHECK(std::count(l.saved.end() - 64, l.saved.end(), 77.0F) == 64);
  }
}

TEST_CASE(
    "case 15: an expert without tokens keeps its gradient to the bit; no tokens are no work") {
  const problem p(30, {4, 2, 8, 8}, 2, 6);
  layer<float> l(p);
  std::fill(l.result.dgate_up.begin(), l.result.dgate_up.end(), 3.0F);
  l.forward(host<float>(2));
  l.backward(host<float>(2));
  const auto half = l.result.dgate_up.begin() + 2 * 2 * 8 * 8;
  CHECK(std::count(half, l.result.dgate_up.end(), 3.0F) == 2 * 2 * 8 * 8);
  CHECK(std::count(l.result.dgate_up.begin(), half, 3.0F) == 0);

  const problem nothing(0, {4, 2, 8, 8}, 4, 6);
  const auto none = test::compute_experts<float>(nothing, 2);
  CHECK(none.out.empty());
  CHECK(std::count(none.ddown.begin(), none.ddown.end(), 0.0F) == 4 * 8 * 8);
}

TEST_CASE("gradients of large experts are the sums over small batches") {
  // All tokens of one expert at once, in blocks and waves, against one block at a time.
  const problem whole(5000, {2, 1, 24, 12}, 1, 9);
  const auto at_once = test::compute_experts<double>(whole, 2);
  outcome<double> sum = at_once;
  std::fill(sum.dgate_up.begin(), sum.dgate_up.end(), 0.0);
  std::fill(sum.ddown.begin(), sum.ddown.end(), 0.0);
  for (std::int64_t first = 0; first < whole.tokens; first += 200) {
    problem part = whole;
    part.tokens = 200;
    const auto cut = [&](auto& values, std::int64_t columns) {
      values = {values.begin() + first * columns, values.begin() + (first + 200) * columns};
    };
    cut(part.chosen, 1);
    cut(part.x, 24);
    cut(part.weights, 1);
    cut(part.dout, 24);
    const auto found = test::compute_experts<double>(part, 1);
    for (std::size_t i = 0; i < sum.dgate_up.size(); ++i) sum.dgate_up[i] += found.dgate_up[i];
    for (std::size_t i = 0; i < sum.ddown.size(); ++i) sum.ddown[i] += found.ddown[i];
  }
  check_close(at_once, sum, 1e-12);
}

namespace {
template <class Compute>
void check_threads() {
  for (const sizes& size : cases) {
    CAPTURE(size.tokens);
    const problem p(size.tokens, size.shape, size.spread, 14);
    const auto one = test::compute_experts<Compute>(p, 1);
    const auto two = test::compute_experts<Compute>(p, 2);
    CHECK(one.out == two.out);
    CHECK(one.dx == two.dx);
    CHECK(one.dweights == two.dweights);
    CHECK(one.dgate_up == two.dgate_up);
    CHECK(one.ddown == two.ddown);
  }
}
}  // namespace

TEST_CASE("one thread and two give the same bits") {
  check_threads<double>();
  check_threads<float>();
  check_threads<bf16>();
}

TEST_CASE("executed FLOPs are 6 H f per slot forward and 12 backward") {
  for (const sizes& size : cases) {
    const problem p(size.tokens, size.shape, size.spread, 1);
    layer<float> l(p);
    flop_counter counter;
    host<float> run(2);
    run.count_into(&counter);
    const std::int64_t forward =
        2 * 3 * size.shape.hidden * size.shape.width * size.shape.top_k * size.tokens;
    l.forward(run);
    CHECK(counter.model_flops() == forward);
    l.backward(run);
    CHECK(counter.model_flops() == 3 * forward);
    CHECK(counter.recomputed == 0);
  }
}

TEST_CASE("case 18: tokens past 2^31 elements are gathered from where they lie") {
  // 2^32 floats of address space, of which only the touched pages become memory.
  constexpr std::int64_t tokens = std::int64_t{1} << 22;
  constexpr std::int64_t hidden = 1024;
  const std::size_t bytes = sizeof(float) * static_cast<std::size_t>(tokens * hidden);
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    MESSAGE("skipped: no 16 GiB of address space here");
    return;
  }
  const matrix_view<float> x(static_cast<float*>(memory), tokens, hidden);
  std::vector<std::int64_t> token_of{tokens - 1, tokens - 1 - (std::int64_t{1} << 21)};
  x(token_of[0], hidden - 1) = 1.0F;
  x(token_of[1], hidden - 1) = 2.0F;
  std::vector<std::int64_t> offsets{0, 2};
  std::vector<std::int32_t> choice_of{0, 0};
  dispatch_plan plan{2, 1, 1, offsets.data(), nullptr, token_of.data(), choice_of.data()};
  std::vector<float> weights(static_cast<std::size_t>(tokens), 1.0F);
  const std::vector<float> gate_up(2 * hidden, 1.0F);
  const std::vector<float> down(hidden, 1.0F);
  std::vector<float> saved(4);
  std::vector<float> y(2 * hidden);
  expert_ffn_forward(host<float>(1), {1, 1, hidden, 1}, matrix_view<const float>(x), plan,
                     weights.data(), gate_up.data(), down.data(), saved.data(),
                     matrix_view<float>(y.data(), 2, hidden));
  CHECK(saved == std::vector<float>{1.0F, 1.0F, 2.0F, 2.0F});
  CHECK(y.front() == doctest::Approx(0.731058578));
  CHECK(y.back() == doctest::Approx(2.0 * 2.0 * 0.880797077));
  munmap(memory, bytes);
}

namespace {

// A whole MoE layer's ops on routing that moves from step to step.
template <class Compute>
std::int64_t allocations_after_first_step() {
  using Real = typename host<Compute>::real;
  constexpr std::int64_t tokens = 700;
  constexpr std::int64_t experts = 6;
  constexpr std::int64_t top_k = 2;
  const host<Compute> run(2);
  problem p(tokens, {experts, top_k, 20, 12}, experts, 1);
  layer<Compute> l(p);
  std::vector<Real> logits(tokens * experts), probabilities(logits), dlogits(logits);
  std::vector<Real> logsumexp(tokens), dprobabilities(7 * experts);
  std::vector<std::int64_t> counts(experts);
  const balance_setting setting{100, tokens};
  std::int64_t taken = 0;
  for (std::int64_t step = 0; step < 20; ++step) {
    // Step 0 spreads its tokens; later ones put ever more on ever fewer experts.
    const auto noise = test::random_values<Real>(tokens * experts, 5);
    for (std::int64_t i = 0; i < tokens * experts; ++i)
      logits[static_cast<std::size_t>(i)] =
          noise[static_cast<std::size_t>(i)] - Real(0.1) * static_cast<Real>(i % experts * step);
    const std::int64_t at_start = allocations();
    const matrix_view<const Real> p_view(probabilities.data(), tokens, experts);
    route_forward(run, matrix_view<const Real>(logits.data(), tokens, experts), top_k, true,
                  matrix_view<Real>(probabilities.data(), tokens, experts), p.chosen.data(),
                  l.weights.data(), logsumexp.data());
    balance_forward(run, p_view, p.chosen.data(), logsumexp.data(), top_k, setting,
                    dprobabilities.data(), counts.data());
    l.forward(run);
    l.backward(run);
    route_backward(run, p_view, p.chosen.data(), l.weights.data(), top_k, true,
                   l.result.dweights.data(),
                   balance_backward(setting, dprobabilities.data(), logsumexp.data()),
                   matrix_view<Real>(dlogits.data(), tokens, experts));
    if (step > 0) taken += allocations() - at_start;
  }
  return taken;
}

}  // namespace

TEST_CASE("after the first step no op of the layer allocates, wherever the tokens go") {
  CHECK(allocations_after_first_step<double>() == 0);
  CHECK(allocations_after_first_step<float>() == 0);
}
