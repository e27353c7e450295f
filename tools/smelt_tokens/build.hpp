// SPDX-License-Identifier: Apache-2.0
//
// build: from sources to a folder of shards and its manifest, in this order
//
//   read every source into the spool; hold out; leave near-duplicates out of the training text;
//   write the shards; write manifest.json; put the folder in its place
//
// Nothing depends on the time, the machine or the number of its cores: the same sources make the
// same folder, byte by byte.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "held_out.hpp"
#include "near_duplicates.hpp"
#include "reader.hpp"
#include "shards.hpp"
#include "smelt/io/file.hpp"
#include "sources.hpp"
#include "stage.hpp"
#include "tokenizer.hpp"

namespace smelt_tokens {

/// What the user chose.
struct settings {
  std::filesystem::path out;
  bool dry_run = false;
  std::string tokenizer_name = "bytes";
  std::string format = "auto";  // or uint16, uint32
  std::string text_field = "text";
  std::int64_t held_out_one_in = 64;  // 0: nothing
  double near_threshold = 0.5;        // 0: near-duplicates stay
  std::int64_t near_words = 13;
  std::int64_t near_common = 10;
  std::int64_t longest_bytes = std::int64_t{1} << 18;
  std::int64_t shard_tokens = 100'000'000;
  std::int64_t most_bytes = 0;  // of each source; 0: all
};

/// What became of a source.
struct source_report {
  corpus_source source;
  amount training;
  amount held_out;
  amount near;  // left out of the training text
};

namespace detail {
inline nlohmann::ordered_json amount_json(const amount& part) {
  nlohmann::ordered_json json{
      {"documents", part.documents}, {"bytes", part.bytes}, {"tokens", part.tokens}};
  for (const written_shard& shard : part.shards)
    json["shards"].push_back(
        {{"file", shard.file}, {"tokens", shard.tokens}, {"xxh64", shard.checksum}});
  return json;
}

inline nlohmann::ordered_json manifest(const settings& chosen, const tokenizer& words,
                                       smelt::token_format format,
                                       const std::vector<source_report>& reports) {
  using json = nlohmann::ordered_json;
  json whole{{"smelt_tokens", 1},
             {"tokenizer",
              {{"name", words.name()},
               {"vocabulary", words.vocabulary()},
               {"end_of_text", words.end_of_text()}}},
             {"format", smelt::token_format_text(format)},
             {"held_out_one_in", chosen.held_out_one_in}};
  whole["near_duplicates"] = {{"method", "Jaccard or overlap of hashed word shingles"},
                              {"words", chosen.near_words},
                              {"common", chosen.near_common},
                              {"threshold", chosen.near_threshold}};
  for (const source_report& report : reports) {
    json entry{{"name", report.source.name},
               {"group", report.source.group},
               {"converter", converter_names[static_cast<std::size_t>(report.source.kind)]},
               {"files", report.source.files_read},
               {"binary_files", report.source.files_binary},
               {"repeated_documents", report.source.repeated_documents},
               {"near_duplicates", report.near.documents},
               {"train", amount_json(report.training)},
               {"held_out", amount_json(report.held_out)}};
    if (!report.source.package.empty()) entry["package"] = report.source.package;
    whole["sources"].push_back(std::move(entry));
  }
  return whole;
}

inline smelt::token_format format_for(const settings& chosen, const tokenizer& words) {
  if (chosen.format == "uint16") return smelt::token_format::llmc_uint16;
  if (chosen.format == "uint32") return smelt::token_format::llmc_uint32;
  return words.vocabulary() <= smelt::token_limit(smelt::token_format::llmc_uint16)
             ? smelt::token_format::llmc_uint16
             : smelt::token_format::llmc_uint32;
}
}  // namespace detail

/// @throws smelt::error, with nothing written.
inline std::vector<source_report> build(const settings& chosen,
                                        const std::vector<corpus_source>& sources) {
  const std::unique_ptr<tokenizer> words = make_tokenizer(chosen.tokenizer_name);
  const smelt::token_format format = detail::format_for(chosen, *words);
  // A dry run writes nothing but a file without a name where temporary files belong.
  std::optional<stage> output;
  if (!chosen.dry_run) output.emplace(chosen.out);
  const std::filesystem::path folder =
      output ? output->part() : std::filesystem::temp_directory_path();

  spool texts(folder);
  document_reader reader(texts, chosen.text_field, chosen.longest_bytes, chosen.most_bytes);
  std::vector<source_report> reports;
  std::vector<std::vector<spooled_document>> documents;
  for (const corpus_source& source : sources) {
    reports.push_back({source, {}, {}, {}});
    documents.push_back(reader.read(reports.back().source));
  }
  texts.finish();

  std::vector<document_split> splits;
  near_duplicates near(chosen.near_words, chosen.near_threshold, chosen.near_common);
  for (std::vector<spooled_document>& of_source : documents) {
    splits.push_back(split_documents(texts, std::move(of_source), chosen.held_out_one_in));
    for (const spooled_document& held : splits.back().held_out) near.add_held_out(texts.text(held));
  }
  near.finish_held_out();
  if (chosen.near_threshold > 0)
    for (const document_split& split : splits)
      for (const spooled_document& document : split.training) near.count(texts.text(document));
  near.finish_counts();

  shard_writer writer(*words, format, chosen.shard_tokens,
                      output ? std::optional(output->part()) : std::nullopt);
  std::int64_t training_tokens = 0;
  for (std::size_t i = 0; i < reports.size(); ++i) {
    source_report& report = reports[i];
    std::vector<spooled_document> kept;
    for (const spooled_document& document : splits[i].training) {
      const bool drop = chosen.near_threshold > 0 && near.is_one(texts.text(document));
      if (!drop) {
        kept.push_back(document);
        continue;
      }
      ++report.near.documents;
      report.near.bytes += document.size();
    }
    report.training = writer.write("train." + report.source.name, texts, kept);
    report.held_out = writer.write("held_out." + report.source.name, texts, splits[i].held_out);
    training_tokens += report.training.tokens;
  }
  if (training_tokens == 0)
    throw smelt::detail::io_error(sources.empty() ? "no source" : "source " + sources.front().name,
                                  "text to train on",
                                  "none in " + std::to_string(sources.size()) +
                                      (sources.size() == 1 ? " source" : " sources"),
                                  "name files or folders with plain text");
  if (!output) return reports;
  const std::string text = detail::manifest(chosen, *words, format, reports).dump(1) + "\n";
  smelt::atomic_file manifest(output->part() / "manifest.json");
  manifest.write(std::as_bytes(std::span<const char>(text)));
  manifest.finish();
  output->finish();
  return reports;
}

}  // namespace smelt_tokens
