// SPDX-License-Identifier: Apache-2.0
//
// The best of many L-BFGS runs on one objective: what every fit of this room is built on.
//
// Two passes. All starts run to a loose tolerance in parallel; the few best run on to a tight one.
// Ties go to the earlier start, so the winner does not depend on threads.
//
// Inside, the objective is divided by delta^2, which makes a residual of delta cost one half. With
// that scale a gradient threshold means the same for every delta and every loss.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

#include "smelt/law/minimise.hpp"
#include "smelt/law/objective.hpp"
#include "smelt/law/parallel.hpp"

namespace smelt::law {

/// Which of the six coordinates a fit may move, in the order E, A, K, a, b, c.
using free_coordinates = std::vector<std::size_t>;

inline const free_coordinates& all_free() {
  static const free_coordinates all{0, 1, 2, 3, 4, 5};
  return all;
}

/// The end of one descent.
struct descent {
  position at{};                                      ///< fit's own coordinates
  double value = std::numeric_limits<double>::max();  ///< the sum of Huber's losses there
  bool converged = false;
};

/// Tolerances of the two passes, on the gradient of the objective over delta^2.
inline constexpr stop_rule loose_stop{1e-3, 200, 40};
inline constexpr stop_rule tight_stop{1e-9, 1000, 40};

/// One L-BFGS run from `start`, moving only the coordinates in `free`.
inline descent descend(const objective& target, const free_coordinates& free, const position& start,
                       const stop_rule& stop) {
  const double scale = 1 / (target.delta * target.delta);
  const auto function = [&](std::span<const double> x, std::span<double> gradient) {
    position at = start;
    position slope;
    for (std::size_t i = 0; i < free.size(); ++i) at[free[i]] = x[i];
    const double value = target(at, slope);
    for (std::size_t i = 0; i < free.size(); ++i) gradient[i] = scale * slope[free[i]];
    return scale * value;
  };
  std::vector<double> x;
  for (const std::size_t coordinate : free) x.push_back(start[coordinate]);
  const minimum found = minimise(function, x, stop);
  descent result{start, found.value, found.converged};
  for (std::size_t i = 0; i < free.size(); ++i) result.at[free[i]] = found.x[i];
  if (found.value < std::numeric_limits<double>::max()) result.value = found.value / scale;
  return result;
}

/// What became of a list of starts.
struct multi_start_result {
  descent best;
  std::int64_t starts = 0;
  std::int64_t at_best = 0;  ///< starts whose loose descent ended within 0.1 % of the best value
};

/// Descends from every start and polishes the `polished` best. `starts` must not be empty.
/// The same bits for any number of threads (0: one per core).
inline multi_start_result multi_start(const objective& target, const free_coordinates& free,
                                      std::span<const position> starts, std::int64_t threads,
                                      const progress_function& progress = {},
                                      std::size_t polished = 6) {
  std::vector<descent> ends(starts.size());
  for_each_index(
      static_cast<std::int64_t>(starts.size()), threads,
      [&](std::int64_t i) {
        const auto at = static_cast<std::size_t>(i);
        ends[at] = descend(target, free, starts[at], loose_stop);
      },
      progress);

  std::vector<std::size_t> order(ends.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t left, std::size_t right) {
    return ends[left].value < ends[right].value;
  });

  multi_start_result result;
  result.starts = static_cast<std::int64_t>(ends.size());
  for (std::size_t i = 0; i < std::min(polished, order.size()); ++i) {
    const descent end = descend(target, free, ends[order[i]].at, tight_stop);
    if (end.value < result.best.value) result.best = end;
  }
  for (const descent& end : ends) result.at_best += end.value <= 1.001 * result.best.value;
  return result;
}

}  // namespace smelt::law
