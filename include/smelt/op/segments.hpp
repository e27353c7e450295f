// SPDX-License-Identifier: Apache-2.0
//
// Packed documents: a batch is one row of tokens, cut into segments that do not see each other.
//
//   segment s = tokens [offsets[s], offsets[s + 1]),   position of a token = its distance to the
//   start
//
// A batch of B sequences of T tokens without packing has B segments of T.
// Source: paper section 1 (documents packed, attention masked per document).
#pragma once

#include <cstdint>

#include "smelt/exec/host_device.hpp"

namespace smelt {

/// A view of `count + 1` ascending offsets; the first is 0, the last the number of tokens. Where
/// the offsets lie in a device's memory, the host is told both totals beforehand; empty segments at
/// the end are allowed, so that a captured graph can keep one count for every batch.
struct segments {
  const std::int64_t* offsets = nullptr;
  std::int64_t count = 0;
  std::int64_t known_tokens = -1;  // tokens(), or -1: read the offsets
  std::int64_t known_pairs = -1;   // pairs(), or -1

  SMELT_HD std::int64_t tokens() const {
    if (known_tokens >= 0) return known_tokens;
    return count == 0 ? 0 : offsets[count];
  }
  SMELT_HD std::int64_t begin(std::int64_t segment) const { return offsets[segment]; }
  SMELT_HD std::int64_t length(std::int64_t segment) const {
    return offsets[segment + 1] - offsets[segment];
  }
  /// (query, attended position) pairs under the causal mask: the sum of length (length + 1) / 2.
  std::int64_t pairs() const {
    if (known_pairs >= 0) return known_pairs;
    std::int64_t sum = 0;
    for (std::int64_t s = 0; s < count; ++s) sum += length(s) * (length(s) + 1) / 2;
    return sum;
  }
};

}  // namespace smelt
