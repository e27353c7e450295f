// SPDX-License-Identifier: Apache-2.0
//
// Real text that Debian packages bring: two manuals and two bodies of code, some megabytes of each.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace pair {

/// A source and where its package puts it.
struct default_source {
  std::string_view name;
  std::string_view package;
  std::string_view folder;   // above the version
  std::string_view version;  // the beginning of the name that carries the version, or empty
  std::string_view below;    // and what follows, or empty
  std::string_view ending;
};

inline constexpr std::array<default_source, 4> default_sources{{
    {"prose: Vim manual", "vim-runtime", "/usr/share/vim", "vim9", "doc", ".txt"},
    {"prose: Perl manual", "perl-doc", "/usr/share/perl", "5.", "pod", ".pod"},
    {"code: Python library", "libpython3.11-stdlib", "/usr/lib", "python3.", "", ".py"},
    {"code: Linux headers", "linux-libc-dev", "/usr/include/linux", "", "", ".h"},
}};

/// Of each source, so that no one drowns the others.
inline constexpr std::int64_t default_source_bytes = 3'000'000;

/// Its folder here, or an empty path where the package is not installed.
inline std::filesystem::path folder_of(const default_source& source) {
  namespace fs = std::filesystem;
  std::error_code code;
  if (source.version.empty())
    return fs::is_directory(source.folder, code) ? fs::path(source.folder) : fs::path();
  std::vector<fs::path> found;
  for (fs::directory_iterator walk(source.folder, code), end; !code && walk != end;
       walk.increment(code)) {
    const std::string name = walk->path().filename().string();
    std::error_code ignored;
    // A link to a version is that version again.
    if (name.starts_with(source.version) && !walk->is_symlink(ignored) &&
        fs::is_directory(walk->path() / source.below, ignored))
      found.push_back(walk->path() / source.below);
  }
  return found.empty() ? fs::path() : *std::max_element(found.begin(), found.end());
}

}  // namespace pair
