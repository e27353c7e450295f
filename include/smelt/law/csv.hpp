// SPDX-License-Identifier: Apache-2.0
//
// A small table of text with named columns, read from comma-separated values (RFC 4180: quotes,
// doubled quotes, CRLF; blank lines are skipped). Every error names the file and the row.
#pragma once

#include <charconv>
#include <cstdint>
#include <fstream>
#include <initializer_list>
#include <istream>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "smelt/error.hpp"
#include "smelt/law/message.hpp"

namespace smelt::law {

/// One table; cells are text without surrounding blanks.
struct csv_table {
  struct row {
    std::int64_t number = 0;  ///< 1-based line of the file
    std::vector<std::string> cells;
  };

  std::string name;  ///< of the file, for messages
  std::vector<std::string> header;
  std::vector<row> rows;

  /// The place of the first of `names` that is a column, or nothing.
  std::optional<std::size_t> find(std::initializer_list<std::string_view> names) const {
    for (const std::string_view wanted : names) {
      for (std::size_t i = 0; i < header.size(); ++i) {
        if (header[i] == wanted) return i;
      }
    }
    return std::nullopt;
  }

  /// The same for a column that must be there.
  /// @throws smelt::error naming the file, the column and what there is instead.
  std::size_t column(std::initializer_list<std::string_view> names) const {
    if (const auto found = find(names)) return *found;
    std::string wanted;
    for (const std::string_view n : names) {
      wanted += (wanted.empty() ? "'" : " or '") + std::string(n) + "'";
    }
    std::string present;
    for (const std::string& n : header) present += (present.empty() ? "" : ", ") + n;
    throw error(name + ": no column " + wanted + ", found " + present +
                "; name the columns in the first line");
  }

  /// The number in a cell. "nan" and "inf" are numbers here; whoever uses them refuses them.
  /// @throws smelt::error naming the file, row and column if the text is not one number.
  double number(const row& line, std::size_t column_index) const {
    const std::string& text = line.cells[column_index];
    const char* begin = text.data();
    const char* end = begin + text.size();
    if (begin != end && *begin == '+') ++begin;
    double value = 0;
    const auto [stop, status] = std::from_chars(begin, end, value);
    if (begin == end || stop != end || status != std::errc{}) {
      throw error(name + ": row " + std::to_string(line.number) + ": " + header[column_index] +
                  " is '" + text + "', expected a number such as 1.33e9");
    }
    return value;
  }
};

namespace detail {

inline std::string trimmed(const std::string& text) {
  constexpr std::string_view blanks = " \t\r";
  const auto first = text.find_first_not_of(blanks);
  if (first == std::string::npos) return "";
  return text.substr(first, text.find_last_not_of(blanks) - first + 1);
}

inline std::vector<std::string> split_csv_line(const std::string& line, const std::string& place) {
  std::vector<std::string> cells;
  std::string cell;
  bool quoted = false;      // inside quotes now
  bool was_quoted = false;  // this cell began with a quote: its blanks are kept
  for (std::size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (quoted) {
      if (c != '"') {
        cell += c;
      } else if (i + 1 < line.size() && line[i + 1] == '"') {
        cell += '"';
        ++i;
      } else {
        quoted = false;
      }
    } else if (c == '"' && trimmed(cell).empty() && !was_quoted) {
      cell.clear();
      quoted = was_quoted = true;
    } else if (c == ',') {
      cells.push_back(was_quoted ? cell : trimmed(cell));
      cell.clear();
      was_quoted = false;
    } else if (!was_quoted || (c != ' ' && c != '\t' && c != '\r')) {
      cell += c;
    }
  }
  if (quoted) throw error(place + ": a quote is opened and never closed");
  cells.push_back(was_quoted ? cell : trimmed(cell));
  return cells;
}

}  // namespace detail

/// Reads a table whose first line names the columns; `name` is the file's, for messages.
/// @throws smelt::error if there is no header or no row, a column is named twice, or a row has
///         another number of cells than the header.
inline csv_table read_csv(std::istream& input, const std::string& name) {
  csv_table table;
  table.name = name;
  std::string line;
  std::int64_t number = 0;
  while (std::getline(input, line)) {
    ++number;
    if (number == 1 && line.starts_with("\xEF\xBB\xBF")) line.erase(0, 3);  // a spreadsheet's mark
    if (detail::trimmed(line).empty()) continue;
    const std::string place = name + ": row " + std::to_string(number);
    std::vector<std::string> cells = detail::split_csv_line(line, place);
    if (table.header.empty()) {
      table.header = std::move(cells);
      continue;
    }
    if (cells.size() != table.header.size()) {
      throw error(place + ": " + count_text(std::ssize(cells), "cell") + ", expected " +
                  std::to_string(table.header.size()) + " as in the header");
    }
    table.rows.push_back({number, std::move(cells)});
  }
  if (input.bad()) throw error(name + ": reading failed after row " + std::to_string(number));
  if (table.header.empty()) {
    throw error(name + ": the file is empty, expected a header line and one row per endpoint");
  }
  if (table.rows.empty()) {
    throw error(name + ": there is a header and no row, expected one row per endpoint");
  }
  return table;
}

/// Reads a table from a file.
/// @throws smelt::error if it cannot be opened, and as above.
inline csv_table read_csv_file(const std::string& path) {
  std::ifstream input(path, std::ios::binary);
  // A directory opens and then fails on the first read: ask for a character before believing it.
  if (input) input.peek();
  if (!input && !input.eof()) throw error(path + ": cannot be read; check the path");
  input.clear();
  return read_csv(input, path);
}

}  // namespace smelt::law
