// SPDX-License-Identifier: Apache-2.0
//
// The paper's grid as static_asserts: every printed column of its two tables, to the printed
// digits, the derived FLOPs, the worked pair and the largest mismatches. Building this file is
// passing it.
//
// Figures are typed as the paper prints them; nothing here was computed by this library. Sparsity
// of the SMELT rows is the exception: the printed one refers to their own fully active cell, whose
// shape the paper leaves out, so the figures here refer to the Baseline control.
#include <smelt/arch/scales.hpp>
#include <smelt/budget/sparsity.hpp>

#include "printed.hpp"

namespace {

using namespace smelt;
using namespace smelt::paper;
using namespace printed;

template <class A, class Control>
constexpr double sparsity_percent = 100.0 * sparsity<A, Control>;

// Baseline: active parameters in billions, one traversal.
static_assert(rounds_to(active_billion<baseline_100m_s0>, .100, 3));
static_assert(rounds_to(active_billion<baseline_100m_s85>, .100, 3));
static_assert(rounds_to(active_billion<baseline_100m_s95>, .101, 3));
static_assert(rounds_to(active_billion<baseline_100m_s97>, .102, 3));
static_assert(rounds_to(active_billion<baseline_200m_s0>, .207, 3));
static_assert(rounds_to(active_billion<baseline_200m_s85>, .207, 3));
static_assert(rounds_to(active_billion<baseline_200m_s95>, .209, 3));
static_assert(rounds_to(active_billion<baseline_200m_s97>, .212, 3));
static_assert(rounds_to(active_billion<baseline_600m_s0>, .663, 3));
static_assert(rounds_to(active_billion<baseline_600m_s85>, .665, 3));
static_assert(rounds_to(active_billion<baseline_600m_s95>, .670, 3));
static_assert(rounds_to(active_billion<baseline_600m_s97>, .675, 3));
static_assert(rounds_to(active_billion<baseline_1600m_s0>, 1.629, 3));
static_assert(rounds_to(active_billion<baseline_1600m_s85>, 1.632, 3));
static_assert(rounds_to(active_billion<baseline_1600m_s95>, 1.641, 3));
static_assert(rounds_to(active_billion<baseline_1600m_s97>, 1.651, 3));

// Baseline: S in percent against the control; the control itself is 0.
static_assert(sparsity<baseline_100m_s0, baseline_100m_s0> == 0.0);
static_assert(rounds_to(sparsity_percent<baseline_100m_s85, baseline_100m_s0>, 86.0, 1));
static_assert(rounds_to(sparsity_percent<baseline_100m_s95, baseline_100m_s0>, 95.2, 1));
static_assert(rounds_to(sparsity_percent<baseline_100m_s97, baseline_100m_s0>, 97.2, 1));
static_assert(sparsity<baseline_200m_s0, baseline_200m_s0> == 0.0);
static_assert(rounds_to(sparsity_percent<baseline_200m_s85, baseline_200m_s0>, 84.3, 1));
static_assert(rounds_to(sparsity_percent<baseline_200m_s95, baseline_200m_s0>, 94.6, 1));
static_assert(rounds_to(sparsity_percent<baseline_200m_s97, baseline_200m_s0>, 96.9, 1));
static_assert(sparsity<baseline_600m_s0, baseline_600m_s0> == 0.0);
static_assert(rounds_to(sparsity_percent<baseline_600m_s85, baseline_600m_s0>, 84.5, 1));
static_assert(rounds_to(sparsity_percent<baseline_600m_s95, baseline_600m_s0>, 94.7, 1));
static_assert(rounds_to(sparsity_percent<baseline_600m_s97, baseline_600m_s0>, 96.9, 1));
static_assert(sparsity<baseline_1600m_s0, baseline_1600m_s0> == 0.0);
static_assert(rounds_to(sparsity_percent<baseline_1600m_s85, baseline_1600m_s0>, 84.5, 1));
static_assert(rounds_to(sparsity_percent<baseline_1600m_s95, baseline_1600m_s0>, 94.7, 1));
static_assert(rounds_to(sparsity_percent<baseline_1600m_s97, baseline_1600m_s0>, 96.9, 1));

// Baseline: total parameters in billions.
static_assert(rounds_to(parameters_billion<baseline_100m_s0>, .10, 2));
static_assert(rounds_to(parameters_billion<baseline_100m_s85>, .71, 2));
static_assert(rounds_to(parameters_billion<baseline_100m_s95>, 2.12, 2));
static_assert(rounds_to(parameters_billion<baseline_100m_s97>, 3.70, 2));
static_assert(rounds_to(parameters_billion<baseline_200m_s0>, .21, 2));
static_assert(rounds_to(parameters_billion<baseline_200m_s85>, 1.32, 2));
static_assert(rounds_to(parameters_billion<baseline_200m_s95>, 3.87, 2));
static_assert(rounds_to(parameters_billion<baseline_200m_s97>, 6.74, 2));
static_assert(rounds_to(parameters_billion<baseline_600m_s0>, .66, 2));
static_assert(rounds_to(parameters_billion<baseline_600m_s85>, 4.28, 2));
static_assert(rounds_to(parameters_billion<baseline_600m_s95>, 12.54, 2));
static_assert(rounds_to(parameters_billion<baseline_600m_s97>, 21.83, 2));
static_assert(rounds_to(parameters_billion<baseline_1600m_s0>, 1.63, 2));
static_assert(rounds_to(parameters_billion<baseline_1600m_s85>, 10.55, 2));
static_assert(rounds_to(parameters_billion<baseline_1600m_s95>, 30.94, 2));
static_assert(rounds_to(parameters_billion<baseline_1600m_s97>, 53.89, 2));

// SMELT: active parameters in billions, a shared layer once.
static_assert(rounds_to(active_billion<smelt_100m_s85>, .067, 3));
static_assert(rounds_to(active_billion<smelt_100m_s95>, .069, 3));
static_assert(rounds_to(active_billion<smelt_100m_s97>, .070, 3));
static_assert(rounds_to(active_billion<smelt_200m_s85>, .140, 3));
static_assert(rounds_to(active_billion<smelt_200m_s95>, .142, 3));
static_assert(rounds_to(active_billion<smelt_200m_s97>, .145, 3));
static_assert(rounds_to(active_billion<smelt_600m_s85>, .443, 3));
static_assert(rounds_to(active_billion<smelt_600m_s95>, .453, 3));
static_assert(rounds_to(active_billion<smelt_600m_s97>, .459, 3));
static_assert(rounds_to(active_billion<smelt_1600m_s85>, 1.081, 3));
static_assert(rounds_to(active_billion<smelt_1600m_s95>, 1.091, 3));
static_assert(rounds_to(active_billion<smelt_1600m_s97>, 1.103, 3));

// SMELT: S in percent against the Baseline control.
static_assert(rounds_to(sparsity_percent<smelt_100m_s85, baseline_100m_s0>, 85.6, 1));
static_assert(rounds_to(sparsity_percent<smelt_100m_s95, baseline_100m_s0>, 95.1, 1));
static_assert(rounds_to(sparsity_percent<smelt_100m_s97, baseline_100m_s0>, 97.1, 1));
static_assert(rounds_to(sparsity_percent<smelt_200m_s85, baseline_200m_s0>, 83.9, 1));
static_assert(rounds_to(sparsity_percent<smelt_200m_s95, baseline_200m_s0>, 94.5, 1));
static_assert(rounds_to(sparsity_percent<smelt_200m_s97, baseline_200m_s0>, 96.8, 1));
static_assert(rounds_to(sparsity_percent<smelt_600m_s85, baseline_600m_s0>, 84.5, 1));
static_assert(rounds_to(sparsity_percent<smelt_600m_s95, baseline_600m_s0>, 94.5, 1));
static_assert(rounds_to(sparsity_percent<smelt_600m_s97, baseline_600m_s0>, 96.8, 1));
static_assert(rounds_to(sparsity_percent<smelt_1600m_s85, baseline_1600m_s0>, 84.4, 1));
static_assert(rounds_to(sparsity_percent<smelt_1600m_s95, baseline_1600m_s0>, 94.7, 1));
static_assert(rounds_to(sparsity_percent<smelt_1600m_s97, baseline_1600m_s0>, 96.9, 1));

// SMELT: total parameters in billions.
static_assert(rounds_to(parameters_billion<smelt_100m_s85>, .71, 2));
static_assert(rounds_to(parameters_billion<smelt_100m_s95>, 2.12, 2));
static_assert(rounds_to(parameters_billion<smelt_100m_s97>, 3.70, 2));
static_assert(rounds_to(parameters_billion<smelt_200m_s85>, 1.32, 2));
static_assert(rounds_to(parameters_billion<smelt_200m_s95>, 3.89, 2));
static_assert(rounds_to(parameters_billion<smelt_200m_s97>, 6.78, 2));
static_assert(rounds_to(parameters_billion<smelt_600m_s85>, 4.31, 2));
static_assert(rounds_to(parameters_billion<smelt_600m_s95>, 12.44, 2));
static_assert(rounds_to(parameters_billion<smelt_600m_s97>, 21.70, 2));
static_assert(rounds_to(parameters_billion<smelt_1600m_s85>, 10.45, 2));
static_assert(rounds_to(parameters_billion<smelt_1600m_s95>, 30.90, 2));
static_assert(rounds_to(parameters_billion<smelt_1600m_s97>, 53.90, 2));

// SMELT: FLOPs over those of the Baseline of the same cell.
static_assert(rounds_to(flops_ratio<baseline_100m_s85, smelt_100m_s85>, 1.024, 3));
static_assert(rounds_to(flops_ratio<baseline_100m_s95, smelt_100m_s95>, 1.031, 3));
static_assert(rounds_to(flops_ratio<baseline_100m_s97, smelt_100m_s97>, 1.039, 3));
static_assert(rounds_to(flops_ratio<baseline_200m_s85, smelt_200m_s85>, 1.021, 3));
static_assert(rounds_to(flops_ratio<baseline_200m_s95, smelt_200m_s95>, 1.029, 3));
static_assert(rounds_to(flops_ratio<baseline_200m_s97, smelt_200m_s97>, 1.037, 3));
static_assert(rounds_to(flops_ratio<baseline_600m_s85, smelt_600m_s85>, 1.007, 3));
static_assert(rounds_to(flops_ratio<baseline_600m_s95, smelt_600m_s95>, 1.024, 3));
static_assert(rounds_to(flops_ratio<baseline_600m_s97, smelt_600m_s97>, 1.031, 3));
static_assert(rounds_to(flops_ratio<baseline_1600m_s85, smelt_1600m_s85>, 1.000, 3));
static_assert(rounds_to(flops_ratio<baseline_1600m_s95, smelt_1600m_s95>, 1.004, 3));
static_assert(rounds_to(flops_ratio<baseline_1600m_s97, smelt_1600m_s97>, 1.008, 3));

// SMELT: KV cache over that of the Baseline of the same cell.
static_assert(rounds_to(kv_ratio<baseline_100m_s85, smelt_100m_s85>, .964, 3));
static_assert(rounds_to(kv_ratio<baseline_100m_s95, smelt_100m_s95>, .964, 3));
static_assert(rounds_to(kv_ratio<baseline_100m_s97, smelt_100m_s97>, .964, 3));
static_assert(rounds_to(kv_ratio<baseline_200m_s85, smelt_200m_s85>, 1.031, 3));
static_assert(rounds_to(kv_ratio<baseline_200m_s95, smelt_200m_s95>, 1.031, 3));
static_assert(rounds_to(kv_ratio<baseline_200m_s97, smelt_200m_s97>, 1.031, 3));
static_assert(rounds_to(kv_ratio<baseline_600m_s85, smelt_600m_s85>, 1.031, 3));
static_assert(rounds_to(kv_ratio<baseline_600m_s95, smelt_600m_s95>, .984, 3));
static_assert(rounds_to(kv_ratio<baseline_600m_s97, smelt_600m_s97>, .984, 3));
static_assert(rounds_to(kv_ratio<baseline_1600m_s85, smelt_1600m_s85>, .984, 3));
static_assert(rounds_to(kv_ratio<baseline_1600m_s95, smelt_1600m_s95>, .984, 3));
static_assert(rounds_to(kv_ratio<baseline_1600m_s97, smelt_1600m_s97>, .984, 3));

// Training FLOPs per token in 1e9. Not printed by the paper but derived from what it prints, with
// an uncertainty of 0.1 % that comes from the mean document length.
static_assert(within(gigaflops_per_token<baseline_100m_s0>, .631, 0.001));
static_assert(within(gigaflops_per_token<baseline_100m_s85>, .633, 0.001));
static_assert(within(gigaflops_per_token<baseline_100m_s95>, .638, 0.001));
static_assert(within(gigaflops_per_token<baseline_100m_s97>, .644, 0.001));
static_assert(within(gigaflops_per_token<baseline_200m_s0>, 1.312, 0.001));
static_assert(within(gigaflops_per_token<baseline_200m_s85>, 1.317, 0.001));
static_assert(within(gigaflops_per_token<baseline_200m_s95>, 1.329, 0.001));
static_assert(within(gigaflops_per_token<baseline_200m_s97>, 1.342, 0.001));
static_assert(within(gigaflops_per_token<baseline_600m_s0>, 4.149, 0.001));
static_assert(within(gigaflops_per_token<baseline_600m_s85>, 4.161, 0.001));
static_assert(within(gigaflops_per_token<baseline_600m_s95>, 4.188, 0.001));
static_assert(within(gigaflops_per_token<baseline_600m_s97>, 4.219, 0.001));
static_assert(within(gigaflops_per_token<baseline_1600m_s0>, 10.10, 0.001));
static_assert(within(gigaflops_per_token<baseline_1600m_s85>, 10.12, 0.001));
static_assert(within(gigaflops_per_token<baseline_1600m_s95>, 10.17, 0.001));
static_assert(within(gigaflops_per_token<baseline_1600m_s97>, 10.23, 0.001));
static_assert(within(gigaflops_per_token<smelt_100m_s85>, .648, 0.001));
static_assert(within(gigaflops_per_token<smelt_100m_s95>, .658, 0.001));
static_assert(within(gigaflops_per_token<smelt_100m_s97>, .669, 0.001));
static_assert(within(gigaflops_per_token<smelt_200m_s85>, 1.345, 0.001));
static_assert(within(gigaflops_per_token<smelt_200m_s95>, 1.367, 0.001));
static_assert(within(gigaflops_per_token<smelt_200m_s97>, 1.392, 0.001));
static_assert(within(gigaflops_per_token<smelt_600m_s85>, 4.190, 0.001));
static_assert(within(gigaflops_per_token<smelt_600m_s95>, 4.290, 0.001));
static_assert(within(gigaflops_per_token<smelt_600m_s97>, 4.349, 0.001));
static_assert(within(gigaflops_per_token<smelt_1600m_s85>, 10.12, 0.001));
static_assert(within(gigaflops_per_token<smelt_1600m_s95>, 10.21, 0.001));
static_assert(within(gigaflops_per_token<smelt_1600m_s97>, 10.32, 0.001));

// The worked pair: 200M at S of about 95 %.
static_assert(rounds_to(gigaflops_per_token<baseline_200m_s95>, 1.33, 2));
static_assert(rounds_to(gigaflops_per_token<smelt_200m_s95>, 1.37, 2));
static_assert(rounds_to(100.0 * (flops_ratio<baseline_200m_s95, smelt_200m_s95> - 1.0), 2.9, 1));
static_assert(rounds_to(parameters_billion<baseline_200m_s95>, 3.87, 2));
static_assert(rounds_to(parameters_billion<smelt_200m_s95>, 3.89, 2));
static_assert(rounds_to(100.0 * (parameters_ratio<baseline_200m_s95, smelt_200m_s95> - 1.0), 0.4,
                        1));
static_assert(rounds_to(100.0 * (kv_ratio<baseline_200m_s95, smelt_200m_s95> - 1.0), 3.1, 1));

// By hand, with no formula of the library: 12 layers of 2 * 1280 * 1280 + 2 * 1280 * 256 for the
// projections, 2 * 1280 of gain, 1280 * 192 of router, 192 * 3 * 1280 * 432 of experts:
// 12 * (3'932'160 + 2'560 + 245'760 + 318'504'960).
static_assert(parameters<baseline_200m_s95> == 3'872'225'280);

// Largest mismatch over the 12 sparse cells, in percent: FLOPs, parameters, KV cache.
struct percents {
  double flops = 0.0;
  double parameters = 0.0;
  double kv = 0.0;
};

consteval double percent_apart(double ratio) {
  return 100.0 * (ratio < 1.0 ? 1.0 - ratio : ratio - 1.0);
}

consteval percents largest_mismatch() {
  percents worst;
  sparse_cells::for_each([&worst]<class Cell>(Cell) {
    using baseline = typename Cell::baseline;
    using looped = typename Cell::smelt;
    const percents here{percent_apart(flops_ratio<baseline, looped>),
                        percent_apart(parameters_ratio<baseline, looped>),
                        percent_apart(kv_ratio<baseline, looped>)};
    if (here.flops > worst.flops) worst.flops = here.flops;
    if (here.parameters > worst.parameters) worst.parameters = here.parameters;
    if (here.kv > worst.kv) worst.kv = here.kv;
  });
  return worst;
}

static_assert(rounds_to(largest_mismatch().flops, 3.9, 1));
static_assert(rounds_to(largest_mismatch().parameters, 1.0, 1));
static_assert(rounds_to(largest_mismatch().kv, 3.6, 1));

// The spans that the paper names, 1-based: 3-7, 4-9, 6-15, 8-22, and the executed layers.
template <class A>
consteval bool loops(std::int64_t first, std::int64_t last) {
  for (const span_shape& span : A::spans) {
    if (span.visits == 2) {
      return span.first_layer + 1 == first && span.first_layer + span.layers == last;
    }
  }
  return false;
}
static_assert(loops<smelt_100m_s95>(3, 7) && executed_layers<smelt_100m_s95> == 15);
static_assert(loops<smelt_200m_s95>(4, 9) && executed_layers<smelt_200m_s95> == 18);
static_assert(loops<smelt_600m_s85>(6, 15) && executed_layers<smelt_600m_s85> == 30);
static_assert(loops<smelt_600m_s95>(6, 15) && executed_layers<smelt_600m_s95> == 30);
static_assert(loops<smelt_1600m_s95>(8, 22) && executed_layers<smelt_1600m_s95> == 45);
static_assert(layers<smelt_1600m_s95> == layers<baseline_1600m_s95>);

// "Query width = hidden" holds in every cell.
consteval bool query_width_is_hidden() {
  bool holds = true;
  sparse_cells::for_each([&holds]<class Cell>(Cell) {
    using baseline = typename Cell::baseline;
    using looped = typename Cell::smelt;
    holds = holds && baseline::attention.query_width() == baseline::hidden_size &&
            looped::attention.query_width() == looped::hidden_size;
  });
  return holds;
}
static_assert(query_width_is_hidden());

}  // namespace
