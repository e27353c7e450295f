// SPDX-License-Identifier: Apache-2.0
//
// RMSNorm on one thread: bytes of its floor per second (8 an element forward, 12 backward), and
// their share of what memcpy moves on the same rows in the same run.
#include "smelt/op/rms_norm.hpp"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <vector>

namespace {
using namespace smelt;

struct norm_case {
  std::int64_t rows, width;
  std::vector<float> x, y, dy, gain, dgain, rstd;

  explicit norm_case(const benchmark::State& state)
      : rows(state.range(0)),
        width(state.range(1)),
        x(static_cast<std::size_t>(rows * width), 0.5F),
        y(x.size()),
        dy(x.size(), 0.25F),
        gain(static_cast<std::size_t>(width), 1.0F),
        dgain(gain.size()),
        rstd(static_cast<std::size_t>(rows)) {}

  // Bytes a second, read and written, of a copy of these rows: the best of 20.
  double copy_rate() {
    double best_seconds = 1e9;
    for (int i = 0; i < 20; ++i) {
      const auto start = std::chrono::steady_clock::now();
      std::memcpy(y.data(), x.data(), x.size() * sizeof(float));
      benchmark::DoNotOptimize(y.data());
      benchmark::ClobberMemory();
      const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
      best_seconds = std::min(best_seconds, elapsed.count());
    }
    return 8.0 * static_cast<double>(x.size()) / best_seconds;
  }
  void forward(const host<>& run) {
    rms_norm_forward<float, float>(run, {x.data(), rows, width}, gain.data(), 1e-5F,
                                   {y.data(), rows, width}, rstd.data());
  }
  void backward(const host<>& run) {
    rms_norm_backward<float>(run, {dy.data(), rows, width}, {x.data(), rows, width}, gain.data(),
                             rstd.data(), into::overwrite, {y.data(), rows, width}, dgain.data());
  }
};

void report(benchmark::State& state, const norm_case& c, double copy_rate,
            std::int64_t bytes_per_element) {
  const double bytes =
      static_cast<double>(c.rows * c.width * bytes_per_element * state.iterations());
  state.counters["B/s"] = benchmark::Counter(bytes, benchmark::Counter::kIsRate);
  state.counters["of_memcpy"] = benchmark::Counter(bytes / copy_rate, benchmark::Counter::kIsRate);
}

void rms_norm_forward_rate(benchmark::State& state) {
  norm_case c(state);
  const host<> run(1);
  const double copy_rate = c.copy_rate();
  for (auto _ : state) c.forward(run);
  report(state, c, copy_rate, 8);
}

void rms_norm_backward_rate(benchmark::State& state) {
  norm_case c(state);
  const host<> run(1);
  const double copy_rate = c.copy_rate();
  c.forward(run);
  for (auto _ : state) c.backward(run);
  report(state, c, copy_rate, 12);
}

// Tokens of hidden width; then heads, which are many and narrow.
void shapes(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgNames({"rows", "width"});
  benchmark->Args({4096, 512})->Args({2048, 1056})->Args({4096 * 6, 64})->Args({4096 * 12, 44});
  benchmark->Unit(benchmark::kMicrosecond);
}

BENCHMARK(rms_norm_forward_rate)->Apply(shapes);
BENCHMARK(rms_norm_backward_rate)->Apply(shapes);
}  // namespace
