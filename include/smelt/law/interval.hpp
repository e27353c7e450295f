// SPDX-License-Identifier: Apache-2.0
//
// Confidence intervals from bootstrap draws of one quantity.
//
// Two rules:
//   percentile  the plain quantiles of the draws, e.g. 2.5 % and 97.5 %; what the paper prints.
//               With n clusters its spread is too small by about sqrt((n-1)/n) and it uses normal
//               tails: with a dozen cells a 95 % interval covers less than 95 %.
//   expanded    the same quantiles moved outwards to the levels
//                 Phi( -+ sqrt(n/(n-1)) t_{n-1} ),  t the Student quantile,
//               which mends both (Hesterberg 2015, "What Teachers Should Know About the
//               Bootstrap").
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "smelt/error.hpp"
#include "smelt/law/message.hpp"

namespace smelt::law {

/// Which quantiles of the draws bound the interval.
enum class interval_rule { percentile, expanded };

/// An interval in the unit of its quantity.
struct interval {
  double low = 0;
  double high = 0;

  bool contains(double value) const { return low <= value && value <= high; }
  double width() const { return high - low; }
};

/// A point estimate with its interval, all in one unit.
struct estimate {
  double value = 0;
  interval range;
};

/// The p-quantile of sorted values, p in [0, 1], by linear interpolation between order statistics
/// (position p (n-1), the common default). `sorted` must not be empty.
inline double quantile(std::span<const double> sorted, double p) {
  const double place = std::clamp(p, 0.0, 1.0) * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(place);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  const double share = place - static_cast<double>(below);
  // Infinite draws are allowed at the ends; between them and a finite one there is no halfway, and
  // inf - inf or inf * 0 must not make a NaN of the quantile.
  if (share == 0 || sorted[below] == sorted[above] || std::isinf(sorted[below])) {
    return sorted[below];
  }
  return sorted[below] + share * (sorted[above] - sorted[below]);
}

/// Probability that a Student variable with `freedom` >= 1 degrees of freedom is below `t`.
/// The finite trigonometric sums of Abramowitz and Stegun 26.7.3 and 26.7.4.
inline double student_probability(double t, std::int64_t freedom) {
  const auto n = static_cast<double>(freedom);
  const double theta = std::atan(t / std::sqrt(n));
  const double cosine_squared = std::pow(std::cos(theta), 2);
  double between;  // probability of (-|t|, |t|), with the sign of t
  if (freedom % 2 == 1) {
    double sum = 0;
    double term = std::cos(theta);
    for (std::int64_t k = 1; k <= freedom - 2; k += 2) {
      sum += term;
      term *= cosine_squared * static_cast<double>(k + 1) / static_cast<double>(k + 2);
    }
    between = 2 / std::acos(-1.0) * (theta + std::sin(theta) * sum);
  } else {
    double sum = 0;
    double term = 1;
    for (std::int64_t k = 0; k <= freedom - 2; k += 2) {
      sum += term;
      term *= cosine_squared * static_cast<double>(k + 1) / static_cast<double>(k + 2);
    }
    between = std::sin(theta) * sum;
  }
  return 0.5 + 0.5 * between;
}

/// The p-quantile of Student's distribution, 0 < p < 1, by bisection.
inline double student_quantile(double p, std::int64_t freedom) {
  double low = -1;
  double high = 1;
  while (student_probability(low, freedom) > p) low *= 2;
  while (student_probability(high, freedom) < p) high *= 2;
  for (int step = 0; step < 200; ++step) {
    const double middle = (low + high) / 2;
    (student_probability(middle, freedom) < p ? low : high) = middle;
  }
  return (low + high) / 2;
}

/// The share of draws to cut at each end for `confidence` in (0, 1) and `clusters` resampled cells.
inline double tail_share(interval_rule rule, double confidence, std::int64_t clusters) {
  const double tail = (1 - confidence) / 2;
  if (rule == interval_rule::percentile || clusters < 2) return tail;
  const auto n = static_cast<double>(clusters);
  const double z = std::sqrt(n / (n - 1)) * student_quantile(tail, clusters - 1);
  return 0.5 * std::erfc(-z / std::sqrt(2.0));
}

/// The interval of the draws of one quantity.
/// @throws smelt::error if a draw is NaN, there are fewer than two draws, or the confidence is not
///         in (0, 1). Infinite draws are kept: they may make an end infinite, never NaN.
inline interval interval_of(std::vector<double> draws, std::int64_t clusters,
                            double confidence = 0.95,
                            interval_rule rule = interval_rule::percentile) {
  if (!(confidence > 0 && confidence < 1)) {
    throw error("law interval: confidence is " + number_text(confidence) +
                ", expected a fraction in (0, 1) such as 0.95");
  }
  if (draws.size() < 2) {
    throw error("law interval: " + count_text(std::ssize(draws), "draw") +
                ", expected at least 2; raise the number of draws");
  }
  for (std::size_t i = 0; i < draws.size(); ++i) {
    if (std::isnan(draws[i])) {
      throw error("law interval: draw " + std::to_string(i + 1) + " is nan; no interval");
    }
  }
  std::sort(draws.begin(), draws.end());
  const double tail = tail_share(rule, confidence, clusters);
  return {quantile(draws, tail), quantile(draws, 1 - tail)};
}

}  // namespace smelt::law
