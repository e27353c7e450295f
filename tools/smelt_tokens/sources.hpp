// SPDX-License-Identifier: Apache-2.0
//
// What the corpus is made of: a source is a name, a group, and the files that its paths and
// patterns find. Files come in the order of their names, whatever the file system's own order is.
//
//   pattern   *  any run of bytes but /     ?  one of them     **/  any number of folders, or none
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "convert.hpp"
#include "smelt/io/message.hpp"

namespace smelt_tokens {

/// A source as it is asked for, and what became of its files.
struct corpus_source {
  std::string name;   // letters, digits, - and _: it is part of a file's name
  std::string group;  // the same
  std::string package{};
  converter kind = converter::plain;
  std::vector<std::filesystem::path> files{};

  std::int64_t files_read = 0;
  std::int64_t files_binary = 0;  // passed over: NUL bytes
  std::int64_t repeated_documents = 0;
};

namespace detail {
inline bool is_word(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_';
  });
}
}  // namespace detail

/// Whether a path fits a pattern.
inline bool fits_pattern(std::string_view pattern, std::string_view path) {
  while (!pattern.empty()) {
    if (pattern.starts_with("**/")) {
      pattern.remove_prefix(3);
      // Here, or behind any of the folders that follow.
      while (true) {
        if (fits_pattern(pattern, path)) return true;
        const std::size_t folder = path.find('/');
        if (folder == std::string_view::npos) return false;
        path.remove_prefix(folder + 1);
      }
    }
    if (pattern.front() == '*') {
      pattern.remove_prefix(1);
      for (std::size_t taken = 0;; ++taken) {
        if (fits_pattern(pattern, path.substr(taken))) return true;
        if (taken == path.size() || path[taken] == '/') return false;
      }
    }
    if (path.empty()) return false;
    const char wanted = pattern.front();
    if (wanted == '?' ? path.front() == '/' : wanted != path.front()) return false;
    pattern.remove_prefix(1);
    path.remove_prefix(1);
  }
  return path.empty();
}

namespace detail {
// All regular files below a folder; links to folders are not followed.
inline std::vector<std::filesystem::path> files_below(const std::filesystem::path& folder) {
  namespace fs = std::filesystem;
  std::vector<fs::path> files;
  std::error_code code;
  fs::recursive_directory_iterator walk(folder, fs::directory_options::skip_permission_denied,
                                        code);
  for (; !code && walk != fs::recursive_directory_iterator(); walk.increment(code)) {
    std::error_code ignored;
    if (walk->is_regular_file(ignored)) files.push_back(walk->path());
  }
  if (code)
    throw smelt::detail::io_error(folder.string(), "a folder that can be read", code.message(),
                                  "check its permissions");
  std::sort(files.begin(), files.end(),
            [](const fs::path& a, const fs::path& b) { return a.string() < b.string(); });
  return files;
}
}  // namespace detail

/// A file, or the files of a folder.
/// @throws smelt::error where there is none.
inline std::vector<std::filesystem::path> files_at(const std::filesystem::path& path) {
  namespace fs = std::filesystem;
  std::error_code code;
  const fs::file_status status = fs::status(path, code);
  if (fs::is_regular_file(status)) return {path};
  if (!fs::is_directory(status))
    throw smelt::detail::io_error(
        path.string(), "a file or folder",
        fs::exists(status) ? "neither" : std::string(code ? code.message() : "nothing"),
        "name one that exists");
  std::vector<fs::path> files = detail::files_below(path);
  if (files.empty())
    throw smelt::detail::io_error(path.string(), "at least 1 file", "an empty folder",
                                  "name a folder with text in it");
  return files;
}

/// The files that fit a pattern below `root`; none is no error.
inline std::vector<std::filesystem::path> files_like(const std::string& pattern,
                                                     const std::filesystem::path& root) {
  namespace fs = std::filesystem;
  const std::string whole = root.string() + (pattern.starts_with('/') ? "" : "/") + pattern;
  // A root may itself have a * in its name.
  const std::size_t wild = whole.find_first_of("*?", root.string().size());
  std::error_code code;
  if (wild == std::string::npos) {
    if (fs::is_regular_file(whole, code)) return {whole};
    return {};
  }
  const std::size_t folder_end = whole.rfind('/', wild);
  const fs::path folder = whole.substr(0, folder_end);
  if (!fs::is_directory(folder, code)) return {};
  std::vector<fs::path> files = detail::files_below(folder);
  std::erase_if(files, [&](const fs::path& file) {
    return !fits_pattern(std::string_view(whole).substr(folder_end + 1),
                         std::string_view(file.native()).substr(folder_end + 1));
  });
  return files;
}

}  // namespace smelt_tokens
