// SPDX-License-Identifier: Apache-2.0
//
// The price of a law: one evaluation, one fit, the literal grid of 4,500 starts, and 2,000
// bootstrap draws of both surfaces. Budgets on two cores: the grid under 10 seconds, the draws
// under 2 minutes. Synthetic endpoints on the paper's grid; nothing is read from disk.

#include <benchmark/benchmark.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "smelt/law/bootstrap.hpp"
#include "smelt/law/fit.hpp"
#include "smelt/law/gain_interval.hpp"
#include "smelt/law/paper.hpp"
#include "smelt/law/synthetic.hpp"

namespace law = smelt::law;

namespace {

std::vector<law::endpoint> baseline_points() {
  return law::synthetic_endpoints(law::paper::baseline, law::paper::baseline_cells,
                                  law::paper::horizons_tokens, "baseline", {0.002, 0.001}, 1);
}

std::vector<law::endpoint> smelt_points() {
  return law::synthetic_endpoints(law::paper::smelt, law::paper::smelt_cells,
                                  law::paper::horizons_tokens, "smelt", {0.002, 0.001}, 2);
}

/// As many runs as the extracted Chinchilla points, over their ranges of N and D, 1 % of noise.
std::vector<law::chinchilla_point> chinchilla_points() {
  const law::chinchilla truth{1.8172, 477.83, 2143.4, 0.3473, 0.3672};
  std::mt19937_64 bits(3);
  const auto uniform = [&] { return static_cast<double>(bits() >> 11) * 0x1p-53; };
  std::vector<law::chinchilla_point> points;
  for (int i = 0; i < 240; ++i) {
    const double n = 6e7 * std::pow(200, uniform());
    const double d = 1e9 * std::pow(200, uniform());
    points.push_back({n, d, truth.loss(n, d) * (1 + 0.02 * (uniform() - 0.5)), 0});
  }
  return points;
}

/// Value and gradient at 72 endpoints.
void objective(benchmark::State& state) {
  const auto points = baseline_points();
  const law::log_points logs = law::log_points_of(points);
  const law::objective target{&logs, 1e-3, {}};
  const law::position at = logs.position_of(law::paper::baseline);
  law::position gradient;
  for (auto _ : state) benchmark::DoNotOptimize(target(at, gradient));
  state.counters["endpoints/s"] =
      benchmark::Counter(static_cast<double>(state.iterations()) * 72, benchmark::Counter::kIsRate);
}
BENCHMARK(objective);

/// One surface from its 48 projected starts.
void fit_surface(benchmark::State& state) {
  const auto points = baseline_points();
  law::fit_options options;
  options.threads = state.range(0);
  for (auto _ : state) benchmark::DoNotOptimize(law::fit(points, options));
}
BENCHMARK(fit_surface)
    ->ArgName("threads")
    ->Arg(1)
    ->Arg(2)
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

/// The plain form from the literal grid of 4,500 starts.
void fit_literal_grid(benchmark::State& state) {
  const auto points = chinchilla_points();
  const auto grid = law::chinchilla_grid();
  law::fit_options options;
  options.threads = state.range(0);
  for (auto _ : state) benchmark::DoNotOptimize(law::fit_chinchilla(points, options, grid));
}
BENCHMARK(fit_literal_grid)
    ->ArgName("threads")
    ->Arg(1)
    ->Arg(2)
    ->UseRealTime()
    ->Unit(benchmark::kSecond)
    ->Iterations(1);

/// Draws of both surfaces, paired over the 12 cells.
void bootstrap_pair(benchmark::State& state) {
  const auto left = baseline_points();
  const auto right = smelt_points();
  const auto of_left = law::fit(left);
  const auto of_right = law::fit(right);
  law::bootstrap_options options;
  options.draws = 2000;
  options.threads = state.range(0);
  for (auto _ : state) {
    benchmark::DoNotOptimize(law::bootstrap_pair(left, of_left, right, of_right, options));
  }
}
BENCHMARK(bootstrap_pair)
    ->ArgName("threads")
    ->Arg(1)
    ->Arg(2)
    ->UseRealTime()
    ->Unit(benchmark::kSecond)
    ->Iterations(1);

/// The band of a figure: 60 computes, 2,000 draws each.
void gain_band(benchmark::State& state) {
  law::surface_draws reference;
  reference.laws.assign(2000, law::paper::baseline);
  reference.cells = 12;
  law::surface_draws target;
  target.laws.assign(2000, law::paper::smelt);
  target.cells = 12;
  const law::paired_draws draws{reference, target, true};
  const auto computes = law::compute_range(1e19, 1e22, 60);
  for (auto _ : state) {
    benchmark::DoNotOptimize(
        law::gain_band(law::paper::baseline, law::paper::smelt, draws, computes, 0.95));
  }
}
BENCHMARK(gain_band)->Unit(benchmark::kMillisecond);

}  // namespace
