// SPDX-License-Identifier: Apache-2.0
//
// run.json: which run a folder belongs to. Written once, before anything else; a run with another
// model, seed, text or option is refused and changes nothing there.
//
//   {"format":"smelt run", "version":1, "model", "architecture", "compute", "stable_steps",
//    "branches":[[first step, steps], ...], "evaluate_every", "held_out", "held_out_tokens",
//    and every field that a checkpoint's record compares}
//
// What may change from one start to the next because no result depends on it: threads and ranks,
// how often checkpoints are written and how many stay, which part is worked on. What is done about
// bad steps may change too: that is how a run goes on that was stopped by one.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <system_error>

#include "smelt/io/checksum.hpp"
#include "smelt/io/file.hpp"
#include "smelt/io/message.hpp"
#include "smelt/io/token_set.hpp"
#include "smelt/train/checkpoint_state.hpp"
#include "smelt/train/run_setting.hpp"

namespace smelt {

/// What tells one set of shards from another without reading all of it: their number and lengths,
/// and 64 KiB of tokens at the beginning and end of each. Names and folders do not enter.
inline std::uint64_t fingerprint_of(const token_set& set) {
  checksum sum;
  const auto add = [&sum](std::int64_t value) { sum.update(std::as_bytes(std::span(&value, 1))); };
  add(static_cast<std::int64_t>(set.shards().size()));
  for (const token_shard& shard : set.shards()) {
    add(shard.size());
    shard.visit([&](auto tokens) {
      const auto bytes = std::as_bytes(tokens);
      const std::size_t part = std::min<std::size_t>(bytes.size(), std::size_t{1} << 16U);
      sum.update(bytes.first(part));
      sum.update(bytes.last(part));
    });
  }
  return sum.value();
}

/// The record of a phase's checkpoints, but for its notes; `schedule` is the phase's. The number of
/// ranks does not enter.
inline training_record record_of(const run_setting& setting, const warmup_stable_decay& schedule,
                                 std::uint64_t corpus) {
  training_record record;
  record.seed = setting.seed;
  record.sequences = (setting.shape.sequences + setting.micro_batches - 1) / setting.micro_batches;
  record.context = setting.shape.context;
  record.micro_batches = setting.micro_batches;
  record.corpus = corpus;
  record.options = setting.options;
  record.options.batch_tokens = record.sequences * record.context;
  record.options.schedule = schedule;
  return record;
}

/// What run.json says; architecture and compute type as a checkpoint spells them.
inline nlohmann::ordered_json run_description(const run_setting& setting,
                                              const std::string& architecture,
                                              const std::string& compute, std::uint64_t corpus,
                                              std::uint64_t held_out) {
  nlohmann::ordered_json json;
  json["format"] = "smelt run";
  json["version"] = 1;
  json["model"] = setting.model;
  json["architecture"] = architecture;
  json["compute"] = compute;
  json["step_sequences"] = setting.shape.sequences;
  json["stable_steps"] = setting.stable_steps;
  json["branches"] = nlohmann::ordered_json::array();
  for (const training_branch& branch : setting.branches)
    json["branches"].push_back({branch.first_step, branch.steps});
  json["evaluate_every"] = setting.evaluate_every;
  json["held_out"] = held_out;
  json["held_out_tokens"] = setting.held_out_tokens;
  const training_record record = record_of(setting, setting.stable_schedule(), corpus);
  detail::for_each_record_field(record,
                                [&](const char* name, const auto& value) { json[name] = value; });
  return json;
}

namespace detail {
inline nlohmann::ordered_json read_run_description(const std::filesystem::path& path) {
  const mapped_file file(path);
  const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()),
                              file.bytes().size());
  nlohmann::ordered_json json = nlohmann::ordered_json::parse(text, nullptr, false);
  if (!json.is_object() || !json.contains("format") || json["format"] != "smelt run")
    throw io_error(path.string(), "the run.json of a training run", "something else",
                   "name another folder");
  return json;
}
}  // namespace detail

/// Makes the folder of a run, or demands that it is this run's.
/// @throws smelt::error naming the first field that differs; nothing was written then.
inline void claim_run_folder(const std::filesystem::path& folder,
                             const nlohmann::ordered_json& description) {
  namespace fs = std::filesystem;
  const fs::path path = folder / "run.json";
  std::error_code code;
  if (fs::exists(path, code)) {
    const nlohmann::ordered_json found = detail::read_run_description(path);
    for (const auto& [name, value] : description.items()) {
      const auto there = found.find(name);
      if (there == found.end() || *there != value)
        throw detail::io_error(path.string() + ": " + name, value.dump(),
                               there == found.end() ? "none" : there->dump(),
                               "go on with what the run was started with, or name another folder");
    }
    return;
  }
  if (fs::exists(folder, code) && !(fs::is_directory(folder, code) && fs::is_empty(folder, code)))
    throw detail::io_error(folder.string(), "a new or empty folder, or that of a run",
                           "something without run.json", "name another folder");
  fs::create_directories(folder, code);
  if (code)
    throw detail::io_error(folder.string(), "to make this folder", code.message(),
                           "choose a folder that may be written to");
  const std::string text = description.dump(2) + "\n";
  atomic_file file(path);
  file.write(std::as_bytes(std::span(text)));
  file.finish();
}

}  // namespace smelt
