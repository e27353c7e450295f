// SPDX-License-Identifier: Apache-2.0
//
// One finished training run as a point of the law: how much it cost per token (F), how sparse it
// is (S), how long it trained (D) and the loss it reached. What the fits read.
//
// A cell is one trained model, that is one (scale, sparsity); its endpoints are the branches of
// one run at several horizons D and therefore share their luck. The bootstrap resamples cells,
// never single endpoints (paper, section 5).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "smelt/error.hpp"
#include "smelt/law/message.hpp"

namespace smelt::law {

/// One endpoint of one run.
struct endpoint {
  double flops_per_token = 0;  ///< F, training FLOPs per token; about 1e9 at 200M
  double sparsity = 0;         ///< S in [0, 1): 0.95, not 95; 0 is dense
  double tokens = 0;           ///< D, training tokens
  double loss = 0;             ///< validation cross-entropy, nats per token
  std::string architecture;    ///< one name per fit, such as "baseline"
  std::string cell;            ///< which trained model; endpoints of a cell are resampled together
  std::string domain;          ///< "" for the overall loss, else the group the loss was taken on
  std::int64_t row = 0;        ///< 1-based line of the file it came from; 0 if from no file
};

namespace detail {

inline void check_positive(const endpoint& point, std::int64_t index, double value,
                           const char* quantity) {
  // The comparison is written so that NaN fails it too.
  if (value > 0 && std::isfinite(value)) return;
  throw error(place_text(point.row, index) + ": " + quantity + " is " + number_text(value) +
              ", expected a positive finite number; repair or remove this endpoint");
}

}  // namespace detail

/// Demands that one endpoint has values: F, D and loss positive and finite, S in [0, 1), a cell.
/// To be asked before endpoints are left out by rule, or a rule would hide a broken row.
/// @throws smelt::error naming the row (or place `index` in its list, from 0) and the quantity.
inline void check_endpoint(const endpoint& point, std::int64_t index) {
  detail::check_positive(point, index, point.flops_per_token, "FLOPs per token F");
  detail::check_positive(point, index, point.tokens, "tokens D");
  detail::check_positive(point, index, point.loss, "loss");
  if (!(point.sparsity >= 0 && point.sparsity < 1)) {
    throw error(place_text(point.row, index) + ": sparsity S is " + number_text(point.sparsity) +
                ", expected a fraction in [0, 1); write 0.95 for 95 %");
  }
  if (point.cell.empty()) {
    throw error(place_text(point.row, index) + ": the cell has no name; name the run it belongs " +
                "to, the bootstrap resamples whole cells");
  }
}

/// Demands that every endpoint can enter one fit: values as in `check_endpoint`, one architecture
/// and one domain throughout, no (F, S, D) twice.
/// @throws smelt::error naming the first offending row and the quantity.
inline void check_endpoints(std::span<const endpoint> points) {
  if (points.empty())
    throw error("law: no endpoints, expected at least one; nothing can be fitted");
  std::map<std::tuple<double, double, double>, std::size_t> seen;
  for (std::size_t i = 0; i < points.size(); ++i) {
    const endpoint& point = points[i];
    const auto index = static_cast<std::int64_t>(i);
    const std::string place = place_text(point.row, index);
    check_endpoint(point, index);
    if (point.architecture != points[0].architecture) {
      throw error(place + ": architecture '" + point.architecture + "' among endpoints of '" +
                  points[0].architecture + "'; fit one architecture at a time");
    }
    if (point.domain != points[0].domain) {
      throw error(place + ": domain '" + point.domain + "' among endpoints of domain '" +
                  points[0].domain + "'; fit one domain at a time");
    }
    const auto [first, fresh] =
        seen.try_emplace({point.flops_per_token, point.sparsity, point.tokens}, i);
    if (!fresh) {
      throw error(place + ": repeats " +
                  place_text(points[first->second].row, static_cast<std::int64_t>(first->second)) +
                  " (same F, S and D); keep one of the two");
    }
  }
}

/// The endpoints for which `rule(endpoint)` is false, in their order: how cells are left out.
/// Example: `leave_out(points, dense)`, as the paper does.
template <class Rule>
std::vector<endpoint> leave_out(std::span<const endpoint> points, Rule&& rule) {
  std::vector<endpoint> kept;
  for (const endpoint& point : points) {
    if (!std::invoke(rule, point)) kept.push_back(point);
  }
  return kept;
}

/// The paper's rule for its own fit: cells with all experts active (S = 0) are left out.
inline bool dense(const endpoint& point) {
  return point.sparsity == 0;
}

/// The distinct cells in order of first appearance, and for each endpoint the index of its cell.
struct cell_index {
  std::vector<std::string> names;
  std::vector<std::size_t> of_point;
};

/// Numbers the cells of a list of endpoints. No errors: an empty list has no cells.
inline cell_index index_cells(std::span<const endpoint> points) {
  cell_index result;
  std::map<std::string, std::size_t> number;
  for (const endpoint& point : points) {
    const auto [entry, fresh] = number.try_emplace(point.cell, result.names.size());
    if (fresh) result.names.push_back(point.cell);
    result.of_point.push_back(entry->second);
  }
  return result;
}

}  // namespace smelt::law
