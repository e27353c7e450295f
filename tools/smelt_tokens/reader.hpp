// SPDX-License-Identifier: Apache-2.0
//
// From the files of a source to documents in the spool.
//
//   file         one document; unpacked if it is gzip, converted, left out if it is binary (NUL)
//   JSONL        a document per line (.jsonl, .ndjson), the text in one field of an object
//   long         a document beyond `longest_bytes` is cut behind paragraphs or lines
//   repeated     a document equal to one already read is left out, whatever its source
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "gunzip.hpp"
#include "smelt/io/file.hpp"
#include "sources.hpp"
#include "spool.hpp"

namespace smelt_tokens {

class document_reader {
 public:
  document_reader(spool& texts, std::string text_field, std::int64_t longest_bytes,
                  std::int64_t most_bytes)
      : texts_(&texts),
        text_field_(std::move(text_field)),
        longest_bytes_(longest_bytes),
        most_bytes_(most_bytes) {}

  /// All documents of a source; counts its files.
  /// @throws smelt::error naming file and line of malformed JSON, or the file that cannot be read.
  std::vector<spooled_document> read(corpus_source& source) {
    documents_.clear();
    bytes_ = 0;
    for (const std::filesystem::path& file : source.files) {
      // Whole files: the last one may pass the limit.
      if (most_bytes_ > 0 && bytes_ >= most_bytes_) break;
      read_file(file, source);
    }
    return std::move(documents_);
  }

 private:
  void read_file(const std::filesystem::path& path, corpus_source& source) {
    const smelt::mapped_file file(path);
    const std::string_view bytes(reinterpret_cast<const char*>(file.bytes().data()),
                                 file.bytes().size());
    const std::string ending = path.extension().string();
    if (ending == ".jsonl" || ending == ".ndjson") {
      read_lines(path, bytes, source);
      ++source.files_read;
      return;
    }
    const std::string text =
        plain_text(source.kind, is_gzip(bytes) ? gunzip(bytes, path.string()) : std::string(bytes));
    if (text.find('\0') != std::string::npos) {
      ++source.files_binary;
      return;
    }
    ++source.files_read;
    add(text, source);
  }

  void read_lines(const std::filesystem::path& path, std::string_view bytes,
                  corpus_source& source) {
    using nlohmann::json;
    std::int64_t line_number = 0;
    while (!bytes.empty()) {
      const std::size_t end = std::min(bytes.find('\n'), bytes.size());
      const std::string_view line = bytes.substr(0, end);
      bytes.remove_prefix(std::min(end + 1, bytes.size()));
      ++line_number;
      if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
      const auto refuse = [&](const std::string& found) {
        throw smelt::detail::io_error(
            path.string() + ": line " + std::to_string(line_number),
            "a JSON object with text in the field " + smelt::detail::quoted_name(text_field_),
            found, "mend the line or name the field with --text-field");
      };
      const json object = json::parse(line, nullptr, false);
      if (object.is_discarded()) refuse("no valid JSON");
      if (!object.is_object()) refuse(std::string("a JSON ") + object.type_name());
      const auto field = object.find(text_field_);
      if (field == object.end()) refuse("an object without it");
      if (!field->is_string()) refuse(std::string("a ") + field->type_name() + " in it");
      add(field->get_ref<const std::string&>(), source);
    }
  }

  // The end of the next piece: behind a paragraph if one ends in the second half of what fits, else
  // behind a line, else between two characters.
  std::size_t piece_end(std::string_view text) const {
    const auto most = static_cast<std::size_t>(longest_bytes_);
    if (text.size() <= most) return text.size();
    const std::string_view fitting = text.substr(0, most);
    const std::size_t paragraph = fitting.rfind("\n\n");
    if (paragraph != std::string_view::npos && paragraph >= most / 2) return paragraph + 2;
    const std::size_t line = fitting.rfind('\n');
    if (line != std::string_view::npos) return line + 1;
    std::size_t place = most;
    while (place > 1 && (static_cast<unsigned char>(text[place]) & 0xc0U) == 0x80U) --place;
    return place;
  }

  void add(std::string_view text, corpus_source& source) {
    while (!text.empty()) {
      const std::string_view piece = text.substr(0, piece_end(text));
      text.remove_prefix(piece.size());
      if (piece.find_first_not_of(" \t\r\n") == std::string_view::npos) continue;
      const std::uint64_t hash = content_hash(piece);
      if (!seen_.insert(hash).second) {
        ++source.repeated_documents;
        continue;
      }
      const std::int64_t begin = texts_->append(piece);
      const auto size = static_cast<std::int64_t>(piece.size());
      documents_.push_back({begin, begin + size, hash});
      bytes_ += size;
    }
  }

  spool* texts_;
  std::string text_field_;
  std::int64_t longest_bytes_;
  std::int64_t most_bytes_;
  std::unordered_set<std::uint64_t> seen_;   // contents of all sources
  std::vector<spooled_document> documents_;  // of this source
  std::int64_t bytes_ = 0;
};

}  // namespace smelt_tokens
