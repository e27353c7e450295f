// SPDX-License-Identifier: Apache-2.0
//
// Embedding on any backend: rows are copied, gradients of a repeated token add up, whatever the
// tokens look like: one everywhere, all different, counts around the windows that a device sums.
#pragma once

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "gradient.hpp"
#include "smelt/op/embed.hpp"
#include "support/tensor.hpp"

namespace smelt::test {

struct embed_size {
  std::int64_t tokens, hidden, vocabulary;
};
// Widths around a warp, a block and a vector of four; vocabularies of one entry and of more than
// 8 and 16 bits.
inline const std::vector<embed_size> embed_sizes = {{1, 1, 1},      {5, 3, 5},     {31, 8, 2},
                                                    {32, 7, 256},   {33, 44, 257}, {9, 128, 70000},
                                                    {100, 260, 17}, {3, 1027, 4},  {2, 2048, 300}};

/// How tokens are spread over the vocabulary.
enum class token_spread { random, one, two, different };

inline std::vector<std::int32_t> spread_tokens(std::int64_t count, std::int64_t vocabulary,
                                               token_spread spread) {
  std::mt19937 generator(7);
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const auto random = static_cast<std::int64_t>(generator());
    std::int64_t token = random % vocabulary;
    if (spread == token_spread::one) token = vocabulary - 1;
    if (spread == token_spread::two) token = random % 3 == 0 ? 0 : vocabulary - 1;
    if (spread == token_spread::different) token = std::int64_t(i) * 7 % vocabulary;
    tokens[i] = static_cast<std::int32_t>(token);
  }
  return tokens;
}

// The definition: dweights begin at `begin` and every row of dx is added, in double.
template <class Real>
std::vector<double> plain_embed_gradient(const std::vector<std::int32_t>& tokens,
                                         const std::vector<Real>& dx, std::int64_t hidden,
                                         std::int64_t vocabulary, double begin) {
  std::vector<double> gradient(static_cast<std::size_t>(vocabulary * hidden), begin);
  const auto width = static_cast<std::size_t>(hidden);
  for (std::size_t n = 0; n < tokens.size(); ++n)
    for (std::size_t j = 0; j < width; ++j)
      gradient[static_cast<std::size_t>(tokens[n]) * width + j] += double(dx[n * width + j]);
  return gradient;
}

template <class Policy>
std::vector<typename Policy::real> embed_gradient(const std::vector<std::int32_t>& tokens,
                                                  const std::vector<typename Policy::real>& dx,
                                                  std::int64_t hidden, std::int64_t vocabulary,
                                                  typename Policy::real begin,
                                                  const Policy& run = policy<Policy>()) {
  using real = typename Policy::real;
  const tensor<std::int32_t, Policy> at(tokens);
  const tensor<real, Policy> from(dx);
  const tensor<real, Policy> to(
      std::vector<real>(static_cast<std::size_t>(vocabulary * hidden), begin));
  embed_backward(run, at.data(), from.constant(at.count(), hidden), to.view(vocabulary, hidden));
  return to.values();
}

TEST_CASE_TEMPLATE_DEFINE("embed: rows are copied, bit for bit", Policy, embed_values) {
  using real = typename Policy::real;
  for (const embed_size& size : embed_sizes) {
    CAPTURE(size.tokens);
    CAPTURE(size.hidden);
    const auto tokens = spread_tokens(size.tokens, size.vocabulary, token_spread::random);
    const auto table = random_values<real>(size.vocabulary * size.hidden, 1);
    const tensor<std::int32_t, Policy> at(tokens);
    const tensor<real, Policy> weights(table), x(poisoned<real>(size.tokens * size.hidden));
    embed_forward(policy<Policy>(), at.data(), weights.constant(size.vocabulary, size.hidden),
                  x.view(size.tokens, size.hidden));
    const auto found = x.values();
    bool right = true;
    for (std::size_t i = 0; i < found.size(); ++i) {
      const auto width = static_cast<std::size_t>(size.hidden);
      right = right && found[i] == table[std::size_t(tokens[i / width]) * width + i % width];
    }
    CHECK(right);
  }
}

TEST_CASE_TEMPLATE_DEFINE("embed: gradients are added to, in every spread of tokens", Policy,
                          embed_gradients) {
  using real = typename Policy::real;
  for (const embed_size& size : embed_sizes)
    for (const auto spread : {token_spread::random, token_spread::one, token_spread::different}) {
      CAPTURE(size.tokens);
      CAPTURE(size.hidden);
      const auto tokens = spread_tokens(size.tokens, size.vocabulary, spread);
      const auto dx = random_values<real>(size.tokens * size.hidden, 2);
      const auto found =
          embed_gradient<Policy>(tokens, dx, size.hidden, size.vocabulary, real(0.5));
      CHECK(relative_error(found, plain_embed_gradient(tokens, dx, size.hidden, size.vocabulary,
                                                       0.5)) < tolerance<Policy>(1e-6, 1e-6));
      // A row that no token asked for keeps its bits.
      std::vector<bool> occurs(static_cast<std::size_t>(size.vocabulary));
      for (const auto token : tokens) occurs[std::size_t(token)] = true;
      bool untouched = true;
      for (std::size_t i = 0; i < found.size(); ++i)
        untouched = untouched && (occurs[i / std::size_t(size.hidden)] || found[i] == real(0.5));
      CHECK(untouched);
    }
}

TEST_CASE_TEMPLATE_DEFINE("embed: long runs, cut at any place", Policy, embed_long_runs) {
  using real = typename Policy::real;
  // 32 rows to a window and 16 windows to the next: one window more or less at every level.
  for (const std::int64_t count : {63, 64, 65, 512, 513, 1000, 8193})
    for (const auto spread : {token_spread::one, token_spread::two, token_spread::random}) {
      CAPTURE(count);
      const auto tokens = spread_tokens(count, 20, spread);
      const auto dx = random_values<real>(count * 3, 3);
      CHECK(relative_error(embed_gradient<Policy>(tokens, dx, 3, 20, real(0)),
                           plain_embed_gradient(tokens, dx, 3, 20, 0.0)) <
            tolerance<Policy>(1e-5, 1e-5));
    }
}

TEST_CASE_TEMPLATE_DEFINE("embed: runs of every length and place", Policy, embed_all_runs) {
  using real = typename Policy::real;
  // Token t occurs lengths[t] times: runs that end on, before and behind the cuts of 32.
  const std::vector<std::int64_t> lengths{1, 31, 32, 33, 30, 1, 64, 0, 96, 1, 63, 65, 160, 2, 600};
  std::vector<std::int32_t> tokens;
  for (std::size_t token = 0; token < lengths.size(); ++token)
    tokens.insert(tokens.end(), std::size_t(lengths[token]), static_cast<std::int32_t>(token));
  const std::int64_t vocabulary = std::ssize(lengths);
  // Ones count exactly, in any order of summation: nothing may be lost or added twice.
  const std::vector<real> ones(tokens.size() * 2, real(1));
  const auto counts = embed_gradient<Policy>(tokens, ones, 2, vocabulary, real(0));
  for (std::size_t i = 0; i < counts.size(); ++i) CHECK(counts[i] == real(lengths[i / 2]));
}

TEST_CASE_TEMPLATE_DEFINE("embed: views of wider rows", Policy, embed_strides) {
  using real = typename Policy::real;
  const std::vector<std::int32_t> tokens{2, 0, 2, 1};
  // Aligned for vectors of four in every respect but one: the width, then the stride.
  for (const auto& [width, table_stride, stride] :
       std::vector<std::array<std::int64_t, 3>>{{5, 7, 9}, {8, 11, 12}, {8, 12, 13}, {8, 12, 16}}) {
    const auto table = random_values<real>(3 * table_stride, 4);
    const tensor<std::int32_t, Policy> at(tokens);
    const tensor<real, Policy> weights(table), x(poisoned<real>(4 * stride));
    embed_forward(policy<Policy>(), at.data(),
                  matrix_view<const real>(weights.data(), 3, width, table_stride),
                  matrix_view<real>(x.data(), 4, width, stride));
    const auto rows = x.values();
    const tensor<real, Policy> dtable(std::vector<real>(table.size(), real(1)));
    embed_backward(policy<Policy>(), at.data(), matrix_view<const real>(x.data(), 4, width, stride),
                   matrix_view<real>(dtable.data(), 3, width, table_stride));
    const auto gradient = dtable.values();
    for (std::int64_t n = 0; n < 4; ++n)
      for (std::int64_t j = 0; j < stride; ++j) {
        const auto value = rows[std::size_t(n * stride + j)];
        const auto token = tokens[std::size_t(n)];
        if (j < width)
          CHECK(value == table[std::size_t(token * table_stride + j)]);
        else
          CHECK(std::isnan(value));  // beside the view nothing is written
      }
    for (std::int64_t t = 0; t < 3; ++t)
      for (std::int64_t j = 0; j < table_stride; ++j) {
        const std::size_t i = std::size_t(t * table_stride + j);
        const double occurrences = t == 2 ? 2.0 : 1.0;
        const double expected = j < width ? 1.0 + occurrences * double(table[i]) : 1.0;
        CHECK(double(gradient[i]) == doctest::Approx(expected).epsilon(1e-6));
      }
  }
}

TEST_CASE_TEMPLATE_DEFINE("embed: NaN stays with its token; no tokens", Policy, embed_nan) {
  using real = typename Policy::real;
  const auto tokens = spread_tokens(200, 9, token_spread::random);
  auto dx = random_values<real>(200 * 5, 5);
  dx[77 * 5 + 2] = std::numeric_limits<real>::quiet_NaN();
  const auto found = embed_gradient<Policy>(tokens, dx, 5, 9, real(0));
  for (std::size_t i = 0; i < found.size(); ++i) {
    const bool here = i == std::size_t(tokens[77]) * 5 + 2;
    CHECK(std::isnan(found[i]) == here);
  }
  for (const auto gradient : embed_gradient<Policy>({}, {}, 5, 9, real(3)))
    CHECK(gradient == real(3));
  const tensor<std::int32_t, Policy> none(std::vector<std::int32_t>{});
  const tensor<real, Policy> empty(std::vector<real>{}), weights(random_values<real>(45, 6));
  embed_forward(policy<Policy>(), none.data(), weights.constant(9, 5), empty.view(0, 5));
}

}  // namespace smelt::test
