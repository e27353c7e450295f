// SPDX-License-Identifier: Apache-2.0
//
// The study as files. Everything is written into a folder beside the wanted one and moved into its
// place when all of it is there: a run that fails leaves no half of its output.
//   law.json       coefficients, intervals, gains: everything the tables show
//   residuals.csv  one row per endpoint
//   gain.csv       gain and its interval along compute, what the picture's band shows
//   endpoints.csv  the endpoints of a demonstration
//   *.png, *.svg   pictures, with the script (*.gp) that redraws them
#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <system_error>
#include <vector>

#include "pictures.hpp"
#include "smelt/error.hpp"
#include "smelt/law/endpoint_file.hpp"
#include "smelt/law/paper.hpp"
#include "smelt/report/output_file.hpp"
#include "study.hpp"

namespace scaling_law {

/// A folder under another name until it is finished; gone if it never is.
class staged_folder {
 public:
  explicit staged_folder(std::filesystem::path place) : place_(std::move(place)) {
    namespace files = std::filesystem;
    // "out/" and "out" are the same folder; only the latter has a name.
    if (!place_.has_filename()) place_ = place_.parent_path();
    std::error_code failure;
    if (files::exists(place_, failure) && !files::is_directory(place_, failure)) {
      throw smelt::error(place_.string() + ": is not a folder; choose another with --out");
    }
    stage_ = place_.string() + ".part-" + std::to_string(::getpid());
    if (place_.has_parent_path()) files::create_directories(place_.parent_path(), failure);
    files::create_directory(stage_, failure);
    if (failure || !files::is_directory(stage_, failure)) {
      throw smelt::error(place_.string() +
                         ": cannot be created; choose a folder that may be written to with --out");
    }
  }
  staged_folder(const staged_folder&) = delete;
  staged_folder& operator=(const staged_folder&) = delete;
  ~staged_folder() {
    std::error_code ignored;
    std::filesystem::remove_all(stage_, ignored);
  }

  const std::filesystem::path& path() const { return stage_; }
  const std::filesystem::path& place() const { return place_; }

  void write(const std::string& name, std::string_view text) const {
    smelt::output_file file(stage_ / name);
    file.write(text);
    file.finish();
  }

  /// Moves every file to its place, over what an earlier run left there; returns their names.
  std::vector<std::string> finish() const {
    namespace files = std::filesystem;
    std::vector<std::string> names;
    for (const auto& entry : files::directory_iterator(stage_)) {
      names.push_back(entry.path().filename().string());
    }
    std::sort(names.begin(), names.end());
    std::error_code failure;
    if (!files::exists(place_, failure)) {
      files::rename(stage_, place_, failure);
    } else {
      for (const std::string& name : names) {
        files::rename(stage_ / name, place_ / name, failure);
        if (failure) break;
      }
    }
    if (failure) {
      throw smelt::error(place_.string() + ": cannot move the results there: " + failure.message());
    }
    return names;
  }

 private:
  std::filesystem::path place_;
  std::filesystem::path stage_;
};

namespace detail {

inline nlohmann::ordered_json json_of(const law::surface& surface) {
  nlohmann::ordered_json json;
  const auto values = law::coefficients_of(surface);
  for (std::size_t j = 0; j < values.size(); ++j) {
    json[std::string(law::coefficient_names[j])] = values[j];
  }
  return json;
}

inline nlohmann::ordered_json json_of(const study& of) {
  nlohmann::ordered_json json;
  json["law"] = "L(F,S,D) = E + A (1-S)^b / F^a + K / D^c";
  json["units"] = {
      {"F", "training FLOPs per token"}, {"S", "fraction"},       {"D", "tokens"},
      {"L", "nats per token"},           {"C", "training FLOPs"}, {"gain", "fraction"}};
  json["source"] = of.source;
  json["bootstrap"] = {{"draws", of.asked.draws},
                       {"seed", of.asked.seed},
                       {"cells", of.draws.reference.cells},
                       {"paired", of.draws.paired},
                       {"redrawn", of.draws.reference.redrawn},
                       {"confidence", of.asked.confidence},
                       {"interval", of.asked.rule}};
  for (const side& one : of.sides) {
    nlohmann::ordered_json fit;
    fit["architecture"] = one.name;
    fit["coefficients"] = json_of(one.fitted.coefficients);
    for (std::size_t j = 0; j < law::coefficient_count; ++j) {
      fit["intervals"][std::string(law::coefficient_names[j])] = {one.estimates[j].range.low,
                                                                  one.estimates[j].range.high};
    }
    fit["huber_delta"] = one.fitted.huber_delta;
    fit["huber_sum"] = one.fitted.objective;
    fit["rmse_nats"] = one.fitted.rmse_nats;
    fit["rmse_log"] = one.fitted.rmse_log;
    fit["endpoints"] = one.fitted.endpoints;
    fit["cells"] = one.fitted.cells;
    fit["left_out"] = one.left_out;
    for (const law::domain_law& part : one.domain_laws) {
      fit["domains"][part.domain] = json_of(part.fitted.coefficients);
    }
    json["fits"].push_back(fit);
  }
  for (const auto& found : of.gains) {
    json["gains"].push_back({{"C", found.compute_flops},
                             {"S", found.sparsity},
                             {"gain", found.gain},
                             {"low", found.range.low},
                             {"high", found.range.high},
                             {"unreached_draws", found.unreached}});
  }
  for (const domain_gain& part : of.domain_gains) {
    json["domain_gains"][part.domain] = part.gain ? nlohmann::ordered_json(*part.gain) : nullptr;
  }
  json["paper"] = {{"baseline", json_of(law::paper::baseline)},
                   {"smelt", json_of(law::paper::smelt)}};
  return json;
}

inline std::string residuals_csv(const study& of) {
  std::string text = "architecture,cell,F,S,D,observed,predicted,residual_nats,residual_log\n";
  for (const side& one : of.sides) {
    for (const auto& row : one.residuals) {
      std::string cell = row.point.cell;
      if (cell.find_first_of(",\"") != std::string::npos) {
        std::string doubled;
        for (const char c : cell) doubled += c == '"' ? std::string("\"\"") : std::string(1, c);
        cell = "\"" + doubled + "\"";
      }
      text += fmt::format("{},{},{:.9g},{:.9g},{:.9g},{:.9g},{:.9g},{:.6g},{:.6g}\n", one.name,
                          cell, row.point.flops_per_token, row.point.sparsity, row.point.tokens,
                          row.point.loss, row.predicted, row.residual_nats, row.residual_log);
    }
  }
  return text;
}

inline std::string gain_csv(const study& of) {
  std::string text = "C,S,gain,low,high,unreached_draws\n";
  for (const auto& band : of.bands) {
    for (const auto& at : band) {
      text += fmt::format("{:.9g},{:.9g},{:.9g},{:.9g},{:.9g},{}\n", at.compute_flops, at.sparsity,
                          at.gain, at.range.low, at.range.high, at.unreached);
    }
  }
  return text;
}

}  // namespace detail

/// Writes all files of a study; returns their names in the folder.
inline std::vector<std::string> write_study(const study& of, const std::vector<endpoint>& all) {
  const staged_folder folder(of.asked.out);
  folder.write("law.json", detail::json_of(of).dump(2) + "\n");
  folder.write("residuals.csv", detail::residuals_csv(of));
  if (of.asked.demo) {
    std::ostringstream text;
    law::write_endpoints(text, all);
    folder.write("endpoints.csv", text.str());
  }
  if (of.pair()) folder.write("gain.csv", detail::gain_csv(of));
  if (of.asked.figures) {
    const int width = of.pair() ? 1300 : 760;
    draw(folder.path(), "loss", width, 560, loss_script(of));
    draw(folder.path(), "residuals", width, 480, residual_script(of));
    if (of.pair()) draw(folder.path(), "gain", 900, 600, gain_script(of));
  }
  return folder.finish();
}

}  // namespace scaling_law
