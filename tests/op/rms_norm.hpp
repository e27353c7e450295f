// SPDX-License-Identifier: Apache-2.0
//
// RMSNorm on any backend: against its definition in double, gradients against the double ones (and
// those against central differences, in rms_norm.cpp), and the two shapes it runs on: few wide rows
// (hidden) and many narrow ones (heads).
#pragma once

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include "gradient.hpp"
#include "smelt/op/rms_norm.hpp"
#include "support/tensor.hpp"

namespace smelt::test {

inline constexpr double norm_epsilon_of_test = 1e-5;

// One norm with its memory; outputs are poisoned. Out is what y is made of.
template <class Policy, class Out = typename Policy::real>
struct norm_case {
  using real = typename Policy::real;
  using compute = typename Policy::compute;
  std::int64_t rows, width;
  std::vector<real> x_values, gain_values, dy_values;
  tensor<real, Policy> x, gain, rstd, dy, dx, dgain;
  tensor<Out, Policy> y;

  norm_case(std::int64_t rows_, std::int64_t width_)
      : rows(rows_),
        width(width_),
        x_values(random_values<real>(rows * width, 1, 2.0)),
        gain_values(random_values<real>(width, 2)),
        dy_values(random_values<real>(rows * width, 3)),
        x(x_values),
        gain(gain_values),
        rstd(poisoned<real>(rows)),
        dy(dy_values),
        dx(poisoned<real>(rows * width)),
        dgain(std::vector<real>(static_cast<std::size_t>(width), real(0))),
        y(poisoned<Out>(rows * width)) {}

  void forward(const Policy& run = policy<Policy>()) {
    rms_norm_forward(run, x.constant(rows, width), gain.data(),
                     static_cast<real>(norm_epsilon_of_test), y.view(rows, width), rstd.data());
  }
  void backward(into mode = into::overwrite, const Policy& run = policy<Policy>()) {
    rms_norm_backward(run, dy.constant(rows, width), x.constant(rows, width), gain.data(),
                      rstd.data(), mode, dx.view(rows, width), dgain.data());
  }
};

// Divides by the root of the mean square, in two plain steps.
template <class Real>
std::vector<double> plain_norm(const std::vector<Real>& x, const std::vector<Real>& gain) {
  std::vector<double> y(x.size());
  const std::size_t width = gain.size();
  for (std::size_t i = 0; i < x.size() / width; ++i) {
    double mean = 0.0;
    for (std::size_t j = 0; j < width; ++j)
      mean += double(x[i * width + j]) * double(x[i * width + j]) / double(width);
    for (std::size_t j = 0; j < width; ++j)
      y[i * width + j] =
          double(x[i * width + j]) / std::sqrt(mean + norm_epsilon_of_test) * double(gain[j]);
  }
  return y;
}

struct norm_size {
  std::int64_t rows, width;
};
inline const std::vector<norm_size> norm_sizes = {{1, 1},   {3, 7},    {5, 15},   {1, 16},
                                                  {2, 17},  {129, 44}, {700, 4},  {300, 64},
                                                  {64, 88}, {33, 256}, {9, 1000}, {2, 4099}};

TEST_CASE_TEMPLATE_DEFINE("rms_norm: values are those of the definition", Policy, rms_norm_values) {
  for (const norm_size& size : norm_sizes) {
    CAPTURE(size.rows);
    CAPTURE(size.width);
    norm_case<Policy> c(size.rows, size.width);
    c.forward();
    const auto plain = plain_norm(c.x_values, c.gain_values);
    // y in the real type, whatever the policy's products are made of.
    CHECK(relative_error(c.y.values(), plain) < tolerance<Policy>(1e-6, 1e-6, 1e-13));
    norm_case<Policy, typename Policy::compute> narrow(size.rows, size.width);
    narrow.forward();
    CHECK(relative_error(as_double(narrow.y.values()), plain) <
          tolerance<Policy>(1e-6, 1e-2, 1e-13));
  }
}

TEST_CASE_TEMPLATE_DEFINE("rms_norm: gradients are those of the double reference", Policy,
                          rms_norm_gradients) {
  for (const norm_size& size : norm_sizes) {
    if (size.width == 1) continue;  // dx of a single element is the epsilon's alone
    CAPTURE(size.rows);
    CAPTURE(size.width);
    norm_case<host<double>> exact(size.rows, size.width);
    exact.forward();
    exact.backward();
    norm_case<Policy> c(size.rows, size.width);
    c.forward();
    c.backward();
    CHECK(relative_error(c.rstd.values(), exact.rstd.values()) < 1e-6);
    CHECK(relative_error(c.dx.values(), exact.dx.values()) < 1e-5);
    CHECK(relative_error(c.dgain.values(), exact.dgain.values()) < 1e-5);
  }
}

TEST_CASE_TEMPLATE_DEFINE("rms_norm: dx is overwritten or added to, dgain always added to", Policy,
                          rms_norm_modes) {
  norm_case<Policy> c(70, 24);
  c.forward();
  c.backward();
  const auto dx = as_double(c.dx.values());
  const auto dgain = as_double(c.dgain.values());
  c.backward(into::accumulate);
  std::vector<double> twice_dx = dx, twice_dgain = dgain;
  for (double& value : twice_dx) value *= 2.0;
  for (double& value : twice_dgain) value *= 2.0;
  CHECK(relative_error(c.dx.values(), twice_dx) < 1e-6);
  CHECK(relative_error(c.dgain.values(), twice_dgain) < 1e-6);
}

TEST_CASE_TEMPLATE_DEFINE("rms_norm: in place, forward and backward", Policy, rms_norm_in_place) {
  using real = typename Policy::real;
  norm_case<Policy> c(90, 44);
  c.forward();
  c.backward();
  const tensor<real, Policy> gradient(c.dy_values), x(c.x_values);
  const tensor<real, Policy> dgain(std::vector<real>(44, real(0)));
  rms_norm_backward(policy<Policy>(), gradient.constant(90, 44), c.x.constant(90, 44),
                    c.gain.data(), c.rstd.data(), into::overwrite, gradient.view(90, 44),
                    dgain.data());
  CHECK(gradient.values() == c.dx.values());
  CHECK(dgain.values() == c.dgain.values());
  rms_norm_forward(policy<Policy>(), x.constant(90, 44), c.gain.data(),
                   static_cast<real>(norm_epsilon_of_test), x.view(90, 44), c.rstd.data());
  CHECK(x.values() == c.y.values());
}

TEST_CASE_TEMPLATE_DEFINE("rms_norm: strided rows; NaN stays in its row", Policy,
                          rms_norm_strides) {
  using real = typename Policy::real;
  norm_case<Policy> c(50, 20);
  c.forward();
  const auto y = c.y.values();
  auto wide = poisoned<real>(50 * 33);
  for (std::size_t i = 0; i < c.x_values.size(); ++i) wide[i / 20 * 33 + i % 20] = c.x_values[i];
  wide[7 * 33 + 3] = std::numeric_limits<real>::quiet_NaN();
  const tensor<real, Policy> x(wide), out(poisoned<real>(50 * 27));
  rms_norm_forward(policy<Policy>(), matrix_view<const real>(x.data(), 50, 20, 33), c.gain.data(),
                   static_cast<real>(norm_epsilon_of_test),
                   matrix_view<real>(out.data(), 50, 20, 27), c.rstd.data());
  const auto found = out.values();
  bool right = true;
  for (std::size_t i = 0; i < found.size(); ++i) {
    const std::size_t row = i / 27, column = i % 27;
    const bool untouched = column >= 20 || row == 7;
    right = right && (untouched ? std::isnan(found[i]) : found[i] == y[row * 20 + column]);
  }
  CHECK(right);
}

TEST_CASE_TEMPLATE_DEFINE("rms_norm: no rows", Policy, rms_norm_empty) {
  norm_case<Policy> c(0, 8);
  c.forward();
  c.backward();
  for (const auto gradient : c.dgain.values()) CHECK(gradient == 0);
}

}  // namespace smelt::test
