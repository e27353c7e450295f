// SPDX-License-Identifier: Apache-2.0
//
// The suites of route, its bias, dispatch and balance on CUDA, and what only CUDA can be asked: the
// host's very plan, the same bits twice, capture and replay, indices that name no expert, more
// shared memory than a launch has for free, and slots past 2^31 elements.
#include "op/balance.hpp"
#include "op/balance_ranks.hpp"
#include "op/dispatch.hpp"
#include "op/route.hpp"
#include "op/router_bias.hpp"

#include "smelt/exec/cuda/buffer.cuh"
#include "smelt/kernel/balance.cuh"
#include "smelt/kernel/dispatch.cuh"
#include "smelt/kernel/route.cuh"
#include "smelt/kernel/router_bias.cuh"

namespace smelt::test {

TEST_CASE_TEMPLATE_INVOKE(route_values, cuda<>, cuda<bf16>);
TEST_CASE_TEMPLATE_INVOKE(route_ties, cuda<>);
TEST_CASE_TEMPLATE_INVOKE(route_not_numbers, cuda<>);
TEST_CASE_TEMPLATE_INVOKE(route_masked, cuda<>);
TEST_CASE_TEMPLATE_INVOKE(route_many_experts, cuda<>);
TEST_CASE_TEMPLATE_INVOKE(route_in_place, cuda<>);
TEST_CASE_TEMPLATE_INVOKE(route_empty, cuda<>, cuda<bf16>);
TEST_CASE_TEMPLATE_INVOKE(route_gradients, cuda<>, cuda<bf16>);
TEST_CASE_TEMPLATE_INVOKE(route_twice, cuda<>);
TEST_CASE_TEMPLATE_INVOKE(route_backward_not_numbers, cuda<>);
TEST_CASE_TEMPLATE_INVOKE(bias_choice, cuda<>);
TEST_CASE_TEMPLATE_INVOKE(bias_ties, cuda<>);
TEST_CASE_TEMPLATE_INVOKE(bias_not_numbers, cuda<>);
TEST_CASE_TEMPLATE_INVOKE(bias_in_place, cuda<>);
TEST_CASE_TEMPLATE_INVOKE(bias_update, cuda<>, cuda<bf16>);
TEST_CASE_TEMPLATE_INVOKE(bias_stays, cuda<>);
TEST_CASE_TEMPLATE_INVOKE(bias_precision, cuda<bf16>);
TEST_CASE_TEMPLATE_INVOKE(bias_evens_out, cuda<>);
TEST_CASE_TEMPLATE_INVOKE(dispatch_plans, cuda<>, cuda<bf16>);
TEST_CASE_TEMPLATE_INVOKE(combine_values, cuda<>, cuda<bf16>);
TEST_CASE_TEMPLATE_INVOKE(combine_transpose, cuda<>);
TEST_CASE_TEMPLATE_INVOKE(combine_not_numbers, cuda<>);
TEST_CASE_TEMPLATE_INVOKE(combine_empty, cuda<>);
TEST_CASE_TEMPLATE_INVOKE(balance_values, cuda<>, cuda<bf16>);
TEST_CASE_TEMPLATE_INVOKE(balance_long_group, cuda<>);
TEST_CASE_TEMPLATE_INVOKE(balance_ends, cuda<>);
TEST_CASE_TEMPLATE_INVOKE(balance_gradients, cuda<>, cuda<bf16>);
TEST_CASE_TEMPLATE_INVOKE(balance_batching, cuda<>);
TEST_CASE_TEMPLATE_INVOKE(balance_unequal_groups, cuda<>);
TEST_CASE_TEMPLATE_INVOKE(balance_share, cuda<>);
TEST_CASE_TEMPLATE_INVOKE(balance_counts, cuda<>);
TEST_CASE_TEMPLATE_INVOKE(balance_empty, cuda<>);
TEST_CASE_TEMPLATE_INVOKE(balance_count_experts, cuda<>);
TEST_CASE_TEMPLATE_INVOKE(balance_ranks, cuda<>);
TEST_CASE_TEMPLATE_INVOKE(balance_one_rank, cuda<>);
TEST_CASE_TEMPLATE_INVOKE(balance_refused, cuda<>);

TEST_CASE("route: case 13: keys order as top_k_of_row does, NaN below every number") {
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  const float some[] = {0.0F,
                        nan,
                        0.25F,
                        -nan,
                        1e-40F,
                        1.0F,
                        0.25F,
                        nan,
                        0.0F,
                        3e38F,
                        std::numeric_limits<float>::infinity()};
  std::vector<float> row;
  for (int i = 0; i < 100; ++i) row.push_back(some[i * i % 11]);
  std::vector<std::uint64_t> keys;
  for (int e = 0; e < 100; ++e) keys.push_back(cuda_detail::choice_key(row[std::size_t(e)], e));
  std::sort(keys.rbegin(), keys.rend());
  CHECK(keys.back() != 0);  // 0 is no key
  std::vector<std::int32_t> ordered, expected(100, -1);
  for (const std::uint64_t key : keys) ordered.push_back(cuda_detail::expert_of_key(key));
  std::vector<float> values(100);
  top_k_of_row(row.data(), 100, 100, expected.data(), values.data());
  CHECK(ordered == expected);
}

TEST_CASE("router bias: case 13: keys of scores order as top_k_of_row does, whatever their sign") {
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  constexpr float inf = std::numeric_limits<float>::infinity();
  const float some[] = {0.0F, nan, -0.25F, -nan, -1e-40F, 1.0F, inf, 1e-40F, -0.0F, -3e38F, -inf};
  std::vector<float> row;
  for (int i = 0; i < 100; ++i) row.push_back(some[i * 7 % 11]);
  std::vector<std::uint64_t> keys;
  for (int e = 0; e < 100; ++e)
    keys.push_back(cuda_detail::score_key(cuda_detail::score_rank(row[std::size_t(e)]), e));
  std::sort(keys.rbegin(), keys.rend());
  CHECK(keys.back() != 0);  // 0 is no key
  std::vector<std::int32_t> ordered, expected(100, -1);
  for (const std::uint64_t key : keys) ordered.push_back(cuda_detail::expert_of_key(key));
  std::vector<float> values(100);
  top_k_of_row(row.data(), 100, 100, expected.data(), values.data());
  CHECK(ordered == expected);
}

TEST_CASE("dispatch: the plan of CUDA is the host's") {
  for (const dispatch_size& size : dispatch_sizes) {
    CAPTURE(size.tokens);
    CAPTURE(size.experts);
    const auto chosen = choices(size.tokens, size.spread, size.top_k, 9);
    plan_memory<cuda<>> device(size.tokens, size.experts, size.top_k);
    plan_memory<host<>> on_host(size.tokens, size.experts, size.top_k);
    device.dispatch(chosen);
    on_host.dispatch(chosen);
    CHECK(same_plan(device, on_host));
  }
}

TEST_CASE("dispatch: indices that name no expert get the slots past the last offset, in order") {
  // 2500 tokens, two chunks; every seventh index is wrong in one of three ways.
  constexpr std::int64_t tokens = 2500, experts = 6, top_k = 2;
  auto chosen = choices(tokens, experts, top_k, 4);
  const std::int32_t wrong[] = {-1, 6, std::numeric_limits<std::int32_t>::min()};
  for (std::size_t i = 0; i < chosen.size(); i += 7) chosen[i] = wrong[i % 3];
  std::vector<std::int64_t> order(chosen.size());
  std::iota(order.begin(), order.end(), 0);
  const auto bin = [&](std::int64_t i) {
    const std::int32_t e = chosen[static_cast<std::size_t>(i)];
    return e >= 0 && e < experts ? e : std::int32_t{experts};
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](std::int64_t a, std::int64_t b) { return bin(a) < bin(b); });
  plan_memory<cuda<>> memory(tokens, experts, top_k);
  memory.dispatch(chosen);
  const auto slot_of = memory.slot_of.values(), token_of = memory.token_of.values();
  bool same = true;
  for (std::size_t slot = 0; slot < order.size(); ++slot)
    same = same &&
           slot_of[static_cast<std::size_t>(order[slot])] == static_cast<std::int64_t>(slot) &&
           token_of[slot] == order[slot] / top_k;
  CHECK(same);
  CHECK(memory.offsets.values().back() ==
        tokens * top_k - static_cast<std::int64_t>((chosen.size() + 6) / 7));
}

TEST_CASE("dispatch: more experts than a block's shared memory is refused in words") {
  plan_memory<cuda<>> memory(1, 1 << 20, 1);
  const tensor<std::int32_t, cuda<>> chosen({5});
  CHECK_THROWS_WITH_AS(dispatch_forward(policy<cuda<>>(), chosen.data(), memory.plan()),
                       doctest::Contains("more shared memory than a block"), error);
}

TEST_CASE("balance: a group of any length costs what its tokens cost") {
  const auto logits = random_values<float>(70 * 9, 3, 2.0);
  const auto measured = [&](std::int64_t group_tokens) {
    const balance_setting setting{group_tokens, 70, 0.01, 0.001};
    const balance_visit<cuda<>> visit(logits, 9, 2, setting);
    auto found = as_double(visit.dprobabilities.values());
    found.push_back(visit.load_balance());
    return found;
  };
  CHECK(measured(std::int64_t{1} << 40) == measured(70));
}

// A view whose rows begin `rows` before `first`: row r + rows is first's row r. Only an index of 64
// bits finds it, and no memory is spent.
template <class T>
matrix_view<const T> rows_before(const T* first, std::int64_t rows, std::int64_t count,
                                 std::int64_t columns) {
  const auto address = reinterpret_cast<std::uintptr_t>(first) -
                       static_cast<std::uintptr_t>(rows * columns) * sizeof(T);
  return {reinterpret_cast<const T*>(address), rows + count, columns};
}

TEST_CASE_TEMPLATE("combine: case 18: slots past 2^31 and 2^32 elements are reached, not wrapped",
                   Slot, float, bf16) {
  constexpr std::int64_t tokens = 3, top_k = 2;
  for (const std::int64_t columns : {1024, 1023})  // in pieces and element by element
    for (const std::int64_t elements :
         {std::int64_t{1} << 31, std::int64_t{1} << 32, std::int64_t{5} << 33}) {
      const std::int64_t shift = elements / columns;
      std::vector<Slot> y;
      for (const float value : random_values<float>(tokens * top_k * columns, 3))
        y.push_back(static_cast<Slot>(value));
      const tensor<Slot, cuda<>> slots(y);
      const std::vector<std::int64_t> near_slots{4, 1, 0, 5, 2, 3};
      auto far_slots = near_slots;
      for (auto& slot : far_slots) slot += shift;
      const tensor<std::int64_t, cuda<>> near_of(near_slots), far_of(far_slots);
      const tensor<float, cuda<>> near_out(poisoned<float>(tokens * columns)),
          far_out(poisoned<float>(tokens * columns));
      combine_forward(policy<cuda<>>(), slots.constant(tokens * top_k, columns), near_of.data(),
                      top_k, 1.0F, into::overwrite, near_out.view(tokens, columns));
      combine_forward(policy<cuda<>>(),
                      rows_before<Slot>(slots.data(), shift, tokens * top_k, columns),
                      far_of.data(), top_k, 1.0F, into::overwrite, far_out.view(tokens, columns));
      CHECK(near_out.values() == far_out.values());
    }
}

// The router's whole part of a layer's step, with the memory of its results.
template <class Compute>
struct router_step {
  using policy_type = cuda<Compute>;
  static constexpr std::int64_t tokens = 1100, experts = 40, top_k = 3, hidden = 24;
  balance_setting setting{300, tokens, 0.01, 0.001};
  tensor<float, policy_type> logits, probabilities, weights, logsumexp, dweights, dprobabilities,
      dlogits, out;
  tensor<std::int32_t, policy_type> chosen;
  tensor<std::int64_t, policy_type> counts, all_counts;
  tensor<float, policy_type> bias, loss_sum;
  tensor<balance_sums<float>, policy_type> sums;
  tensor<Compute, policy_type> slots;
  plan_memory<policy_type> memory;

  explicit router_step(std::uint32_t seed)
      : logits(random_values<float>(tokens * experts, seed, 2.0)),
        probabilities(poisoned<float>(tokens * experts)),
        weights(poisoned<float>(tokens * top_k)),
        logsumexp(poisoned<float>(tokens)),
        dweights(random_values<float>(tokens * top_k, 2)),
        dprobabilities(poisoned<float>(setting.groups(tokens) * experts)),
        dlogits(poisoned<float>(tokens * experts)),
        out(poisoned<float>(tokens * hidden)),
        chosen(std::vector<std::int32_t>(tokens * top_k, -1)),
        counts(std::vector<std::int64_t>(experts, 0)),
        all_counts(std::vector<std::int64_t>(experts, -1)),
        bias(random_values<float>(experts, 7)),
        loss_sum(std::vector<float>(1, 1.0F)),
        sums(std::vector<balance_sums<float>>(1)),
        slots(slot_values()),
        memory(tokens, experts, top_k) {}

  static std::vector<Compute> slot_values() {
    std::vector<Compute> values;
    for (const float value : random_values<float>(tokens * top_k * hidden, 6))
      values.push_back(static_cast<Compute>(value));
    return values;
  }
  void run() {
    const policy_type& on = policy<policy_type>();
    route_forward(on, logits.constant(tokens, experts), top_k, true,
                  probabilities.view(tokens, experts), chosen.data(), weights.data(),
                  logsumexp.data(), bias.data());
    count_experts(on, chosen.data(), tokens, top_k, experts, all_counts.data());
    dispatch_forward(on, chosen.data(), memory.plan());
    combine_forward(on, slots.constant(tokens * top_k, hidden), memory.slot_of.data(), top_k, 0.5F,
                    into::overwrite, out.view(tokens, hidden));
    balance_forward(on, probabilities.constant(tokens, experts), chosen.data(), logsumexp.data(),
                    top_k, setting, dprobabilities.data(), counts.data(), sums.data());
    route_backward(on, probabilities.constant(tokens, experts), chosen.data(), weights.data(),
                   top_k, true, dweights.data(),
                   balance_backward<float>(setting, dprobabilities.data(), logsumexp.data()),
                   dlogits.view(tokens, experts));
    update_router_bias(on, all_counts.data(), experts, 0.001, loss_sum.data(), bias.data());
  }
};

// Bit for bit, whatever the order in which blocks and threads ran.
template <class Compute>
bool same_step(const router_step<Compute>& a, const router_step<Compute>& b) {
  return a.probabilities.values() == b.probabilities.values() &&
         a.weights.values() == b.weights.values() && a.chosen.values() == b.chosen.values() &&
         a.logsumexp.values() == b.logsumexp.values() &&
         a.dprobabilities.values() == b.dprobabilities.values() &&
         a.dlogits.values() == b.dlogits.values() && a.out.values() == b.out.values() &&
         a.counts.values() == b.counts.values() && a.bias.values() == b.bias.values() &&
         a.all_counts.values() == b.all_counts.values() && same_plan(a.memory, b.memory) &&
         a.sums.values()[0].load_balance == b.sums.values()[0].load_balance &&
         a.sums.values()[0].router_z == b.sums.values()[0].router_z;
}

TEST_CASE_TEMPLATE("router: the same bits twice", Compute, float, bf16) {
  router_step<Compute> first(1), second(1), other(3);
  first.run();
  second.run();
  other.run();
  CHECK(same_step(first, second));
  CHECK(!same_step(first, other));
}

TEST_CASE_TEMPLATE("router: captured once, replayed on tokens that go elsewhere", Compute, float,
                   bf16) {
  using policy_type = cuda<Compute>;
  const policy_type& on = policy<policy_type>();
  router_step<Compute> captured(1), direct(1);
  direct.run();  // from here on no scratch grows
  const cudaStream_t stream = on.stream();
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal) == cudaSuccess);
  captured.run();
  REQUIRE(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
  REQUIRE(cudaGraphInstantiate(&executable, graph, 0) == cudaSuccess);
  CHECK(!same_step(captured, direct));  // nothing ran while it was captured
  REQUIRE(cudaGraphLaunch(executable, stream) == cudaSuccess);
  on.synchronize();
  CHECK(same_step(captured, direct));
  // Other logits choose other experts: counts and offsets were not baked into the graph.
  const auto moved = random_values<float>(captured.tokens * captured.experts, 5, 3.0);
  captured.logits.set(moved);
  direct.logits.set(moved);
  REQUIRE(cudaGraphLaunch(executable, stream) == cudaSuccess);
  on.synchronize();
  direct.run();
  CHECK(same_step(captured, direct));
  static_cast<void>(cudaGraphExecDestroy(executable));
  static_cast<void>(cudaGraphDestroy(graph));
}

}  // namespace smelt::test
