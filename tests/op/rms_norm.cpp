// SPDX-License-Identifier: Apache-2.0
//
// The suite of RMSNorm on the host, its gradients against central differences, and what only the
// host can be asked: threads, and views that do not fit.
#include "rms_norm.hpp"

using namespace smelt;
using namespace smelt::test;

TEST_CASE_TEMPLATE_INVOKE(rms_norm_values, host<double>, host<>, host<bf16>);
TEST_CASE_TEMPLATE_INVOKE(rms_norm_gradients, host<>, host<bf16>);
TEST_CASE_TEMPLATE_INVOKE(rms_norm_modes, host<double>, host<>);
TEST_CASE_TEMPLATE_INVOKE(rms_norm_in_place, host<double>, host<>);
TEST_CASE_TEMPLATE_INVOKE(rms_norm_strides, host<double>, host<>);
TEST_CASE_TEMPLATE_INVOKE(rms_norm_empty, host<double>, host<>);

TEST_CASE("rms_norm: by hand") {
  // x = (3, 4): the mean of squares is 12.5.
  norm_case<host<double>> c(1, 2);
  c.x.set({3.0, 4.0});
  c.gain.set({1.0, 10.0});
  c.forward();
  CHECK(c.y.values()[0] ==
        doctest::Approx(3.0 / std::sqrt(12.5 + norm_epsilon_of_test)).epsilon(1e-14));
  CHECK(c.y.values()[1] ==
        doctest::Approx(40.0 / std::sqrt(12.5 + norm_epsilon_of_test)).epsilon(1e-14));
  // A row of zeros is kept from division by zero by epsilon.
  c.x.set({0.0, 0.0});
  c.forward();
  CHECK(c.y.values()[0] == 0.0);
  CHECK(std::isfinite(c.rstd.values()[0]));
}

TEST_CASE("rms_norm: gradients by central differences") {
  for (const norm_size& size : std::vector<norm_size>{{1, 1}, {3, 7}, {4, 16}, {5, 33}}) {
    CAPTURE(size.width);
    norm_case<host<double>> c(size.rows, size.width);
    c.forward();
    c.backward();
    auto x = c.x_values, gain = c.gain_values;
    const auto loss = [&] {
      c.x.set(x);
      c.gain.set(gain);
      c.forward();
      return dot(c.dy_values, c.y.values());
    };
    CHECK(relative_error(c.dx.values(), central_differences(x, loss)) < 1e-6);
    CHECK(relative_error(c.dgain.values(), central_differences(gain, loss)) < 1e-6);
  }
}

TEST_CASE_TEMPLATE("rms_norm: threads change no bit", Policy, host<double>, host<>) {
  for (const norm_size& size : std::vector<norm_size>{{20000, 4}, {777, 88}, {300, 1100}}) {
    norm_case<Policy> one(size.rows, size.width);
    norm_case<Policy> two(size.rows, size.width);
    one.forward(Policy(1));
    one.backward(into::overwrite, Policy(1));
    two.forward(Policy(2));
    two.backward(into::overwrite, Policy(2));
    CHECK(one.y.values() == two.y.values());
    CHECK(one.rstd.values() == two.rstd.values());
    CHECK(one.dx.values() == two.dx.values());
    CHECK(one.dgain.values() == two.dgain.values());
  }
}

TEST_CASE("rms_norm: views that do not fit") {
  norm_case<host<>> d(2, 8);
  const auto call = [&](matrix_view<float> y) {
    rms_norm_forward(host<>(1), d.x.constant(2, 8), d.gain.data(), float(norm_epsilon_of_test), y,
                     d.rstd.data());
  };
  CHECK_THROWS_WITH_AS(call({d.y.data(), 2, 7}), doctest::Contains("expected row-major views"),
                       error);
  CHECK_THROWS_AS(call({d.y.data(), 1, 8}), error);
}
