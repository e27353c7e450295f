// SPDX-License-Identifier: Apache-2.0
//
// From loss to a benchmark score: a falling sigmoid between chance and the best possible.
//
//   score(L) = floor + (ceiling - floor) / (1 + exp(slope (L - midpoint)))
//
// Losses follow a power law and scores do not: most of a benchmark happens within a few tenths of
// a nat around the midpoint. Predict the loss first, then the score.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "smelt/error.hpp"
#include "smelt/law/huber.hpp"
#include "smelt/law/message.hpp"
#include "smelt/law/minimise.hpp"

namespace smelt::law {

/// A falling sigmoid of the loss.
struct score_law {
  double floor = 0;     ///< score at high loss: chance (0 where scores are centred on chance)
  double ceiling = 1;   ///< score at low loss
  double midpoint = 0;  ///< loss of the half-way score, nats per token
  double slope = 0;     ///< steepness, 1 / nats, positive

  /// The score at `loss` nats per token, in the unit of floor and ceiling.
  double score(double loss) const {
    return floor + (ceiling - floor) / (1 + std::exp(slope * (loss - midpoint)));
  }

  /// The loss in nats at which `score` is reached.
  /// @throws smelt::error if the score is not strictly between floor and ceiling.
  double loss_for(double wanted) const {
    const double low = std::min(floor, ceiling);
    const double high = std::max(floor, ceiling);
    if (!(wanted > low && wanted < high)) {
      throw error("law score: score " + number_text(wanted) +
                  " is never reached, the sigmoid lies "
                  "strictly between " +
                  number_text(low) + " and " + number_text(high));
    }
    return midpoint + std::log((ceiling - wanted) / (wanted - floor)) / slope;
  }
};

/// One measured pair.
struct score_point {
  double loss = 0;       ///< nats per token
  double score = 0;      ///< benchmark score, e.g. 0..1; may be below chance
  std::int64_t row = 0;  ///< 1-based line of the file it came from; 0 if from no file
};

/// How a score law is fitted.
struct score_options {
  double floor = 0;           ///< value, or start where it is free
  double ceiling = 1;         ///< value, or start where it is free
  bool free_floor = false;    ///< fit the floor too: needs runs near chance
  bool free_ceiling = false;  ///< fit the ceiling too: needs runs near saturation
  double huber_delta = 0.02;  ///< threshold on the score residual, in score
};

/// A score law with the size of its residuals.
struct fitted_score {
  score_law law;
  double objective = 0;  ///< sum of Huber's losses, squared score
  double rmse = 0;       ///< root mean square residual, in score
  std::int64_t points = 0;
};

/// Sum of Huber's losses of a score law, with its gradient in (midpoint, log slope, floor,
/// ceiling).
inline double score_objective(std::span<const score_point> points, const score_law& law,
                              double delta, std::array<double, 4>& gradient) {
  gradient.fill(0);
  double sum = 0;
  for (const score_point& point : points) {
    const double s = 1 / (1 + std::exp(law.slope * (point.loss - law.midpoint)));
    const huber_loss h = huber(law.floor + (law.ceiling - law.floor) * s - point.score, delta);
    sum += h.value;
    // ds/du = -s (1 - s) for u = slope (L - midpoint).
    const double through = -h.slope * (law.ceiling - law.floor) * s * (1 - s);
    gradient[0] += through * -law.slope;
    gradient[1] += through * law.slope * (point.loss - law.midpoint);
    gradient[2] += h.slope * (1 - s);
    gradient[3] += h.slope * s;
  }
  return sum;
}

/// Fits midpoint and slope, and floor and ceiling where they are free, by multi-start L-BFGS.
/// @throws smelt::error naming the row of a value that is not finite or a loss not positive; if
///         there are not more distinct losses than free coefficients; if the scores do not
///         determine the sigmoid (it ran off, or rises with the loss).
inline fitted_score fit_score(std::span<const score_point> points,
                              const score_options& options = {}) {
  std::set<double> losses;
  for (std::size_t i = 0; i < points.size(); ++i) {
    const std::string place = place_text(points[i].row, static_cast<std::int64_t>(i));
    if (!(points[i].loss > 0) || !std::isfinite(points[i].loss)) {
      throw error(place + ": loss is " + number_text(points[i].loss) +
                  ", expected a positive finite number; repair or remove this pair");
    }
    if (!std::isfinite(points[i].score)) {
      throw error(place + ": score is " + number_text(points[i].score) +
                  ", expected a finite number; repair or remove this pair");
    }
    losses.insert(points[i].loss);
  }
  if (!(options.huber_delta > 0) || !std::isfinite(options.huber_delta)) {
    throw error("law score: Huber delta is " + number_text(options.huber_delta) +
                ", expected a positive finite score such as 0.02");
  }
  if (!(options.floor < options.ceiling)) {
    throw error("law score: floor " + number_text(options.floor) + " and ceiling " +
                number_text(options.ceiling) + ", expected floor < ceiling");
  }
  std::vector<std::size_t> free{0, 1};
  if (options.free_floor) free.push_back(2);
  if (options.free_ceiling) free.push_back(3);
  if (losses.size() <= free.size()) {
    throw error("law score: " + std::to_string(free.size()) + " coefficients need at least " +
                std::to_string(free.size() + 1) + " distinct losses, found " +
                std::to_string(losses.size()) + "; add runs or fix floor and ceiling");
  }

  const double lowest = *losses.begin();
  const double span = *losses.rbegin() - lowest;
  const double scale = 1 / (options.huber_delta * options.huber_delta);
  const auto law_of = [](const std::array<double, 4>& at) {
    return score_law{at[2], at[3], at[0], std::exp(at[1])};
  };
  double best_value = std::numeric_limits<double>::max();
  std::array<double, 4> best{};
  // The midpoint may lie outside the measured losses; the slope is set by their spread.
  for (const double place : {-0.5, 0.0, 0.5, 1.0, 1.5}) {
    for (const double steep : {0.5, 2.0, 8.0, 32.0}) {
      const std::array<double, 4> start{lowest + place * span, std::log(steep / span),
                                        options.floor, options.ceiling};
      const auto function = [&](std::span<const double> x, std::span<double> gradient) {
        std::array<double, 4> at = start;
        std::array<double, 4> slope;
        for (std::size_t i = 0; i < free.size(); ++i) at[free[i]] = x[i];
        const double value = score_objective(points, law_of(at), options.huber_delta, slope);
        for (std::size_t i = 0; i < free.size(); ++i) gradient[i] = scale * slope[free[i]];
        return scale * value;
      };
      std::vector<double> x;
      for (const std::size_t coordinate : free) x.push_back(start[coordinate]);
      const minimum found = minimise(function, x, {1e-9, 2000, 40});
      if (!found.converged || !(found.value / scale < best_value)) continue;
      best_value = found.value / scale;
      best = start;
      for (std::size_t i = 0; i < free.size(); ++i) best[free[i]] = found.x[i];
    }
  }
  const score_law law = law_of(best);
  // Scores that rise with the loss, or that show one flat end only, send a coefficient to infinity.
  const bool sound = best_value < std::numeric_limits<double>::max() && law.ceiling > law.floor &&
                     law.slope * span > 1e-2 && law.slope * span < 1e4 &&
                     std::fabs(law.midpoint - lowest) < 20 * span &&
                     law.ceiling - law.floor < 10 * (options.ceiling - options.floor);
  if (!sound) {
    throw error(
        "law score: the scores do not determine a falling sigmoid; fix floor and ceiling, "
        "or add runs on both sides of the half-way score");
  }
  double squares = 0;
  for (const score_point& point : points) {
    squares += std::pow(law.score(point.loss) - point.score, 2);
  }
  return {law, best_value, std::sqrt(squares / static_cast<double>(points.size())),
          std::ssize(points)};
}

}  // namespace smelt::law
