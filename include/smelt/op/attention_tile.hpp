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
  const std::int64_t first_token = slot * tile;
  const std::int64_t last_token = std::min(documents.tokens(), first_token + tile);
  const std::int64_t* const past = documents.offsets + documents.count + 1;
  // The segment that holds first_token: the last one that begins at or before it.
  std::int64_t s = std::upper_bound(documents.offsets, past, first_token) - documents.offsets - 1;
  for (; s < documents.count && documents.begin(s) < last_token; ++s) {
    const std::int64_t begin = documents.begin(s);
    const std::int64_t end = begin + documents.length(s);
    // Tiles before the slot belong to an earlier one.
    const std::int64_t skipped = begin < first_token ? (first_token - begin + tile - 1) / tile : 0;
    for (std::int64_t t = begin + skipped * tile; t < std::min(end, last_token); t += tile)
      body(begin, end, t, std::min(end, t + tile));
  }
}

}  // namespace host_backend
}  // namespace smelt
