// SPDX-License-Identifier: Apache-2.0
//
// Laws by domain: the loss on code, on mathematics, on the web. One domain has too little signal
// for six coefficients of its own, so the exponents a, b, c of the overall fit are shared and only
// E, A and K are refitted (paper, section 5, "By domain").
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "smelt/error.hpp"
#include "smelt/law/endpoint.hpp"
#include "smelt/law/fit.hpp"
#include "smelt/law/identify.hpp"
#include "smelt/law/message.hpp"
#include "smelt/law/multi_start.hpp"
#include "smelt/law/surface.hpp"

namespace smelt::law {

/// The law of one domain.
struct domain_law {
  std::string domain;
  fitted_surface fitted;
};

/// Refits E, A and K to the endpoints of one architecture and domain, with a, b and c of `shared`.
/// @throws smelt::error naming the row, or the coefficient that the endpoints cannot determine.
inline fitted_surface fit_amplitudes(std::span<const endpoint> points, const surface& shared,
                                     const fit_options& options = {}) {
  check_endpoints(points);
  detail::check_delta(options.huber_delta);
  const std::string subject = detail::subject_of(points);
  const log_points logs = log_points_of(points);
  if (const std::string reason = amplitude_shortage(variety_of(logs)); !reason.empty()) {
    throw error(subject + ": " + reason);
  }
  // At given exponents the law is linear in E, A and K: the projection is nearly the answer, and
  // the two others guard against a term that it clamped.
  const position projected = project(logs, {0, 0, 0, shared.a, shared.b, shared.c});
  std::vector<position> starts{projected, projected, projected};
  starts[1][0] -= 0.5;
  starts[2][0] += 0.1;
  const free_coordinates free{0, 1, 2};
  const objective target{&logs, options.huber_delta, {}};
  const multi_start_result found =
      multi_start(target, free, starts, options.threads, options.progress);
  detail::check_end(logs, found.best, free, subject, coefficient_names);
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

/// One law per domain among the endpoints of one architecture, in order of first appearance;
/// endpoints without a domain (the overall loss) are passed over.
/// @throws smelt::error as `fit_amplitudes`.
inline std::vector<domain_law> fit_domains(std::span<const endpoint> points, const surface& shared,
                                           const fit_options& options = {}) {
  std::vector<std::string> domains;
  for (const endpoint& point : points) {
    if (point.domain.empty()) continue;
    if (std::find(domains.begin(), domains.end(), point.domain) == domains.end()) {
      domains.push_back(point.domain);
    }
  }
  std::vector<domain_law> laws;
  for (const std::string& domain : domains) {
    const auto own =
        leave_out(points, [&](const endpoint& point) { return point.domain != domain; });
    laws.push_back({domain, fit_amplitudes(own, shared, options)});
  }
  return laws;
}

}  // namespace smelt::law
