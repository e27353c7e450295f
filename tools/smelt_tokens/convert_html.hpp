// SPDX-License-Identifier: Apache-2.0
//
// HTML to text: tags go, blocks end lines, entities become UTF-8, white space is folded outside
// <pre>. What no reader sees (scripts, styles, the head, navigation) goes whole.
#pragma once

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace smelt_tokens {

/// Appends a code point; what is none becomes U+FFFD.
inline void append_utf8(std::string& text, std::uint32_t code) {
  if (code == 0 || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) code = 0xfffd;
  const auto put = [&text](std::uint32_t byte) { text.push_back(static_cast<char>(byte)); };
  if (code < 0x80) return put(code);
  if (code < 0x800) {
    put(0xc0 | code >> 6U);
  } else {
    if (code < 0x10000) {
      put(0xe0 | code >> 12U);
    } else {
      put(0xf0 | code >> 18U);
      put(0x80 | (code >> 12U & 0x3fU));
    }
    put(0x80 | (code >> 6U & 0x3fU));
  }
  put(0x80 | (code & 0x3fU));
}

class html_reader {
 public:
  explicit html_reader(std::string_view html) : rest_(html) {}

  std::string text() {
    while (!rest_.empty()) {
      if (rest_.front() == '<' && rest_.size() > 1 && begins_tag(rest_[1]))
        tag();
      else if (rest_.front() == '&')
        entity();
      else
        character(take());
    }
    while (!text_.empty() && is_space(text_.back())) text_.pop_back();
    if (!text_.empty()) text_ += '\n';
    return std::move(text_);
  }

 private:
  static bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
  static char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; }
  static bool is_letter(char c) { return lower(c) >= 'a' && lower(c) <= 'z'; }
  static bool is_name(char c) { return is_letter(c) || (c >= '0' && c <= '9'); }
  static bool begins_tag(char c) { return c == '/' || c == '!' || c == '?' || is_letter(c); }

  char take() {
    const char c = rest_.front();
    rest_.remove_prefix(1);
    return c;
  }
  void skip_behind(std::string_view end) {
    const std::size_t at = rest_.find(end);
    rest_.remove_prefix(at == std::string_view::npos ? rest_.size() : at + end.size());
  }

  void character(char c) {
    if (preformatted_ > 0) {
      if (c != '\r') text_ += c;
    } else if (!is_space(c)) {
      text_ += c;
    } else if (!text_.empty() && !is_space(text_.back())) {
      text_ += ' ';
    }
  }

  // Ends the line, and with `blank` leaves one line free.
  void end_line(bool blank) {
    while (!text_.empty() && text_.back() == ' ') text_.pop_back();
    if (text_.empty()) return;
    if (text_.back() != '\n') text_ += '\n';
    if (blank && !text_.ends_with("\n\n")) text_ += '\n';
  }

  void tag() {
    if (rest_.starts_with("<!--")) return skip_behind("-->");
    rest_.remove_prefix(1);
    const bool closes = rest_.front() == '/';
    if (closes) rest_.remove_prefix(1);
    std::string name;
    while (!rest_.empty() && is_name(rest_.front())) name += lower(take());
    // To the end of the tag; a > inside quotes is not it.
    char quote = 0;
    std::string attributes;
    while (!rest_.empty()) {
      const char c = take();
      attributes += c;
      if (quote != 0 ? c == quote : (c == '"' || c == '\'')) quote = quote != 0 ? '\0' : c;
      if (c == '>' && quote == 0) break;
    }
    // Menus, and the pilcrow that links to a heading.
    const bool navigates = attributes.find("role=\"navigation\"") != std::string::npos ||
                           attributes.find("class=\"headerlink\"") != std::string::npos;
    if (!closes && (navigates || is_one_of(name, unseen))) return skip_element(name);
    if (name == "pre") {
      end_line(true);
      preformatted_ = std::max(0, preformatted_ + (closes ? -1 : 1));
    } else if (name == "li" && !closes) {
      end_line(false);
      text_ += "- ";
    } else if (name == "td" || name == "th") {
      if (closes) character(' ');
    } else if (is_one_of(name, paragraphs)) {
      end_line(true);
    } else if (is_one_of(name, lines)) {
      end_line(false);
    }
  }

  // The element and whatever is inside, elements of its own name too. Without its end tag nothing
  // is lost but the tag.
  void skip_element(const std::string& name) {
    std::size_t at = 0;
    for (int depth = 1; depth > 0;) {
      at = rest_.find('<', at);
      if (at == std::string_view::npos) return;
      ++at;
      const bool closes = at < rest_.size() && rest_[at] == '/';
      std::size_t end = at + (closes ? 1 : 0);
      std::string found;
      while (end < rest_.size() && is_name(rest_[end])) found += lower(rest_[end++]);
      if (found == name) depth += closes ? -1 : 1;
    }
    rest_.remove_prefix(at);
    skip_behind(">");
  }

  void entity() {
    constexpr std::size_t longest = 12;
    const std::size_t end = rest_.substr(0, longest).find(';');
    if (end == std::string_view::npos) return character(take());
    const std::string_view name = rest_.substr(1, end - 1);
    if (name.size() > 1 && name.front() == '#') {
      const bool hex = lower(name[1]) == 'x';
      const std::string_view digits = name.substr(hex ? 2 : 1);
      std::uint32_t code = 0;
      const auto [last, failure] =
          std::from_chars(digits.data(), digits.data() + digits.size(), code, hex ? 16 : 10);
      if (failure != std::errc() || last != digits.data() + digits.size()) return character(take());
      rest_.remove_prefix(end + 1);
      return code == 0xa0 ? character(' ') : append_utf8(text_, code);
    }
    for (const auto& [known, code] : entities)
      if (known == name) {
        rest_.remove_prefix(end + 1);
        return code == ' ' ? character(' ') : append_utf8(text_, code);
      }
    character(take());
  }

  template <std::size_t Count>
  static bool is_one_of(std::string_view name, const std::array<std::string_view, Count>& names) {
    return std::find(names.begin(), names.end(), name) != names.end();
  }

  static constexpr std::array<std::string_view, 7> unseen{"script", "style",  "head",    "nav",
                                                          "svg",    "object", "noscript"};
  static constexpr std::array<std::string_view, 14> paragraphs{
      "p",  "h1", "h2", "h3",    "h4",         "h5",      "h6",
      "ul", "ol", "dl", "table", "blockquote", "section", "article"};
  static constexpr std::array<std::string_view, 11> lines{
      "br", "div", "tr", "dt", "dd", "li", "hr", "body", "header", "footer", "caption"};
  static constexpr std::array<std::pair<std::string_view, std::uint32_t>, 26> entities{
      {{"amp", '&'},      {"lt", '<'},       {"gt", '>'},        {"quot", '"'},
       {"apos", '\''},    {"nbsp", ' '},     {"copy", 0xa9},     {"reg", 0xae},
       {"para", 0xb6},    {"middot", 0xb7},  {"times", 0xd7},    {"eacute", 0xe9},
       {"auml", 0xe4},    {"ouml", 0xf6},    {"uuml", 0xfc},     {"ndash", 0x2013},
       {"mdash", 0x2014}, {"lsquo", 0x2018}, {"rsquo", 0x2019},  {"ldquo", 0x201c},
       {"rdquo", 0x201d}, {"bull", 0x2022},  {"hellip", 0x2026}, {"rarr", 0x2192},
       {"minus", 0x2212}, {"le", 0x2264}}};

  std::string_view rest_;
  std::string text_;
  int preformatted_ = 0;  // how many <pre> are open
};

inline std::string html_text(std::string_view html) {
  return html_reader(html).text();
}

}  // namespace smelt_tokens
