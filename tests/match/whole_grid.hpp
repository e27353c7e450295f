// SPDX-License-Identifier: Apache-2.0
//
// The optimum by plain loops over every hidden size, head size, number of heads, expert width and
// number of experts: nothing is solved, skipped or bounded, and the budgets are the paper's
// formulas written out again. What match/grid.hpp must find.
#pragma once

#include <cstdint>
#include <tuple>

#include "smelt/match/grid.hpp"

namespace whole_grid {

using smelt::detail::search_space;

struct point {
  std::int64_t hidden = 0, query_heads = 0, kv_heads = 0, head_dim = 0, width = 0, experts = 0;
};

// Paper section 3, with the query and key gains of qk_norm and a shared or dense feed-forward.
struct cost {
  std::int64_t flops = 0, parameters = 0, kv_elements = 0;
};

inline std::int64_t shared_of(const search_space& space, std::int64_t width) {
  const std::int64_t share = space.ffn.shared_width;
  if (share % space.ffn.width == 0) return share / space.ffn.width * width;
  const std::int64_t step = space.width_multiple;
  const std::int64_t steps = (share * width / space.ffn.width + step / 2) / step;
  return (steps > 1 ? steps : 1) * step;
}

inline cost cost_of(const search_space& space, const point& at) {
  const std::int64_t h = at.hidden, q = at.query_heads * at.head_dim,
                     kv = at.kv_heads * at.head_dim;
  const bool dense = space.ffn.experts == 0;
  const std::int64_t fs = dense || space.ffn.shared_width == 0 ? 0 : shared_of(space, at.width);
  const std::int64_t active = dense ? at.width : space.ffn.top_k * at.width + fs;
  const std::int64_t stored = dense ? at.width : at.experts * at.width + fs;
  std::int64_t gains = 2 * h;
  if (space.attention.norm == smelt::qk_norm_kind::per_head) gains += 2 * at.head_dim;
  if (space.attention.norm == smelt::qk_norm_kind::full_width) gains += q + kv;
  cost c;
  c.parameters = space.layers * (2 * h * q + 2 * h * kv + gains + h * at.experts + 3 * h * stored);
  c.flops = 6 * space.tokens *
                (space.executed_layers * (2 * h * q + h * at.experts + 3 * h * active) +
                 space.cached_layers * 2 * h * kv) +
            12 * space.executed_layers * q * space.pairs;
  c.kv_elements = 2 * kv * space.cached_layers;
  return c;
}

// In millionths of the tolerance, rounded up.
inline std::int64_t millionths(std::int64_t a, std::int64_t b, std::int64_t permille) {
  __extension__ using wide = unsigned __int128;
  const wide apart = static_cast<wide>(a < b ? b - a : a - b) * 1'000'000'000u;
  const wide unit = static_cast<wide>(a) * static_cast<wide>(permille);
  return static_cast<std::int64_t>(apart / unit + (apart % unit != 0 ? 1 : 0));
}

struct best_of_grid {
  const search_space& space;
  smelt::detail::preferences prefer;
  bool any = false;
  point best{};
  std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t,
             std::int64_t, std::int64_t, std::int64_t>
      best_key{};

  void ask(const point& at) {
    const cost c = cost_of(space, at);
    const std::int64_t f = millionths(space.target.flops, c.flops, space.flops_permille);
    const std::int64_t p =
        millionths(space.target.parameters, c.parameters, space.parameters_permille);
    const std::int64_t kv = millionths(space.target.kv_elements, c.kv_elements, space.kv_permille);
    const std::int64_t rest = f > p ? f : p;
    const std::int64_t worst = rest > kv ? rest : kv;
    if (worst > 1'000'000) return;
    const std::int64_t moved = at.width * space.hidden - space.ffn.width * at.hidden;
    const std::int64_t ratio =
        (moved < 0 ? -moved : moved) * 1'000'000 / (space.ffn.width * at.hidden);
    const std::int64_t heads = at.kv_heads - space.attention.kv_heads;
    const auto key = std::make_tuple(worst, ratio, rest, heads < 0 ? -heads : heads, -at.head_dim,
                                     -at.hidden, -at.width, -at.kv_heads, at.experts);
    if (any && key >= best_key) return;
    any = true;
    best = at;
    best_key = key;
  }

  void experts(point at) {
    if (space.ffn.experts == 0) return ask(at);
    for (at.experts = 0;; at.experts += prefer.experts_multiple) {
      if (at.experts < space.ffn.top_k) continue;
      if (cost_of(space, at).parameters > 2 * space.target.parameters) return;
      ask(at);
    }
  }

  void run() {
    const std::int64_t q0 = space.attention.query_heads * space.attention.head_dim;
    const std::int64_t d0 = space.attention.head_dim;
    point at;
    for (at.hidden = space.hidden_multiple; at.hidden <= 2 * space.hidden;
         at.hidden += space.hidden_multiple) {
      if (4 * at.hidden < space.hidden / 4 * 4) continue;
      for (at.head_dim = prefer.head_size_multiple;
           at.head_dim <= d0 || at.head_dim <= prefer.head_size_multiple;
           at.head_dim += prefer.head_size_multiple) {
        if (at.head_dim < d0 / 2) continue;
        if (space.attention.rope_base != 0 && at.head_dim % 2 != 0) continue;
        for (at.query_heads = 1; at.query_heads * at.head_dim <= 2 * q0; ++at.query_heads) {
          // hidden = q H0 / q0, or within the band of it (in whole elements, as the search has it).
          const std::int64_t q = at.query_heads * at.head_dim;
          const std::int64_t slack = q * space.hidden / q0 * prefer.query_band_permille / 1000;
          const std::int64_t apart = at.hidden * q0 - q * space.hidden;
          if ((apart < 0 ? -apart : apart) > slack * q0 + (slack > 0 ? q0 - 1 : 0)) continue;
          if (slack > 0 && at.hidden > q * space.hidden / q0 + slack) continue;
          if (slack > 0 && at.hidden < (q * space.hidden + q0 - 1) / q0 - slack) continue;
          for (at.kv_heads = 1; at.kv_heads <= at.query_heads; ++at.kv_heads) {
            if (at.query_heads % at.kv_heads != 0) continue;
            if (millionths(space.target.kv_elements,
                           2 * at.kv_heads * at.head_dim * space.cached_layers,
                           space.kv_permille) > 1'000'000)
              continue;
            for (at.width = prefer.width_multiple;; at.width += prefer.width_multiple) {
              const std::int64_t moved = at.width * space.hidden - space.ffn.width * at.hidden;
              const std::int64_t limit = space.width_band_permille * space.ffn.width * at.hidden;
              if (moved * 1000 > limit) break;
              if (moved * 1000 < -limit) continue;
              experts(at);
            }
          }
        }
      }
    }
  }
};

}  // namespace whole_grid
