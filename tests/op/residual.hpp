// SPDX-License-Identifier: Apache-2.0
//
// The residual stream on any backend: against its definition, in place, in views of wider rows, and
// between the element types.
#pragma once

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include "gradient.hpp"
#include "smelt/op/residual.hpp"
#include "support/tensor.hpp"

namespace smelt::test {

struct residual_size {
  std::int64_t rows, columns;
};
inline const std::vector<residual_size> residual_sizes = {
    {0, 5}, {1, 1}, {3, 7}, {65, 44}, {2, 256}, {1, 1027}, {200, 8}, {301, 200}};

TEST_CASE_TEMPLATE_DEFINE("residual: y = x + s u, out of place and in place", Policy,
                          residual_values) {
  using real = typename Policy::real;
  for (const residual_size& size : residual_sizes) {
    CAPTURE(size.rows);
    CAPTURE(size.columns);
    const std::int64_t count = size.rows * size.columns;
    const auto x_values = random_values<real>(count, 1), u_values = random_values<real>(count, 2);
    std::vector<double> expected(x_values.size());
    for (std::size_t i = 0; i < expected.size(); ++i)
      expected[i] = double(x_values[i]) + 0.3 * double(u_values[i]);
    const tensor<real, Policy> x(x_values), u(u_values), y(poisoned<real>(count));
    residual_add(policy<Policy>(), x.constant(size.rows, size.columns), real(0.3),
                 u.constant(size.rows, size.columns), y.view(size.rows, size.columns));
    CHECK(relative_error(y.values(), expected) < tolerance<Policy>(1e-6, 1e-6));
    CHECK(x.values() == x_values);
    residual_add(policy<Policy>(), x.constant(size.rows, size.columns), real(0.3),
                 u.constant(size.rows, size.columns), x.view(size.rows, size.columns));
    CHECK(x.values() == y.values());
  }
}

// out = 0.3 in from one element type to another, rounded once.
template <class Policy, class In, class Out>
void check_scaled() {
  using real = typename Policy::real;
  for (const residual_size& size : residual_sizes) {
    const std::int64_t count = size.rows * size.columns;
    const auto values = random_values<In>(count, 3, 4.0);
    const tensor<In, Policy> in(values);
    const tensor<Out, Policy> out(poisoned<Out>(count));
    scaled(policy<Policy>(), in.constant(size.rows, size.columns), real(0.3),
           out.view(size.rows, size.columns));
    const auto found = out.values();
    bool right = true;
    for (std::size_t i = 0; i < found.size(); ++i) {
      const auto expected = static_cast<Out>(real(0.3) * static_cast<real>(values[i]));
      right = right && static_cast<real>(found[i]) == static_cast<real>(expected);
    }
    CHECK(right);
  }
}

TEST_CASE_TEMPLATE_DEFINE("residual: scaled, in every pair of element types", Policy,
                          residual_scaled) {
  using real = typename Policy::real;
  check_scaled<Policy, real, real>();
  if constexpr (std::is_same_v<real, float>) {
    check_scaled<Policy, float, bf16>();
    check_scaled<Policy, bf16, float>();
    check_scaled<Policy, bf16, bf16>();
  }
}

TEST_CASE_TEMPLATE_DEFINE("residual: views of wider rows are written alone; NaN stays", Policy,
                          residual_strides) {
  using real = typename Policy::real;
  using compute = typename Policy::compute;
  constexpr std::int64_t rows = 9, columns = 6;
  auto x_values = random_values<real>(rows * 11, 4);
  x_values[3 * 11 + 2] = std::numeric_limits<real>::quiet_NaN();
  const auto u_values = random_values<real>(rows * 8, 5);
  // Each of the three is the one with a gap, then all of them.
  for (int gaps = 1; gaps < 8; ++gaps) {
    const std::int64_t of_x = (gaps & 1) != 0 ? 11 : columns;
    const std::int64_t of_u = (gaps & 2) != 0 ? 8 : columns;
    const std::int64_t of_y = (gaps & 4) != 0 ? 13 : columns;
    const tensor<real, Policy> x(x_values), u(u_values), y(std::vector<real>(rows * 13, real(42)));
    residual_add(policy<Policy>(), matrix_view<const real>(x.data(), rows, columns, of_x), real(2),
                 matrix_view<const real>(u.data(), rows, columns, of_u),
                 matrix_view<real>(y.data(), rows, columns, of_y));
    const auto found = y.values();
    const tensor<compute, Policy> narrow(
        std::vector<compute>(rows * 13, static_cast<compute>(real(42))));
    scaled(policy<Policy>(), matrix_view<const real>(x.data(), rows, columns, of_x), real(2),
           matrix_view<compute>(narrow.data(), rows, columns, of_y));
    const auto halved = narrow.values();
    std::vector<real> sums(rows * 13, real(42)), products(sums);
    for (std::int64_t i = 0; i < rows; ++i)
      for (std::int64_t j = 0; j < columns; ++j) {
        const real from = x_values[std::size_t(i * of_x + j)];
        sums[std::size_t(i * of_y + j)] = from + 2 * u_values[std::size_t(i * of_u + j)];
        products[std::size_t(i * of_y + j)] = static_cast<real>(static_cast<compute>(2 * from));
      }
    bool right = true;
    for (std::size_t i = 0; i < sums.size(); ++i) {
      right = right && (std::isnan(sums[i]) ? std::isnan(found[i])
                                            : std::abs(found[i] - sums[i]) < real(1e-6));
      const real product = static_cast<real>(halved[i]);
      right = right && (std::isnan(products[i]) ? std::isnan(product) : product == products[i]);
    }
    CHECK(right);
  }
}

}  // namespace smelt::test
