// SPDX-License-Identifier: Apache-2.0
//
// From a document to plain text, without the help of another program.
//
//   plain   as it is
//   html    convert_html.hpp
//   man     convert_man.hpp
//   info    the nodes of a GNU info file without their header lines, menus, indices and tag table
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "convert_html.hpp"
#include "convert_man.hpp"

namespace smelt_tokens {

/// How a source's files become text.
enum class converter { plain, html, info, man };
inline constexpr std::array<std::string_view, 4> converter_names{"plain", "html", "info", "man"};

inline std::optional<converter> converter_of(std::string_view name) {
  for (std::size_t i = 0; i < converter_names.size(); ++i)
    if (converter_names[i] == name) return static_cast<converter>(i);
  return std::nullopt;
}

/// Nodes are divided by lines of the byte 1f; the first line behind it is the node's header, and
/// what comes without "Node:" in it is a table for readers.
inline std::string info_text(std::string_view info) {
  constexpr char divider = '\x1f';
  std::string text;
  while (true) {
    const std::size_t begin = info.find(divider);
    if (begin == std::string_view::npos) break;
    info.remove_prefix(begin + 1);
    std::string_view node = info.substr(0, info.find(divider));
    while (!node.empty() && node.front() == '\n') node.remove_prefix(1);
    const std::size_t header = std::min(node.find('\n'), node.size());
    const bool is_node = node.substr(0, header).find("Node:") != std::string_view::npos;
    // Marks of indices and images contain NUL: "\0\b[index\0\b]". Such a node is an index.
    if (!is_node || node.find(std::string_view("\0\b[index", 8)) != std::string_view::npos)
      continue;
    node.remove_prefix(header);
    bool in_menu = false;
    for (std::size_t at = 0; at < node.size();) {
      const std::size_t end = std::min(node.find('\n', at), node.size());
      const std::string_view line = node.substr(at, end - at);
      at = end + 1;
      // A menu goes on to the end of the node, with headings in between.
      if (line.starts_with("* Menu:")) in_menu = true;
      if (in_menu || line.find('\0') != std::string_view::npos) continue;
      // One blank line at most.
      if (line.empty() && (text.empty() || text.ends_with("\n\n"))) continue;
      text.append(line).append("\n");
    }
  }
  return text;
}

inline std::string plain_text(converter kind, std::string text) {
  switch (kind) {
    case converter::html:
      return html_text(text);
    case converter::info:
      return info_text(text);
    case converter::man:
      return man_text(text);
    case converter::plain:
      break;
  }
  return text;
}

}  // namespace smelt_tokens
