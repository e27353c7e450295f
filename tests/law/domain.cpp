// SPDX-License-Identifier: Apache-2.0
//
// Laws by domain with shared exponents, and the sigmoid from loss to score.
#include "smelt/law/domain.hpp"
#include "smelt/law/gain.hpp"
#include "smelt/law/paper.hpp"
#include "smelt/law/score.hpp"
#include "smelt/law/synthetic.hpp"

#include <cmath>
#include <string>

#include <doctest/doctest.h>

using namespace smelt::law;

namespace {

std::vector<endpoint> domain_points(const std::string& domain, const surface& law, double noise,
                                    std::uint64_t seed) {
  auto points = synthetic_endpoints(law, paper::baseline_cells, paper::horizons_tokens, "baseline",
                                    {noise, 0}, seed);
  for (endpoint& point : points) point.domain = domain;
  return points;
}

std::vector<score_point> sigmoid_points(const score_law& law) {
  std::vector<score_point> points;
  for (double loss = 1.7; loss < 2.7; loss += 0.08) points.push_back({loss, law.score(loss), 0});
  return points;
}

}  // namespace

TEST_CASE("each domain gets its own E, A and K, and the exponents it was given") {
  surface code = paper::baseline;
  code.E = 0.6;
  code.A *= 0.7;
  surface web = paper::baseline;
  web.E = 2.1;
  web.K *= 1.5;
  auto points = domain_points("Code", code, 0.001, 1);
  const auto more = domain_points("Web", web, 0.001, 2);
  points.insert(points.end(), more.begin(), more.end());
  // Rows without a domain are the overall loss and no domain of their own.
  const auto overall = domain_points("", paper::baseline, 0.001, 3);
  points.insert(points.end(), overall.begin(), overall.end());

  const auto laws = fit_domains(points, paper::baseline);
  REQUIRE(laws.size() == 2);
  CHECK(laws[0].domain == "Code");
  CHECK(laws[1].domain == "Web");
  const auto check = [](const surface& found, const surface& truth) {
    CHECK(found.E == doctest::Approx(truth.E).epsilon(0.005));
    CHECK(found.A == doctest::Approx(truth.A).epsilon(0.01));
    CHECK(found.K == doctest::Approx(truth.K).epsilon(0.01));
    CHECK(found.a == truth.a);
    CHECK(found.b == truth.b);
    CHECK(found.c == truth.c);
  };
  check(laws[0].fitted.coefficients, code);
  check(laws[1].fitted.coefficients, web);
  CHECK(laws[0].fitted.endpoints == 72);
}

TEST_CASE("a domain without enough endpoints, or with a bad one, is refused by name") {
  auto points = domain_points("Code", paper::baseline, 0, 1);
  points[5].loss = std::nan("");
  CHECK_THROWS_WITH_AS(fit_domains(points, paper::baseline),
                       doctest::Contains("endpoint 6: loss is nan"), smelt::error);
  points = domain_points("Code", paper::baseline, 0, 1);
  points.resize(6);
  CHECK_THROWS_WITH_AS(fit_domains(points, paper::baseline),
                       doctest::Contains("on domain 'Code': A needs at least 2 cells"),
                       smelt::error);
  CHECK(fit_domains(domain_points("", paper::baseline, 0, 1), paper::baseline).empty());
}

TEST_CASE("score and loss are inverse to each other, between chance and ceiling") {
  const score_law law{0.25, 0.95, 2.1, 6};
  CHECK(law.score(2.1) == doctest::Approx(0.6));
  CHECK(law.score(100) == doctest::Approx(0.25));
  CHECK(law.score(0.001) == doctest::Approx(0.95).epsilon(1e-4));
  for (const double loss : {1.5, 2.0, 2.8}) {
    CHECK(law.loss_for(law.score(loss)) == doctest::Approx(loss));
  }
  CHECK_THROWS_WITH_AS(law.loss_for(0.96), doctest::Contains("score 0.96 is never reached"),
                       smelt::error);
  CHECK_THROWS_AS(law.loss_for(0.25), smelt::error);
}

TEST_CASE("the sigmoid's gradient agrees with central differences") {
  const auto points = sigmoid_points({0.1, 0.9, 2.0, 5});
  const std::array<double, 4> at{2.15, std::log(3.0), 0.2, 0.7};
  const auto value = [&](const std::array<double, 4>& x) {
    std::array<double, 4> unused;
    return score_objective(points, {x[2], x[3], x[0], std::exp(x[1])}, 0.02, unused);
  };
  std::array<double, 4> gradient;
  score_objective(points, {at[2], at[3], at[0], std::exp(at[1])}, 0.02, gradient);
  for (std::size_t j = 0; j < 4; ++j) {
    auto above = at;
    auto below = at;
    above[j] += 1e-6;
    below[j] -= 1e-6;
    CHECK(gradient[j] == doctest::Approx((value(above) - value(below)) / 2e-6).epsilon(1e-5));
  }
}

TEST_CASE("a sigmoid is recovered, with floor and ceiling fixed or free") {
  const score_law centred{0, 1, 2.05, 7};
  const auto fixed = fit_score(sigmoid_points(centred));
  CHECK(fixed.law.midpoint == doctest::Approx(2.05).epsilon(1e-5));
  CHECK(fixed.law.slope == doctest::Approx(7).epsilon(1e-4));
  CHECK(fixed.rmse < 1e-5);

  const score_law truth{0.25, 0.88, 2.1, 9};
  score_options options;
  options.free_floor = true;
  options.free_ceiling = true;
  const auto free = fit_score(sigmoid_points(truth), options);
  CHECK(free.law.floor == doctest::Approx(0.25).epsilon(1e-3));
  CHECK(free.law.ceiling == doctest::Approx(0.88).epsilon(1e-3));
  CHECK(free.law.midpoint == doctest::Approx(2.1).epsilon(1e-4));
  CHECK(free.law.slope == doctest::Approx(9).epsilon(1e-3));
}

TEST_CASE("pairs that determine no sigmoid are refused") {
  auto points = sigmoid_points({0, 1, 2.05, 7});
  auto bad = points;
  bad[2].loss = 0;
  bad[2].row = 4;
  CHECK_THROWS_WITH_AS(fit_score(bad), doctest::Contains("row 4: loss is 0"), smelt::error);
  bad = points;
  bad[2].score = std::nan("");
  CHECK_THROWS_WITH_AS(fit_score(bad), doctest::Contains("endpoint 3: score is nan"), smelt::error);
  bad.assign(points.begin(), points.begin() + 2);
  CHECK_THROWS_WITH_AS(fit_score(bad), doctest::Contains("3 distinct losses, found 2"),
                       smelt::error);
  // Scores that rise with the loss: no falling sigmoid fits.
  bad = points;
  for (auto& point : bad) point.score = 1 - point.score;
  CHECK_THROWS_WITH_AS(fit_score(bad), doctest::Contains("do not determine a falling sigmoid"),
                       smelt::error);
  score_options options;
  options.floor = 1;
  CHECK_THROWS_WITH_AS(fit_score(points, options), doctest::Contains("floor < ceiling"),
                       smelt::error);
}
