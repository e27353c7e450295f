// SPDX-License-Identifier: Apache-2.0
//
// AdamW on any backend: several steps against the formula in double, clipping, steps that are not
// finite, the bf16 copy, memory of any alignment; and the sum of squares against long double.
#pragma once

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include "gradient.hpp"
#include "smelt/op/adamw.hpp"
#include "support/tensor.hpp"

namespace smelt::test {

// Parameters [begin, begin + count) of arrays that are longer on both sides, with their memory.
template <class Policy>
struct adamw_case {
  using real = typename Policy::real;
  using compute = typename Policy::compute;
  using statistic = typename Policy::statistic;
  std::int64_t count, begin;
  std::vector<real> weight_values, gradient_values;
  tensor<real, Policy> weights, gradients, first, second;
  tensor<compute, Policy> copy;
  tensor<statistic, Policy> squares, loss_sum;

  explicit adamw_case(std::int64_t count_, std::int64_t begin_ = 0)
      : count(count_),
        begin(begin_),
        weight_values(random_values<real>(begin + count + 3, 1)),
        gradient_values(random_values<real>(begin + count + 3, 2)),
        weights(weight_values),
        gradients(gradient_values),
        first(random_values<real>(begin + count + 3, 3, 0.1)),
        second(squared(random_values<real>(begin + count + 3, 4, 0.3))),
        copy(poisoned<compute>(begin + count + 3)),
        squares(std::vector<statistic>(1, statistic(0))),
        loss_sum(std::vector<statistic>(1, statistic(1))) {}

  static std::vector<real> squared(std::vector<real> values) {
    for (real& value : values) value *= value;
    return values;
  }
  void step(const adamw_setting& setting, double learning_rate, std::int64_t number,
            const Policy& run = policy<Policy>()) {
    const tensor<adamw_rates<real>, Policy> rates(
        std::vector<adamw_rates<real>>{{setting, learning_rate, number}});
    adamw_update(run, setting, rates.data(), squares.data(), loss_sum.data(), count,
                 weights.data() + begin, gradients.data() + begin, first.data() + begin,
                 second.data() + begin, copy.data() + begin);
  }
  // Everything that a step may change, one behind the other.
  std::vector<double> everything() const {
    std::vector<double> all = as_double(weights.values());
    for (const auto& more : {as_double(first.values()), as_double(second.values())})
      all.insert(all.end(), more.begin(), more.end());
    return all;
  }
};

// The formula, as in Loshchilov and Hutter, on the same arrays in double.
struct plain_adamw {
  std::vector<double> w, m, v;

  template <class Policy>
  explicit plain_adamw(const adamw_case<Policy>& c)
      : w(as_double(c.weights.values())),
        m(as_double(c.first.values())),
        v(as_double(c.second.values())) {}
  void step(const adamw_setting& s, double learning_rate, double number, double norm,
            const std::vector<double>& gradients, std::int64_t begin, std::int64_t count) {
    const double factor = s.clip_norm > 0.0 && norm > s.clip_norm ? s.clip_norm / norm : 1.0;
    for (std::size_t i = std::size_t(begin); i < std::size_t(begin + count); ++i) {
      const double g = gradients[i] * factor;
      m[i] = s.beta1 * m[i] + (1.0 - s.beta1) * g;
      v[i] = s.beta2 * v[i] + (1.0 - s.beta2) * g * g;
      const double m_hat = m[i] / (1.0 - std::pow(s.beta1, number));
      const double v_hat = v[i] / (1.0 - std::pow(s.beta2, number));
      w[i] -= learning_rate * (m_hat / (std::sqrt(v_hat) + s.epsilon) + s.weight_decay * w[i]);
    }
  }
  std::vector<double> everything() const {
    std::vector<double> all = w;
    all.insert(all.end(), m.begin(), m.end());
    all.insert(all.end(), v.begin(), v.end());
    return all;
  }
};

TEST_CASE_TEMPLATE_DEFINE("adamw: three steps are those of the formula, in memory of any alignment",
                          Policy, adamw_values) {
  const adamw_setting setting{0.9, 0.95, 1e-8, 0.1, 0.5};
  for (const std::int64_t count : {0, 1, 3, 4, 5, 255, 1000, 1025, 4099})
    for (const std::int64_t begin : {0, 1, 4}) {
      CAPTURE(count);
      CAPTURE(begin);
      adamw_case<Policy> c(count, begin);
      plain_adamw plain(c);
      for (std::int64_t number = 5; number < 8; ++number) {
        // A norm of 2 is clipped to a quarter, one of 0.25 is left alone.
        const double norm = number == 6 ? 2.0 : 0.25;
        c.squares.set({static_cast<typename Policy::statistic>(norm * norm)});
        c.step(setting, 0.02, number);
        plain.step(setting, 0.02, double(number), norm, as_double(c.gradient_values), begin, count);
      }
      CHECK(relative_error(c.everything(), plain.everything()) < tolerance<Policy>(1e-6, 1e-6));
      // What lies beside the parameters keeps its bits.
      const auto found = c.weights.values();
      for (std::size_t i = 0; i < found.size(); ++i)
        if (i < std::size_t(begin) || i >= std::size_t(begin + count))
          CHECK(found[i] == c.weight_values[i]);
    }
}

TEST_CASE_TEMPLATE_DEFINE("adamw: the first step moves by the learning rate, whatever the gradient",
                          Policy, adamw_first_step) {
  using real = typename Policy::real;
  // With zero moments m / c1 = g and v / c2 = g^2, so the direction is sign(g).
  adamw_case<Policy> c(2);
  c.weights.set({real(1), real(-2), 0, 0, 0});
  c.gradients.set({real(1e-3), real(-50), 0, 0, 0});
  c.first.set(std::vector<real>(5, real(0)));
  c.second.set(std::vector<real>(5, real(0)));
  c.step({0.9, 0.95, 0.0, 0.0, 0.0}, 0.1, 1);
  const double near = tolerance<Policy>(1e-6, 1e-6, 1e-14);
  CHECK(c.weights.values()[0] == doctest::Approx(0.9).epsilon(near));
  CHECK(c.weights.values()[1] == doctest::Approx(-1.9).epsilon(near));
}

TEST_CASE_TEMPLATE_DEFINE("adamw: two steps with decay and clipping, worked by hand", Policy,
                          adamw_by_hand) {
  using real = typename Policy::real;
  using statistic = typename Policy::statistic;
  adamw_case<Policy> c(1);
  c.weights.set({real(2), 0, 0, 0});
  c.first.set(std::vector<real>(4, real(0)));
  c.second.set(std::vector<real>(4, real(0)));
  const adamw_setting setting{0.9, 0.99, 1e-8, 0.1, 2.0};
  const auto step = [&](std::int64_t number, double gradient) {
    c.gradients.set({static_cast<real>(gradient), 0, 0, 0});
    c.squares.set({static_cast<statistic>(gradient * gradient)});
    c.step(setting, 0.01, number);
    return double(c.weights.values()[0]);
  };
  const double near = tolerance<Policy>(1e-6, 1e-6, 1e-8);
  const double before = step(1, 4.0);  // clipped to 2: m = 0.2, v = 0.04, direction 1, decay 0.2
  CHECK(before == doctest::Approx(2.0 - 0.01 * (1.0 + 0.2)).epsilon(near));
  const double after = step(2, -1.0);  // as it is: m = 0.18 - 0.1, v = 0.0396 + 0.01
  const double direction = (0.08 / 0.19) / std::sqrt(0.0496 / 0.0199);
  CHECK(after == doctest::Approx(before - 0.01 * (direction + 0.1 * before)).epsilon(near));
}

TEST_CASE_TEMPLATE_DEFINE("adamw: gradients are clipped to the norm, and 0 clips nothing", Policy,
                          adamw_clipping) {
  using statistic = typename Policy::statistic;
  const auto moments = [](double clip_norm, double norm) {
    adamw_case<Policy> c(50);
    c.first.set(std::vector<typename Policy::real>(53, 0));
    c.squares.set({static_cast<statistic>(norm * norm)});
    c.step({0.0, 0.95, 1e-8, 0.1, clip_norm}, 0.1, 1);  // beta1 0: the moment is the gradient
    auto values = as_double(c.first.values());
    values.resize(50);
    return values;
  };
  const auto plain = random_values<double>(53, 2);
  const auto times = [&](double factor) {
    std::vector<double> values(plain.begin(), plain.begin() + 50);
    for (double& value : values) value *= factor;
    return values;
  };
  const double near = tolerance<Policy>(1e-6, 1e-6);
  CHECK(relative_error(moments(2.0, 8.0), times(0.25)) < near);
  CHECK(relative_error(moments(2.0, 2.0), times(1.0)) < near);
  CHECK(relative_error(moments(2.0, 0.5), times(1.0)) < near);
  CHECK(relative_error(moments(2.0, 0.0), times(1.0)) < near);
  CHECK(relative_error(moments(0.0, 8.0), times(1.0)) < near);
}

TEST_CASE_TEMPLATE_DEFINE("adamw: sums that are not finite leave everything as it is", Policy,
                          adamw_not_finite) {
  using statistic = typename Policy::statistic;
  constexpr statistic infinity = std::numeric_limits<statistic>::infinity();
  constexpr statistic nan = std::numeric_limits<statistic>::quiet_NaN();
  for (const auto& [squares, loss] : std::vector<std::array<statistic, 2>>{
           {infinity, 1}, {nan, 1}, {1, infinity}, {1, nan}, {1, -infinity}, {nan, nan}}) {
    adamw_case<Policy> c(1025, 1);
    const auto before = c.everything();
    c.squares.set({squares});
    c.loss_sum.set({loss});
    c.step({}, 0.1, 1);
    CHECK(c.everything() == before);
    bool untouched = true;
    for (const double value : as_double(c.copy.values()))
      untouched = untouched && std::isnan(value);
    CHECK(untouched);
    // The next step, which is finite, goes on from there.
    c.squares.set({1});
    c.loss_sum.set({1});
    c.step({}, 0.1, 1);
    CHECK(c.everything() != before);
  }
}

TEST_CASE_TEMPLATE_DEFINE("adamw: the bf16 copy is the rounded master weight", Policy, adamw_copy) {
  for (const std::int64_t begin : {0, 1, 4}) {
    adamw_case<Policy> c(1001, begin);
    c.step({}, 0.1, 1);
    const auto weights = c.weights.values();
    const auto copy = c.copy.values();
    bool right = true;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const bool inside = i >= std::size_t(begin) && i < std::size_t(begin) + 1001;
      const auto expected = inside ? bf16(weights[i]) : poisoned<bf16>(1)[0];
      right = right && copy[i].bits == expected.bits;
    }
    CHECK(right);
  }
}

// The sum of squares of a policy within `bound` of the one in long double.
template <class Policy>
void check_squares(const std::vector<typename Policy::real>& values, double bound) {
  long double expected = 0.0L;
  for (const auto value : values) expected += static_cast<long double>(value) * value;
  const tensor<typename Policy::real, Policy> memory(values);
  const tensor<typename Policy::statistic, Policy> squares(
      std::vector<typename Policy::statistic>(1, std::numeric_limits<float>::quiet_NaN()));
  sum_of_squares(policy<Policy>(), memory.data(), memory.count(), squares.data());
  CHECK(double(squares.values()[0]) ==
        doctest::Approx(static_cast<double>(expected)).epsilon(bound));
}

TEST_CASE_TEMPLATE_DEFINE("sum_of_squares: of any count, beyond what a plain float sum keeps",
                          Policy, sum_of_squares_values) {
  using real = typename Policy::real;
  const bool in_double = std::is_same_v<typename Policy::statistic, double>;
  // Two roundings of float, one of every square and one of the result.
  const double bound = in_double ? 1e-12 : 1.5e-7;
  for (const std::int64_t count : {0, 1, 2, 31, 255, 256, 257, 2047, 2048, 2049, 4097, 100003}) {
    CAPTURE(count);
    check_squares<Policy>(random_values<real>(count, 3), bound);
  }
  // A few ones first, then squares below half a unit in their last place: a plain sum loses them.
  std::vector<real> small_behind(1 << 19);
  for (std::size_t i = 0; i < small_behind.size(); ++i)
    small_behind[i] = i % 2048 < 256 ? real(1) : real(0.99 / 4096.0);
  check_squares<Policy>(small_behind, bound);
  // One that is larger than all others together, in the middle; magnitudes over 12 decades.
  auto one_large = random_values<real>(70001, 5, 1e-3);
  one_large[35000] = real(1e4);
  check_squares<Policy>(one_large, bound);
  auto decades = random_values<real>(70001, 6);
  for (std::size_t i = 0; i < decades.size(); ++i)
    decades[i] *= static_cast<real>(std::pow(10.0, static_cast<double>(i % 13) - 6.0));
  check_squares<Policy>(decades, bound);
}

TEST_CASE_TEMPLATE_DEFINE("sum_of_squares: what is not finite shows", Policy,
                          sum_of_squares_not_finite) {
  using real = typename Policy::real;
  for (const real bad :
       {std::numeric_limits<real>::quiet_NaN(), std::numeric_limits<real>::infinity(),
        -std::numeric_limits<real>::infinity(), std::numeric_limits<real>::max()})
    for (const std::size_t at : std::vector<std::size_t>{0, 2999, 4999}) {
      auto values = random_values<real>(5000, 7);
      values[at] = bad;
      const tensor<real, Policy> memory(values);
      const tensor<typename Policy::statistic, Policy> squares(
          std::vector<typename Policy::statistic>(1, 0));
      sum_of_squares(policy<Policy>(), memory.data(), memory.count(), squares.data());
      const auto found = squares.values()[0];
      // The largest float's square is finite in double alone.
      if (bad == std::numeric_limits<real>::max() && sizeof(found) > sizeof(real))
        CHECK(step_is_finite(found, decltype(found)(1)));
      else
        CHECK_FALSE(step_is_finite(found, decltype(found)(1)));
    }
}

}  // namespace smelt::test
