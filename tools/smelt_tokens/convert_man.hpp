// SPDX-License-Identifier: Apache-2.0
//
// Manual pages (roff with the man or mdoc macros) to text: fonts and positions go, headings and
// paragraphs stay, what a request would compute is not computed.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace smelt_tokens {

/// One line without its escapes; source: groff(7), "Escape short reference".
inline std::string without_escapes(std::string_view line) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 20> specials{
      {{"aq", "'"},   {"cq", "'"},  {"oq", "'"},  {"dq", "\""}, {"lq", "\""},
       {"rq", "\""},  {"em", "--"}, {"en", "-"},  {"hy", "-"},  {"bu", "*"},
       {"co", "(C)"}, {"rs", "\\"}, {"ti", "~"},  {"ha", "^"},  {"ga", "`"},
       {"->", "->"},  {"<=", "<="}, {">=", ">="}, {"mu", "x"},  {"pl", "+"}}};
  std::string text;
  std::size_t i = 0;
  // A name behind an escape: x, (xx or [any].
  const auto name = [&]() -> std::string_view {
    if (i >= line.size()) return {};
    if (line[i] == '(') {
      const std::string_view two = line.substr(std::min(i + 1, line.size()), 2);
      i = std::min(i + 3, line.size());
      return two;
    }
    if (line[i] != '[') return line.substr(i++, 1);
    const std::size_t end = std::min(line.find(']', i), line.size());
    const std::string_view any = line.substr(i + 1, end - i - 1);
    i = std::min(end + 1, line.size());
    return any;
  };
  const auto special = [&](std::string_view wanted) {
    for (const auto& [known, meaning] : specials)
      if (known == wanted) text += meaning;
  };
  while (i < line.size()) {
    if (line[i] != '\\') {
      text += line[i++];
      continue;
    }
    if (++i >= line.size()) break;
    const char c = line[i++];
    switch (c) {
      case '"':
      case '#':
        return text;  // the rest is a comment
      case '-':
        text += '-';
        break;
      case '\'':
        text += '\'';
        break;
      case '`':
        text += '`';
        break;
      case 'e':
      case '\\':
        text += '\\';
        break;
      case '.':
        text += '.';
        break;
      case ' ':
      case '~':
      case '0':
        text += ' ';
        break;
      case '(':
        --i, special(name());
        break;
      case '[':
        --i, special(name());
        break;
      case '*': {  // the strings that the man macros define
        const std::string_view string = name();
        if (string == "lq" || string == "rq") text += '"';
        if (string == "R") text += "(R)";
        break;
      }
      case 's':  // a size: sign, digits
        while (i < line.size() && (line[i] == '+' || line[i] == '-')) ++i;
        name();
        break;
      case 'f':
      case 'F':
      case 'm':
      case 'M':
      case 'n':
      case 'g':
      case 'k':
        name();
        break;
      case 'h':
      case 'v':
      case 'w':
      case 'l':
      case 'L':
      case 'D':
      case 'o':
      case 'x':
      case 'X':
      case 'Z':
        if (i < line.size()) {  // an argument between two equal characters
          const std::size_t end = line.find(line[i], i + 1);
          i = end == std::string_view::npos ? line.size() : end + 1;
        }
        break;
      default:
        break;  // zero width, or a request that does not show
    }
  }
  return text;
}

/// The arguments of a macro line: words, or "words in quotes", without their escapes.
inline std::vector<std::string> man_arguments(std::string_view line) {
  std::vector<std::string> words;
  for (std::size_t i = 0; i < line.size();) {
    if (line[i] == ' ' || line[i] == '\t') {
      ++i;
      continue;
    }
    if (line.substr(i).starts_with("\\\"")) break;
    const bool quoted = line[i] == '"';
    std::size_t end = quoted ? i + 1 : i;
    std::string word;
    for (; end < line.size(); ++end) {
      if (quoted && line[end] == '"') {
        // Two of them inside quotes are one.
        if (end + 1 >= line.size() || line[end + 1] != '"') break;
        ++end;
      } else if (!quoted && line[end] == ' ') {
        break;
      } else if (line[end] == '\\' && end + 1 < line.size()) {
        word += line[end++];  // an escaped blank does not end a word
      }
      word += line[end];
    }
    words.push_back(without_escapes(word));
    i = quoted ? end + 1 : end;
  }
  return words;
}

class man_reader {
 public:
  std::string text(std::string_view page) {
    for (std::size_t at = 0; at < page.size();) {
      const std::size_t end = std::min(page.find('\n', at), page.size());
      std::string_view line = page.substr(at, end - at);
      at = end + 1;
      if (line.ends_with('\r')) line.remove_suffix(1);
      if (defines_) {  // the body of a macro
        defines_ = !line.starts_with("..");
      } else if (line.starts_with('.') || line.starts_with('\'')) {
        request(line.substr(1));
      } else if (in_table_format_) {
        in_table_format_ = !line.ends_with('.');
      } else {
        add_line(without_escapes(line));
      }
    }
    while (!text_.empty() && (text_.back() == '\n' || text_.back() == ' ')) text_.pop_back();
    if (!text_.empty()) text_ += '\n';
    return std::move(text_);
  }

 private:
  // Lines of a paragraph are one line, as a reader sees them, unless told otherwise or indented.
  void add_line(const std::string& line) {
    if (line.empty()) return end_paragraph();
    if (!text_.empty() && text_.back() != '\n') text_ += fills_ && line.front() != ' ' ? ' ' : '\n';
    text_ += line;
    if (std::exchange(is_tag_, false)) end_line();
  }
  void end_line() {
    if (!text_.empty() && text_.back() != '\n') text_ += '\n';
  }
  void end_paragraph() {
    end_line();
    if (!text_.empty() && !text_.ends_with("\n\n")) text_ += '\n';
  }

  // mdoc marks words inside its lines: Fl verbose Ar file is "-verbose file".
  static std::string mdoc_line(const std::vector<std::string>& words, bool optional) {
    std::string line;
    bool glued = true;
    bool flag = false;
    for (const std::string& word : words) {
      if (word == "Fl") flag = true;
      if (is_callable(word)) continue;
      const bool closing =
          word.size() == 1 && std::string_view(".,:;)]").find(word[0]) != std::string_view::npos;
      if (!glued && !closing) line += ' ';
      if (flag) line += '-';
      line += word;
      glued = word == "(" || word == "[";
      flag = false;
    }
    return optional ? "[" + line + "]" : line;
  }
  // Only these: "In" and "To" are words more often than macros.
  static bool is_callable(std::string_view word) {
    constexpr std::array<std::string_view, 27> names{
        "Ad", "An", "Ar", "Bq", "Cm", "Dq", "Dv", "Em", "Ev", "Fa", "Fl", "Fn", "Ft", "Ic",
        "Li", "Nd", "Nm", "Ns", "Oc", "Oo", "Op", "Pa", "Pq", "Ql", "Sq", "Sy", "Xr"};
    return std::find(names.begin(), names.end(), word) != names.end();
  }
  static bool is_mdoc_macro(std::string_view word) {
    return word.size() == 2 && word[0] >= 'A' && word[0] <= 'Z' && word[1] >= 'a' && word[1] <= 'z';
  }

  void request(std::string_view line) {
    while (line.starts_with(' ')) line.remove_prefix(1);
    const std::size_t end = std::min(line.find_first_of(" \t"), line.size());
    const std::string_view name = line.substr(0, end);
    if (name.starts_with("\\\"")) return;
    const std::vector<std::string> words = man_arguments(line.substr(end));
    std::string joined;
    for (const std::string& word : words) joined += (joined.empty() ? "" : " ") + word;
    if (name == "SH" || name == "SS" || name == "Sh" || name == "Ss") {
      end_paragraph();
      if (!joined.empty()) add_line(joined);
      end_line();
    } else if (name == "PP" || name == "P" || name == "LP" || name == "Pp" || name == "TP" ||
               name == "sp") {
      end_paragraph();
      is_tag_ = name == "TP";
    } else if (name == "br" || name == "TQ") {
      end_line();
      is_tag_ = name == "TQ";
    } else if (name == "nf" || name == "EX" || name == "fi" || name == "EE" || name == "TE") {
      end_line();
      fills_ = name == "fi" || name == "EE" || name == "TE";
    } else if (name == "IP") {
      end_paragraph();
      if (!words.empty() && !words[0].empty()) add_line(words[0]);
      end_line();
    } else if (name == "B" || name == "I" || name == "SM" || name == "SB") {
      if (!joined.empty()) add_line(joined);
    } else if (name == "BR" || name == "RB" || name == "BI" || name == "IB" || name == "IR" ||
               name == "RI") {
      // The fonts alternate and nothing stands in between.
      std::string glued;
      for (const std::string& word : words) glued += word;
      if (!glued.empty()) add_line(glued);
    } else if (name == "UR" || name == "MT") {
      if (!words.empty()) add_line(words[0]);
    } else if (name == "TS") {
      end_paragraph();
      in_table_format_ = true;
      fills_ = false;
    } else if (name == "de" || name == "ig" || name == "am") {
      defines_ = true;
    } else if (name == "It") {
      end_paragraph();
      add_line(mdoc_line(words, false));
      end_line();
    } else if (is_mdoc_macro(name) && name != "Dd" && name != "Dt" && name != "Os" &&
               name != "Bl" && name != "El" && name != "Bd" && name != "Ed" && name != "Bk" &&
               name != "Ek") {
      std::vector<std::string> all;
      if (is_callable(name)) all.emplace_back(name);
      all.insert(all.end(), words.begin(), words.end());
      // The first one names the page, and a bare one means that name.
      if (name == "Nm" && words.empty()) all.push_back(page_name_);
      if (name == "Nm" && !words.empty() && page_name_.empty()) page_name_ = words[0];
      const std::string shown = mdoc_line(all, name == "Op");
      if (!shown.empty()) add_line(shown);
    }
    // Anything else sets or computes and shows nothing.
  }

  std::string text_;
  std::string page_name_;
  bool fills_ = true;    // lines are joined
  bool is_tag_ = false;  // the next line is the tag of a paragraph
  bool defines_ = false;
  bool in_table_format_ = false;
};

inline std::string man_text(std::string_view page) {
  return man_reader().text(page);
}

}  // namespace smelt_tokens
