// SPDX-License-Identifier: Apache-2.0
//
// How the law room words its errors: numbers as a reader writes them, and the place a number came
// from. Every error of this room is one line that names the row or the quantity (smelt::error).
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

namespace smelt::law {

/// A number as text for a message or a table cell: `digits` significant digits, no trailing zeros.
/// NaN and infinities are spelled "nan", "inf", "-inf", so that a message can quote them.
inline std::string number_text(double value, int digits = 6) {
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, "%.*g", digits, value);
  return buffer;
}

/// "1 cell", "3 cells": a count with its noun, so that messages read as sentences.
inline std::string count_text(std::int64_t count, std::string_view noun) {
  std::string text = std::to_string(count) + " " + std::string(noun);
  if (count != 1) text += "s";
  return text;
}

/// Where a datum came from: its row in the file when one is known, else its place in the list.
/// `row` is the 1-based line of the file (0: unknown), `index` the 0-based place in the list.
inline std::string place_text(std::int64_t row, std::int64_t index) {
  return row > 0 ? "row " + std::to_string(row) : "endpoint " + std::to_string(index + 1);
}

}  // namespace smelt::law
