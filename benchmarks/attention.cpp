// SPDX-License-Identifier: Apache-2.0
//
// Attention on one thread, forward and backward: GFLOP/s that count for the model, and their share
// of the rate of one plain product measured in the same run.
//
// The counted FLOPs are those of the causal half (4 query width per pair forward, 8 backward). The
// backward pass executes a quarter more (scores again), and both compute the upper half of some
// diagonal tiles: the share cannot reach 1.
#include "smelt/op/attention.hpp"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <random>
#include <vector>

namespace {
using namespace smelt;

std::vector<float> random_values(std::int64_t count) {
  std::mt19937 generator(1);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = normal(generator);
  return values;
}

// FLOP/s of a 512 x 512 x 512 product on one thread; the best of many, as a yardstick should be.
double product_rate() {
  static const double rate = [] {
    constexpr std::int64_t size = 512;
    const std::vector<float> a = random_values(size * size);
    std::vector<float> c(a.size());
    const matrix_view<const float> view(a.data(), size, size);
    double best_seconds = 1e9;
    for (int i = 0; i < 50; ++i) {
      const auto start = std::chrono::steady_clock::now();
      product(host<>(1), view, view, matrix_view<float>(c.data(), size, size));
      const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
      best_seconds = std::min(best_seconds, elapsed.count());
    }
    return 2.0 * size * size * size / best_seconds;
  }();
  return rate;
}

struct attention_case {
  attention_shape shape;
  std::vector<std::int64_t> offsets{0};
  std::vector<float> q, k, v, dout, out, dq, dk, dv, logsumexp;

  // Documents of `length` tokens each; 0: of geometric length with a mean of 50.
  attention_case(std::int64_t heads, std::int64_t kv_heads, std::int64_t head_dim,
                 std::int64_t tokens, std::int64_t length)
      : shape{heads, kv_heads, head_dim} {
    std::mt19937 generator(1);
    std::geometric_distribution<std::int64_t> geometric(1.0 / 50.0);
    while (offsets.back() < tokens) {
      const std::int64_t next = length > 0 ? length : 1 + geometric(generator);
      offsets.push_back(std::min(tokens, offsets.back() + next));
    }
    q = random_values(tokens * shape.query_width());
    k = random_values(tokens * shape.kv_width());
    v = k;
    dout = q;
    out = q;
    dq = q;
    dk = k;
    dv = k;
    logsumexp.resize(static_cast<std::size_t>(heads * tokens));
  }
  segments documents() const {
    return {offsets.data(), static_cast<std::int64_t>(offsets.size()) - 1};
  }
  matrix_view<float> wide(std::vector<float>& x) const {
    return {x.data(), offsets.back(), shape.query_width()};
  }
  matrix_view<float> narrow(std::vector<float>& x) const {
    return {x.data(), offsets.back(), shape.kv_width()};
  }
  void forward(const host<>& run) {
    attention_forward<float>(run, shape, documents(), wide(q), narrow(k), narrow(v), wide(out),
                             logsumexp.data());
  }
  void backward(const host<>& run) {
    attention_backward<float>(run, shape, documents(), wide(dout), wide(q), narrow(k), narrow(v),
                              wide(out), logsumexp.data(), wide(dq), narrow(dk), narrow(dv),
                              into::overwrite);
  }
};

void report(benchmark::State& state, std::int64_t flops_per_iteration) {
  const double flops =
      static_cast<double>(flops_per_iteration) * static_cast<double>(state.iterations());
  state.counters["FLOP/s"] = benchmark::Counter(flops, benchmark::Counter::kIsRate);
  state.counters["of_product"] =
      benchmark::Counter(flops / product_rate(), benchmark::Counter::kIsRate);
}

attention_case make_case(const benchmark::State& state) {
  return {state.range(0), state.range(1), state.range(2), state.range(3), state.range(4)};
}

void attention_forward_rate(benchmark::State& state) {
  attention_case c = make_case(state);
  const host<> run(1);
  product_rate();
  for (auto _ : state) c.forward(run);
  report(state, 4 * c.shape.query_width() * c.documents().pairs());
}

void attention_backward_rate(benchmark::State& state) {
  attention_case c = make_case(state);
  const host<> run(1);
  product_rate();
  c.forward(run);
  for (auto _ : state) c.backward(run);
  report(state, 8 * c.shape.query_width() * c.documents().pairs());
}

void shapes(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgNames({"heads", "kv", "size", "tokens", "document"});
  benchmark->Args({6, 6, 64, 512, 512});
  benchmark->Args({6, 6, 64, 2048, 2048});
  benchmark->Args({12, 2, 44, 512, 512});
  benchmark->Args({8, 2, 128, 1024, 1024});
  benchmark->Args({6, 6, 64, 2048, 0});
  benchmark->Args({6, 6, 64, 2048, 1});
  benchmark->Unit(benchmark::kMillisecond);
}

BENCHMARK(attention_forward_rate)->Apply(shapes);
BENCHMARK(attention_backward_rate)->Apply(shapes);
}  // namespace
