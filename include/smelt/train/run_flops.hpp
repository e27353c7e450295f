// SPDX-License-Identifier: Apache-2.0
//
// flop_total: FLOPs of a whole run, exact. A step fits into 64 bits, a run does not (9.2e18 is a
// few hours of one node), and a double forgets single steps.
//
//   total = high * 10^18 + low,   low < 10^18: its digits are those of the two behind each other
#pragma once

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "smelt/io/message.hpp"

namespace smelt {

/// Up to 9.2e36; only grows.
class flop_total {
 public:
  flop_total() = default;
  /// Reads back what text() wrote.
  /// @throws smelt::error where that is no whole number of at most 36 digits.
  explicit flop_total(std::string_view text) {
    const std::size_t cut = text.size() > digits ? text.size() - digits : 0;
    if (text.empty() || text.size() > 2 * digits || !number(text.substr(cut), low_) ||
        (cut > 0 && !number(text.substr(0, cut), high_)))
      throw detail::io_error("FLOPs", "a whole number of 1 to 36 digits", detail::quoted_name(text),
                             "use a checkpoint that is whole");
  }

  /// `flops` of a step, not negative.
  void add(std::int64_t flops) {
    // 10^18 and 2^63 - 1 together pass 63 bits, but not 64.
    const std::uint64_t sum = static_cast<std::uint64_t>(low_) + static_cast<std::uint64_t>(flops);
    high_ += static_cast<std::int64_t>(sum / unit);
    low_ = static_cast<std::int64_t>(sum % unit);
  }

  /// All its digits.
  std::string text() const {
    if (high_ == 0) return std::to_string(low_);
    const std::string tail = std::to_string(low_);
    return std::to_string(high_) + std::string(digits - tail.size(), '0') + tail;
  }

  bool operator==(const flop_total&) const = default;

 private:
  static constexpr std::size_t digits = 18;
  static constexpr std::uint64_t unit = 1'000'000'000'000'000'000;

  static bool number(std::string_view text, std::int64_t& value) {
    const char* const end = text.data() + text.size();
    const auto read = std::from_chars(text.data(), end, value);
    return read.ec == std::errc() && read.ptr == end && value >= 0;
  }

  std::int64_t high_ = 0;
  std::int64_t low_ = 0;
};

}  // namespace smelt
