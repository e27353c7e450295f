// SPDX-License-Identifier: Apache-2.0
//
// The search against the paper's grid: for each of the twelve sparse Baselines a looped twin at
// least as tight as the paper's own row (the worst of FLOPs / 4 %, parameters / 1 %, KV / 4 %), and
// for each of the four fully active controls, whose rows the paper does not print, one inside the
// tolerances.
#include <smelt/arch/scales.hpp>
#include <smelt/match/search.hpp>

#include <concepts>

using namespace smelt;
using namespace smelt::paper;

namespace {

// Largest mismatches of the paper's own rows: FLOPs 3.9 %, parameters 1.0 %, KV 3.6 %.
template <class... Cells>
consteval mismatch loosest(cell_list<Cells...>) {
  mismatch largest;
  const auto take = [&](const mismatch& off) {
    if (off.flops > largest.flops) largest.flops = off.flops;
    if (off.parameters > largest.parameters) largest.parameters = off.parameters;
    if (off.kv_elements > largest.kv_elements) largest.kv_elements = off.kv_elements;
  };
  (take(mismatch_of<typename Cells::baseline, typename Cells::smelt>), ...);
  return largest;
}
constexpr mismatch printed = loosest(sparse_cells{});
// In tenths of a percent, from millionths of a tolerance in permille.
consteval std::int64_t tenths_of_percent(std::int64_t millionths, std::int64_t permille) {
  return (millionths * permille + 500'000) / 1'000'000;
}
static_assert(tenths_of_percent(printed.flops, 40) == 39);
static_assert(tenths_of_percent(printed.parameters, 10) == 10);
static_assert(tenths_of_percent(printed.kv_elements, 40) == 36);

template <class Cell>
consteval bool twin_is_as_tight() {
  using twin = matched<typename Cell::baseline, recipe::smelt>;
  static_assert(budget_matched<typename Cell::baseline, twin>);
  static_assert(executed_layers<twin> == executed_layers<typename Cell::smelt>);
  static_assert(twin::hidden_size < Cell::baseline::hidden_size);
  static_assert(twin::spans[0].ffn.experts > Cell::baseline::spans[0].ffn.experts);
  // Aligned as promised: experts, widths and hidden by 8, heads by 4, query width = hidden.
  static_assert(twin::spans[0].ffn.experts % 8 == 0 && twin::spans[0].ffn.width % 8 == 0);
  static_assert(twin::hidden_size % 8 == 0 && twin::attention.head_dim % 4 == 0);
  static_assert(twin::attention.query_width() == twin::hidden_size);
  return mismatch_of<typename Cell::baseline, twin>.worst() <=
         mismatch_of<typename Cell::baseline, typename Cell::smelt>.worst();
}
template <class... Cells>
consteval bool twins_are_as_tight(cell_list<Cells...>) {
  return (twin_is_as_tight<Cells>() && ...);
}
static_assert(twins_are_as_tight(sparse_cells{}));

// Where the paper's own row is the best of the grid, the search gives that row.
static_assert(std::same_as<matched<baseline_200m_s85, recipe::smelt>, smelt_200m<96>>);
static_assert(std::same_as<matched<baseline_100m_s95, recipe::smelt>, smelt_100m<288>>);

// Controls: 16 experts are too many and 8 too few, so the multiple of experts gives way.
template <class Control>
constexpr bool control_has_twin = budget_matched<Control, matched<Control, recipe::smelt>>&&
                                          matched<Control, recipe::smelt>::spans[0]
                                              .ffn.top_k == 8 &&
                                  (matched<Control, recipe::smelt>::spans[0].ffn.experts > 8) &&
                                  (matched<Control, recipe::smelt>::spans[0].ffn.experts < 16);
static_assert(control_has_twin<baseline_100m_s0> && control_has_twin<baseline_200m_s0>);
static_assert(control_has_twin<baseline_600m_s0> && control_has_twin<baseline_1600m_s0>);

}  // namespace
