// SPDX-License-Identifier: Apache-2.0
//
// Fits of the two laws to endpoints: sum of Huber's losses on log loss, multi-start L-BFGS
// (paper, section 5). A fit is a value; nothing is kept between calls.
//
//   const auto law = smelt::law::fit(smelt::law::leave_out(endpoints, smelt::law::dense));
//   law.coefficients.loss(1.33e9, 0.95, 62.4e9)   // nats per token
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "smelt/error.hpp"
#include "smelt/law/endpoint.hpp"
#include "smelt/law/identify.hpp"
#include "smelt/law/message.hpp"
#include "smelt/law/multi_start.hpp"
#include "smelt/law/objective.hpp"
#include "smelt/law/starts.hpp"
#include "smelt/law/surface.hpp"

namespace smelt::law {

/// How a fit is made. The defaults are the paper's.
struct fit_options {
  double huber_delta = 1e-3;     ///< threshold on the log residual, log nats
  std::int64_t threads = 0;      ///< 0: one per core; the result does not depend on it
  progress_function progress{};  ///< told the number of starts done
};

/// A surface with the record of how it was found.
struct fitted_surface {
  surface coefficients;
  double objective = 0;       ///< sum of Huber's losses, squared log nats
  double rmse_nats = 0;       ///< root mean square of predicted - observed loss, nats
  double rmse_log = 0;        ///< the same of the log losses, which is what the fit sees
  double huber_delta = 1e-3;  ///< threshold the fit used
  std::int64_t endpoints = 0;
  std::int64_t cells = 0;
  std::int64_t starts = 0;
  std::int64_t starts_at_best = 0;  ///< starts that ended within 0.1 % of the best objective
};

/// A plain law with the record of how it was found.
struct fitted_chinchilla {
  chinchilla coefficients;
  double objective = 0;  ///< sum of Huber's losses, squared log nats
  double rmse_nats = 0;
  double rmse_log = 0;
  std::int64_t endpoints = 0;
  std::int64_t starts = 0;
  std::int64_t starts_at_best = 0;
};

/// One run of the plain form.
struct chinchilla_point {
  double parameters = 0;  ///< N
  double tokens = 0;      ///< D
  double loss = 0;        ///< nats per token
  std::int64_t row = 0;   ///< 1-based line of the file it came from; 0 if from no file
};

namespace detail {

inline void check_delta(double delta) {
  if (delta > 0 && std::isfinite(delta)) return;
  throw error("law fit: Huber delta is " + number_text(delta) +
              ", expected a positive finite threshold in log nats such as 0.001");
}

/// Refuses an end that is no optimum of a determined problem; `names` are the six coefficients.
inline void check_end(const log_points& points, const descent& end, const free_coordinates& free,
                      const std::string& subject, std::span<const std::string_view> names) {
  const bool finite =
      std::all_of(end.at.begin(), end.at.end(), [](double x) { return std::isfinite(x); });
  if (!finite || !std::isfinite(end.value) || !end.converged) {
    throw error(subject +
                ": L-BFGS converged from no start; check the rows with the smallest and "
                "largest loss, or pass a larger Huber delta");
  }
  const int lost = undetermined_coordinate(points, end.at, free);
  if (lost >= 0) {
    throw error(subject + ": the endpoints do not determine coefficient " +
                std::string(names[static_cast<std::size_t>(lost)]) +
                "; vary F, S and D independently of each other");
  }
}

struct root_mean_squares {
  double nats;
  double log;
};

inline root_mean_squares residual_size(const log_points& points, const position& at) {
  double nats = 0;
  double logs = 0;
  for (std::size_t i = 0; i < points.size(); ++i) {
    const double predicted = log_loss_at(points, i, at).value;
    nats += std::pow(std::exp(predicted) - std::exp(points.loss[i]), 2);
    logs += std::pow(predicted - points.loss[i], 2);
  }
  const auto n = static_cast<double>(points.size());
  return {std::sqrt(nats / n), std::sqrt(logs / n)};
}

inline std::string subject_of(std::span<const endpoint> points) {
  std::string subject = "law fit";
  if (!points[0].architecture.empty()) subject += " of '" + points[0].architecture + "'";
  if (!points[0].domain.empty()) subject += " on domain '" + points[0].domain + "'";
  return subject;
}

}  // namespace detail

/// Fits the surface E + A (1-S)^b / F^a + K / D^c to the endpoints of one architecture.
/// Cells to be left out are left out before (`leave_out`).
/// @throws smelt::error naming the row (bad values, repeats, mixed architectures) or the
///         coefficient that the endpoints cannot determine.
inline fitted_surface fit(std::span<const endpoint> points, const fit_options& options = {}) {
  check_endpoints(points);
  detail::check_delta(options.huber_delta);
  const std::string subject = detail::subject_of(points);
  const log_points logs = log_points_of(points);
  if (const std::string reason = surface_shortage(variety_of(logs)); !reason.empty()) {
    throw error(subject + ": " + reason);
  }
  const objective target{&logs, options.huber_delta, {}};
  const multi_start_result found = multi_start(target, all_free(), projected_grid(logs, true),
                                               options.threads, options.progress);
  detail::check_end(logs, found.best, all_free(), subject, coefficient_names);
  const auto size = detail::residual_size(logs, found.best.at);
  return {logs.surface_at(found.best.at),
          found.best.value,
          size.nats,
          size.log,
          options.huber_delta,
          std::ssize(points),
          std::ssize(index_cells(points).names),
          found.starts,
          found.at_best};
}

/// Demands positive, finite N, D and loss in every run.
/// @throws smelt::error naming the row and the quantity.
inline void check_chinchilla_points(std::span<const chinchilla_point> points) {
  if (points.empty()) throw error("law: no runs, expected at least one; nothing can be fitted");
  for (std::size_t i = 0; i < points.size(); ++i) {
    endpoint place;
    place.row = points[i].row;
    const auto index = static_cast<std::int64_t>(i);
    detail::check_positive(place, index, points[i].parameters, "parameters N");
    detail::check_positive(place, index, points[i].tokens, "tokens D");
    detail::check_positive(place, index, points[i].loss, "loss");
  }
}

/// The runs without the `count` of highest loss (Epoch's rule for the Chinchilla points, with 5);
/// ties with the lowest loss left out are left out too. Order is kept.
inline std::vector<chinchilla_point> without_highest_losses(
    std::span<const chinchilla_point> points, std::int64_t count) {
  if (count <= 0) return {points.begin(), points.end()};
  std::vector<double> losses;
  for (const chinchilla_point& point : points) losses.push_back(point.loss);
  std::sort(losses.begin(), losses.end());
  std::vector<chinchilla_point> kept;
  if (count >= std::ssize(points)) return kept;
  const double limit = losses[losses.size() - static_cast<std::size_t>(count)];
  for (const chinchilla_point& point : points) {
    if (point.loss < limit) kept.push_back(point);
  }
  return kept;
}

/// Fits E + A / N^alpha + B / D^beta from `starts` (empty: a projected grid of 16; the literal
/// grid of 4,500 is `chinchilla_grid()`).
/// @throws smelt::error naming the row or the coefficient that the runs cannot determine.
inline fitted_chinchilla fit_chinchilla(std::span<const chinchilla_point> points,
                                        const fit_options& options = {},
                                        std::span<const chinchilla> starts = {}) {
  check_chinchilla_points(points);
  detail::check_delta(options.huber_delta);
  log_points logs;
  for (const chinchilla_point& p : points) logs.add(p.parameters, 0, p.tokens, p.loss);
  logs.centre();
  if (const std::string reason = chinchilla_shortage(variety_of(logs)); !reason.empty()) {
    throw error("law fit: " + reason);
  }
  // The plain form is the surface with S = 0 everywhere and b held still.
  static constexpr std::array<std::string_view, coefficient_count> names{"E",     "A", "B",
                                                                         "alpha", "",  "beta"};
  const free_coordinates free{0, 1, 2, 3, 5};
  std::vector<position> from;
  for (const chinchilla& s : starts) {
    from.push_back(logs.position_of({s.E, s.A, s.B, s.alpha, 0, s.beta}));
  }
  if (from.empty()) from = projected_grid(logs, false);
  const objective target{&logs, options.huber_delta, {}};
  const multi_start_result found =
      multi_start(target, free, from, options.threads, options.progress);
  detail::check_end(logs, found.best, free, "law fit", names);
  const surface law = logs.surface_at(found.best.at);
  const auto size = detail::residual_size(logs, found.best.at);
  return {{law.E, law.A, law.K, law.a, law.c},
          found.best.value,
          size.nats,
          size.log,
          std::ssize(points),
          found.starts,
          found.at_best};
}

}  // namespace smelt::law
