// SPDX-License-Identifier: Apache-2.0
//
// Token shards: files of token ids, read in place and written as a stream. Little-endian.
//
//   llmc_uint16         256 int32 (magic 20240520, version 1, count, zeros), then count uint16
//   llmc_uint32         256 int32 (magic 20240801, version 7, count, zeros), then count uint32
//   headerless_uint16   uint16 to the end of the file
//
// The magic tells the first two apart. A file without a header looks like any other file, so that
// kind is believed only where the caller names it. Source: llm.c, dev/data (its file format).
#pragma once

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <limits>
#include <optional>
#include <ranges>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "smelt/io/checksum.hpp"
#include "smelt/io/file.hpp"
#include "smelt/io/message.hpp"

namespace smelt {

/// How a shard is laid out and how wide its tokens are.
enum class token_format : std::uint8_t { llmc_uint16, llmc_uint32, headerless_uint16 };

namespace detail {
// One row per enumerator, in the same order.
struct token_format_row {
  const char* name;
  std::int32_t magic;  // 0: no header
  std::int32_t version;
  std::int64_t token_bytes;
};
inline constexpr std::array<token_format_row, 3> token_format_rows{
    {{"llm.c uint16", 20240520, 1, 2},
     {"llm.c uint32", 20240801, 7, 4},
     {"headerless uint16", 0, 0, 2}}};

constexpr const token_format_row& token_row(token_format format) {
  return token_format_rows[static_cast<std::size_t>(format)];
}

using token_header = std::array<std::int32_t, 256>;
inline constexpr std::int64_t token_header_bytes = sizeof(token_header);

inline std::string token_header_text() {
  return "a header of " + byte_text(token_header_bytes);
}
}  // namespace detail

/// "llm.c uint16 (magic 20240520, version 1)".
inline std::string token_format_text(token_format format) {
  const detail::token_format_row& row = detail::token_row(format);
  if (row.magic == 0) return row.name;
  return std::string(row.name) + " (magic " + std::to_string(row.magic) + ", version " +
         std::to_string(row.version) + ")";
}

/// Bytes of one token.
constexpr std::int64_t token_bytes(token_format format) {
  return detail::token_row(format).token_bytes;
}

/// The first id that a token of this format cannot hold: 65,536 or 2^32.
constexpr std::int64_t token_limit(token_format format) {
  return std::int64_t{1} << (8 * token_bytes(format));
}

/// Where the tokens of a file lie.
struct token_layout {
  token_format format = token_format::llmc_uint16;
  std::int64_t offset_bytes = 0;  ///< of the first token
  std::int64_t tokens = 0;        ///< how many
};

namespace detail {
// The format that a magic belongs to, or nothing.
inline std::optional<token_format> format_of_magic(std::int32_t magic) {
  for (std::size_t i = 0; i < token_format_rows.size(); ++i)
    if (magic != 0 && token_format_rows[i].magic == magic) return static_cast<token_format>(i);
  return std::nullopt;
}

// Word `index` of the header, or nothing where the file ends before it.
inline std::optional<std::int32_t> header_word(std::span<const std::byte> file, std::size_t index) {
  std::int32_t word = 0;
  if (file.size() < (index + 1) * sizeof word) return std::nullopt;
  std::memcpy(&word, file.data() + index * sizeof word, sizeof word);
  return word;
}

[[noreturn]] inline void refuse_truncated(const std::string& place, const std::string& expected,
                                          std::size_t found_bytes) {
  throw io_error(place, expected, byte_text(found_bytes),
                 "the file is truncated: fetch or write it again");
}

// Throws unless the file begins with the magic and version of a known format, the wanted one.
inline token_format detect_token_format(std::span<const std::byte> file, const std::string& place,
                                        std::optional<token_format> wanted) {
  const std::optional<std::int32_t> magic = header_word(file, 0);
  if (!magic) refuse_truncated(place, token_header_text(), file.size());
  const std::optional<token_format> format = format_of_magic(*magic);
  if (!format) {
    // The one file that stands beside shards and is taken for one.
    constexpr std::int32_t evaluation_magic = 20240522;
    std::string expected = wanted ? token_format_text(*wanted)
                                  : token_format_text(token_format::llmc_uint16) + " or " +
                                        token_format_text(token_format::llmc_uint32);
    throw io_error(place, expected,
                   "magic " + std::to_string(*magic) +
                       (*magic == evaluation_magic ? ", an evaluation file of llm.c" : ""),
                   "name a token shard, or say headerless_uint16 if it is one without a header");
  }
  const std::optional<std::int32_t> version = header_word(file, 1);
  if (!version) refuse_truncated(place, token_header_text(), file.size());
  if (*version != token_row(*format).version)
    throw io_error(place, token_format_text(*format), "version " + std::to_string(*version),
                   "write the shard again in this version");
  if (wanted && *wanted != *format)
    throw io_error(place, token_format_text(*wanted), token_format_text(*format),
                   "name the format that it has, or convert it");
  return *format;
}
}  // namespace detail

/// Reads the layout of a file that lies in memory and demands that it is as long as it must be.
/// @param wanted  the format it must have; without it, what the magic says, never headerless.
/// @throws smelt::error naming `place`, what was expected and what was found.
inline token_layout parse_token_shard(std::span<const std::byte> file, const std::string& place,
                                      std::optional<token_format> wanted = std::nullopt) {
  const auto file_bytes = static_cast<std::int64_t>(file.size());
  if (wanted == token_format::headerless_uint16) {
    // Its first two tokens could be those of a magic, but are not by chance.
    if (const auto magic = detail::header_word(file, 0); magic && detail::format_of_magic(*magic))
      throw detail::io_error(place, token_format_text(*wanted),
                             token_format_text(*detail::format_of_magic(*magic)),
                             "name the format that it has");
    if (file_bytes == 0 || file_bytes % 2 != 0)
      throw detail::io_error(place, "2 bytes for each of at least 1 token",
                             detail::byte_text(file_bytes),
                             "the file is truncated or no token shard");
    return {*wanted, 0, file_bytes / 2};
  }
  const token_format format = detail::detect_token_format(file, place, wanted);
  if (file_bytes < detail::token_header_bytes)
    detail::refuse_truncated(place, detail::token_header_text(), file.size());
  // Below zero: a writer that counted past 2^31.
  const std::int64_t tokens = *detail::header_word(file, 2);
  if (tokens < 1)
    throw detail::io_error(place, "a count of at least 1 token", std::to_string(tokens),
                           "write the shard again, in several of fewer than 2^31 tokens");
  // Exactly: a copy that was cut off and a second run that appended are both mistakes.
  const std::int64_t wanted_bytes = detail::token_header_bytes + tokens * token_bytes(format);
  const std::string expected = detail::byte_text(wanted_bytes) + " for " + std::to_string(tokens) +
                               " tokens of " + detail::byte_text(token_bytes(format));
  if (file_bytes < wanted_bytes) detail::refuse_truncated(place, expected, file.size());
  if (file_bytes > wanted_bytes)
    throw detail::io_error(place, expected, detail::byte_text(file_bytes),
                           "something was appended to it: fetch or write it again");
  return {format, detail::token_header_bytes, tokens};
}

namespace detail {
inline error bad_token(const std::string& place, std::int64_t position, std::int64_t vocabulary,
                       std::int64_t found) {
  return io_error(place + ": token at position " + std::to_string(position),
                  "an id below " + std::to_string(vocabulary), std::to_string(found),
                  "check that the tokenizer belongs to this vocabulary");
}
}  // namespace detail

/// One shard, read in place: only the pages of the tokens asked for are ever read.
class token_shard {
 public:
  /// @param wanted  as for parse_token_shard.
  /// @throws smelt::error naming the file, as parse_token_shard and mapped_file.
  explicit token_shard(const std::filesystem::path& path,
                       std::optional<token_format> wanted = std::nullopt)
      : file_(path), layout_(parse_token_shard(file_.bytes(), path.string(), wanted)) {}

  const std::filesystem::path& path() const { return file_.path(); }
  token_format format() const { return layout_.format; }
  /// How many tokens.
  std::int64_t size() const { return layout_.tokens; }

  /// Calls `use` with all tokens as one span of uint16 or uint32; for loops over many of them.
  template <class Use>
  decltype(auto) visit(Use&& use) const {
    // The header is a multiple of 4 bytes and the mapping begins at a page: aligned.
    const std::byte* first = file_.bytes().data() + layout_.offset_bytes;
    const auto count = static_cast<std::size_t>(layout_.tokens);
    if (token_bytes(layout_.format) == 2)
      return use(std::span(reinterpret_cast<const std::uint16_t*>(first), count));
    return use(std::span(reinterpret_cast<const std::uint32_t*>(first), count));
  }

  /// Token i of [0, size()).
  std::uint32_t token(std::int64_t i) const {
    if (i < 0 || i >= size())
      throw detail::io_error(path().string(), "a position below " + std::to_string(size()),
                             std::to_string(i), "stay inside the shard");
    return visit([i](auto tokens) -> std::uint32_t { return tokens[static_cast<std::size_t>(i)]; });
  }

  /// Reads every token and demands an id below `vocabulary`.
  /// @throws smelt::error naming file, position and id of the first that is not.
  void check_vocabulary(std::int64_t vocabulary) const {
    // 65,536 ids of 16 bits cannot be wrong.
    if (vocabulary >= token_limit(format())) return;
    visit([&](auto tokens) {
      for (std::size_t i = 0; i < tokens.size(); ++i)
        if (tokens[i] >= vocabulary)
          throw detail::bad_token(path().string(), static_cast<std::int64_t>(i), vocabulary,
                                  tokens[i]);
    });
  }

 private:
  mapped_file file_;
  token_layout layout_;
};

/// Writes one shard; what stood at the path is there until the new file is whole.
class token_writer {
 public:
  /// @param vocabulary  ids are below it; at most what a token of the format can hold.
  token_writer(const std::filesystem::path& path, token_format format, std::int64_t vocabulary)
      : format_(format), vocabulary_(vocabulary), file_(path) {
    if (vocabulary < 1 || vocabulary > token_limit(format))
      throw detail::io_error(path.string(),
                             "a vocabulary of 1 to " + std::to_string(token_limit(format)) +
                                 " for " + token_format_text(format),
                             std::to_string(vocabulary), "use llmc_uint32 for a larger one");
    // The count is known at the end; until then the header is zeros, which no reader takes.
    if (has_header()) {
      const detail::token_header empty{};
      file_.write(std::as_bytes(std::span(empty)));
    }
    pending_.reserve(pending_bytes);
  }

  /// How many were appended.
  std::int64_t tokens() const { return tokens_; }

  /// Appends a range of tokens of any integer type.
  /// @throws smelt::error naming file, position and id of the first that is not of the vocabulary;
  ///         the tokens before it are appended.
  template <std::ranges::input_range Tokens>
  requires std::integral<std::ranges::range_value_t<Tokens>>
  void append(const Tokens& tokens) {
    for (const auto token : tokens) {
      // Compared as numbers, whatever the types: neither -1 nor 2^32 + 5 becomes a legal id.
      if (std::cmp_less(token, 0) || std::cmp_greater_equal(token, vocabulary_))
        throw detail::io_error(
            file_.path().string() + ": token at position " + std::to_string(tokens_),
            "an id from 0 to " + std::to_string(vocabulary_ - 1), std::to_string(token),
            "check that the tokenizer belongs to this vocabulary");
      if (has_header() && tokens_ == most_tokens)
        throw detail::io_error(file_.path().string(),
                               "at most " + std::to_string(most_tokens) + " tokens in a shard",
                               "one more", "begin another shard");
      const auto id = static_cast<std::uint32_t>(token);
      const auto* bytes = reinterpret_cast<const std::byte*>(&id);  // little-endian: low half first
      pending_.insert(pending_.end(), bytes, bytes + token_bytes(format_));
      ++tokens_;
      if (pending_.size() >= pending_bytes) flush();
    }
  }

  /// Puts the file in its place.
  /// @throws smelt::error where no token was appended, or as atomic_file.
  void finish() {
    if (tokens_ == 0)
      throw detail::io_error(file_.path().string(), "at least 1 token", "none",
                             "leave out an empty shard");
    flush();
    // Last of all: a shard with this header has all its tokens.
    if (has_header()) {
      const detail::token_format_row& row = detail::token_row(format_);
      const detail::token_header header{row.magic, row.version, static_cast<std::int32_t>(tokens_)};
      file_.rewrite(0, std::as_bytes(std::span(header)));
    }
    file_.finish();
  }

 private:
  static constexpr std::size_t pending_bytes = std::size_t{1} << 20U;  // one write
  // The count is an int32 in the file.
  static constexpr std::int64_t most_tokens = std::numeric_limits<std::int32_t>::max();

  bool has_header() const { return detail::token_row(format_).magic != 0; }

  // A system call per token would be slow; one per megabyte is not noticed.
  void flush() {
    file_.write(pending_);
    pending_.clear();
  }

  token_format format_;
  std::int64_t vocabulary_;
  atomic_file file_;
  std::vector<std::byte> pending_;  // appended, but not yet handed to the file
  std::int64_t tokens_ = 0;
};

}  // namespace smelt
