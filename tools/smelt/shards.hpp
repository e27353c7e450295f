// SPDX-License-Identifier: Apache-2.0
//
// From the paths of a command line to token sets.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "smelt/io/token_set.hpp"

namespace smelt_tool {

/// Files as they are; of a folder its PREFIX*.bin, or where there is none all of its *.bin.
/// @throws smelt::error where a path is missing or a folder has no shard.
inline std::vector<std::filesystem::path> shards_at(const std::vector<std::string>& paths,
                                                    const std::string& prefix) {
  std::vector<std::filesystem::path> shards;
  for (const std::string& path : paths) {
    std::error_code code;
    if (!std::filesystem::is_directory(path, code)) {
      shards.emplace_back(path);  // whether it is there is for the set to say
      continue;
    }
    bool has_prefix = false;
    for (const auto& entry : std::filesystem::directory_iterator(path, code))
      has_prefix = has_prefix || entry.path().filename().string().starts_with(prefix);
    for (auto& file : smelt::token_shards_in(path, has_prefix ? prefix : ""))
      shards.push_back(std::move(file));
  }
  return shards;
}

/// A set whose tokens are all below the vocabulary, as far as that can be seen in a moment: of a
/// larger set the rest is checked as it is read.
/// @param format  what a file without a magic number is; empty where every one has its own.
inline smelt::token_set token_set_at(const std::vector<std::string>& paths,
                                     const std::string& prefix, std::int64_t vocabulary,
                                     std::optional<smelt::token_format> format) {
  smelt::token_set set(shards_at(paths, prefix), vocabulary, format);
  constexpr std::int64_t a_moment = std::int64_t{1} << 30;
  if (set.size() <= a_moment) set.check_vocabulary();
  return set;
}

}  // namespace smelt_tool
