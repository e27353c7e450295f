// SPDX-License-Identifier: Apache-2.0
//
// How long a rendezvous waits, and the one line that says for whom it waited in vain.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>

#include "smelt/error.hpp"

namespace smelt::detail {

/// A point in time that a rendezvous does not outlast.
class rendezvous_limit {
 public:
  // Rank 0 knows who is missing: it speaks before the others, and a launcher then ends those.
  rendezvous_limit(double seconds, std::int64_t rank)
      : seconds_(seconds), end_(clock::now() + in_ticks(seconds + (rank == 0 ? 0.0 : 1.0))) {}
  bool passed() const { return clock::now() >= end_; }
  /// Until then, and at most so many.
  int milliseconds(int most) const {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end_ - clock::now());
    return static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, most));
  }
  /// "waited 5 s for rank 2, which did not come"
  [[noreturn]] void fail(const std::string& place, const std::string& waited_for) const {
    char text[32];
    std::snprintf(text, sizeof text, "%g", seconds_);
    throw error(place + ": waited " + text + " s for " + waited_for +
                "; start all ranks of the job together, with one place to meet");
  }

 private:
  using clock = std::chrono::steady_clock;
  // A clock has no room for all that a double can say.
  static clock::duration in_ticks(double seconds) {
    return std::chrono::duration_cast<clock::duration>(
        std::chrono::duration<double>(std::min(seconds, 1e8)));
  }
  double seconds_;
  clock::time_point end_;
};

}  // namespace smelt::detail
