// SPDX-License-Identifier: Apache-2.0
//
// Fits of the surface and of the plain form: recovery of known coefficients, robustness,
// invariances, and refusal of endpoints that cannot determine a law.
#include "smelt/law/fit.hpp"
#include "smelt/law/paper.hpp"
#include "smelt/law/residual.hpp"
#include "smelt/law/synthetic.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include <doctest/doctest.h>

using namespace smelt::law;

namespace {

std::vector<endpoint> sample(const synthetic_noise& noise, std::uint64_t seed = 5) {
  return synthetic_endpoints(paper::baseline, paper::baseline_cells, paper::horizons_tokens,
                             "baseline", noise, seed);
}

void check_close(const surface& found, const surface& expected, double tolerance) {
  for (std::size_t j = 0; j < coefficient_count; ++j) {
    CAPTURE(coefficient_names[j]);
    CHECK(coefficients_of(found)[j] ==
          doctest::Approx(coefficients_of(expected)[j]).epsilon(tolerance));
  }
}

std::string refusal(const std::vector<endpoint>& points) {
  try {
    fit(points);
  } catch (const smelt::error& failure) {
    return failure.what();
  }
  return "";
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("noiseless endpoints give back the surface they came from") {
  for (const surface& law : {paper::baseline, paper::smelt}) {
    const auto points =
        synthetic_endpoints(law, paper::smelt_cells, paper::horizons_tokens, "any", {0, 0}, 1);
    const fitted_surface found = fit(points);
    check_close(found.coefficients, law, 1e-5);
    CHECK(found.objective < 1e-15);
    CHECK(found.endpoints == 72);
    CHECK(found.cells == 12);
    CHECK(found.rmse_nats < 1e-6);
  }
}

TEST_CASE("no end of a descent is lower than the fit, from the truth or from the projected grid") {
  const auto points = sample({0.003, 0.002});
  const fitted_surface found = fit(points);
  const log_points logs = log_points_of(points);
  position gradient;
  const objective target{&logs, 1e-3, {}};
  CHECK(found.objective <= target(logs.position_of(paper::baseline), gradient));
  CHECK(target(logs.position_of(found.coefficients), gradient) ==
        doctest::Approx(found.objective).epsilon(1e-9));
  // An optimum: the gradient has vanished against its size two per cent away.
  double here = 0;
  for (const double slope : gradient) here = std::max(here, std::fabs(slope));
  position beside = logs.position_of(found.coefficients);
  beside[0] += 0.02;
  target(beside, gradient);
  CHECK(here < 1e-4 * std::fabs(gradient[0]));
  CHECK(found.starts_at_best > found.starts / 2);
}

TEST_CASE("Huber's loss shrugs off a broken run that least squares follows") {
  auto points = sample({0.0005, 0});
  const surface clean = fit(points).coefficients;
  points[7].loss *= 1.3;
  const surface robust = fit(points).coefficients;
  fit_options squares;
  squares.huber_delta = 10;
  const surface pulled = fit(points, squares).coefficients;
  const auto shift = [&](const surface& law) { return std::fabs(law.E - clean.E); };
  CHECK(shift(robust) < 0.01);
  CHECK(shift(pulled) > 5 * shift(robust));
}

TEST_CASE("a fit has the same bits at any number of threads and repeats") {
  const auto points = sample({0.003, 0});
  fit_options options;
  options.threads = 1;
  const fitted_surface one = fit(points, options);
  for (const std::int64_t threads : {1, 2, 5}) {
    options.threads = threads;
    const fitted_surface again = fit(points, options);
    CHECK(again.coefficients == one.coefficients);
    CHECK(again.objective == one.objective);
    CHECK(again.starts_at_best == one.starts_at_best);
  }
}

TEST_CASE("units do not matter: F and D in other units move A and K alone") {
  const auto points = sample({0.002, 0});
  auto scaled = points;
  for (endpoint& point : scaled) {
    point.flops_per_token *= 1e-9;
    point.tokens *= 1e-9;
  }
  const surface law = fit(points).coefficients;
  surface expected = law;
  expected.A *= std::pow(1e-9, law.a);
  expected.K *= std::pow(1e-9, law.c);
  check_close(fit(scaled).coefficients, expected, 1e-5);
}

TEST_CASE("cells are left out by rule") {
  auto points = sample({0.001, 0});
  const surface sparse = fit(points).coefficients;
  // A dense cell far off the surface must not matter once the rule has left it out.
  for (const double tokens : paper::horizons_tokens) {
    points.push_back({1.3e9, 0, tokens, 4.0, "baseline", "200M-0", "", 0});
  }
  const auto kept = leave_out(points, dense);
  CHECK(kept.size() == 72);
  CHECK(fit(kept).coefficients == sparse);
  CHECK(fit(points).coefficients != sparse);
}

TEST_CASE("the residual table is predicted minus observed, by endpoint and by cell") {
  const auto points = sample({0.002, 0});
  const auto table = residuals(points, paper::baseline);
  REQUIRE(table.size() == 72);
  CHECK(table[3].residual_nats ==
        doctest::Approx(
            paper::baseline.loss(points[3].flops_per_token, points[3].sparsity, points[3].tokens) -
            points[3].loss));
  CHECK(table[3].residual_log ==
        doctest::Approx(std::log(table[3].predicted) - std::log(points[3].loss)));
  const auto cells = residuals_by_cell(table);
  REQUIRE(cells.size() == 12);
  CHECK(cells[1].cell == "100M-95");
  CHECK(cells[1].endpoints == 6);
  double mean = 0;
  for (std::size_t i = 6; i < 12; ++i) mean += table[i].residual_nats / 6;
  CHECK(cells[1].mean_nats == doctest::Approx(mean));
  CHECK(std::fabs(cells[1].worst_nats) >= std::fabs(mean));
}

TEST_CASE("bad endpoints are refused by row and quantity") {
  const auto good = sample({0.001, 0});
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  auto bad = good;
  for (const double value : {0.0, -1.0, nan, infinity}) {
    CAPTURE(value);
    bad = good;
    bad[4].row = 17;
    bad[4].loss = value;
    CHECK(has(refusal(bad), "row 17: loss is " + number_text(value)));
    bad = good;
    bad[4].tokens = value;
    CHECK(has(refusal(bad), "endpoint 5: tokens D is " + number_text(value)));
    bad = good;
    bad[4].flops_per_token = value;
    CHECK(has(refusal(bad), "endpoint 5: FLOPs per token F is " + number_text(value)));
  }
  for (const double value : {-0.1, 1.0, 95.0, nan}) {
    bad = good;
    bad[0].sparsity = value;
    CHECK(has(refusal(bad), "endpoint 1: sparsity S is " + number_text(value)));
  }
  bad = good;
  bad[9].architecture = "smelt";
  CHECK(has(refusal(bad), "endpoint 10: architecture 'smelt' among endpoints of 'baseline'"));
  bad = good;
  bad[9].domain = "Code";
  CHECK(has(refusal(bad), "endpoint 10: domain 'Code'"));
  bad = good;
  bad[9].cell = "";
  CHECK(has(refusal(bad), "endpoint 10: the cell has no name"));
  bad = good;
  bad.push_back(good[2]);
  bad.back().row = 80;
  CHECK(has(refusal(bad), "row 80: repeats endpoint 3"));
  CHECK(has(refusal({}), "no endpoints"));
}

TEST_CASE("endpoints that cannot determine a coefficient are refused with its name") {
  const auto good = sample({0.001, 0});
  const auto only = [&](auto&& keep) {
    return leave_out(good, [&](const endpoint& point) { return !keep(point); });
  };
  const auto one_sparsity = [&] {
    auto points = good;
    std::erase_if(points, [](const endpoint& p) { return !p.cell.ends_with("-95"); });
    for (endpoint& point : points) point.sparsity = 0.95;
    return points;
  };
  CHECK(has(refusal(one_sparsity()), "b needs at least 2 distinct sparsities S, found 1"));
  CHECK(has(refusal(only([](const endpoint& p) { return p.tokens == 20.5e9; })),
            "K and c need at least 3 distinct horizons D, found 1"));
  CHECK(has(refusal(only([](const endpoint& p) { return p.tokens < 50e9; })),
            "at least 3 distinct horizons D, found 2"));
  CHECK(has(refusal(only([](const endpoint& p) { return p.cell.starts_with("200M"); })),
            "at least 4 cells that differ in (F, S), found 3"));
  auto one_scale = only([](const endpoint& p) { return p.cell.starts_with("200M"); });
  for (endpoint& point : one_scale) point.flops_per_token = 1.3e9;
  CHECK(has(refusal(one_scale), "a needs at least 2 distinct FLOPs per token F, found 1"));
  const auto few = std::vector<endpoint>{good[0], good[7], good[14], good[21], good[28], good[35]};
  CHECK(has(refusal(few), "6 coefficients need at least 7 endpoints, found 6"));
}

TEST_CASE("sparsity that is a function of scale leaves a and b entangled, and is refused") {
  std::vector<endpoint> points;
  for (const double f : {1e9, 2e9, 4e9, 8e9, 16e9}) {
    for (const double d : paper::horizons_tokens) {
      const double s = 1 - std::pow(f / 64e9, 0.5);
      points.push_back({f, s, d, paper::baseline.loss(f, s, d), "any", number_text(f), "", 0});
    }
  }
  CHECK(has(refusal(points), "do not determine coefficient"));
}

TEST_CASE("a bad Huber threshold is refused") {
  fit_options options;
  options.huber_delta = 0;
  CHECK_THROWS_WITH_AS(fit(sample({0, 0}), options), doctest::Contains("Huber delta is 0"),
                       smelt::error);
}

TEST_CASE("the plain form is recovered, from its literal grid and from the projected one") {
  const chinchilla truth{1.69, 406.4, 410.7, 0.34, 0.28};
  std::vector<chinchilla_point> points;
  for (const double n : {5e7, 2e8, 1e9, 7e9}) {
    for (const double d : {1e9, 1e10, 1e11}) points.push_back({n, d, truth.loss(n, d), 0});
  }
  const auto few_starts = fit_chinchilla(points);
  CHECK(few_starts.starts == 16);
  CHECK(few_starts.coefficients.E == doctest::Approx(1.69).epsilon(1e-4));
  CHECK(few_starts.coefficients.A == doctest::Approx(406.4).epsilon(1e-3));
  CHECK(few_starts.coefficients.B == doctest::Approx(410.7).epsilon(1e-3));
  CHECK(few_starts.coefficients.alpha == doctest::Approx(0.34).epsilon(1e-4));
  CHECK(few_starts.coefficients.beta == doctest::Approx(0.28).epsilon(1e-4));
  CHECK(few_starts.objective < 1e-14);
}

TEST_CASE("runs that cannot determine the plain form are refused") {
  const auto refused = [](const std::vector<chinchilla_point>& points) {
    try {
      fit_chinchilla(points);
    } catch (const smelt::error& failure) {
      return std::string(failure.what());
    }
    return std::string();
  };
  std::vector<chinchilla_point> points;
  for (const double n : {5e7, 2e8, 1e9}) {
    for (const double d : {1e9, 1e10, 1e11}) points.push_back({n, d, 2 + 1e9 / d + 1e7 / n, 0});
  }
  CHECK(refused(points).empty());
  auto bad = points;
  bad[2].parameters = -1;
  bad[2].row = 4;
  CHECK(has(refused(bad), "row 4: parameters N is -1"));
  bad = points;
  for (auto& point : bad) point.tokens = 1e10;
  CHECK(has(refused(bad), "B and beta need at least 3 distinct horizons D, found 1"));
  bad = points;
  std::erase_if(bad, [](const chinchilla_point& p) { return p.parameters > 5e8; });
  CHECK(has(refused(bad), "A and alpha need at least 3 distinct model sizes N, found 2"));
  CHECK(has(refused({}), "no runs"));
}

TEST_CASE("the runs of highest loss are left out by count, ties with the last together") {
  const std::vector<chinchilla_point> points{
      {1, 1, 5, 0}, {1, 2, 3, 0}, {1, 3, 4, 0}, {1, 4, 2, 0}, {1, 5, 4, 0}};
  CHECK(without_highest_losses(points, 0).size() == 5);
  CHECK(without_highest_losses(points, 1).size() == 4);
  const auto kept = without_highest_losses(points, 2);
  REQUIRE(kept.size() == 2);
  CHECK(kept[0].loss == 3);
  CHECK(kept[1].loss == 2);
  CHECK(without_highest_losses(points, 5).empty());
}
