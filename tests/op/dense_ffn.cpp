// SPDX-License-Identifier: Apache-2.0
//
// Dense SwiGLU: values against loops in double, gradients against central differences.
#include "smelt/op/dense_ffn.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "gradient.hpp"

using namespace smelt;
using namespace smelt::test;

namespace {
// One problem in every element type, filled from the same seeds.
template <class Compute>
struct dense_problem {
  using real = real_of<Compute>;
  std::int64_t tokens, hidden, width;
  std::vector<Compute> x, gate_up, down, saved, narrow, h;
  std::vector<real> wide, y, dx, dgate_up, ddown;
  std::vector<Compute> dy;

  dense_problem(std::int64_t n, std::int64_t hidden_, std::int64_t f)
      : tokens(n),
        hidden(hidden_),
        width(f),
        x(random_values<Compute>(n * hidden_, 1)),
        gate_up(random_values<Compute>(2 * f * hidden_, 2)),
        down(random_values<Compute>(hidden_ * f, 3)),
        saved(poisoned<Compute>(n * 2 * f)),
        narrow(poisoned<Compute>(n * 2 * f)),
        h(poisoned<Compute>(n * f)),
        wide(poisoned<real>(n * 2 * f)),
        y(poisoned<real>(n * hidden_)),
        dx(poisoned<real>(n * hidden_)),
        dgate_up(static_cast<std::size_t>(2 * f * hidden_)),
        ddown(static_cast<std::size_t>(hidden_ * f)),
        dy(random_values<Compute>(n * hidden_, 4)) {}

  swiglu_weights<const Compute> weights() const {
    return {{gate_up.data(), 2 * width, hidden}, {down.data(), hidden, width}};
  }
  void forward(int threads = 1) {
    dense_ffn_forward(host<Compute>(threads), matrix_view<const Compute>(x.data(), tokens, hidden),
                      weights(), saved.data(), {wide.data(), narrow.data(), h.data()},
                      matrix_view<real>(y.data(), tokens, hidden), into::overwrite);
  }
  void backward(int threads = 1) {
    dense_ffn_backward(host<Compute>(threads),
                       matrix_view<const Compute>(dy.data(), tokens, hidden),
                       matrix_view<const Compute>(x.data(), tokens, hidden), saved.data(),
                       weights(), {wide.data(), narrow.data(), h.data()},
                       {{dgate_up.data(), 2 * width, hidden}, {ddown.data(), hidden, width}},
                       matrix_view<real>(dx.data(), tokens, hidden), into::overwrite);
  }
};

std::vector<double> reference(const dense_problem<double>& p) {
  std::vector<double> y(static_cast<std::size_t>(p.tokens * p.hidden), 0.0);
  const auto index = [](std::int64_t i) { return static_cast<std::size_t>(i); };
  for (std::int64_t n = 0; n < p.tokens; ++n)
    for (std::int64_t f = 0; f < p.width; ++f) {
      double gate = 0.0, up = 0.0;
      for (std::int64_t j = 0; j < p.hidden; ++j) {
        gate += p.x[index(n * p.hidden + j)] * p.gate_up[index(f * p.hidden + j)];
        up += p.x[index(n * p.hidden + j)] * p.gate_up[index((f + p.width) * p.hidden + j)];
      }
      const double h = gate / (1.0 + std::exp(-gate)) * up;
      for (std::int64_t j = 0; j < p.hidden; ++j)
        y[index(n * p.hidden + j)] += h * p.down[index(j * p.width + f)];
    }
  return y;
}
}  // namespace

TEST_CASE("dense SwiGLU equals its loops in double, float and bf16") {
  for (const std::int64_t width : {1, 24, 37}) {
    dense_problem<double> exact(9, 20, width);
    dense_problem<float> single(9, 20, width);
    dense_problem<bf16> half(9, 20, width);
    exact.forward();
    single.forward(2);
    half.forward(2);
    const auto expected = reference(exact);
    CHECK(relative_error(exact.y, expected) < 1e-13);
    CHECK(relative_error(single.y, expected) < 1e-5);
    CHECK(relative_error(half.y, expected) < 1e-2);
  }
}

TEST_CASE("dense SwiGLU's gradients are central differences") {
  dense_problem<double> p(5, 7, 6);
  const auto loss = [&] {
    p.forward();
    return dot(p.y, p.dy);
  };
  loss();
  p.backward();
  const auto dx = p.dx, dgate_up = p.dgate_up, ddown = p.ddown;
  CHECK(relative_error(dx, central_differences(p.x, loss)) < 1e-6);
  CHECK(relative_error(dgate_up, central_differences(p.gate_up, loss)) < 1e-6);
  CHECK(relative_error(ddown, central_differences(p.down, loss)) < 1e-6);

  dense_problem<float> single(5, 7, 6);
  single.forward();
  single.backward(2);
  CHECK(relative_error(single.dx, dx) < 1e-4);
  CHECK(relative_error(single.dgate_up, dgate_up) < 1e-4);
  CHECK(relative_error(single.ddown, ddown) < 1e-4);
}
