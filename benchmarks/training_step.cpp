// SPDX-License-Identifier: Apache-2.0
//
// A whole training step of the default pair, as model FLOPs over the rate of one plain float32
// product measured in the same run; and where the rest of the time goes.
//
//   of_product      training FLOPs of the step (from the type, head included) / time / product rate
//   forward_share   forward pass with the loss, over the step's time
//   update_share    AdamW; what both leave is backward with the gradient's norm
//
// The product is one of the step's own sizes, 4096 x 512 x 512, on the same threads.
#include <benchmark/benchmark.h>

#include <chrono>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "../examples/03_train_pair/pair.hpp"
#include "smelt/host.hpp"

namespace {
using namespace smelt;

constexpr std::int64_t sequences = 4;  // the default of the example
constexpr std::int64_t tokens = sequences * pair::context;

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// FLOPs per second of one float32 product, the best of a few: what the machine gives right now.
double product_rate(int threads) {
  constexpr std::int64_t n = 4096, k = 512;
  static const std::vector<float> a(n * k, 1.0F), b(k * k, 1.0F);
  static std::vector<float> c(n * k);
  double best = 0.0;
  for (int i = 0; i < 3; ++i) {
    const double start = seconds();
    product(host<>(threads), matrix_view<const float>(a.data(), n, k),
            matrix_view<const float>(b.data(), k, k), matrix_view<float>(c.data(), n, k));
    best = std::max(best, 2.0 * n * k * k / (seconds() - start));
  }
  return best;
}

token_batch random_batch() {
  token_batch batch(tokens);
  std::mt19937 generator(1);
  std::vector<std::int32_t> document(pair::context);
  for (std::int64_t s = 0; s < sequences; ++s) {
    for (std::int32_t& token : document) token = static_cast<std::int32_t>(generator() % 256);
    batch.add_segment(document.data(), pair::context, no_target);
  }
  return batch;
}

template <class Model, class Compute>
void training_step(benchmark::State& state) {
  const int threads = static_cast<int>(state.range(0));
  training_options options;
  options.batch_tokens = tokens;
  options.schedule.steps = 1'000'000;
  const token_batch batch = random_batch();
  trainer<Model, host<Compute>> t(host<Compute>(threads), options, 1);
  t.step(batch.view());  // scratch and the library's kernels
  const double flops =
      static_cast<double>(flops_per_step<Model>(tokens, batch.view().documents.pairs()).total());
  double time = 0.0, product_seconds = 0.0;
  for (auto _ : state) {
    // The rate is taken beside every step, so that both see the same machine.
    state.PauseTiming();
    product_seconds += flops / product_rate(threads);
    state.ResumeTiming();
    const double start = seconds();
    benchmark::DoNotOptimize(t.step(batch.view()).loss);
    time += seconds() - start;
  }
  state.counters["of_product"] = product_seconds / time;
  state.counters["GFLOP/s"] = flops * static_cast<double>(state.iterations()) / time * 1e-9;
  state.counters["tokens/s"] = static_cast<double>(tokens * state.iterations()) / time;

  // Parts of the step, by leaving the rest out.
  constexpr int repeats = 5;
  const double step_time = time / static_cast<double>(state.iterations());
  const auto share_of = [&](auto&& part) {
    const double start = seconds();
    for (int i = 0; i < repeats; ++i) part();
    return (seconds() - start) / repeats / step_time;
  };
  const batch_view view = batch.view();
  state.counters["forward_share"] = share_of([&] { t.evaluate(view); });
  state.counters["update_share"] = 1.0 - share_of([&] { t.accumulate(std::span(&view, 1)); });
}

BENCHMARK(training_step<pair::baseline_model, float>)->Arg(1)->Arg(2)->UseRealTime();
BENCHMARK(training_step<pair::smelt_model, float>)->Arg(1)->Arg(2)->UseRealTime();
BENCHMARK(training_step<pair::baseline_model, bf16>)->Arg(2)->UseRealTime();
BENCHMARK(training_step<pair::smelt_model, bf16>)->Arg(2)->UseRealTime();
}  // namespace
