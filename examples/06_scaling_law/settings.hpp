// SPDX-License-Identifier: Apache-2.0
//
// What the user asked for on the command line.
#pragma once

#include <CLI/CLI.hpp>

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "smelt/error.hpp"
#include "smelt/law/interval.hpp"
#include "smelt/law/message.hpp"
#include "smelt/law/paper.hpp"

namespace scaling_law {

struct settings {
  std::string endpoints;  // a CSV file
  std::string runs;       // or a folder of runs
  bool demo = false;      // or synthetic endpoints from the paper's own surfaces
  bool paper = false;     // only what the paper prints, recomputed
  std::string out = "scaling_law";
  std::string reference;
  std::string target;
  std::vector<double> compute_flops{1e20, 1e21, 1e22};
  std::vector<double> sparsities{smelt::law::paper::sparsities.begin(),
                                 smelt::law::paper::sparsities.end()};
  bool keep_dense = false;
  std::vector<std::string> leave_out;  // names of cells
  double least_tokens = 0;
  double huber_delta = 1e-3;
  std::int64_t draws = smelt::law::paper::bootstrap_draws;
  std::int64_t threads = 0;
  std::uint64_t seed = 1;
  double confidence = smelt::law::paper::interval_confidence;
  std::string rule = "percentile";
  bool figures = true;

  // The tables that have one compute or one sparsity use the middle one: 1e21 and 95 %.
  double middle_compute() const { return compute_flops[compute_flops.size() / 2]; }
  double middle_sparsity() const { return sparsities[sparsities.size() / 2]; }
  smelt::law::interval_rule interval_rule() const {
    return rule == "expanded" ? smelt::law::interval_rule::expanded
                              : smelt::law::interval_rule::percentile;
  }
};

/// Reads the command line; nothing if only help was asked for (and printed).
/// Throws smelt::error with one line on anything else.
inline std::optional<settings> read_settings(int argc, char** argv) {
  settings s;
  CLI::App app{
      "Fits scaling laws L(F,S,D) = E + A (1-S)^b / F^a + K / D^c to finished runs of one or two\n"
      "architectures, and says how much training compute the one saves over the other.\n"
      "\n"
      "  scaling_law --demo                      a demonstration on synthetic runs\n"
      "  scaling_law --endpoints runs.csv        columns architecture,F,S,D,loss[,cell][,domain]\n"
      "  scaling_law --runs FOLDER               one metrics.jsonl per run, or a runs.jsonl\n"
      "  scaling_law --paper                     the paper's laws and tables, recomputed\n"
      "\n"
      "F is training FLOPs per token, S sparsity in [0,1), D tokens, loss in nats per token."};
  app.name("scaling_law");
  auto* input = app.add_option_group("input", "exactly one of");
  input->add_option("--endpoints", s.endpoints, "CSV of endpoints, one row per run and horizon");
  input->add_option("--runs", s.runs,
                    "folder of runs, each with its metrics.jsonl, or of runs.jsonl");
  input->add_flag("--demo", s.demo, "synthetic endpoints from the paper's surfaces, with noise");
  input->add_flag("--paper", s.paper, "print the paper's coefficients and tables, and stop");
  app.add_option("--out", s.out, "folder for tables and pictures")->capture_default_str();
  app.add_option("--reference", s.reference, "architecture that is compared with");
  app.add_option("--target", s.target, "architecture whose gain is wanted");
  app.add_option("--compute", s.compute_flops, "total training FLOPs of the gain table")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--sparsity", s.sparsities, "sparsities of tables and curves")
      ->delimiter(',')
      ->capture_default_str();
  app.add_flag("--keep-dense", s.keep_dense, "fit cells with S = 0 too (the paper does not)");
  app.add_option("--leave-out", s.leave_out, "cells to leave out, by name")->delimiter(',');
  app.add_option("--least-tokens", s.least_tokens, "leave out endpoints with fewer tokens");
  app.add_option("--huber", s.huber_delta, "Huber threshold on log loss")->capture_default_str();
  app.add_option("--draws", s.draws, "bootstrap draws over cells")->capture_default_str();
  app.add_option("--threads", s.threads, "threads; 0: one per core")->capture_default_str();
  app.add_option("--seed", s.seed, "same seed, same bits")->capture_default_str();
  app.add_option("--confidence", s.confidence, "of the intervals")->capture_default_str();
  app.add_option("--interval", s.rule, "percentile, or expanded for few cells")
      ->check(CLI::IsMember({"percentile", "expanded"}))
      ->capture_default_str();
  app.add_flag("!--no-figures", s.figures, "tables only; needs no gnuplot");
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    app.exit(help);
    return std::nullopt;
  } catch (const CLI::ParseError& failure) {
    std::string line = failure.what();
    line = line.substr(0, line.find('\n'));
    throw smelt::error(line + "; see --help");
  }

  const int inputs = !s.endpoints.empty() + !s.runs.empty() + s.demo + s.paper;
  if (inputs != 1) {
    throw smelt::error(std::to_string(inputs) +
                       " inputs given, expected one of --endpoints FILE, --runs FOLDER, --demo or "
                       "--paper; see --help");
  }
  if (s.out.empty()) throw smelt::error("--out is empty, expected the name of a folder");
  for (const double compute : s.compute_flops) {
    if (!(compute > 0) || !std::isfinite(compute)) {
      throw smelt::error("--compute " + smelt::law::number_text(compute) +
                         ", expected positive FLOPs such as 1e21");
    }
  }
  for (const double sparsity : s.sparsities) {
    if (!(sparsity >= 0 && sparsity < 1)) {
      throw smelt::error("--sparsity " + smelt::law::number_text(sparsity) +
                         ", expected a fraction in [0, 1); write 0.95 for 95 %");
    }
  }
  if (!(s.confidence > 0 && s.confidence < 1)) {
    throw smelt::error("--confidence " + smelt::law::number_text(s.confidence) +
                       ", expected a fraction in (0, 1) such as 0.95");
  }
  if (s.draws < 2)
    throw smelt::error("--draws " + std::to_string(s.draws) + ", expected 2 or more");
  if (s.threads < 0)
    throw smelt::error("--threads " + std::to_string(s.threads) + ", expected 0 or more");
  return s;
}

}  // namespace scaling_law
