// SPDX-License-Identifier: Apache-2.0
//
// Quantiles, Student's distribution against printed tables, and the two interval rules.
#include "smelt/law/interval.hpp"
#include "smelt/law/parallel.hpp"

#include <atomic>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>

#include <doctest/doctest.h>

using namespace smelt::law;

TEST_CASE("quantiles interpolate between order statistics") {
  const std::vector<double> sorted{1, 2, 4, 8, 16};
  CHECK(quantile(sorted, 0) == 1);
  CHECK(quantile(sorted, 1) == 16);
  CHECK(quantile(sorted, 0.5) == 4);
  CHECK(quantile(sorted, 0.375) == 3);
  const double infinity = std::numeric_limits<double>::infinity();
  CHECK(quantile(std::vector<double>{1, 2, infinity}, 0.5) == 2);
  CHECK(quantile(std::vector<double>{1, infinity, infinity}, 0.9) == infinity);
  CHECK(quantile(std::vector<double>{-infinity, 1, 2}, 0.2) == -infinity);
  CHECK(quantile(std::vector<double>{-infinity, infinity}, 0.5) == -infinity);
}

TEST_CASE("Student's quantiles are those of the printed tables") {
  CHECK(student_quantile(0.975, 1) == doctest::Approx(12.7062).epsilon(1e-5));
  CHECK(student_quantile(0.975, 2) == doctest::Approx(4.30265).epsilon(1e-5));
  CHECK(student_quantile(0.95, 5) == doctest::Approx(2.01505).epsilon(1e-5));
  CHECK(student_quantile(0.975, 11) == doctest::Approx(2.20099).epsilon(1e-5));
  CHECK(student_quantile(0.025, 11) == doctest::Approx(-2.20099).epsilon(1e-5));
  CHECK(student_quantile(0.995, 30) == doctest::Approx(2.75000).epsilon(1e-5));
  CHECK(student_probability(0, 7) == doctest::Approx(0.5));
}

TEST_CASE("the percentile rule cuts equal tails; the expanded rule cuts less, by cells") {
  CHECK(tail_share(interval_rule::percentile, 0.95, 12) == doctest::Approx(0.025));
  // Phi(-sqrt(12/11) * 2.20099) = Phi(-2.29883) = 0.010757
  CHECK(tail_share(interval_rule::expanded, 0.95, 12) == doctest::Approx(0.010757).epsilon(1e-3));
  CHECK(tail_share(interval_rule::expanded, 0.95, 100000) == doctest::Approx(0.025).epsilon(1e-3));
  std::vector<double> draws;
  for (int i = 1000; i >= 0; --i) draws.push_back(i);
  const interval plain = interval_of(draws, 12);
  CHECK(plain.low == doctest::Approx(25));
  CHECK(plain.high == doctest::Approx(975));
  const interval wide = interval_of(draws, 12, 0.95, interval_rule::expanded);
  CHECK(wide.low < plain.low);
  CHECK(wide.high > plain.high);
  CHECK(plain.contains(500));
  CHECK_FALSE(plain.contains(20));
}

TEST_CASE("no interval comes of NaN, of one draw, or of a confidence in per cent") {
  CHECK_THROWS_WITH_AS(interval_of({1, std::nan(""), 2}, 12), doctest::Contains("draw 2 is nan"),
                       smelt::error);
  CHECK_THROWS_WITH_AS(interval_of({1}, 12), doctest::Contains("1 draw"), smelt::error);
  CHECK_THROWS_WITH_AS(interval_of({1, 2}, 12, 95), doctest::Contains("confidence is 95"),
                       smelt::error);
}

TEST_CASE("every job runs once and lands in its slot, however many threads there are") {
  for (const std::int64_t threads : {1, 2, 7, 100}) {
    std::vector<int> slots(50, 0);
    for_each_index(50, threads, [&](std::int64_t i) {
      slots[static_cast<std::size_t>(i)] += static_cast<int>(i);
    });
    for (std::size_t i = 0; i < slots.size(); ++i) CHECK(slots[i] == static_cast<int>(i));
  }
  for_each_index(0, 4, [](std::int64_t) { FAIL("no job to run"); });
}

TEST_CASE("a job that throws stops the rest and its exception comes back") {
  std::atomic<int> ran{0};
  CHECK_THROWS_WITH(for_each_index(1000, 1,
                                   [&](std::int64_t i) {
                                     ++ran;
                                     if (i == 3) throw std::runtime_error("job 3");
                                   }),
                    "job 3");
  CHECK(ran == 4);
  CHECK_THROWS_AS(for_each_index(100, 4, [](std::int64_t) { throw std::runtime_error("any"); }),
                  std::runtime_error);
}
