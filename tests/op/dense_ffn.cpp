// SPDX-License-Identifier: Apache-2.0
//
// The suite of dense SwiGLU on the host, its gradients against central differences, and threads.
#include "dense_ffn.hpp"

using namespace smelt;
using namespace smelt::test;

TEST_CASE_TEMPLATE_INVOKE(dense_ffn_values, host<double>, host<>, host<bf16>);
TEST_CASE_TEMPLATE_INVOKE(dense_ffn_gradients, host<>, host<bf16>);
TEST_CASE_TEMPLATE_INVOKE(dense_ffn_modes, host<double>, host<>, host<bf16>);
TEST_CASE_TEMPLATE_INVOKE(dense_ffn_strides, host<double>, host<>, host<bf16>);
TEST_CASE_TEMPLATE_INVOKE(dense_ffn_extremes, host<double>, host<>, host<bf16>);
TEST_CASE_TEMPLATE_INVOKE(dense_ffn_counts, host<double>, host<>, host<bf16>);

TEST_CASE("dense_ffn: gradients by central differences") {
  dense_problem<host<double>> p(5, 7, 6);
  auto x = p.x_values, gate_up = p.gate_up_values, down = p.down_values;
  const auto loss = [&] {
    p.x.set(x);
    p.gate_up.set(gate_up);
    p.down.set(down);
    p.forward();
    return dot(p.y.values(), p.dy_values);
  };
  loss();
  p.backward();
  const auto dx = p.dx.values(), dgate_up = p.dgate_up.values(), ddown = p.ddown.values();
  CHECK(relative_error(dx, central_differences(x, loss)) < 1e-6);
  CHECK(relative_error(dgate_up, central_differences(gate_up, loss)) < 1e-6);
  CHECK(relative_error(ddown, central_differences(down, loss)) < 1e-6);
}

TEST_CASE_TEMPLATE("dense_ffn: threads change no bit", Policy, host<double>, host<>, host<bf16>) {
  dense_problem<Policy> one(300, 20, 24), two(300, 20, 24);
  one.forward(into::overwrite, Policy(1));
  one.backward(into::overwrite, Policy(1));
  two.forward(into::overwrite, Policy(2));
  two.backward(into::overwrite, Policy(2));
  CHECK(one.y.values() == two.y.values());
  CHECK(one.dx.values() == two.dx.values());
  CHECK(one.dgate_up.values() == two.dgate_up.values());
}
