// SPDX-License-Identifier: Apache-2.0
//
// Numbers as people read them: thousands apart, a metric prefix, minutes and seconds.
#pragma once

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace smelt {

/// 1234567 as "1 234 567": exact, for counts that somebody may compare digit by digit.
inline std::string grouped(std::int64_t value) {
  std::string text = std::to_string(value);
  const std::size_t first = value < 0 ? 1 : 0;
  for (std::size_t place = text.size(); place > first + 3;) text.insert(place -= 3, 1, ' ');
  return text;
}

/// 1234567 as "1.23 M": three digits and a metric prefix, with the unit behind it.
inline std::string scaled(double value, std::string_view unit = {}) {
  constexpr std::array<std::string_view, 7> prefixes{"", "k", "M", "G", "T", "P", "E"};
  if (!std::isfinite(value)) return fmt::format("{} {}", value, unit);
  std::size_t prefix = 0;
  // 999.5 would print as 1000 of the smaller prefix.
  while (std::abs(value) >= 999.5 && prefix + 1 < prefixes.size()) {
    value /= 1000;
    ++prefix;
  }
  const double size = std::abs(value);
  const bool whole = prefix == 0 && value == std::floor(value);
  const int digits = whole || size >= 99.95 ? 0 : size >= 9.995 ? 1 : 2;
  // A unit with a space before it, " tokens", stands apart from the prefix: 1.2 k tokens, 7 tokens.
  std::string suffix = fmt::format("{}{}", prefixes[prefix], unit);
  if (!suffix.starts_with(' ') && !suffix.empty()) suffix.insert(0, 1, ' ');
  return fmt::format("{:.{}f}{}", value, digits, suffix);
}

/// Seconds as "1:02:05", "2:05" or "0:07".
inline std::string clock_time(double seconds) {
  if (!(seconds >= 0) || seconds > 1e9) return "?";
  const auto whole = static_cast<std::int64_t>(std::llround(seconds));
  if (whole < 3600) return fmt::format("{}:{:02}", whole / 60, whole % 60);
  return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

/// A fraction as "43.2 %".
inline std::string percent(double fraction) {
  return fmt::format("{:.1f} %", 100 * fraction);
}

/// How far `value` lies from `reference`, in thousandths with its sign: "+12".
inline std::string signed_permille(double value, double reference) {
  if (reference == 0) return value == 0 ? "0" : "?";
  const double off = std::round(1000 * (value - reference) / std::abs(reference));
  return off == 0 ? "0" : fmt::format("{:+.0f}", off);
}

}  // namespace smelt
