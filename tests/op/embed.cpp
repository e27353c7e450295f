// SPDX-License-Identifier: Apache-2.0
//
// Embedding: rows are copied, gradients of a repeated token add up in order, on any threads.
#include "smelt/op/embed.hpp"

#include <doctest/doctest.h>

#include <vector>

#include "gradient.hpp"

using namespace smelt;
using namespace smelt::test;

TEST_CASE("embedding looks up rows and adds gradients of repeated tokens") {
  const std::vector<std::int32_t> tokens{2, 0, 2, 2, 4};
  const auto weights = random_values<double>(5 * 3, 1);
  auto x = poisoned<double>(5 * 3);
  embed_forward(host<double>(1), tokens.data(), matrix_view<const double>(weights.data(), 5, 3),
                matrix_view<double>(x.data(), 5, 3));
  for (std::size_t n = 0; n < 5; ++n)
    for (std::size_t j = 0; j < 3; ++j)
      CHECK(x[n * 3 + j] == weights[static_cast<std::size_t>(tokens[n]) * 3 + j]);

  const auto dx = random_values<double>(5 * 3, 2);
  std::vector<double> gradient(5 * 3, 1.0);
  embed_backward(host<double>(1), tokens.data(), matrix_view<const double>(dx.data(), 5, 3),
                 matrix_view<double>(gradient.data(), 5, 3));
  CHECK(gradient[2 * 3 + 1] == doctest::Approx(1.0 + dx[1] + dx[2 * 3 + 1] + dx[3 * 3 + 1]));
  CHECK(gradient[1 * 3 + 1] == 1.0);  // never looked up
}

TEST_CASE("threads do not change a bit of the embedding's gradient") {
  constexpr std::int64_t tokens = 1000, hidden = 200;
  std::vector<std::int32_t> ids(tokens);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(i * 7 % 11);
  const auto dx = random_values<float>(tokens * hidden, 1);
  std::vector<float> one(11 * hidden, 0.0F), two(11 * hidden, 0.0F);
  const matrix_view<const float> in(dx.data(), tokens, hidden);
  embed_backward(host<>(1), ids.data(), in, matrix_view<float>(one.data(), 11, hidden));
  embed_backward(host<>(2), ids.data(), in, matrix_view<float>(two.data(), 11, hidden));
  CHECK(one == two);
}
