// SPDX-License-Identifier: Apache-2.0
//
// How attention is cut into tiles, and the arithmetic of one score that host and device share.
//
// A tile is up to `tile` tokens of one segment, counted from the segment's start, so a document is
// cut in the same way wherever it lies in the batch and its results do not depend on its
// neighbours. Work is handed out by slots: slot i owns every tile that begins at a token of [i
// tile, (i + 1) tile). A slot of many short documents therefore weighs about as much as a slot with
// one tile of a long one, and no list of tiles has to be kept.
#pragma once

#include <algorithm>
#include <cstdint>

#include "smelt/exec/host_device.hpp"
#include "smelt/op/exponential.hpp"
#include "smelt/op/segments.hpp"

namespace smelt {

/// exp(score scale - reference): reference is the running maximum while the sum is still open
/// (forward) and the log-sum-exp once it is known (backward), which gives the probability itself.
template <class Real>
SMELT_HD Real attention_weight(Real score, Real scale, Real reference) {
  return exponential(score * scale - reference);
}

/// Gradient of an unscaled score: softmax backward, then the scale. delta = sum of dout out.
template <class Real>
SMELT_HD Real attention_score_gradient(Real probability, Real dprobability, Real delta,
                                       Real scale) {
  return probability * (dprobability - delta) * scale;
}

/// Keys that the query may see out of those that start at key_begin: those up to itself.
SMELT_HD inline std::int64_t attended_keys(std::int64_t query, std::int64_t key_begin,
                                           std::int64_t keys) {
  const std::int64_t causal = query - key_begin + 1;
  return causal < keys ? causal : keys;
}

/// A tile [begin, end) of tokens, and the segment that it is cut from.
struct attention_tile {
  std::int64_t segment_begin = 0, segment_end = 0;
  std::int64_t begin = 0, end = 0;
};

/// The tiles of a slot one after the other, on host and device (where the offsets are the
/// device's).
class attention_tile_walk {
 public:
  SMELT_HD attention_tile_walk(const segments& documents, std::int64_t slot, std::int64_t tile)
      : attention_tile_walk(documents, slot, tile, segment_of(documents, slot * tile)) {}
  /// The same for somebody who has found segment_of(documents, slot * tile).
  SMELT_HD attention_tile_walk(const segments& documents, std::int64_t slot, std::int64_t tile,
                               std::int64_t segment)
      : documents_(documents), tile_(tile), first_token_(slot * tile), segment_(segment) {
    const std::int64_t tokens = documents.tokens();
    last_token_ = first_token_ + tile < tokens ? first_token_ + tile : tokens;
    enter();
  }

  /// The segment that holds a token: the last one that begins at or before it.
  static SMELT_HD std::int64_t segment_of(const segments& documents, std::int64_t token) {
    // Below `low` segments begin at or before it, from `high` on they begin after it.
    std::int64_t low = 0, high = documents.count + 1;
    while (low < high) {
      const std::int64_t middle = low + (high - low) / 2;
      if (documents.offsets[middle] <= token)
        low = middle + 1;
      else
        high = middle;
    }
    return low - 1;
  }

  /// Stores the next tile; false where there is none.
  SMELT_HD bool next(attention_tile& tile) {
    for (; segment_ < documents_.count && at_.segment_begin < last_token_; ++segment_, enter()) {
      if (at_.begin >= at_.segment_end || at_.begin >= last_token_) continue;
      at_.end = at_.begin + tile_ < at_.segment_end ? at_.begin + tile_ : at_.segment_end;
      tile = at_;
      at_.begin += tile_;
      return true;
    }
    return false;
  }

 private:
  // Where the tiles of the segment begin inside the slot; those before it belong to earlier slots.
  SMELT_HD void enter() {
    if (segment_ >= documents_.count) return;
    at_.segment_begin = documents_.begin(segment_);
    at_.segment_end = at_.segment_begin + documents_.length(segment_);
    const std::int64_t before = first_token_ - at_.segment_begin;
    at_.begin = at_.segment_begin + (before > 0 ? (before + tile_ - 1) / tile_ * tile_ : 0);
  }

  segments documents_;
  std::int64_t tile_;
  std::int64_t first_token_, last_token_ = 0;
  std::int64_t segment_;
  attention_tile at_;
};

inline namespace host_backend {

/// Slots of a batch.
inline std::int64_t attention_slots(const segments& documents, std::int64_t tile) {
  return (documents.tokens() + tile - 1) / tile;
}

/// Tiles of the longest segment.
inline std::int64_t attention_longest(const segments& documents, std::int64_t tile) {
  std::int64_t longest = 0;
  for (std::int64_t s = 0; s < documents.count; ++s)
    longest = std::max(longest, documents.length(s));
  return (longest + tile - 1) / tile;
}

/// Calls body(segment_begin, segment_end, tile_begin, tile_end) for the tiles of a slot.
template <class Body>
void for_each_attention_tile(const segments& documents, std::int64_t slot, std::int64_t tile,
                             Body&& body) {
  attention_tile_walk walk(documents, slot, tile);
  for (attention_tile at; walk.next(at);) body(at.segment_begin, at.segment_end, at.begin, at.end);
}

}  // namespace host_backend
}  // namespace smelt
