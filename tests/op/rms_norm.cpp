// SPDX-License-Identifier: Apache-2.0
//
// RMSNorm against its definition in double, gradients against central differences, and the two
// shapes it runs on: few wide rows (hidden) and many narrow ones (heads).
#include "smelt/op/rms_norm.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "gradient.hpp"

using namespace smelt;
using namespace smelt::test;

namespace {
constexpr double epsilon = 1e-5;

template <class Policy, class Out = typename Policy::real>
struct norm_case {
  using real = typename Policy::real;
  using compute = typename Policy::compute;
  std::int64_t rows, width;
  std::vector<real> x, gain, rstd, dy, dx, dgain;
  std::vector<Out> y;

  norm_case(std::int64_t rows_, std::int64_t width_)
      : rows(rows_),
        width(width_),
        x(random_values<real>(rows * width, 1, 2.0)),
        gain(random_values<real>(width, 2)),
        rstd(poisoned<real>(rows)),
        dy(random_values<real>(rows * width, 3)),
        dx(poisoned<real>(rows * width)),
        dgain(std::size_t(width), real(0)),
        y(poisoned<Out>(rows * width)) {}

  void forward(const Policy& run) {
    rms_norm_forward<compute, Out>(run, {x.data(), rows, width}, gain.data(),
                                   static_cast<real>(epsilon), {y.data(), rows, width},
                                   rstd.data());
  }
  void backward(const Policy& run, into mode = into::overwrite) {
    rms_norm_backward<compute>(run, {dy.data(), rows, width}, {x.data(), rows, width}, gain.data(),
                               rstd.data(), mode, {dx.data(), rows, width}, dgain.data());
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
      y[i * width + j] = double(x[i * width + j]) / std::sqrt(mean + epsilon) * double(gain[j]);
  }
  return y;
}

struct size_pair {
  std::int64_t rows, width;
};
const std::vector<size_pair> sizes = {{1, 1},   {3, 7},    {5, 15},   {1, 16},
                                      {2, 17},  {129, 44}, {700, 4},  {300, 64},
                                      {64, 88}, {33, 256}, {9, 1000}, {2, 4099}};
}  // namespace

TEST_CASE("rms_norm: values are those of the definition") {
  for (const size_pair& size : sizes) {
    CAPTURE(size.rows);
    CAPTURE(size.width);
    norm_case<host<double>> exact(size.rows, size.width);
    exact.forward(host<double>(1));
    const auto plain = plain_norm(exact.x, exact.gain);
    CHECK(relative_error(exact.y, plain) < 1e-13);
    norm_case<host<>> narrow(size.rows, size.width);
    narrow.forward(host<>(1));
    CHECK(relative_error(narrow.y, plain) < 1e-6);
    CHECK(relative_error(narrow.rstd, exact.rstd) < 1e-6);
    norm_case<host<bf16>, bf16> half(size.rows, size.width);
    half.forward(host<bf16>(1));
    std::vector<float> y;
    for (const bf16 value : half.y) y.push_back(static_cast<float>(value));
    CHECK(relative_error(y, plain) < 1e-2);
    norm_case<host<bf16>> wide(size.rows,
                               size.width);  // a bf16 policy whose output stays in float32
    wide.forward(host<bf16>(1));
    CHECK(relative_error(wide.y, plain) < 1e-6);
  }
}

TEST_CASE("rms_norm: by hand") {
  // x = (3, 4): the mean of squares is 12.5.
  norm_case<host<double>> c(1, 2);
  c.x = {3.0, 4.0};
  c.gain = {1.0, 10.0};
  c.forward(host<double>(1));
  CHECK(c.y[0] == doctest::Approx(3.0 / std::sqrt(12.5 + epsilon)).epsilon(1e-14));
  CHECK(c.y[1] == doctest::Approx(40.0 / std::sqrt(12.5 + epsilon)).epsilon(1e-14));
  // A row of zeros is kept from division by zero by epsilon.
  c.x = {0.0, 0.0};
  c.forward(host<double>(1));
  CHECK(c.y[0] == 0.0);
  CHECK(std::isfinite(c.rstd[0]));
}

TEST_CASE("rms_norm: gradients by central differences") {
  for (const size_pair& size : std::vector<size_pair>{{1, 1}, {3, 7}, {4, 16}, {5, 33}}) {
    CAPTURE(size.width);
    norm_case<host<double>> c(size.rows, size.width);
    const host<double> run(1);
    c.forward(run);
    c.backward(run);
    const auto loss = [&] {
      c.forward(run);
      return dot(c.dy, c.y);
    };
    CHECK(relative_error(c.dx, central_differences(c.x, loss)) < 1e-6);
    CHECK(relative_error(c.dgain, central_differences(c.gain, loss)) < 1e-6);
  }
}

TEST_CASE("rms_norm: the float gradients follow the double ones") {
  for (const size_pair& size : sizes) {
    if (size.width == 1)
      continue;  // dx of a single element is the epsilon's alone, all cancellation
    CAPTURE(size.rows);
    CAPTURE(size.width);
    norm_case<host<double>> exact(size.rows, size.width);
    exact.forward(host<double>(1));
    exact.backward(host<double>(1));
    norm_case<host<>> narrow(size.rows, size.width);
    narrow.forward(host<>(1));
    narrow.backward(host<>(1));
    CHECK(relative_error(narrow.dx, exact.dx) < 1e-5);
    CHECK(relative_error(narrow.dgain, exact.dgain) < 1e-5);
  }
}

TEST_CASE("rms_norm: dx is overwritten or added to, dgain always added to") {
  norm_case<host<double>> c(70, 24);
  const host<double> run(1);
  c.forward(run);
  c.backward(run);
  norm_case<host<double>> added = c;
  added.backward(run, into::accumulate);
  for (std::size_t i = 0; i < c.dx.size(); ++i)
    REQUIRE(added.dx[i] == doctest::Approx(2.0 * c.dx[i]).epsilon(1e-12));
  for (std::size_t j = 0; j < c.dgain.size(); ++j)
    REQUIRE(added.dgain[j] == doctest::Approx(2.0 * c.dgain[j]).epsilon(1e-12));
}

TEST_CASE_TEMPLATE("rms_norm: in place, forward and backward", Policy, host<double>, host<>) {
  using real = typename Policy::real;
  norm_case<Policy> c(90, 44);
  const Policy run(2);
  c.forward(run);
  c.backward(run);
  std::vector<real> gradient = c.dy;
  std::vector<real> dgain(44, real(0));
  const matrix_view<real> view(gradient.data(), 90, 44);
  rms_norm_backward<typename Policy::compute>(run, view, {c.x.data(), 90, 44}, c.gain.data(),
                                              c.rstd.data(), into::overwrite, view, dgain.data());
  CHECK(gradient == c.dx);
  CHECK(dgain == c.dgain);
  std::vector<real> x = c.x;
  rms_norm_forward<typename Policy::compute, real>(run, {x.data(), 90, 44}, c.gain.data(),
                                                   static_cast<real>(epsilon), {x.data(), 90, 44},
                                                   c.rstd.data());
  CHECK(x == c.y);
}

TEST_CASE_TEMPLATE("rms_norm: threads change no bit", Policy, host<double>, host<>) {
  for (const size_pair& size : std::vector<size_pair>{{20000, 4}, {777, 88}, {300, 1100}}) {
    norm_case<Policy> one(size.rows, size.width);
    norm_case<Policy> two(size.rows, size.width);
    one.forward(Policy(1));
    one.backward(Policy(1));
    two.forward(Policy(2));
    two.backward(Policy(2));
    CHECK(one.y == two.y);
    CHECK(one.rstd == two.rstd);
    CHECK(one.dx == two.dx);
    CHECK(one.dgain == two.dgain);
  }
}

TEST_CASE("rms_norm: rows further apart than they are wide; NaN stays in its row") {
  norm_case<host<>> c(50, 20);
  const host<> run(1);
  c.forward(run);
  std::vector<float> x(50 * 33, std::numeric_limits<float>::quiet_NaN());
  std::vector<float> y = poisoned<float>(50 * 27);
  for (std::size_t i = 0; i < c.x.size(); ++i) x[i / 20 * 33 + i % 20] = c.x[i];
  x[7 * 33 + 3] = std::numeric_limits<float>::quiet_NaN();
  rms_norm_forward<float, float>(run, {x.data(), 50, 20, 33}, c.gain.data(), float(epsilon),
                                 {y.data(), 50, 20, 27}, c.rstd.data());
  bool right = true;
  for (std::size_t i = 0; i < y.size(); ++i) {
    const std::size_t row = i / 27;
    const std::size_t column = i % 27;
    const bool untouched = column >= 20 || row == 7;
    right = right && (untouched ? std::isnan(y[i]) : y[i] == c.y[row * 20 + column]);
  }
  CHECK(right);
}

TEST_CASE("rms_norm: no rows, and views that do not fit") {
  norm_case<host<>> c(0, 8);
  c.forward(host<>(2));
  c.backward(host<>(2));
  for (const float gradient : c.dgain) CHECK(gradient == 0.0F);
  norm_case<host<>> d(2, 8);
  const auto call = [&](matrix_view<float> y) {
    rms_norm_forward<float, float>(host<>(1), {d.x.data(), 2, 8}, d.gain.data(), float(epsilon), y,
                                   d.rstd.data());
  };
  CHECK_THROWS_WITH_AS(call({d.y.data(), 2, 7}), doctest::Contains("expected row-major views"),
                       error);
  CHECK_THROWS_AS(call({d.y.data(), 1, 8}), error);
}
