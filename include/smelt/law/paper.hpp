// SPDX-License-Identifier: Apache-2.0
//
// What the SMELT paper prints about its laws (section 5) and the grid it fitted them on (sections
// 2 to 4), as constants. Tests recompute every one of them; examples print them beside a user's
// own fit. Source: arXiv 2609.01343 v1.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "smelt/law/surface.hpp"

namespace smelt::law::paper {

/// The printed surfaces. F in training FLOPs per token, D in tokens, loss in nats per token.
inline constexpr surface baseline{1.4439, 1.366e3, 1.975e6, 0.3703, 0.1530, 0.6594};
inline constexpr surface smelt{1.4493, 1.963e3, 5.264e6, 0.3892, 0.1460, 0.7011};

/// Printed root mean square residuals of the two fits.
inline constexpr double baseline_rmse = 0.00554;
inline constexpr double smelt_rmse = 0.00952;

/// Printed frontier exponents gamma = a c / (a + c).
inline constexpr double baseline_gamma = 0.237;
inline constexpr double smelt_gamma = 0.250;

/// Printed tokens at which the data terms cross, to two digits.
inline constexpr double data_crossover_tokens = 1.6e10;

/// The sparsities of the printed tables.
inline constexpr std::array sparsities{0.85, 0.95, 0.97};

/// One row of the printed gain table.
struct gain_row {
  double compute_flops;                ///< C of the target, total training FLOPs
  std::array<double, 3> gain_percent;  ///< at S = 0.85, 0.95, 0.97
};

/// Compute-equivalent gain of SMELT over the Baseline. The last row is the paper's extrapolation.
inline constexpr std::array<gain_row, 3> gains{
    {{1e20, {10.0, 7.8, 6.8}}, {1e21, {18.0, 15.8, 14.7}}, {1e22, {23.5, 20.9, 19.6}}}};

/// Tokens per parameter D* / (F* / 6) at 1e21 FLOPs, at S = 0.85, 0.95, 0.97.
inline constexpr std::array<double, 3> baseline_tokens_per_parameter{56, 78, 91};
inline constexpr std::array<double, 3> smelt_tokens_per_parameter{56, 75, 86};

/// Gain by domain at 1e21 FLOPs and S = 0.95: exponents shared, E, A and K refitted.
struct domain_gain {
  std::string_view domain;
  double gain_percent;
};
inline constexpr std::array<domain_gain, 5> domain_gains{
    {{"Code", 20.4}, {"Finance", 16.8}, {"Math/STEM", 16.6}, {"Knowledge", 14.9}, {"Web", 14.8}}};

/// How the paper took its intervals: draws over the 12 sparse cells, 2.5 to 97.5 percentiles.
inline constexpr std::int64_t bootstrap_draws = 2000;
inline constexpr double interval_confidence = 0.95;

/// One sparse cell of the grid: F derived to 0.1 % from the architectures, S as printed.
struct cell {
  std::string_view name;
  double flops_per_token;
  double sparsity;
};

inline constexpr std::array<cell, 12> baseline_cells{{{"100M-85", 0.633e9, 0.860},
                                                      {"100M-95", 0.638e9, 0.952},
                                                      {"100M-97", 0.644e9, 0.972},
                                                      {"200M-85", 1.317e9, 0.843},
                                                      {"200M-95", 1.329e9, 0.946},
                                                      {"200M-97", 1.342e9, 0.969},
                                                      {"600M-85", 4.161e9, 0.845},
                                                      {"600M-95", 4.188e9, 0.947},
                                                      {"600M-97", 4.219e9, 0.969},
                                                      {"1.6B-85", 10.12e9, 0.845},
                                                      {"1.6B-95", 10.17e9, 0.947},
                                                      {"1.6B-97", 10.23e9, 0.969}}};

inline constexpr std::array<cell, 12> smelt_cells{{{"100M-85", 0.648e9, 0.868},
                                                   {"100M-95", 0.658e9, 0.955},
                                                   {"100M-97", 0.669e9, 0.974},
                                                   {"200M-85", 1.345e9, 0.846},
                                                   {"200M-95", 1.367e9, 0.947},
                                                   {"200M-97", 1.392e9, 0.969},
                                                   {"600M-85", 4.190e9, 0.851},
                                                   {"600M-95", 4.290e9, 0.947},
                                                   {"600M-97", 4.349e9, 0.969},
                                                   {"1.6B-85", 10.12e9, 0.846},
                                                   {"1.6B-95", 10.21e9, 0.948},
                                                   {"1.6B-97", 10.32e9, 0.970}}};

/// The six horizons D in tokens: branch start plus 10B of decay. 12 cells by 6 are 72 endpoints.
inline constexpr std::array horizons_tokens{20.5e9, 31.0e9, 62.4e9, 114.9e9, 167.3e9, 215.6e9};

}  // namespace smelt::law::paper
