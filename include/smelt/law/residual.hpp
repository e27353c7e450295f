// SPDX-License-Identifier: Apache-2.0
//
// The residual table of a fit: what the surface says at each endpoint against what was seen. The
// mean residual of a cell shows a run that was lucky or broken; residuals with a trend in F, S or D
// show a surface of the wrong form.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "smelt/law/endpoint.hpp"
#include "smelt/law/surface.hpp"

namespace smelt::law {

/// One line of the table.
struct residual_row {
  endpoint point;
  double predicted = 0;      ///< nats per token
  double residual_nats = 0;  ///< predicted - observed, nats: positive where the run beat the law
  double residual_log = 0;   ///< log predicted - log observed: the fit's own residual
};

/// Residuals of endpoints of one cell together.
struct cell_residual {
  std::string cell;
  std::int64_t endpoints = 0;
  double mean_nats = 0;   ///< signed mean of predicted - observed
  double worst_nats = 0;  ///< the one of largest size, with its sign
};

/// The table, one row per endpoint in their order. Endpoints that the fit left out may be passed.
inline std::vector<residual_row> residuals(std::span<const endpoint> points, const surface& law) {
  std::vector<residual_row> table;
  table.reserve(points.size());
  for (const endpoint& point : points) {
    const double predicted = law.loss(point.flops_per_token, point.sparsity, point.tokens);
    table.push_back({point, predicted, predicted - point.loss, std::log(predicted / point.loss)});
  }
  return table;
}

/// The table summed up by cell, in order of first appearance.
inline std::vector<cell_residual> residuals_by_cell(std::span<const residual_row> table) {
  std::vector<cell_residual> cells;
  for (const residual_row& row : table) {
    auto found = std::find_if(cells.begin(), cells.end(), [&](const cell_residual& known) {
      return known.cell == row.point.cell;
    });
    if (found == cells.end()) found = cells.insert(cells.end(), {row.point.cell, 0, 0, 0});
    ++found->endpoints;
    found->mean_nats += row.residual_nats;
    if (std::fabs(row.residual_nats) > std::fabs(found->worst_nats)) {
      found->worst_nats = row.residual_nats;
    }
  }
  for (cell_residual& cell : cells) cell.mean_nats /= static_cast<double>(cell.endpoints);
  return cells;
}

}  // namespace smelt::law
