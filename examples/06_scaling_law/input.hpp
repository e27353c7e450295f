// SPDX-License-Identifier: Apache-2.0
//
// Where endpoints come from: a CSV file, a folder of runs, or a demonstration.
//
// A run is a folder with a metrics.jsonl, one JSON object per line. Its endpoint is the last line
// that has a validation loss; what that line does not say is taken from the first line, where a run
// describes itself. A folder with a runs.jsonl, as the program smelt leaves it, is several runs:
// each line of it is the endpoint of one. Keys: architecture, flops_per_token (F), sparsity (S),
// tokens (D), validation_loss (loss), and if there are any cell, domain, and domain_losses {name:
// nats}.
#pragma once

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "smelt/error.hpp"
#include "smelt/law/endpoint.hpp"
#include "smelt/law/endpoint_file.hpp"
#include "smelt/law/message.hpp"
#include "smelt/law/paper.hpp"
#include "smelt/law/synthetic.hpp"

namespace scaling_law {

using smelt::law::endpoint;

namespace detail {

struct run_lines {
  std::string path;
  nlohmann::json first;
  nlohmann::json last;
  std::int64_t row = 0;

  const nlohmann::json* find(std::initializer_list<const char*> keys) const {
    for (const nlohmann::json* line : {&last, &first}) {
      for (const char* key : keys) {
        const auto found = line->find(key);
        if (found != line->end()) return &*found;
      }
    }
    return nullptr;
  }
  const nlohmann::json& at(std::initializer_list<const char*> keys) const {
    if (const nlohmann::json* found = find(keys)) return *found;
    throw smelt::error(path + ": neither the first line nor the last with a loss has '" +
                       *keys.begin() + "'; let the run write it");
  }
  double number(std::initializer_list<const char*> keys) const {
    const nlohmann::json& value = at(keys);
    if (!value.is_number()) {
      throw smelt::error(path + ": row " + std::to_string(row) + ": " + *keys.begin() + " is " +
                         value.dump() + ", expected a number");
    }
    return value.get<double>();
  }
};

inline bool has_loss(const nlohmann::json& line) {
  return line.contains("validation_loss") || line.contains("loss");
}

/// Calls use(line, row) for every line of a file of JSON objects.
template <class Use>
void each_line(const std::filesystem::path& file, Use&& use) {
  std::ifstream input(file);
  if (!input) throw smelt::error(file.string() + ": cannot be read; check its permissions");
  std::string text;
  std::int64_t row = 0;
  while (std::getline(input, text)) {
    ++row;
    if (text.find_first_not_of(" \t\r") == std::string::npos) continue;
    const auto line = nlohmann::json::parse(text, nullptr, false);
    if (!line.is_object()) {
      throw smelt::error(file.string() + ": row " + std::to_string(row) +
                         ": not a JSON object; the run may have been cut off, remove that line");
    }
    use(line, row);
  }
}

/// The run of a metrics.jsonl, or the runs of a runs.jsonl.
inline void read_file(const std::filesystem::path& file, std::vector<run_lines>& runs) {
  if (file.filename() == "runs.jsonl") {
    each_line(file, [&](const nlohmann::json& line, std::int64_t row) {
      runs.push_back({file.string(), line, line, row});
    });
    return;
  }
  run_lines run;
  run.path = file.string();
  each_line(file, [&](const nlohmann::json& line, std::int64_t row) {
    if (run.first.is_null()) run.first = line;
    if (has_loss(line)) {
      run.last = line;
      run.row = row;
    }
  });
  if (run.last.is_null()) {
    throw smelt::error(run.path + ": no line has a validation_loss, expected at least one");
  }
  runs.push_back(run);
}

/// Files of runs at any depth. What stands beside a runs.jsonl are its own runs, step by step; a
/// run.json is the mark of such a folder, also while none of them is finished.
inline void find_files(const std::filesystem::path& folder,
                       std::vector<std::filesystem::path>& found) {
  const bool has_ends = std::filesystem::exists(folder / "runs.jsonl");
  if (has_ends) found.push_back(folder / "runs.jsonl");
  if (has_ends || std::filesystem::exists(folder / "run.json")) return;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.is_directory() && !entry.is_symlink())
      find_files(entry.path(), found);
    else if (entry.path().filename() == "metrics.jsonl")
      found.push_back(entry.path());
  }
}

}  // namespace detail

/// Endpoints of all runs below a folder, in the order of their paths.
inline std::vector<endpoint> read_runs(const std::string& folder) {
  namespace files = std::filesystem;
  std::error_code failure;
  if (!files::is_directory(folder, failure)) {
    throw smelt::error(folder + ": not a folder; --runs wants the folder that holds the runs");
  }
  std::vector<files::path> found;
  detail::find_files(folder, found);
  if (found.empty()) {
    throw smelt::error(folder +
                       ": no metrics.jsonl or runs.jsonl at any depth, expected one per "
                       "run or several runs in one");
  }
  std::sort(found.begin(), found.end());
  std::vector<detail::run_lines> runs;
  for (const files::path& file : found) detail::read_file(file, runs);

  std::vector<endpoint> points;
  for (const detail::run_lines& run : runs) {
    const nlohmann::json& name = run.at({"architecture"});
    endpoint point;
    point.architecture = name.is_string() ? name.get<std::string>() : name.dump();
    point.flops_per_token = run.number({"flops_per_token", "F"});
    point.sparsity = run.number({"sparsity", "S"});
    point.tokens = run.number({"tokens", "D"});
    point.loss = run.number({"validation_loss", "loss"});
    const nlohmann::json* cell = run.find({"cell"});
    point.cell = cell != nullptr && cell->is_string()
                     ? cell->get<std::string>()
                     : "F " + smelt::law::number_text(point.flops_per_token, 12) + " S " +
                           smelt::law::number_text(point.sparsity, 12);
    const nlohmann::json* domain = run.find({"domain"});
    if (domain != nullptr && domain->is_string() && *domain != "all") {
      point.domain = domain->get<std::string>();
    }
    points.push_back(point);
    if (const nlohmann::json* losses = run.find({"domain_losses"});
        losses != nullptr && losses->is_object()) {
      for (const auto& [domain_name, nats] : losses->items()) {
        if (!nats.is_number()) continue;
        endpoint part = point;
        part.domain = domain_name;
        part.loss = nats.get<double>();
        points.push_back(part);
      }
    }
  }
  return points;
}

/// Synthetic runs of the paper's grid: its surfaces, 0.2 % of noise, and five invented domains.
inline std::vector<endpoint> demonstration(std::uint64_t seed) {
  namespace law = smelt::law;
  struct domain {
    const char* name;
    double irreducible;  // invented: E of the domain over E of the whole
  };
  std::vector<endpoint> points;
  const auto add = [&](const law::surface& surface, std::span<const law::paper::cell> cells,
                       const char* architecture, std::uint64_t own) {
    for (const domain& part :
         {domain{"", 1.0}, domain{"Code", 0.55}, domain{"Finance", 1.02}, domain{"Math/STEM", 0.8},
          domain{"Knowledge", 1.05}, domain{"Web", 1.15}}) {
      law::surface scaled = surface;
      scaled.E *= part.irreducible;
      auto more = law::synthetic_endpoints(scaled, cells, law::paper::horizons_tokens, architecture,
                                           {0.002, 0.001}, own++);
      for (endpoint& point : more) point.domain = part.name;
      points.insert(points.end(), more.begin(), more.end());
    }
  };
  add(law::paper::baseline, law::paper::baseline_cells, "baseline", 1000 * seed);
  add(law::paper::smelt, law::paper::smelt_cells, "smelt", 1000 * seed + 500);
  return points;
}

}  // namespace scaling_law
