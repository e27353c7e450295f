// SPDX-License-Identifier: Apache-2.0
//
// byte_counts: how often each byte occurs, the model without context that a trained one must beat.
//
//   H = - sum over bytes b of p(b) log p(b),   p(b) = count(b) / total      (nats per byte)
//
// Source: Shannon's entropy; with byte tokens a loss is in the same unit.
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace smelt {

/// How often each byte occurs: the model without context that a trained one must beat.
struct byte_counts {
  std::array<std::int64_t, 256> count{};
  std::int64_t total = 0;

  void add(const std::uint8_t* bytes, std::int64_t size) {
    for (std::int64_t i = 0; i < size; ++i) ++count[bytes[i]];
    total += size;
  }
  /// Entropy of the counts, in nats per byte: the least loss without looking at context.
  double entropy() const { return cross_entropy(*this); }
  /// Mean of -log p(byte) over `other`, in nats per byte, p being these counts; a byte never seen
  /// here counts as seen half a time.
  double cross_entropy(const byte_counts& other) const {
    double sum = 0;
    for (std::size_t byte = 0; byte < count.size(); ++byte) {
      if (other.count[byte] == 0) continue;
      const double seen = count[byte] > 0 ? static_cast<double>(count[byte]) : 0.5;
      sum -= static_cast<double>(other.count[byte]) * std::log(seen / static_cast<double>(total));
    }
    return other.total > 0 ? sum / static_cast<double>(other.total) : 0.0;
  }
};

}  // namespace smelt
