// SPDX-License-Identifier: Apache-2.0
//
// The arithmetic marked SMELT_HD run by Thrust, here on its OpenMP backend: the same functions that
// the host's loops call, in the hands of the library that runs them on a device. Element for
// element the results must be the host's, bit for bit.
//
// Needs the headers of CCCL (a CUDA toolkit, or Debian's libthrust-dev and libcub-dev); without
// them this test is skipped.
#include <doctest/doctest.h>
#include <thrust/execution_policy.h>
#include <thrust/for_each.h>
#include <thrust/iterator/counting_iterator.h>

#include <cstdint>
#include <vector>

#include "gradient.hpp"
#include "smelt/exec/bf16.hpp"
#include "smelt/op/adamw.hpp"
#include "smelt/op/exponential.hpp"
#include "smelt/op/route.hpp"
#include "smelt/op/silu.hpp"

using namespace smelt;
using namespace smelt::test;

namespace {
// body(i) for i in [0, count) by Thrust. No Thrust type leaves this function.
template <class Body>
void thrust_for(std::int64_t count, Body body) {
  thrust::for_each(thrust::device, thrust::counting_iterator<std::int64_t>(0),
                   thrust::counting_iterator<std::int64_t>(count), body);
}
}  // namespace

TEST_CASE("SwiGLU and its gradient") {
  const auto gate = random_values<float>(1000, 1, 6.0), up = random_values<float>(1000, 2, 6.0);
  auto value = poisoned<float>(1000), dgate = poisoned<float>(1000);
  thrust_for(1000,
             [g = gate.data(), u = up.data(), v = value.data(), d = dgate.data()](std::int64_t i) {
               v[i] = swiglu(g[i], u[i]);
               d[i] = swiglu_backward(g[i], u[i], 0.5F).gate;
             });
  for (std::size_t i = 0; i < 1000; ++i) {
    CHECK(value[i] == doctest::Approx(swiglu(gate[i], up[i])).epsilon(1e-6));
    CHECK(dgate[i] == doctest::Approx(swiglu_backward(gate[i], up[i], 0.5F).gate).epsilon(1e-5));
  }
}

TEST_CASE("AdamW and the rounding to bf16") {
  auto weights = random_values<float>(777, 3);
  auto expected = weights;
  const auto gradients = random_values<float>(777, 4);
  std::vector<float> m(777, 0.1F), v(777, 0.2F), m2 = m, v2 = v;
  std::vector<bf16> copy(777);
  const adamw_setting setting{0.9, 0.95, 1e-8, 0.1, 0.5};
  adamw_coefficients<float> c(setting);
  c.begin_step(adamw_rates<float>(setting, 0.01, 3), 4.0, 0.5);  // a norm of 2, clipped to 0.5
  thrust_for(777, [&, w = weights.data(), g = gradients.data(), first = m.data(), second = v.data(),
                   to = copy.data()](std::int64_t i) {
    w[i] = adamw_element(w[i], g[i], first[i], second[i], c);
    to[i] = bf16(w[i]);
  });
  for (std::size_t i = 0; i < 777; ++i) {
    expected[i] = adamw_element(expected[i], gradients[i], m2[i], v2[i], c);
    CHECK(weights[i] == doctest::Approx(expected[i]).epsilon(1e-6));
    CHECK(copy[i].bits == bf16(weights[i]).bits);
  }
}

TEST_CASE("a router's row") {
  constexpr std::int64_t rows = 50, experts = 37, top_k = 5;
  auto logits = random_values<float>(rows * experts, 5, 3.0);
  auto expected = logits;
  std::vector<std::int32_t> chosen(rows * top_k, -1), expected_chosen(top_k);
  auto weights = poisoned<float>(rows * top_k);
  std::vector<float> expected_weights(top_k);
  thrust_for(rows, [l = logits.data(), c = chosen.data(), w = weights.data()](std::int64_t n) {
    softmax_row(l + n * experts, experts);
    top_k_of_row(l + n * experts, experts, top_k, c + n * top_k, w + n * top_k);
  });
  for (std::int64_t n = 0; n < rows; ++n) {
    softmax_row(expected.data() + n * experts, experts);
    top_k_of_row(expected.data() + n * experts, experts, top_k, expected_chosen.data(),
                 expected_weights.data());
    for (std::size_t k = 0; k < top_k; ++k)
      CHECK(chosen[static_cast<std::size_t>(n) * top_k + k] == expected_chosen[k]);
  }
}
