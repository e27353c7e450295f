// SPDX-License-Identifier: Apache-2.0
//
// The walk that finds the best twin in a search space.
//
// A whole grid would pass the limits of constant evaluation (about 200,000 cheap candidates on
// clang). So the walk goes by KV cache, query heads and hidden, skips what does not divide or
// cannot win, and solves the number of experts in closed form, parameters being linear in it:
//
//   experts = (parameters - attention - norms - shared expert) / (router column + 3 H f)
//
// Every bound below is an outward one: it may keep a candidate that cannot win, never drop one that
// can. tests/match compares the result with a plain walk of the whole grid.
#pragma once

#include <cstdint>

#include "smelt/match/search_space.hpp"

namespace smelt {

namespace detail {

// Walks the grid of one set of preferences.
class grid_walk {
 public:
  constexpr grid_walk(const search_space& grid, const preferences& wish)
      : space(grid),
        prefer(wish),
        top_k(grid.ffn.is_dense() ? 1 : grid.ffn.top_k),
        fewest(grid.ffn.is_dense() ? 0 : ceil_to(grid.ffn.top_k, wish.experts_multiple)) {}

  // The best twin whose mismatches are all at most `worst`; the empty candidate if there is none.
  constexpr candidate best(std::int64_t worst) {
    limit_to(worst);
    // The better KV caches first: once a twin is as good as its cache allows, no worse cache needs
    // a look.
    for (std::int64_t kv_to = worst / 4; kv_seen < worst_so_far && !is_done(); kv_to *= 2)
      walk_caches(kv_to);
    return found;
  }

  // Some twin whose mismatches are all at most `worst`: for the error that names it.
  constexpr candidate any(std::int64_t worst) {
    stop_early = true;
    return best(worst);
  }

  // Whether some widths left nothing to ask but the number of experts.
  constexpr bool asked_experts() const { return widths_seen; }

 private:
  const search_space& space;
  preferences prefer;
  std::int64_t top_k;   // 1 for a dense feed-forward: a token passes through its one width
  std::int64_t fewest;  // experts; 0 for a dense feed-forward
  candidate found{};
  std::int64_t kv_seen = -1;  // caches off by no more than this have been walked
  bool widths_seen = false;
  bool stop_early = false;
  // What can still win: the mismatch of the best twin so far, and what it means in each budget.
  std::int64_t worst_so_far = 0;
  std::int64_t flops_least = 0;
  std::int64_t flops_most = 0;
  std::int64_t parameters_least = 0;
  std::int64_t parameters_most = 0;

  constexpr bool is_done() const { return stop_early && found.exists(); }

  constexpr void limit_to(std::int64_t worst) {
    worst_so_far = worst;
    const std::int64_t flops = allowance(space.target.flops, space.flops_permille, worst);
    flops_least = space.target.flops - flops;
    flops_most = space.target.flops + flops;
    const std::int64_t parameters =
        allowance(space.target.parameters, space.parameters_permille, worst);
    parameters_least = space.target.parameters - parameters;
    parameters_most = space.target.parameters + parameters;
  }

  // All head sizes and kv heads whose KV cache is off by more than kv_seen, up to kv_to.
  constexpr void walk_caches(std::int64_t kv_to) {
    const std::int64_t target = space.target.kv_elements;
    const std::int64_t slack = allowance(target, space.kv_permille, kv_to);
    const std::int64_t step = prefer.head_size_multiple;
    for (std::int64_t d = ceil_to(space.smallest_head(), step);
         d <= larger(space.attention.head_dim, step); d += step) {
      if (space.attention.rope_base != 0 && d % 2 != 0) continue;  // rotation turns pairs
      const std::int64_t each = 2 * d * space.cached_layers;       // elements per kv head
      const std::int64_t most = smaller((target + slack) / each, space.largest_query() / d);
      for (std::int64_t heads = larger((target - slack) / each, 1); heads <= most; ++heads) {
        const std::int64_t off = mismatch_millionths(target, heads * each, space.kv_permille);
        if (off > kv_seen && off <= kv_to && off <= worst_so_far && !is_done())
          walk_heads(d, heads, off);
      }
    }
    kv_seen = kv_to;
  }

  // All numbers of query heads, multiples of the kv heads, for one head size and number of kv
  // heads.
  constexpr void walk_heads(std::int64_t head_dim, std::int64_t kv_heads, std::int64_t kv_off) {
    attention_shape attention = space.attention;
    attention.head_dim = head_dim;
    attention.kv_heads = kv_heads;
    const std::int64_t most = space.largest_query() / head_dim;
    for (std::int64_t heads = kv_heads; heads <= most; heads += kv_heads) {
      attention.query_heads = heads;
      if (!walk_hidden(attention, kv_off)) return;
    }
  }

  // All hidden sizes whose ratio to the query width is the Baseline's, or lies in its band; false
  // if even the narrowest has too many FLOPs, as it has with more query heads.
  constexpr bool walk_hidden(const attention_shape& attention, std::int64_t kv_off) {
    // hidden / query width = ideal / (ratio * query width), in whole numbers.
    const std::int64_t ideal = attention.query_width() * space.hidden;
    const std::int64_t ratio = space.attention.query_width();
    const std::int64_t slack = ideal / ratio * prefer.query_band_permille / 1000;
    const std::int64_t low =
        ceil_to(larger((ideal + ratio - 1) / ratio - slack, space.smallest_hidden()),
                space.hidden_multiple);
    const std::int64_t high = smaller(ideal / ratio + slack, space.largest_hidden());
    if (low > high) return true;
    const linear_budgets line(space, attention);
    // Budgets grow with hidden: bisect for the first that is not too small with all else at its
    // largest; walk_widths says where it is too large with all else at its smallest.
    const std::int64_t step = space.hidden_multiple;
    const std::int64_t experts = line.flops_per_expert * hidden_times_experts(line, low);
    std::int64_t first = 0;
    for (std::int64_t past = (high - low) / step + 1; first < past;) {
      const std::int64_t middle = (first + past) / 2;
      if (is_too_small(line.at(low + middle * step), low + middle * step, experts))
        first = middle + 1;
      else
        past = middle;
    }
    for (std::int64_t hidden = low + first * step; hidden <= high; hidden += step)
      if (!walk_widths(hidden, attention, kv_off, line.at(hidden))) return hidden > low;
    return true;
  }

  // An upper bound of hidden * experts for all hidden sizes from `hidden` up, by the parameters.
  constexpr std::int64_t hidden_times_experts(const linear_budgets& line,
                                              std::int64_t hidden) const {
    if (space.ffn.is_dense()) return 0;
    return larger(parameters_most - line.parameters, 0) /
           (line.parameters_per_expert +
            line.parameters_per_width * narrowest(hidden, space.width_band_permille * 1000));
  }

  // With the widest experts; `experts` are the FLOPs of their router columns. Parameters of a
  // mixture are never too few, because experts are free.
  constexpr bool is_too_small(const linear_budgets& line, std::int64_t hidden,
                              std::int64_t experts) const {
    const std::int64_t width = widest(hidden, space.width_band_permille * 1000);
    const std::int64_t flops =
        line.flops + experts + line.flops_per_width * (top_k * width + space.shared_width(width));
    return flops < flops_least ||
           (space.ffn.is_dense() &&
            line.parameters + line.parameters_per_width * width < parameters_least);
  }

  // Limits of the expert width in a band of millionths, rounded outwards.
  constexpr std::int64_t narrowest(std::int64_t hidden, std::int64_t band_millionths) const {
    const std::int64_t ideal = space.ffn.width * hidden / space.hidden;
    return larger(ideal - (ideal + 1) * band_millionths / 1'000'000 - 1, 1);
  }
  constexpr std::int64_t widest(std::int64_t hidden, std::int64_t band_millionths) const {
    const std::int64_t ideal = space.ffn.width * hidden / space.hidden + 1;
    return ideal + ideal * band_millionths / 1'000'000 + 1;
  }

  // All expert widths in the band, for one attention and hidden size; false if even the narrowest
  // has too many FLOPs, as it has with every wider hidden. The loop begins and ends where too few
  // FLOPs with the most experts, or too many with the fewest, rule a width out.
  constexpr bool walk_widths(std::int64_t hidden, const attention_shape& attention,
                             std::int64_t kv_off, const linear_budgets& line) {
    const std::int64_t same_ratio = space.ffn.width * hidden;  // times the Baseline's hidden
    const std::int64_t low = narrowest(hidden, band(kv_off));
    // The widest: what the FLOPs leave for top_k experts, and the parameters for the fewest. A
    // dense width is stored once, and its parameters bound it from below too.
    const std::int64_t flops_left = flops_most - line.flops - line.flops_per_expert * fewest;
    const std::int64_t flops_each = line.flops_per_width * top_k;
    if (flops_left < flops_each * narrowest(hidden, space.width_band_permille * 1000)) return false;
    const std::int64_t stored = line.parameters_per_width * larger(fewest, 1);
    const std::int64_t parameters_left =
        parameters_most - line.parameters - line.parameters_per_expert * fewest;
    const std::int64_t high = smaller(widest(hidden, band(kv_off)),
                                      smaller(flops_left / flops_each, parameters_left / stored));
    if (low > high) return true;
    // The narrowest: what the FLOPs lack when experts and shared expert are as large as can be.
    const std::int64_t flops_short = flops_least - line.flops -
                                     line.flops_per_expert * most_experts(line, low, 0) -
                                     line.flops_per_width * space.shared_width(high);
    const std::int64_t parameters_short =
        space.ffn.is_dense() ? parameters_least - line.parameters : 0;
    const std::int64_t needed =
        larger(low, larger(flops_short / flops_each, parameters_short / stored));
    candidate twin{.hidden = hidden,
                   .query_heads = attention.query_heads,
                   .kv_heads = attention.kv_heads,
                   .head_dim = attention.head_dim};
    twin.off.kv_elements = kv_off;
    twin.kv_heads_changed = magnitude(attention.kv_heads - space.attention.kv_heads);
    for (twin.width = ceil_to(needed, prefer.width_multiple); twin.width <= high;
         twin.width += prefer.width_multiple) {
      const std::int64_t moved = magnitude(twin.width * space.hidden - same_ratio);
      if (moved * 1000 > space.width_band_permille * same_ratio) continue;
      twin.ratio_millionths = moved * 1'000'000 / same_ratio;
      twin.shared_width = space.shared_width(twin.width);
      widths_seen = true;
      if (!solve_experts(line, twin) || !better(twin, found)) continue;
      found = twin;
      limit_to(twin.off.worst());
    }
    return true;
  }

  // In millionths. A cache that alone makes the worst mismatch can win by a nearer ratio only.
  constexpr std::int64_t band(std::int64_t kv_off) const {
    return found.exists() && kv_off == worst_so_far ? found.ratio_millionths + 1
                                                    : space.width_band_permille * 1000;
  }

  // The most experts that the parameters allow.
  constexpr std::int64_t most_experts(const linear_budgets& line, std::int64_t width,
                                      std::int64_t shared_width) const {
    if (space.ffn.is_dense()) return 0;
    return larger(0,
                  (parameters_most - line.parameters - line.parameters_per_width * shared_width) /
                      (line.parameters_per_expert + line.parameters_per_width * width));
  }

  constexpr std::int64_t flops_off(std::int64_t flops) const {
    return mismatch_millionths(space.target.flops, flops, space.flops_permille);
  }
  constexpr std::int64_t parameters_off(std::int64_t parameters) const {
    return mismatch_millionths(space.target.parameters, parameters, space.parameters_permille);
  }

  // Sets the best number of experts for the other widths, and what is off with it; false if it
  // cannot win.
  constexpr bool solve_experts(const linear_budgets& line, candidate& twin) const {
    const std::int64_t without_router =
        line.flops + line.flops_per_width * (top_k * twin.width + twin.shared_width);
    if (space.ffn.is_dense()) {
      twin.off.flops = flops_off(without_router);
      twin.off.parameters =
          parameters_off(line.parameters + line.parameters_per_width * twin.width);
      return twin.off.worst() <= worst_so_far;
    }
    // With the most experts that the parameters allow, parameters and FLOPs are at their largest:
    // if one is still too small, no number of experts will do.
    const std::int64_t multiple = prefer.experts_multiple;
    const std::int64_t without_experts =
        line.parameters + line.parameters_per_width * twin.shared_width;
    const std::int64_t each = line.parameters_per_expert + line.parameters_per_width * twin.width;
    const std::int64_t most =
        most_experts(line, twin.width, twin.shared_width) / multiple * multiple;
    if (most < fewest || without_experts + each * most < parameters_least ||
        without_router + line.flops_per_expert * most < flops_least)
      return false;
    // Parameters are linear in the experts: their zero, rounded down to the multiple.
    const std::int64_t zero = (space.target.parameters - without_experts) / each;
    const std::int64_t start = larger(zero / multiple * multiple, fewest);
    // The larger of two mismatches is convex in the experts: go downhill from there.
    const auto off = [&](std::int64_t experts) {
      return larger(flops_off(without_router + line.flops_per_expert * experts),
                    parameters_off(without_experts + each * experts));
    };
    std::int64_t experts = start;
    std::int64_t least = off(start);
    while (experts > fewest) {
      const std::int64_t next = off(experts - multiple);
      if (next > least) break;
      least = next;
      experts -= multiple;
    }
    while (experts >= start) {
      const std::int64_t next = off(experts + multiple);
      if (next >= least) break;
      least = next;
      experts += multiple;
    }
    if (least > worst_so_far) return false;
    twin.experts = experts;
    twin.off.flops = flops_off(without_router + line.flops_per_expert * experts);
    twin.off.parameters = parameters_off(without_experts + each * experts);
    return true;
  }
};

// The multiple after `multiple`, on the way down; 0 after the last.
constexpr std::int64_t halved(std::int64_t multiple, std::int64_t at_least) {
  return multiple == at_least ? 0 : larger(multiple / 2, at_least);
}

// The first twin inside the tolerances while experts and head size give way.
constexpr candidate first_match(const search_space& space, preferences wish) {
  for (wish.head_size_multiple = space.head_size_multiple; wish.head_size_multiple > 0;
       wish.head_size_multiple =
           halved(wish.head_size_multiple, space.head_size_multiple_at_least)) {
    for (wish.experts_multiple = space.experts_multiple; wish.experts_multiple > 0;
         wish.experts_multiple = halved(wish.experts_multiple, space.experts_multiple_at_least)) {
      grid_walk walk(space, wish);
      const candidate twin = walk.best(1'000'000);
      if (twin.exists()) return twin;
      // Where widths failed before their experts were asked, finer experts fail as well.
      if (space.ffn.is_dense() ||
          (!walk.asked_experts() && space.ffn.top_k % wish.experts_multiple == 0))
        break;
    }
  }
  return {};
}

// Preferences give way from the inside out: the multiple of experts is halved, then the multiple of
// the head size, then the ratio of query width to hidden gets a quarter of its band, then all of
// it, then the multiple of the expert width is halved (where it is a coarse step for the
// Baseline's). The first grid with a twin inside the tolerances decides. Without one, a near miss
// for the error to name.
constexpr candidate search(const search_space& space) {
  preferences wish{};
  for (wish.width_multiple = space.width_multiple; wish.width_multiple > 0;
       wish.width_multiple = halved(wish.width_multiple, space.width_multiple_at_least)) {
    for (std::int64_t part = 0; part <= 2; ++part) {  // none, a quarter, all of the band
      wish.query_band_permille = space.query_band_permille * part * part / 4;
      if (part > 0 && wish.query_band_permille == 0) break;
      const candidate twin = first_match(space, wish);
      if (twin.exists()) return twin;
    }
    if (wish.width_multiple * 64 <= space.ffn.width) break;
  }
  const preferences last{space.width_multiple, space.head_size_multiple_at_least,
                         space.experts_multiple_at_least, 0};
  for (std::int64_t worst = 4'000'000; worst <= 64'000'000; worst *= 4) {
    const candidate twin = grid_walk(space, last).any(worst);
    if (twin.exists()) return twin;
  }
  return {};
}
}  // namespace detail

}  // namespace smelt
