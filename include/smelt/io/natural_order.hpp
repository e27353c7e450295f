// SPDX-License-Identifier: Apache-2.0
//
// natural_less: names in the order a person counts, "experts.2" before "experts.10", "shard_9.bin"
// before "shard_10.bin".
//
// A name is read as a row of items, each a run of decimal digits (a number of any length) or one
// other byte; rows are compared item by item. Where two names are equal item by item ("a01" and
// "a1") plain byte order decides, so that different names are never equal: a total order.
#pragma once

#include <cstddef>
#include <string_view>

namespace smelt {

namespace detail {
inline bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

// Cuts the digits off the front of `rest`; what is returned has no leading zeros (zero is empty).
inline std::string_view take_number(std::string_view& rest) {
  std::size_t end = 0;
  while (end < rest.size() && is_digit(rest[end])) ++end;
  std::string_view digits = rest.substr(0, end);
  rest.remove_prefix(end);
  while (!digits.empty() && digits.front() == '0') digits.remove_prefix(1);
  return digits;
}
}  // namespace detail

/// Whether `left` comes before `right`. Bytes are unsigned; nothing depends on a locale.
inline bool natural_less(std::string_view left, std::string_view right) {
  std::string_view a = left;
  std::string_view b = right;
  while (!a.empty() && !b.empty()) {
    if (detail::is_digit(a.front()) && detail::is_digit(b.front())) {
      // Without leading zeros the longer number is the larger: no number is too long to compare.
      const std::string_view x = detail::take_number(a);
      const std::string_view y = detail::take_number(b);
      if (x.size() != y.size()) return x.size() < y.size();
      if (const int order = x.compare(y); order != 0) return order < 0;
      continue;
    }
    // A number stands where its digits stand among the bytes, whichever number it is.
    if (a.front() != b.front())
      return static_cast<unsigned char>(a.front()) < static_cast<unsigned char>(b.front());
    a.remove_prefix(1);
    b.remove_prefix(1);
  }
  if (a.empty() != b.empty()) return a.empty();
  return left < right;
}

/// The same as a type, for std::map and std::sort.
struct natural_order {
  using is_transparent = void;
  bool operator()(std::string_view left, std::string_view right) const {
    return natural_less(left, right);
  }
};

}  // namespace smelt
