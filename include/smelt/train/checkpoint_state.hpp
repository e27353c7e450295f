// SPDX-License-Identifier: Apache-2.0
//
// state.json: what a checkpoint knows besides its tensors.
//
//   format, version    "smelt checkpoint", 1
//   step               steps taken, and so the number of the next batch: the whole data position
//   compute            element type of the matrix products, "F32" or "BF16"
//   <record>           seed, shape of a step, options: on which the next steps' bits depend
//   notes              texts of the program that trains; nothing reads them here
//   files              length and XXH64 of each file beside it
//   checksum           XXH64 of all of the above as it is written
//
// Flat: "options.beta1": 0.9. Numbers are written so that they are read back to the last bit.
// Needs nlohmann-json (Debian: nlohmann-json3-dev).
#pragma once

#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "smelt/io/checksum.hpp"
#include "smelt/io/file.hpp"
#include "smelt/io/message.hpp"
#include "smelt/train/step_report.hpp"

namespace smelt {

/// What a run is, besides its model: with the same record, model, compute type and text, a resumed
/// run takes the same steps to the last bit. Told by the program, as a trainer knows only part.
struct training_record {
  std::uint64_t seed = 0;                      ///< of weights and batches
  training_options options{};                  ///< as the trainer was made with
  std::int64_t sequences = 0;                  ///< of a micro-batch
  std::int64_t context = 0;                    ///< tokens of a sequence
  std::int64_t micro_batches = 1;              ///< of a step
  std::uint64_t corpus = 0;                    ///< checksum of the text, where the program has one
  std::map<std::string, std::string> notes{};  ///< for the program itself; never compared
};

/// What state.json holds.
struct checkpoint_state {
  std::int64_t step = 0;  ///< steps taken
  std::string compute{};  ///< type of the products, as dtype_name spells it
  training_record record{};
};

namespace detail {

inline constexpr const char* state_format = "smelt checkpoint";
inline constexpr std::int64_t state_version = 1;
inline constexpr std::int64_t state_limit_bytes = 1 << 20;  // a hundred times what one has

// A file of the checkpoint as state.json knows it.
struct noted_file {
  std::string name;
  std::int64_t bytes = 0;
  std::string xxh64;
};

// The one list of fields: to write, to read and to compare.
template <class Record, class Visit>
void for_each_record_field(Record& record, Visit&& visit) {
  auto& options = record.options;
  auto& schedule = options.schedule;
  visit("seed", record.seed);
  visit("sequences", record.sequences);
  visit("context", record.context);
  visit("micro_batches", record.micro_batches);
  visit("corpus", record.corpus);
  visit("options.batch_tokens", options.batch_tokens);
  visit("options.schedule.peak", schedule.peak);
  visit("options.schedule.warmup_steps", schedule.warmup_steps);
  visit("options.schedule.decay_steps", schedule.decay_steps);
  visit("options.schedule.steps", schedule.steps);
  visit("options.schedule.last_fraction", schedule.last_fraction);
  visit("options.beta1", options.beta1);
  visit("options.beta2", options.beta2);
  visit("options.epsilon", options.epsilon);
  visit("options.weight_decay", options.weight_decay);
  visit("options.clip_norm", options.clip_norm);
  visit("options.balance_coefficient", options.balance_coefficient);
  visit("options.z_coefficient", options.z_coefficient);
  visit("options.balance_group_tokens", options.balance_group_tokens);
  visit("options.router_bias_rate", options.router_bias_rate);
}

// Of the compact text, whatever blanks the file has. Parsing and writing again changes no digit.
inline std::string json_checksum(const nlohmann::ordered_json& json) {
  const std::string text = json.dump();
  return checksum_of(std::as_bytes(std::span(text))).text();
}

// Fields out of a file that may be anything. Whole numbers are 63 bits and not negative, but for
// the seed and the like, which have 64.
class state_reader {
 public:
  state_reader(const nlohmann::ordered_json& json, std::string file)
      : json_(json), file_(std::move(file)) {}

  void number(const std::string& name, std::int64_t& value) const {
    const nlohmann::ordered_json& found = field(name);
    if (!found.is_number_integer() || found.get<std::int64_t>() < 0 ||
        (found.is_number_unsigned() && found.get<std::uint64_t>() >> 63U != 0))
      refuse(name, "a whole number of at least 0", found.type_name());
    value = found.get<std::int64_t>();
  }
  void number(const std::string& name, std::uint64_t& value) const {
    const nlohmann::ordered_json& found = field(name);
    if (!found.is_number_unsigned())
      refuse(name, "a whole number of at least 0", found.type_name());
    value = found.get<std::uint64_t>();
  }
  void number(const std::string& name, double& value) const {
    const nlohmann::ordered_json& found = field(name);
    if (!found.is_number()) refuse(name, "a number", found.type_name());
    value = found.get<double>();
  }
  std::string text(const std::string& name) const {
    const nlohmann::ordered_json& found = field(name);
    if (!found.is_string()) refuse(name, "a text", found.type_name());
    return found.get<std::string>();
  }
  const nlohmann::ordered_json& object(const std::string& name) const {
    const nlohmann::ordered_json& found = field(name);
    if (!found.is_object()) refuse(name, "an object", found.type_name());
    return found;
  }
  [[noreturn]] void refuse(const std::string& name, const std::string& expected,
                           const std::string& found) const {
    throw io_error(file_ + ": " + name, expected, found, "use a checkpoint that is whole");
  }

 private:
  // The one way to a field, so that a missing one is always a sentence.
  const nlohmann::ordered_json& field(const std::string& name) const {
    const auto found = json_.find(name);
    if (found == json_.end()) refuse(name, "this field", "none");
    return *found;
  }

  const nlohmann::ordered_json& json_;
  std::string file_;
};

/// Writes state.json, whole or not at all.
/// @throws smelt::error where a note is not UTF-8 or an option not a number, or as atomic_file.
inline void write_state(const std::filesystem::path& path, const checkpoint_state& state,
                        const std::vector<noted_file>& files) {
  nlohmann::ordered_json json;
  json["format"] = state_format;
  json["version"] = state_version;
  json["step"] = state.step;
  json["compute"] = state.compute;
  for_each_record_field(state.record, [&](const char* name, const auto& value) {
    // JSON knows neither NaN nor infinity.
    if constexpr (std::floating_point<std::remove_cvref_t<decltype(value)>>)
      if (!std::isfinite(value))
        throw io_error(path.string() + ": " + name, "a finite number", std::to_string(value),
                       "choose another value");
    json[name] = value;
  });
  json["notes"] = nlohmann::ordered_json::object();
  for (const auto& [name, value] : state.record.notes) json["notes"][name] = value;
  json["files"] = nlohmann::ordered_json::object();
  for (const noted_file& file : files)
    json["files"][file.name] = {{"bytes", file.bytes}, {"xxh64", file.xxh64}};
  // What is not UTF-8 is found only when it is written.
  std::string text;
  try {
    json["checksum"] = json_checksum(json);
    text = json.dump(2) + "\n";
  } catch (const nlohmann::json::exception&) {
    throw io_error(path.string() + ": notes", "text in UTF-8", "something else", "reword them");
  }
  atomic_file file(path);
  file.write(std::as_bytes(std::span(text)));
  file.finish();
}

/// What state.json says, as far as its own checksum agrees; `file` is its name in messages.
/// @return  the state, and the files that stand beside it.
/// @throws smelt::error naming file, field, what was expected and what was found.
inline std::pair<checkpoint_state, std::vector<noted_file>> parse_state(std::string_view text,
                                                                        const std::string& file) {
  nlohmann::ordered_json json = nlohmann::ordered_json::parse(text, nullptr, false);
  if (!json.is_object())
    throw io_error(file, "a JSON object", json.is_discarded() ? "no valid JSON" : json.type_name(),
                   "use a checkpoint that is whole");
  const state_reader read(json, file);
  // The version comes first: of a later one nothing else may be understood.
  if (const std::string format = read.text("format"); format != state_format)
    read.refuse("format", std::string("'") + state_format + "'", quoted_name(format));
  std::int64_t version = 0;
  read.number("version", version);
  if (version != state_version)
    throw io_error(file + ": version", std::to_string(state_version), std::to_string(version),
                   "read it with the version of this library that wrote it");
  const std::string noted = read.text("checksum");
  json.erase("checksum");
  if (const std::string sum = json_checksum(json); sum != noted)
    read.refuse("checksum", sum, quoted_name(noted));
  // It is as it was written, which does not make it right: somebody may have written it by hand.
  checkpoint_state state;
  read.number("step", state.step);
  state.compute = read.text("compute");
  for_each_record_field(state.record,
                        [&](const char* name, auto& value) { read.number(name, value); });
  // Notes come back as they were given.
  for (const auto& [name, value] : read.object("notes").items()) {
    if (!value.is_string()) read.refuse("notes", "texts", value.type_name());
    state.record.notes[name] = value.template get<std::string>();
  }
  // Which files there ought to be is for the reader of the files to say.
  std::vector<noted_file> files;
  for (const auto& [name, value] : read.object("files").items()) {
    const state_reader entry(value, file + ": files: " + quoted_name(name));
    noted_file found{name, 0, {}};
    entry.number("bytes", found.bytes);
    found.xxh64 = entry.text("xxh64");
    files.push_back(std::move(found));
  }
  return {std::move(state), std::move(files)};
}

/// Reads state.json: see parse_state.
inline std::pair<checkpoint_state, std::vector<noted_file>> read_state(
    const std::filesystem::path& path) {
  const mapped_file mapped(path);
  if (mapped.size_bytes() > state_limit_bytes)
    throw io_error(path.string(), "at most " + byte_text(state_limit_bytes),
                   byte_text(mapped.size_bytes()), "name a checkpoint");
  return parse_state({reinterpret_cast<const char*>(mapped.bytes().data()), mapped.bytes().size()},
                     path.string());
}

/// Demands that a checkpoint belongs to the run that wants to go on from it.
/// @throws smelt::error naming the first field that differs.
inline void expect_same_run(const checkpoint_state& found, const std::string& compute,
                            const training_record& expected, const std::string& file) {
  // As JSON, so that the message shows every digit that differs.
  const auto demand = [&](const char* name, const nlohmann::ordered_json& here,
                          const nlohmann::ordered_json& there) {
    if (here != there)
      throw io_error(file + ": " + name, here.dump(), there.dump(),
                     "resume with what the run was started with, or start another run");
  };
  demand("compute", compute, found.compute);
  // One list walks both records, which therefore come in the same order.
  std::vector<nlohmann::ordered_json> values;
  for_each_record_field(found.record,
                        [&](const char*, const auto& value) { values.push_back(value); });
  std::size_t next = 0;
  for_each_record_field(
      expected, [&](const char* name, const auto& value) { demand(name, value, values[next++]); });
}

}  // namespace detail
}  // namespace smelt
