// SPDX-License-Identifier: Apache-2.0
//
// What the search knows, as plain numbers: the Baseline, the twin's stack, tolerances, alignment,
// and the budgets of a twin as linear forms:
//
//   parameters = fixed + H (per hidden + per expert * E + per width * stored width)
//   FLOPs      = fixed + H (per hidden + per expert * E + per width * active width)
//
// with hidden H and experts E; the stored width is f E, the active one f top_k, shared expert in.
// Source: paper section 3.
#pragma once

#include <cstdint>

#include "smelt/budget/parameters.hpp"
#include "smelt/match/candidate.hpp"

namespace smelt {

namespace detail {
// Everything the search knows about Baseline, recipe and tolerances, as numbers.
struct search_space {
  // The Baseline.
  std::int64_t hidden = 0;
  attention_shape attention{};
  ffn_shape ffn{};
  budgets target{};
  // The twin's stack; cached layers are those with a KV cache of their own.
  std::int64_t layers = 0;
  std::int64_t executed_layers = 0;
  std::int64_t cached_layers = 0;
  // The mask.
  std::int64_t tokens = 0;
  std::int64_t pairs = 0;
  // Tolerances and alignment.
  std::int64_t flops_permille = 0;
  std::int64_t parameters_permille = 0;
  std::int64_t kv_permille = 0;
  std::int64_t hidden_multiple = 0;
  std::int64_t width_band_permille = 0;
  // Preferences, and how far each may give way.
  std::int64_t width_multiple = 0;
  std::int64_t width_multiple_at_least = 0;
  std::int64_t head_size_multiple = 0;
  std::int64_t head_size_multiple_at_least = 0;
  std::int64_t experts_multiple = 0;
  std::int64_t experts_multiple_at_least = 0;
  std::int64_t query_band_permille = 0;

  // The limits of the grid: heads shrink to no less than half, widths lie between a quarter and
  // twice the Baseline's.
  constexpr std::int64_t smallest_head() const { return larger(attention.head_dim / 2, 1); }
  constexpr std::int64_t largest_query() const { return 2 * attention.query_width(); }
  constexpr std::int64_t smallest_hidden() const { return larger(hidden / 4, 1); }
  constexpr std::int64_t largest_hidden() const { return 2 * hidden; }

  // A shared expert keeps its share of the routed width.
  constexpr std::int64_t shared_width(std::int64_t width) const {
    if (ffn.shared_width == 0) return 0;
    if (ffn.shared_width % ffn.width == 0) return ffn.shared_width / ffn.width * width;
    return larger((ffn.shared_width * width / ffn.width + width_multiple / 2) / width_multiple, 1) *
           width_multiple;
  }
};

// What gives way where no twin is found: see search().
struct preferences {
  std::int64_t width_multiple = 0;
  std::int64_t head_size_multiple = 0;
  std::int64_t experts_multiple = 0;
  std::int64_t query_band_permille = 0;
};

// The linear forms of all twins with one attention. The coefficients of parameters are evaluations
// of the accounting at H = 0 and 1; the verdict on what is found comes from the accounting of the
// finished type.
struct linear_budgets {
  std::int64_t parameters = 0;
  std::int64_t parameters_per_hidden = 0;
  std::int64_t parameters_per_expert = 0;
  std::int64_t parameters_per_width = 0;
  std::int64_t flops = 0;
  std::int64_t flops_per_hidden = 0;
  std::int64_t flops_per_expert = 0;
  std::int64_t flops_per_width = 0;

  constexpr linear_budgets(const search_space& space, const attention_shape& attention) {
    const parameter_split fixed = layer_parameters(0, attention, ffn_shape{}, 0);
    const parameter_split unit = layer_parameters(1, attention, ffn_shape{1, 1, 1, 0}, 1);
    parameters = space.layers * fixed.total();
    parameters_per_expert = space.layers * unit.router;
    parameters_per_width = space.layers * unit.experts;
    parameters_per_hidden =
        space.layers * unit.total() - parameters - parameters_per_expert - parameters_per_width;
    // Training: three times 2 FLOPs for each multiply-add.
    const std::int64_t q = attention.query_width();
    const std::int64_t kv = attention.kv_width();
    flops = space.pairs * 12 * space.executed_layers * q;
    flops_per_hidden = space.tokens * 12 * (space.executed_layers * q + space.cached_layers * kv);
    flops_per_expert = space.tokens * 6 * space.executed_layers;
    flops_per_width = space.tokens * 18 * space.executed_layers;
  }

  // The same forms at one hidden size: their `per hidden` is then zero.
  constexpr linear_budgets at(std::int64_t hidden) const {
    linear_budgets line = *this;
    line.parameters += hidden * parameters_per_hidden;
    line.parameters_per_hidden = 0;
    line.parameters_per_expert *= hidden;
    line.parameters_per_width *= hidden;
    line.flops += hidden * flops_per_hidden;
    line.flops_per_hidden = 0;
    line.flops_per_expert *= hidden;
    line.flops_per_width *= hidden;
    return line;
  }
};
}  // namespace detail

}  // namespace smelt
