// SPDX-License-Identifier: Apache-2.0
//
// token_batch: owns one batch of packed documents (see model/batch.hpp) and is filled by segments.
//
//   inputs[i]     token i
//   targets[i]    the token that follows it in its document, or -1: no loss here
//   positions[i]  distance of token i to the start of its segment
//   documents     where the segments begin; a segment sees itself alone
//
// B sequences of T tokens are one row of B T tokens: a sequence is nothing but a forced segment
// start. Source: paper section 1 (documents packed, attention masked per document).
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "smelt/error.hpp"
#include "smelt/model/batch.hpp"

namespace smelt {

/// Owns a batch of at most `capacity` tokens. Filled again and again; after construction it
/// allocates nothing.
class token_batch {
 public:
  explicit token_batch(std::int64_t capacity) : capacity_(capacity) {
    if (capacity < 1)
      throw error("token_batch: expected room for at least 1 token, found " +
                  std::to_string(capacity));
    const auto size = static_cast<std::size_t>(capacity);
    inputs_.resize(size);
    targets_.resize(size);
    positions_.resize(size);
    offsets_.resize(size + 1);  // every token may be a document of its own
  }

  std::int64_t capacity() const { return capacity_; }
  std::int64_t tokens() const { return tokens_; }
  /// Tokens that have a target: what a mean loss divides by.
  std::int64_t counted() const {
    return tokens_ - std::count(targets_.begin(), targets_.begin() + tokens_, no_target);
  }

  void clear() {
    tokens_ = 0;
    segment_count_ = 0;
  }

  /// Appends one segment: `count` consecutive tokens of one document, each predicting the next.
  /// `last_target` is what follows the last one, or no_target where the document ends.
  template <std::integral Token>
  void add_segment(const Token* document, std::int64_t count, std::int32_t last_target) {
    if (count < 1) return;
    if (count > capacity_ - tokens_)
      throw error("token_batch: room for " + std::to_string(capacity_) + " tokens, " +
                  std::to_string(tokens_) + " taken, " + std::to_string(count) +
                  " more do not fit; make the batch larger");
    const auto begin = static_cast<std::size_t>(tokens_);
    for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
      inputs_[begin + i] = static_cast<std::int32_t>(document[i]);
      positions_[begin + i] = static_cast<std::int32_t>(i);
      if (i > 0) targets_[begin + i - 1] = inputs_[begin + i];
    }
    tokens_ += count;
    targets_[static_cast<std::size_t>(tokens_) - 1] = last_target;
    offsets_[static_cast<std::size_t>(++segment_count_)] = tokens_;
  }

  batch_view view() const {
    return {tokens_, inputs_.data(), targets_.data(), positions_.data(),
            segments{offsets_.data(), segment_count_}};
  }

 private:
  std::int64_t capacity_;
  std::int64_t tokens_ = 0;
  std::int64_t segment_count_ = 0;
  std::vector<std::int32_t> inputs_;
  std::vector<std::int32_t> targets_;
  std::vector<std::int32_t> positions_;
  std::vector<std::int64_t> offsets_;
};

}  // namespace smelt
