// SPDX-License-Identifier: Apache-2.0
//
// What a fit minimises: the SUM over endpoints of Huber's loss of the log residual,
//
//   r_i = log L(F_i, S_i, D_i) - log loss_i,   objective = sum_i w_i huber(r_i).
//
// The sum, not the mean: dividing by the number of endpoints shrinks the gradient below any fixed
// stopping threshold and the optimizer stops early, far from the optimum.
//
// log L is a log-sum-exp of three lines in the logs of the inputs,
//
//   log L = lse( e,  m + b (s - s0) - a (f - f0),  k - c (d - d0) )
//   f = log F, s = log(1 - S), d = log D; f0, s0, d0 their means over the endpoints
//   e = log E, m = log of the model term at the centre, k = log of the data term at the centre
//
// so that E, A and K stay positive without bounds. The centring takes away the near-perfect
// correlation between log A and a (and log K and c) that otherwise makes L-BFGS crawl.
//
// The plain Chinchilla form is the same function with F = N, S = 0 and b held at zero.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <span>
#include <vector>

#include "smelt/law/endpoint.hpp"
#include "smelt/law/huber.hpp"
#include "smelt/law/surface.hpp"

namespace smelt::law {

/// A point in the fit's own coordinates: e, m, k, a, b, c as in the comment above.
using position = std::array<double, coefficient_count>;

/// The endpoints of one fit as logarithms, in columns, with the means they are centred on.
struct log_points {
  std::vector<double> model_size;  ///< f - f0, from F in FLOPs per token (or N in parameters)
  std::vector<double> density;     ///< s - s0, from 1 - S
  std::vector<double> tokens;      ///< d - d0, from D in tokens
  std::vector<double> loss;        ///< log of the loss in nats, not centred
  double mean_model_size = 0;      ///< f0
  double mean_density = 0;         ///< s0
  double mean_tokens = 0;          ///< d0

  std::size_t size() const { return loss.size(); }

  /// Adds one endpoint (all positive, S below one); `centre` must follow the last.
  void add(double size_of_model, double sparsity, double token_count, double nats) {
    model_size.push_back(std::log(size_of_model));
    density.push_back(std::log1p(-sparsity));
    tokens.push_back(std::log(token_count));
    loss.push_back(std::log(nats));
  }

  /// Moves the origin of the three inputs to their means.
  void centre() {
    mean_model_size += centre_column(model_size);
    mean_density += centre_column(density);
    mean_tokens += centre_column(tokens);
  }

  /// The fit's coordinates of a surface; E, A and K must be positive.
  position position_of(const surface& law) const {
    return {std::log(law.E),
            std::log(law.A) + law.b * mean_density - law.a * mean_model_size,
            std::log(law.K) - law.c * mean_tokens,
            law.a,
            law.b,
            law.c};
  }

  /// The surface at a point in the fit's coordinates.
  surface surface_at(const position& at) const {
    return {std::exp(at[0]),
            std::exp(at[1] - at[4] * mean_density + at[3] * mean_model_size),
            std::exp(at[2] + at[5] * mean_tokens),
            at[3],
            at[4],
            at[5]};
  }

 private:
  static double centre_column(std::vector<double>& column) {
    double mean = 0;
    for (const double x : column) mean += x;
    mean /= static_cast<double>(std::max<std::size_t>(1, column.size()));
    for (double& x : column) x -= mean;
    return mean;
  }
};

/// Columns for a list of endpoints that `check_endpoints` has passed.
inline log_points log_points_of(std::span<const endpoint> points) {
  log_points result;
  for (const endpoint& p : points) result.add(p.flops_per_token, p.sparsity, p.tokens, p.loss);
  result.centre();
  return result;
}

/// log L at one endpoint and how it responds to each coordinate.
struct log_loss {
  double value;       ///< log of nats per token
  position response;  ///< d value / d coordinate; the first three are the shares of the terms
};

/// log L of endpoint `i` at `at`, with its analytic derivatives. Never overflows for finite input.
inline log_loss log_loss_at(const log_points& points, std::size_t i, const position& at) {
  const double f = points.model_size[i];
  const double s = points.density[i];
  const double d = points.tokens[i];
  const double model = at[1] + at[4] * s - at[3] * f;
  const double data = at[2] - at[5] * d;
  const double top = std::max({at[0], model, data});
  const double share_e = std::exp(at[0] - top);
  const double share_model = std::exp(model - top);
  const double share_data = std::exp(data - top);
  const double sum = share_e + share_model + share_data;
  const double e = share_e / sum;
  const double m = share_model / sum;
  const double k = share_data / sum;
  return {top + std::log(sum), {e, m, k, -m * f, m * s, -k * d}};
}

/// The objective over one set of endpoints, as a function of the fit's coordinates.
struct objective {
  const log_points* points;         ///< not owned
  double delta;                     ///< Huber's threshold, log nats
  std::span<const double> weights;  ///< multiplicity of each endpoint; empty: one each

  /// The sum of Huber's losses at `at`; fills its gradient.
  double operator()(const position& at, position& gradient) const {
    gradient.fill(0);
    double sum = 0;
    for (std::size_t i = 0; i < points->size(); ++i) {
      const double weight = weights.empty() ? 1.0 : weights[i];
      // A cell that a bootstrap draw left out costs nothing and must not be able to add 0 * inf.
      if (weight == 0) continue;
      const log_loss predicted = log_loss_at(*points, i, at);
      const huber_loss h = huber(predicted.value - points->loss[i], delta);
      sum += weight * h.value;
      for (std::size_t j = 0; j < coefficient_count; ++j) {
        gradient[j] += weight * h.slope * predicted.response[j];
      }
    }
    return sum;
  }
};

}  // namespace smelt::law
