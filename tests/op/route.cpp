// SPDX-License-Identifier: Apache-2.0
//
// The router against a sort in double, its gradient against central differences, and its behaviour
// on rows that are not numbers.
#include "smelt/op/route.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>
#include <vector>

#include "gradient.hpp"

using namespace smelt;

namespace {

template <class Real>
struct routed {
  std::vector<Real> probabilities;
  std::vector<std::int32_t> chosen;
  std::vector<Real> weights;
  std::vector<Real> logsumexp;
};

template <class Compute>
auto route(const host<Compute>& run, const std::vector<typename host<Compute>::real>& logits,
           std::int64_t experts, std::int64_t top_k, bool renormalize) {
  using Real = typename host<Compute>::real;
  const std::int64_t tokens = static_cast<std::int64_t>(logits.size()) / experts;
  routed<Real> out{test::poisoned<Real>(tokens * experts),
                   std::vector<std::int32_t>(static_cast<std::size_t>(tokens * top_k), -7),
                   test::poisoned<Real>(tokens * top_k), test::poisoned<Real>(tokens)};
  route_forward(run, matrix_view<const Real>(logits.data(), tokens, experts), top_k, renormalize,
                matrix_view<Real>(out.probabilities.data(), tokens, experts), out.chosen.data(),
                out.weights.data(), out.logsumexp.data());
  return out;
}

// Softmax, a stable sort, the first top_k; nothing shared with the op.
routed<double> reference(const std::vector<double>& logits, std::int64_t experts,
                         std::int64_t top_k, bool renormalize) {
  routed<double> out;
  const std::size_t count = static_cast<std::size_t>(experts);
  for (std::size_t first = 0; first < logits.size(); first += count) {
    double sum = 0.0;
    for (std::size_t e = 0; e < count; ++e) sum += std::exp(logits[first + e]);
    std::vector<double> p(count);
    for (std::size_t e = 0; e < count; ++e) p[e] = std::exp(logits[first + e]) / sum;
    std::vector<std::int32_t> order(count);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
      return p[static_cast<std::size_t>(a)] > p[static_cast<std::size_t>(b)];
    });
    double chosen_sum = 0.0;
    for (std::int64_t k = 0; k < top_k; ++k)
      chosen_sum += p[static_cast<std::size_t>(order[static_cast<std::size_t>(k)])];
    for (std::int64_t k = 0; k < top_k; ++k) {
      const std::int32_t e = order[static_cast<std::size_t>(k)];
      out.chosen.push_back(e);
      out.weights.push_back(p[static_cast<std::size_t>(e)] / (renormalize ? chosen_sum : 1.0));
    }
    out.probabilities.insert(out.probabilities.end(), p.begin(), p.end());
    out.logsumexp.push_back(std::log(sum));
  }
  return out;
}

struct sizes {
  std::int64_t tokens, experts, top_k;
};
// Odd ones, one token, all experts chosen, and more experts than a byte or a block can count.
constexpr sizes cases[] = {{1, 1, 1},   {5, 2, 1},    {33, 7, 3},    {1, 32, 8},   {70, 16, 16},
                           {64, 32, 8}, {31, 255, 8}, {40, 257, 8},  {9, 300, 17}, {65, 512, 8},
                           {3, 513, 2}, {12, 48, 8},  {4, 1001, 100}};

}  // namespace

TEST_CASE("route_forward chooses what a stable sort chooses") {
  for (const sizes& size : cases)
    for (const bool renormalize : {false, true}) {
      CAPTURE(size.tokens);
      CAPTURE(size.experts);
      CAPTURE(size.top_k);
      const auto logits = test::random_values<double>(size.tokens * size.experts, 11, 3.0);
      const auto expected = reference(logits, size.experts, size.top_k, renormalize);
      const auto found = route(host<double>(2), logits, size.experts, size.top_k, renormalize);
      CHECK(found.chosen == expected.chosen);
      CHECK(test::relative_error(found.probabilities, expected.probabilities) < 1e-13);
      CHECK(test::relative_error(found.weights, expected.weights) < 1e-13);
      CHECK(test::relative_error(found.logsumexp, expected.logsumexp) < 1e-13);

      const std::vector<float> single(logits.begin(), logits.end());
      const auto rough = route(host<float>(2), single, size.experts, size.top_k, renormalize);
      CHECK(rough.chosen == expected.chosen);
      CHECK(test::relative_error(rough.probabilities, expected.probabilities) < 1e-5);
      CHECK(test::relative_error(rough.weights, expected.weights) < 1e-5);
      CHECK(test::relative_error(rough.logsumexp, expected.logsumexp) < 1e-5);
    }
}

TEST_CASE("the choice among few distinct values is a stable sort's: ties to the lowest index") {
  // Case 13: values from a set of five, so that almost every row ties at the threshold.
  for (const sizes& size : cases) {
    CAPTURE(size.experts);
    CAPTURE(size.top_k);
    auto logits = test::random_values<double>(size.tokens * size.experts, 5, 2.0);
    for (double& value : logits) value = std::round(value);
    const std::vector<float> single(logits.begin(), logits.end());
    const auto expected = reference(logits, size.experts, size.top_k, true);
    CHECK(route(host<float>(1), single, size.experts, size.top_k, true).chosen == expected.chosen);
  }
}

TEST_CASE("case 13: rows of NaN and Inf choose distinct experts in range, and show it") {
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  constexpr double inf = std::numeric_limits<double>::infinity();
  for (const sizes& size : cases) {
    CAPTURE(size.experts);
    const std::int64_t kinds = 6;
    auto logits = test::random_values<double>(kinds * size.experts, 3);
    const auto row = [&](std::int64_t index) { return logits.begin() + index * size.experts; };
    std::fill_n(row(0), size.experts, nan);
    std::fill_n(row(1), size.experts, inf);
    std::fill_n(row(2), size.experts, -inf);
    row(3)[size.experts / 2] = nan;
    row(4)[size.experts - 1] = inf;
    const std::vector<float> single(logits.begin(), logits.end());
    const auto check = [&](const auto& found) {
      for (std::int64_t n = 0; n < kinds; ++n) {
        const auto first = found.chosen.begin() + n * size.top_k;
        const std::set<std::int32_t> distinct(first, first + size.top_k);
        CHECK(static_cast<std::int64_t>(distinct.size()) == size.top_k);
        CHECK(*distinct.begin() >= 0);
        CHECK(*distinct.rbegin() < size.experts);
        // A row that is not a number shows in its weights, and spoils no other row.
        CHECK(std::isnan(found.weights[static_cast<std::size_t>(n * size.top_k)]) == (n < 5));
        // All NaN is all tied: the first experts.
        if (n == 0) CHECK(*distinct.rbegin() == size.top_k - 1);
      }
    };
    check(route(host<double>(1), logits, size.experts, size.top_k, true));
    check(route(host<float>(2), single, size.experts, size.top_k, false));
  }
}

TEST_CASE("case 13: top_k_of_row ranks NaN below every number, in any place") {
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  for (std::int64_t count : {4, 20, 100}) {
    // Numbers only in every third place; there are more NaN than numbers.
    std::vector<float> row(static_cast<std::size_t>(count), nan);
    std::vector<std::int32_t> expected;
    for (std::int64_t i = 2; i < count; i += 3) {
      row[static_cast<std::size_t>(i)] = static_cast<float>(-i);
      expected.push_back(static_cast<std::int32_t>(i));
    }
    const std::size_t top_k = expected.size() + 1;  // one NaN must be taken: the first
    expected.push_back(0);
    std::vector<std::int32_t> chosen(top_k, -1);
    std::vector<float> values(top_k);
    top_k_of_row(row.data(), count, static_cast<std::int64_t>(top_k), chosen.data(), values.data());
    CHECK(chosen == expected);
    CHECK(std::isnan(values.back()));
    CHECK(values.front() == -2.0F);
  }
}

TEST_CASE("masked experts, at -Inf, are chosen last and get next to no weight") {
  constexpr float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> logits{-inf, 1.0F, -inf, 2.0F, -inf};
  const auto found = route(host<float>(1), logits, 5, 3, true);
  CHECK(found.chosen == std::vector<std::int32_t>{3, 1, 0});
  CHECK(found.weights[2] < 1e-30F);
  CHECK(std::isfinite(found.logsumexp[0]));
}

TEST_CASE("case 14: every one of more than 255, 256 and 512 experts can be chosen") {
  for (std::int64_t experts : {255, 256, 257, 512, 515, 1027}) {
    CAPTURE(experts);
    std::vector<float> logits(static_cast<std::size_t>(experts * experts), 0.0F);
    for (std::int64_t e = 0; e < experts; ++e)
      logits[static_cast<std::size_t>(e * experts + e)] = 9.0F;
    const auto found = route(host<float>(2), logits, experts, 1, false);
    std::vector<std::int32_t> expected(static_cast<std::size_t>(experts));
    std::iota(expected.begin(), expected.end(), 0);
    CHECK(found.chosen == expected);
  }
}

TEST_CASE("probabilities may take the place of the logits") {
  const auto logits = test::random_values<float>(40 * 35, 2, 4.0);
  const auto expected = route(host<float>(1), logits, 35, 4, true);
  auto memory = logits;
  std::vector<std::int32_t> chosen(40 * 4);
  std::vector<float> weights(40 * 4);
  std::vector<float> logsumexp(40);
  const matrix_view<float> view(memory.data(), 40, 35);
  route_forward(host<float>(1), matrix_view<const float>(view), 4, true, view, chosen.data(),
                weights.data(), logsumexp.data());
  CHECK(memory == expected.probabilities);
  CHECK(chosen == expected.chosen);
  CHECK(weights == expected.weights);
  CHECK(logsumexp == expected.logsumexp);
}

TEST_CASE("no tokens are no work") {
  CHECK(route(host<float>(2), {}, 8, 2, true).chosen.empty());
}

namespace {

// dlogits of L = sum(dweights * weights), all outputs poisoned first.
template <class Compute>
auto gradient(const host<Compute>& run, const std::vector<typename host<Compute>::real>& logits,
              const std::vector<typename host<Compute>::real>& dweights, std::int64_t experts,
              std::int64_t top_k, bool renormalize) {
  using Real = typename host<Compute>::real;
  const auto forward = route(run, logits, experts, top_k, renormalize);
  const std::int64_t tokens = static_cast<std::int64_t>(logits.size()) / experts;
  auto dlogits = test::poisoned<Real>(tokens * experts);
  route_backward(run, matrix_view<const Real>(forward.probabilities.data(), tokens, experts),
                 forward.chosen.data(), forward.weights.data(), top_k, renormalize, dweights.data(),
                 router_gradient<Real>{}, matrix_view<Real>(dlogits.data(), tokens, experts));
  return dlogits;
}

}  // namespace

TEST_CASE("route_backward is the gradient of the weights by central differences") {
  constexpr sizes some[] = {{1, 1, 1}, {6, 2, 1}, {35, 7, 3}, {3, 32, 8}, {2, 40, 40}, {2, 300, 8}};
  for (const sizes& size : some)
    for (const bool renormalize : {false, true}) {
      CAPTURE(size.experts);
      CAPTURE(renormalize);
      auto logits = test::random_values<double>(size.tokens * size.experts, 7, 2.0);
      const auto dweights = test::random_values<double>(size.tokens * size.top_k, 8);
      const auto found =
          gradient(host<double>(2), logits, dweights, size.experts, size.top_k, renormalize);
      const auto chosen =
          route(host<double>(1), logits, size.experts, size.top_k, renormalize).chosen;
      // The choice is held: beyond a tie the function jumps, and a jump has no gradient.
      const auto expected = test::central_differences(logits, [&] {
        const auto moved = reference(logits, size.experts, size.top_k, renormalize);
        REQUIRE(moved.chosen == chosen);
        return test::dot(moved.weights, dweights);
      });
      // One expert, or one choice renormalised, has weight 1 whatever the logits: gradient 0.
      if (size.experts == 1 || (size.top_k == 1 && renormalize)) {
        for (double value : found) CHECK(std::abs(value) < 1e-15);
        continue;
      }
      CHECK(test::relative_error(found, expected) < 1e-6);
      const auto rough = gradient(host<float>(2), std::vector<float>(logits.begin(), logits.end()),
                                  std::vector<float>(dweights.begin(), dweights.end()),
                                  size.experts, size.top_k, renormalize);
      CHECK(test::relative_error(rough, found) < 1e-5);
    }
}

TEST_CASE("case 17: a second backward writes the same finite numbers") {
  const auto logits = test::random_values<float>(50 * 33, 1);
  const auto dweights = test::random_values<float>(50 * 4, 2);
  const auto first = gradient(host<float>(2), logits, dweights, 33, 4, true);
  const auto second = gradient(host<float>(2), logits, dweights, 33, 4, true);
  CHECK(first == second);
  for (float value : first) REQUIRE(std::isfinite(value));
}

TEST_CASE("one thread and two give the same bits") {
  const auto logits = test::random_values<float>(777 * 37, 1, 5.0);
  const auto dweights = test::random_values<float>(777 * 5, 2);
  const auto one = route(host<float>(1), logits, 37, 5, true);
  const auto two = route(host<float>(2), logits, 37, 5, true);
  CHECK(one.chosen == two.chosen);
  CHECK(one.probabilities == two.probabilities);
  CHECK(one.weights == two.weights);
  CHECK(one.logsumexp == two.logsumexp);
  CHECK(gradient(host<float>(1), logits, dweights, 37, 5, true) ==
        gradient(host<float>(2), logits, dweights, 37, 5, true));
}
