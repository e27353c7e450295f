// SPDX-License-Identifier: Apache-2.0
//
// Head and cross-entropy: value against loops in double, gradients against central differences,
// positions that do not count, and a vocabulary of several chunks.
#include "smelt/op/loss.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "gradient.hpp"

using namespace smelt;
using namespace smelt::test;

namespace {
template <class Compute>
struct head_problem {
  using real = real_of<Compute>;
  std::int64_t tokens, hidden, vocabulary, chunk;
  std::vector<Compute> x, weights, dlogits;
  std::vector<std::int32_t> targets;
  std::vector<real> logits, maximum, sum, at_target, dx, dweights;
  flop_counter counter;

  head_problem(std::int64_t n, std::int64_t h, std::int64_t v)
      : tokens(n),
        hidden(h),
        vocabulary(v),
        chunk(std::min(v, head_chunk)),
        x(random_values<Compute>(n * h, 1, 2.0)),
        weights(random_values<Compute>(v * h, 2, 2.0)),
        dlogits(poisoned<Compute>(n * chunk)),
        targets(static_cast<std::size_t>(n)),
        logits(poisoned<real>(n * chunk)),
        maximum(poisoned<real>(n)),
        sum(poisoned<real>(n)),
        at_target(poisoned<real>(n)),
        dx(poisoned<real>(n * h)),
        dweights(static_cast<std::size_t>(v * h)) {
    for (std::size_t i = 0; i < targets.size(); ++i)
      targets[i] =
          i % 4 == 3 ? -1 : static_cast<std::int32_t>((i * 2731) % static_cast<std::size_t>(v));
  }
  double loss(bool gradient, int threads = 1, double scale = 1.0) {
    host<Compute> run(threads);
    run.count_into(&counter);
    return head_loss(run, matrix_view<const Compute>(x.data(), tokens, hidden),
                     matrix_view<const Compute>(weights.data(), vocabulary, hidden), targets.data(),
                     gradient, scale,
                     {logits.data(), dlogits.data(), maximum.data(), sum.data(), at_target.data()},
                     matrix_view<real>(dx.data(), tokens, hidden),
                     matrix_view<real>(dweights.data(), vocabulary, hidden));
  }
  double reference() const {
    double total = 0.0;
    for (std::int64_t n = 0; n < tokens; ++n) {
      const auto target = targets[static_cast<std::size_t>(n)];
      if (target < 0) continue;
      double sum_exp = 0.0, hit = 0.0;
      for (std::int64_t v = 0; v < vocabulary; ++v) {
        double logit = 0.0;
        for (std::int64_t j = 0; j < hidden; ++j)
          logit +=
              static_cast<double>(static_cast<real>(x[static_cast<std::size_t>(n * hidden + j)])) *
              static_cast<double>(
                  static_cast<real>(weights[static_cast<std::size_t>(v * hidden + j)]));
        sum_exp += std::exp(logit);
        if (v == target) hit = logit;
      }
      total += std::log(sum_exp) - hit;
    }
    return total;
  }
};
}  // namespace

TEST_CASE("cross-entropy equals its definition, one chunk and several") {
  for (const std::int64_t vocabulary :
       {std::int64_t{1}, std::int64_t{256}, head_chunk, head_chunk + 5, 2 * head_chunk + 100}) {
    CAPTURE(vocabulary);
    head_problem<double> exact(6, 5, vocabulary);
    head_problem<float> single(6, 5, vocabulary);
    head_problem<bf16> half(6, 5, vocabulary);
    CHECK(exact.loss(false) == doctest::Approx(exact.reference()).epsilon(1e-12));
    CHECK(single.loss(false, 2) == doctest::Approx(single.reference()).epsilon(1e-5));
    CHECK(half.loss(false, 2) == doctest::Approx(half.reference()).epsilon(1e-4));
  }
}

TEST_CASE("head gradients are central differences, one chunk and several") {
  for (const std::int64_t vocabulary : {std::int64_t{11}, head_chunk + 3}) {
    head_problem<double> p(5, 3, vocabulary);
    p.loss(true, 1, 0.25);
    const auto dx = p.dx, dweights = p.dweights;
    const auto scaled_loss = [&] { return 0.25 * p.loss(false); };
    CHECK(relative_error(dx, central_differences(p.x, scaled_loss)) < 1e-6);
    if (vocabulary < 100)
      CHECK(relative_error(dweights, central_differences(p.weights, scaled_loss)) < 1e-6);

    head_problem<float> single(5, 3, vocabulary);
    single.loss(true, 2, 0.25);
    CHECK(relative_error(single.dx, dx) < 1e-4);
    CHECK(relative_error(single.dweights, dweights) < 1e-4);
    head_problem<bf16> half(5, 3, vocabulary);
    half.loss(true, 2, 0.25);
    CHECK(relative_error(half.dx, dx) < 1e-2);
  }
}

TEST_CASE("positions without a target have no loss and no gradient") {
  head_problem<double> p(8, 3, 10);
  p.loss(true);
  for (std::size_t j = 0; j < 3; ++j) {
    CHECK(p.dx[3 * 3 + j] == 0.0);
    CHECK(p.dx[7 * 3 + j] == 0.0);
    CHECK(p.dx[4 * 3 + j] != 0.0);
  }
}

TEST_CASE("the head counts 6 N H V for training; a second look at the logits is kept apart") {
  head_problem<float> small(4, 3, 7);
  small.loss(true);
  CHECK(small.counter.products == 6 * 4 * 3 * 7);
  CHECK(small.counter.recomputed == 0);
  head_problem<float> large(4, 3, head_chunk + 1);
  large.loss(true);
  CHECK(large.counter.products == 6 * 4 * 3 * (head_chunk + 1));
  CHECK(large.counter.recomputed == 2 * 4 * 3 * (head_chunk + 1));
}

TEST_CASE("huge logits neither overflow nor lose the loss") {
  head_problem<float> p(2, 1, 3);
  p.x = {1.0F, 1.0F};
  p.weights = {300.0F, -300.0F, 299.0F};
  p.targets = {0, 1};
  const double expected = std::log1p(std::exp(-1.0)) + 600.0 + std::log1p(std::exp(-1.0));
  CHECK(p.loss(true) == doctest::Approx(expected).epsilon(1e-6));
  for (const float gradient : p.dx) CHECK(std::isfinite(gradient));
}
