// SPDX-License-Identifier: Apache-2.0
//
// The suite of embedding on the host, a case by hand, and threads.
#include "embed.hpp"

using namespace smelt;
using namespace smelt::test;

TEST_CASE_TEMPLATE_INVOKE(embed_values, host<double>, host<>, host<bf16>);
TEST_CASE_TEMPLATE_INVOKE(embed_gradients, host<double>, host<>, host<bf16>);
TEST_CASE_TEMPLATE_INVOKE(embed_long_runs, host<double>, host<>);
TEST_CASE_TEMPLATE_INVOKE(embed_all_runs, host<double>, host<>);
TEST_CASE_TEMPLATE_INVOKE(embed_strides, host<double>, host<>);
TEST_CASE_TEMPLATE_INVOKE(embed_nan, host<double>, host<>);

TEST_CASE("embed: gradients of a repeated token, by hand") {
  const auto dx = random_values<double>(5 * 3, 2);
  const auto gradient = embed_gradient<host<double>>({2, 0, 2, 2, 4}, dx, 3, 5, 1.0);
  CHECK(gradient[2 * 3 + 1] == doctest::Approx(1.0 + dx[1] + dx[2 * 3 + 1] + dx[3 * 3 + 1]));
  CHECK(gradient[1 * 3 + 1] == 1.0);  // never looked up
}

TEST_CASE("embed: threads do not change a bit of the gradient") {
  const auto tokens = spread_tokens(1000, 11, token_spread::different);
  const auto dx = random_values<float>(1000 * 200, 1);
  CHECK(embed_gradient<host<>>(tokens, dx, 200, 11, 0.0F, host<>(1)) ==
        embed_gradient<host<>>(tokens, dx, 200, 11, 0.0F, host<>(2)));
}
