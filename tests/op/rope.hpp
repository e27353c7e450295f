// SPDX-License-Identifier: Apache-2.0
//
// Rotary embedding on any backend: against complex multiplication, and the properties it exists
// for: a score depends on the distance of positions alone, inverse undoes forward.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstdint>
#include <limits>
#include <vector>

#include "gradient.hpp"
#include "smelt/op/rope.hpp"
#include "support/tensor.hpp"

namespace smelt::test {

inline constexpr std::int64_t rope_base_of_test = 10000;

// Tables up to the largest of `positions`, in the memory of the policy.
template <class Policy>
struct rope_tables {
  using real = typename Policy::real;
  std::vector<real> cosine_values, sine_values;
  tensor<real, Policy> cosines, sines;

  rope_tables(std::int64_t max_positions, std::int64_t head_dim, std::int64_t base)
      : cosine_values(poisoned<real>(rope_table_size(max_positions, head_dim))),
        sine_values(filled(cosine_values, max_positions, head_dim, base)),
        cosines(cosine_values),
        sines(sine_values) {}

 private:
  static std::vector<real> filled(std::vector<real>& cosines_, std::int64_t max_positions,
                                  std::int64_t head_dim, std::int64_t base) {
    auto sines_ = cosines_;
    rope_table_values(cosines_.data(), sines_.data(), max_positions, head_dim, base);
    return sines_;
  }
};

template <class Policy>
std::vector<typename Policy::real> rotated(const std::vector<typename Policy::real>& values,
                                           std::int64_t heads, std::int64_t head_dim,
                                           const std::vector<std::int32_t>& positions,
                                           rope_direction direction,
                                           const Policy& run = policy<Policy>()) {
  std::int64_t max_positions = 1;
  for (const auto position : positions)
    max_positions = std::max(max_positions, std::int64_t{position} + 1);
  const rope_tables<Policy> tables(max_positions, head_dim, rope_base_of_test);
  const tensor<typename Policy::real, Policy> x(values);
  const tensor<std::int32_t, Policy> at(positions);
  rope_rotate(run, x.view(at.count(), heads * head_dim), head_dim, at.data(), tables.cosines.data(),
              tables.sines.data(), direction);
  return x.values();
}

// The definition as complex numbers: z_i = x_i + i x_{i + d/2}, times exp(i position theta_i).
inline std::vector<double> turned(const std::vector<double>& x, std::int64_t heads,
                                  std::int64_t head_dim,
                                  const std::vector<std::int32_t>& positions) {
  std::vector<double> y(x.size());
  const std::size_t half = std::size_t(head_dim) / 2;
  for (std::size_t t = 0; t < positions.size(); ++t)
    for (std::size_t h = 0; h < std::size_t(heads); ++h)
      for (std::size_t i = 0; i < half; ++i) {
        const std::size_t at = (t * std::size_t(heads) + h) * 2 * half + i;
        const double theta =
            std::exp(-std::log(double(rope_base_of_test)) * double(i) / double(half));
        const std::complex<double> z =
            std::complex<double>(x[at], x[at + half]) * std::polar(1.0, positions[t] * theta);
        y[at] = z.real();
        y[at + half] = z.imag();
      }
  return y;
}

inline const std::vector<std::int32_t> rope_positions{0, 1, 2, 0, 1, 4095, 17, 0, 300, 301, 5};

TEST_CASE_TEMPLATE_DEFINE("rope: values are those of complex rotation", Policy, rope_values) {
  using real = typename Policy::real;
  for (const std::int64_t head_dim : {2, 4, 44, 64, 72, 88, 112, 128})
    for (const std::int64_t heads : {1, 3, 12}) {
      CAPTURE(head_dim);
      CAPTURE(heads);
      const std::int64_t count = std::ssize(rope_positions) * heads * head_dim;
      const std::vector<double> expected =
          turned(random_values<double>(count, 1), heads, head_dim, rope_positions);
      CHECK(relative_error(rotated<Policy>(random_values<real>(count, 1), heads, head_dim,
                                           rope_positions, rope_direction::forward),
                           expected) < tolerance<Policy>(1e-6, 1e-6));
    }
}

TEST_CASE_TEMPLATE_DEFINE("rope: inverse undoes forward, position 0 changes nothing", Policy,
                          rope_inverse) {
  using real = typename Policy::real;
  const auto x = random_values<real>(std::ssize(rope_positions) * 2 * 44, 2);
  const auto y = rotated<Policy>(x, 2, 44, rope_positions, rope_direction::forward);
  CHECK(relative_error(rotated<Policy>(y, 2, 44, rope_positions, rope_direction::inverse), x) <
        tolerance<Policy>(1e-6, 1e-6, 1e-14));
  for (std::size_t i = 0; i < 88; ++i) CHECK(y[i] == x[i]);
}

TEST_CASE_TEMPLATE_DEFINE("rope: a score depends on the distance alone", Policy, rope_distance) {
  using real = typename Policy::real;
  const auto q = random_values<real>(64, 3);
  const auto k = random_values<real>(64, 4);
  const auto score = [&](std::int32_t at_q, std::int32_t at_k) {
    return dot(rotated<Policy>(q, 1, 64, {at_q}, rope_direction::forward),
               rotated<Policy>(k, 1, 64, {at_k}, rope_direction::forward));
  };
  CHECK(score(7, 3) ==
        doctest::Approx(score(1004, 1000)).epsilon(tolerance<Policy>(1e-5, 1e-5, 1e-10)));
  CHECK(score(7, 3) != doctest::Approx(score(7, 4)).epsilon(1e-4));
}

TEST_CASE_TEMPLATE_DEFINE("rope: the gradient is the inverse rotation", Policy, rope_gradient) {
  using real = typename Policy::real;
  const std::vector<std::int32_t> at{3, 0, 11};
  const auto exact =
      rotated<host<double>>(random_values<double>(3 * 2 * 8, 6), 2, 8, at, rope_direction::inverse);
  CHECK(relative_error(
            rotated<Policy>(random_values<real>(3 * 2 * 8, 6), 2, 8, at, rope_direction::inverse),
            exact) < tolerance<Policy>(1e-6, 1e-6));
}

TEST_CASE_TEMPLATE_DEFINE("rope: a view of wider rows is rotated alone; NaN stays with its pair",
                          Policy, rope_strides) {
  using real = typename Policy::real;
  constexpr std::size_t rows = 100;
  std::vector<std::int32_t> many(rows);
  for (std::size_t t = 0; t < many.size(); ++t) many[t] = static_cast<std::int32_t>(t * 7 % 40);
  auto x = random_values<real>(rows * 3 * 16, 8);
  x[5 * 48 + 19] = std::numeric_limits<real>::quiet_NaN();  // row 5, head 1, pair 3
  const auto alone = rotated<Policy>(x, 3, 16, many, rope_direction::forward);
  std::vector<real> wide(rows * 60, real(42));
  for (std::size_t i = 0; i < x.size(); ++i) wide[i / 48 * 60 + 7 + i % 48] = x[i];
  const rope_tables<Policy> tables(40, 16, rope_base_of_test);
  const tensor<real, Policy> memory(wide);
  const tensor<std::int32_t, Policy> at(many);
  rope_rotate(policy<Policy>(), matrix_view<real>(memory.data() + 7, rows, 48, 60), 16, at.data(),
              tables.cosines.data(), tables.sines.data(), rope_direction::forward);
  const auto found = memory.values();
  bool right = true;
  for (std::size_t i = 0; i < found.size(); ++i) {
    const std::size_t row = i / 60, column = i % 60 - 7;  // far beyond 48 left of the view
    const bool of_nan = row == 5 && (column == 19 || column == 27);
    if (of_nan)
      right = right && std::isnan(found[i]);
    else
      right = right && found[i] == (column < 48 ? alone[row * 48 + column] : real(42));
  }
  CHECK(right);
}

TEST_CASE_TEMPLATE_DEFINE("rope: no tokens; what does not fit is refused", Policy, rope_refused) {
  using real = typename Policy::real;
  CHECK(rotated<Policy>({}, 2, 8, {}, rope_direction::forward).empty());
  const tensor<real, Policy> x(std::vector<real>(30, real(0)));
  const tensor<std::int32_t, Policy> at(std::vector<std::int32_t>{0});
  const auto call = [&](std::int64_t columns, std::int64_t head_dim, std::int64_t column_stride) {
    rope_rotate(policy<Policy>(), matrix_view<real>(x.data(), 1, columns, columns, column_stride),
                head_dim, at.data(), static_cast<const real*>(nullptr),
                static_cast<const real*>(nullptr), rope_direction::forward);
  };
  CHECK_THROWS_WITH_AS(call(15, 5, 1), doctest::Contains("even head size"), error);
  CHECK_THROWS_AS(call(10, 4, 1), error);
  CHECK_THROWS_AS(call(8, 0, 1), error);
  CHECK_THROWS_AS(call(8, 4, 2), error);
}

}  // namespace smelt::test
