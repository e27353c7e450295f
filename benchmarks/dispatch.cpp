// SPDX-License-Identifier: Apache-2.0
//
// What a mixture costs beside its products: choosing experts, sorting tokens to them, adding their
// outputs up.
//
//   route:    softmax and top-8 of E logits per token           [tokens, E]
//   dispatch: counting sort of tokens x 8 assignments; keys/s
//   combine:  sum of 8 rows of 512 floats per token; bytes/s counts rows read and written once
//
// A router's product at hidden 512 is 1024 E FLOPs per token: route should cost less than that.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <random>
#include <vector>

#include "smelt/op/balance.hpp"
#include "smelt/op/dispatch.hpp"
#include "smelt/op/route.hpp"

namespace {

using namespace smelt;

constexpr std::int64_t top_k = 8;
constexpr std::int64_t hidden = 512;

struct mixture {
  std::int64_t tokens, experts;
  std::vector<float> logits, probabilities, weights, logsumexp, dlogits, y, out, dprobabilities;
  std::vector<std::int32_t> chosen, choice_of;
  std::vector<std::int64_t> offsets, slot_of, token_of, counts;
  dispatch_plan plan;

  mixture(std::int64_t tokens_, std::int64_t experts_) : tokens(tokens_), experts(experts_) {
    std::mt19937 generator(1);
    const auto size = [](std::int64_t count) { return static_cast<std::size_t>(count); };
    logits.resize(size(tokens * experts));
    for (float& logit : logits) logit = static_cast<float>(generator() % 8192) / 1024.0F;
    probabilities = dlogits = logits;
    weights.resize(size(tokens * top_k));
    logsumexp.resize(size(tokens));
    dprobabilities.resize(size(experts));
    chosen.resize(weights.size());
    choice_of = chosen;
    offsets.resize(size(experts + 1));
    slot_of.resize(weights.size());
    token_of = slot_of;
    counts.resize(size(experts));
    plan = {tokens,         experts,         top_k,           offsets.data(),
            slot_of.data(), token_of.data(), choice_of.data()};
  }
  matrix_view<float> view(std::vector<float>& memory) const {
    return {memory.data(), tokens, experts};
  }
  void route(const host<float>& run) {
    route_forward(run, matrix_view<const float>(view(logits)), top_k, true, view(probabilities),
                  chosen.data(), weights.data(), logsumexp.data());
  }
};

void route(benchmark::State& state) {
  const host<float> run(static_cast<int>(state.range(1)));
  mixture m(8192, state.range(0));
  for (auto _ : state) m.route(run);
  state.SetItemsProcessed(state.iterations() * m.tokens);
}

void route_gradient(benchmark::State& state) {
  const host<float> run(static_cast<int>(state.range(1)));
  mixture m(8192, state.range(0));
  m.route(run);
  const balance_setting setting{m.tokens, m.tokens};
  balance_sums<double> sums;
  for (auto _ : state) {
    balance_forward(run, matrix_view<const float>(m.view(m.probabilities)), m.chosen.data(),
                    m.logsumexp.data(), top_k, setting, m.dprobabilities.data(), m.counts.data(),
                    &sums);
    route_backward(run, matrix_view<const float>(m.view(m.probabilities)), m.chosen.data(),
                   m.weights.data(), top_k, true, m.weights.data(),
                   balance_backward(setting, m.dprobabilities.data(), m.logsumexp.data()),
                   m.view(m.dlogits));
  }
  state.SetItemsProcessed(state.iterations() * m.tokens);
}

void dispatch(benchmark::State& state) {
  const host<float> run(static_cast<int>(state.range(1)));
  mixture m(state.range(0), 64);
  m.route(run);
  for (auto _ : state) dispatch_forward(run, m.chosen.data(), m.plan);
  state.SetItemsProcessed(state.iterations() * m.plan.slots());
}

void combine(benchmark::State& state) {
  const host<float> run(static_cast<int>(state.range(1)));
  mixture m(state.range(0), 64);
  m.route(run);
  dispatch_forward(run, m.chosen.data(), m.plan);
  m.y.resize(static_cast<std::size_t>(m.plan.slots() * hidden), 1.0F);
  m.out.resize(static_cast<std::size_t>(m.tokens * hidden));
  for (auto _ : state)
    combine_forward(run, matrix_view<const float>(m.y.data(), m.plan.slots(), hidden),
                    m.slot_of.data(), top_k, 1.0F, into::overwrite,
                    matrix_view<float>(m.out.data(), m.tokens, hidden));
  state.SetBytesProcessed(state.iterations() * 4 * hidden * (m.plan.slots() + m.tokens));
}

void experts_and_threads(benchmark::internal::Benchmark* b) {
  b->ArgNames({"experts", "threads"})->Unit(benchmark::kMicrosecond)->UseRealTime();
  for (int threads : {1, 2})
    for (int experts : {32, 192, 512}) b->Args({experts, threads});
}
void tokens_and_threads(benchmark::internal::Benchmark* b) {
  b->ArgNames({"tokens", "threads"})->Unit(benchmark::kMicrosecond)->UseRealTime();
  for (int threads : {1, 2})
    for (int tokens : {2048, 16384}) b->Args({tokens, threads});
}
BENCHMARK(route)->Apply(experts_and_threads);
BENCHMARK(route_gradient)->Apply(experts_and_threads);
BENCHMARK(dispatch)->Apply(tokens_and_threads);
BENCHMARK(combine)->Apply(tokens_and_threads);

}  // namespace

BENCHMARK_MAIN();
