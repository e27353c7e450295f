// SPDX-License-Identifier: Apache-2.0
//
// Endpoints as a file: comma-separated values with named columns in any order,
//
//   architecture, F, S, D, loss [, cell] [, domain]
//
// F (or flops_per_token) in training FLOPs per token, S (or sparsity) as a fraction, D (or tokens)
// in tokens, loss in nats per token. Without a cell column, endpoints of equal F and S of one
// architecture are one cell. Domain "" or "all" is the overall loss. Other columns are ignored.
#pragma once

#include <charconv>
#include <istream>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include "smelt/error.hpp"
#include "smelt/law/csv.hpp"
#include "smelt/law/endpoint.hpp"
#include "smelt/law/message.hpp"

namespace smelt::law {

/// The endpoints of a table. Values are checked where they are used (`check_endpoints`), here only
/// that they are numbers.
/// @throws smelt::error naming the file and the missing column, or the row and the bad cell.
inline std::vector<endpoint> endpoints_of(const csv_table& table) {
  const std::size_t architecture = table.column({"architecture"});
  const std::size_t flops = table.column({"F", "flops_per_token"});
  const std::size_t sparsity = table.column({"S", "sparsity"});
  const std::size_t tokens = table.column({"D", "tokens"});
  const std::size_t loss = table.column({"loss"});
  const auto cell = table.find({"cell"});
  const auto domain = table.find({"domain"});
  std::vector<endpoint> points;
  points.reserve(table.rows.size());
  for (const csv_table::row& row : table.rows) {
    endpoint point;
    point.row = row.number;
    point.architecture = row.cells[architecture];
    point.flops_per_token = table.number(row, flops);
    point.sparsity = table.number(row, sparsity);
    point.tokens = table.number(row, tokens);
    point.loss = table.number(row, loss);
    if (point.architecture.empty()) {
      throw error(table.name + ": row " + std::to_string(row.number) +
                  ": architecture is empty, expected a name such as baseline");
    }
    point.cell = cell ? row.cells[*cell]
                      : "F " + number_text(point.flops_per_token, 12) + " S " +
                            number_text(point.sparsity, 12);
    if (domain && row.cells[*domain] != "all") point.domain = row.cells[*domain];
    points.push_back(std::move(point));
  }
  return points;
}

/// Reads endpoints from a stream; `name` is the file's, for messages.
inline std::vector<endpoint> read_endpoints(std::istream& input, const std::string& name) {
  return endpoints_of(read_csv(input, name));
}

/// Reads endpoints from a file.
/// @throws smelt::error if it cannot be read, and as `endpoints_of`.
inline std::vector<endpoint> read_endpoint_file(const std::string& path) {
  return endpoints_of(read_csv_file(path));
}

/// Writes endpoints so that reading gives the same values back, bit for bit.
inline void write_endpoints(std::ostream& output, std::span<const endpoint> points) {
  const auto quoted = [](const std::string& text) {
    if (text.find_first_of(",\" \t") == std::string::npos) return text;
    std::string result = "\"";
    for (const char c : text) result += c == '"' ? std::string("\"\"") : std::string(1, c);
    return result + "\"";
  };
  const auto exact = [](double value) {
    char digits[32];  // the shortest text that reads back as the same bits
    return std::string(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
  };
  output << "architecture,cell,domain,F,S,D,loss\n";
  for (const endpoint& p : points) {
    output << quoted(p.architecture) << ',' << quoted(p.cell) << ',' << quoted(p.domain) << ','
           << exact(p.flops_per_token) << ',' << exact(p.sparsity) << ',' << exact(p.tokens) << ','
           << exact(p.loss) << '\n';
  }
}

}  // namespace smelt::law
