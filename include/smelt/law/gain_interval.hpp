// SPDX-License-Identifier: Apache-2.0
//
// The compute-equivalent gain with its bootstrap interval, at one compute or along a range of them
// (the band of a figure).
//
// A draw in which the reference never reaches the target's loss saves everything: the reference
// would need infinite compute, 1 - C / inf = 1. Such draws count as a gain of 1 and are reported.
// A draw whose surface has no frontier (an exponent that is not positive) says nothing about the
// gain: such draws count as the two extremes in turn, minus infinity and 1, which can only widen
// the interval, and are reported too.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "smelt/error.hpp"
#include "smelt/law/bootstrap.hpp"
#include "smelt/law/frontier.hpp"
#include "smelt/law/gain.hpp"
#include "smelt/law/interval.hpp"
#include "smelt/law/message.hpp"
#include "smelt/law/surface.hpp"

namespace smelt::law {

/// A gain with its interval, as fractions.
struct gain_estimate {
  double compute_flops = 0;      ///< C of the target, total training FLOPs
  double sparsity = 0;           ///< S
  double gain = 0;               ///< point estimate, 0.158 is 15.8 %
  interval range;                ///< of the draws
  std::int64_t unreached = 0;    ///< draws in which the reference never reaches the target's loss
  std::int64_t no_frontier = 0;  ///< draws without a frontier
};

/// The gain at one compute and sparsity with its interval.
/// @throws smelt::error as `gain` for the point estimate; if more than half of the draws have no
///         frontier; if the two lists of draws differ in length.
inline gain_estimate gain_with_interval(const surface& reference, const surface& target,
                                        const paired_draws& draws, double compute_flops,
                                        double sparsity, double confidence = 0.95,
                                        interval_rule rule = interval_rule::percentile) {
  const std::size_t count = draws.reference.laws.size();
  if (count != draws.target.laws.size()) {
    throw error("law gain: " + count_text(static_cast<std::int64_t>(count), "draw") +
                " of the reference and " + count_text(std::ssize(draws.target.laws), "draw") +
                " of the target, expected as many of both");
  }
  gain_estimate result;
  result.compute_flops = compute_flops;
  result.sparsity = sparsity;
  result.gain = gain(reference, target, compute_flops, sparsity);
  const auto has_frontier = [](const surface& law) {
    return law.A > 0 && law.K > 0 && law.a > 0 && law.c > 0;
  };
  std::vector<double> gains;
  gains.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    const surface& left = draws.reference.laws[i];
    const surface& right = draws.target.laws[i];
    if (!has_frontier(left) || !has_frontier(right)) {
      gains.push_back(result.no_frontier++ % 2 == 0 ? -std::numeric_limits<double>::infinity() : 1);
      continue;
    }
    const frontier of_reference(left, sparsity);
    const double loss = frontier(right, sparsity).loss(compute_flops);
    if (!of_reference.reaches(loss)) {
      ++result.unreached;
      gains.push_back(1);
      continue;
    }
    gains.push_back(1 - compute_flops / of_reference.compute_for(loss));
  }
  if (2 * result.no_frontier > static_cast<std::int64_t>(count)) {
    throw error("law gain: " + std::to_string(result.no_frontier) + " of " + std::to_string(count) +
                " bootstrap draws have an exponent a or c that is not "
                "positive, so no frontier; add cells and horizons");
  }
  const std::int64_t clusters = std::min(draws.reference.cells, draws.target.cells);
  result.range = interval_of(std::move(gains), clusters, confidence, rule);
  return result;
}

/// `count` computes spaced evenly in log from `lowest_flops` to `highest_flops`, both included.
inline std::vector<double> compute_range(double lowest_flops, double highest_flops,
                                         std::int64_t count) {
  std::vector<double> range;
  const double step =
      count > 1 ? std::log(highest_flops / lowest_flops) / static_cast<double>(count - 1) : 0;
  for (std::int64_t i = 0; i < count; ++i) {
    range.push_back(lowest_flops * std::exp(step * static_cast<double>(i)));
  }
  return range;
}

/// The gain along a list of computes at one S; a figure's line and band. A compute at which the
/// point estimate has no gain (the reference never gets there) ends the band.
inline std::vector<gain_estimate> gain_band(const surface& reference, const surface& target,
                                            const paired_draws& draws,
                                            std::span<const double> compute_flops, double sparsity,
                                            double confidence = 0.95,
                                            interval_rule rule = interval_rule::percentile) {
  std::vector<gain_estimate> band;
  const frontier of_reference(reference, sparsity);
  const frontier of_target(target, sparsity);
  for (const double compute : compute_flops) {
    if (!of_reference.reaches(of_target.loss(compute))) break;
    band.push_back(
        gain_with_interval(reference, target, draws, compute, sparsity, confidence, rule));
  }
  return band;
}

}  // namespace smelt::law
