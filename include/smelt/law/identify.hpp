// SPDX-License-Identifier: Apache-2.0
//
// Whether a set of endpoints can determine the coefficients at all. A law with too few cells or
// horizons still has a minimum, and its coefficients are then whatever the start was: refused.
//
// Counting, before the fit. The model term is known at each cell up to a constant shared with E,
// the data term at each horizon likewise, so
//   K, c     need 3 distinct D
//   A, a, b  need 4 cells that differ in (F, S), with 2 distinct S and 2 distinct F
//   A, alpha (plain form) need 3 distinct N
// and there must be more endpoints than coefficients.
//
// Rank, after the fit: the columns of the Jacobian at the optimum, each scaled to length one, must
// be independent. That catches what counting cannot, such as S that is a function of F.
#pragma once

#include <cmath>
#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "smelt/error.hpp"
#include "smelt/law/message.hpp"
#include "smelt/law/multi_start.hpp"
#include "smelt/law/objective.hpp"

namespace smelt::law {

/// How much variety the endpoints with positive weight hold.
struct variety {
  std::int64_t endpoints = 0;
  std::int64_t models = 0;      ///< distinct (F, S), or N in the plain form
  std::int64_t sizes = 0;       ///< distinct F, or N
  std::int64_t sparsities = 0;  ///< distinct S
  std::int64_t horizons = 0;    ///< distinct D
};

/// Counts the distinct inputs among the endpoints with positive weight (empty: all of them).
/// Inputs closer than one part in 1e9 count as the same.
inline variety variety_of(const log_points& points, std::span<const double> weights = {}) {
  const auto key = [](double x) { return std::llround(x * 1e9); };
  std::set<std::pair<long long, long long>> models;
  std::set<long long> sizes, sparsities, horizons;
  variety result;
  for (std::size_t i = 0; i < points.size(); ++i) {
    if (!weights.empty() && weights[i] == 0) continue;
    ++result.endpoints;
    models.insert({key(points.model_size[i]), key(points.density[i])});
    sizes.insert(key(points.model_size[i]));
    sparsities.insert(key(points.density[i]));
    horizons.insert(key(points.tokens[i]));
  }
  result.models = std::ssize(models);
  result.sizes = std::ssize(sizes);
  result.sparsities = std::ssize(sparsities);
  result.horizons = std::ssize(horizons);
  return result;
}

/// Why the six coefficients of a surface cannot be determined, or "" if counting finds no reason.
inline std::string surface_shortage(const variety& found) {
  if (found.sparsities < 2)
    return "b needs at least 2 distinct sparsities S, found 1; add cells at another sparsity or "
           "fit the plain form E + A/N^alpha + B/D^beta";
  if (found.sizes < 2)
    return "a needs at least 2 distinct FLOPs per token F, found 1; add cells at another scale";
  if (found.horizons < 3)
    return "K and c need at least 3 distinct horizons D, found " + std::to_string(found.horizons) +
           "; add branches of other lengths";
  if (found.models < 4)
    return "A, a and b need at least 4 cells that differ in (F, S), found " +
           std::to_string(found.models) + "; add cells";
  if (found.endpoints < 7)
    return "6 coefficients need at least 7 endpoints, found " + std::to_string(found.endpoints) +
           "; add endpoints";
  return "";
}

/// The same for the five coefficients of the plain form.
inline std::string chinchilla_shortage(const variety& found) {
  if (found.sizes < 3)
    return "A and alpha need at least 3 distinct model sizes N, found " +
           std::to_string(found.sizes) + "; add models of other sizes";
  if (found.horizons < 3)
    return "B and beta need at least 3 distinct horizons D, found " +
           std::to_string(found.horizons) + "; add runs of other lengths";
  if (found.endpoints < 6)
    return "5 coefficients need at least 6 runs, found " + std::to_string(found.endpoints) +
           "; add runs";
  return "";
}

/// The same for E, A and K at given exponents (a fit of one domain).
inline std::string amplitude_shortage(const variety& found) {
  if (found.models < 2) return "A needs at least 2 cells that differ in (F, S), found 1; add cells";
  if (found.horizons < 2)
    return "K needs at least 2 distinct horizons D, found 1; add branches of other lengths";
  if (found.endpoints < 4)
    return "3 coefficients need at least 4 endpoints, found " + std::to_string(found.endpoints) +
           "; add endpoints";
  return "";
}

/// The first free coordinate that the endpoints leave undetermined at `at`, or -1: a pivot of the
/// scaled normal matrix below 1e-12, or a term that is below 1e-9 of the loss everywhere.
inline int undetermined_coordinate(const log_points& points, const position& at,
                                   const free_coordinates& free) {
  const std::size_t n = free.size();
  std::vector<double> normal(n * n, 0.0);
  double largest_model = 0;
  double largest_data = 0;
  for (std::size_t i = 0; i < points.size(); ++i) {
    const position response = log_loss_at(points, i, at).response;
    largest_model = std::max(largest_model, response[1]);
    largest_data = std::max(largest_data, response[2]);
    for (std::size_t r = 0; r < n; ++r)
      for (std::size_t c = 0; c < n; ++c)
        normal[r * n + c] += response[free[r]] * response[free[c]];
  }
  // Without its term a coefficient is free to wander: name the amplitude.
  if (largest_model < 1e-9) return 1;
  if (largest_data < 1e-9) return 2;
  std::vector<double> length(n);
  for (std::size_t r = 0; r < n; ++r) length[r] = std::sqrt(normal[r * n + r]);
  for (std::size_t r = 0; r < n; ++r) {
    // E may vanish (its term is then below the others' noise) without harm to the rest.
    if (!(length[r] > 0)) return free[r] == 0 ? -1 : static_cast<int>(free[r]);
    for (std::size_t c = 0; c < n; ++c) normal[r * n + c] /= length[r] * length[c];
  }
  // Cholesky: pivot r is what column r adds to the columns before it.
  for (std::size_t k = 0; k < n; ++k) {
    if (normal[k * n + k] < 1e-12) return static_cast<int>(free[k]);
    for (std::size_t r = k + 1; r < n; ++r) {
      const double factor = normal[r * n + k] / normal[k * n + k];
      for (std::size_t c = k; c < n; ++c) normal[r * n + c] -= factor * normal[k * n + c];
    }
  }
  return -1;
}

}  // namespace smelt::law
