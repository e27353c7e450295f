// SPDX-License-Identifier: Apache-2.0
//
// One batch of packed documents, as a model takes it.
//
//   inputs[i]     token i
//   targets[i]    the token that follows it in its document, or no_target: no loss here
//   positions[i]  distance of token i to the start of its segment
//   documents     where the segments begin; a segment sees itself alone
//
// B sequences of T tokens are one row of B T tokens: a sequence is nothing but a forced segment
// start. Source: paper section 1 (documents packed, attention masked per document).
#pragma once

#include <cstdint>

#include "smelt/op/segments.hpp"

namespace smelt {

/// Target of a token that has no successor; it counts in no loss.
inline constexpr std::int32_t no_target = -1;

/// A batch in somebody else's memory.
struct batch_view {
  std::int64_t tokens = 0;
  const std::int32_t* inputs = nullptr;     // [tokens]
  const std::int32_t* targets = nullptr;    // [tokens], no_target where nothing is predicted
  const std::int32_t* positions = nullptr;  // [tokens], from 0 in each segment
  segments documents{};

  /// Tokens that have a target: what a mean loss divides by.
  std::int64_t counted() const {
    std::int64_t count = 0;
    for (std::int64_t i = 0; i < tokens; ++i) count += targets[i] == no_target ? 0 : 1;
    return count;
  }
};

}  // namespace smelt
