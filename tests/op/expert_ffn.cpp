// SPDX-License-Identifier: Apache-2.0
//
// The suite of the experts on the host, their gradients against central differences, and what only
// the host can be asked: threads, allocations, waves of blocks, a token past 2^31 elements.
#include "expert_ffn.hpp"

#include <sys/mman.h>

#include "../support/allocation_counter.hpp"
#include "smelt/op/balance.hpp"
#include "smelt/op/route.hpp"

using namespace smelt;
using namespace smelt::test;

TEST_CASE_TEMPLATE_INVOKE(experts_values, host<double>, host<>, host<bf16>);
TEST_CASE_TEMPLATE_INVOKE(experts_tiles, host<double>, host<>, host<bf16>);
TEST_CASE_TEMPLATE_INVOKE(experts_wide, host<double>, host<>, host<bf16>);
TEST_CASE_TEMPLATE_INVOKE(experts_again, host<double>, host<>, host<bf16>);
TEST_CASE_TEMPLATE_INVOKE(experts_by_hand, host<double>, host<>, host<bf16>);
TEST_CASE_TEMPLATE_INVOKE(experts_not_numbers, host<double>, host<>, host<bf16>);
TEST_CASE_TEMPLATE_INVOKE(experts_without_tokens, host<double>, host<>, host<bf16>);
TEST_CASE_TEMPLATE_INVOKE(experts_strides, host<double>, host<>, host<bf16>);

TEST_CASE("experts: gradients by central differences") {
  for (const expert_size& size : {expert_size{7, {5, 2, 4, 3}, 4}, expert_size{6, {3, 1, 5, 6}, 1},
                                  expert_size{300, {2, 1, 2, 3}, 1}}) {
    problem p(size.tokens, size.shape, size.spread, 2);
    const auto result = compute_experts<host<double>>(p);
    const auto loss = [&] {
      layer<host<double>> moved(p);
      moved.forward(host<double>(1));
      return dot(moved.out.values(), p.dout);
    };
    const auto check = [&](std::vector<double>& input, const std::vector<double>& found) {
      CHECK(relative_error(found, central_differences(input, loss)) < 1e-6);
    };
    check(p.x, result.dx);
    check(p.weights, result.dweights);
    check(p.gate_up, result.dgate_up);
    check(p.down, result.ddown);
  }
}

TEST_CASE("experts: gradients of large experts are the sums over small batches") {
  // All tokens of one expert at once, in blocks and waves, against one block at a time.
  const problem whole(5000, {2, 1, 24, 12}, 1, 9);
  const auto at_once = compute_experts<host<double>>(whole);
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
    const auto found = compute_experts(part, host<double>(1));
    for (std::size_t i = 0; i < sum.dgate_up.size(); ++i) sum.dgate_up[i] += found.dgate_up[i];
    for (std::size_t i = 0; i < sum.ddown.size(); ++i) sum.ddown[i] += found.ddown[i];
  }
  check_close(at_once, sum, 1e-12);
}

TEST_CASE_TEMPLATE("experts: one thread and two give the same bits", Policy, host<double>, host<>,
                   host<bf16>) {
  for (const expert_size& size : expert_sizes) {
    CAPTURE(size.tokens);
    const problem p(size.tokens, size.shape, size.spread, 14);
    CHECK(compute_experts(p, Policy(1)) == compute_experts(p, Policy(2)));
  }
}

TEST_CASE("experts: case 18: tokens past 2^31 elements are gathered from where they lie") {
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
  const problem p(tokens, {experts, top_k, 20, 12}, experts, 1);
  layer<host<Compute>> l(p);
  std::vector<Real> logits(tokens * experts), probabilities(logits), dlogits(logits);
  std::vector<Real> logsumexp(tokens), dprobabilities(7 * experts);
  std::vector<std::int64_t> counts(experts);
  balance_sums<double> sums;
  const balance_setting setting{100, tokens};
  std::int64_t taken = 0;
  for (std::int64_t step = 0; step < 20; ++step) {
    // Step 0 spreads its tokens; later ones put ever more on ever fewer experts.
    const auto noise = random_values<Real>(tokens * experts, 5);
    for (std::int64_t i = 0; i < tokens * experts; ++i)
      logits[static_cast<std::size_t>(i)] =
          noise[static_cast<std::size_t>(i)] - Real(0.1) * static_cast<Real>(i % experts * step);
    const std::int64_t at_start = allocations();
    const matrix_view<const Real> p_view(probabilities.data(), tokens, experts);
    route_forward(run, matrix_view<const Real>(logits.data(), tokens, experts), top_k, true,
                  matrix_view<Real>(probabilities.data(), tokens, experts), l.chosen.data(),
                  l.weights.data(), logsumexp.data());
    balance_forward(run, p_view, l.chosen.data(), logsumexp.data(), top_k, setting,
                    dprobabilities.data(), counts.data(), &sums);
    l.forward(run);
    l.backward(run);
    route_backward(run, p_view, l.chosen.data(), l.weights.data(), top_k, true, l.dweights.data(),
                   balance_backward(setting, dprobabilities.data(), logsumexp.data()),
                   matrix_view<Real>(dlogits.data(), tokens, experts));
    if (step > 0) taken += allocations() - at_start;
  }
  return taken;
}

}  // namespace

TEST_CASE("experts: after the first step no op of the layer allocates, wherever the tokens go") {
  CHECK(allocations_after_first_step<double>() == 0);
  CHECK(allocations_after_first_step<float>() == 0);
}
