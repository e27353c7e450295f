// SPDX-License-Identifier: Apache-2.0
//
// The objective against its definition: values against the plain formula, gradients against
// central differences, the sum against a mean.
#include "smelt/law/objective.hpp"
#include "smelt/law/huber.hpp"
#include "smelt/law/minimise.hpp"
#include "smelt/law/paper.hpp"
#include "smelt/law/starts.hpp"
#include "smelt/law/synthetic.hpp"

#include <cmath>
#include <random>

#include <doctest/doctest.h>

using namespace smelt::law;

namespace {

std::vector<endpoint> sample() {
  return synthetic_endpoints(paper::baseline, paper::baseline_cells, paper::horizons_tokens,
                             "baseline", {0.003, 0.001}, 11);
}

}  // namespace

TEST_CASE("huber is quadratic inside, linear outside, and smooth where the two meet") {
  CHECK(huber(0, 0.5).value == 0);
  CHECK(huber(0.25, 0.5).value == doctest::Approx(0.03125));
  CHECK(huber(-2, 0.5).value == doctest::Approx(0.5 * (2 - 0.25)));
  CHECK(huber(-2, 0.5).slope == -0.5);
  const double inside = huber(0.5 - 1e-9, 0.5).value;
  const double outside = huber(0.5 + 1e-9, 0.5).value;
  CHECK(outside - inside == doctest::Approx(2e-9 * 0.5).epsilon(1e-6));
}

TEST_CASE("log loss in the fit's coordinates is the log of the plain formula") {
  const auto points = sample();
  const log_points logs = log_points_of(points);
  for (const surface& law : {paper::baseline, paper::smelt}) {
    const position at = logs.position_of(law);
    for (std::size_t i = 0; i < points.size(); ++i) {
      const double plain =
          law.loss(points[i].flops_per_token, points[i].sparsity, points[i].tokens);
      CHECK(log_loss_at(logs, i, at).value == doctest::Approx(std::log(plain)).epsilon(1e-12));
    }
    const surface back = logs.surface_at(at);
    for (std::size_t j = 0; j < coefficient_count; ++j) {
      CHECK(coefficients_of(back)[j] == doctest::Approx(coefficients_of(law)[j]).epsilon(1e-11));
    }
  }
}

TEST_CASE("the analytic gradient agrees with central differences") {
  const auto points = sample();
  const log_points logs = log_points_of(points);
  std::mt19937_64 bits(3);
  const auto uniform = [&](double low, double high) {
    return low + (high - low) * static_cast<double>(bits() >> 11) * 0x1p-53;
  };
  std::vector<double> weights;
  for (std::size_t i = 0; i < points.size(); ++i) weights.push_back(static_cast<double>(i % 4));

  // A delta above every residual tests the quadratic branch, 1e-3 the linear one.
  for (const double delta : {1e-3, 0.05, 10.0}) {
    for (const bool weighted : {false, true}) {
      const objective target{
          &logs, delta, weighted ? std::span<const double>(weights) : std::span<const double>()};
      for (int trial = 0; trial < 20; ++trial) {
        const position at{uniform(-1, 1),   uniform(-3, 0),   uniform(-3, 0),
                          uniform(0.1, 1.), uniform(-.2, .8), uniform(0.1, 1.2)};
        position gradient;
        position unused;
        target(at, gradient);
        double largest = 0;
        for (const double slope : gradient) largest = std::max(largest, std::fabs(slope));
        for (std::size_t j = 0; j < coefficient_count; ++j) {
          const double step = 1e-5;
          position above = at;
          position below = at;
          above[j] += step;
          below[j] -= step;
          const double measured = (target(above, unused) - target(below, unused)) / (2 * step);
          CHECK(std::fabs(gradient[j] - measured) < 1e-5 * largest + 1e-12);
        }
      }
    }
  }
}

TEST_CASE("the objective is a sum: a weight of two is the endpoint twice, and never a mean") {
  const auto points = sample();
  log_points once = log_points_of(points);
  log_points twice = once;
  for (std::size_t i = 0; i < points.size(); ++i) {
    twice.model_size.push_back(once.model_size[i]);
    twice.density.push_back(once.density[i]);
    twice.tokens.push_back(once.tokens[i]);
    twice.loss.push_back(once.loss[i]);
  }
  const std::vector<double> two(points.size(), 2.0);
  const position at = once.position_of(paper::smelt);
  position gradient;
  const double single = objective{&once, 1e-3, {}}(at, gradient);
  CHECK(objective{&once, 1e-3, two}(at, gradient) == doctest::Approx(2 * single));
  CHECK(objective{&twice, 1e-3, {}}(at, gradient) == doctest::Approx(2 * single));
}

TEST_CASE("absurd coordinates give finite values and gradients") {
  const auto points = sample();
  const log_points logs = log_points_of(points);
  for (const double far : {-600.0, 600.0}) {
    for (std::size_t j = 0; j < coefficient_count; ++j) {
      position at{0, -1, -1, 0.4, 0.1, 0.6};
      at[j] = far;
      position gradient;
      CHECK(std::isfinite(objective{&logs, 1e-3, {}}(at, gradient)));
      for (const double slope : gradient) CHECK(std::isfinite(slope));
    }
  }
}

TEST_CASE("projection at the true exponents of noiseless data is the true surface") {
  const auto exact = synthetic_endpoints(paper::smelt, paper::smelt_cells, paper::horizons_tokens,
                                         "smelt", {0, 0}, 1);
  const log_points logs = log_points_of(exact);
  const position truth = logs.position_of(paper::smelt);
  const position found = project(logs, {0, 0, 0, truth[3], truth[4], truth[5]});
  for (std::size_t j = 0; j < 3; ++j) CHECK(found[j] == doctest::Approx(truth[j]).epsilon(1e-5));
}

TEST_CASE("the literal grid has 4,500 distinct starts") {
  const auto grid = chinchilla_grid();
  CHECK(grid.size() == 4500);
  CHECK(grid.front() == chinchilla{std::exp(-1.0), 1, 1, 0, 0});
  CHECK(grid.back() == chinchilla{std::exp(1.0), std::exp(25.0), std::exp(25.0), 2, 2});
}

TEST_CASE("minimise finds the bottom of a curved valley and survives a wall of NaN") {
  const auto valley = [](std::span<const double> x, std::span<double> gradient) {
    const double across = x[1] - x[0] * x[0];
    gradient[0] = -2 * (1 - x[0]) - 400 * x[0] * across;
    gradient[1] = 200 * across;
    return (1 - x[0]) * (1 - x[0]) + 100 * across * across;
  };
  const std::vector<double> start{-1.2, 1};
  const minimum found = minimise(valley, start);
  CHECK(found.converged);
  CHECK(found.x[0] == doctest::Approx(1));
  CHECK(found.x[1] == doctest::Approx(1));

  const auto walled = [](std::span<const double> x, std::span<double> gradient) {
    gradient[0] = 1 - 1 / x[0];
    return x[0] - std::log(x[0]);  // NaN left of zero, minimum at one
  };
  const std::vector<double> near_wall{0.01};
  const minimum inside = minimise(walled, near_wall);
  CHECK(inside.x[0] == doctest::Approx(1));

  const auto nothing = [](std::span<const double>, std::span<double> gradient) {
    gradient[0] = 0;
    return std::nan("");
  };
  CHECK_FALSE(minimise(nothing, near_wall).converged);
}
