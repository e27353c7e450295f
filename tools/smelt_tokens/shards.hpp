// SPDX-License-Identifier: Apache-2.0
//
// From documents to shards: PREFIX.<source>.<k>.bin, each document followed by the end-of-text
// token, a new shard where the next document would pass the limit. Without a folder nothing is
// written and all is counted.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "smelt/io/checksum.hpp"
#include "smelt/io/file.hpp"
#include "smelt/io/tokens.hpp"
#include "spool.hpp"
#include "tokenizer.hpp"

namespace smelt_tokens {

struct written_shard {
  std::string file;  // its name in the folder
  std::int64_t tokens = 0;
  std::string checksum{};  // XXH64 of the file
};

/// One half of a source, or the sum of many.
struct amount {
  std::int64_t documents = 0;
  std::int64_t bytes = 0;   // of text
  std::int64_t tokens = 0;  // end-of-text tokens among them
  std::vector<written_shard> shards{};

  amount& operator+=(const amount& other) {
    documents += other.documents;
    bytes += other.bytes;
    tokens += other.tokens;
    return *this;
  }
};

class shard_writer {
 public:
  /// @param folder  nothing: only count.
  shard_writer(const tokenizer& words, smelt::token_format format, std::int64_t shard_tokens,
               std::optional<std::filesystem::path> folder)
      : words_(&words), format_(format), shard_tokens_(shard_tokens), folder_(std::move(folder)) {}

  /// Writes documents in this order.
  amount write(const std::string& prefix, const spool& texts,
               const std::vector<spooled_document>& documents) {
    amount total;
    std::unique_ptr<smelt::token_writer> shard;
    std::vector<std::int64_t> ids;
    std::int64_t room = 0;  // in the present shard
    for (const spooled_document& document : documents) {
      words_->encode(texts.text(document), ids);
      if (ids.empty()) continue;
      ids.push_back(words_->end_of_text());
      const auto count = static_cast<std::int64_t>(ids.size());
      if (total.shards.empty() || count > room) {
        finish(shard.get(), total);
        total.shards.push_back({prefix + "." + std::to_string(total.shards.size()) + ".bin"});
        room = shard_tokens_;
        if (folder_)
          shard = std::make_unique<smelt::token_writer>(*folder_ / total.shards.back().file,
                                                        format_, words_->vocabulary());
      }
      if (shard) shard->append(ids);
      room -= std::min(room, count);
      ++total.documents;
      total.bytes += document.size();
      total.tokens += count;
      total.shards.back().tokens += count;
    }
    finish(shard.get(), total);
    return total;
  }

 private:
  void finish(smelt::token_writer* shard, amount& total) const {
    if (shard == nullptr) return;
    shard->finish();
    // As it lies on the disk, not as it was meant to.
    const smelt::mapped_file file(*folder_ / total.shards.back().file);
    total.shards.back().checksum = smelt::checksum_of(file.bytes()).text();
  }

  const tokenizer* words_;
  smelt::token_format format_;
  std::int64_t shard_tokens_;
  std::optional<std::filesystem::path> folder_;
};

}  // namespace smelt_tokens
