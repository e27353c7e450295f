// SPDX-License-Identifier: Apache-2.0
//
// Head and cross-entropy on any backend: value against loops in double, gradients against the
// double ones (and those against central differences, in loss.cpp), positions that do not count,
// huge logits, and a vocabulary of several chunks.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include "gradient.hpp"
#include "smelt/op/loss.hpp"
#include "support/tensor.hpp"

namespace smelt::test {

// One head with its memory; dx and everything borrowed is poisoned, every fourth target is -1.
template <class Policy>
struct head_problem {
  using real = typename Policy::real;
  using compute = typename Policy::compute;
  using statistic = typename Policy::statistic;
  std::int64_t tokens, hidden, vocabulary, chunk;
  std::vector<compute> x_values, weight_values;
  std::vector<std::int32_t> target_values;
  tensor<compute, Policy> x, weights, dlogits;
  tensor<std::int32_t, Policy> targets;
  tensor<real, Policy> logits, maximum, sum, at_target, scale, dx, dweights;
  tensor<statistic, Policy> loss_sum;
  flop_counter counter;

  head_problem(std::int64_t n, std::int64_t h, std::int64_t v)
      : tokens(n),
        hidden(h),
        vocabulary(v),
        chunk(std::min(v, head_chunk)),
        x_values(random_values<compute>(n * h, 1, 2.0)),
        weight_values(random_values<compute>(v * h, 2, 2.0)),
        target_values(some_targets(n, v)),
        x(x_values),
        weights(weight_values),
        dlogits(poisoned<compute>(n * chunk)),
        targets(target_values),
        logits(poisoned<real>(n * chunk)),
        maximum(poisoned<real>(n)),
        sum(poisoned<real>(n)),
        at_target(poisoned<real>(n)),
        scale(std::vector<real>(1, real(1))),
        dx(poisoned<real>(n * h)),
        dweights(std::vector<real>(static_cast<std::size_t>(v * h), real(0))),
        loss_sum(std::vector<statistic>(1, statistic(0))) {}

  static std::vector<std::int32_t> some_targets(std::int64_t n, std::int64_t v) {
    std::vector<std::int32_t> targets_(static_cast<std::size_t>(n));
    for (std::size_t i = 0; i < targets_.size(); ++i)
      targets_[i] =
          i % 4 == 3 ? -1 : static_cast<std::int32_t>((i * 2731) % static_cast<std::size_t>(v));
    return targets_;
  }
  void set(const std::vector<compute>& x_, const std::vector<compute>& weights_,
           const std::vector<std::int32_t>& targets_) {
    x.set(x_values = x_);
    weights.set(weight_values = weights_);
    targets.set(target_values = targets_);
  }
  void call(bool gradient, Policy run) {
    run.count_into(&counter);
    // One memory for logits and dlogits where they are of one type, as in a training step.
    compute* narrow = dlogits.data();
    if constexpr (std::is_same_v<compute, real>) narrow = logits.data();
    head_loss(run, x.constant(tokens, hidden), weights.constant(vocabulary, hidden), targets.data(),
              gradient ? static_cast<const real*>(scale.data()) : nullptr,
              head_workspace<compute>{logits.data(), narrow, maximum.data(), sum.data(),
                                      at_target.data()},
              dx.view(tokens, hidden), dweights.view(vocabulary, hidden), loss_sum.data());
  }
  // The loss by itself, or with gradients of it times `factor`.
  double loss(bool gradient, double factor = 1.0, const Policy& run = policy<Policy>()) {
    scale.set({static_cast<real>(factor)});
    loss_sum.set({statistic(0)});
    call(gradient, run);
    return static_cast<double>(loss_sum.values()[0]);
  }
  double reference() const {
    const auto from = as_double(x_values), to = as_double(weight_values);
    double total = 0.0;
    for (std::int64_t n = 0; n < tokens; ++n) {
      const auto target = target_values[static_cast<std::size_t>(n)];
      if (target < 0) continue;
      double sum_exp = 0.0, hit = 0.0;
      for (std::int64_t v = 0; v < vocabulary; ++v) {
        double logit = 0.0;
        for (std::int64_t j = 0; j < hidden; ++j)
          logit += from[static_cast<std::size_t>(n * hidden + j)] *
                   to[static_cast<std::size_t>(v * hidden + j)];
        sum_exp += std::exp(logit);
        if (v == target) hit = logit;
      }
      total += std::log(sum_exp) - hit;
    }
    return total;
  }
};

inline const std::vector<std::int64_t> vocabularies_of_test = {
    1, 255, 256, 257, head_chunk, head_chunk + 5, 2 * head_chunk + 100};

TEST_CASE_TEMPLATE_DEFINE("loss: value is that of the definition, one chunk and several", Policy,
                          loss_values) {
  for (const std::int64_t vocabulary : vocabularies_of_test) {
    CAPTURE(vocabulary);
    head_problem<Policy> p(6, 5, vocabulary);
    CHECK(p.loss(false) == doctest::Approx(p.reference()).epsilon(tolerance<Policy>(1e-5, 1e-5)));
    // Without a gradient nothing of it is written.
    bool untouched = true;
    for (const auto value : p.dx.values()) untouched = untouched && std::isnan(value);
    for (const auto value : p.dweights.values()) untouched = untouched && value == 0;
    CHECK(untouched);
  }
}

TEST_CASE_TEMPLATE_DEFINE("loss: many tokens, in several blocks, are added to what is there",
                          Policy, loss_sums) {
  for (const std::int64_t tokens : {1, 255, 256, 257, 1000}) {
    CAPTURE(tokens);
    head_problem<Policy> p(tokens, 2, 9);
    const double expected = p.reference();
    CHECK(p.loss(false) == doctest::Approx(expected).epsilon(tolerance<Policy>(1e-5, 1e-5)));
    p.call(false, policy<Policy>());
    CHECK(double(p.loss_sum.values()[0]) ==
          doctest::Approx(2.0 * expected).epsilon(tolerance<Policy>(1e-5, 1e-5)));
  }
}

TEST_CASE_TEMPLATE_DEFINE("loss: gradients are those of the double reference", Policy,
                          loss_gradients) {
  for (const std::int64_t vocabulary :
       {std::int64_t{11}, head_chunk, head_chunk + 3, 2 * head_chunk + 1}) {
    CAPTURE(vocabulary);
    head_problem<host<double>> exact(7, 5, vocabulary);
    head_problem<Policy> p(7, 5, vocabulary);
    exact.set(as_double(p.x_values), as_double(p.weight_values), p.target_values);
    exact.loss(true, 0.25);
    p.loss(true, 0.25);
    CHECK(relative_error(p.dx.values(), exact.dx.values()) < tolerance<Policy>(1e-5));
    CHECK(relative_error(p.dweights.values(), exact.dweights.values()) < tolerance<Policy>(1e-5));
    // Again: dx is overwritten, dweights are added to.
    const auto dx = p.dx.values();
    auto twice = as_double(p.dweights.values());
    for (double& value : twice) value *= 2.0;
    p.loss(true, 0.25);
    CHECK(p.dx.values() == dx);
    CHECK(relative_error(p.dweights.values(), twice) < 1e-6);
  }
}

TEST_CASE_TEMPLATE_DEFINE("loss: positions without a target have no loss and no gradient", Policy,
                          loss_without_target) {
  head_problem<Policy> p(8, 3, 10);
  p.loss(true);
  const auto dx = p.dx.values();
  for (std::size_t j = 0; j < 3; ++j) {
    CHECK(dx[3 * 3 + j] == 0.0);
    CHECK(dx[7 * 3 + j] == 0.0);
    CHECK(dx[4 * 3 + j] != 0.0);
  }
  // None that counts, and no token at all.
  head_problem<Policy> ignored(5, 3, head_chunk + 1);
  ignored.set(ignored.x_values, ignored.weight_values, std::vector<std::int32_t>(5, -1));
  CHECK(ignored.loss(true) == 0.0);
  for (const auto value : ignored.dx.values()) CHECK(value == 0);
  head_problem<Policy> none(0, 3, 10);
  CHECK(none.loss(true) == 0.0);
  for (const auto value : none.dweights.values()) CHECK(value == 0);
}

TEST_CASE_TEMPLATE_DEFINE(
    "loss: the head counts 6 N H V for training; a second look at logits is kept apart", Policy,
    loss_counts) {
  head_problem<Policy> small(4, 3, 7);
  small.loss(true);
  CHECK(small.counter.products == 6 * 4 * 3 * 7);
  CHECK(small.counter.recomputed == 0);
  head_problem<Policy> large(4, 3, head_chunk + 1);
  large.loss(true);
  CHECK(large.counter.products == 6 * 4 * 3 * (head_chunk + 1));
  CHECK(large.counter.recomputed == 2 * 4 * 3 * (head_chunk + 1));
}

TEST_CASE_TEMPLATE_DEFINE("loss: huge logits neither overflow nor lose the loss", Policy,
                          loss_huge_logits) {
  using compute = typename Policy::compute;
  using real = typename Policy::real;
  const auto number = [](double value) { return static_cast<compute>(static_cast<real>(value)); };
  const std::vector<compute> ones(2, number(1.0));
  head_problem<Policy> p(2, 1, 3);
  p.set(ones, {number(300.0), number(-300.0), number(298.0)}, {0, 1});
  const double beside = std::log1p(std::exp(-2.0));
  CHECK(p.loss(true) == doctest::Approx(2.0 * beside + 600.0).epsilon(1e-6));
  for (const auto gradient : p.dx.values()) CHECK(std::isfinite(gradient));
  // A small loss beside a large maximum: the difference is taken before anything is rounded.
  p.set(ones, {number(8192.0), number(-8192.0), number(8192.0)}, {0, 2});
  CHECK(p.loss(true) == doctest::Approx(2.0 * std::log(2.0)).epsilon(1e-6));

  // The largest logit in the first, the second and the last chunk.
  for (const std::int64_t at : {std::int64_t{5}, head_chunk + 5, 2 * head_chunk + 5}) {
    head_problem<Policy> q(2, 1, 2 * head_chunk + 9);
    std::vector<compute> weights(static_cast<std::size_t>(q.vocabulary), number(-400.0));
    weights[static_cast<std::size_t>(at)] = number(400.0);
    weights[3] = number(398.0);
    q.set(ones, weights, {static_cast<std::int32_t>(at), 3});
    CHECK(q.loss(true) == doctest::Approx(2.0 * beside + 2.0).epsilon(1e-6));
    for (const auto gradient : q.dx.values()) CHECK(std::isfinite(gradient));
  }
}

TEST_CASE_TEMPLATE_DEFINE("loss: NaN shows in the loss and stays in its row of dx", Policy,
                          loss_nan) {
  using compute = typename Policy::compute;
  using real = typename Policy::real;
  head_problem<Policy> p(6, 3, 20);
  auto x = p.x_values;
  x[2 * 3 + 1] = static_cast<compute>(std::numeric_limits<real>::quiet_NaN());
  p.set(x, p.weight_values, p.target_values);
  CHECK(std::isnan(p.loss(true)));
  const auto dx = p.dx.values();
  for (std::size_t i = 0; i < dx.size(); ++i) CHECK(std::isnan(dx[i]) == (i / 3 == 2));
}

}  // namespace smelt::test
