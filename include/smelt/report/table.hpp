// SPDX-License-Identifier: Apache-2.0
//
// table: rows of text in columns as wide as their widest cell, for a terminal or a log.
//
//                    baseline     smelt
//   parameters      1 234 567   1 240 000
//   --------------------------------------
//   held-out loss       1.812       1.790
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "smelt/error.hpp"

namespace smelt {

/// Where a cell stands in a column that is wider than it.
enum class align { left, right };

class table {
 public:
  /// A column and what stands above it.
  struct column {
    std::string head;
    align side = align::right;
  };

  explicit table(std::vector<column> columns) : columns_(std::move(columns)) {}

  /// One cell per column; throws otherwise.
  table& row(std::vector<std::string> cells) {
    if (cells.size() != columns_.size())
      throw error(fmt::format("table::row: expected {} cells, found {}; give one per column",
                              columns_.size(), cells.size()));
    rows_.push_back(std::move(cells));
    return *this;
  }
  /// A line across the whole table.
  table& rule() {
    rows_.emplace_back();
    return *this;
  }

  /// The lines, each with its end; no spaces at the end of a line.
  std::string text() const {
    std::vector<std::size_t> widths;
    for (std::size_t c = 0; c < columns_.size(); ++c) {
      std::size_t width = width_of(columns_[c].head);
      for (const auto& cells : rows_)
        if (!cells.empty()) width = std::max(width, width_of(cells[c]));
      widths.push_back(width);
    }
    std::size_t whole = 0;
    for (const std::size_t width : widths) whole += width + gap;

    std::string out;
    std::vector<std::string> heads;
    for (const column& c : columns_) heads.push_back(c.head);
    // A table whose columns need no name has no line of heads.
    const bool has_heads = std::any_of(heads.begin(), heads.end(),
                                       [](const std::string& head) { return !head.empty(); });
    if (has_heads) append_line(out, heads, widths);
    for (const auto& cells : rows_) {
      if (cells.empty())
        out += std::string(whole > gap ? whole - gap : 0, '-') + '\n';
      else
        append_line(out, cells, widths);
    }
    return out;
  }

 private:
  static constexpr std::size_t gap = 3;  // spaces between two columns

  // Characters, not bytes: names of files may be UTF-8, where bytes 10xxxxxx continue a character.
  static std::size_t width_of(std::string_view text) {
    return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
      return (static_cast<unsigned char>(c) & 0xc0u) != 0x80u;
    }));
  }

  void append_line(std::string& out, const std::vector<std::string>& cells,
                   const std::vector<std::size_t>& widths) const {
    std::string line;
    for (std::size_t c = 0; c < cells.size(); ++c) {
      const std::string space(widths[c] - width_of(cells[c]), ' ');
      if (c > 0) line += std::string(gap, ' ');
      line += columns_[c].side == align::right ? space + cells[c] : cells[c] + space;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + '\n';
  }

  std::vector<column> columns_;
  std::vector<std::vector<std::string>> rows_;  // an empty one is a rule
};

}  // namespace smelt
