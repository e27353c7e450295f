// SPDX-License-Identifier: Apache-2.0
//
// The study as text: fits, gains, tokens per parameter, domains and residuals, each beside what the
// paper prints.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "smelt/law/gain.hpp"
#include "smelt/law/paper.hpp"
#include "smelt/report/table.hpp"
#include "study.hpp"

namespace scaling_law {

namespace paper = smelt::law::paper;

namespace detail {

inline std::string percent(double fraction) {
  return fmt::format("{:.1f}", 100 * fraction);
}

inline std::string range_text(const law::interval& range, int digits) {
  return fmt::format("{:.{}g} .. {:.{}g}", range.low, digits, range.high, digits);
}

inline std::string percent_range(const law::interval& range) {
  return percent(range.low) + " .. " + percent(range.high);
}

/// What the paper prints for a gain, if it prints that compute and sparsity.
inline std::optional<double> printed_gain(double compute, double sparsity) {
  for (const auto& row : paper::gains) {
    for (std::size_t i = 0; i < paper::sparsities.size(); ++i) {
      if (std::fabs(row.compute_flops / compute - 1) < 1e-9 &&
          std::fabs(paper::sparsities[i] - sparsity) < 1e-9) {
        return row.gain_percent[i];
      }
    }
  }
  return std::nullopt;
}

/// The same for tokens per parameter, which the paper prints at 1e21.
inline std::string printed_tokens_per_parameter(double compute, double sparsity, bool looped) {
  if (std::fabs(compute / 1e21 - 1) > 1e-9) return "";
  for (std::size_t i = 0; i < paper::sparsities.size(); ++i) {
    if (std::fabs(paper::sparsities[i] - sparsity) > 1e-9) continue;
    return fmt::format("{:.0f}", looped ? paper::smelt_tokens_per_parameter[i]
                                        : paper::baseline_tokens_per_parameter[i]);
  }
  return "";
}

inline std::string tokens_per_parameter(const law::surface& surface, double compute,
                                        double sparsity) {
  return fmt::format("{:.0f}", law::frontier(surface, sparsity).at(compute).tokens_per_parameter);
}

/// "2.16e+19 FLOPs", or that the sign of the gain does not change.
inline std::string break_even_text(const law::surface& reference, const law::surface& target,
                                   double sparsity) {
  const auto compute = law::break_even_compute(reference, target, sparsity);
  return compute ? fmt::format("{:.3g}", *compute) : "none";
}

inline std::string crossover_text(const law::surface& reference, const law::surface& target) {
  if (reference.c == target.c) return "never (same exponent c)";
  return fmt::format("{:.3g} tokens", law::data_crossover_tokens(reference, target));
}

}  // namespace detail

/// The paper's laws and tables, recomputed from its printed coefficients.
inline std::string paper_text() {
  using smelt::table;
  std::string text = "The paper's laws, L(F,S,D) = E + A (1-S)^b / F^a + K / D^c\n";
  table fits(
      {{"", smelt::align::left}, {"E"}, {"A"}, {"K"}, {"a"}, {"b"}, {"c"}, {"gamma"}, {"RMSE"}});
  const auto row = [&](const char* name, const law::surface& s, double rmse) {
    fits.row({name, fmt::format("{:.4f}", s.E), fmt::format("{:.4g}", s.A),
              fmt::format("{:.4g}", s.K), fmt::format("{:.4f}", s.a), fmt::format("{:.4f}", s.b),
              fmt::format("{:.4f}", s.c), fmt::format("{:.3f}", law::frontier(s, 0.9).exponent()),
              fmt::format("{:.5f}", rmse)});
  };
  row("Baseline", paper::baseline, paper::baseline_rmse);
  row("SMELT", paper::smelt, paper::smelt_rmse);
  text += fits.text();

  text += "\nCompute-equivalent gain of SMELT, per cent: from the printed coefficients (printed)\n";
  table gains({{"C, FLOPs"}, {"S 85 %"}, {"S 95 %"}, {"S 97 %"}});
  for (const auto& printed : paper::gains) {
    std::vector<std::string> cells{fmt::format("{:.0e}", printed.compute_flops)};
    for (std::size_t i = 0; i < paper::sparsities.size(); ++i) {
      const double gain =
          law::gain(paper::baseline, paper::smelt, printed.compute_flops, paper::sparsities[i]);
      cells.push_back(fmt::format("{} ({:.1f})", detail::percent(gain), printed.gain_percent[i]));
    }
    gains.row(cells);
  }
  text += gains.text();
  text += "The printed coefficients have four digits; that alone moves these by up to a point.\n";

  text += "\nTokens per parameter at 1e21 FLOPs: from the printed coefficients (printed)\n";
  table tokens({{"", smelt::align::left}, {"S 85 %"}, {"S 95 %"}, {"S 97 %"}});
  for (const bool looped : {false, true}) {
    std::vector<std::string> cells{looped ? "SMELT" : "Baseline"};
    for (const double sparsity : paper::sparsities) {
      cells.push_back(
          detail::tokens_per_parameter(looped ? paper::smelt : paper::baseline, 1e21, sparsity) +
          " (" + detail::printed_tokens_per_parameter(1e21, sparsity, looped) + ")");
    }
    tokens.row(cells);
  }
  text += tokens.text();
  text += fmt::format("\nData terms cross at {} (printed {:.2g})\n",
                      detail::crossover_text(paper::baseline, paper::smelt),
                      paper::data_crossover_tokens);
  text += "\nGain by domain at 1e21 FLOPs and S 95 %, per cent, as printed\n";
  table domains({{"", smelt::align::left}, {"gain"}});
  for (const auto& part : paper::domain_gains) {
    domains.row({std::string(part.domain), fmt::format("{:.1f}", part.gain_percent)});
  }
  return text + domains.text();
}

/// The fits side by side, with intervals, and the paper's beside them.
inline std::string fit_text(const study& of) {
  using smelt::table;
  std::vector<table::column> columns{{"", smelt::align::left}};
  for (const side& one : of.sides) {
    columns.push_back({one.name});
    columns.push_back({fmt::format("{:.0f} % interval", 100 * of.asked.confidence)});
  }
  columns.push_back({"paper: Baseline"});
  columns.push_back({"SMELT"});
  table fits(columns);
  const auto printed = law::coefficients_of(paper::baseline);
  const auto printed_looped = law::coefficients_of(paper::smelt);
  for (std::size_t j = 0; j < law::coefficient_count; ++j) {
    std::vector<std::string> cells{std::string(law::coefficient_names[j])};
    if (j == 0) cells[0] += ", nats";
    for (const side& one : of.sides) {
      cells.push_back(fmt::format("{:.4g}", one.estimates[j].value));
      cells.push_back(detail::range_text(one.estimates[j].range, 4));
    }
    cells.push_back(fmt::format("{:.4g}", printed[j]));
    cells.push_back(fmt::format("{:.4g}", printed_looped[j]));
    fits.row(cells);
  }
  fits.rule();
  const auto line = [&](const std::string& name, auto&& value, const std::string& left,
                        const std::string& right) {
    std::vector<std::string> cells{name};
    for (const side& one : of.sides) {
      cells.push_back(value(one));
      cells.emplace_back();
    }
    cells.push_back(left);
    cells.push_back(right);
    fits.row(cells);
  };
  line(
      "RMSE, nats", [](const side& s) { return fmt::format("{:.5f}", s.fitted.rmse_nats); },
      fmt::format("{:.5f}", paper::baseline_rmse), fmt::format("{:.5f}", paper::smelt_rmse));
  line(
      "RMSE, log loss", [](const side& s) { return fmt::format("{:.5f}", s.fitted.rmse_log); }, "",
      "");
  line(
      "Huber sum", [](const side& s) { return fmt::format("{:.4g}", s.fitted.objective); }, "", "");
  line(
      "endpoints, cells",
      [](const side& s) { return fmt::format("{}, {}", s.fitted.endpoints, s.fitted.cells); },
      "72, 12", "72, 12");
  line(
      "starts at the optimum",
      [](const side& s) {
        return fmt::format("{} of {}", s.fitted.starts_at_best, s.fitted.starts);
      },
      "", "");
  return fits.text();
}

/// Gain, tokens per parameter, crossovers and domains; only where there are two architectures.
inline std::string comparison_text(const study& of) {
  using smelt::table;
  const settings& asked = of.asked;
  const side& left = of.sides[0];
  const side& right = of.sides[1];
  std::string text = fmt::format(
      "\nCompute-equivalent gain of {} over {}, per cent ({:.0f} % {} interval, {} draws of {} "
      "cells{})\n",
      right.name, left.name, 100 * asked.confidence, asked.rule, asked.draws,
      of.draws.reference.cells, of.draws.paired ? ", paired" : ", independent");
  table gains(
      {{"C, FLOPs"}, {"S, %"}, {"gain"}, {"interval"}, {"paper"}, {"", smelt::align::left}});
  for (const auto& found : of.gains) {
    const auto printed = detail::printed_gain(found.compute_flops, found.sparsity);
    std::string note;
    if (found.compute_flops > of.most_compute) note = "extrapolated";
    if (found.unreached > 0) note += " " + law::count_text(found.unreached, "draw") + " unreached";
    if (found.no_frontier > 0)
      note += " " + law::count_text(found.no_frontier, "draw") + " without frontier";
    gains.row({fmt::format("{:.3g}", found.compute_flops), detail::percent(found.sparsity),
               detail::percent(found.gain), detail::percent_range(found.range),
               printed ? fmt::format("{:.1f}", *printed) : "", note});
  }
  text += gains.text();

  const double compute = asked.middle_compute();
  text += fmt::format(
      "\nTokens per parameter D*/(F*/6) at {:.3g} FLOPs, and where the gain begins\n", compute);
  table tokens(
      {{"S, %"}, {left.name}, {"paper"}, {right.name}, {"paper"}, {"break-even C, FLOPs"}});
  for (const double sparsity : asked.sparsities) {
    tokens.row({detail::percent(sparsity),
                detail::tokens_per_parameter(of.reference(), compute, sparsity),
                detail::printed_tokens_per_parameter(compute, sparsity, false),
                detail::tokens_per_parameter(of.target(), compute, sparsity),
                detail::printed_tokens_per_parameter(compute, sparsity, true),
                detail::break_even_text(of.reference(), of.target(), sparsity)});
  }
  text += tokens.text();
  text += fmt::format("Data terms K/D^c cross at {} (paper: {:.2g})\n",
                      detail::crossover_text(of.reference(), of.target()),
                      paper::data_crossover_tokens);
  if (!of.domain_gains.empty()) {
    text +=
        fmt::format("\nBy domain at {:.3g} FLOPs and S {} %: a, b, c shared, E, A, K refitted\n",
                    compute, detail::percent(asked.middle_sparsity()));
    table domains({{"", smelt::align::left}, {"gain, %"}, {"paper"}});
    for (const domain_gain& part : of.domain_gains) {
      std::string printed;
      for (const auto& known : paper::domain_gains) {
        if (known.domain == part.domain) printed = fmt::format("{:.1f}", known.gain_percent);
      }
      domains.row({part.domain, part.gain ? detail::percent(*part.gain) : "none", printed});
    }
    text += domains.text();
  }
  for (const std::string& reason : of.no_gain) text += "note: " + reason + "\n";
  return text;
}

/// Mean and worst residual of every cell, side by side.
inline std::string residual_text(const study& of) {
  using smelt::table;
  std::string text = "\nResiduals by cell, predicted - observed, 1e-3 nats\n";
  std::vector<table::column> columns{{"cell", smelt::align::left}};
  std::vector<std::string> cells_in_order;
  std::vector<std::vector<law::cell_residual>> by_side;
  for (const side& one : of.sides) {
    columns.push_back({one.name + " mean"});
    columns.push_back({"worst"});
    by_side.push_back(law::residuals_by_cell(one.residuals));
    for (const auto& cell : by_side.back()) {
      if (std::find(cells_in_order.begin(), cells_in_order.end(), cell.cell) ==
          cells_in_order.end()) {
        cells_in_order.push_back(cell.cell);
      }
    }
  }
  table rows(columns);
  for (const std::string& name : cells_in_order) {
    std::vector<std::string> line{name};
    for (const auto& cells : by_side) {
      const auto found = std::find_if(cells.begin(), cells.end(),
                                      [&](const auto& cell) { return cell.cell == name; });
      line.push_back(found == cells.end() ? "" : fmt::format("{:+.2f}", 1e3 * found->mean_nats));
      line.push_back(found == cells.end() ? "" : fmt::format("{:+.2f}", 1e3 * found->worst_nats));
    }
    rows.row(line);
  }
  return text + rows.text();
}

}  // namespace scaling_law
