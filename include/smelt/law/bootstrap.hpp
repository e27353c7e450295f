// SPDX-License-Identifier: Apache-2.0
//
// Cluster bootstrap of a fitted surface. Endpoints of one cell come from one training run and
// share its luck, so a draw takes whole cells, with replacement, and refits (paper, section 5).
//
// A draw is a vector of multiplicities, not a copy of data: the objective is weighted by how often
// each cell was taken. The fit starts warm, from the point estimate and from neighbours of it.
//
// Draw d depends on (seed, d) alone: the cells come from a counter-based generator and each draw
// writes to its own slot. The same seed gives the same bits at any number of threads.
//
// A draw whose cells cannot determine the coefficients (too few distinct ones) has no fit: it is
// taken again, counted, and refused after 100 attempts in a row.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "smelt/error.hpp"
#include "smelt/law/endpoint.hpp"
#include "smelt/law/fit.hpp"
#include "smelt/law/identify.hpp"
#include "smelt/law/interval.hpp"
#include "smelt/law/multi_start.hpp"
#include "smelt/law/objective.hpp"
#include "smelt/law/parallel.hpp"

namespace smelt::law {

/// How draws are made.
struct bootstrap_options {
  std::int64_t draws = 2000;     ///< the paper's number
  std::uint64_t seed = 1;        ///< same seed, same bits
  std::int64_t threads = 0;      ///< 0: one per core; the result does not depend on it
  progress_function progress{};  ///< told the number of draws done; may throw to stop
};

/// Refitted surfaces, one per draw.
struct surface_draws {
  std::vector<surface> laws;
  std::int64_t cells = 0;    ///< cells resampled, for `interval_of`
  std::int64_t redrawn = 0;  ///< draws that had to be taken again
};

/// Draws of two architectures; law i of each came from the same resampled cells when `paired`.
struct paired_draws {
  surface_draws reference;
  surface_draws target;
  bool paired = false;
};

/// How often each of `cells` cells is taken in draw `draw`: `cells` picks with replacement from a
/// splitmix64 stream keyed by (seed, draw, attempt). No state, no order of calls.
inline std::vector<double> resample_cells(std::uint64_t seed, std::int64_t draw,
                                          std::int64_t attempt, std::size_t cells) {
  const auto mix = [](std::uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
  };
  constexpr std::uint64_t golden = 0x9e3779b97f4a7c15ULL;
  std::uint64_t state = mix(seed + golden);
  state = mix(state ^ (static_cast<std::uint64_t>(draw) + golden));
  state = mix(state ^ (static_cast<std::uint64_t>(attempt) + golden));
  std::vector<double> taken(cells, 0.0);
  for (std::size_t pick = 0; pick < cells; ++pick) {
    state += golden;
    // The bias of a 64-bit remainder by a number of cells is below 1e-15.
    taken[static_cast<std::size_t>(mix(state) % cells)] += 1;
  }
  return taken;
}

namespace detail {

/// One architecture made ready to be refitted under weights.
struct refitter {
  log_points logs;
  cell_index cells;
  double delta;
  std::vector<position> starts;  // warm: the point estimate and neighbours

  refitter(std::span<const endpoint> points, const fitted_surface& fitted)
      : logs(log_points_of(points)), cells(index_cells(points)), delta(fitted.huber_delta) {
    const position centre = logs.position_of(fitted.coefficients);
    starts.push_back(centre);
    // Neighbours along the valley where E trades against the exponents: E and both terms are
    // projected anew for flatter and steeper exponents.
    for (const double bend : {0.6, 1.6}) {
      starts.push_back(project(logs, {0, 0, 0, bend * centre[3], centre[4], bend * centre[5]}));
    }
  }

  std::vector<double> weights(std::span<const double> taken) const {
    std::vector<double> of_point;
    of_point.reserve(logs.size());
    for (const std::size_t cell : cells.of_point) of_point.push_back(taken[cell]);
    return of_point;
  }

  /// The refit under one draw, or false if the draw cannot be fitted.
  bool refit(std::span<const double> taken, surface& law) const {
    const std::vector<double> weight = weights(taken);
    if (!surface_shortage(variety_of(logs, weight)).empty()) return false;
    const objective target{&logs, delta, weight};
    descent best;
    for (const position& start : starts) {
      const descent end = descend(target, all_free(), start, draw_stop);
      if (end.converged && end.value < best.value) best = end;
    }
    if (!best.converged) return false;
    law = logs.surface_at(best.at);
    const auto values = coefficients_of(law);
    return std::all_of(values.begin(), values.end(), [](double x) { return std::isfinite(x); });
  }

  // Intervals are read to three digits: between the fit's loose and tight tolerances.
  static constexpr stop_rule draw_stop{1e-5, 500, 40};
};

inline void check_bootstrap(const bootstrap_options& options, const refitter& ready,
                            const std::string& subject) {
  if (options.draws < 2) {
    throw error(subject + ": " + count_text(options.draws, "bootstrap draw") +
                ", expected at least 2");
  }
  if (ready.cells.names.size() < 4) {
    throw error(subject + ": " + count_text(std::ssize(ready.cells.names), "cell") +
                " to resample, expected at least 4; the bootstrap takes whole cells");
  }
}

inline constexpr std::int64_t most_attempts = 100;

[[noreturn]] inline void refuse_draw(const std::string& subject, std::int64_t draw) {
  throw error(subject + ": bootstrap draw " + std::to_string(draw + 1) +
              " could not be fitted in " + std::to_string(most_attempts) +
              " attempts, too few distinct cells in each; add cells");
}

}  // namespace detail

/// Refits the surface to `draws` resamplings of the cells of `points`, which must be the endpoints
/// of `fitted`.
/// @throws smelt::error as `check_endpoints`; if there are fewer than 4 cells or 2 draws; if a draw
///         cannot be fitted in 100 attempts, naming it.
inline surface_draws bootstrap(std::span<const endpoint> points, const fitted_surface& fitted,
                               const bootstrap_options& options = {}) {
  check_endpoints(points);
  const std::string subject = detail::subject_of(points);
  const detail::refitter ready(points, fitted);
  detail::check_bootstrap(options, ready, subject);
  const std::size_t cells = ready.cells.names.size();

  surface_draws result;
  result.cells = static_cast<std::int64_t>(cells);
  result.laws.resize(static_cast<std::size_t>(options.draws));
  std::vector<std::int64_t> again(result.laws.size(), 0);
  for_each_index(
      options.draws, options.threads,
      [&](std::int64_t draw) {
        const auto slot = static_cast<std::size_t>(draw);
        for (std::int64_t attempt = 0; attempt < detail::most_attempts; ++attempt) {
          if (ready.refit(resample_cells(options.seed, draw, attempt, cells), result.laws[slot])) {
            again[slot] = attempt;
            return;
          }
        }
        detail::refuse_draw(subject, draw);
      },
      options.progress);
  for (const std::int64_t attempts : again) result.redrawn += attempts;
  return result;
}

/// Draws of two architectures over matched cells: when both have the same cell names, each draw
/// takes the same cells of both, so that what a cell's data order or scale does to both cancels in
/// the gain (the paper trains matched pairs on identical tokens). With other names the two are
/// resampled independently and `paired` is false.
/// @throws smelt::error as `bootstrap`.
inline paired_draws bootstrap_pair(std::span<const endpoint> reference_points,
                                   const fitted_surface& reference,
                                   std::span<const endpoint> target_points,
                                   const fitted_surface& target,
                                   const bootstrap_options& options = {}) {
  check_endpoints(reference_points);
  check_endpoints(target_points);
  const detail::refitter of_reference(reference_points, reference);
  const detail::refitter of_target(target_points, target);
  const std::string subject = detail::subject_of(target_points);
  detail::check_bootstrap(options, of_reference, detail::subject_of(reference_points));
  detail::check_bootstrap(options, of_target, subject);

  // Both sides are picked in the order of sorted names, whatever the order of the rows.
  const auto sorted_order = [](const std::vector<std::string>& names) {
    std::vector<std::size_t> order(names.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::sort(order.begin(), order.end(),
              [&](std::size_t left, std::size_t right) { return names[left] < names[right]; });
    return order;
  };
  const auto reference_order = sorted_order(of_reference.cells.names);
  const auto target_order = sorted_order(of_target.cells.names);
  paired_draws result;
  result.paired = reference_order.size() == target_order.size();
  for (std::size_t i = 0; result.paired && i < reference_order.size(); ++i) {
    result.paired =
        of_reference.cells.names[reference_order[i]] == of_target.cells.names[target_order[i]];
  }
  const auto deal = [](std::span<const double> taken, std::span<const std::size_t> order) {
    std::vector<double> dealt(taken.size());
    for (std::size_t i = 0; i < taken.size(); ++i) dealt[order[i]] = taken[i];
    return dealt;
  };

  const auto draws = static_cast<std::size_t>(options.draws);
  result.reference.laws.resize(draws);
  result.target.laws.resize(draws);
  result.reference.cells = static_cast<std::int64_t>(reference_order.size());
  result.target.cells = static_cast<std::int64_t>(target_order.size());
  // Independent sides must not share picks: the target's stream then has its own seed.
  const std::uint64_t target_seed = result.paired ? options.seed : ~options.seed;
  std::vector<std::int64_t> again(draws, 0);
  for_each_index(
      options.draws, options.threads,
      [&](std::int64_t draw) {
        const auto slot = static_cast<std::size_t>(draw);
        for (std::int64_t attempt = 0; attempt < detail::most_attempts; ++attempt) {
          const auto left = resample_cells(options.seed, draw, attempt, reference_order.size());
          const auto right = resample_cells(target_seed, draw, attempt, target_order.size());
          // A pair stands or falls together: refitting one side alone would break the pairing.
          if (of_reference.refit(deal(left, reference_order), result.reference.laws[slot]) &&
              of_target.refit(deal(right, target_order), result.target.laws[slot])) {
            again[slot] = attempt;
            return;
          }
        }
        detail::refuse_draw(subject, draw);
      },
      options.progress);
  for (const std::int64_t attempts : again) result.reference.redrawn += attempts;
  result.target.redrawn = result.reference.redrawn;
  return result;
}

/// Each coefficient (order of `coefficient_names`) with the interval of its draws; units as in
/// `surface`.
inline std::array<estimate, coefficient_count> coefficient_estimates(
    const surface& fitted, const surface_draws& draws, double confidence = 0.95,
    interval_rule rule = interval_rule::percentile) {
  std::array<estimate, coefficient_count> result;
  for (std::size_t j = 0; j < coefficient_count; ++j) {
    std::vector<double> values;
    for (const surface& law : draws.laws) values.push_back(coefficients_of(law)[j]);
    result[j] = {coefficients_of(fitted)[j],
                 interval_of(std::move(values), draws.cells, confidence, rule)};
  }
  return result;
}

}  // namespace smelt::law
