// SPDX-License-Identifier: Apache-2.0
//
// The closed-form frontier and gain against oracles that do not know the closed form: a numerical
// search along the surface, the first-order condition, and cases solved by hand.
#include "smelt/law/frontier.hpp"
#include "smelt/law/gain.hpp"
#include "smelt/law/paper.hpp"

#include <cmath>
#include <limits>
#include <random>

#include <doctest/doctest.h>

using namespace smelt::law;

TEST_CASE("the closed form is the minimum that a search along the surface finds") {
  std::mt19937_64 bits(7);
  const auto uniform = [&](double low, double high) {
    return low + (high - low) * static_cast<double>(bits() >> 11) * 0x1p-53;
  };
  for (int trial = 0; trial < 200; ++trial) {
    const surface law{uniform(0, 2),     std::exp(uniform(3, 9)), std::exp(uniform(8, 16)),
                      uniform(0.2, 0.6), uniform(-0.1, 0.5),      uniform(0.3, 0.9)};
    const double sparsity = uniform(0, 0.99);
    const double compute = std::exp(uniform(std::log(1e18), std::log(1e24)));
    const optimum closed = frontier(law, sparsity).at(compute);
    const optimum searched = search_optimum(law, sparsity, compute);
    CHECK(closed.loss == doctest::Approx(searched.loss).epsilon(1e-12));
    // The loss is flat at its minimum, so the place is known to the root of its precision.
    CHECK(closed.flops_per_token == doctest::Approx(searched.flops_per_token).epsilon(1e-5));
    CHECK(closed.flops_per_token * closed.tokens == doctest::Approx(compute).epsilon(1e-12));
    CHECK(
        closed.loss ==
        doctest::Approx(law.loss(closed.flops_per_token, sparsity, closed.tokens)).epsilon(1e-12));
    CHECK(closed.tokens_per_parameter ==
          doctest::Approx(6 * closed.tokens / closed.flops_per_token));
  }
}

TEST_CASE("on the frontier neither more model nor more data is the better buy") {
  const frontier line(paper::smelt, 0.95);
  const optimum best = line.at(3e20);
  CHECK(paper::smelt.a * paper::smelt.model_term(best.flops_per_token, 0.95) ==
        doctest::Approx(paper::smelt.c * paper::smelt.data_term(best.tokens)));
  for (const double shift : {0.9, 1.1}) {
    CHECK(paper::smelt.loss(best.flops_per_token * shift, 0.95, best.tokens / shift) > best.loss);
  }
}

TEST_CASE("compute and loss on the frontier are inverse to each other") {
  const frontier line(paper::baseline, 0.97);
  for (const double compute : {1e15, 1e18, 1e21, 1e25}) {
    CHECK(line.compute_for(line.loss(compute)) == doctest::Approx(compute).epsilon(1e-9));
  }
  CHECK(line.loss(1e21) < line.loss(1e20));
  CHECK(line.exponent() == doctest::Approx(0.3703 * 0.6594 / (0.3703 + 0.6594)));
}

TEST_CASE("a surface without a frontier, and a loss below E, are refused by name") {
  const frontier line(paper::baseline, 0.95);
  CHECK_THROWS_WITH_AS(line.compute_for(1.4), doctest::Contains("loss 1.4 is never reached"),
                       smelt::error);
  CHECK_THROWS_WITH_AS(line.compute_for(paper::baseline.E), doctest::Contains("E 1.4439"),
                       smelt::error);
  CHECK_THROWS_AS(line.compute_for(std::nan("")), smelt::error);
  surface flat = paper::baseline;
  flat.c = -0.1;
  CHECK_THROWS_WITH_AS(frontier(flat, 0.95), doctest::Contains("coefficient c"), smelt::error);
  flat = paper::baseline;
  flat.A = 0;
  CHECK_THROWS_WITH_AS(frontier(flat, 0.95), doctest::Contains("coefficient A"), smelt::error);
  flat = paper::baseline;
  flat.E = std::nan("");
  CHECK_THROWS_WITH_AS(frontier(flat, 0.95), doctest::Contains("E nan"), smelt::error);
  CHECK_THROWS_WITH_AS(frontier(paper::baseline, 95), doctest::Contains("write 0.95 for 95 %"),
                       smelt::error);
  for (const double compute : {0.0, -1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    CHECK_THROWS_WITH_AS(line.loss(compute), doctest::Contains("compute C"), smelt::error);
    CHECK_THROWS_AS(line.at(compute), smelt::error);
  }
}

TEST_CASE("an architecture gains nothing over itself") {
  CHECK(gain(paper::baseline, paper::baseline, 1e21, 0.95) == doctest::Approx(0).epsilon(1e-9));
}

TEST_CASE("gain by hand: both terms smaller by q save 1 - q^(1/gamma) of the compute") {
  for (const double q : {0.8, 0.95, 1.1}) {
    surface target = paper::baseline;
    target.A *= q;
    target.K *= q;
    const double gamma = frontier(target, 0.9).exponent();
    for (const double compute : {1e19, 1e22}) {
      CHECK(gain(paper::baseline, target, compute, 0.9) ==
            doctest::Approx(1 - std::pow(q, 1 / gamma)).epsilon(1e-9));
    }
  }
}

TEST_CASE("a target below the reference's E has no gain, and the message says why") {
  surface target = paper::baseline;
  target.E = 1.2;
  CHECK_THROWS_WITH_AS(gain(paper::baseline, target, 1e24, 0.95),
                       doctest::Contains("not above the reference's irreducible loss E 1.4439"),
                       smelt::error);
}

TEST_CASE("data terms cross where they are equal") {
  const double tokens = data_crossover_tokens(paper::baseline, paper::smelt);
  CHECK(paper::baseline.data_term(tokens) == doctest::Approx(paper::smelt.data_term(tokens)));
  surface parallel = paper::baseline;
  parallel.K *= 2;
  CHECK_THROWS_WITH_AS(data_crossover_tokens(paper::baseline, parallel),
                       doctest::Contains("never cross"), smelt::error);
  parallel.K = -1;
  CHECK_THROWS_WITH_AS(data_crossover_tokens(paper::baseline, parallel),
                       doctest::Contains("coefficient K"), smelt::error);
}

TEST_CASE("break-even is where the gain changes sign") {
  for (const double sparsity : paper::sparsities) {
    const auto compute = break_even_compute(paper::baseline, paper::smelt, sparsity);
    REQUIRE(compute);
    CHECK(std::fabs(gain(paper::baseline, paper::smelt, *compute, sparsity)) < 1e-9);
    CHECK(gain(paper::baseline, paper::smelt, *compute * 0.5, sparsity) < 0);
    CHECK(gain(paper::baseline, paper::smelt, *compute * 2, sparsity) > 0);
  }
  surface better = paper::baseline;
  better.A *= 0.5;
  CHECK_FALSE(break_even_compute(paper::baseline, better, 0.95));
  CHECK_THROWS_WITH_AS(break_even_compute(paper::baseline, better, 0.95, 1e20, 1e19),
                       doctest::Contains("0 < lowest < highest"), smelt::error);
}
