// SPDX-License-Identifier: Apache-2.0
//
// Where the fits start. The objective has many local minima, so a fit is the best of many starts.
//
//   chinchilla_grid  the literal grid of Hoffmann et al. (2022): 5 x 5 x 5 x 6 x 6 = 4,500 points
//   projected_grid   a grid over the exponents only; given those the law is linear in E, A and K,
//                    and weighted least squares supplies them. Every start is then a plausible
//                    surface and a few dozen suffice.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <vector>

#include "smelt/law/objective.hpp"
#include "smelt/law/surface.hpp"

namespace smelt::law {

/// The 4,500 starts of Hoffmann et al.: log E in {-1 .. 1}, log A and log B in {0, 5 .. 25},
/// alpha and beta in {0, 0.5 .. 2}.
inline std::vector<chinchilla> chinchilla_grid() {
  std::vector<chinchilla> starts;
  starts.reserve(4500);
  for (int e = -2; e <= 2; ++e)
    for (int a = 0; a <= 25; a += 5)
      for (int b = 0; b <= 25; b += 5)
        for (int alpha = 0; alpha <= 4; ++alpha)
          for (int beta = 0; beta <= 4; ++beta)
            starts.push_back(
                {std::exp(0.5 * e), std::exp(a), std::exp(b), 0.5 * alpha, 0.5 * beta});
  return starts;
}

/// E, A and K by weighted linear least squares for given exponents at.[3..5], written into
/// at.[0..2]. Rows are divided by the observed loss, so relative errors count, as in the fit.
/// A term that comes out negative is set to a thousandth of the mean loss: a start, not a result.
inline position project(const log_points& points, position at) {
  std::array<std::array<double, 4>, 3> normal{};  // normal equations with the right-hand side
  for (std::size_t i = 0; i < points.size(); ++i) {
    const double weight = std::exp(-points.loss[i]);
    const std::array<double, 4> row{
        weight, weight * std::exp(at[4] * points.density[i] - at[3] * points.model_size[i]),
        weight * std::exp(-at[5] * points.tokens[i]), 1.0};
    for (std::size_t r = 0; r < 3; ++r)
      for (std::size_t c = 0; c < 4; ++c) normal[r][c] += row[r] * row[c];
  }
  // Gauss-Jordan with a ridge too small to matter where the system is regular (constant terms
  // at exponent zero make it singular).
  for (std::size_t r = 0; r < 3; ++r) normal[r][r] *= 1 + 1e-9;
  for (std::size_t pivot = 0; pivot < 3; ++pivot) {
    for (std::size_t r = 0; r < 3; ++r) {
      if (r == pivot) continue;
      const double factor = normal[r][pivot] / normal[pivot][pivot];
      for (std::size_t c = 0; c < 4; ++c) normal[r][c] -= factor * normal[pivot][c];
    }
  }
  double mean = 0;
  for (const double log_nats : points.loss) mean += std::exp(log_nats);
  mean /= static_cast<double>(points.size());
  for (std::size_t r = 0; r < 3; ++r) {
    const double term = normal[r][3] / normal[r][r];
    at[r] = std::log(std::isfinite(term) ? std::max(term, 1e-3 * mean) : 1e-3 * mean);
  }
  return at;
}

/// Starts for a surface: a and c in {0.12, 0.25, 0.5, 1}, b in {0, 0.15, 0.6}
/// (only 0 where `sparsity_varies` is false), with E, A and K projected. 48 points, or 16.
inline std::vector<position> projected_grid(const log_points& points, bool sparsity_varies) {
  constexpr std::array exponents{0.12, 0.25, 0.5, 1.0};
  constexpr std::array sparsity_exponents{0.0, 0.15, 0.6};
  std::vector<position> starts;
  for (const double a : exponents)
    for (const double c : exponents)
      for (const double b : sparsity_exponents) {
        if (b > 0 && !sparsity_varies) continue;
        starts.push_back(project(points, {0, 0, 0, a, b, c}));
      }
  return starts;
}

}  // namespace smelt::law
