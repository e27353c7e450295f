// SPDX-License-Identifier: Apache-2.0
//
// Scaling laws from finished runs, in one command:
//
//   scaling_law --demo                      synthetic runs of the paper's grid
//   scaling_law --endpoints runs.csv        your own; columns
//   architecture,F,S,D,loss[,cell][,domain] scaling_law --runs FOLDER               your own; one
//   metrics.jsonl per run scaling_law --paper                     what the paper prints, recomputed
//
// prints the fitted laws with intervals, the compute-equivalent gain of the one architecture over
// the other, and the paper's figures beside them; writes tables and pictures into --out.
// Exit code 1 and one line on stderr if anything is wrong; nothing is then left half-written.

#include <fmt/format.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "input.hpp"
#include "output.hpp"
#include "pictures.hpp"
#include "settings.hpp"
#include "smelt/error.hpp"
#include "smelt/report/progress.hpp"
#include "study.hpp"
#include "tables.hpp"

namespace {

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void run(const scaling_law::settings& asked) {
  using namespace scaling_law;
  if (asked.paper) {
    fmt::print("{}", paper_text());
    return;
  }
  // Asked first: nobody should wait for a bootstrap to learn that a program is missing.
  if (asked.figures && !has_gnuplot()) {
    throw smelt::error(
        "gnuplot is not installed (Debian: apt-get install gnuplot-nox); "
        "--no-figures writes the tables alone");
  }
  std::string source = asked.endpoints.empty() ? asked.runs : asked.endpoints;
  if (asked.demo) source = "demonstration";
  const std::vector<endpoint> all = asked.demo ? demonstration(asked.seed)
                                    : !asked.runs.empty()
                                        ? read_runs(asked.runs)
                                        : law::read_endpoint_file(asked.endpoints);

  study found;
  {
    double begun = 0;  // of the draws; the fits before them take a moment of their own
    smelt::progress line(smelt::progress_screen::of(stderr), asked.draws);
    found = make_study(asked, source, all, [&](std::int64_t done, std::int64_t) {
      if (done == 1) begun = seconds();
      line.show({.step = done, .label = "bootstrap draws"}, seconds() - begun);
    });
  }
  const std::vector<std::string> files = write_study(found, all);

  if (asked.demo) {
    fmt::print(
        "Demonstration: synthetic runs drawn from the paper's surfaces with 0.2 % of noise "
        "and invented domains.\nThey are no measurements.\n\n");
  }
  fmt::print("{}", fit_text(found));
  if (found.pair()) fmt::print("{}", comparison_text(found));
  fmt::print("{}", residual_text(found));
  for (const side& one : found.sides) {
    if (one.left_out == 0) continue;
    fmt::print("{}: {} left out by rule\n", one.name, law::count_text(one.left_out, "endpoint"));
  }
  fmt::print("\nWritten to {}:", asked.out);
  for (const std::string& name : files) fmt::print(" {}", name);
  fmt::print("\n");
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const auto asked = scaling_law::read_settings(argc, argv);
    if (asked) run(*asked);
    return 0;
  } catch (const std::exception& failure) {
    fmt::print(stderr, "scaling_law: {}\n", failure.what());
    return 1;
  }
}
