// SPDX-License-Identifier: Apache-2.0
//
// Dense SwiGLU on any backend: values against loops in double, gradients against the double ones
// (and those against central differences, in dense_ffn.cpp), modes, views, and FLOPs.
#pragma once

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include "gradient.hpp"
#include "smelt/op/dense_ffn.hpp"
#include "support/tensor.hpp"

namespace smelt::test {

// One problem of any policy, filled from the same seeds; outputs are poisoned. gap is how much
// wider than hidden the rows of x, dy, y and dx are.
template <class Policy>
struct dense_problem {
  using real = typename Policy::real;
  using compute = typename Policy::compute;
  std::int64_t tokens, hidden, width, stride;
  std::vector<compute> x_values, gate_up_values, down_values, dy_values;
  tensor<compute, Policy> x, gate_up, down, dy, saved, narrow, h;
  tensor<real, Policy> wide, y, dx, dgate_up, ddown;

  dense_problem(std::int64_t n, std::int64_t hidden_, std::int64_t f, std::int64_t gap = 0)
      : tokens(n),
        hidden(hidden_),
        width(f),
        stride(hidden_ + gap),
        x_values(random_values<compute>(n * stride, 1)),
        gate_up_values(random_values<compute>(2 * f * hidden_, 2)),
        down_values(random_values<compute>(hidden_ * f, 3)),
        dy_values(random_values<compute>(n * stride, 4)),
        x(x_values),
        gate_up(gate_up_values),
        down(down_values),
        dy(dy_values),
        saved(poisoned<compute>(n * 2 * f)),
        narrow(poisoned<compute>(n * 2 * f)),
        h(poisoned<compute>(n * f)),
        wide(poisoned<real>(n * 2 * f)),
        y(poisoned<real>(n * stride)),
        dx(poisoned<real>(n * stride)),
        dgate_up(std::vector<real>(std::size_t(2 * f * hidden_), real(0))),
        ddown(std::vector<real>(std::size_t(hidden_ * f), real(0))) {}

  swiglu_weights<const compute> weights() const {
    return {gate_up.constant(2 * width, hidden), down.constant(hidden, width)};
  }
  template <class T>
  matrix_view<T> rows_of(const tensor<std::remove_const_t<T>, Policy>& memory) const {
    return {memory.data(), tokens, hidden, stride};
  }
  void forward(into mode = into::overwrite, const Policy& run = policy<Policy>()) {
    dense_ffn_forward(run, rows_of<const compute>(x), weights(), saved.data(),
                      {wide.data(), narrow.data(), h.data()}, rows_of<real>(y), mode);
  }
  void backward(into mode = into::overwrite, const Policy& run = policy<Policy>()) {
    dense_ffn_backward(run, rows_of<const compute>(dy), rows_of<const compute>(x),
                       static_cast<const compute*>(saved.data()), weights(),
                       {wide.data(), narrow.data(), h.data()},
                       {dgate_up.view(2 * width, hidden), ddown.view(hidden, width)},
                       rows_of<real>(dx), mode);
  }
};

// The definition in loops, of the problem's own element type, in double.
template <class Policy>
std::vector<double> plain_dense_ffn(const dense_problem<Policy>& p) {
  const auto x = as_double(p.x_values), gate_up = as_double(p.gate_up_values),
             down = as_double(p.down_values);
  std::vector<double> y(static_cast<std::size_t>(p.tokens * p.hidden), 0.0);
  const auto index = [](std::int64_t i) { return static_cast<std::size_t>(i); };
  for (std::int64_t n = 0; n < p.tokens; ++n)
    for (std::int64_t f = 0; f < p.width; ++f) {
      double gate = 0.0, up = 0.0;
      for (std::int64_t j = 0; j < p.hidden; ++j) {
        gate += x[index(n * p.stride + j)] * gate_up[index(f * p.hidden + j)];
        up += x[index(n * p.stride + j)] * gate_up[index((f + p.width) * p.hidden + j)];
      }
      const double h = gate / (1.0 + std::exp(-gate)) * up;
      for (std::int64_t j = 0; j < p.hidden; ++j)
        y[index(n * p.hidden + j)] += h * down[index(j * p.width + f)];
    }
  return y;
}

struct dense_size {
  std::int64_t tokens, hidden, width;
};
inline const std::vector<dense_size> dense_sizes = {{9, 20, 1}, {9, 20, 24},  {9, 20, 37},
                                                    {1, 5, 3},  {70, 33, 65}, {64, 64, 128}};

TEST_CASE_TEMPLATE_DEFINE("dense_ffn: values are those of the definition", Policy,
                          dense_ffn_values) {
  for (const dense_size& size : dense_sizes) {
    CAPTURE(size.tokens);
    CAPTURE(size.width);
    dense_problem<Policy> p(size.tokens, size.hidden, size.width);
    p.forward();
    CHECK(relative_error(p.y.values(), plain_dense_ffn(p)) < tolerance<Policy>(1e-5));
  }
}

TEST_CASE_TEMPLATE_DEFINE("dense_ffn: gradients are those of the double reference", Policy,
                          dense_ffn_gradients) {
  for (const dense_size& size : dense_sizes) {
    CAPTURE(size.tokens);
    CAPTURE(size.width);
    dense_problem<host<double>> exact(size.tokens, size.hidden, size.width);
    dense_problem<Policy> p(size.tokens, size.hidden, size.width);
    // The reference sees the inputs that the policy sees, rounded where they are.
    exact.x.set(as_double(p.x_values));
    exact.gate_up.set(as_double(p.gate_up_values));
    exact.down.set(as_double(p.down_values));
    exact.dy.set(as_double(p.dy_values));
    exact.forward();
    exact.backward();
    p.forward();
    p.backward();
    CHECK(relative_error(p.dx.values(), exact.dx.values()) < tolerance<Policy>(1e-5));
    CHECK(relative_error(p.dgate_up.values(), exact.dgate_up.values()) < tolerance<Policy>(1e-5));
    CHECK(relative_error(p.ddown.values(), exact.ddown.values()) < tolerance<Policy>(1e-5));
  }
}

TEST_CASE_TEMPLATE_DEFINE(
    "dense_ffn: y and dx are overwritten or added to, weights always added to", Policy,
    dense_ffn_modes) {
  dense_problem<Policy> p(10, 12, 14);
  p.forward();
  p.backward();
  const auto twice = [](const auto& values) {
    auto doubled = as_double(values);
    for (double& value : doubled) value *= 2.0;
    return doubled;
  };
  const auto y = twice(p.y.values()), dx = twice(p.dx.values());
  const auto dgate_up = twice(p.dgate_up.values()), ddown = twice(p.ddown.values());
  p.forward(into::accumulate);
  p.backward(into::accumulate);
  CHECK(relative_error(p.y.values(), y) < 1e-6);
  CHECK(relative_error(p.dx.values(), dx) < 1e-6);
  CHECK(relative_error(p.dgate_up.values(), dgate_up) < 1e-6);
  CHECK(relative_error(p.ddown.values(), ddown) < 1e-6);
}

TEST_CASE_TEMPLATE_DEFINE("dense_ffn: views of wider rows are written alone", Policy,
                          dense_ffn_strides) {
  dense_problem<Policy> p(11, 9, 13, 4);
  p.forward();
  p.backward();
  const auto y = as_double(p.y.values()), dx = as_double(p.dx.values());
  const auto plain = plain_dense_ffn(p);
  std::vector<double> inside;
  bool beside = true;
  for (std::size_t i = 0; i < y.size(); ++i) {
    if (i % 13 < 9)
      inside.push_back(y[i]);
    else
      beside = beside && std::isnan(y[i]) && std::isnan(dx[i]);
  }
  CHECK(beside);
  CHECK(relative_error(inside, plain) < tolerance<Policy>(1e-5));
}

TEST_CASE_TEMPLATE_DEFINE("dense_ffn: NaN stays in its row, huge gates saturate", Policy,
                          dense_ffn_extremes) {
  using compute = typename Policy::compute;
  using real = typename Policy::real;
  dense_problem<Policy> p(6, 8, 10);
  auto x = p.x_values;
  x[2 * 8 + 3] = static_cast<compute>(std::numeric_limits<real>::quiet_NaN());
  // Row 4 makes gates of about +-3000: the sigmoid is 0 or 1, its exponential may not overflow.
  for (std::size_t j = 0; j < 8; ++j) x[4 * 8 + j] = static_cast<compute>(real(1000));
  p.x.set(x);
  p.forward();
  p.backward();
  const auto y = as_double(p.y.values()), dx = as_double(p.dx.values());
  for (std::size_t i = 0; i < y.size(); ++i) {
    CHECK(std::isnan(y[i]) == (i / 8 == 2));
    CHECK(std::isnan(dx[i]) == (i / 8 == 2));
    CHECK(std::isfinite(y[i]) == (i / 8 != 2));
  }
}

TEST_CASE_TEMPLATE_DEFINE("dense_ffn: FLOPs are 6 N H f forward and twice that backward; no tokens",
                          Policy, dense_ffn_counts) {
  flop_counter counter;
  Policy run = policy<Policy>();
  run.count_into(&counter);
  dense_problem<Policy> p(7, 5, 3);
  p.forward(into::overwrite, run);
  CHECK(counter.products == 6 * 7 * 5 * 3);
  p.backward(into::overwrite, run);
  CHECK(counter.products == 18 * 7 * 5 * 3);
  CHECK(counter.recomputed == 0);
  dense_problem<Policy> none(0, 5, 3);
  none.forward();
  none.backward();
  for (const auto gradient : none.ddown.values()) CHECK(gradient == 0);
  for (const auto gradient : none.dgate_up.values()) CHECK(gradient == 0);
}

}  // namespace smelt::test
