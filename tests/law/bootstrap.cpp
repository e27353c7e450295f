// SPDX-License-Identifier: Apache-2.0
//
// The cluster bootstrap: what a draw takes, that bits depend on the seed alone, that warm starts
// find what many cold starts find, and what happens to a draw that cannot be fitted.
#include "smelt/law/bootstrap.hpp"
#include "smelt/law/gain_interval.hpp"
#include "smelt/law/paper.hpp"
#include "smelt/law/synthetic.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>

#include <doctest/doctest.h>

using namespace smelt::law;

namespace {

std::vector<endpoint> baseline_points(std::uint64_t seed = 1) {
  return synthetic_endpoints(paper::baseline, paper::baseline_cells, paper::horizons_tokens,
                             "baseline", {0.002, 0.001}, seed);
}

std::vector<endpoint> smelt_points(std::uint64_t seed = 2) {
  return synthetic_endpoints(paper::smelt, paper::smelt_cells, paper::horizons_tokens, "smelt",
                             {0.002, 0.001}, seed);
}

}  // namespace

TEST_CASE("a draw takes as many cells as there are, each equally often in the long run") {
  std::vector<double> total(12, 0.0);
  double distinct = 0;
  for (std::int64_t draw = 0; draw < 4000; ++draw) {
    const auto taken = resample_cells(9, draw, 0, 12);
    CHECK(std::accumulate(taken.begin(), taken.end(), 0.0) == 12);
    for (std::size_t i = 0; i < 12; ++i) {
      total[i] += taken[i];
      distinct += taken[i] > 0;
    }
  }
  // 48,000 picks: 4,000 a cell, standard deviation 61. Distinct: 12 (1 - (11/12)^12) = 7.776.
  for (const double count : total) CHECK(std::fabs(count - 4000) < 5 * 61);
  CHECK(distinct / 4000 == doctest::Approx(12 * (1 - std::pow(11.0 / 12, 12))).epsilon(0.01));
  CHECK(resample_cells(9, 5, 0, 12) == resample_cells(9, 5, 0, 12));
  CHECK(resample_cells(9, 5, 0, 12) != resample_cells(9, 6, 0, 12));
  CHECK(resample_cells(9, 5, 0, 12) != resample_cells(9, 5, 1, 12));
  CHECK(resample_cells(9, 5, 0, 12) != resample_cells(10, 5, 0, 12));
}

TEST_CASE("draws have the same bits for the same seed at any number of threads") {
  const auto left = baseline_points();
  const auto right = smelt_points();
  const fitted_surface of_left = fit(left);
  const fitted_surface of_right = fit(right);
  bootstrap_options options;
  options.draws = 60;
  options.seed = 42;
  options.threads = 1;
  const paired_draws one = bootstrap_pair(left, of_left, right, of_right, options);
  CHECK(one.paired);
  for (const std::int64_t threads : {2, 3, 8}) {
    options.threads = threads;
    const paired_draws many = bootstrap_pair(left, of_left, right, of_right, options);
    CHECK(many.reference.laws == one.reference.laws);
    CHECK(many.target.laws == one.target.laws);
  }
  // Paired or alone, side by side or not: draw d takes the same cells.
  CHECK(bootstrap(left, of_left, options).laws.size() == 60);
  options.seed = 43;
  CHECK(bootstrap_pair(left, of_left, right, of_right, options).reference.laws !=
        one.reference.laws);
}

TEST_CASE("the order of rows does not change which cells a pair takes") {
  const auto left = baseline_points();
  auto right = smelt_points();
  const fitted_surface of_left = fit(left);
  const fitted_surface of_right = fit(right);
  bootstrap_options options;
  options.draws = 10;
  const paired_draws before = bootstrap_pair(left, of_left, right, of_right, options);
  std::reverse(right.begin(), right.end());
  const paired_draws after = bootstrap_pair(left, of_left, right, of_right, options);
  CHECK(after.reference.laws == before.reference.laws);
  for (std::size_t i = 0; i < 10; ++i) {
    // Sums run in another order, so not the same bits, but the same surface.
    CHECK(after.target.laws[i].E == doctest::Approx(before.target.laws[i].E).epsilon(1e-4));
  }
}

TEST_CASE("cells with other names are resampled independently") {
  const auto left = baseline_points();
  auto right = smelt_points();
  for (endpoint& point : right) point.cell += " looped";
  bootstrap_options options;
  options.draws = 4;
  CHECK_FALSE(bootstrap_pair(left, fit(left), right, fit(right), options).paired);
}

TEST_CASE("a warm refit of a draw is as low as a fit of its cells from every start") {
  const auto points = baseline_points(5);
  const fitted_surface fitted = fit(points);
  bootstrap_options options;
  options.draws = 25;
  const surface_draws draws = bootstrap(points, fitted, options);
  const log_points logs = log_points_of(points);
  const cell_index cells = index_cells(points);
  position unused;
  for (std::int64_t draw = 0; draw < options.draws; ++draw) {
    const auto taken = resample_cells(options.seed, draw, 0, 12);
    std::vector<double> weights;
    for (const std::size_t cell : cells.of_point) weights.push_back(taken[cell]);
    const objective target{&logs, 1e-3, weights};
    const auto cold = multi_start(target, all_free(), projected_grid(logs, true), 0);
    const surface& warm = draws.laws[static_cast<std::size_t>(draw)];
    CHECK(target(logs.position_of(warm), unused) <= cold.best.value * (1 + 1e-4));
  }
}

TEST_CASE("a draw without enough distinct cells is taken again and counted") {
  auto points = baseline_points();
  // Five cells: a draw needs four distinct ones, which 5^5 outcomes often lack.
  std::erase_if(points, [](const endpoint& p) {
    return p.cell.ends_with("-97") || p.cell == "1.6B-85" || p.cell == "600M-95" ||
           p.cell == "100M-95";
  });
  bootstrap_options options;
  options.draws = 40;
  const surface_draws draws = bootstrap(points, fit(points), options);
  CHECK(draws.cells == 5);
  CHECK(draws.redrawn > 0);
  for (const surface& law : draws.laws) {
    for (const double value : coefficients_of(law)) CHECK(std::isfinite(value));
  }
}

TEST_CASE("a draw that cannot be fitted at all is named") {
  // Seven cells of one endpoint each: all seven must be drawn, which happens once in 164 draws.
  std::vector<endpoint> points;
  const auto all = baseline_points();
  for (const std::size_t i : {0U, 7U, 14U, 21U, 28U, 35U, 40U}) points.push_back(all[i]);
  CHECK(index_cells(points).names.size() == 7);
  fitted_surface fitted;
  fitted.coefficients = paper::baseline;
  bootstrap_options options;
  options.draws = 20;
  CHECK_THROWS_WITH_AS(bootstrap(points, fitted, options),
                       doctest::Contains("could not be fitted in 100 attempts"), smelt::error);
}

TEST_CASE("too few cells or draws are refused") {
  auto points = baseline_points();
  const fitted_surface fitted = fit(points);
  bootstrap_options options;
  options.draws = 1;
  CHECK_THROWS_WITH_AS(bootstrap(points, fitted, options), doctest::Contains("1 bootstrap draw"),
                       smelt::error);
  options.draws = 10;
  std::erase_if(points, [](const endpoint& p) { return !p.cell.starts_with("200M"); });
  CHECK_THROWS_WITH_AS(bootstrap(points, fitted, options),
                       doctest::Contains("3 cells to resample, expected at least 4"), smelt::error);
}

TEST_CASE("progress counts to the end, and an exception from it stops the work") {
  const auto points = baseline_points();
  const fitted_surface fitted = fit(points);
  bootstrap_options options;
  options.draws = 20;
  options.threads = 2;
  std::int64_t last = 0;
  options.progress = [&](std::int64_t done, std::int64_t total) {
    CHECK(done == last + 1);
    CHECK(total == 20);
    last = done;
  };
  bootstrap(points, fitted, options);
  CHECK(last == 20);
  options.progress = [](std::int64_t done, std::int64_t) {
    if (done == 3) throw std::runtime_error("enough");
  };
  CHECK_THROWS_WITH(bootstrap(points, fitted, options), "enough");
}

TEST_CASE("the gain's interval holds the point, widens with confidence, and matches its draws") {
  const auto left = baseline_points();
  const auto right = smelt_points();
  const fitted_surface of_left = fit(left);
  const fitted_surface of_right = fit(right);
  bootstrap_options options;
  options.draws = 300;
  const paired_draws draws = bootstrap_pair(left, of_left, right, of_right, options);
  const auto at = [&](double confidence) {
    return gain_with_interval(of_left.coefficients, of_right.coefficients, draws, 1e21, 0.95,
                              confidence);
  };
  const gain_estimate wide = at(0.95);
  CHECK(wide.gain == gain(of_left.coefficients, of_right.coefficients, 1e21, 0.95));
  CHECK(wide.range.contains(wide.gain));
  CHECK(at(0.5).range.width() < wide.range.width());
  std::int64_t inside = 0;
  for (std::size_t i = 0; i < 300; ++i) {
    inside += wide.range.contains(gain(draws.reference.laws[i], draws.target.laws[i], 1e21, 0.95));
  }
  CHECK(std::abs(inside - 285) <= 2);
  const auto computes = compute_range(1e19, 1e22, 7);
  CHECK(computes.front() == 1e19);
  CHECK(computes.back() == doctest::Approx(1e22));
  const auto band = gain_band(of_left.coefficients, of_right.coefficients, draws, computes, 0.95);
  REQUIRE(band.size() == 7);
  CHECK(band[4].gain ==
        doctest::Approx(gain(of_left.coefficients, of_right.coefficients, computes[4], 0.95)));
}

TEST_CASE("draws whose reference never gets there count as a gain of one, and are reported") {
  surface_draws reference{
      {paper::baseline, paper::baseline, paper::baseline, paper::baseline}, 12, 0};
  surface_draws target = reference;
  target.laws[1].E = 1.2;
  target.laws[2].a = -0.1;
  const paired_draws draws{reference, target, true};
  const gain_estimate found = gain_with_interval(paper::baseline, paper::smelt, draws, 1e24, 0.95);
  CHECK(found.unreached == 1);
  CHECK(found.no_frontier == 1);
  CHECK_FALSE(std::isnan(found.range.low));
  CHECK_FALSE(std::isnan(found.range.high));
  CHECK(found.range.high <= 1);
  target.laws[0].a = target.laws[3].a = -0.1;
  CHECK_THROWS_WITH_AS(
      gain_with_interval(paper::baseline, paper::smelt, {reference, target, true}, 1e21, 0.95),
      doctest::Contains("3 of 4 bootstrap draws"), smelt::error);
  target.laws.pop_back();
  CHECK_THROWS_WITH_AS(
      gain_with_interval(paper::baseline, paper::smelt, {reference, target, true}, 1e21, 0.95),
      doctest::Contains("as many of both"), smelt::error);
}
