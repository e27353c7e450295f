// SPDX-License-Identifier: Apache-2.0
//
// The optimizer against memory: AdamW moves 28 bytes per parameter (30 with a bf16 copy), so its
// floor is bandwidth. of_triad is its bytes per second over those of a = b + s c in the same run.
#include <benchmark/benchmark.h>

#include <chrono>
#include <cstdint>
#include <vector>

#include "smelt/op/adamw.hpp"

namespace {
using namespace smelt;

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

template <class Compute>
void adamw(benchmark::State& state) {
  constexpr std::int64_t count = 16 << 20;  // 448 MB: no cache holds it
  const int threads = static_cast<int>(state.range(0));
  std::vector<float> w(count, 1.0F), g(count, 1.0F), m(count, 1.0F), v(count, 1.0F);
  std::vector<Compute> copy(count);
  const host<Compute> run(threads);
  const adamw_setting setting;
  const adamw_rates<float> rates(setting, 1e-3, 1);
  const double squares = static_cast<double>(count), loss_sum = 1.0;  // clipped, as most steps are
  double update = 0.0, triad = 0.0;
  for (auto _ : state) {
    const double start = seconds();
    adamw_update(run, setting, &rates, &squares, &loss_sum, count, w.data(), g.data(), m.data(),
                 v.data(), copy.data());
    update += seconds() - start;
    state.PauseTiming();
    const double triad_start = seconds();
    for_each_block(run, count, 1 << 14, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i)
        g[static_cast<std::size_t>(i)] =
            m[static_cast<std::size_t>(i)] + 0.5F * v[static_cast<std::size_t>(i)];
    });
    triad += seconds() - triad_start;
    state.ResumeTiming();
  }
  const double bytes = sizeof(Compute) == 2 ? 30.0 : 28.0;
  const double moved = static_cast<double>(count * state.iterations());
  state.counters["GB/s"] = bytes * moved / update * 1e-9;
  state.counters["of_triad"] = (bytes / update) / (12.0 / triad);
}

BENCHMARK(adamw<float>)->Arg(1)->Arg(2)->UseRealTime();
BENCHMARK(adamw<bf16>)->Arg(2)->UseRealTime();
}  // namespace
