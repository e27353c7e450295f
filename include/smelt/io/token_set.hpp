// SPDX-License-Identifier: Apache-2.0
//
// token_set: many shards as one long sequence of tokens with 64-bit positions; and the documents
// in it.
//
//   shards      in natural order of their names (shard_9 before shard_10), all of one format
//   document    the tokens between two end-of-text tokens, whether a file puts that token before
//               each document (llm.c) or behind it; it may reach over the end of a shard
//
// Reading allocates nothing, touches only the pages it needs and demands every id below the
// vocabulary: an embedding row that does not exist must never be looked up.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "smelt/io/message.hpp"
#include "smelt/io/natural_order.hpp"
#include "smelt/io/tokens.hpp"

namespace smelt {

/// The files of a folder whose names begin and end so, in natural order. Not those below it.
/// @throws smelt::error naming the folder where it cannot be read or none of its files fits.
inline std::vector<std::filesystem::path> token_shards_in(const std::filesystem::path& folder,
                                                          std::string_view beginning = "",
                                                          std::string_view ending = ".bin") {
  std::error_code code;
  std::vector<std::filesystem::path> found;
  std::filesystem::directory_iterator walk(folder, code);
  for (; !code && walk != std::filesystem::directory_iterator(); walk.increment(code)) {
    const std::string name = walk->path().filename().string();
    std::error_code ignored;
    if (name.size() >= beginning.size() + ending.size() && name.starts_with(beginning) &&
        name.ends_with(ending) && walk->is_regular_file(ignored))
      found.push_back(walk->path());
  }
  if (code)
    throw detail::io_error(folder.string(), "a folder of token shards", code.message(),
                           "check the path and its permissions");
  if (found.empty())
    throw detail::io_error(folder.string(),
                           "files named " + std::string(beginning) + "*" + std::string(ending),
                           "none", "name the folder that holds the shards");
  std::sort(found.begin(), found.end(),
            [](const auto& a, const auto& b) { return natural_less(a.string(), b.string()); });
  return found;
}

/// Many shards as one sequence.
class token_set {
 public:
  /// @param paths       in any order; sorted naturally here.
  /// @param vocabulary  every token is below it.
  /// @param wanted      the format of all; without it, what each magic says.
  /// @throws smelt::error where a shard is broken, named twice, or of another format than the
  /// first.
  token_set(std::vector<std::filesystem::path> paths, std::int64_t vocabulary,
            std::optional<token_format> wanted = std::nullopt)
      : vocabulary_(vocabulary) {
    if (paths.empty())
      throw detail::io_error("token_set", "at least 1 shard", "none", "name the files");
    if (vocabulary < 1)
      throw detail::io_error("token_set", "a vocabulary of at least 1", std::to_string(vocabulary),
                             "give the model's vocabulary");
    // "a" and "./a" are one file.
    for (std::filesystem::path& path : paths) path = path.lexically_normal();
    std::sort(paths.begin(), paths.end(),
              [](const auto& a, const auto& b) { return natural_less(a.string(), b.string()); });
    for (std::size_t i = 0; i < paths.size(); ++i) {
      if (i > 0 && paths[i] == paths[i - 1])
        throw detail::io_error(paths[i].string(), "every shard once", "it a second time",
                               "name it once");
      shards_.emplace_back(paths[i], wanted);
      const token_shard& first = shards_.front();
      if (shards_.back().format() != first.format())
        throw detail::io_error(
            paths[i].string(),
            token_format_text(first.format()) + " as in " + first.path().string(),
            token_format_text(shards_.back().format()),
            "make one set of each format, or convert the shards of one");
      starts_.push_back(size_);
      size_ += shards_.back().size();
    }
  }

  /// Tokens of all shards, end-of-text tokens among them.
  std::int64_t size() const { return size_; }
  std::int64_t vocabulary() const { return vocabulary_; }
  token_format format() const { return shards_.front().format(); }
  /// In the order of the sequence.
  const std::vector<token_shard>& shards() const { return shards_; }

  /// Token i of [0, size()), below the vocabulary.
  std::uint32_t token(std::int64_t i) const {
    std::uint32_t id = 0;
    read(i, std::span(&id, 1));
    return id;
  }

  /// Copies tokens [begin, begin + tokens.size()) into memory of any integer type.
  /// @throws smelt::error where that is not within the sequence, and naming file, position in it
  ///         and id where a token is not below the vocabulary; the memory then holds part of them.
  template <std::integral Token>
  void read(std::int64_t begin, std::span<Token> tokens) const {
    const auto count = static_cast<std::int64_t>(tokens.size());
    if (begin < 0 || count > size_ || begin > size_ - count)
      throw detail::io_error(place(), "positions within [0, " + std::to_string(size_) + ")",
                             "[" + std::to_string(begin) + ", " + std::to_string(begin) + " + " +
                                 std::to_string(count) + ")",
                             "read less, or from further in front");
    if (std::cmp_greater(vocabulary_ - 1, std::numeric_limits<Token>::max()))
      throw detail::io_error(
          place(), "memory that holds ids up to " + std::to_string(vocabulary_ - 1),
          detail::byte_text(sizeof(Token)) + " for each", "read into a wider type");
    // The largest id is found on the way, for one comparison a piece; which it was is sought only
    // when it is too large.
    auto next = tokens.begin();
    each_piece(begin, begin + count, [&](std::size_t shard, std::int64_t offset, auto piece) {
      std::uint32_t largest = 0;
      for (const auto id : piece) {
        largest = std::max<std::uint32_t>(largest, id);
        *next++ = static_cast<Token>(id);
      }
      if (largest >= vocabulary_) refuse(shard, offset, piece);
      return true;
    });
  }

  /// The first position from `begin` on whose token is `id`; size() if there is none.
  std::int64_t find(std::int64_t id, std::int64_t begin) const {
    std::int64_t found = size_;
    each_piece(std::clamp<std::int64_t>(begin, 0, size_), size_,
               [&](std::size_t shard, std::int64_t offset, auto piece) {
                 const auto place = std::find(piece.begin(), piece.end(), id);
                 if (place == piece.end()) return true;
                 found = starts_[shard] + offset + (place - piece.begin());
                 return false;
               });
    return found;
  }

  /// Reads everything, for a check before a long run: what `read` would refuse later.
  void check_vocabulary() const {
    for (const token_shard& shard : shards_) shard.check_vocabulary(vocabulary_);
  }

  /// For messages: the first file and how many others.
  std::string place() const {
    std::string first = shards_.front().path().string();
    if (shards_.size() == 1) return first;
    return first + " and " + std::to_string(shards_.size() - 1) +
           (shards_.size() == 2 ? " other shard" : " other shards");
  }

 private:
  // Calls use(shard, offset in it, span) for each piece of [begin, end) that lies in one shard,
  // until it returns false.
  template <class Use>
  void each_piece(std::int64_t begin, std::int64_t end, Use&& use) const {
    // The shard that holds `begin`: the last one that starts at or before it.
    auto shard = static_cast<std::size_t>(std::upper_bound(starts_.begin(), starts_.end(), begin) -
                                          starts_.begin() - 1);
    for (; begin < end; ++shard) {
      const std::int64_t offset = begin - starts_[shard];
      const std::int64_t count = std::min(shards_[shard].size() - offset, end - begin);
      const bool goes_on = shards_[shard].visit([&](auto tokens) {
        return use(
            shard, offset,
            tokens.subspan(static_cast<std::size_t>(offset), static_cast<std::size_t>(count)));
      });
      if (!goes_on) return;
      begin += count;
    }
  }

  // Names the first id of a piece that is not below the vocabulary; there is one.
  template <class Piece>
  [[noreturn]] void refuse(std::size_t shard, std::int64_t offset, Piece piece) const {
    const auto bad =
        std::find_if(piece.begin(), piece.end(), [this](auto id) { return id >= vocabulary_; });
    throw detail::bad_token(shards_[shard].path().string(), offset + (bad - piece.begin()),
                            vocabulary_, *bad);
  }

  std::int64_t vocabulary_;
  std::int64_t size_ = 0;
  std::vector<token_shard> shards_;
  std::vector<std::int64_t> starts_;  // the position at which each begins
};

/// Tokens [begin, end) of a set, without the end-of-text token, which stands at `end` unless the
/// document is the last and was not closed.
struct token_document {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  bool is_closed = false;

  std::int64_t size() const { return end - begin; }
  /// Where the next one may begin.
  std::int64_t next() const { return end + (is_closed ? 1 : 0); }
  bool operator==(const token_document&) const = default;
};

/// The documents of a set, which must outlive it. Holds no list of them: billions of tokens have
/// millions of documents, and a run needs the next one only.
class token_documents {
 public:
  /// @throws smelt::error where no token of the set is `end_of_text`: the id is then a mistake,
  ///         and all of the text would be one document.
  token_documents(const token_set& set, std::int64_t end_of_text)
      : set_(&set), end_of_text_(end_of_text) {
    if (end_of_text < 0 || end_of_text >= set.vocabulary())
      throw detail::io_error(set.place(),
                             "an end-of-text id below " + std::to_string(set.vocabulary()),
                             std::to_string(end_of_text), "give the tokenizer's own");
    if (set.find(end_of_text, 0) == set.size())
      throw detail::io_error(set.place(),
                             "the end-of-text token " + std::to_string(end_of_text) +
                                 " somewhere in " + std::to_string(set.size()) + " tokens",
                             "none", "check which id the tokenizer ends a text with");
  }

  /// The first document that begins at `position` or behind it; nothing at the end of the set.
  /// From the middle of a document it goes on to the next. Empty documents are passed over.
  /// Iterate from 0 by document->next().
  std::optional<token_document> next(std::int64_t position) const {
    position = std::max<std::int64_t>(position, 0);
    if (position > 0 && position < set_->size() && set_->token(position - 1) != end_of_text_)
      position = set_->find(end_of_text_, position) + 1;
    while (position < set_->size()) {
      const std::int64_t end = set_->find(end_of_text_, position);
      if (end > position) return token_document{position, end, end < set_->size()};
      ++position;  // an end-of-text token behind another
    }
    return std::nullopt;
  }

 private:
  const token_set* set_;
  std::int64_t end_of_text_;
};

}  // namespace smelt
