// SPDX-License-Identifier: Apache-2.0
//
// How the io room words its errors, always one line:
//
//   <file>[: <tensor or position>]: expected <what>, found <what>; <remedy>
//
// Names come out of files that somebody else wrote, so they are quoted before they are shown.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "smelt/error.hpp"

namespace smelt::detail {

/// A name out of a file, in quotes: at most 80 bytes of it, and \xNN for whatever is not printable
/// ASCII, so that a hostile name can neither break the line nor drive the terminal.
inline std::string quoted_name(std::string_view name) {
  constexpr std::size_t most_bytes = 80;
  constexpr std::string_view digits = "0123456789abcdef";
  std::string text = "'";
  for (const char c : name.substr(0, most_bytes)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7f && c != '\'' && c != '\\')
      text += c;
    else
      text += std::string("\\x") + digits[byte >> 4U] + digits[byte & 15U];
  }
  return text + (name.size() > most_bytes ? "...'" : "'");
}

/// The one shape of an error of this room; `place` is the file and what in it is meant.
inline error io_error(const std::string& place, const std::string& expected,
                      const std::string& found, const std::string& remedy) {
  return error(place + ": expected " + expected + ", found " + found + "; " + remedy);
}

/// "1 byte", "3 bytes".
template <class Count>
std::string byte_text(Count count) {
  return std::to_string(count) + (count == 1 ? " byte" : " bytes");
}

}  // namespace smelt::detail
